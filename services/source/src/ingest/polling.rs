//! Asking for the feed, and showing how that went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feed::fetch::{FetchConfig, FetchError, Fetcher, Hints, Poll};
use feed::gap::Backfill;
use feed::parse::{ParseError, ParsedFeed};
use feed::schedule::{Outcome, PollStats};
use jiff::Timestamp;
use store::{PollRecord, Validators};
use tracing::{debug, info, warn};

use super::document::{Before, Document};
use super::storing::Taken;
use super::{Ended, FeedState, History, Ingest, PollReport, hooks, now_ms};

/// An unchanged state of the feed is recorded in the store this often: each time is a write to disk. One
/// that holds for longer is recorded in any case, for whoever asks when the next poll is.
const RECORD_INTERVAL: Duration = Duration::from_secs(20);

/// Entries that cannot be read are named in the log up to this many at a time.
const NAMED: usize = 5;

/// A feed that has moved and fails there so often in a row is asked for at its own address again.
const MOVE_FAILURES: u32 = 3;

/// What a good poll brought.
enum Polled {
    NotModified(Hints),
    /// A document, and how often the feed says that it changes.
    Document(Box<Document>, Hints, Option<Duration>),
}

/// Why a poll brought nothing.
struct Trouble {
    state: FeedState,
    /// In a sentence that names the feed.
    detail: String,
    retry_after: Option<Duration>,
}

impl Ingest {
    /// One poll and what follows from it. Returns the time until the next one.
    pub(super) async fn turn(&mut self) -> Result<Duration, Ended> {
        (self.brought, self.excerpt) = (0, None);
        let polled = self.poll().await;
        let (state, detail, outcome, moved) = match polled {
            Ok(Polled::NotModified(hints)) => {
                let detail = "unchanged since the poll before".to_owned();
                let read = read(&hints, None);
                let outcome = Outcome::Read(read);
                (FeedState::NotModified, detail, outcome, hints.moved_to)
            }
            Ok(Polled::Document(document, hints, ttl)) => {
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
                info!("the feed at {url} is back after {failures} failed polls: {detail}");
            }
            self.fill_again().await?;
            self.tidy().await;
        } else {
            self.describe_failure(state, &detail, pause);
        }
        let gone = state == FeedState::Gone;
        let back = !state.is_good() && self.leave_move(gone);
        let gone = gone && !back;
        if let Some(to) = moved {
            self.note_move(to);
        } else if back {
            self.moving = Some(self.settings.feed.url.clone());
        }
        let state = if back && state == FeedState::Gone {
            FeedState::Error
        } else {
            state
        };
        let recorded = self.show(state, detail, pause, gone).await;
        // It ends only when nobody has to find that out once more.
        if gone && recorded {
            Err(Ended::Gone)
        } else {
            Ok(pause)
        }
    }

