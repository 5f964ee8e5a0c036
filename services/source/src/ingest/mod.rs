//! From a feed to the store. One [`Ingest`] polls one feed and stores what is new in it; a channel
//! may have several. It publishes nothing: it wakes the channel's publisher.
//!
//! **Invariant:** a document's validators are stored with the last of its entries, so what was
//! fetched and could not be stored is fetched again.

mod bounds;
mod document;
mod filling;
mod finding;
mod hooks;
mod hourly;
mod late;
mod leftover;
mod pause;
mod polling;
mod prepare;
mod status;
mod storing;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use feed::fetch::{FetchConfig, Fetcher};
use feed::schedule::{self, Schedule};
use jiff::Timestamp;
use store::{FeedRow, FeedSettings, GapRecord, Store};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use crate::metrics::ChannelMetrics;
pub use bounds::{Bounds, Memory};
use document::{Before, Pending};
pub use filling::GapSettings;
use filling::Hole;
pub use hooks::{Hooks, NotAsked, PollReport, Refreshes, Reports};
use hourly::Hourly;
use late::Late;
use pause::Pause;
pub use status::{FeedState, GapStatus, IngestStatus};

/// While all feeds together hold too much, it is looked this often whether that is over.
const ROOM: Duration = Duration::from_secs(1);

/// What an ingest is for.
#[derive(Debug, Clone)]
pub struct IngestSettings {
    /// The channel's name.
    pub channel: String,
    /// The channel's incarnation.
    pub incarnation: Uuid,
    /// Of the channel's lease: once somebody else has it, nothing is stored any more.
    pub fence: Option<u64>,
    /// The feed. Its own limits for the time between polls go before those of `schedule`.
    pub feed: FeedSettings,
    /// How to fetch; the address and what it may lead to are the feed's.
    pub fetch: FetchConfig,
    /// When to poll.
    pub schedule: schedule::Settings,
    /// Before the first poll, so that several feeds are not all asked at once.
    pub first_poll: Duration,
    /// Before the first further attempt to store what could not be stored.
    pub store_retry: Duration,
    /// The search for entries that the feed's documents did not have.
    pub gaps: GapSettings,
    /// How much is kept.
    pub bounds: Bounds,
    /// What others want of it.
    pub hooks: Hooks,
}

/// Why an ingest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// Somebody else publishes the channel now.
    Fenced,
    /// The feed is gone for good. This is recorded with the feed.
    Gone,
}

/// Polls one feed into one channel.
pub struct Ingest {
    settings: IngestSettings,
    store: Arc<dyn Store>,
    wake: Arc<Notify>,
    metrics: ChannelMetrics,
    status: watch::Sender<IngestStatus>,
    /// Made when it is needed, anew when the address changes.
    fetcher: Option<Arc<Fetcher>>,
    /// Where the feed has moved, if that is where it is fetched from.
    moved: Option<String>,
    /// A new address that is still to be recorded.
    moving: Option<String>,
    schedule: Schedule,
    /// Of the last document that was fetched.
    asked: feed::fetch::Validators,
    /// Of the last document that was stored.
    validators: store::Validators,
    /// What was fetched and is not stored yet.
    pending: Pending,
    storing: Pause,
    /// When to try again to store what could not be stored.
    retry_at: Instant,
    history: History,
    /// A gap whose filling failed and is tried again.
    hole: Option<Hole>,
    /// A gap that an earlier ingest of the feed left unfilled.
    left: Option<GapRecord>,
    /// Entries that come with old dates.
    late: Late,
    /// How to get entries that are older than those of the last document.
    backfill: Option<feed::gap::Backfill>,
    /// Requests for pages with older entries.
    pages: Arc<Hourly>,
    /// When it was looked last for entries that need not be known any more.
    tidied: Instant,
    /// The last trouble that was logged, while it lasts.
    trouble: Option<(FeedState, String)>,
    /// What could not be read in the last document.
    unreadable: Vec<String>,
    /// Ids and hashes of entries in the last document that are too large.
    oversized: HashSet<(String, [u8; 32])>,
    /// Ids of entries among the last ones that this program has a mistake with.
    broken: HashSet<String>,
    /// When and how the state of the feed was last recorded.
    recorded: Option<(Instant, FeedState)>,
    /// New versions of entries that the last poll brought.
    brought: u64,
    /// What the last poll saw instead of a feed.
    excerpt: Option<String>,
}

/// What is known of earlier documents, to notice that entries may have been missed in between.
#[derive(Debug)]
enum History {
    /// This feed was never read.
    None,
    /// It was, before this start, last at this time: the store knows its entries.
    Stored(Option<Timestamp>),
    /// The last document that had entries.
    Seen(Before),
}

impl Ingest {
    /// An ingest that will go on where the store says that the last one ended. Does nothing yet.
    pub fn new(
        settings: IngestSettings,
        store: Arc<dyn Store>,
        wake: Arc<Notify>,
        metrics: ChannelMetrics,
    ) -> Self {
        let status = IngestStatus {
            detail: "not polled yet".into(),
            ..IngestStatus::default()
        };
        Self {
            store,
            wake,
            metrics,
            status: watch::Sender::new(status),
            fetcher: None,
            moved: None,
            moving: None,
            schedule: Schedule::new(intervals(&settings), None, rand::random()),
            asked: feed::fetch::Validators::default(),
            validators: store::Validators::default(),
            pending: Pending::new(Arc::clone(&settings.bounds.memory)),
            storing: Pause::new(settings.store_retry),
            retry_at: Instant::now(),
            history: History::None,
            hole: None,
            left: None,
            late: Late::default(),
            backfill: None,
            pages: Arc::new(Hourly::new(finding::PAGES_PER_HOUR)),
            tidied: Instant::now(),
            trouble: None,
            unreadable: Vec::new(),
            oversized: HashSet::new(),
            broken: HashSet::new(),
            recorded: None,
            brought: 0,
            excerpt: None,
            settings,
        }
    }

