//! What others want of an ingest: to hear of its polls, and to have it poll at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use super::FeedState;
use crate::metrics::RecordMetrics;

/// A feed is asked at once this often at most: its server is somebody else's.
const AGAIN: Duration = Duration::from_secs(5);

/// The longest excerpt in bytes.
const EXCERPT: usize = 4 << 10;

/// How a poll went.
#[derive(Debug, Clone)]
pub struct PollReport {
    /// The feed's channel.
    pub channel: String,
    /// The feed, without credentials.
    pub url: String,
    /// When it ended, in Unix milliseconds.
    pub at_ms: i64,
    /// How it went.
    pub state: FeedState,
    /// The same in words.
    pub detail: String,
    /// New versions of entries that it brought.
    pub entries: u64,
    /// The beginning of what was seen instead of a feed, as text.
    pub excerpt: Option<String>,
}

/// What others want of one ingest.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    /// Has it poll at once.
    pub refresh: Arc<Notify>,
    /// Where its polls are told.
    pub reports: Option<Reports>,
}

/// Where polls are told. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reports {
    to: mpsc::Sender<PollReport>,
    metrics: RecordMetrics,
}

impl Reports {
    /// They go to `to`. Those that do not are counted as rows of feeds that were dropped.
    pub fn new(to: mpsc::Sender<PollReport>, metrics: RecordMetrics) -> Self {
        Self { to, metrics }
    }

    /// Tells of a poll, if there is room: nobody waits for it.
    pub(super) fn tell(&self, report: PollReport) {
        if self.to.try_send(report).is_err() {
            self.metrics.dropped("feeds", 1);
        }
    }
}

/// The feeds that can be asked at once.
#[derive(Debug, Clone, Default)]
pub struct Refreshes(Arc<Mutex<BTreeMap<(String, String), Known>>>);

/// Why a feed is not polled at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAsked {
    /// It is not polled: it is paused or gone.
    NotPolled,
    /// It was asked a moment ago.
    TooSoon,
}

#[derive(Debug)]
struct Known {
    refresh: Arc<Notify>,
    asked: Option<Instant>,
}

impl Refreshes {
    fn known(&self) -> MutexGuard<'_, BTreeMap<(String, String), Known>> {
        // Whoever panicked in between left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A feed is polled from now on, or not any more.
    pub fn set(&self, channel: &str, url: &str, refresh: Option<Arc<Notify>>) {
        let key = (channel.to_owned(), url.to_owned());
        let mut known = self.known();
        match refresh {
            Some(refresh) => {
                let asked = known.get(&key).and_then(|known| known.asked);
                known.insert(key, Known { refresh, asked });
            }
            None => drop(known.remove(&key)),
        }
    }

    /// Has a feed polled at once.
    ///
    /// # Errors
    /// That will not be done.
    pub fn ask(&self, channel: &str, url: &str) -> Result<(), NotAsked> {
        let mut known = self.known();
        let feed = known.get_mut(&(channel.to_owned(), url.to_owned()));
        let feed = feed.ok_or(NotAsked::NotPolled)?;
        if feed.asked.is_some_and(|at| at.elapsed() < AGAIN) {
            return Err(NotAsked::TooSoon);
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

/// The beginning of a document, as text without control characters.
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
    fn a_feed_is_asked_at_once_but_not_all_the_time() {
        let refreshes = Refreshes::default();
        let ask = || refreshes.ask("lore", "http://a/");
        assert_eq!(ask(), Err(NotAsked::NotPolled));
        refreshes.set("lore", "http://a/", Some(Arc::default()));
        assert_eq!(ask(), Ok(()));
        assert_eq!(ask(), Err(NotAsked::TooSoon));
        refreshes.set("lore", "http://a/", Some(Arc::default()));
        assert_eq!(ask(), Err(NotAsked::TooSoon), "also if it was begun anew");
        assert!(refreshes.are_of("lore", "http://a/"));
        refreshes.set("lore", "http://a/", None);
        assert_eq!(ask(), Err(NotAsked::NotPolled));
        assert!(!refreshes.are_of("lore", "http://a/"));
    }

    #[test]
    fn polls_that_find_no_room_are_counted() {
        let metrics = RecordMetrics::default();
        let (to, mut told) = mpsc::channel(1);
        let reports = Reports::new(to, metrics.clone());
        let tell = |at_ms| {
            reports.tell(PollReport {
                channel: "lore".to_owned(),
                url: "http://a/".to_owned(),
                at_ms,
                state: FeedState::Ok,
                detail: String::new(),
                entries: 0,
                excerpt: None,
            });
        };
        (1..4).for_each(tell);
        assert_eq!(metrics.counted("feeds"), (2, 0));
        assert!(told.try_recv().is_ok_and(|poll| poll.at_ms == 1));
        tell(4);
        assert_eq!(metrics.counted("feeds"), (2, 0), "there is room again");
        drop(told);
        tell(5);
        assert_eq!(metrics.counted("feeds"), (3, 0), "nobody records any more");
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