    /// Takes a document in, if the store lets it. What to say of it, and what it means for the next
    /// poll.
    async fn take(
        &mut self,
        document: Document,
        mut read: PollStats,
    ) -> Result<(String, Outcome), Ended> {
        let count = document.entries.len();
        read.window = count;
        read.span = document.seen.span();
        // Should it not come to be stored yet, this says what would be new.
        read.new = match &self.history {
            History::Seen(before) => document.seen.ids.difference(&before.ids).count(),
            History::None | History::Stored(_) => count,
        };
        self.pending.push(document);
        // A store that fails may take its time for that: the feed is not kept waiting for it.
        let taken = if self.storing.fails() && Instant::now() < self.retry_at {
            None
        } else {
            self.store_pending().await?
        };
        let detail = match taken {
            Some(Taken {
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

    async fn poll(&mut self) -> Result<Polled, Trouble> {
        let fetcher = self.fetcher()?;
        let began = Instant::now();
        let polled = fetcher.poll(&self.asked).await;
        self.metrics
            .poll_seconds
            .observe(began.elapsed().as_secs_f64());
        let (document, validators, url, charset, hints) = match polled? {
            Poll::NotModified { hints } => return Ok(Polled::NotModified(hints)),
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
        self.name_unreadable(&parsed.remarks());
        if matches!(self.history, History::None) {
            info!(
                "the feed at {} answers: {:?} with {} entries",
                self.settings.feed.url,
                parsed.title.as_deref().unwrap_or("(without a title)"),
                parsed.entries.len()
            );
        }
        let ttl = parsed.interval;
        self.asked = validators;
        let document = self.document(parsed);
        Ok(Polled::Document(Box::new(document), hints, ttl))
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
            seen: Before::of(&parsed.entries, Some(Timestamp::now())),
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

    /// Where the feed is fetched from, as it is shown.
    pub(super) fn address(&self) -> &str {
        self.moved.as_deref().unwrap_or(&self.settings.feed.url)
    }

    /// The fetcher for the present address.
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

    /// Notes that the feed moved for good. The new address is used from the next start on: until
    /// then its own leads there.
    fn note_move(&mut self, to: String) {
        if to == self.address() || self.status.borrow().moved_to.as_deref() == Some(&to) {
            return;
        }
        info!(
            "the feed at {} has moved to {to} for good; this is remembered",
            self.settings.feed.url
        );
        self.moving = Some(to);
    }

    /// Goes back to the feed's own address if the one that it moved to does not work. Returns
    /// whether that is so.
    fn leave_move(&mut self, gone: bool) -> bool {
        if self.moved.is_none() || !(gone || self.schedule.failures() >= MOVE_FAILURES) {
            return false;
        }
        if let Some(moved) = self.moved.take() {
            warn!(
                "the feed at {} cannot be read at {moved}, where it has moved to: its own address \
                 is tried again",
                self.settings.feed.url
            );
        }
        self.fetcher = None;
        true
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
                    self.settings.feed.url
                ),
                retry_after: None,
            },
            other => self.unreadable_document(&format!("answered with {other}")),
        }
    }

    fn unreadable_document(&self, what: &str) -> Trouble {
        Trouble {
            state: FeedState::Error,
            detail: format!("the feed at {} {what}", self.settings.feed.url),
            retry_after: None,
        }
    }

    /// Logs entries that were passed over, once for as long as they stay the same.
    fn name_unreadable(&mut self, skipped: &[String]) {
        if skipped == self.unreadable {
            return;
        }
        let url = &self.settings.feed.url;
        for line in skipped.iter().take(NAMED) {
            warn!("passed over in the feed at {url}: {line}");
        }
        if let Some(more) = skipped.len().checked_sub(NAMED).filter(|&more| more > 0) {
            warn!("… and {more} more");
        }
        self.unreadable = skipped.to_vec();
    }

    /// Logs why a poll brought nothing, once for as long as it stays the same.
    fn describe_failure(&mut self, state: FeedState, detail: &str, pause: Duration) {
        let trouble = (state, detail.to_owned());
        if self.trouble.as_ref() == Some(&trouble) {
            return;
        }
        match state {
            FeedState::Gone if self.moved.is_none() => {
                warn!("{detail}; it is not asked for again until it is added again");
            }
            _ => {
                let seconds = pause.as_secs_f64();
                warn!("{detail}; the next attempt is in {seconds:.1} s");
            }
        }
        self.trouble = Some(trouble);
    }

    /// Tells those who want to hear of each poll; they do not hold it up.
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

    /// Lets the world know how the last poll went. Returns whether this is recorded in the store.
    async fn show(
        &mut self,
        state: FeedState,
        detail: String,
        pause: Duration,
        gone: bool,
    ) -> bool {
        let at_ms = now_ms();
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
        if !news || self.storing.fails() {
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
        match self.store.record_poll(channel, url, &poll).await {
            Ok(()) => {
                self.recorded = Some((Instant::now(), state));
                self.moving = None;
                true
            }
            Err(error) => {
                debug!("the poll could not be recorded: {error}");
                false
            }
        }
    }
}

/// What a good poll means for the next one, as far as the server and the feed say.
fn read(hints: &Hints, ttl: Option<Duration>) -> PollStats {
    PollStats {
        max_age: hints.max_age,
        retry_after: hints.retry_after,
        ttl,
        ..PollStats::default()
    }
}

impl From<FetchError> for Trouble {
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
        Trouble {
            state,
            detail: format!("{error}{remedy}"),
            retry_after: error.retry_after(),
        }
    }
}
