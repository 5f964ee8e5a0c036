//! Entries of feeds, by id and content hash.

use std::collections::HashMap;

use super::{PART, channel_id, to_i64};
use crate::database::{Session, Sql, sql, storable, values};
use crate::model::Hash;
use crate::{Entries, StoreError};

/// The hashes of the entries of feed `$1` with the ids `$2`: an array in PostgreSQL, a JSON array
/// in SQLite. PostgreSQL looks each id up by itself, because a table that has just grown has no
/// statistics yet, and for all ids at once it would rather read the whole feed.
const HASHES: Sql = Sql {
    sqlite: "SELECT entry_id, hash FROM entries
             WHERE feed_id = $1 AND entry_id IN (SELECT value FROM json_each($2))",
    postgres: "SELECT found.entry_id, found.hash FROM UNNEST($2::TEXT[]) AS wanted (id)
               CROSS JOIN LATERAL (SELECT entry_id, hash FROM entries
                   WHERE feed_id = $1 AND entry_id = wanted.id LIMIT 1) AS found",
};

/// Forgets at most `$4` entries of feed `$1` up to the seq `$2` whose ids are not among `$3`. One
/// that changes meanwhile has another seq then, and stays.
const OLD_ENTRIES: Sql = Sql {
    sqlite: "DELETE FROM entries WHERE feed_id = $1 AND seq <= $2 AND entry_id IN (
                 SELECT entry_id FROM entries WHERE feed_id = $1 AND seq <= $2
                     AND entry_id NOT IN (SELECT value FROM json_each($3)) LIMIT $4)",
    postgres: "DELETE FROM entries WHERE feed_id = $1 AND seq <= $2 AND entry_id IN (
                   SELECT entry_id FROM entries WHERE feed_id = $1 AND seq <= $2
                       AND entry_id <> ALL ($3::TEXT[]) LIMIT $4)",
};

impl Entries<'_> {
    /// Returns the stored content hashes of those of the given entries that are known.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn hashes(
        self,
        channel: &str,
        url: &str,
        entry_ids: &[&str],
    ) -> Result<HashMap<String, Hash>, StoreError> {
        let mut session = self.store.database.read("look up entries").await?;
        let row = session
            .row(
                sql!(
                    "SELECT f.id FROM channels c
                     LEFT JOIN feeds f ON f.channel_id = c.id AND f.url = $2 WHERE c.name = $1"
                ),
                values![channel, url],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        let feed_id: Option<i64> = session.get(&row, 0)?;
        let stored = match feed_id {
            Some(feed_id) => hashes(&mut session, feed_id, entry_ids).await?,
            None => HashMap::new(),
        };
        // By the ids as they were asked for.
        Ok(entry_ids
            .iter()
            .filter_map(|&id| Some((id.to_owned(), *stored.get(storable(id).as_ref())?)))
            .collect())
    }

    /// Returns the ids of a feed's entries of which a version was stored with a larger seq than
    /// `seq`, the newest first: at most `limit`.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn since(
        self,
        channel: &str,
        url: &str,
        seq: u64,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut session = self.store.database.read("look up new entries").await?;
        channel_id(&mut session, channel).await?;
        let sql = sql!(
            "SELECT e.entry_id FROM entries e
             JOIN feeds f ON f.id = e.feed_id
             JOIN channels c ON c.id = f.channel_id
             WHERE c.name = $1 AND f.url = $2 AND e.seq > $3
             ORDER BY e.seq DESC LIMIT $4"
        );
        let values = values![channel, url, to_i64(seq), to_i64(limit as u64)];
        session
            .list(sql, values, |session, row| session.get(row, 0))
            .await
    }

    /// Forgets the entries of a feed, except for the `keep` newest ones, those that are `present`
    /// in the feed, and those of which the channel still keeps an update. A forgotten entry that
    /// returns is new. Returns how many were forgotten. Works in parts, between which others can
    /// write.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn forget(
        self,
        channel: &str,
        url: &str,
        keep: usize,
        present: &[&str],
    ) -> Result<u64, StoreError> {
        // A reader finds the entries concerned, which may take a look at all of them; the writers
        // then work in parts.
        let mut session = self.store.database.read("look for old entries").await?;
        let row = session
            .row(
                sql!(
                    "SELECT f.id, c.head,
                         (SELECT MIN(u.seq) FROM updates u WHERE u.channel_id = c.id),
                         (SELECT e.seq FROM entries e WHERE e.feed_id = f.id
                             ORDER BY e.seq DESC LIMIT 1 OFFSET $3)
                     FROM channels c LEFT JOIN feeds f ON f.channel_id = c.id AND f.url = $2
                     WHERE c.name = $1"
                ),
                values![channel, url, to_i64(keep as u64)],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        let feed_id: Option<i64> = session.get(&row, 0)?;
        let head: i64 = session.get(&row, 1)?;
        let oldest: Option<i64> = session.get(&row, 2)?;
        let last: Option<i64> = session.get(&row, 3)?;
        drop(session);
        let (Some(feed_id), Some(last)) = (feed_id, last) else {
            return Ok(0);
        };
        // While an update is kept, so is what is known of its entry.
        let last = last.min(oldest.map_or(head, |oldest| oldest - 1));
        let values = values![feed_id, last, present, PART];
        self.store
            .execute_in_parts("forget old entries", OLD_ENTRIES, values, PART)
            .await
    }
}

/// The hashes stored for those of the entries that are known. In PostgreSQL, it has to be a
/// statement of its own after the channel's row was locked: one that waited for the lock sees what
/// was there before.
pub(super) async fn hashes(
    session: &mut Session,
    feed_id: i64,
    ids: &[&str],
) -> Result<HashMap<String, Hash>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = session.rows(HASHES, values![feed_id, ids]).await?;
    rows.iter()
        .map(|row| {
            let id: String = session.get(row, 0)?;
            let hash: Vec<u8> = session.get(row, 1)?;
            let hash = Hash::try_from(hash.as_slice()).map_err(|_| {
                session.damaged(format!("the hash of entry {id:?} is not 32 bytes long"))
            })?;
            Ok((id, hash))
        })
        .collect()
}
