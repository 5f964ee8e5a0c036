//! What the ingest shows of itself.

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
    /// Nothing usable came, or it could not be stored.
    Error,
}

impl FeedState {
    /// Every state, for metrics that show all of them.
    pub const ALL: [FeedState; 6] = [
        FeedState::Pending,
        FeedState::Ok,
        FeedState::NotModified,
        FeedState::NotAFeed,
        FeedState::Challenged,
        FeedState::Error,
    ];

    /// The word for it in `/status.json`, metrics and the store.
    pub fn word(self) -> &'static str {
        match self {
            FeedState::Pending => "pending",
            FeedState::Ok => "ok",
            FeedState::NotModified => "not-modified",
            FeedState::NotAFeed => "not-a-feed",
            FeedState::Challenged => "challenged",
            FeedState::Error => "error",
        }
    }

    /// Whether the feed could be read.
    pub fn is_good(self) -> bool {
        matches!(self, FeedState::Ok | FeedState::NotModified)
    }
}

/// A snapshot of the ingest.
#[derive(Debug, Clone, Default)]
pub struct IngestStatus {
    /// The last stored `seq`.
    pub head: u64,
    /// The oldest `seq` that is kept.
    pub first: u64,
    /// How the last poll went.
    pub feed: FeedState,
    /// The same in words.
    pub detail: String,
    /// When it ended, in Unix milliseconds; `None` before the first.
    pub last_poll_ms: Option<u64>,
    /// When the last one ended that could read the feed, perhaps of an earlier run; `None` if
    /// that is not known.
    pub last_success_ms: Option<u64>,
    /// Why updates cannot be stored at the moment.
    pub store_failure: Option<String>,
}

impl IngestStatus {
    /// The feed's state and what to say about it. While updates cannot be stored, that is it.
    pub fn feed(&self) -> (FeedState, String) {
        match &self.store_failure {
            Some(failure) => (
                FeedState::Error,
                format!("the feed's news cannot be stored: {failure}"),
            ),
            None => (self.feed, self.detail.clone()),
        }
    }
}
