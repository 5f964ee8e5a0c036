//! Polls of the feed, and their status.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feed::fetch::{FetchConfig, FetchError, Fetcher, Hints, Poll};
use feed::gap::Backfill;
use feed::parse::{ParseError, ParsedFeed};
use feed::schedule::{Outcome, PollStats};
use jiff::Timestamp;
use store::{PollRecord, Validators};
use tracing::{debug, info, warn};

use super::document::{Document, DocumentSummary};
use super::intake::IntakeStats;
use super::{EndReason, History, Ingest, PollReport, hooks};
use crate::clock::now_ms;
use crate::status::FeedState;

/// Shortest interval between records of an unchanged state in the store: each one is a write to
/// disk. A longer wait is recorded in any case, to show the time of the next poll.
const RECORD_INTERVAL: Duration = Duration::from_secs(20);

/// Largest number of unreadable entries that are named in the log at a time.
const NAMED: usize = 5;

/// Consecutive failures at the new address of a feed after which its own address is polled again.
const MOVE_FAILURES: u32 = 3;

/// Result of a successful poll.
enum PollResult {
    NotModified(Hints),
    /// Document, and the interval of changes that the feed states.
    Document(Box<Document>, Hints, Option<Duration>),
}

/// Failed poll.
struct PollFailure {
    state: FeedState,
    /// Sentence that names the feed.
    detail: String,
    retry_after: Option<Duration>,
}

impl Ingest {
    /// Polls once and processes the result. Returns the time until the next poll.
    pub(super) async fn poll_once(&mut self) -> Result<Duration, EndReason> {
        (self.brought, self.excerpt) = (0, None);
        let polled = self.poll().await;
        let (state, detail, outcome, moved) = match polled {
            Ok(PollResult::NotModified(hints)) => {
                let detail = "unchanged since the poll before".to_owned();
                let read = read(&hints, None);
                let outcome = Outcome::Read(read);
                (FeedState::NotModified, detail, outcome, hints.moved_to)
            }
            Ok(PollResult::Document(document, hints, ttl)) => {
                let (detail, outcome) = self.take(*document, read(&hints, ttl)).await?;
                (FeedState::Ok, detail, outcome, hints.moved_to)
            }
            Err(trouble) => {
                let retry_after = trouble.retry_after;
                let outcome = Outcome::Failed { retry_after };
                (trouble.state, trouble.detail, outcome, None)
            }
        };
        self.metrics.polled(state);
        let failures = self.schedule.failures();
        let pause = self.schedule.next(outcome, Instant::now());
        if state.is_good() {
            if self.trouble.take().is_some() {
                let url = &self.settings.feed.url;
                info!(feed = %url, failures, detail, "feed recovered");
            }
            self.fill_again().await?;
            self.remove_old_entries().await;
        } else {
            self.log_failure(state, &detail, pause);
        }
        let gone = state == FeedState::Gone;
        let back = !state.is_good() && self.revert_move(gone);
        let gone = gone && !back;
        if let Some(to) = moved {
            self.record_move(to);
        } else if back {
            self.moving = Some(self.settings.feed.url.clone());
        }
        let state = if back && state == FeedState::Gone {
            FeedState::Error
        } else {
            state
        };
        let recorded = self.show(state, detail, pause, gone).await;
        // The ingest ends only after the fact is recorded for later starts.
        if gone && recorded {
            Err(EndReason::Gone)
        } else {
            Ok(pause)
        }
    }

    /// Processes a document, if the store is available. Returns a description of the result, and
    /// its effect on the next poll.
    async fn take(
        &mut self,
        document: Document,
        mut read: PollStats,
    ) -> Result<(String, Outcome), EndReason> {
        let count = document.entries.len();
        read.window = count;
        read.span = document.seen.span();
        // If the document cannot be stored yet, this is the number of new entries.
        read.new = match &self.history {
            History::Seen(before) => document.seen.ids.difference(&before.ids).count(),
            History::None | History::Stored(_) => count,
        };
        self.pending.push(document);
        // A failing store may take long to respond, and must not delay the feed.
        let taken = if self.storing.is_failing() && Instant::now() < self.retry_at {
            None
        } else {
            self.store_pending().await?
        };
        let detail = match taken {
            Some(IntakeStats {
                created,
                changed,
                gap,
            }) => {
                (read.new, read.gap) = (created, gap);
                self.brought = (created + changed) as u64;
                format!("{count} entries, {created} of them new, {changed} changed")
            }
            None => format!("{count} entries, kept until they can be stored"),
        };
        Ok((detail, Outcome::Read(read)))
    }

