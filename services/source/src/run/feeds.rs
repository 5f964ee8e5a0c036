//! The feeds of one channel, while it is published here. An ingest that fails is restarted, at
//! growing intervals; the others, and its own memory, are not affected.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use service::backoff::Backoff;
use store::{FeedRow, FeedSettings};
use tokio::sync::{Notify, watch};
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};
use uuid::Uuid;

use super::context::Context;
use crate::ingest::{
    EndReason, GapSettings, Hooks, Ingest, IngestSettings, PublicationIntake, PublicationSettings,
};
use crate::metrics::ChannelMetrics;
use crate::status::{FeedState, IngestStatus};

/// Delay of the first retry after a failure to store.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Time limit for work in progress when an ingest is stopped.
const LAST_WORK: Duration = Duration::from_secs(2);

/// Delays before a failed ingest is restarted.
const RESTARTS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// An ingest that ran for this long counts as failed for the first time.
const SOUND: Duration = Duration::from_secs(600);

/// The ingests of a channel's feeds.
pub(super) struct Feeds {
    context: Arc<Context>,
    channel: String,
    incarnation: Uuid,
    fence: Option<u64>,
    wake: Arc<Notify>,
    metrics: ChannelMetrics,
    /// Time in ms after which an update expires; 0 for a log.
    deadline_ms: Arc<AtomicU64>,
    known: BTreeMap<String, FeedTask>,
    tasks: JoinSet<EndReason>,
    /// URLs and numbers of the running ingests.
    running: HashMap<task::Id, (String, u64)>,
    /// Number of the last started ingest.
    number: u64,
    /// Intake of publications, until `stopped`.
    publications: JoinSet<()>,
    /// Consecutive failures of that.
    breakdowns: u32,
    stopped: CancellationToken,
}

/// A feed with its ingest, which may have ended by itself.
struct FeedTask {
    row: FeedRow,
    stop: CancellationToken,
    number: u64,
    /// Whether it ended because the feed is gone for good.
    gone: bool,
    began: Instant,
    /// Consecutive failures.
    breakdowns: u32,
    /// Time of the next restart.
    again: Option<Instant>,
}

/// Whether an operator has paused the feed.
fn is_paused(row: &FeedRow) -> bool {
    row.active && row.paused
}

/// Returns the status of a paused feed.
fn paused() -> IngestStatus {
    IngestStatus {
        state: FeedState::Paused,
        detail: "paused by an operator: it is not polled".to_owned(),
        ..IngestStatus::default()
    }
}

impl Feeds {
    pub(super) fn new(
        context: Arc<Context>,
        channel: &str,
        incarnation: Uuid,
        fence: Option<u64>,
        wake: Arc<Notify>,
        metrics: ChannelMetrics,
    ) -> Self {
        Self {
            context,
            channel: channel.to_owned(),
            incarnation,
            fence,
            wake,
            metrics,
            deadline_ms: Arc::default(),
            known: BTreeMap::new(),
            tasks: JoinSet::new(),
            running: HashMap::new(),
            number: 0,
            publications: JoinSet::new(),
            breakdowns: 0,
            stopped: CancellationToken::new(),
        }
    }

    /// Takes publications, besides the feeds.
    pub(super) fn take_publications(&mut self) {
        self.take_publications_after(Duration::ZERO);
    }

    fn take_publications_after(&mut self, pause: Duration) {
        let context = &self.context;
        let settings = PublicationSettings {
            channel: self.channel.clone(),
            incarnation: self.incarnation,
            fence: self.fence,
            signer: Some(Arc::clone(&context.signer)),
            deadline_ms: Arc::clone(&self.deadline_ms),
            store_retry: STORE_RETRY,
            bounds: context.bounds.clone(),
        };
        let (store, wake) = (context.store.clone(), Arc::clone(&self.wake));
        let intake = PublicationIntake::new(settings, store, wake, self.metrics.clone());
        let stop = self.stopped.clone();
        self.publications.spawn(async move {
            tokio::time::sleep(pause).await;
            intake.run(stop).await;
        });
    }

    /// Sets the time in ms after which an update that is stored from now on expires.
    pub(super) fn set_deadline(&self, deadline_ms: Option<u64>) {
        self.deadline_ms
            .store(deadline_ms.unwrap_or(0), Ordering::Relaxed);
    }

