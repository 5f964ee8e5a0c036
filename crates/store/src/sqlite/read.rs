//! Everything that only reads.

use std::collections::HashMap;

use super::SqliteStore;
use crate::StoreError;
use crate::model::{Feed, Hash, PollRecord, StoredUpdate, Validators};

/// Most updates of one read, whatever the caller asks for: it bounds the list of their sizes.
const MAX_UPDATES_PER_READ: usize = 65_536;

/// The columns of a feed: etag, last_modified, last_poll, state, detail.
type FeedRow = (
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<String>,
    Option<String>,
);

impl SqliteStore {
    pub(super) async fn read_feed(
        &self,
        channel: &str,
        url: &str,
    ) -> Result<Option<Feed>, StoreError> {
        let failed = |error| self.failed("read a feed")(error);
        let mut connection = self.readers.acquire().await.map_err(failed)?;
        let (channel_id, _) = self.channel_row(&mut connection, channel).await?;
        let row: Option<FeedRow> = sqlx::query_as(
            "SELECT etag, last_modified, last_poll, state, detail FROM feeds
             WHERE channel_id = $1 AND url = $2",
        )
        .bind(channel_id)
        .bind(url)
        .fetch_optional(&mut *connection)
        .await
        .map_err(failed)?;
        Ok(row.map(|(etag, last_modified, at, state, detail)| Feed {
            validators: Validators {
                etag,
                last_modified,
            },
            last_poll: at.map(|at_ms| PollRecord {
                at_ms,
                state: state.unwrap_or_default(),
                detail: detail.unwrap_or_default(),
            }),
        }))
    }

    pub(super) async fn read_known(
        &self,
        channel: &str,
        url: &str,
        entry_ids: &[&str],
    ) -> Result<HashMap<String, Hash>, StoreError> {
        let failed = |error| self.failed("look up entries")(error);
        // One snapshot for all of them.
        let mut transaction = self.readers.begin().await.map_err(failed)?;
        let (channel_id, _) = self.channel_row(&mut transaction, channel).await?;
        let feed_id: Option<i64> =
            sqlx::query_scalar("SELECT id FROM feeds WHERE channel_id = $1 AND url = $2")
                .bind(channel_id)
                .bind(url)
                .fetch_optional(&mut *transaction)
                .await
                .map_err(failed)?;
        let mut known = HashMap::new();
        let Some(feed_id) = feed_id else {
            return Ok(known);
        };
        for &entry_id in entry_ids {
            let hash: Option<Vec<u8>> =
                sqlx::query_scalar("SELECT hash FROM entries WHERE feed_id = $1 AND entry_id = $2")
                    .bind(feed_id)
                    .bind(entry_id)
                    .fetch_optional(&mut *transaction)
                    .await
                    .map_err(failed)?;
            if let Some(hash) = hash {
                let hash = Hash::try_from(hash.as_slice()).map_err(|_| {
                    self.damaged(format!(
                        "the hash of entry {entry_id:?} is not 32 bytes long"
                    ))
                })?;
                known.insert(entry_id.to_owned(), hash);
            }
        }
        Ok(known)
    }

    pub(super) async fn read_updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        let failed = |error| self.failed("read updates")(error);
        let Ok(from) = i64::try_from(from) else {
            return Ok(Vec::new());
        };
        let limit = i64::try_from(limit.min(MAX_UPDATES_PER_READ)).unwrap_or_default();
        let mut connection = self.readers.acquire().await.map_err(failed)?;
        let (channel_id, _) = self.channel_row(&mut connection, channel).await?;
        // First the sizes, which cost little, so that no more content is read than goes out.
        let sizes: Vec<(i64, i64)> = sqlx::query_as(
            "SELECT seq, LENGTH(encoded) FROM updates
             WHERE channel_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3",
        )
        .bind(channel_id)
        .bind(from)
        .bind(limit)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
        let Some(last) = last_within(&sizes, max_bytes) else {
            return Ok(Vec::new());
        };
        let rows: Vec<(i64, Vec<u8>)> = sqlx::query_as(
            "SELECT seq, encoded FROM updates
             WHERE channel_id = $1 AND seq >= $2 AND seq <= $3 ORDER BY seq",
        )
        .bind(channel_id)
        .bind(from)
        .bind(last)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
        rows.into_iter()
            .map(|(seq, encoded)| {
                Ok(StoredUpdate {
                    seq: self.seq(seq)?,
                    encoded,
                })
            })
            .collect()
    }

    pub(super) async fn read_token(&self, hash: &Hash) -> Result<bool, StoreError> {
        let found: Option<i64> = sqlx::query_scalar("SELECT 1 FROM tokens WHERE hash = $1")
            .bind(&hash[..])
            .fetch_optional(&self.readers)
            .await
            .map_err(self.failed("look up a token"))?;
        Ok(found.is_some())
    }

    pub(super) async fn read_check(&self) -> Result<(), StoreError> {
        sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM channels")
            .fetch_one(&self.readers)
            .await
            .map(|_| ())
            .map_err(self.failed("read channels"))
    }
}

/// The last seq such that all up to it have at most `max_bytes`; the first one is always in.
fn last_within(sizes: &[(i64, i64)], max_bytes: usize) -> Option<i64> {
    let mut left = i64::try_from(max_bytes).unwrap_or(i64::MAX);
    let mut last = None;
    for &(seq, size) in sizes {
        left = left.saturating_sub(size);
        if left < 0 && last.is_some() {
            break;
        }
        last = Some(seq);
    }
    last
}