    async fn poll(&mut self) -> Result<PollResult, PollFailure> {
        let fetcher = self.fetcher()?;
        let began = Instant::now();
        let polled = fetcher.poll(&self.asked).await;
        self.metrics
            .poll_seconds
            .observe(began.elapsed().as_secs_f64());
        let (document, validators, url, charset, hints) = match polled? {
            Poll::NotModified { hints } => return Ok(PollResult::NotModified(hints)),
            Poll::Fetched {
                document,
                validators,
                url,
                charset,
                hints,
            } => (document, validators, url, charset, hints),
        };
        let parsing = tokio::task::spawn_blocking(move || {
            let parsed = feed::parse::parse_served(&document, &url, charset.as_deref());
            parsed.map_err(|error| (error, hooks::excerpt(&document)))
        });
        let parsed = parsing
            .await
            .map_err(|error| self.unreadable_document(&format!("could not be parsed: {error}")))?;
        let parsed = parsed.map_err(|(error, excerpt)| {
            self.excerpt = excerpt;
            self.no_feed(&error)
        })?;
        self.log_unreadable(&parsed.remarks());
        if matches!(self.history, History::None) {
            info!(
                feed = %self.settings.feed.url,
                title = parsed.title.as_deref().unwrap_or_default(),
                entries = parsed.entries.len(),
                "first document of the feed"
            );
        }
        let ttl = parsed.interval;
        self.asked = validators;
        let document = self.document(parsed);
        Ok(PollResult::Document(Box::new(document), hints, ttl))
    }

    fn document(&mut self, parsed: ParsedFeed) -> Document {
        let backfill = Backfill::of(self.address(), &parsed);
        self.backfill.clone_from(&backfill);
        if let Some(title) = &parsed.title {
            self.status.send_if_modified(|status| {
                let news = status.title.as_ref() != Some(title);
                status.title = Some(title.clone());
                news
            });
        }
        Document {
            seen: DocumentSummary::of(&parsed.entries, Some(Timestamp::now())),
            entries: parsed.entries,
            validators: Validators {
                etag: self.asked.etag.clone(),
                last_modified: self.asked.last_modified.clone(),
            },
            continues: false,
            backfill,
            gap: None,
            news: None,
            stored: 0,
            again: false,
        }
    }

    /// Returns the address that the feed is fetched from, for messages.
    pub(super) fn address(&self) -> &str {
        self.moved.as_deref().unwrap_or(&self.settings.feed.url)
    }

    /// Returns the fetcher for the current address.
    pub(super) fn fetcher(&mut self) -> Result<Arc<Fetcher>, FetchError> {
        if let Some(fetcher) = &self.fetcher {
            return Ok(Arc::clone(fetcher));
        }
        let feed = &self.settings.feed;
        let moved = self.moved.as_deref();
        let moved = moved.and_then(|to| feed::fetch::moved(&feed.address, to));
        let config = FetchConfig {
            url: moved.unwrap_or_else(|| feed.address.clone()),
            allow_private: feed.local,
            ..self.settings.fetch.clone()
        };
        let fetcher = Arc::new(Fetcher::new(config)?);
        self.fetcher = Some(Arc::clone(&fetcher));
        Ok(fetcher)
    }

    /// Records that the feed moved permanently. The new address is used from the next start on:
    /// until then its own redirects there.
    fn record_move(&mut self, to: String) {
        if to == self.address() || self.status.borrow().moved_to.as_deref() == Some(&to) {
            return;
        }
        info!(feed = %self.settings.feed.url, %to, "feed moved permanently");
        self.moving = Some(to);
    }

    /// Returns to the feed's own address if the one that it moved to fails. Returns whether that is
    /// so.
    fn revert_move(&mut self, gone: bool) -> bool {
        if self.moved.is_none() || !(gone || self.schedule.failures() >= MOVE_FAILURES) {
            return false;
        }
        if let Some(moved) = self.moved.take() {
            let feed = &self.settings.feed.url;
            warn!(%feed, %moved, "new address of the feed failed; returning to the original one");
        }
        self.fetcher = None;
        true
    }

    /// Describes a document that is not a feed.
    fn no_feed(&self, error: &ParseError) -> PollFailure {
        match error {
            ParseError::NotAFeed { seen, challenge } => PollFailure {
                state: if *challenge {
                    FeedState::Challenged
                } else {
                    FeedState::NotAFeed
                },
                detail: format!(
                    "the feed at {} answered with {seen}, not a feed",
                    self.settings.feed.url
                ),
                retry_after: None,
            },
            other => self.unreadable_document(&format!("answered with {other}")),
        }
    }

