//! Intake of a feed into the store. One [`Ingest`] polls one feed and stores the changes in it; a
//! channel may have several. An ingest publishes nothing: it wakes the channel's publisher.
//!
//! **Invariant:** a document's validators are stored with the last of its entries, so a document
//! that could not be stored is fetched again.

mod bounds;
mod changes;
mod client;
mod document;
mod feed_gap;
mod gap;
mod hooks;
mod intake;
mod late_arrivals;
mod left_gap;
mod poll;
mod problems;
mod publications;
mod rate_limit;
mod search;
mod store_retries;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use feed::fetch::FetchConfig;
use feed::schedule::{self, Schedule};
use jiff::Timestamp;
use signing::Signer;
use store::{FeedRow, FeedSettings, Store};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use crate::metrics::ChannelMetrics;
use crate::status::{FeedState, IngestStatus};
pub use bounds::{Bounds, Memory};
use client::FeedClient;
use document::{DocumentSummary, Pending};
pub use gap::GapSettings;
use gap::Gaps;
pub use hooks::{Hooks, PollReport, RefreshError, Refreshes, Reports};
use problems::Problems;
pub use publications::{PublicationIntake, PublicationSettings};
use store_retries::StoreRetries;

/// Interval of checks whether all feeds together still hold too much.
const ROOM: Duration = Duration::from_secs(1);

/// Settings of one ingest.
#[derive(Debug, Clone)]
pub struct IngestSettings {
    /// Name of the channel.
    pub channel: String,
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Fence of the channel's lease: once another source has the lease, nothing is stored any more.
    pub fence: Option<u64>,
    /// Key that signs the updates, whose era in the channel has begun; `None` leaves them unsigned.
    pub signer: Option<Arc<Signer>>,
    /// Time in ms after which an update expires; 0 for a log. It may change at any time, and
    /// counts for the updates that are stored from then on.
    pub deadline_ms: Arc<AtomicU64>,
    /// The feed. Its own limits for the time between polls take precedence over those of
    /// `schedule`.
    pub feed: FeedSettings,
    /// Settings of the fetcher; address and allowed networks are those of the feed.
    pub fetch: FetchConfig,
    /// Limits of the poll schedule.
    pub schedule: schedule::Settings,
    /// Delay of the first poll, so that several feeds are not all polled at once.
    pub first_poll: Duration,
    /// Delay of the first retry after a failure of the store.
    pub store_retry: Duration,
    /// Search for entries that the feed's documents did not have.
    pub gaps: GapSettings,
    /// Bounds on retained data.
    pub bounds: Bounds,
    /// Connections to other parts.
    pub hooks: Hooks,
}

/// Reason for the end of an ingest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// Shutdown was requested.
    Stopped,
    /// Another source publishes the channel now.
    Fenced,
    /// The feed is permanently gone. This is recorded with the feed.
    Gone,
}

/// Ingest of one feed into one channel.
pub struct Ingest {
    settings: IngestSettings,
    store: Store,
    wake: Arc<Notify>,
    metrics: ChannelMetrics,
    status: watch::Sender<IngestStatus>,
    client: FeedClient,
    schedule: Schedule,
    /// Validators of the last document that was stored.
    validators: store::Validators,
    /// Documents that are fetched and not stored yet.
    pending: Pending,
    storing: StoreRetries,
    history: History,
    gaps: Gaps,
    /// Time of the last removal of known entries.
    tidied: Instant,
    problems: Problems,
    /// Time and state of the last recorded poll.
    recorded: Option<(Instant, FeedState)>,
}

/// Knowledge of earlier documents, to notice that entries may have been missed in between.
#[derive(Debug)]
enum History {
    /// The feed was never read.
    None,
    /// The feed was read before this start, last at this time: the store knows its entries.
    Stored(Option<Timestamp>),
    /// Last document that had entries.
    Seen(DocumentSummary),
}

