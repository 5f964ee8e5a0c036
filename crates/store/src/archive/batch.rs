//! Rows of a restore that are written together, for there are many of them.

use crate::StoreError;
use crate::database::{Session, Value, sql, values};

/// Limit of the rows and bytes written at once.
const ROWS: usize = 500;
const BYTES: usize = 4 << 20;

/// Entries and updates that wait to be written together.
#[derive(Default)]
pub(super) struct Batch {
    /// Feed, id, seq, hash.
    pub(super) entries: Vec<(i64, String, i64, Vec<u8>)>,
    pub(super) updates: Vec<UpdateRow>,
    pub(super) bytes: usize,
}

/// An update that waits.
pub(super) struct UpdateRow {
    pub(super) channel: i64,
    pub(super) feed: i64,
    pub(super) seq: i64,
    pub(super) entry: String,
    pub(super) kind: String,
    pub(super) created: i64,
    pub(super) encoded: Vec<u8>,
}

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() + self.updates.len() >= ROWS || self.bytes >= BYTES
    }

    pub(super) async fn write(&self, session: &mut Session) -> Result<(), StoreError> {
        if session.is_postgres() {
            write_entries_at_once(session, self).await?;
            write_updates_at_once(session, self).await
        } else {
            write_one_by_one(session, self).await
        }
    }
}

async fn write_one_by_one(session: &mut Session, batch: &Batch) -> Result<(), StoreError> {
    for (feed, id, seq, hash) in &batch.entries {
        session
            .execute(
                sql!("INSERT INTO entries (feed_id, entry_id, hash, seq) VALUES ($1, $2, $3, $4)"),
                values![*feed, id, hash.as_slice(), *seq],
            )
            .await?;
    }
    for row in &batch.updates {
        session
            .execute(
                sql!(
                    "INSERT INTO updates (channel_id, feed_id, seq, entry_id, kind, created_at, encoded)
                     VALUES ($1, $2, $3, $4, $5, $6, $7)"
                ),
                values![
                    row.channel,
                    row.feed,
                    row.seq,
                    &row.entry,
                    &row.kind,
                    row.created,
                    row.encoded.as_slice(),
                ],
            )
            .await?;
    }
    Ok(())
}

async fn write_entries_at_once(session: &mut Session, batch: &Batch) -> Result<(), StoreError> {
    if batch.entries.is_empty() {
        return Ok(());
    }
    let feeds: Vec<i64> = batch.entries.iter().map(|entry| entry.0).collect();
    let ids: Vec<&str> = batch.entries.iter().map(|entry| entry.1.as_str()).collect();
    let seqs: Vec<i64> = batch.entries.iter().map(|entry| entry.2).collect();
    let hashes: Vec<&[u8]> = batch
        .entries
        .iter()
        .map(|entry| entry.3.as_slice())
        .collect();
    session
        .execute(
            sql!(
                "INSERT INTO entries (feed_id, entry_id, hash, seq)
                 SELECT * FROM UNNEST($1::BIGINT[], $2::TEXT[], $3::BYTEA[], $4::BIGINT[])"
            ),
            &[
                Value::Ints(&feeds),
                Value::Texts(&ids),
                Value::Blobs(&hashes),
                Value::Ints(&seqs),
            ],
        )
        .await
        .map(|_| ())
}

async fn write_updates_at_once(session: &mut Session, batch: &Batch) -> Result<(), StoreError> {
    if batch.updates.is_empty() {
        return Ok(());
    }
    let rows = &batch.updates;
    let channels: Vec<i64> = rows.iter().map(|row| row.channel).collect();
    let feeds: Vec<i64> = rows.iter().map(|row| row.feed).collect();
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    let entries: Vec<&str> = rows.iter().map(|row| row.entry.as_str()).collect();
    let kinds: Vec<&str> = rows.iter().map(|row| row.kind.as_str()).collect();
    let created: Vec<i64> = rows.iter().map(|row| row.created).collect();
    let encoded: Vec<&[u8]> = rows.iter().map(|row| row.encoded.as_slice()).collect();
    session
        .execute(
            sql!(
                "INSERT INTO updates (channel_id, feed_id, seq, entry_id, kind, created_at, encoded)
                 SELECT * FROM UNNEST($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::TEXT[], $5::TEXT[],
                     $6::BIGINT[], $7::BYTEA[])"
            ),
            &[
                Value::Ints(&channels),
                Value::Ints(&feeds),
                Value::Ints(&seqs),
                Value::Texts(&entries),
                Value::Texts(&kinds),
                Value::Ints(&created),
                Value::Blobs(&encoded),
            ],
        )
        .await
        .map(|_| ())
}
