//! The ingest against a real server and a real database, with a recorder in the transport's place.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod faults;
mod feed_server;
mod growing;
mod troubles;

use std::path::PathBuf;
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use feed::fetch::FetchConfig;
use feed::payload::{self, Update};
use flexicast_tokio::source::SourceStatus;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;
use crate::metrics::Metrics;
use feed_server::FeedServer;

const CHANNEL: &str = "lore";

/// For everything that should happen soon.
const SOON: Duration = Duration::from_secs(20);

/// Stands in for the transport: keeps what is published, in order.
struct Recorder {
    published: Mutex<Vec<(u64, Bytes)>>,
    /// What it was told of the retention.
    firsts: Mutex<Vec<u64>>,
    /// How many more updates it has room for.
    room: Semaphore,
}

#[async_trait]
impl Transport for Recorder {
    async fn publish(&self, channel: &str, seq: u64, encoded: Bytes) {
        assert_eq!(channel, CHANNEL);
        self.room.acquire().await.unwrap().forget();
        self.published.lock().unwrap().push((seq, encoded));
    }

    async fn set_first(&self, channel: &str, first: u64) {
        assert_eq!(channel, CHANNEL);
        self.firsts.lock().unwrap().push(first);
    }

    async fn status(&self) -> Option<SourceStatus> {
        None
    }
}

/// One life of an ingest.
struct Life {
    recorder: Arc<Recorder>,
    metrics: ChannelMetrics,
    mark: HeadMark,
    status: watch::Receiver<IngestStatus>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Life {
    async fn begin(server: &FeedServer, store: Arc<dyn Store>) -> Life {
        Life::with_room(server, store, Semaphore::MAX_PERMITS).await
    }

    async fn with_room(server: &FeedServer, store: Arc<dyn Store>, room: usize) -> Life {
        let folder = tempfile::tempdir().unwrap();
        Life::full(server, store, room, 0, folder).await
    }

    /// With the folder of the head mark, and so many updates kept.
    async fn full(
        server: &FeedServer,
        store: Arc<dyn Store>,
        room: usize,
        retention: u64,
        folder: tempfile::TempDir,
    ) -> Life {
        // These tests are about one life each time, so every one has a fresh mark: what the channel
        // has is taken as published.
        let path = folder.path().join("lore.head");
        let adopted = HeadMark::adopt(&path, &*store, CHANNEL).await.unwrap();
        let (channel, mark) = (adopted.channel, adopted.mark);
        let fetch = FetchConfig {
            allow_private: true,
            ..FetchConfig::new(server.url())
        };
        let settings = Settings {
            channel: channel.name,
            incarnation: channel.incarnation,
            head: channel.head,
            first: channel.first,
            retention,
            url: server.url(),
            first_poll: Duration::ZERO,
            poll_interval: Duration::from_millis(30),
            store_retry: Duration::from_millis(30),
        };
        let recorder = Arc::new(Recorder {
            published: Mutex::new(Vec::new()),
            firsts: Mutex::new(Vec::new()),
            room: Semaphore::new(room),
        });
        let metrics = Metrics::default().channel(CHANNEL);
        let ingest = Ingest::new(
            settings,
            Fetcher::new(fetch).unwrap(),
            store,
            mark.clone(),
            Arc::<Recorder>::clone(&recorder),
            metrics.clone(),
        )
        .await
        .unwrap();
        let status = ingest.status();
        let stop = CancellationToken::new();
        Life {
            recorder,
            metrics,
            mark,
            _folder: folder,
            status,
            task: tokio::spawn(ingest.run(stop.clone())),
            stop,
        }
    }

    /// The seqs that were published.
    fn seqs(&self) -> Vec<u64> {
        let published = self.recorder.published.lock().unwrap();
        published.iter().map(|(seq, _)| *seq).collect()
    }

    /// What was published, decoded.
    fn updates(&self) -> Vec<Update> {
        let published = self.recorder.published.lock().unwrap();
        published
            .iter()
            .map(|(_, encoded)| payload::decode(encoded).unwrap())
            .collect()
    }

    /// The ids of the published entries.
    fn ids(&self) -> Vec<String> {
        self.updates().into_iter().map(|u| u.entry.id).collect()
    }

    async fn published(&self, count: usize) {
        soon(&format!("{count} updates"), || self.seqs().len() >= count).await;
        assert_eq!(self.seqs().len(), count);
    }

    /// Waits until the status is as described.
    async fn shows(&mut self, what: &str, is: impl FnMut(&IngestStatus) -> bool) -> IngestStatus {
        let latest = self.status.clone();
        let wait = tokio::time::timeout(SOON, self.status.wait_for(is));
        match wait.await {
            Ok(status) => status.unwrap().clone(),
            Err(_) => panic!("not in time: {what}; it shows {:?}", latest.borrow()),
        }
    }

    async fn state(&mut self, state: FeedState) -> IngestStatus {
        self.shows(state.word(), |status| status.feed == state)
            .await
    }

    /// Waits until the server was asked `polls` more times and the last answer is dealt with.
    async fn polled(&self, server: &FeedServer, polls: usize) {
        // One more: the poll that begins afterwards shows that the ones before are done.
        let until = server.requests() + polls + 1;
        soon("some polls", || server.requests() >= until).await;
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(SOON, self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

async fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < SOON, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A database that outlives its connections.
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

    async fn open(&self) -> Arc<dyn Store> {
        store::open_file(&self.path).await.unwrap()
    }
}

/// The ids and encoded updates of a channel in the store.
async fn stored(store: &dyn Store) -> Vec<(u64, String)> {
    let updates = store.updates(CHANNEL, 1, 10_000, usize::MAX).await.unwrap();
    updates
        .into_iter()
        .map(|u| (u.seq, payload::decode(&u.encoded).unwrap().entry.id))
        .collect()
}

fn dense(count: u64) -> Vec<u64> {
    (1..=count).collect()
}
