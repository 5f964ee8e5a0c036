//! Result of parsing.

use std::time::Duration;

use super::header::FeedLinks;
use crate::entry::Entry;

/// Largest number of entries taken from one document, the first ones.
pub const MAX_ENTRIES: usize = 1000;

/// Parsed feed document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParsedFeed {
    /// Title of the feed, as plain text.
    pub title: Option<String>,
    /// Addresses of the feed's other documents.
    pub links: FeedLinks,
    /// Interval between changes, as stated by the feed: the longer of RSS's `ttl` and the
    /// Syndication module's `updatePeriod` and `updateFrequency`. Many publishing systems insert a
    /// default that is unrelated to the feed's real rate. `skipHours` and `skipDays` are ignored:
    /// an entry that appears in such an hour would be many hours late, and a conditional request
    /// costs the server next to nothing.
    pub interval: Option<Duration>,
    /// Entries in the document's order, which is newest first in nearly all feeds.
    pub entries: Vec<Entry>,
    /// Skipped entries with reasons, for the log: unreadable, too long, or past [`MAX_ENTRIES`]. At
    /// most about a hundred lines.
    pub skipped: Vec<String>,
    /// Label of the encoding that the server or the document states, if it is not known. The
    /// document is UTF-8 and was read as such.
    pub unknown_encoding: Option<String>,
}

impl ParsedFeed {
    /// Returns the remarks on a feed that was read all the same: everything that was skipped, and
    /// an unknown encoding.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let label = self.unknown_encoding.as_deref();
        let encoding = label.map(|label| {
            format!("the encoding {label:?}, which is not known; the document is UTF-8")
        });
        encoding.into_iter().chain(self.skipped.clone()).collect()
    }
}
