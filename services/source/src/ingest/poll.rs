//! Polls of the feed, and their status.

use std::time::{Duration, Instant};

use feed::fetch::{FetchError, Hints, Poll};
use feed::gap::Backfill;
use feed::parse::{ParseError, ParsedFeed};
use feed::schedule::{Outcome, PollStats};
use jiff::Timestamp;
use store::{PollRecord, Validators};
use tracing::{debug, info};

use super::document::{Document, DocumentSummary};
use super::intake::IntakeStats;
use super::{EndReason, History, Ingest, PollReport, hooks};
use crate::clock::now_ms;
use crate::status::FeedState;

/// Shortest interval between records of an unchanged state in the store: each one is a write to
/// disk. A longer wait is recorded in any case, to show the time of the next poll.
const RECORD_INTERVAL: Duration = Duration::from_secs(20);

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
    /// Excerpt of a response that was no feed.
    excerpt: Option<String>,
}

/// Poll for the status, the log and the records.
struct PollSummary {
    state: FeedState,
    detail: String,
    /// New versions of entries.
    entries: u64,
    excerpt: Option<String>,
}

impl Ingest {
    /// Polls once and processes the result. Returns the time until the next poll.
    pub(super) async fn poll_once(&mut self) -> Result<Duration, EndReason> {
        let polled = self.poll().await;
        let summary = |state, detail, entries| PollSummary {
            state,
            detail,
            entries,
            excerpt: None,
        };
        let (mut poll, outcome, moved) = match polled {
            Ok(PollResult::NotModified(hints)) => {
                let detail = "unchanged since the poll before".to_owned();
                let outcome = Outcome::Read(read(&hints, None));
                let poll = summary(FeedState::NotModified, detail, 0);
                (poll, outcome, hints.moved_to)
            }
            Ok(PollResult::Document(document, hints, ttl)) => {
                let (detail, outcome, entries) = self.take(*document, read(&hints, ttl)).await?;
                let poll = summary(FeedState::Ok, detail, entries);
                (poll, outcome, hints.moved_to)
            }
            Err(failure) => {
                let retry_after = failure.retry_after;
                let poll = PollSummary {
                    excerpt: failure.excerpt,
                    ..summary(failure.state, failure.detail, 0)
                };
                (poll, Outcome::Failed { retry_after }, None)
            }
        };
        self.metrics.polled(poll.state);
        let failures = self.schedule.failures();
        let pause = self.schedule.next(outcome, Instant::now());
        let gone = poll.state == FeedState::Gone;
        if poll.state.is_good() {
            if self.problems.poll_succeeded() {
                let url = &self.settings.feed.url;
                info!(feed = %url, failures, detail = poll.detail, "feed recovered");
            }
            self.fill_again().await?;
            self.remove_old_entries().await;
        } else {
            let is_final = self.client.moved.is_none();
            self.problems
                .poll_failed(poll.state, &poll.detail, pause, is_final);
        }
        let fails = gone || self.schedule.failures() >= MOVE_FAILURES;
        let back = !poll.state.is_good() && fails && self.client.revert_move(&self.settings);
        if let Some(to) = moved {
            let known = self.status.borrow().moved_to.clone();
            self.client
                .record_move(&self.settings, to, known.as_deref());
        }
        if gone && back {
            poll.state = FeedState::Error;
        }
        let gone = gone && !back;
        let recorded = self.show(poll, pause, gone).await;
        // The ingest ends only after the fact is recorded for later starts.
        if gone && recorded {
            Err(EndReason::Gone)
        } else {
            Ok(pause)
        }
    }

    /// Processes a document, if the store is available. Returns a description of the result, its
    /// effect on the next poll, and the number of new versions of entries.
    async fn take(
        &mut self,
        document: Document,
        mut read: PollStats,
    ) -> Result<(String, Outcome, u64), EndReason> {
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
        let taken = if self.storing.is_failing() && Instant::now() < self.storing.due {
            None
        } else {
            self.store_pending().await?
        };
        let Some(IntakeStats {
            created,
            changed,
            gap,
        }) = taken
        else {
            let detail = format!("{count} entries, kept until they can be stored");
            return Ok((detail, Outcome::Read(read), 0));
        };
        (read.new, read.gap) = (created, gap);
        let detail = format!("{count} entries, {created} of them new, {changed} changed");
        Ok((detail, Outcome::Read(read), (created + changed) as u64))
    }

