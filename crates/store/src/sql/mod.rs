//! All SQL statements, by noun.

mod accounts;
mod channels;
mod commands;
mod entries;
mod feeds;
mod gaps;
mod leases;
mod messages;
mod publications;
mod receivers;
mod records;
mod signing_eras;
mod signing_keys;
mod tokens;
mod updates;

#[cfg(test)]
mod sqlite_tests;

use crate::database::{Operation, Row, Session, Sql, Value, sql, values};
use crate::{Store, StoreError};
pub(crate) use signing_eras::{close_era, trim_eras};
pub(crate) use updates::updates_within;

/// Reads a row of a result.
type Read<T> = fn(&Session, &Row) -> Result<T, StoreError>;

/// Statements that need no others around them.
impl Store {
    async fn list<T>(
        &self,
        operation: Operation,
        sql: Sql,
        values: &[Value<'_>],
        read: Read<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut session = self.database.read(operation).await?;
        session.list(sql, values, read).await
    }

    async fn find<T>(
        &self,
        operation: Operation,
        sql: Sql,
        values: &[Value<'_>],
        read: Read<T>,
    ) -> Result<Option<T>, StoreError> {
        let mut session = self.database.read(operation).await?;
        session.find(sql, values, read).await
    }

    /// Runs a statement in a transaction of its own. Returns how many rows it changed.
    async fn execute(
        &self,
        operation: Operation,
        sql: Sql,
        values: &[Value<'_>],
    ) -> Result<u64, StoreError> {
        let mut session = self.database.write(operation).await?;
        let changed = session.execute(sql, values).await?;
        session.commit().await?;
        Ok(changed)
    }

    /// Repeats a statement that changes at most `part` rows until there are no more, in
    /// transactions between which others can write. Returns how many rows it changed.
    async fn execute_in_parts(
        &self,
        operation: Operation,
        sql: Sql,
        values: &[Value<'_>],
        part: i64,
    ) -> Result<u64, StoreError> {
        let mut all = 0;
        loop {
            let changed = self.execute(operation, sql, values).await?;
            all += changed;
            if changed < part.unsigned_abs() {
                return Ok(all);
            }
        }
    }
}

/// Updates and entries are deleted in transactions of at most this many.
const PART: i64 = 1000;

/// Longest id of an entry and URL of a feed, in bytes: they are keys of an index.
const MAX_KEY: usize = 2048;

/// Returns the number of a channel.
async fn channel_id(session: &mut Session, channel: &str) -> Result<i64, StoreError> {
    let row = session
        .row(
            sql!("SELECT id FROM channels WHERE name = $1"),
            values![channel],
        )
        .await?
        .ok_or_else(|| session.unknown_channel(channel))?;
    session.get(&row, 0)
}

/// Returns the number of a feed's row. If there is none it is made, as one that is `active` or that
/// nothing polls.
async fn feed_row(
    session: &mut Session,
    channel_id: i64,
    url: &str,
    active: bool,
) -> Result<i64, StoreError> {
    check_length("the URL of a feed", url, MAX_KEY)?;
    session
        .execute(
            sql!(
                "INSERT INTO feeds (channel_id, url, active) VALUES ($1, $2, $3)
                 ON CONFLICT (channel_id, url) DO NOTHING"
            ),
            values![channel_id, url, active],
        )
        .await?;
    session
        .scalar(
            sql!("SELECT id FROM feeds WHERE channel_id = $1 AND url = $2"),
            values![channel_id, url],
        )
        .await
}

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

/// Fails if a text is too long.
fn check_length(what: &'static str, text: &str, limit: usize) -> Result<(), StoreError> {
    let bytes = text.len();
    match bytes > limit {
        true => Err(StoreError::TooLong { what, bytes, limit }),
        false => Ok(()),
    }
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
