//! What the ingest of a feed shows of itself.

use serde::Serialize;

/// How the last poll of the feed went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeedState {
    /// There was none yet.
    #[default]
    Pending,
    /// A document came and was taken in.
    Ok,
    /// The server said that nothing has changed.
    NotModified,
    /// Something came that is not a feed.
    NotAFeed,
    /// The server wants to know whether a person asks.
    Challenged,
    /// The server said that the feed is gone for good: it is not polled until it is put again.
    Gone,
    /// Nothing usable came.
    Error,
    /// What came cannot be stored at the moment, or an operator has it rest.
    Paused,
}

impl FeedState {
    /// Every state, for metrics that show all of them.
    pub const ALL: [FeedState; 8] = [
        FeedState::Pending,
        FeedState::Ok,
        FeedState::NotModified,
        FeedState::NotAFeed,
        FeedState::Challenged,
        FeedState::Gone,
        FeedState::Error,
        FeedState::Paused,
    ];

    /// The word for it in `/status.json`, metrics and the store.
    pub fn word(self) -> &'static str {
        match self {
            FeedState::Pending => "pending",
            FeedState::Ok => "ok",
            FeedState::NotModified => "not-modified",
            FeedState::NotAFeed => "not-a-feed",
            FeedState::Challenged => "challenged",
            FeedState::Gone => "gone",
            FeedState::Error => "error",
            FeedState::Paused => "paused",
        }
    }

    /// Whether the feed could be read.
    pub fn is_good(self) -> bool {
        matches!(self, FeedState::Ok | FeedState::NotModified)
    }
}

/// The last suspected gap of a feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GapStatus {
    /// When it was noticed, in Unix milliseconds.
    pub at_ms: i64,
    /// The word for what became of it: `suspected`, `filled`, `partly` or `open`.
    pub state: &'static str,
    /// The same in a sentence.
    pub detail: String,
    /// Number of entries that were found in it.
    pub entries: u64,
}

/// A snapshot of the ingest of one feed.
#[derive(Debug, Clone, Default)]
pub struct IngestStatus {
    /// How the last poll went; [`feed`](Self::feed) also knows of the store.
    pub state: FeedState,
    /// The same in words.
    pub detail: String,
    /// When it ended, in Unix milliseconds; `None` before the first.
    pub last_poll_ms: Option<u64>,
    /// When the last one ended that could read the feed, perhaps of an earlier run; `None` if
    /// that is not known.
    pub last_success_ms: Option<u64>,
    /// When the next one is due.
    pub next_poll_ms: Option<u64>,
    /// The ordinary time between polls at the moment.
    pub interval_ms: Option<u64>,
    /// What the feed calls itself.
    pub title: Option<String>,
    /// Where the feed has moved for good.
    pub moved_to: Option<String>,
    /// Entries that are held in memory until they can be stored.
    pub pending: usize,
    /// Why they cannot be stored at the moment.
    pub store_failure: Option<String>,
    /// The last gap in what was seen of it.
    pub gap: Option<GapStatus>,
}

impl IngestStatus {
    /// The feed's state and what to say about it. While updates cannot be stored, that is it.
    pub fn feed(&self) -> (FeedState, String) {
        match &self.store_failure {
            Some(failure) => (
                FeedState::Paused,
                format!("the feed's news cannot be stored: {failure}"),
            ),
            None => (self.state, self.detail.clone()),
        }
    }
}
