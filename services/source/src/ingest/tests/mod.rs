//! The ingest against real servers and a real database, with a follower in place of the publisher.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod archive_server;
mod faults;
mod feed_server;
mod gaps;
mod growing;
mod long_run;
mod lost_database;
mod moving;
mod public_inbox;
mod publications;
mod troubles;

use std::path::PathBuf;
use std::sync::Mutex;

use bytes::Bytes;
use feed::payload::{self, Update};
use kit::wait::on_tokio;
use store::{Faults, PollRecord, Validators};
use tokio::task::JoinHandle;

use super::*;
use crate::metrics::Metrics;
use feed_server::FeedServer;

const CHANNEL: &str = "lore";

/// Timeout for everything that should happen soon.
const SOON: Duration = Duration::from_secs(120);

/// Updates that the follower read, in order.
type Read = Arc<Mutex<Vec<(u64, Bytes)>>>;

/// Acts as the publisher: reads stored updates when woken, and only then.
async fn follow(store: Store, mut next: u64, wake: Arc<Notify>, read: Read) {
    loop {
        wake.notified().await;
        while let Ok(updates) = store.updates().read(CHANNEL, next, 100, usize::MAX).await {
            let Some(last) = updates.last() else { break };
            next = last.seq + 1;
            let updates = updates.into_iter().map(|u| (u.seq, u.encoded.into()));
            read.lock().unwrap().extend(updates);
        }
    }
}

/// Returns the usual settings for a feed.
fn settings(url: String) -> IngestSettings {
    let interval = Duration::from_millis(30);
    IngestSettings {
        channel: CHANNEL.into(),
        incarnation: Uuid::nil(),
        fence: None,
        signer: None,
        deadline_ms: Arc::default(),
        feed: FeedSettings {
            address: url.clone(),
            url: url.clone(),
            local: true,
            ..FeedSettings::default()
        },
        fetch: FetchConfig::new(""),
        schedule: schedule::Settings {
            min: interval,
            max: interval,
            fixed: None,
        },
        first_poll: Duration::ZERO,
        store_retry: Duration::from_millis(30),
        gaps: GapSettings {
            pause: Duration::from_millis(50),
            late: None,
            ..GapSettings::default()
        },
        bounds: Bounds::default(),
        hooks: Hooks::default(),
    }
}

/// One run of an ingest.
struct Life {
    read: Read,
    metrics: ChannelMetrics,
    status: watch::Receiver<IngestStatus>,
    stop: CancellationToken,
    task: JoinHandle<EndReason>,
    follower: JoinHandle<()>,
}

impl Life {
    async fn begin(server: &FeedServer, store: Store) -> Life {
        Life::with(settings(server.url()), store).await
    }

    async fn with(settings: IngestSettings, store: Store) -> Life {
        Life::apart(settings, store.clone(), store).await
    }

    /// Starts an ingest with a separate store for the follower.
    async fn apart(mut settings: IngestSettings, store: Store, followed: Store) -> Life {
        let channel = followed.channels().open(CHANNEL).await.unwrap();
        settings.incarnation = channel.incarnation;
        let (wake, read) = (Arc::new(Notify::new()), Read::default());
        let follower = follow(
            followed,
            channel.head + 1,
            Arc::clone(&wake),
            Arc::clone(&read),
        );
        let metrics = Metrics::default().channel(CHANNEL);
        let ingest = Ingest::new(settings, store, wake, metrics.clone());
        let status = ingest.status();
        let stop = CancellationToken::new();
        Life {
            read,
            metrics,
            status,
            follower: tokio::spawn(follower),
            task: tokio::spawn(ingest.run(stop.clone())),
            stop,
        }
    }

    /// Returns the seqs that were stored in this run.
    fn seqs(&self) -> Vec<u64> {
        let read = self.read.lock().unwrap();
        read.iter().map(|(seq, _)| *seq).collect()
    }

    /// Returns the updates that were stored in this run, decoded.
    fn updates(&self) -> Vec<Update> {
        let read = self.read.lock().unwrap();
        let decode = |(_, encoded): &(u64, Bytes)| payload::decode(encoded).unwrap();
        read.iter().map(decode).collect()
    }

    /// Returns the ids of their entries.
    fn ids(&self) -> Vec<String> {
        self.updates().into_iter().map(|u| u.entry.id).collect()
    }

    async fn stored(&self, count: usize) {
        let began = Instant::now();
        while self.seqs().len() < count {
            let (has, shows) = (self.seqs().len(), self.status.borrow().clone());
            assert!(
                began.elapsed() < SOON,
                "{has} of {count} updates; {shows:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.seqs().len(), count);
    }

    /// Waits until the status fulfils a condition.
    async fn shows(&mut self, what: &str, is: impl FnMut(&IngestStatus) -> bool) -> IngestStatus {
        let latest = self.status.clone();
        let wait = tokio::time::timeout(SOON, self.status.wait_for(is));
        match wait.await {
            Ok(status) => status.unwrap().clone(),
            Err(_) => panic!("not in time: {what}; it shows {:?}", latest.borrow()),
        }
    }

    async fn state(&mut self, state: FeedState) -> IngestStatus {
        self.shows(state.word(), |status| status.state == state)
            .await
    }

    /// Waits until the server was polled `polls` more times and the last response is processed.
    async fn polled(&self, server: &FeedServer, polls: usize) {
        // One more: the start of the next poll shows that the ones before are done.
        let until = server.requests() + polls + 1;
        soon("some polls", || server.requests() >= until).await;
    }

    async fn end(self) {
        self.stop.cancel();
        assert_eq!(self.ended().await, EndReason::Stopped);
    }

    /// Waits until the ingest ends by itself.
    async fn ended(self) -> EndReason {
        let ended = tokio::time::timeout(SOON, self.task).await;
        self.follower.abort();
        ended.unwrap().unwrap()
    }
}

async fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let what = || what.to_owned();
    on_tokio::until_some_within(SOON, what, async || is().then_some(())).await;
}

/// Database that outlives its connections.
struct Database {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Database {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            path: folder.path().join("flexfeed.db"),
            _folder: folder,
        }
    }

    async fn open(&self) -> Store {
        store::open_file(&self.path).await.unwrap()
    }

    /// The same database, by connections of their own that faults can strike.
    async fn open_with_faults(&self) -> (Store, Faults) {
        let store = self.open().await;
        let faults = store.faults().clone();
        (store, faults)
    }
}

/// Returns the ids and encoded updates of a channel in the store.
async fn stored(store: &Store) -> Vec<(u64, String)> {
    let updates = store
        .updates()
        .read(CHANNEL, 1, 10_000, usize::MAX)
        .await
        .unwrap();
    updates
        .into_iter()
        .map(|u| (u.seq, payload::decode(&u.encoded).unwrap().entry.id))
        .collect()
}

fn dense(count: u64) -> Vec<u64> {
    (1..=count).collect()
}
