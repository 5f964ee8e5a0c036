//! `config check` and `config show`.

use serde_json::{Value, json};
use service::settings::check::{DEFAULT, Shown};

use super::arguments::{Action, Settings};
use super::table::{Column, WIDTH, table, words};
use super::text::wrap;
use super::when;
use super::{CommandOutput, Failure};
use crate::clock::millis;
use crate::config::{ChannelSettings, Config, Intervals, Resolved};
use crate::data::DATABASE;

const COLUMNS: [Column; 3] = [words("SETTING", 12), words("VALUE", 20), words("FROM", 20)];

pub(super) fn answer(action: &Action, resolved: &Resolved) -> (CommandOutput, Result<(), Failure>) {
    let all = matches!(action, Action::Config(Settings::Show));
    let ended = match &resolved.config {
        Ok(_) => Ok(()),
        Err(mistakes) => Err(Failure::usage(mistakes.join("\nerror: "))),
    };
    let file = resolved
        .file
        .as_ref()
        .map(|path| path.display().to_string());
    let settings: Vec<Value> = resolved.shown.iter().map(setting).collect();
    let (mistakes, warnings, channels) = match &resolved.config {
        Ok(config) => {
            let channels: Vec<Value> = config.channels.iter().map(channel).collect();
            (Vec::new(), config.warnings.clone(), channels)
        }
        Err(mistakes) => (mistakes.clone(), Vec::new(), Vec::new()),
    };
    let json = json!({
        "ok": mistakes.is_empty(),
        "file": file,
        "mistakes": mistakes,
        "warnings": warnings,
        "channels": channels,
        "settings": settings,
    });
    let mut text = String::new();
    if let Some(file) = &file {
        text.push_str(&format!("Configuration file: {file}\n"));
    }
    let lines: Vec<Vec<String>> = resolved
        .shown
        .iter()
        .filter(|shown| all || shown.origin != DEFAULT)
        .map(|shown| {
            vec![
                shown.name.clone(),
                shown.value.clone(),
                shown.origin.clone(),
            ]
        })
        .collect();
    match lines.is_empty() {
        true => text.push_str("Every setting has its default.\n"),
        false => text.push_str(&table(&COLUMNS, &lines)),
    }
    if let Ok(config) = &resolved.config {
        text.push_str(&plan(config));
        for warning in &config.warnings {
            let lines = wrap(&format!("Warning: {warning}"), WIDTH);
            text.push_str(&format!("{}\n", lines.join("\n  ")));
        }
    }
    (CommandOutput::new(text, json), ended)
}

fn setting(shown: &Shown) -> Value {
    let value = match (shown.origin.as_str(), shown.value.is_empty()) {
        (DEFAULT, true) => Value::Null,
        _ => shown.value.clone().into(),
    };
    json!({"key": shown.name, "value": value, "from": shown.origin})
}

fn channel(channel: &ChannelSettings) -> Value {
    let feeds = channel.feeds.iter();
    let feeds: Vec<String> = feeds.map(|feed| feed.address.redacted()).collect();
    json!({
        "name": channel.name,
        "groups": channel.groups.to_string(),
        "rate_bps": channel.rate_bps,
        "private": channel.private,
        "packet_authentication": channel.packet_authentication.as_str(),
        "fec": channel.fec.as_str(),
        "deadline_ms": channel.deadline.millis(),
        "keep": {
            "count": channel.keep.count,
            "age_ms": channel.keep.age.map(millis),
        },
        "feeds": feeds,
    })
}

/// Returns a summary of `run` with these settings.
fn plan(config: &Config) -> String {
    let mut text = String::from("\n`run` would serve receivers on UDP ");
    let database = match &config.database_url {
        Some(_) => "the database that is given".to_owned(),
        None => config.data.join(DATABASE).display().to_string(),
    };
    text.push_str(&format!(
        "{}, with {database}, and\nthe status pages on http://{}.\n",
        config.listen, config.http
    ));
    if config.channels.is_empty() {
        text.push_str(
            "No channel is given here; those of `channel add` and `feed add` are in the \
             database.\n",
        );
    }
    for channel in &config.channels {
        let groups = match channel.groups.all() {
            [] => "no multicast".to_owned(),
            _ => channel.groups.to_string(),
        };
        let private = if channel.private { ", private" } else { "" };
        text.push_str(&format!("Channel {}: {groups}{private}\n", channel.name));
        for feed in &channel.feeds {
            let (min, max) = feed.polls.bounds().unwrap_or_default();
            let every = config.feeds.intervals(min, max);
            let every = every_words(every);
            text.push_str(&format!("  {} {every}\n", feed.address.redacted()));
        }
        if channel.feeds.is_empty() {
            text.push_str("  no feed\n");
        }
    }
    text
}

fn every_words(every: Intervals) -> String {
    let length = |time: std::time::Duration| when::length(millis(time));
    match every.min == every.max {
        true => format!("every {}", length(every.min)),
        false => format!("every {} to {}", length(every.min), length(every.max)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::commands::arguments::command;
    use crate::config::resolve;
    use service::settings::Environment;

    const FEED: &str = "https://ann:s3cret@example.org/feed?channel=5&key=s3cret";

    fn asked(arguments: &[&str]) -> String {
        let all = ["flexfeed-source"].iter().chain(arguments);
        let matches = command().try_get_matches_from(all).unwrap();
        let resolved = resolve(&matches, &Environment::default());
        let actions = [Settings::Check, Settings::Show].map(Action::Config);
        let answers = actions.map(|action| answer(&action, &resolved));
        format!("{answers:?} {:?}", resolved.config)
    }

    /// As they are pasted into reports.
    #[test]
    fn a_feed_is_named_without_its_secrets() {
        let spec = format!("other,feed={FEED}");
        for text in [
            asked(&["--feed", FEED]),
            asked(&["--feed", FEED, "--channel-spec", &spec]),
        ] {
            assert!(!text.contains("s3cret"), "{text}");
        }
        let text = asked(&["--feed", FEED]);
        let named = "https://example.org/feed?channel=***&key=***";
        assert!(text.contains(named), "{text}");
    }
}
