//! Channels as a whole: made, renewed, and cut to the updates that are kept.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::SqliteStore;
use super::write::{cut, now_ms};
use crate::StoreError;
use crate::model::Channel;

/// Longest name of a channel, in bytes.
const MAX_CHANNEL_NAME: usize = 255;

/// Updates are deleted in transactions of at most this many.
const DELETED_AT_ONCE: i64 = 1000;

impl SqliteStore {
    pub(super) async fn write_channel(&self, name: &str) -> Result<Channel, StoreError> {
        let doing = "open a channel";
        let failed = |error| self.failed(doing)(error);
        if name.is_empty() || name.len() > MAX_CHANNEL_NAME {
            return Err(StoreError::ChannelName {
                name: cut(name, MAX_CHANNEL_NAME).to_owned(),
            });
        }
        let mut transaction = self.begin(doing).await?;
        let made = sqlx::query(
            "INSERT INTO channels (name, incarnation, head, created_at) VALUES ($1, $2, 0, $3)
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(name)
        .bind(Uuid::new_v4().to_string())
        .bind(now_ms())
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
        let channel = self.channel(&mut transaction, name).await?;
        transaction.commit().await.map_err(failed)?;
        Ok(Channel {
            is_new: made.rows_affected() > 0,
            ..channel
        })
    }

    pub(super) async fn write_incarnation(&self, name: &str) -> Result<Channel, StoreError> {
        let doing = "renew a channel";
        let failed = |error| self.failed(doing)(error);
        let mut transaction = self.begin(doing).await?;
        let (id, _) = self.channel_row(&mut transaction, name).await?;
        sqlx::query("UPDATE channels SET incarnation = $1 WHERE id = $2")
            .bind(Uuid::new_v4().to_string())
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        let channel = self.channel(&mut transaction, name).await?;
        transaction.commit().await.map_err(failed)?;
        Ok(channel)
    }

    pub(super) async fn delete_updates(&self, name: &str, keep: u64) -> Result<u64, StoreError> {
        let doing = "delete old updates";
        let failed = |error| self.failed(doing)(error);
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        loop {
            let mut transaction = self.begin(doing).await?;
            let (id, head) = self.channel_row(&mut transaction, name).await?;
            let oldest = self.oldest(&mut transaction, id).await?;
            // Everything before this one goes.
            let end = head.saturating_sub(keep).saturating_add(1);
            let Some(oldest) = oldest.filter(|&oldest| oldest < end) else {
                transaction.rollback().await.map_err(failed)?;
                return self.seq(oldest.unwrap_or(head.saturating_add(1)));
            };
            sqlx::query("DELETE FROM updates WHERE channel_id = $1 AND seq < $2")
                .bind(id)
                .bind(end.min(oldest.saturating_add(DELETED_AT_ONCE)))
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
            transaction.commit().await.map_err(failed)?;
        }
    }

    /// The channel as it is stored.
    async fn channel(
        &self,
        connection: &mut SqliteConnection,
        name: &str,
    ) -> Result<Channel, StoreError> {
        let failed = |error| self.failed("read a channel")(error);
        let (id, incarnation, head): (i64, String, i64) =
            sqlx::query_as("SELECT id, incarnation, head FROM channels WHERE name = $1")
                .bind(name)
                .fetch_one(&mut *connection)
                .await
                .map_err(failed)?;
        let first = self.oldest(connection, id).await?;
        let last: Option<i64> =
            sqlx::query_scalar("SELECT MAX(seq) FROM updates WHERE channel_id = $1")
                .bind(id)
                .fetch_one(connection)
                .await
                .map_err(failed)?;
        let incarnation = incarnation.parse().map_err(|error| {
            self.damaged(format!("the incarnation of channel {name:?}: {error}"))
        })?;
        if let Some(last) = last.filter(|&last| last > head) {
            return Err(self.damaged(format!(
                "channel {name:?} holds update {last} but counts up to {head} only"
            )));
        }
        Ok(Channel {
            name: name.to_owned(),
            incarnation,
            head: self.seq(head)?,
            first: self.seq(first.unwrap_or(head.saturating_add(1)))?,
            is_new: false,
        })
    }

    /// The oldest seq stored of a channel. (Alone in its statement, the index answers it.)
    async fn oldest(
        &self,
        connection: &mut SqliteConnection,
        channel_id: i64,
    ) -> Result<Option<i64>, StoreError> {
        sqlx::query_scalar("SELECT MIN(seq) FROM updates WHERE channel_id = $1")
            .bind(channel_id)
            .fetch_one(connection)
            .await
            .map_err(self.failed("read the oldest update"))
    }
}