impl Ingest {
    /// Returns an ingest that resumes from the state in the store. Does nothing yet.
    pub fn new(
        settings: IngestSettings,
        store: Store,
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
            client: FeedClient::default(),
            schedule: Schedule::new(intervals(&settings), None, rand::random()),
            validators: store::Validators::default(),
            pending: Pending::new(Arc::clone(&settings.bounds.memory)),
            storing: StoreRetries::new(settings.store_retry),
            history: History::None,
            gaps: Gaps::default(),
            tidied: Instant::now(),
            problems: Problems::default(),
            recorded: None,
            settings,
        }
    }

    /// Returns a receiver of the ingest's status.
    pub fn status(&self) -> watch::Receiver<IngestStatus> {
        self.status.subscribe()
    }

    /// Polls until `stop`, or until polling is pointless. Cancellation is safe anywhere: the store
    /// then holds each part of a document wholly or not at all, and the next start resumes from
    /// there.
    pub async fn run(mut self, stop: CancellationToken) -> EndReason {
        let ended = stop.run_until_cancelled(self.work()).await;
        ended.unwrap_or(EndReason::Stopped)
    }

    async fn work(&mut self) -> EndReason {
        if self.begin().await.gone_ms.is_some() {
            let detail = format!("the feed at {} is gone for good", self.settings.feed.url);
            self.status.send_modify(|status| {
                status.state = FeedState::Gone;
                status.detail = detail;
            });
            return EndReason::Gone;
        }
        // Entries that an earlier ingest stored may still have to be published.
        self.wake.notify_one();
        tokio::time::sleep(self.settings.first_poll).await;
        let refresh = Arc::clone(&self.settings.hooks.refresh);
        let mut poll_next = Instant::now();
        loop {
            let now = Instant::now();
            if now >= poll_next && self.pending.has_room() {
                match self.poll_once().await {
                    Ok(pause) => {
                        debug!(?pause, "next poll scheduled");
                        poll_next = Instant::now() + pause;
                    }
                    Err(ended) => return ended,
                }
            } else if !self.pending.is_empty()
                && now >= self.storing.due
                && let Err(ended) = self.store_pending().await
            {
                return ended;
            } else if self.gap_due().is_some_and(|due| now >= due)
                && let Err(ended) = self.fill_again().await
            {
                return ended;
            } else if self.late_due().is_some_and(|due| now >= due) {
                self.start_late_search();
            }
            let retry_at = (!self.pending.is_empty()).then_some(self.storing.due);
            let poll_at = self.pending.has_room().then_some(poll_next);
            let gaps = self.gap_due().into_iter().chain(self.late_due());
            let next = retry_at.into_iter().chain(poll_at).chain(gaps).min();
            // Without pending documents of this feed, others use up the memory.
            tokio::select! {
                () = tokio::time::sleep_until(next.unwrap_or(now + ROOM).into()) => {}
                () = refresh.notified() => poll_next = Instant::now(),
                look = self.gaps.late.next_result() => {
                    if let Err(ended) = self.finish_late_search(look).await {
                        return ended;
                    }
                }
            }
        }
    }

    /// Reads the stored state of the feed, however long that takes.
    async fn begin(&mut self) -> FeedRow {
        let (channel, url) = (
            self.settings.channel.clone(),
            self.settings.feed.url.clone(),
        );
        let row = loop {
            match self.store.feeds().get(&channel, &url).await {
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
        self.client.validators = feed::fetch::Validators {
            etag: row.validators.etag.clone(),
            last_modified: row.validators.last_modified.clone(),
        };
        self.validators = row.validators.clone();
        let good = [FeedState::Ok.word(), FeedState::NotModified.word()];
        let last_poll = row.last_poll.as_ref();
        let last_success = last_poll.filter(|poll| good.contains(&poll.state.as_str()));
        let last_success = last_success.map(|poll| poll.at_ms);
        if last_success.is_some() || self.client.validators != feed::fetch::Validators::default() {
            let at = last_success.or(last_poll.map(|poll| poll.at_ms));
            let at = at.and_then(|ms| Timestamp::from_millisecond(ms).ok());
            self.history = History::Stored(at);
        }
        let interval = row.interval_ms.and_then(|ms| u64::try_from(ms).ok());
        let interval = interval.map(Duration::from_millis);
        self.schedule = Schedule::new(intervals(&self.settings), interval, rand::random());
        self.client.moved = row.moved_to.clone().filter(|to| *to != url);
        let gap = self.resume_gap().await;
        self.status.send_modify(|status| {
            status.last_success_ms = last_success.and_then(|ms| u64::try_from(ms).ok());
            status.moved_to.clone_from(&row.moved_to);
            status.gap = gap.as_ref().map(gap::shown);
        });
        row
    }

    /// Returns the row of a feed that the store does not know.
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

/// Returns the feed's own limits for the time between polls, or the general ones.
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
