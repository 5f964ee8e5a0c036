//! A store that fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use store::{
    Applicant, Channel, ChannelRow, ChannelSettings, Draft, EncodeUpdate, FeedRow, FeedSettings,
    GapRecord, Hash, Holder, Lease, Leased, NewToken, ReceiverRow, Retention, StoredUpdate,
    TokenRow, Verdict,
};

use super::feed_server::{Post, post};
use super::*;

/// How a store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing is wrong.
    None,
    /// Nothing is written: the disk is full.
    Full,
    /// It is written, but the answer is an error.
    AfterWriting,
    /// Not even reading works.
    Reading,
    /// Nothing can be deleted.
    Deleting,
}

/// A real store that fails on command.
struct Faulty {
    inner: Arc<dyn Store>,
    fault: Mutex<Fault>,
    /// Calls that failed.
    failed: AtomicUsize,
}

impl Faulty {
    fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            fault: Mutex::new(Fault::None),
            failed: AtomicUsize::new(0),
        })
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn is(&self, faults: &[Fault]) -> bool {
        faults.contains(&self.fault.lock().unwrap())
    }

    fn full(&self) -> StoreError {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let url = "sqlite://test.db".to_owned();
        StoreError::Full { url }
    }

    fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Store for Faulty {
    async fn open_channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.inner.open_channel(name).await
    }
    async fn renew_channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.inner.renew_channel(name).await
    }
    async fn channels(&self) -> Result<Vec<ChannelRow>, StoreError> {
        self.inner.channels().await
    }
    async fn put_channel(
        &self,
        name: &str,
        settings: &ChannelSettings,
    ) -> Result<ChannelRow, StoreError> {
        self.inner.put_channel(name, settings).await
    }
    async fn set_channel_active(&self, name: &str, active: bool) -> Result<bool, StoreError> {
        self.inner.set_channel_active(name, active).await
    }
    async fn remove_channel(&self, name: &str) -> Result<bool, StoreError> {
        self.inner.remove_channel(name).await
    }
    async fn feeds(&self, channel: Option<&str>) -> Result<Vec<FeedRow>, StoreError> {
        self.inner.feeds(channel).await
    }
    async fn feed(&self, channel: &str, url: &str) -> Result<Option<FeedRow>, StoreError> {
        self.inner.feed(channel, url).await
    }
    async fn put_feed(
        &self,
        channel: &str,
        settings: &FeedSettings,
    ) -> Result<FeedRow, StoreError> {
        self.inner.put_feed(channel, settings).await
    }
    async fn set_feed_active(
        &self,
        channel: &str,
        url: &str,
        active: bool,
    ) -> Result<bool, StoreError> {
        self.inner.set_feed_active(channel, url, active).await
    }
    async fn record_poll(
        &self,
        channel: &str,
        url: &str,
        poll: &PollRecord,
    ) -> Result<(), StoreError> {
        if self.is(&[Fault::Full, Fault::Reading]) {
            return Err(self.full());
        }
        self.inner.record_poll(channel, url, poll).await
    }
    async fn record_gap(&self, channel: &str, gap: &GapRecord) -> Result<i64, StoreError> {
        self.inner.record_gap(channel, gap).await
    }
    async fn gaps(&self, channel: &str, limit: usize) -> Result<Vec<GapRecord>, StoreError> {
        self.inner.gaps(channel, limit).await
    }
    async fn version(&self) -> Result<u64, StoreError> {
        self.inner.version().await
    }
    async fn take_lease(
        &self,
        channel: &str,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<Leased, StoreError> {
        self.inner.take_lease(channel, holder, ttl).await
    }
    async fn renew_lease(
        &self,
        lease: &Lease,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        self.inner.renew_lease(lease, holder, ttl).await
    }
    async fn release_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        self.inner.release_lease(lease).await
    }
    async fn known(
        &self,
        channel: &str,
        url: &str,
        entry_ids: &[&str],
    ) -> Result<HashMap<String, Hash>, StoreError> {
        if self.is(&[Fault::Reading]) {
            return Err(self.full());
        }
        self.inner.known(channel, url, entry_ids).await
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
        if self.is(&[Fault::Full, Fault::Reading]) {
            return Err(self.full());
        }
        let stored = self
            .inner
            .append(channel, url, fence, drafts, validators, encode)
            .await?;
        if self.is(&[Fault::AfterWriting]) {
            return Err(self.full());
        }
        Ok(stored)
    }
    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        if self.is(&[Fault::Reading]) {
            return Err(self.full());
        }
        self.inner.updates(channel, from, limit, max_bytes).await
    }
    async fn retain(&self, channel: &str, keep: &Retention) -> Result<u64, StoreError> {
        if self.is(&[Fault::Deleting]) {
            return Err(self.full());
        }
        self.inner.retain(channel, keep).await
    }
    async fn add_token(&self, token: &NewToken) -> Result<TokenRow, StoreError> {
        self.inner.add_token(token).await
    }
    async fn token_valid(&self, hash: &Hash) -> Result<bool, StoreError> {
        self.inner.token_valid(hash).await
    }
    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.inner.tokens().await
    }
    async fn revoke_token(&self, id: i64) -> Result<bool, StoreError> {
        self.inner.revoke_token(id).await
    }
    async fn admit(&self, applicant: &Applicant<'_>) -> Result<Verdict, StoreError> {
        self.inner.admit(applicant).await
    }
    async fn receivers(&self) -> Result<Vec<ReceiverRow>, StoreError> {
        self.inner.receivers().await
    }
    async fn revoke_receiver(&self, id: Uuid) -> Result<bool, StoreError> {
        self.inner.revoke_receiver(id).await
    }
    async fn forget_receiver(&self, id: Uuid) -> Result<bool, StoreError> {
        self.inner.forget_receiver(id).await
    }
    async fn revoked(&self) -> Result<Vec<Uuid>, StoreError> {
        self.inner.revoked().await
    }
    async fn check(&self) -> Result<(), StoreError> {
        self.inner.check().await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

fn posts(ids: &[&str]) -> Vec<Post> {
    ids.iter().rev().map(|id| post(id, id)).collect()
}

/// Lets the store fail while entries come, and work again.
async fn fails_and_works_again(fault: Fault) {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = Faulty::new(database.open().await);
    server.give(&posts(&["a"]));
    let mut life = Life::begin(&server, Arc::<Faulty>::clone(&store)).await;
    life.published(1).await;

    store.set(fault);
    server.give(&posts(&["a", "b", "c"]));
    let status = life
        .shows("the failure", |s| s.store_failure.is_some())
        .await;
    let (state, detail) = status.feed();
    assert_eq!(state, FeedState::Error);
    assert!(detail.contains("no space left"), "{detail}");
    // The document that could not be stored is kept while the feed goes on without these entries.
    server.give(&posts(&["c", "d"]));
    let failed = store.failed();
    soon("several attempts", || store.failed() > failed + 2).await;
    assert_eq!(life.seqs(), [1], "nothing is published that is not stored");

    store.set(Fault::None);
    life.published(4).await;
    life.polled(&server, 2).await;
    assert_eq!(life.ids(), ["a", "b", "c", "d"], "{fault:?}");
    assert_eq!(life.seqs(), dense(4), "{fault:?}");
    let status = life
        .shows("good again", |s| s.store_failure.is_none())
        .await;
    assert_eq!(status.head, 4);
    assert!(life.metrics.store_failures.get() >= 3);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_delays_updates_and_loses_none() {
    fails_and_works_again(Fault::Full).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_writing_publishes_nothing_twice() {
    fails_and_works_again(Fault::AfterWriting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_read_delays_updates_and_loses_none() {
    fails_and_works_again(Fault::Reading).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_store_does_not_keep_the_ingest_from_ending() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = Faulty::new(database.open().await);
    store.set(Fault::Full);
    server.give(&posts(&["a"]));
    let mut life = Life::begin(&server, Arc::<Faulty>::clone(&store)).await;
    life.shows("the failure", |s| s.store_failure.is_some())
        .await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_published_beyond_the_mark() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let life = Life::begin(&server, database.open().await).await;
    life.published(1).await;
    assert_eq!(life.mark.seq(), 1);
    let ids: Vec<String> = (0..200).map(|n| format!("e{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    server.give(&posts(&ids));
    soon("all of it", || {
        let seqs = life.seqs();
        let marked = life.mark.seq();
        assert!(seqs.last() <= Some(&marked));
        marked == 201
    })
    .await;
    life.published(201).await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_deleted_is_deleted_later() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = Faulty::new(database.open().await);
    server.give(&posts(&["a", "b", "c"]));
    let folder = tempfile::tempdir().unwrap();
    let shared = Arc::<Faulty>::clone(&store);
    let mut life = Life::full(&server, shared, Semaphore::MAX_PERMITS, 2, folder).await;
    life.shows("two are kept", |s| s.first == 2).await;
    assert_eq!(*life.recorder.firsts.lock().unwrap(), [2]);
    store.set(Fault::Deleting);
    server.give(&posts(&["d", "e"]));
    life.published(5).await;
    soon("a failure", || store.failed() > 0).await;
    assert_eq!(stored(&*store).await.len(), 4);
    store.set(Fault::None);
    server.give(&posts(&["f"]));
    life.shows("two are kept", |s| s.first == 5).await;
    let left: Vec<u64> = stored(&*store).await.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(left, [5, 6]);
    assert_eq!(*life.recorder.firsts.lock().unwrap(), [2, 4, 5]);
    life.end().await;
}
