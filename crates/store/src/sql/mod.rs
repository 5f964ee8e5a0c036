//! The store in a database: every statement that there is.

mod accounts;
mod channel;
mod enrolment;
mod feed;
mod lease;
mod receiver;
mod records;
mod retention;
mod update;

#[cfg(test)]
mod sqlite_tests;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::database::{Database, Session, sql, values};
use crate::location::Location;
use crate::model::{
    Applicant, Channel, ChannelRow, ChannelSettings, ChooseSettings, Draft, EncodeUpdate, FeedEdit,
    FeedRow, FeedSettings, GapRecord, Hash, Holder, Lease, Leased, NewToken, PollRecord,
    ReceiverRow, Retention, StoredUpdate, TokenRow, Validators, Verdict,
};
use crate::watch::News;
use crate::{BackupReport, Store, StoreError, archive};
pub(crate) use update::updates_within;

/// A store in SQLite or PostgreSQL.
#[derive(Debug)]
pub(crate) struct SqlStore {
    pub(crate) database: Database,
    news: News,
}

impl SqlStore {
    pub(crate) async fn open(location: Location) -> Result<Self, StoreError> {
        let database = Database::open(location).await?;
        Ok(Self {
            database,
            news: News::new(),
        })
    }
}

/// Notes that something changed that a running source has to look at. The last statement of its
/// transaction, for it makes others wait.
pub(crate) async fn grow_version(session: &mut Session) -> Result<(), StoreError> {
    session
        .execute(
            sql!("UPDATE settings SET version = version + 1 WHERE id = 1"),
            values![],
        )
        .await
        .map(|_| ())
}

/// Refuses what somebody asks for whose lease another one has by now.
pub(crate) fn check_fence(
    session: &Session,
    channel: &str,
    fence: Option<u64>,
    current: u64,
) -> Result<(), StoreError> {
    match fence.filter(|&fence| fence != current) {
        Some(fence) => Err(StoreError::Fenced {
            url: session.url.to_string(),
            channel: channel.to_owned(),
            fence,
            current,
        }),
        None => Ok(()),
    }
}

/// A list of names as it is stored.
pub(crate) fn names_to_json(names: &[String]) -> String {
    serde_json::Value::from(names).to_string()
}

/// A list of names from the database.
pub(crate) fn names_from_json(session: &Session, json: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(json)
        .map_err(|error| session.damaged(format!("a list of channels is {json:?}: {error}")))
}

/// The longest beginning of `text` of at most `bytes` bytes.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes))
        .unwrap_or_default()
}

