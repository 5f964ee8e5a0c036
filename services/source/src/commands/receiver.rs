//! `receiver …`.

use serde_json::json;
use store::{ReceiverRow, Store};

use super::arguments::Receiver;
use super::confirm::confirm;
use super::table::{Column, table_or, whole, words};
use super::text::plain;
use super::{CommandOutput, Failure, rows, when};

const COLUMNS: [Column; 7] = [
    whole("ID"),
    words("NAME", 14),
    whole("STATE"),
    words("TAGS", 8),
    words("CHANNELS", 6),
    words("ADDRESS", 8),
    words("SEEN (UTC)", 16),
];

/// Lengths of an id: as shown, and the least that identifies a receiver.
const SHOWN: usize = 8;
const TYPED: usize = 4;

pub(super) async fn answer(store: &Store, action: &Receiver) -> Result<CommandOutput, Failure> {
    match action {
        Receiver::List => list(store).await,
        Receiver::Revoke { who } => revoke(store, who).await,
        Receiver::Forget { who, yes } => forget(store, who, *yes).await,
    }
}

async fn list(store: &Store) -> Result<CommandOutput, Failure> {
    let receivers = store.receivers().list().await?;
    let lines: Vec<Vec<String>> = receivers
        .iter()
        .map(|row| {
            let id = row.id.to_string();
            vec![
                id.chars().take(SHOWN).collect(),
                labelled(row),
                match (row.revoked_ms, row.held) {
                    (Some(_), _) => "revoked".to_owned(),
                    (None, true) => "held".to_owned(),
                    (None, false) => "enrolled".to_owned(),
                },
                row.tags.join(","),
                row.channels.join(","),
                row.address.clone(),
                when::shown(row.seen_ms),
            ]
        })
        .collect();
    let none = "No receiver has enrolled yet.";
    let text = table_or(&COLUMNS, &lines, none);
    let receivers: Vec<_> = receivers.iter().map(rows::receiver).collect();
    Ok(CommandOutput::new(text, json!({"receivers": receivers})))
}

/// Returns the operators' label and the receiver's own name.
fn labelled(row: &ReceiverRow) -> String {
    match &row.label {
        Some(label) if !row.name.is_empty() => format!("{label} ({})", row.name),
        Some(label) => label.clone(),
        None => row.name.clone(),
    }
}

/// Returns the receiver with this id, beginning of an id, or name.
pub(super) fn meant<'a>(rows: &'a [ReceiverRow], who: &str) -> Result<&'a ReceiverRow, Failure> {
    let typed = who.to_ascii_lowercase();
    let by_id = |row: &&ReceiverRow| typed.len() >= TYPED && row.id.to_string().starts_with(&typed);
    let mut found: Vec<&ReceiverRow> = rows.iter().filter(by_id).collect();
    if found.is_empty() {
        found = rows.iter().filter(|row| row.name == who).collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => Err(Failure::other(format_args!(
            "there is no receiver {who:?}: `flexfeed-source receiver list` shows them; an id may \
             be cut to {TYPED} characters"
        ))),
        many => {
            let ids: Vec<String> = many.iter().map(|row| row.id.to_string()).collect();
            Err(Failure::other(format_args!(
                "{who:?} may be several receivers: say which by its id: {}",
                ids.join(", ")
            )))
        }
    }
}

fn called(row: &ReceiverRow) -> String {
    match row.name.is_empty() {
        true => row.id.to_string(),
        false => format!("{} ({})", plain(&row.name), row.id),
    }
}

async fn revoke(store: &Store, who: &str) -> Result<CommandOutput, Failure> {
    let receivers = store.receivers().list().await?;
    let row = meant(&receivers, who)?;
    let called = called(row);
    if !store.receivers().revoke(row.id).await? {
        return Err(Failure::other(format_args!(
            "{called} has just been forgotten"
        )));
    }
    let after = store.receivers().list().await?;
    let shown = after.iter().find(|other| other.id == row.id);
    let text = format!(
        "Receiver {called} is revoked; a running source disconnects it within two seconds. \
         It can enrol again only after `flexfeed-source receiver forget {}`.",
        row.id
    );
    let json = json!({"receiver": shown.map(rows::receiver)});
    Ok(CommandOutput::new(text, json).about(row.id))
}

async fn forget(store: &Store, who: &str, yes: bool) -> Result<CommandOutput, Failure> {
    let receivers = store.receivers().list().await?;
    let row = meant(&receivers, who)?;
    let called = called(row);
    let again = match row.revoked_ms {
        Some(_) => ", and although it was revoked it may enrol again with a valid token",
        None => ", and it has to enrol again with a valid token",
    };
    confirm(&format!("This forgets the receiver {called}{again}"), yes)?;
    store.receivers().forget(row.id).await?;
    let json = json!({"forgotten": row.id.to_string()});
    let text = format!("Receiver {called} is forgotten.");
    Ok(CommandOutput::new(text, json).about(row.id))
}
