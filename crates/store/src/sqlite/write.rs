//! Everything that changes the database, each in one transaction that takes the write lock first.

use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::{Sqlite, SqliteConnection, Transaction};

use super::{Doing, SqliteStore};
use crate::StoreError;
use crate::model::{Draft, EncodeUpdate, Hash, PollRecord, StoredUpdate, Validators};

/// Longest text kept of a poll's state and detail, in bytes: a server's words may be in them.
const MAX_STATE: usize = 64;
const MAX_DETAIL: usize = 1024;

/// The rows that an append adds to.
struct Target {
    channel_id: i64,
    feed_id: i64,
    now: i64,
}

impl SqliteStore {
    pub(super) async fn begin(
        &self,
        doing: Doing,
    ) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.writer
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(self.failed(doing))
    }

    pub(super) async fn write_poll(
        &self,
        channel: &str,
        url: &str,
        poll: &PollRecord,
    ) -> Result<(), StoreError> {
        let doing = "record a poll";
        let failed = |error| self.failed(doing)(error);
        let mut transaction = self.begin(doing).await?;
        let (channel_id, _) = self.channel_row(&mut transaction, channel).await?;
        let feed_id = self.feed_row(&mut transaction, channel_id, url).await?;
        sqlx::query("UPDATE feeds SET last_poll = $1, state = $2, detail = $3 WHERE id = $4")
            .bind(poll.at_ms)
            .bind(cut(&poll.state, MAX_STATE))
            .bind(cut(&poll.detail, MAX_DETAIL))
            .bind(feed_id)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        transaction.commit().await.map_err(failed)
    }

    pub(super) async fn write_updates(
        &self,
        channel: &str,
        url: &str,
        drafts: &[Draft],
        validators: Option<&Validators>,
        encode: &EncodeUpdate<'_>,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        let doing = "store updates";
        let failed = |error| self.failed(doing)(error);
        let mut transaction = self.begin(doing).await?;
        let (channel_id, mut head) = self.channel_row(&mut transaction, channel).await?;
        let target = Target {
            channel_id,
            feed_id: self.feed_row(&mut transaction, channel_id, url).await?,
            now: now_ms(),
        };
        let mut stored = Vec::new();
        for draft in drafts {
            if self
                .is_stored(&mut transaction, target.feed_id, draft)
                .await?
            {
                continue;
            }
            head = head.checked_add(1).ok_or_else(|| {
                self.damaged(format!("the head of channel {channel:?} is {head}"))
            })?;
            let seq = self.seq(head)?;
            let encoded = encode(seq, draft);
            self.write_update(&mut transaction, &target, head, draft, &encoded)
                .await?;
            stored.push(StoredUpdate { seq, encoded });
        }
        if !stored.is_empty() {
            sqlx::query("UPDATE channels SET head = $1 WHERE id = $2")
                .bind(head)
                .bind(channel_id)
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
        }
        if let Some(validators) = validators {
            sqlx::query("UPDATE feeds SET etag = $1, last_modified = $2 WHERE id = $3")
                .bind(&validators.etag)
                .bind(&validators.last_modified)
                .bind(target.feed_id)
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)?;
        Ok(stored)
    }

    pub(super) async fn write_token(&self, hash: &Hash, label: &str) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO tokens (hash, label, created_at) VALUES ($1, $2, $3)
             ON CONFLICT (hash) DO NOTHING",
        )
        .bind(&hash[..])
        .bind(label)
        .bind(now_ms())
        .execute(&self.writer)
        .await
        .map(|_| ())
        .map_err(self.failed("add a token"))
    }

    /// The row of a feed, made if there is none.
    async fn feed_row(
        &self,
        connection: &mut SqliteConnection,
        channel_id: i64,
        url: &str,
    ) -> Result<i64, StoreError> {
        let failed = |error| self.failed("look up a feed")(error);
        sqlx::query(
            "INSERT INTO feeds (channel_id, url) VALUES ($1, $2)
             ON CONFLICT (channel_id, url) DO NOTHING",
        )
        .bind(channel_id)
        .bind(url)
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
        sqlx::query_scalar("SELECT id FROM feeds WHERE channel_id = $1 AND url = $2")
            .bind(channel_id)
            .bind(url)
            .fetch_one(connection)
            .await
            .map_err(failed)
    }

    /// Whether this version of the entry is the one stored last.
    async fn is_stored(
        &self,
        connection: &mut SqliteConnection,
        feed_id: i64,
        draft: &Draft,
    ) -> Result<bool, StoreError> {
        let hash: Option<Vec<u8>> =
            sqlx::query_scalar("SELECT hash FROM entries WHERE feed_id = $1 AND entry_id = $2")
                .bind(feed_id)
                .bind(&draft.entry_id)
                .fetch_optional(connection)
                .await
                .map_err(self.failed("look up an entry"))?;
        Ok(hash.is_some_and(|hash| hash == draft.hash))
    }

    async fn write_update(
        &self,
        connection: &mut SqliteConnection,
        target: &Target,
        seq: i64,
        draft: &Draft,
        encoded: &[u8],
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO updates (channel_id, seq, feed_id, entry_id, kind, created_at, encoded)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(target.channel_id)
        .bind(seq)
        .bind(target.feed_id)
        .bind(&draft.entry_id)
        .bind(draft.kind.as_str())
        .bind(target.now)
        .bind(encoded)
        .execute(&mut *connection)
        .await
        .map_err(self.failed("store an update"))?;
        sqlx::query(
            "INSERT INTO entries (feed_id, entry_id, hash, seq) VALUES ($1, $2, $3, $4)
             ON CONFLICT (feed_id, entry_id) DO UPDATE SET hash = excluded.hash, seq = excluded.seq",
        )
        .bind(target.feed_id)
        .bind(&draft.entry_id)
        .bind(&draft.hash[..])
        .bind(seq)
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(self.failed("store an entry"))
    }
}

/// The time now, in Unix milliseconds.
pub(super) fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or_default()
}

/// The longest beginning of `text` of at most `bytes` bytes.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes))
        .unwrap_or_default()
}
