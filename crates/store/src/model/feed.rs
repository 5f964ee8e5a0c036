//! Feeds, their polls, and the gaps in them.

use std::fmt;

use super::Origin;

/// Validators of a feed's last document (RFC 9110, section 8.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validators {
    /// The `ETag` field as received.
    pub etag: Option<String>,
    /// The `Last-Modified` field as received.
    pub last_modified: Option<String>,
}

/// Outcome of a poll of a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PollRecord {
    /// When it ended.
    pub at_ms: i64,
    /// A word for the outcome, such as `ok` or `not-modified`; cut to 64 bytes.
    pub state: String,
    /// The outcome in a sentence; cut to 1,024 bytes.
    pub detail: String,
    /// The ordinary time between two polls at present.
    pub interval_ms: Option<i64>,
    /// When the next one is due: later than the ordinary time says while polls fail, or where the
    /// server asks for it. `None` if there is none.
    pub next_ms: Option<i64>,
    /// The feed's new address, if its server said that it moved for good. `None` leaves what was
    /// recorded before.
    pub moved_to: Option<String>,
    /// Whether the server said that the feed is gone for good.
    pub gone: bool,
}

/// Settings of a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedSettings {
    /// Its URL as it is shown, without credentials. With the channel, it names the feed.
    pub url: String,
    /// URL that is fetched: the same with credentials, if there are any.
    pub address: String,
    /// Whether it may be in a private network.
    pub local: bool,
    /// The shortest time between two polls, if it is not the general one.
    pub min_interval_ms: Option<i64>,
    /// The longest time between two polls, if it is not the general one.
    pub max_interval_ms: Option<i64>,
    /// Title.
    pub title: Option<String>,
    /// Origin.
    pub origin: Origin,
}

/// Changes by an operator to a feed; `None` leaves a value as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedEdit {
    /// Title; empty for none.
    pub title: Option<String>,
    /// The shortest time between two polls.
    pub min_interval_ms: Option<i64>,
    /// The longest time between two polls.
    pub max_interval_ms: Option<i64>,
}

/// A feed with everything that is set and recorded about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedRow {
    /// The name of its channel.
    pub channel: String,
    /// Settings.
    pub settings: FeedSettings,
    /// Whether it is to be polled.
    pub active: bool,
    /// Stored together with the entries of the document that they came with.
    pub validators: Validators,
    /// Permanent redirect.
    pub moved_to: Option<String>,
    /// Since when it is gone for good.
    pub gone_ms: Option<i64>,
    /// The last poll, if one was recorded.
    pub last_poll: Option<PollRecord>,
    /// The ordinary time between two polls at present.
    pub interval_ms: Option<i64>,
    /// Whether it is not to be polled for the time being.
    pub paused: bool,
}

/// State of a gap: a poll that shared no entry with the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapState {
    /// Noticed, and not looked into yet.
    Suspected,
    /// All entries in between were found.
    Filled,
    /// Some were found; the others may be lost.
    Partly,
    /// There is no way to find them.
    Open,
}

impl GapState {
    const ALL: [Self; 4] = [Self::Suspected, Self::Filled, Self::Partly, Self::Open];

    /// Returns the word in the database, and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Suspected => "suspected",
            Self::Filled => "filled",
            Self::Partly => "partly",
            Self::Open => "open",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for GapState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A gap in what was seen of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapRecord {
    /// Its number in the store; 0 for one that is not stored yet.
    pub id: i64,
    /// The feed's URL as it is shown.
    pub url: String,
    /// When it was noticed.
    pub at_ms: i64,
    /// State.
    pub state: GapState,
    /// The same in a sentence; cut to 1,024 bytes.
    pub detail: String,
    /// Number of entries found.
    pub entries: u64,
    /// The channel's head when it was noticed: entries with a larger seq came after it, or were
    /// found in it. `None` if an earlier version noticed it. Does not change any more.
    pub after: Option<u64>,
}
