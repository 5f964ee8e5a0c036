//! `gap list`.

use serde_json::json;
use store::{GapRecord, Store};

use super::arguments::Gap;
use super::channel::existing;
use super::table::{Column, number, table_or, whole, words};
use super::{CommandOutput, Failure, rows, when};

const COLUMNS: [Column; 5] = [
    whole("NOTICED (UTC)"),
    words("CHANNEL", 10),
    whole("STATE"),
    number("FOUND"),
    words("WHAT", 20),
];

pub(super) async fn answer(store: &Store, action: &Gap) -> Result<CommandOutput, Failure> {
    let Gap::List { of, last } = action;
    let names = match of {
        Some(name) => vec![existing(store, name).await?.channel.name],
        None => {
            let rows = store.channels().list().await?;
            rows.into_iter().map(|row| row.channel.name).collect()
        }
    };
    let mut gaps: Vec<(String, GapRecord)> = Vec::new();
    for name in names {
        let last = usize::try_from(*last).unwrap_or(usize::MAX);
        let some = store.gaps().list(&name, last).await?;
        gaps.extend(some.into_iter().map(|gap| (name.clone(), gap)));
    }
    gaps.sort_by_key(|(_, gap)| std::cmp::Reverse(gap.at_ms));
    let lines: Vec<Vec<String>> = gaps
        .iter()
        .map(|(channel, gap)| {
            vec![
                when::shown(gap.at_ms),
                channel.clone(),
                gap.state.as_str().to_owned(),
                gap.entries.to_string(),
                format!("{}: {}", gap.url, gap.detail),
            ]
        })
        .collect();
    let none = "No gap was ever suspected.";
    let text = table_or(&COLUMNS, &lines, none);
    let gaps: Vec<_> = gaps
        .iter()
        .map(|(channel, gap)| rows::gap(channel, gap))
        .collect();
    Ok(CommandOutput::new(text, json!({"gaps": gaps})))
}