    /// Polls these feeds and no others.
    pub(super) fn set(&mut self, rows: &[FeedRow]) {
        let wanted: BTreeMap<&str, &FeedRow> = rows
            .iter()
            .filter(|row| row.active && !row.paused)
            .map(|row| (row.settings.url.as_str(), row))
            .collect();
        let board = Arc::clone(&self.context.board);
        let refreshes = self.context.refreshes.clone();
        self.known.retain(|url, known| {
            let row = wanted.get(url.as_str());
            // A feed that was gone is polled again once it was added again. If the row is older
            // than that, the ingest notices.
            let again = row.is_some_and(|row| known.gone && row.gone_ms.is_none());
            let stays = row.is_some_and(|row| row.settings == known.row.settings) && !again;
            if !stays {
                known.stop.cancel();
                refreshes.set(&self.channel, url, None);
                let paused = rows
                    .iter()
                    .any(|row| is_paused(row) && row.settings.url == *url);
                // A paused feed gets its status below.
                if !paused {
                    board.set_ingest(&self.channel, url, None);
                }
            }
            stays
        });
        for row in rows.iter().filter(|row| is_paused(row)) {
            let (_, shown) = watch::channel(paused());
            board.set_ingest(&self.channel, &row.settings.url, Some(shown));
        }
        for (url, row) in wanted {
            if !self.known.contains_key(url) {
                self.start(row, 0);
            }
        }
    }

    fn start(&mut self, row: &FeedRow, breakdowns: u32) {
        let context = &self.context;
        let feed = FeedSettings {
            local: row.settings.local || context.config.feeds.allow_private,
            ..row.settings.clone()
        };
        let url = feed.url.clone();
        let schedule = context.schedule(feed.min_interval_ms, feed.max_interval_ms);
        let settings = IngestSettings {
            channel: self.channel.clone(),
            incarnation: self.incarnation,
            fence: self.fence,
            signer: Some(Arc::clone(&context.signer)),
            deadline_ms: Arc::clone(&self.deadline_ms),
            feed,
            fetch: context.fetch(),
            schedule,
            first_poll: context.first_polls.wait().min(schedule.min),
            store_retry: STORE_RETRY,
            gaps: GapSettings {
                #[cfg(feature = "fault-injection")]
                fill: !crate::faults::Fault::GapFillOff.is_injected(),
                ..GapSettings::default()
            },
            bounds: context.bounds.clone(),
            hooks: Hooks {
                refresh: Arc::default(),
                reports: Some(context.reports.clone()),
            },
        };
        let refresh = Some(Arc::clone(&settings.hooks.refresh));
        context.refreshes.set(&self.channel, &url, refresh);
        let ingest = Ingest::new(
            settings,
            context.store.clone(),
            Arc::clone(&self.wake),
            self.metrics.clone(),
        );
        context
            .board
            .set_ingest(&self.channel, &url, Some(ingest.status()));
        self.number += 1;
        let number = self.number;
        let stop = CancellationToken::new();
        let known = FeedTask {
            row: row.clone(),
            stop: stop.clone(),
            number,
            gone: false,
            began: Instant::now(),
            breakdowns,
            again: None,
        };
        self.known.insert(url.clone(), known);
        let task = self.tasks.spawn(ingest.run(stop));
        self.running.insert(task.id(), (url, number));
    }

