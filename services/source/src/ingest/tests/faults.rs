//! A store that fails.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use store::{
    Applicant, BackupReport, Channel, ChannelRow, ChannelSettings, ChooseSettings, Draft,
    EncodeUpdate, FeedEdit, FeedRow, FeedSettings, GapRecord, Hash, Holder, Lease, Leased,
    NewToken, ReceiverRow, Retention, StoredUpdate, TokenRow, Verdict,
};

use super::feed_server::{Post, post};
use super::*;

/// How a store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is wrong.
    None,
    /// Nothing is written: the disk is full.
    Full,
    /// It is written, but the answer is an error.
    AfterWriting,
    /// Not even reading works.
    Reading,
    /// It is full after so many more appends.
    FullAfter(usize),
    /// Updates are read only when they may be.
    Late,
    /// Who asks for a feed panics.
    Panic,
}

/// A real store that fails on command.
pub(crate) struct Faulty {
    inner: Arc<dyn Store>,
    fault: Mutex<Fault>,
    /// Calls that failed.
    failed: AtomicUsize,
    /// Somebody waits for updates, and may have them.
    pub(crate) asked: Notify,
    pub(crate) go_on: Notify,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            fault: Mutex::new(Fault::None),
            failed: AtomicUsize::new(0),
            asked: Notify::new(),
            go_on: Notify::new(),
        })
    }

    pub(crate) fn set(&self, fault: Fault) {
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

    pub(crate) fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Store for Faulty {
    async fn open_channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.inner.open_channel(name).await
    }
    async fn channel(&self, name: &str) -> Result<Channel, StoreError> {
        self.inner.channel(name).await
    }
    async fn renew_channel(&self, name: &str, fence: Option<u64>) -> Result<Channel, StoreError> {
        self.inner.renew_channel(name, fence).await
    }
    async fn channels(&self) -> Result<Vec<ChannelRow>, StoreError> {
        self.inner.channels().await
    }
    async fn add_channel(
        &self,
        name: &str,
        choose: &ChooseSettings<'_>,
    ) -> Result<Option<ChannelRow>, StoreError> {
        self.inner.add_channel(name, choose).await
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
        assert!(!self.is(&[Fault::Panic]), "wanted by the test");
        self.inner.feed(channel, url).await
    }
    async fn put_feed(
        &self,
        channel: &str,
        settings: &FeedSettings,
    ) -> Result<FeedRow, StoreError> {
        self.inner.put_feed(channel, settings).await
    }
    async fn add_feed(
        &self,
        channel: &str,
        settings: &FeedSettings,
    ) -> Result<Option<FeedRow>, StoreError> {
        self.inner.add_feed(channel, settings).await
    }
    async fn edit_feed(
        &self,
        channel: &str,
        url: &str,
        edit: &FeedEdit,
    ) -> Result<Option<FeedRow>, StoreError> {
        self.inner.edit_feed(channel, url, edit).await
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
        if self.is(&[Fault::Reading]) {
            return Err(self.full());
        }
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
    async fn known_since(
        &self,
        channel: &str,
        url: &str,
        seq: u64,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        self.inner.known_since(channel, url, seq, limit).await
    }
    async fn forget_entries(
        &self,
        channel: &str,
        url: &str,
        keep: usize,
        present: &[&str],
    ) -> Result<u64, StoreError> {
        self.inner.forget_entries(channel, url, keep, present).await
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
        if self.is(&[Fault::Full, Fault::Reading, Fault::FullAfter(0)]) {
            return Err(self.full());
        }
        if let Fault::FullAfter(more) = &mut *self.fault.lock().unwrap() {
            *more -= 1;
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
        if self.is(&[Fault::Late]) {
            self.asked.notify_one();
            self.go_on.notified().await;
        }
        self.inner.updates(channel, from, limit, max_bytes).await
    }
    async fn backlog(
        &self,
        channel: &str,
        incarnation: Uuid,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError> {
        self.inner
            .backlog(channel, incarnation, from, limit, max_bytes)
            .await
    }
    async fn retain(
        &self,
        channel: &str,
        keep: &Retention,
        published: u64,
    ) -> Result<u64, StoreError> {
        self.inner.retain(channel, keep, published).await
    }
    async fn add_token(&self, token: &NewToken) -> Result<TokenRow, StoreError> {
        self.inner.add_token(token).await
    }
    async fn valid_token(&self, hash: &Hash) -> Result<Option<TokenRow>, StoreError> {
        self.inner.valid_token(hash).await
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
    async fn backup(&self, to: &Path) -> Result<BackupReport, StoreError> {
        self.inner.backup(to).await
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

/// An ingest whose store can fail, and a follower whose cannot.
async fn faulty(server: &FeedServer, database: &Database) -> (Arc<Faulty>, Life) {
    let inner = database.open().await;
    let store = Faulty::new(Arc::clone(&inner));
    let shared = Arc::<Faulty>::clone(&store);
    let life = Life::apart(settings(server.url()), shared, inner).await;
    (store, life)
}

/// Lets the store fail while entries come, and work again.
async fn fails_and_works_again(fault: Fault) {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (store, mut life) = faulty(&server, &database).await;
    life.stored(1).await;

    store.set(fault);
    server.give(&posts(&["a", "b", "c"]));
    let status = life
        .shows("the failure", |s| s.store_failure.is_some())
        .await;
    let (state, detail) = status.feed();
    assert_eq!(state, FeedState::Paused);
    assert!(detail.contains("no space left"), "{detail}");
    // What could not be stored is kept while the feed goes on without these entries.
    server.give(&posts(&["c", "d"]));
    let failed = store.failed();
    soon("several attempts", || store.failed() > failed + 2).await;
    // That it goes on is seen as well, although nothing can be stored: d and e were in it only now.
    life.polled(&server, 2).await;
    server.give(&posts(&["d", "e"]));
    life.polled(&server, 2).await;
    server.give(&posts(&["e", "f"]));
    life.polled(&server, 2).await;
    if fault != Fault::AfterWriting {
        assert_eq!(life.seqs(), [1]);
        let held = life.status.borrow().pending;
        // Where nothing can be read, nobody knows that a is stored.
        let a = usize::from(fault == Fault::Reading);
        assert_eq!(held, 5 + a, "b to f, each once");
    }

    store.set(Fault::None);
    life.stored(6).await;
    life.polled(&server, 2).await;
    assert_eq!(life.ids(), ["a", "b", "c", "d", "e", "f"], "{fault:?}");
    assert_eq!(life.seqs(), dense(6), "{fault:?}");
    let status = life
        .shows("good again", |s| s.store_failure.is_none())
        .await;
    assert_eq!(status.pending, 0);
    assert!(life.metrics.store_failures.get() >= 3);
    assert_eq!(life.metrics.suspected_gaps.get(), 0);
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_delays_updates_and_loses_none() {
    fails_and_works_again(Fault::Full).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_writing_stores_nothing_twice() {
    fails_and_works_again(Fault::AfterWriting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_read_delays_updates_and_loses_none() {
    fails_and_works_again(Fault::Reading).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_memory_is_bounded() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (store, life) = faulty(&server, &database).await;
    life.stored(1).await;
    store.set(Fault::Full);
    // Documents of almost a megabyte each, until no more are asked for.
    let text = "x".repeat((1 << 20) - 4096);
    let held = || life.status.borrow().pending;
    let mut given = 0;
    loop {
        given += 1;
        assert!(given < 50, "for ever");
        server.give(&[post(&format!("big {given}"), &text)]);
        let failed = store.failed();
        let asked = || held() == given;
        soon("an answer", || asked() || store.failed() > failed + 2).await;
        if !asked() {
            break;
        }
    }
    assert!((2..=10).contains(&held()), "{}", held());
    let before = server.requests();
    let failed = store.failed();
    soon("one more attempt", || store.failed() > failed).await;
    assert_eq!(server.requests(), before, "nothing more is asked for");
    // It goes on from there.
    store.set(Fault::None);
    let last = format!("big {given}");
    soon("the last one", || life.ids().last() == Some(&last)).await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_store_does_not_keep_the_ingest_from_ending() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (store, mut life) = faulty(&server, &database).await;
    life.stored(1).await;
    store.set(Fault::Full);
    server.give(&posts(&["a", "b"]));
    life.shows("the failure", |s| s.store_failure.is_some())
        .await;
    life.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn publishing_ends_when_another_source_has_the_channel() {
    let (server, database) = (FeedServer::start().await, Database::new());
    let store = database.open().await;
    store.open_channel(CHANNEL).await.unwrap();
    let holder = |n| Holder {
        id: Uuid::from_u128(n),
        name: format!("source {n}"),
    };
    let moment = Duration::from_millis(1);
    let take = async |n| loop {
        match store.take_lease(CHANNEL, &holder(n), moment).await.unwrap() {
            Leased::Held(lease) => break lease.fence,
            Leased::Other { .. } => tokio::time::sleep(moment).await,
        }
    };
    server.give(&posts(&["a"]));
    let fenced = IngestSettings {
        fence: Some(take(1).await),
        ..settings(server.url())
    };
    let life = Life::with(fenced, Arc::clone(&store)).await;
    life.stored(1).await;
    take(2).await;
    // It notices at the next news, and stores none of them.
    life.polled(&server, 2).await;
    server.give(&posts(&["a", "b"]));
    assert_eq!(life.ended().await, Ended::Fenced);
    assert_eq!(stored(&*store).await, [(1, "a".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_is_gone_keeps_the_ingest_until_its_last_entries_are_stored() {
    let (server, database) = (FeedServer::start().await, Database::new());
    server.give(&posts(&["a"]));
    let (store, mut life) = faulty(&server, &database).await;
    life.stored(1).await;
    store.set(Fault::Full);
    server.give(&posts(&["a", "b"]));
    life.shows("the failure", |s| s.store_failure.is_some())
        .await;
    server.give_document(StatusCode::GONE, "text/plain", "no more".into());
    life.shows("gone", |s| s.state == FeedState::Gone).await;
    store.set(Fault::None);
    life.stored(2).await;
    assert_eq!(life.ended().await, Ended::Gone);
    let row = store.feed(CHANNEL, &server.url()).await.unwrap().unwrap();
    assert!(row.gone_ms.is_some());
}