    fn unreadable_document(&self, what: &str) -> PollFailure {
        PollFailure {
            state: FeedState::Error,
            detail: format!("the feed at {} {what}", self.settings.feed.url),
            retry_after: None,
        }
    }

    /// Logs skipped entries, once for as long as they stay the same.
    fn log_unreadable(&mut self, skipped: &[String]) {
        if skipped == self.unreadable {
            return;
        }
        let url = &self.settings.feed.url;
        for line in skipped.iter().take(NAMED) {
            warn!(feed = %url, reason = line, "entry skipped: unreadable");
        }
        if let Some(more) = skipped.len().checked_sub(NAMED).filter(|&more| more > 0) {
            warn!(feed = %url, more, "further entries skipped");
        }
        self.unreadable = skipped.to_vec();
    }

    /// Logs a failed poll, once for as long as the reason stays the same.
    fn log_failure(&mut self, state: FeedState, detail: &str, pause: Duration) {
        let trouble = (state, detail.to_owned());
        if self.trouble.as_ref() == Some(&trouble) {
            return;
        }
        match state {
            FeedState::Gone if self.moved.is_none() => {
                warn!(
                    detail,
                    "feed gone; no further polls until it is added again"
                );
            }
            _ => {
                warn!(detail, retry_in = ?pause, "poll failed");
            }
        }
        self.trouble = Some(trouble);
    }

    /// Sends a report of the poll, without waiting.
    fn report(&mut self, at_ms: u64, state: FeedState, detail: &str) {
        if let Some(reports) = &self.settings.hooks.reports {
            reports.tell(PollReport {
                channel: self.settings.channel.clone(),
                url: self.settings.feed.url.clone(),
                at_ms: i64::try_from(at_ms).unwrap_or(i64::MAX),
                state,
                detail: detail.to_owned(),
                entries: self.brought,
                excerpt: self.excerpt.take(),
            });
        }
    }

    /// Publishes the status of the last poll. Returns whether it is recorded in the store.
    async fn show(
        &mut self,
        state: FeedState,
        detail: String,
        pause: Duration,
        gone: bool,
    ) -> bool {
        let at_ms = now_ms().unsigned_abs();
        self.report(at_ms, state, &detail);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let interval = ms(self.schedule.interval());
        let next = (!gone).then(|| at_ms.saturating_add(ms(pause)));
        let pending = self.pending.entries();
        self.status.send_modify(|status| {
            status.state = state;
            status.detail.clone_from(&detail);
            status.last_poll_ms = Some(at_ms);
            if state.is_good() {
                status.last_success_ms = Some(at_ms);
            }
            status.next_poll_ms = next;
            status.interval_ms = Some(interval);
            status.pending = pending;
            if let Some(to) = &self.moving {
                status.moved_to = Some(to.clone()).filter(|to| *to != self.settings.feed.url);
            }
        });
        let due = self.recorded.is_none_or(|(at, recorded)| {
            recorded.is_good() != state.is_good() || at.elapsed() >= RECORD_INTERVAL
        });
        let due = due || pause >= RECORD_INTERVAL;
        let news = due || self.moving.is_some() || gone;
        if !news || self.storing.is_failing() {
            return false;
        }
        let poll = PollRecord {
            at_ms: i64::try_from(at_ms).unwrap_or(i64::MAX),
            state: state.word().to_owned(),
            detail,
            interval_ms: i64::try_from(interval).ok(),
            next_ms: next.and_then(|next| i64::try_from(next).ok()),
            moved_to: self.moving.clone(),
            gone,
        };
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        match self.store.feeds().record_poll(channel, url, &poll).await {
            Ok(()) => {
                self.recorded = Some((Instant::now(), state));
                self.moving = None;
                true
            }
            Err(error) => {
                debug!(%error, "poll not recorded");
                false
            }
        }
    }
}

/// Returns the hints of the server and of the feed for the next poll.
fn read(hints: &Hints, ttl: Option<Duration>) -> PollStats {
    PollStats {
        max_age: hints.max_age,
        retry_after: hints.retry_after,
        ttl,
        ..PollStats::default()
    }
}

impl From<FetchError> for PollFailure {
    fn from(error: FetchError) -> Self {
        let remedy = match &error {
            FetchError::Private { .. } => " (--allow-private-feed, or mark it as local)",
            _ => "",
        };
        let state = match &error {
            FetchError::Gone { .. } => FeedState::Gone,
            error if error.is_challenge() => FeedState::Challenged,
            _ => FeedState::Error,
        };
        PollFailure {
            state,
            detail: format!("{error}{remedy}"),
            retry_after: error.retry_after(),
        }
    }
}
