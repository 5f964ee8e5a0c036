//! Updates: stored in one transaction with their entries, and read in order.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::entries::hashes;
use super::records::history::rows;
use super::signing_eras::delete_eras_before;
use super::{MAX_KEY, PART, channel_id, check_fence, check_length, feed_row, to_i64};
use crate::database::{Row, Session, Value, sql, storable, values};
use crate::model::{Draft, EncodeUpdate, Retention, StoredUpdate, UpdateItem, Validators};
use crate::{StoreError, Updates};

/// Most updates of one read, whatever the caller asks for.
const MAX_UPDATES_PER_READ: usize = 65_536;

/// About as long as most updates are, in bytes: so many are looked at first as fit by this into
/// what is asked for. To look at the sizes of many more than go out would take longer than to read
/// those that do.
const TYPICAL_BYTES: usize = 2048;

/// At least so many are looked at, and then each time so many times more than before.
const FIRST_LOOK: usize = 16;
const MORE: usize = 4;

/// The most bytes of one read that more time is given for.
const MAX_EXPECTED: usize = 64 << 20;

/// The rows that an append adds to.
struct Target {
    channel_id: i64,
    head: i64,
    feed_id: i64,
    validators: Validators,
}

/// Updates that an append adds.
#[derive(Default)]
struct NewUpdates<'a> {
    updates: Vec<(i64, &'a Draft, Vec<u8>)>,
}