    async fn poll(&mut self) -> Result<PollResult, PollFailure> {
        let fetcher = self.client.fetcher(&self.settings)?;
        let began = Instant::now();
        let polled = fetcher.poll(&self.client.validators).await;
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
        let parsed = parsed.map_err(|(error, excerpt)| PollFailure {
            excerpt,
            ..self.no_feed(&error)
        })?;
        let url = &self.settings.feed.url;
        self.problems.unreadable(url, &parsed.remarks());
        if matches!(self.history, History::None) {
            info!(
                feed = %self.settings.feed.url,
                title = parsed.title.as_deref().unwrap_or_default(),
                entries = parsed.entries.len(),
                "first document of the feed"
            );
        }
        let ttl = parsed.interval;
        self.client.validators = validators;
        let document = self.document(parsed);
        Ok(PollResult::Document(Box::new(document), hints, ttl))
    }

    fn document(&mut self, parsed: ParsedFeed) -> Document {
        let backfill = Backfill::of(self.client.address(&self.settings), &parsed);
        self.gaps.backfill.clone_from(&backfill);
        if let Some(title) = &parsed.title {
            self.status.send_if_modified(|status| {
                let is_new = status.title.as_ref() != Some(title);
                status.title = Some(title.clone());
                is_new
            });
        }
        Document {
            seen: DocumentSummary::of(&parsed.entries, Some(Timestamp::now())),
            entries: parsed.entries,
            validators: Validators {
                etag: self.client.validators.etag.clone(),
                last_modified: self.client.validators.last_modified.clone(),
            },
            continues: false,
            backfill,
            gap: None,
            changes: None,
            stored: 0,
            again: false,
        }
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
                excerpt: None,
            },
            other => self.unreadable_document(&format!("answered with {other}")),
        }
    }

    fn unreadable_document(&self, what: &str) -> PollFailure {
        PollFailure {
            state: FeedState::Error,
            detail: format!("the feed at {} {what}", self.settings.feed.url),
            retry_after: None,
            excerpt: None,
        }
    }

    /// Publishes the status of the last poll. Returns whether it is recorded in the store.
    async fn show(&mut self, poll: PollSummary, pause: Duration, gone: bool) -> bool {
        let at_ms = now_ms();
        let PollSummary { state, detail, .. } = poll;
        if let Some(reports) = &self.settings.hooks.reports {
            reports.send(PollReport {
                channel: self.settings.channel.clone(),
                url: self.settings.feed.url.clone(),
                at_ms,
                state,
                detail: detail.clone(),
                entries: poll.entries,
                excerpt: poll.excerpt,
            });
        }
        let shown_ms = at_ms.unsigned_abs();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let interval = ms(self.schedule.interval());
        let next = (!gone).then(|| shown_ms.saturating_add(ms(pause)));
        let pending = self.pending.entries();
        self.status.send_modify(|status| {
            status.state = state;
            status.detail.clone_from(&detail);
            status.last_poll_ms = Some(shown_ms);
            if state.is_good() {
                status.last_success_ms = Some(shown_ms);
            }
            status.next_poll_ms = next;
            status.interval_ms = Some(interval);
            status.pending = pending;
            if let Some(to) = &self.client.moving {
                status.moved_to = Some(to.clone()).filter(|to| *to != self.settings.feed.url);
            }
        });
        let due = self.recorded.is_none_or(|(at, recorded)| {
            recorded.is_good() != state.is_good() || at.elapsed() >= RECORD_INTERVAL
        });
        let due = due || pause >= RECORD_INTERVAL;
        let is_due = due || self.client.moving.is_some() || gone;
        if !is_due || self.storing.is_failing() {
            return false;
        }
        let poll = PollRecord {
            at_ms,
            state: state.word().to_owned(),
            detail,
            interval_ms: i64::try_from(interval).ok(),
            next_ms: next.and_then(|next| i64::try_from(next).ok()),
            moved_to: self.client.moving.clone(),
            gone,
        };
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        match self.store.feeds().record_poll(channel, url, &poll).await {
            Ok(()) => {
                self.recorded = Some((Instant::now(), state));
                self.client.moving = None;
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
            excerpt: None,
        }
    }
}
