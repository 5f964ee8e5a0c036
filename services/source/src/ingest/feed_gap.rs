//! A suspected gap while its entries are searched for.

use std::collections::HashSet;
use std::time::Instant;

use feed::Entry;
use feed::gap::Backfill;
use store::GapRecord;

use super::bounds::Share;
use super::document::DocumentSummary;

/// Gap in the feed that may lack entries.
#[derive(Debug)]
pub(super) struct FeedGap {
    /// Record of the gap.
    pub(super) record: GapRecord,
    /// Source of entries older than those of the document after the gap.
    pub(super) backfill: Backfill,
    /// Summary of the document before the gap.
    pub(super) before: DocumentSummary,
    /// Ids of entries that came after the gap, or were found in it.
    pub(super) newer: HashSet<String>,
    /// Ids of the feed's last document.
    pub(super) latest: HashSet<String>,
    /// The entry after the gap that is next to it.
    pub(super) edge: Option<String>,
    /// Entries that were found and could not be stored yet.
    pub(super) unstored: Option<UnstoredEntries>,
    /// Memory of the gap.
    pub(super) share: Share,
    pub(super) attempts: u32,
    /// Number of polls before the next attempt.
    pub(super) wait: u32,
    /// Attempts whose responses proved nothing.
    pub(super) unproven: u32,
    /// Earliest time of the next attempt.
    pub(super) not_before: Instant,
}

/// Result of an attempt, which counts only once it is stored.
#[derive(Debug)]
pub(super) struct UnstoredEntries {
    /// Entries, newest first.
    pub(super) entries: Vec<Entry>,
    /// Record of the gap after the entries are stored.
    pub(super) record: GapRecord,
}

impl FeedGap {
    /// Adds the entries of another document of the feed.
    pub(super) fn pass(&mut self, seen: &DocumentSummary) {
        self.newer.extend(seen.ids.iter().cloned());
        self.latest.clone_from(&seen.ids);
    }

    /// Returns the time of the next attempt, with or without a poll; `None` while polls are waited
    /// for.
    pub(super) fn due(&self) -> Option<Instant> {
        let waits = self.wait > 0 || self.unstored.is_some() || !self.share.has_room();
        (!waits).then_some(self.not_before)
    }
}
