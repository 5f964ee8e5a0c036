//! From the feed to the store, and from the store to the transport.
//!
//! **Invariant:** nothing is published before it is stored and the head mark is raised to it,
//! everything stored is published once, in the order of its seqs. What a crash leaves stored and
//! unpublished, receivers fetch as backlog.

mod pause;
mod prepare;
mod status;
mod storing;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use feed::fetch::{FetchError, Fetcher, Poll};
use feed::parse::ParseError;
use store::{HeadMark, PollRecord, Store, StoreError, Validators};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::metrics::ChannelMetrics;
use crate::transport::Transport;
use pause::Pause;
pub use status::{FeedState, IngestStatus};

/// An unchanged state of the feed is recorded in the store this often: each time is a write to disk.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// Entries that cannot be read are named in the log up to this many at a time.
const NAMED: usize = 5;

/// What an ingest is for.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The channel's name.
    pub channel: String,
    /// The channel's incarnation.
    pub incarnation: Uuid,
    /// The last seq in the store; what comes after it is published.
    pub head: u64,
    /// The oldest seq in the store.
    pub first: u64,
    /// So many updates are kept; 0 for all.
    pub retention: u64,
    /// The feed's address without credentials: in events, logs and the store.
    pub url: String,
    /// Before the first poll, so that several feeds are not all asked at once.
    pub first_poll: Duration,
    /// Between two polls.
    pub poll_interval: Duration,
    /// Before the first further attempt to store what could not be stored.
    pub store_retry: Duration,
}

/// Polls one feed into one channel.
pub struct Ingest {
    settings: Settings,
    fetcher: Fetcher,
    store: Arc<dyn Store>,
    mark: HeadMark,
    transport: Arc<dyn Transport>,
    metrics: ChannelMetrics,
    status: watch::Sender<IngestStatus>,
    /// Of the last document that was stored.
    validators: Validators,
    /// The last seq that was handed to the transport, or was stored when this began.
    published: u64,
    polls: Pause,
    storing: Pause,
    history: History,
    /// The last trouble that was logged, while it lasts.
    trouble: Option<(FeedState, String)>,
    /// What could not be read in the last document.
    unreadable: Vec<String>,
    /// Ids and hashes of entries in the last document that are too large.
    oversized: HashSet<(String, [u8; 32])>,
    /// When and how the state of the feed was last recorded.
    recorded: Option<(Instant, FeedState)>,
}

/// What is known of earlier documents, to notice that entries may have been missed in between.
#[derive(Debug)]
enum History {
    /// This feed was never read.
    None,
    /// It was, before this start: the store knows its entries.
    Stored,
    /// The ids in the last document.
    Ids(HashSet<String>),
}

/// What a good poll brought.
struct Taken {
    state: FeedState,
    detail: String,
}

/// Why a poll brought nothing.
struct Trouble {
    state: FeedState,
    /// In a sentence that names the feed.
    detail: String,
    retry_after: Option<Duration>,
}