impl Updates<'_> {
    /// Stores new versions of entries, in the order given, and with them the feed's validators, in
    /// one durable transaction. Returns the updates that were stored, ascending and dense.
    ///
    /// With a `fence`, the append is refused unless that is the channel's current one: another
    /// holder has taken the channel's lease since.
    ///
    /// A draft whose hash is the one stored last for its entry is skipped. `encode` is called once
    /// for each of the others, inside the transaction, with the seq that it gets; its result is
    /// stored as it is. Without `validators` the stored ones stay: pass them with the last part of
    /// a document that is stored in parts.
    ///
    /// When the future is dropped before it is done, everything or nothing was stored: look at the
    /// channel's head before publishing anything else. The same holds after an error, for a disk
    /// can fail between writing and reporting.
    ///
    /// # Errors
    /// The channel does not exist, the fence is an old one, an id is longer than 2,048 bytes, or
    /// the database fails (disk full, …).
    pub async fn append(
        self,
        channel: &str,
        url: &str,
        fence: Option<u64>,
        drafts: &[Draft],
        validators: Option<&Validators>,
        encode: &EncodeUpdate<'_>,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        check_keys(url, drafts)?;
        let mut session = self.store.database.write("store updates").await?;
        let target = target(&mut session, channel, url, fence).await?;
        let ids: Vec<&str> = drafts
            .iter()
            .map(|draft| draft.entry_id.as_str())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut known = hashes(&mut session, target.feed_id, &ids).await?;
        let mut news = NewUpdates::default();
        let mut head = target.head;
        for draft in drafts {
            let id = storable(&draft.entry_id);
            if known.get(id.as_ref()) == Some(&draft.hash) {
                continue;
            }
            head = head.checked_add(1).ok_or_else(|| {
                session.damaged(format!("the head of channel {channel:?} is {head}"))
            })?;
            let encoded = encode(session.unsigned(head)?, draft);
            news.updates.push((head, draft, encoded));
            known.insert(id.into_owned(), draft.hash);
        }
        let validators = validators.filter(|&validators| *validators != target.validators);
        if news.updates.is_empty() && validators.is_none() {
            session.rollback().await?;
            return Ok(Vec::new());
        }
        if !news.updates.is_empty() {
            if session.is_postgres() {
                write_at_once(&mut session, &target, &news).await?;
            } else {
                write_one_by_one(&mut session, &target, &news).await?;
            }
        }
        if let Some(validators) = validators {
            session
                .execute(
                    sql!("UPDATE feeds SET etag = $1, last_modified = $2 WHERE id = $3"),
                    values![&validators.etag, &validators.last_modified, target.feed_id],
                )
                .await?;
        }
        session.commit().await?;
        Ok(news
            .updates
            .into_iter()
            .map(|(seq, _, encoded)| StoredUpdate {
                seq: seq.unsigned_abs(),
                encoded,
            })
            .collect())
    }

    async fn read_within(
        &self,
        channel: &str,
        incarnation: Option<Uuid>,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        let Ok(from) = i64::try_from(from) else {
            return Ok(Vec::new());
        };
        let mut session = self.store.database.read("read updates").await?;
        let row = session
            .row(
                sql!("SELECT id, incarnation FROM channels WHERE name = $1"),
                values![channel],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        let id: i64 = session.get(&row, 0)?;
        let present: String = session.get(&row, 1)?;
        if incarnation.is_some_and(|wanted| wanted.to_string() != present) {
            return Err(StoreError::Incarnation {
                url: session.url.to_string(),
                channel: channel.to_owned(),
            });
        }
        updates_of(&mut session, id, from, limit, max_bytes).await
    }

    /// Returns stored updates with `from <= seq`, ascending: at most `limit`, and at most
    /// `max_bytes` of encoded bytes in all, but at least one if there is one.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn read(
        self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.read_within(channel, None, from, limit, max_bytes)
            .await
    }

    /// Replaces the bytes of stored updates, in one transaction; one that is gone stays gone.
    ///
    /// With a `fence`, the call is refused unless that is the channel's current one.
    ///
    /// # Errors
    /// The channel does not exist, the fence is an old one, or the database fails.
    pub async fn replace(
        self,
        channel: &str,
        fence: Option<u64>,
        updates: &[StoredUpdate],
    ) -> Result<(), StoreError> {
        let mut session = self.store.database.write("replace updates").await?;
        let row = session
            .row(
                sql!("SELECT id, fence FROM channels WHERE name = $1" LOCK),
                values![channel],
            )
            .await?
            .ok_or_else(|| session.unknown_channel(channel))?;
        check_fence(&session, channel, fence, session.count(&row, 1)?)?;
        let id: i64 = session.get(&row, 0)?;
        for update in updates {
            session
                .execute(
                    sql!("UPDATE updates SET encoded = $3 WHERE channel_id = $1 AND seq = $2"),
                    values![id, to_i64(update.seq), update.encoded.as_slice()],
                )
                .await?;
        }
        session.commit().await
    }

    /// Returns updates as [`read`](Self::read) does, if the channel still has this incarnation: for
    /// callers that do not hold its lease.
    ///
    /// # Errors
    /// [`StoreError::Incarnation`] if it has another one; as `read` otherwise.
    pub async fn backlog(
        self,
        channel: &str,
        incarnation: Uuid,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.read_within(channel, Some(incarnation), from, limit, max_bytes)
            .await
    }

    /// Deletes the updates of a channel that are not to be kept, counted back from `published`, and
    /// returns the oldest seq that is left (the head + 1 if none is). Updates after `published`
    /// stay. So do the hashes of entries: a deleted update does not return as new. Signing eras
    /// that end before the oldest update left are deleted too. Works in parts, between which others
    /// can write; when the future is dropped, some of it may be done.
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
            let first = end.min(oldest.saturating_add(PART));
            session
                .execute(
                    sql!("DELETE FROM updates WHERE channel_id = $1 AND seq < $2"),
                    values![id, first],
                )
                .await?;
            delete_eras_before(&mut session, id, first).await?;
            session.commit().await?;
        }
    }

    /// Returns the updates of a channel with a seq below `before`, the newest first, without their
    /// bytes.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    pub async fn list(
        self,
        channel: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<UpdateItem>, StoreError> {
        let mut session = self.store.database.read("list updates").await?;
        let id = channel_id(&mut session, channel).await?;
        let sql = sql!(
            "SELECT u.seq, f.url, u.entry_id, u.kind, u.created_at,
                 CAST(LENGTH(u.encoded) AS BIGINT)
             FROM updates u JOIN feeds f ON f.id = u.feed_id
             WHERE u.channel_id = $1 AND u.seq < $2 ORDER BY u.seq DESC LIMIT $3"
        );
        let values = values![id, before.map_or(i64::MAX, to_i64), rows(limit)];
        let read = |session: &Session, row: &Row| {
            let kind: String = session.get(row, 3)?;
            Ok(UpdateItem {
                seq: session.count(row, 0)?,
                url: session.get(row, 1)?,
                entry_id: session.get(row, 2)?,
                is_new: kind == "created",
                created_ms: session.get(row, 4)?,
                bytes: session.count(row, 5)?,
            })
        };
        session.list(sql, values, read).await
    }

    fn negative(&self, seq: i64) -> StoreError {
        StoreError::Damaged {
            url: self.store.database.url.to_string(),
            detail: format!("it holds the seq {seq}"),
        }
    }
}

