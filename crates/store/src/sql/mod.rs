//! All SQL statements, by noun.

mod accounts;
mod channels;
mod commands;
mod entries;
mod feeds;
mod gaps;
mod leases;
mod receivers;
mod records;
mod tokens;
mod updates;

#[cfg(test)]
mod sqlite_tests;

use crate::StoreError;
use crate::database::{Session, sql, values};
pub(crate) use updates::updates_within;

/// Grows the version, so that a running source looks at the change. The last statement of its
/// transaction, for it makes others wait.
pub(crate) async fn grow_version(session: &mut Session) -> Result<(), StoreError> {
    session
        .execute(
            sql!("UPDATE settings SET version = version + 1 WHERE id = 1"),
            values![],
        )
        .await
        .map(|_| ())
}

/// Fails if another holder has the lease by now.
pub(crate) fn check_fence(
    session: &Session,
    channel: &str,
    fence: Option<u64>,
    current: u64,
) -> Result<(), StoreError> {
    match fence.filter(|&fence| fence != current) {
        Some(fence) => Err(StoreError::Fenced {
            url: session.url.to_string(),
            channel: channel.to_owned(),
            fence,
            current,
        }),
        None => Ok(()),
    }
}

/// A list of names as it is stored.
pub(crate) fn names_to_json(names: &[String]) -> String {
    serde_json::Value::from(names).to_string()
}

/// A list of names from the database.
pub(crate) fn names_from_json(session: &Session, json: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(json)
        .map_err(|error| session.damaged(format!("a list of channels is {json:?}: {error}")))
}

/// The longest beginning of `text` of at most `bytes` bytes.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes))
        .unwrap_or_default()
}

/// A number for the database, which knows no larger one.
pub(crate) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