impl Ingest {
    /// Goes on where the store says that the last one ended. `mark` is the channel's, from whose
    /// adoption the settings come.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn new(
        settings: Settings,
        fetcher: Fetcher,
        store: Arc<dyn Store>,
        mark: HeadMark,
        transport: Arc<dyn Transport>,
        metrics: ChannelMetrics,
    ) -> Result<Self, StoreError> {
        let feed = store.feed(&settings.channel, &settings.url).await?;
        let good = [FeedState::Ok.word(), FeedState::NotModified.word()];
        let last_poll = feed.as_ref().and_then(|feed| feed.last_poll.as_ref());
        let last_success = last_poll.filter(|poll| good.contains(&poll.state.as_str()));
        let was_read = last_success.is_some()
            || feed
                .as_ref()
                .is_some_and(|feed| feed.validators != Validators::default());
        let status = IngestStatus {
            head: settings.head,
            first: settings.first,
            detail: "not polled yet".into(),
            last_success_ms: last_success.and_then(|poll| u64::try_from(poll.at_ms).ok()),
            ..IngestStatus::default()
        };
        Ok(Self {
            fetcher,
            store,
            mark,
            transport,
            metrics,
            status: watch::Sender::new(status),
            validators: feed.map(|feed| feed.validators).unwrap_or_default(),
            published: settings.head,
            polls: Pause::new(settings.poll_interval),
            storing: Pause::new(settings.store_retry),
            history: if was_read {
                History::Stored
            } else {
                History::None
            },
            trouble: None,
            unreadable: Vec::new(),
            oversized: HashSet::new(),
            recorded: None,
            settings,
        })
    }

    /// Follows the ingest from outside.
    pub fn status(&self) -> watch::Receiver<IngestStatus> {
        self.status.subscribe()
    }

    /// Polls until `stop`. It may stop anywhere: the store then holds a document's part wholly or
    /// not at all, and the next start goes on from there.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            tokio::time::sleep(self.settings.first_poll).await;
            loop {
                let pause = self.turn().await;
                debug!("the next poll is in {:.3} s", pause.as_secs_f64());
                tokio::time::sleep(pause).await;
            }
        })
        .await;
    }

    /// One poll and what follows from it. Returns the time until the next one.
    async fn turn(&mut self) -> Duration {
        let polled = self.poll().await;
        let result = match &polled {
            Ok(taken) => taken.state,
            Err(trouble) => trouble.state,
        };
        self.metrics.polled(result);
        match polled {
            Ok(taken) => {
                let failures = self.polls.succeeded();
                if self.trouble.take().is_some() {
                    info!(
                        "the feed at {} is back after {failures} failed polls: {}",
                        self.settings.url, taken.detail
                    );
                }
                self.show(taken.state, taken.detail).await;
                self.polls.next(None)
            }
            Err(trouble) => {
                self.polls.failed();
                let pause = self.polls.next(trouble.retry_after);
                let seen = (trouble.state, trouble.detail);
                if self.trouble.as_ref() != Some(&seen) {
                    warn!(
                        "{}; the next attempt is in {:.1} s",
                        seen.1,
                        pause.as_secs_f64()
                    );
                    self.trouble = Some(seen.clone());
                }
                self.show(seen.0, seen.1).await;
                pause
            }
        }
    }

    async fn poll(&mut self) -> Result<Taken, Trouble> {
        let validators = feed::fetch::Validators {
            etag: self.validators.etag.clone(),
            last_modified: self.validators.last_modified.clone(),
        };
        let began = Instant::now();
        let polled = self.fetcher.poll(&validators).await;
        self.metrics
            .poll_seconds
            .observe(began.elapsed().as_secs_f64());
        let (document, validators, url) = match polled? {
            Poll::NotModified { .. } => {
                return Ok(Taken {
                    state: FeedState::NotModified,
                    detail: "unchanged since the poll before".into(),
                });
            }
            Poll::Fetched {
                document,
                validators,
                url,
                ..
            } => (document, validators, url),
        };
        let parsed = tokio::task::spawn_blocking(move || feed::parse::parse(&document, &url))
            .await
            .map_err(|error| self.unreadable_document(&format!("could not be parsed: {error}")))?
            .map_err(|error| self.no_feed(&error))?;
        self.name_unreadable(parsed.skipped);
        if matches!(self.history, History::None) {
            info!(
                "the feed at {} answers: {:?} with {} entries",
                self.settings.url,
                parsed.title.as_deref().unwrap_or("(without a title)"),
                parsed.entries.len()
            );
        }
        let validators = Validators {
            etag: validators.etag,
            last_modified: validators.last_modified,
        };
        Ok(self.take_in(parsed.entries, validators).await)
    }

    /// What to say about a document that is not a feed.
    fn no_feed(&self, error: &ParseError) -> Trouble {
        match error {
            ParseError::NotAFeed { seen, challenge } => Trouble {
                state: if *challenge {
                    FeedState::Challenged
                } else {
                    FeedState::NotAFeed
                },
                detail: format!(
                    "the feed at {} answered with {seen}, not a feed",
                    self.settings.url
                ),
                retry_after: None,
            },
            other => self.unreadable_document(&format!("answered with {other}")),
        }
    }

    fn unreadable_document(&self, what: &str) -> Trouble {
        Trouble {
            state: FeedState::Error,
            detail: format!("the feed at {} {what}", self.settings.url),
            retry_after: None,
        }
    }

    /// Logs entries that were passed over, once for as long as they stay the same.
    fn name_unreadable(&mut self, skipped: Vec<String>) {
        if skipped == self.unreadable {
            return;
        }
        for line in skipped.iter().take(NAMED) {
            warn!("passed over in the feed at {}: {line}", self.settings.url);
        }
        if let Some(more) = skipped.len().checked_sub(NAMED).filter(|&more| more > 0) {
            warn!("… and {more} more");
        }
        self.unreadable = skipped;
    }

    /// Lets the world know how the last poll went.
    async fn show(&mut self, state: FeedState, detail: String) {
        let at_ms = now_ms();
        self.status.send_modify(|status| {
            status.feed = state;
            status.detail.clone_from(&detail);
            status.last_poll_ms = Some(at_ms);
            if state.is_good() {
                status.last_success_ms = Some(at_ms);
            }
        });
        let due = self.recorded.is_none_or(|(at, recorded)| {
            recorded.is_good() != state.is_good() || at.elapsed() >= RECORD_INTERVAL
        });
        if !due {
            return;
        }
        self.recorded = Some((Instant::now(), state));
        let poll = PollRecord {
            at_ms: i64::try_from(at_ms).unwrap_or(i64::MAX),
            state: state.word().to_owned(),
            detail,
            ..PollRecord::default()
        };
        let (channel, url) = (&self.settings.channel, &self.settings.url);
        if let Err(error) = self.store.record_poll(channel, url, &poll).await {
            debug!("the poll could not be recorded: {error}");
        }
    }
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        let remedy = match &error {
            FetchError::Private { .. } => " (--allow-private-feed)",
            _ => "",
        };
        Trouble {
            state: if error.is_challenge() {
                FeedState::Challenged
            } else {
                FeedState::Error
            },
            detail: format!("{error}{remedy}"),
            retry_after: error.retry_after(),
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or_default()
}
