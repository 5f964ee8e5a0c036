//! The store in an embedded SQLite database.
//!
//! One connection writes, and a transaction takes the write lock when it begins, so a seq is read
//! and given out by one writer at a time, also between processes. A few more connections read; by
//! the write-ahead log they neither wait for the writer nor stop it.

mod channel;
mod open;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::{SqliteConnection, SqlitePool};

use crate::model::{
    Channel, Draft, EncodeUpdate, Feed, Hash, PollRecord, StoredUpdate, Validators,
};
use crate::{Store, StoreError};

/// A store in a SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    url: String,
    /// One connection.
    writer: SqlitePool,
    readers: SqlitePool,
}

/// What a statement was meant to do, for the text of its error.
type Doing = &'static str;

impl SqliteStore {
    fn failed(&self, doing: Doing) -> impl FnOnce(sqlx::Error) -> StoreError + '_ {
        move |error| StoreError::from_sqlx(&self.url, doing, error)
    }

    fn damaged(&self, detail: String) -> StoreError {
        StoreError::Damaged {
            url: self.url.clone(),
            detail,
        }
    }

    /// The row id and the head of a channel.
    async fn channel_row(
        &self,
        connection: &mut SqliteConnection,
        channel: &str,
    ) -> Result<(i64, i64), StoreError> {
        sqlx::query_as("SELECT id, head FROM channels WHERE name = $1")
            .bind(channel)
            .fetch_optional(connection)
            .await
            .map_err(self.failed("look up a channel"))?
            .ok_or_else(|| StoreError::UnknownChannel {
                url: self.url.clone(),
                channel: channel.to_owned(),
            })
    }

    /// A seq as the database holds it, or what is wrong with it.
    fn seq(&self, stored: i64) -> Result<u64, StoreError> {
        u64::try_from(stored).map_err(|_| self.damaged(format!("it holds the seq {stored}")))
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn open_channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.write_channel(name).await
    }

    async fn renew_channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.write_incarnation(name).await
    }

    async fn retain(&self, channel: &str, keep: u64) -> Result<u64, StoreError> {
        self.delete_updates(channel, keep).await
    }

    async fn feed(&self, channel: &str, url: &str) -> Result<Option<Feed>, StoreError> {
        self.read_feed(channel, url).await
    }

    async fn record_poll(
        &self,
        channel: &str,
        url: &str,
        poll: &PollRecord,
    ) -> Result<(), StoreError> {
        self.write_poll(channel, url, poll).await
    }

    async fn known(
        &self,
        channel: &str,
        url: &str,
        entry_ids: &[&str],
    ) -> Result<HashMap<String, Hash>, StoreError> {
        self.read_known(channel, url, entry_ids).await
    }

    async fn append(
        &self,
        channel: &str,
        url: &str,
        drafts: &[Draft],
        validators: Option<&Validators>,
        encode: &EncodeUpdate<'_>,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.write_updates(channel, url, drafts, validators, encode)
            .await
    }

    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.read_updates(channel, from, limit, max_bytes).await
    }

    async fn add_token(&self, hash: &Hash, label: &str) -> Result<(), StoreError> {
        self.write_token(hash, label).await
    }

    async fn token_valid(&self, hash: &Hash) -> Result<bool, StoreError> {
        self.read_token(hash).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.read_check().await
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
