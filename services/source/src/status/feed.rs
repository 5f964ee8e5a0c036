//! Status of the ingest of a feed.

use serde::Serialize;

/// State of a feed after its last poll.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeedState {
    /// No poll yet.
    #[default]
    Pending,
    /// A document was received and processed.
    Ok,
    /// The server answered that nothing has changed.
    NotModified,
    /// The response is not a feed.
    NotAFeed,
    /// The server answered with a bot check.
    Challenged,
    /// The server declared the feed permanently gone: no further polls until it is added again.
    Gone,
    /// The poll failed.
    Error,
    /// Updates cannot be stored at the moment, or an operator paused the feed.
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

    /// Returns the word for the state in `/status.json`, metrics and the store.
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

/// Last suspected gap of a feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GapStatus {
    /// Time at which the gap was noticed, in Unix milliseconds.
    pub at_ms: i64,
    /// Word for the gap's state: `suspected`, `filled`, `partly` or `open`.
    pub state: &'static str,
    /// State in a sentence.
    pub detail: String,
    /// Number of entries that were found in the gap.
    pub entries: u64,
}

/// Snapshot of the ingest of one feed.
#[derive(Debug, Clone, Default)]
pub struct IngestStatus {
    /// State after the last poll; [`feed`](Self::feed) also accounts for the store.
    pub state: FeedState,
    /// State in words.
    pub detail: String,
    /// End of the last poll, in Unix milliseconds; `None` before the first.
    pub last_poll_ms: Option<u64>,
    /// End of the last successful poll, perhaps of an earlier run; `None` if not known.
    pub last_success_ms: Option<u64>,
    /// Time of the next poll.
    pub next_poll_ms: Option<u64>,
    /// Current ordinary time between polls.
    pub interval_ms: Option<u64>,
    /// The feed's own title.
    pub title: Option<String>,
    /// Permanent new address of the feed.
    pub moved_to: Option<String>,
    /// Entries that are held in memory until they can be stored.
    pub pending: usize,
    /// Current failure to store them.
    pub store_failure: Option<String>,
    /// Last gap of the feed.
    pub gap: Option<GapStatus>,
}

impl IngestStatus {
    /// Returns the feed's state with a description. While updates cannot be stored, that is the
    /// state.
    pub fn feed(&self) -> (FeedState, String) {
        match &self.store_failure {
            Some(failure) => (
                FeedState::Paused,
                format!("updates cannot be stored: {failure}"),
            ),
            None => (self.state, self.detail.clone()),
        }
    }
}
