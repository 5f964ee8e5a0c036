//! Rows of a restore that are written together, for there are many of them.

use super::record::{Entry, Update};
use crate::StoreError;
use crate::database::{Session, Value, sql, values};

/// Limit of the rows and bytes written at once.
const ROWS: usize = 500;
const BYTES: usize = 4 << 20;

/// Entries and updates that wait to be written together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<(Entry, Vec<u8>)>,
    pub(super) updates: Vec<(Update, Vec<u8>)>,
    pub(super) bytes: usize,
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
    for (row, hash) in &batch.entries {
        let sql =
            sql!("INSERT INTO entries (feed_id, entry_id, seq, hash) VALUES ($1, $2, $3, $4)");
        let values = row.values(values![hash.as_slice()]);
        session.execute(sql, &values).await?;
    }
    for (row, encoded) in &batch.updates {
        let sql = sql!(
            "INSERT INTO updates (channel_id, feed_id, seq, entry_id, kind, created_at, encoded)
             VALUES ($1, $2, $3, $4, $5, $6, $7)"
        );
        let values = row.values(values![encoded.as_slice()]);
        session.execute(sql, &values).await?;
    }
    Ok(())
}

async fn write_entries_at_once(session: &mut Session, batch: &Batch) -> Result<(), StoreError> {
    if batch.entries.is_empty() {
        return Ok(());
    }
    let rows = &batch.entries;
    let feeds: Vec<i64> = rows.iter().map(|(row, _)| row.feed).collect();
    let ids: Vec<&str> = rows.iter().map(|(row, _)| row.id.as_str()).collect();
    let seqs: Vec<i64> = rows.iter().map(|(row, _)| row.seq).collect();
    let hashes: Vec<&[u8]> = rows.iter().map(|(_, hash)| hash.as_slice()).collect();
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
    let channels: Vec<i64> = rows.iter().map(|(row, _)| row.channel).collect();
    let feeds: Vec<i64> = rows.iter().map(|(row, _)| row.feed).collect();
    let seqs: Vec<i64> = rows.iter().map(|(row, _)| row.seq).collect();
    let entries: Vec<&str> = rows.iter().map(|(row, _)| row.entry.as_str()).collect();
    let kinds: Vec<&str> = rows.iter().map(|(row, _)| row.kind.as_str()).collect();
    let created: Vec<i64> = rows.iter().map(|(row, _)| row.created).collect();
    let encoded: Vec<&[u8]> = rows.iter().map(|(_, encoded)| encoded.as_slice()).collect();
    session
        .execute(
            sql!(
                "INSERT INTO updates (channel_id, feed_id, seq, entry_id, kind, created_at, encoded)
                 SELECT * FROM UNNEST($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::TEXT[],
                     $5::TEXT[], $6::BIGINT[], $7::BYTEA[])"
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