    /// Waits for an ingest to end, or for a restart to be due; for ever if there is none.
    pub(super) async fn ended(&mut self) {
        let again = self.known.values().filter_map(|known| known.again).min();
        let again = async {
            match again {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(ended) = self.tasks.join_next_with_id() => self.note(ended),
            Some(Err(failure)) = self.publications.join_next(), if !self.stopped.is_cancelled() => {
                self.note_publications(&failure);
            }
            () = again => self.restart_due(),
        }
    }

    fn note(&mut self, ended: Result<(task::Id, EndReason), JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(failure) => failure.id(),
        };
        let Some((url, number)) = self.running.remove(&id) else {
            return;
        };
        let known = self.known.get_mut(&url);
        let known = known.filter(|known| known.number == number);
        match ended {
            Ok((_, EndReason::Gone)) => {
                if let Some(known) = known {
                    info!(
                        channel = self.channel,
                        feed = url,
                        "feed is gone for good; not polled until it is added again (feed add)"
                    );
                    known.gone = true;
                    // No ingest is left to poll on request.
                    self.context.refreshes.set(&self.channel, &url, None);
                }
            }
            // The lease's own end explains it.
            Ok((_, ended)) => debug!(feed = url, ?ended, "ingest ended"),
            Err(failure) if failure.is_cancelled() => {}
            Err(failure) => {
                self.metrics.breakdowns.inc();
                let Some(known) = known else { return };
                if known.began.elapsed() >= SOUND {
                    known.breakdowns = 0;
                }
                known.breakdowns = known.breakdowns.saturating_add(1);
                let pause = RESTARTS.after(known.breakdowns);
                known.again = Some(Instant::now() + pause);
                let detail = format!(
                    "ingest of the feed at {url} failed ({failure}), which is a bug of this \
                     program; restarting in {} s",
                    pause.as_secs()
                );
                error!("{detail}");
                let shown = IngestStatus {
                    state: FeedState::Error,
                    detail,
                    ..IngestStatus::default()
                };
                // The receiver keeps the last value without a sender.
                let (_, shown) = watch::channel(shown);
                let board = &self.context.board;
                board.set_ingest(&self.channel, &url, Some(shown));
            }
        }
    }

    /// Restarts the intake of publications after a failure.
    fn note_publications(&mut self, failure: &JoinError) {
        if failure.is_cancelled() {
            return;
        }
        self.metrics.breakdowns.inc();
        self.breakdowns = self.breakdowns.saturating_add(1);
        let pause = RESTARTS.after(self.breakdowns);
        error!(
            channel = self.channel,
            %failure,
            retry_in = ?pause,
            "intake of publications failed, which is a bug of this program; restarting"
        );
        self.take_publications_after(pause);
    }

    /// Restarts the feeds that are due.
    fn restart_due(&mut self) {
        let now = Instant::now();
        let is_due = |known: &&FeedTask| known.again.is_some_and(|at| at <= now);
        let due = self.known.values().filter(is_due);
        let due: Vec<_> = due
            .map(|known| (known.row.clone(), known.breakdowns))
            .collect();
        for (row, breakdowns) in due {
            self.start(&row, breakdowns);
        }
    }