/// Columns of the updates of channel `$1` from seq `$2` on: at most `$3`, and at most `$4` bytes,
/// but at least one. The sizes cost little, so that no more content is read than goes out.
macro_rules! updates_within {
    ($columns:literal) => {
        $crate::database::sql!(
            "SELECT " $columns " FROM updates
             WHERE channel_id = $1 AND seq >= $2 AND seq <= (
                 SELECT MAX(seq) FROM (
                     SELECT seq, MIN(seq) OVER () AS lowest, SUM(size) OVER (ORDER BY seq) AS total
                     FROM (SELECT seq, LENGTH(encoded) AS size FROM updates
                         WHERE channel_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3) AS sizes
                 ) AS sums WHERE seq = lowest OR total <= $4)
             ORDER BY seq"
        )
    };
}
pub(crate) use updates_within;

/// Updates of a channel from the seq `from` on, within limits; at least one if there is one.
pub(crate) async fn updates_of(
    session: &mut Session,
    channel_id: i64,
    from: i64,
    limit: usize,
    max_bytes: usize,
) -> Result<Vec<StoredUpdate>, StoreError> {
    session.expect(max_bytes.min(MAX_EXPECTED) as u64);
    let limit = limit.min(MAX_UPDATES_PER_READ);
    let (mut next, mut room) = (from, max_bytes);
    let mut look = (max_bytes / TYPICAL_BYTES).max(FIRST_LOOK);
    let mut updates: Vec<StoredUpdate> = Vec::new();
    loop {
        let count = look.min(limit - updates.len());
        let rows = session
            .rows(
                updates_within!("seq, encoded"),
                values![
                    channel_id,
                    next,
                    to_i64(count as u64),
                    i64::try_from(room).unwrap_or(i64::MAX),
                ],
            )
            .await?;
        for (n, row) in rows.iter().enumerate() {
            let seq = session.count(row, 0)?;
            let encoded: Vec<u8> = session.get(row, 1)?;
            // Each look gives at least one, also where there is no room for it. And retention may
            // have let go of something since the look before: nothing is to be missing within.
            if let (0, Some(last)) = (n, updates.last())
                && (encoded.len() > room || seq != last.seq + 1)
            {
                return Ok(updates);
            }
            room = room.saturating_sub(encoded.len());
            next = to_i64(seq).saturating_add(1);
            updates.push(StoredUpdate { seq, encoded });
        }
        if rows.len() < count || updates.len() >= limit || room == 0 {
            return Ok(updates);
        }
        look = look.saturating_mul(MORE);
    }
}

/// Refuses what no index could hold.
fn check_keys(url: &str, drafts: &[Draft]) -> Result<(), StoreError> {
    check_length("the URL of a feed", url, MAX_KEY)?;
    drafts
        .iter()
        .try_for_each(|draft| check_length("the id of an entry", &draft.entry_id, MAX_KEY))
}

/// Locks the channel's row, so that no other writer gives out its seqs, and finds or makes the
/// feed's.
async fn target(
    session: &mut Session,
    channel: &str,
    url: &str,
    fence: Option<u64>,
) -> Result<Target, StoreError> {
    let row = session
        .row(
            sql!(
                "SELECT c.id, c.head, c.fence, f.id, f.etag, f.last_modified FROM channels c
                 LEFT JOIN feeds f ON f.channel_id = c.id AND f.url = $2 WHERE c.name = $1"
                LOCK OF_C
            ),
            values![channel, url],
        )
        .await?
        .ok_or_else(|| session.unknown_channel(channel))?;
    let current = session.count(&row, 2)?;
    check_fence(session, channel, fence, current)?;
    let channel_id = session.get(&row, 0)?;
    let feed_id: Option<i64> = session.get(&row, 3)?;
    Ok(Target {
        channel_id,
        head: session.get(&row, 1)?,
        feed_id: match feed_id {
            Some(id) => id,
            None => feed_row(session, channel_id, url, true).await?,
        },
        validators: Validators {
            etag: session.get(&row, 4)?,
            last_modified: session.get(&row, 5)?,
        },
    })
}