    /// Follows the ingest from outside.
    pub fn status(&self) -> watch::Receiver<IngestStatus> {
        self.status.subscribe()
    }

    /// Polls until `stop`, or until there is no point in it any more. It may stop anywhere: the
    /// store then holds a document's part wholly or not at all, and the next start goes on from
    /// there.
    pub async fn run(mut self, stop: CancellationToken) -> Ended {
        let ended = stop.run_until_cancelled(self.work()).await;
        ended.unwrap_or(Ended::Stopped)
    }

    async fn work(&mut self) -> Ended {
        if self.begin().await.gone_ms.is_some() {
            let detail = format!("the feed at {} is gone for good", self.settings.feed.url);
            self.status.send_modify(|status| {
                status.state = FeedState::Gone;
                status.detail = detail;
            });
            return Ended::Gone;
        }
        // What an earlier ingest stored may still have to be published.
        self.wake.notify_one();
        tokio::time::sleep(self.settings.first_poll).await;
        let refresh = Arc::clone(&self.settings.hooks.refresh);
        let mut poll_next = Instant::now();
        loop {
            let now = Instant::now();
            if now >= poll_next && self.pending.has_room() {
                match self.turn().await {
                    Ok(pause) => {
                        debug!("the next poll is in {:.3} s", pause.as_secs_f64());
                        poll_next = Instant::now() + pause;
                    }
                    Err(ended) => return ended,
                }
            } else if !self.pending.is_empty()
                && now >= self.retry_at
                && let Err(ended) = self.store_pending().await
            {
                return ended;
            } else if self.hole_due().is_some_and(|due| now >= due)
                && let Err(ended) = self.fill_again().await
            {
                return ended;
            } else if self.late_due().is_some_and(|due| now >= due) {
                self.begin_late_look();
            }
            let retry_at = (!self.pending.is_empty()).then_some(self.retry_at);
            let poll_at = self.pending.has_room().then_some(poll_next);
            let gaps = self.hole_due().into_iter().chain(self.late_due());
            let next = retry_at.into_iter().chain(poll_at).chain(gaps).min();
            // Where there is none, others use up the memory.
            tokio::select! {
                () = tokio::time::sleep_until(next.unwrap_or(now + ROOM).into()) => {}
                () = refresh.notified() => poll_next = Instant::now(),
                look = self.late.looked() => {
                    if let Err(ended) = self.take_late_look(look).await {
                        return ended;
                    }
                }
            }
        }
    }

    /// Reads what is known of the feed, however long that takes.
    async fn begin(&mut self) -> FeedRow {
        let (channel, url) = (
            self.settings.channel.clone(),
            self.settings.feed.url.clone(),
        );
        let row = loop {
            match self.store.feed(&channel, &url).await {
                Ok(row) => break row,
                Err(error) => {
                    let pause = self.store_failed(&error);
                    tokio::time::sleep(pause).await;
                }
            }
        };
        self.store_works();
        let Some(row) = row else {
            return self.unknown();
        };
        self.asked = feed::fetch::Validators {
            etag: row.validators.etag.clone(),
            last_modified: row.validators.last_modified.clone(),
        };
        self.validators = row.validators.clone();
        let good = [FeedState::Ok.word(), FeedState::NotModified.word()];
        let last_poll = row.last_poll.as_ref();
        let last_success = last_poll.filter(|poll| good.contains(&poll.state.as_str()));
        let last_success = last_success.map(|poll| poll.at_ms);
        if last_success.is_some() || self.asked != feed::fetch::Validators::default() {
            let at = last_success.or(last_poll.map(|poll| poll.at_ms));
            let at = at.and_then(|ms| Timestamp::from_millisecond(ms).ok());
            self.history = History::Stored(at);
        }
        let interval = row.interval_ms.and_then(|ms| u64::try_from(ms).ok());
        let interval = interval.map(Duration::from_millis);
        self.schedule = Schedule::new(intervals(&self.settings), interval, rand::random());
        self.moved = row.moved_to.clone().filter(|to| *to != url);
        let gap = self.take_up_gap().await;
        self.status.send_modify(|status| {
            status.last_success_ms = last_success.and_then(|ms| u64::try_from(ms).ok());
            status.moved_to.clone_from(&row.moved_to);
            status.gap = gap.as_ref().map(filling::shown);
        });
        row
    }

    /// A feed that the store does not know.
    fn unknown(&self) -> FeedRow {
        FeedRow {
            channel: self.settings.channel.clone(),
            settings: self.settings.feed.clone(),
            active: true,
            validators: store::Validators::default(),
            moved_to: None,
            gone_ms: None,
            last_poll: None,
            interval_ms: None,
            paused: false,
        }
    }
}

/// The feed's own limits for the time between polls, or the general ones.
fn intervals(settings: &IngestSettings) -> schedule::Settings {
    let (feed, general) = (&settings.feed, settings.schedule);
    let time = |ms: Option<i64>| {
        let ms = ms.and_then(|ms| u64::try_from(ms).ok());
        ms.filter(|ms| *ms > 0).map(Duration::from_millis)
    };
    let (min, max) = (time(feed.min_interval_ms), time(feed.max_interval_ms));
    let own = min.is_some() || max.is_some();
    schedule::Settings {
        min: min.unwrap_or(general.min).min(max.unwrap_or(Duration::MAX)),
        max: max.unwrap_or(general.max),
        fixed: general.fixed.filter(|_| !own),
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or_default()
}