    /// Stops all ingests, with a time limit for work in progress.
    pub(super) async fn stop(&mut self) {
        for (url, known) in &self.known {
            known.stop.cancel();
            self.context.refreshes.set(&self.channel, url, None);
            self.context.board.set_ingest(&self.channel, url, None);
        }
        self.known.clear();
        self.running.clear();
        self.stopped.cancel();
        let all = async {
            while self.tasks.join_next().await.is_some() {}
            while self.publications.join_next().await.is_some() {}
        };
        if tokio::time::timeout(LAST_WORK, all).await.is_err() {
            self.tasks.shutdown().await;
            self.publications.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::super::context::PollSpacing;
    use crate::board::{Board, ChannelInfo};
    use store::{Fault, FaultRule, PollRecord, Store};

    use super::*;
    use crate::backlog::{OpenChannels, StoreBacklog};
    use crate::data::DataFolder;
    use crate::data::identity::Identity;
    use crate::ingest::{RefreshError, Reports};
    use crate::metrics::{Metrics, RecordMetrics};
    use crate::publish::LeaseTerms;

    /// For everything that should happen soon.
    const SOON: Duration = Duration::from_secs(120);

    async fn context(folder: &std::path::Path, store: Store) -> Arc<Context> {
        let url = "http://127.0.0.1:9/feed";
        let wanted = ["--feed", url, "--allow-private-feed", "--group", ""];
        let ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let config = crate::config::tests::config(&[wanted.as_slice(), &ports].concat()).unwrap();
        let folder = DataFolder::open(folder).unwrap();
        let identity = Identity::load_or_make(&folder, "localhost", None).unwrap();
        let open = OpenChannels::default();
        let backlog = StoreBacklog::new(store.clone(), open.clone());
        let source = super::super::bind(&config, &identity, backlog)
            .await
            .unwrap();
        Arc::new(Context {
            addresses: tokio::sync::watch::channel(Vec::new()).1,
            terms: LeaseTerms::default(),
            handle: source.handle(),
            folder,
            store,
            signer: Arc::new(signing::Signer::from_seed(&[1; 32]).unwrap()),
            open,
            board: Arc::new(Board::default()),
            metrics: Arc::new(Metrics::default()),
            limits: Arc::default(),
            first_polls: PollSpacing::default(),
            bounds: crate::ingest::Bounds::default(),
            refreshes: crate::ingest::Refreshes::default(),
            reports: Reports::new(tokio::sync::mpsc::channel(1).0, RecordMetrics::default()),
            config,
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_feed_that_is_gone_cannot_be_asked() {
        let outer = tempfile::tempdir().unwrap();
        let store = store::open_file(&outer.path().join("flexfeed.db"))
            .await
            .unwrap();
        store.channels().open("lore").await.unwrap();
        let feed = FeedSettings {
            url: "http://127.0.0.1:9/feed".into(),
            address: "http://127.0.0.1:9/feed".into(),
            local: true,
            ..FeedSettings::default()
        };
        store.feeds().put("lore", &feed).await.unwrap();
        let poll = PollRecord {
            at_ms: 1,
            state: "gone".into(),
            gone: true,
            ..PollRecord::default()
        };
        store
            .feeds()
            .record_poll("lore", &feed.url, &poll)
            .await
            .unwrap();
        let row = store.feeds().get("lore", &feed.url).await.unwrap().unwrap();
        let context = context(&outer.path().join("data"), store).await;
        let refreshes = context.refreshes.clone();
        let metrics = context.metrics.channel("lore");
        let wake = Arc::default();
        let mut feeds = Feeds::new(context, "lore", Uuid::nil(), None, wake, metrics);
        feeds.set(&[row]);
        assert!(refreshes.are_of("lore", &feed.url), "it was just begun");
        tokio::time::timeout(SOON, feeds.ended()).await.unwrap();
        let asked = refreshes.ask("lore", &feed.url);
        assert_eq!(asked, Err(RefreshError::NotPolled));
        feeds.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_ingest_is_restarted_and_shown() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("flexfeed.db");
        let store = store::open_file(&path).await.unwrap();
        let faults = store.faults().clone();
        store.channels().open("lore").await.unwrap();
        let feed = FeedSettings {
            url: "http://127.0.0.1:9/feed".into(),
            address: "http://127.0.0.1:9/feed".into(),
            local: true,
            ..FeedSettings::default()
        };
        let row = store.feeds().put("lore", &feed).await.unwrap();
        faults.inject(FaultRule::new(Fault::Panic).on(&["read a feed"]));
        let context = context(&outer.path().join("data"), store.clone()).await;
        let board = Arc::clone(&context.board);
        board.show("lore", ChannelInfo::default());
        board.set_feeds("lore", [(feed.url.clone(), None)]);
        let metrics = context.metrics.channel("lore");
        let mut feeds = Feeds::new(
            context,
            "lore",
            Uuid::nil(),
            None,
            Arc::default(),
            metrics.clone(),
        );
        feeds.set(std::slice::from_ref(&row));
        let shown = || {
            let channel = board.snapshot().channels.remove(0);
            channel.feeds[0].ingest.clone().unwrap().feed()
        };
        let next =
            async |feeds: &mut Feeds| tokio::time::timeout(SOON, feeds.ended()).await.unwrap();
        next(&mut feeds).await;
        let (state, detail) = shown();
        assert_eq!((state, metrics.breakdowns.get()), (FeedState::Error, 1));
        assert!(detail.contains("restarting in 1 s"), "{detail}");
        // Restarted, it fails again.
        next(&mut feeds).await;
        next(&mut feeds).await;
        assert_eq!(metrics.breakdowns.get(), 2);
        assert!(shown().1.contains("in 2 s"), "{}", shown().1);
        // Other feeds would go on meanwhile, and this one does once it can.
        faults.clear();
        next(&mut feeds).await;
        let polled = async {
            while !shown().1.contains("cannot") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, polled).await.unwrap();
        feeds.stop().await;
    }
}