/// A number for the database, which knows no larger one.
pub(crate) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[async_trait]
impl Store for SqlStore {
    async fn open_channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.make_channel(name).await
    }

    async fn channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.find_channel(name).await
    }

    async fn renew_channel(&self, name: &str, fence: Option<u64>) -> Result<Channel, StoreError> {
        self.change_incarnation(name, fence).await
    }

    async fn channels(&self) -> Result<Vec<ChannelRow>, StoreError> {
        self.list_channels().await
    }

    async fn add_channel(
        &self,
        name: &str,
        choose: &ChooseSettings<'_>,
    ) -> Result<Option<ChannelRow>, StoreError> {
        self.insert_channel(name, choose).await
    }

    async fn put_channel(
        &self,
        name: &str,
        settings: &ChannelSettings,
    ) -> Result<ChannelRow, StoreError> {
        self.set_channel(name, settings).await
    }

    async fn set_channel_active(&self, name: &str, active: bool) -> Result<bool, StoreError> {
        self.switch_channel(name, active).await
    }

    async fn remove_channel(&self, name: &str) -> Result<bool, StoreError> {
        self.delete_channel(name).await
    }

    async fn feeds(&self, channel: Option<&str>) -> Result<Vec<FeedRow>, StoreError> {
        self.list_feeds(channel).await
    }

    async fn feed(&self, channel: &str, url: &str) -> Result<Option<FeedRow>, StoreError> {
        self.read_feed(channel, url).await
    }

    async fn put_feed(
        &self,
        channel: &str,
        settings: &FeedSettings,
    ) -> Result<FeedRow, StoreError> {
        self.set_feed(channel, settings).await
    }

    async fn add_feed(
        &self,
        channel: &str,
        settings: &FeedSettings,
    ) -> Result<Option<FeedRow>, StoreError> {
        self.insert_feed(channel, settings).await
    }

    async fn edit_feed(
        &self,
        channel: &str,
        url: &str,
        edit: &FeedEdit,
    ) -> Result<Option<FeedRow>, StoreError> {
        self.change_feed(channel, url, edit).await
    }

    async fn set_feed_active(
        &self,
        channel: &str,
        url: &str,
        active: bool,
    ) -> Result<bool, StoreError> {
        self.switch_feed(channel, url, active).await
    }

    async fn record_poll(
        &self,
        channel: &str,
        url: &str,
        poll: &PollRecord,
    ) -> Result<(), StoreError> {
        self.write_poll(channel, url, poll).await
    }

    async fn record_gap(&self, channel: &str, gap: &GapRecord) -> Result<i64, StoreError> {
        self.write_gap(channel, gap).await
    }

    async fn gaps(&self, channel: &str, limit: usize) -> Result<Vec<GapRecord>, StoreError> {
        self.list_gaps(channel, limit).await
    }

    async fn version(&self) -> Result<u64, StoreError> {
        let mut session = self.database.read("read the version").await?;
        let version = session
            .scalar(sql!("SELECT version FROM settings WHERE id = 1"), values![])
            .await?;
        session.unsigned(version)
    }

    async fn take_lease(
        &self,
        channel: &str,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<Leased, StoreError> {
        self.acquire_lease(channel, holder, ttl).await
    }

    async fn renew_lease(
        &self,
        lease: &Lease,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        self.extend_lease(lease, holder, ttl).await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        self.end_lease(lease).await
    }

    async fn known(
        &self,
        channel: &str,
        url: &str,
        entry_ids: &[&str],
    ) -> Result<HashMap<String, Hash>, StoreError> {
        self.read_known(channel, url, entry_ids).await
    }

    async fn known_since(
        &self,
        channel: &str,
        url: &str,
        seq: u64,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        self.read_known_since(channel, url, seq, limit).await
    }

    async fn forget_entries(
        &self,
        channel: &str,
        url: &str,
        keep: usize,
        present: &[&str],
    ) -> Result<u64, StoreError> {
        self.delete_entries(channel, url, keep, present).await
    }

    async fn append(
        &self,
        channel: &str,
        url: &str,
        fence: Option<u64>,
        drafts: &[Draft],
        validators: Option<&Validators>,
        encode: &EncodeUpdate<'_>,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.write_updates(channel, url, fence, drafts, validators, encode)
            .await
    }

    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.read_updates(channel, None, from, limit, max_bytes)
            .await
    }

    async fn backlog(
        &self,
        channel: &str,
        incarnation: Uuid,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.read_updates(channel, Some(incarnation), from, limit, max_bytes)
            .await
    }

    async fn retain(
        &self,
        channel: &str,
        keep: &Retention,
        published: u64,
    ) -> Result<u64, StoreError> {
        self.delete_updates(channel, keep, published).await
    }

    async fn add_token(&self, token: &NewToken) -> Result<TokenRow, StoreError> {
        self.write_token(token).await
    }

    async fn valid_token(&self, hash: &Hash) -> Result<Option<TokenRow>, StoreError> {
        self.find_valid_token(hash).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.list_tokens().await
    }

    async fn revoke_token(&self, id: i64) -> Result<bool, StoreError> {
        self.end_token(id).await
    }

    async fn admit(&self, applicant: &Applicant<'_>) -> Result<Verdict, StoreError> {
        self.judge(applicant).await
    }

    async fn receivers(&self) -> Result<Vec<ReceiverRow>, StoreError> {
        self.list_receivers().await
    }

    async fn revoke_receiver(&self, id: Uuid) -> Result<bool, StoreError> {
        self.end_receiver(id).await
    }

    async fn forget_receiver(&self, id: Uuid) -> Result<bool, StoreError> {
        self.delete_receiver(id).await
    }

    async fn revoked(&self) -> Result<Vec<Uuid>, StoreError> {
        self.list_revoked().await
    }

    async fn backup(&self, to: &Path) -> Result<BackupReport, StoreError> {
        archive::backup(&self.database, to).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.version().await.map(|_| ())
    }

    async fn close(&self) {
        self.news.close().await;
        self.database.close().await;
    }
}