/// Writes row by row: inside the process, each statement costs microseconds.
async fn write_one_by_one(
    session: &mut Session,
    target: &Target,
    news: &NewUpdates<'_>,
) -> Result<(), StoreError> {
    for (seq, draft, encoded) in &news.updates {
        session
            .execute(
                sql!(
                    "INSERT INTO updates (channel_id, seq, feed_id, entry_id, kind, created_at,
                         encoded)
                     VALUES ($1, $2, $3, $4, $5, " NOW ", $6)"
                ),
                values![
                    target.channel_id,
                    *seq,
                    target.feed_id,
                    &draft.entry_id,
                    draft.kind.as_str(),
                    encoded.as_slice(),
                ],
            )
            .await?;
        session
            .execute(
                sql!(
                    "INSERT INTO entries (feed_id, entry_id, hash, seq) VALUES ($1, $2, $3, $4)
                     ON CONFLICT (feed_id, entry_id)
                     DO UPDATE SET hash = excluded.hash, seq = excluded.seq"
                ),
                values![target.feed_id, &draft.entry_id, &draft.hash, *seq],
            )
            .await?;
    }
    session
        .execute(
            sql!("UPDATE channels SET head = $1 WHERE id = $2"),
            values![
                news.updates.last().map_or(target.head, |(seq, ..)| *seq),
                target.channel_id
            ],
        )
        .await
        .map(|_| ())
}

/// Writes everything in one statement: to a server, each costs a round trip.
async fn write_at_once(
    session: &mut Session,
    target: &Target,
    news: &NewUpdates<'_>,
) -> Result<(), StoreError> {
    let updates = &news.updates;
    let drafts: Vec<&Draft> = updates.iter().map(|(_, draft, _)| *draft).collect();
    let seqs: Vec<i64> = updates.iter().map(|(seq, ..)| *seq).collect();
    let ids: Vec<&str> = drafts.iter().map(|draft| draft.entry_id.as_str()).collect();
    let kinds: Vec<&str> = drafts.iter().map(|draft| draft.kind.as_str()).collect();
    let encoded: Vec<&[u8]> = updates.iter().map(|(.., bytes)| bytes.as_slice()).collect();
    let hashes: Vec<&[u8]> = drafts.iter().map(|draft| draft.hash.as_slice()).collect();
    session
        .execute(
            sql!(
                "WITH news AS (
                     SELECT * FROM UNNEST($3::BIGINT[], $4::TEXT[], $5::TEXT[], $6::BYTEA[],
                         $7::BYTEA[]) AS news (seq, entry_id, kind, encoded, hash)
                 ), stored AS (
                     INSERT INTO updates (channel_id, seq, feed_id, entry_id, kind, created_at,
                         encoded)
                     SELECT $1, seq, $2, entry_id, kind, " NOW ", encoded FROM news
                 ), latest AS (
                     INSERT INTO entries (feed_id, entry_id, hash, seq)
                     SELECT DISTINCT ON (entry_id) $2, entry_id, hash, seq FROM news
                     ORDER BY entry_id, seq DESC
                     ON CONFLICT (feed_id, entry_id)
                     DO UPDATE SET hash = excluded.hash, seq = excluded.seq
                 )
                 UPDATE channels SET head = $8 WHERE id = $1"
            ),
            values![
                target.channel_id,
                target.feed_id,
                Value::Ints(&seqs),
                ids.as_slice(),
                kinds.as_slice(),
                Value::Blobs(&encoded),
                Value::Blobs(&hashes),
                seqs.last().copied().unwrap_or(target.head),
            ],
        )
        .await
        .map(|_| ())
}
