//! Retention: deletion of old updates and entries.

use super::to_i64;
use crate::database::{Sql, sql, values};
use crate::model::Retention;
use crate::{Entries, StoreError, Updates};

/// Updates are deleted in transactions of at most this many.
pub(super) const PART: i64 = 1000;

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

impl Updates<'_> {
    /// Deletes the updates of a channel that are not to be kept, counted back from `published`, and
    /// returns the oldest seq that is left (the head + 1 if none is). Updates after `published`
    /// stay. So do the hashes of entries: a deleted update does not return as new. Works in parts,
    /// between which others can write; when the future is dropped, some of it may be done.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn retain(
        self,
        channel: &str,
        keep: &Retention,
        published: u64,
    ) -> Result<u64, StoreError> {
        loop {
            let mut session = self.store.database.write("delete old updates").await?;
            let row = session
                .row(
                    sql!(
                        "SELECT c.id, c.head,
                             (SELECT MIN(u.seq) FROM updates u WHERE u.channel_id = c.id)
                         FROM channels c WHERE c.name = $1"
                    ),
                    values![channel],
                )
                .await?
                .ok_or_else(|| session.unknown_channel(channel))?;
            let id: i64 = session.get(&row, 0)?;
            let head: i64 = session.get(&row, 1)?;
            let oldest: Option<i64> = session.get(&row, 2)?;
            let Some(oldest) = oldest else {
                session.rollback().await?;
                return Ok(u64::try_from(head).unwrap_or_default().saturating_add(1));
            };
            // Everything before `end` goes. What is not published yet counts for nothing.
            let published = to_i64(published).min(head);
            let mut end = keep.count.map_or(oldest, |count| {
                published.saturating_sub(to_i64(count)).saturating_add(1)
            });
            if let Some(age) = keep.age_ms {
                let row = session
                    .row(
                        sql!(
                            "SELECT MAX(seq), MIN(CASE WHEN created_at >= " NOW " - $3 THEN seq END)
                             FROM (SELECT seq, created_at FROM updates
                                 WHERE channel_id = $1 AND seq >= $2 ORDER BY seq LIMIT $4) AS part"
                        ),
                        values![id, oldest, age, PART],
                    )
                    .await?;
                if let Some(row) = row {
                    let last: Option<i64> = session.get(&row, 0)?;
                    let young: Option<i64> = session.get(&row, 1)?;
                    let aged = young.or(last.map(|last| last.saturating_add(1)));
                    end = end.max(aged.unwrap_or(oldest));
                }
            }
            let end = end.min(published.saturating_add(1));
            if end <= oldest {
                session.rollback().await?;
                return u64::try_from(oldest).map_err(|_| self.negative(oldest));
            }
            session
                .execute(
                    sql!("DELETE FROM updates WHERE channel_id = $1 AND seq < $2"),
                    values![id, end.min(oldest.saturating_add(PART))],
                )
                .await?;
            session.commit().await?;
        }
    }
}

impl Entries<'_> {
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
        // In parts, between which others can write. Which entries it is about, a reader finds out:
        // that may take a look at all of them.
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
        let mut all = 0;
        loop {
            let mut session = self.store.database.write("forget old entries").await?;
            let deleted = session
                .execute(OLD_ENTRIES, values![feed_id, last, present, PART])
                .await?;
            session.commit().await?;
            all += deleted;
            if deleted < PART.unsigned_abs() {
                return Ok(all);
            }
        }
    }
}

impl Updates<'_> {
    fn negative(&self, seq: i64) -> StoreError {
        StoreError::Damaged {
            url: self.store.database.url.to_string(),
            detail: format!("it holds the seq {seq}"),
        }
    }
}
