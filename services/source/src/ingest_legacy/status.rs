//! What the ingest shows of itself.

pub use crate::ingest::FeedState;

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
