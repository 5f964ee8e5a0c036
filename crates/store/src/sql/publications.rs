//! Publications: entries that publishers send, until the source has stored them as updates.

use std::collections::HashSet;

use super::entries::hashes;
use super::records::change::notify;
use super::{MAX_KEY, check_length, feed_row, to_i64};
use crate::database::{Row, Session, Value, sql, storable, values};
use crate::model::{NewPublication, StoredPublication};
use crate::watch::Topic;
use crate::{Publications, StoreError};

/// Most publications of one channel that wait, and their bytes.
const MAX_WAITING: u64 = 10_000;
const MAX_WAITING_BYTES: u64 = 64 << 20;

/// Longest payload, in bytes.
const MAX_PAYLOAD: usize = 8_000_000;

/// Most publications of one read.
const MAX_READ: usize = 1000;

/// Returns those of the ids that wait.
async fn waiting_ids(
    session: &mut Session,
    channel_id: i64,
    ids: &[&str],
) -> Result<Vec<String>, StoreError> {
    let sql = sql!(
        "SELECT entry_id FROM publications WHERE channel_id = $2 AND entry_id" AMONG_1
    );
    let read = |session: &Session, row: &Row| session.get(row, 0);
    session.list(sql, values![ids, channel_id], read).await
}

async fn insert(
    session: &mut Session,
    channel_id: i64,
    new: &[&NewPublication],
) -> Result<(), StoreError> {
    session.expect(new.iter().map(|new| new.payload.len() as u64).sum());
    if session.is_postgres() {
        let ids: Vec<&str> = new.iter().map(|new| new.entry_id.as_str()).collect();
        let payloads: Vec<&[u8]> = new.iter().map(|new| new.payload.as_slice()).collect();
        let sql = sql!(
            "INSERT INTO publications (channel_id, entry_id, created_at, payload)
             SELECT $1, entry_id, " NOW ", payload
             FROM UNNEST($2::TEXT[], $3::BYTEA[]) WITH ORDINALITY AS new (entry_id, payload, place)
             ORDER BY place"
        );
        let values = [
            Value::from(channel_id),
            Value::Texts(&ids),
            Value::Blobs(&payloads),
        ];
        return session.execute(sql, &values).await.map(|_| ());
    }
    for NewPublication { entry_id, payload } in new {
        let sql = sql!(
            "INSERT INTO publications (channel_id, entry_id, created_at, payload)
             VALUES ($1, $2, " NOW ", $3)"
        );
        let values = values![channel_id, entry_id, payload.as_slice()];
        session.execute(sql, values).await?;
    }
    Ok(())
}

