//! Interfaces of an ingest to other parts: reports of its polls, and requests to poll at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use crate::metrics::RecordMetrics;
use crate::status::FeedState;

/// Shortest time between requested polls of a feed, out of courtesy to its server.
const AGAIN: Duration = Duration::from_secs(5);

/// Longest excerpt in bytes.
const EXCERPT: usize = 4 << 10;

/// Report of a poll.
#[derive(Debug, Clone)]
pub struct PollReport {
    /// Channel of the feed.
    pub channel: String,
    /// Address of the feed, without credentials.
    pub url: String,
    /// End of the poll, in Unix milliseconds.
    pub at_ms: i64,
    /// Outcome of the poll.
    pub state: FeedState,
    /// Outcome in words.
    pub detail: String,
    /// New versions of entries in the document.
    pub entries: u64,
    /// Beginning of a response that is no feed, as text.
    pub excerpt: Option<String>,
}

/// Connections of one ingest to other parts.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    /// Request to poll at once.
    pub refresh: Arc<Notify>,
    /// Receiver of poll reports.
    pub reports: Option<Reports>,
}

/// Sender of poll reports. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reports {
    to: mpsc::Sender<PollReport>,
    metrics: RecordMetrics,
}

impl Reports {
    /// Returns a sender to `to`. Reports that do not fit are counted as dropped rows of feeds.
    pub fn new(to: mpsc::Sender<PollReport>, metrics: RecordMetrics) -> Self {
        Self { to, metrics }
    }

    /// Sends the report of a poll, if there is room, without waiting.
    pub(super) fn send(&self, report: PollReport) {
        if self.to.try_send(report).is_err() {
            self.metrics.dropped("feeds", 1);
        }
    }
}

/// Feeds that can be polled on request.
#[derive(Debug, Clone, Default)]
pub struct Refreshes(Arc<Mutex<BTreeMap<(String, String), RecentRefresh>>>);

/// Refusal to poll a feed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshError {
    /// The feed is paused or gone.
    NotPolled,
    /// The feed was polled a moment ago.
    TooSoon,
}

#[derive(Debug)]
struct RecentRefresh {
    refresh: Arc<Notify>,
    asked: Option<Instant>,
}

impl Refreshes {
    fn known(&self) -> MutexGuard<'_, BTreeMap<(String, String), RecentRefresh>> {
        // A panic of another thread leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a feed that is polled from now on, or removes it.
    pub fn set(&self, channel: &str, url: &str, refresh: Option<Arc<Notify>>) {
        let key = (channel.to_owned(), url.to_owned());
        let mut known = self.known();
        match refresh {
            Some(refresh) => {
                let asked = known.get(&key).and_then(|known| known.asked);
                known.insert(key, RecentRefresh { refresh, asked });
            }
            None => drop(known.remove(&key)),
        }
    }

    /// Requests a poll of a feed.
    ///
    /// # Errors
    /// The reason if the feed will not be polled.
    pub fn ask(&self, channel: &str, url: &str) -> Result<(), RefreshError> {
        let mut known = self.known();
        let feed = known.get_mut(&(channel.to_owned(), url.to_owned()));
        let feed = feed.ok_or(RefreshError::NotPolled)?;
        if feed.asked.is_some_and(|at| at.elapsed() < AGAIN) {
            return Err(RefreshError::TooSoon);
        }
        feed.asked = Some(Instant::now());
        feed.refresh.notify_one();
        Ok(())
    }

    /// Whether a feed is polled.
    pub fn are_of(&self, channel: &str, url: &str) -> bool {
        let key = (channel.to_owned(), url.to_owned());
        self.known().contains_key(&key)
    }
}

/// Returns the beginning of a document, as text without control characters.
pub(super) fn excerpt(document: &[u8]) -> Option<String> {
    let begun = document.get(..EXCERPT).unwrap_or(document);
    let text = String::from_utf8_lossy(begun);
    let text: String = text
        .chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_polls_are_rate_limited() {
        let refreshes = Refreshes::default();
        let ask = || refreshes.ask("lore", "http://a/");
        assert_eq!(ask(), Err(RefreshError::NotPolled));
        refreshes.set("lore", "http://a/", Some(Arc::default()));
        assert_eq!(ask(), Ok(()));
        assert_eq!(ask(), Err(RefreshError::TooSoon));
        refreshes.set("lore", "http://a/", Some(Arc::default()));
        assert_eq!(
            ask(),
            Err(RefreshError::TooSoon),
            "also after a restart of the ingest"
        );
        assert!(refreshes.are_of("lore", "http://a/"));
        refreshes.set("lore", "http://a/", None);
        assert_eq!(ask(), Err(RefreshError::NotPolled));
        assert!(!refreshes.are_of("lore", "http://a/"));
    }

    #[test]
    fn dropped_poll_reports_are_counted() {
        let metrics = RecordMetrics::default();
        let (to, mut received) = mpsc::channel(1);
        let reports = Reports::new(to, metrics.clone());
        let send = |at_ms| {
            reports.send(PollReport {
                channel: "lore".to_owned(),
                url: "http://a/".to_owned(),
                at_ms,
                state: FeedState::Ok,
                detail: String::new(),
                entries: 0,
                excerpt: None,
            });
        };
        (1..4).for_each(send);
        assert_eq!(metrics.counted("feeds"), (2, 0));
        assert!(received.try_recv().is_ok_and(|poll| poll.at_ms == 1));
        send(4);
        assert_eq!(metrics.counted("feeds"), (2, 0), "there is room again");
        drop(received);
        send(5);
        assert_eq!(metrics.counted("feeds"), (3, 0), "no more records");
    }

    #[test]
    fn excerpts_are_short_text() {
        assert_eq!(excerpt(b" \n\0\x1b"), None);
        let long = excerpt(&[0xff; 9000]);
        assert!(long.is_some_and(|text| text.chars().count() == EXCERPT));
        assert_eq!(
            excerpt(b"<h1>Are you\x07 human?").as_deref(),
            Some("<h1>Are you human?")
        );
    }
}