impl Publications<'_> {
    /// Stores publications durably, in the order given, for the source that holds the channel's
    /// lease. `url` names the feed that their entries belong to. Returns for each whether its entry
    /// was published before: then it is not published again.
    ///
    /// # Errors
    /// [`StoreError::UnknownChannel`] also if the channel is not active, [`StoreError::TooMany`]
    /// if 10,000 publications or 64 MiB wait and there is a new one; an entry id is empty, it or a
    /// payload is too long, or the database fails. Nothing is stored then.
    pub async fn add(
        self,
        channel: &str,
        url: &str,
        publications: &[NewPublication],
    ) -> Result<Vec<bool>, StoreError> {
        let what = "the id of an entry";
        check_length("the URL of a feed", url, MAX_KEY)?;
        for NewPublication { entry_id, payload } in publications {
            check_length(what, entry_id, MAX_KEY)?;
            if entry_id.is_empty() {
                return Err(StoreError::Empty { what });
            }
            if payload.len() > MAX_PAYLOAD {
                return Err(StoreError::TooLong {
                    what: "a publication",
                    bytes: payload.len(),
                    limit: MAX_PAYLOAD,
                });
            }
        }
        let mut session = self.store.database.write("store publications").await?;
        // The channel's row is kept until the commit: so publications become visible in the order
        // of their numbers, and none is between this look at what is known and its update.
        let row = session
            .row(
                sql!("SELECT id FROM channels WHERE name = $1 AND active" LOCK),
                values![channel],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        let channel_id: i64 = session.get(&row, 0)?;
        let feed_id = feed_row(&mut session, channel_id, url, false).await?;
        let ids: Vec<&str> = publications
            .iter()
            .map(|publication| publication.entry_id.as_str())
            .collect();
        let known = hashes(&mut session, feed_id, &ids).await?;
        let mut seen: HashSet<String> = known.into_keys().collect();
        seen.extend(waiting_ids(&mut session, channel_id, &ids).await?);
        let is_known: Vec<bool> = ids
            .iter()
            .map(|id| !seen.insert(storable(id).into_owned()))
            .collect();
        let new = publications.iter().zip(&is_known);
        let new: Vec<_> = new.filter(|(_, is_known)| !**is_known).collect();
        let new: Vec<_> = new
            .into_iter()
            .map(|(publication, _)| publication)
            .collect();
        if new.is_empty() {
            session.rollback().await?;
            return Ok(is_known);
        }
        let waiting = session
            .row(
                sql!(
                    "SELECT COUNT(*), CAST(COALESCE(SUM(LENGTH(payload)), 0) AS BIGINT)
                     FROM publications WHERE channel_id = $1"
                ),
                values![channel_id],
            )
            .await?;
        if let Some(row) = waiting {
            let (count, bytes) = (session.count(&row, 0)?, session.count(&row, 1)?);
            if count + new.len() as u64 > MAX_WAITING || bytes > MAX_WAITING_BYTES {
                session.rollback().await?;
                return Err(StoreError::TooMany {
                    what: "publications that wait for the source",
                    limit: MAX_WAITING,
                });
            }
        }
        insert(&mut session, channel_id, &new).await?;
        notify(&mut session, Topic::Publications).await?;
        session.commit().await?;
        self.store.news.notifier.ring(Topic::Publications);
        Ok(is_known)
    }

    /// Returns the publications of a channel that wait, the oldest first: at most `limit` and
    /// about `max_bytes`, but at least one if there is one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn waiting(
        self,
        channel: &str,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredPublication>, StoreError> {
        let mut session = self.store.database.read("read publications").await?;
        let limit = limit.min(MAX_READ);
        let sql = sql!(
            "SELECT p.id, CAST(LENGTH(p.payload) AS BIGINT) FROM publications p
             JOIN channels c ON c.id = p.channel_id WHERE c.name = $1 ORDER BY p.id LIMIT $2"
        );
        let read = |session: &Session, row: &Row| {
            let id: i64 = session.get(row, 0)?;
            Ok((id, session.count(row, 1)?))
        };
        let sizes = session
            .list(sql, values![channel, to_i64(limit as u64)], read)
            .await?;
        let (mut last, mut bytes) = (None, 0_u64);
        for (id, size) in sizes {
            bytes += size;
            if last.is_some() && bytes > max_bytes as u64 {
                break;
            }
            last = Some(id);
        }
        let Some(last) = last else {
            return Ok(Vec::new());
        };
        session.expect(bytes);
        let sql = sql!(
            "SELECT p.id, p.entry_id, p.payload FROM publications p
             JOIN channels c ON c.id = p.channel_id
             WHERE c.name = $1 AND p.id <= $2 ORDER BY p.id"
        );
        let read = |session: &Session, row: &Row| {
            Ok(StoredPublication {
                id: session.get(row, 0)?,
                entry_id: session.get(row, 1)?,
                payload: session.get(row, 2)?,
            })
        };
        session.list(sql, values![channel, last], read).await
    }

    /// Deletes the publications of a channel up to the number `last`, after they were stored as
    /// updates.
    ///
    /// # Errors
    /// The database fails.
    pub async fn delete(self, channel: &str, last: i64) -> Result<(), StoreError> {
        let sql = sql!(
            "DELETE FROM publications WHERE id <= $2
                 AND channel_id = (SELECT id FROM channels WHERE name = $1)"
        );
        let values = values![channel, last];
        self.store
            .execute("delete publications", sql, values)
            .await
            .map(|_| ())
    }
}
