//! Suspected gaps: a document that shares no entry with the one before it may have come too late.
//! Entries that were in the feed in between are searched for where the feed offers a source of
//! them, at once, and a few more times if that fails. The result is recorded.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feed::Entry;
use feed::gap::Backfill;
use feed::payload;
use jiff::Timestamp;
use store::{GapRecord, GapState, StoreError};
use tracing::{debug, info, warn};

use super::document::{Document, DocumentSummary, size};
use super::feed_gap::{FeedGap, UnstoredEntries};
use super::late_arrivals::LateArrivals;
use super::rate_limit::HourlyLimit;
use super::search::{PAGES_PER_HOUR, SearchEnd, SearchResult};
use super::{EndReason, History, Ingest};
use crate::clock::now_ms;
use crate::status::GapStatus;

/// Settings of the search for entries that the feed's documents did not have.
#[derive(Debug, Clone, Copy)]
pub struct GapSettings {
    /// Whether to search at all.
    pub fill: bool,
    /// Wait before a repeated search after a response that proved nothing; doubles each time.
    pub pause: Duration,
    /// Time between searches for late arrivals; `None` for never.
    pub late: Option<Duration>,
}

impl Default for GapSettings {
    fn default() -> Self {
        Self {
            fill: true,
            // A public-inbox keeps an index open for 30 s.
            pause: Duration::from_secs(35),
            late: Some(Duration::from_secs(30 * 60)),
        }
    }
}

/// Gaps of the feed that are not filled yet, and the means to fill them.
#[derive(Debug)]
pub(super) struct Gaps {
    /// Gap whose filling failed and is tried again.
    pub(super) open: Option<FeedGap>,
    /// Gap that an earlier ingest of the feed left unfilled.
    pub(super) left: Option<GapRecord>,
    /// Search for entries that arrive with old dates.
    pub(super) late: LateArrivals,
    /// Source of entries that are older than those of the last document.
    pub(super) backfill: Option<Backfill>,
    /// Requests for pages with older entries.
    pub(super) pages: Arc<HourlyLimit>,
}

impl Default for Gaps {
    fn default() -> Self {
        Self {
            open: None,
            left: None,
            late: LateArrivals::default(),
            backfill: None,
            pages: Arc::new(HourlyLimit::new(PAGES_PER_HOUR)),
        }
    }
}

impl Gaps {
    /// Whether no gap is being filled.
    pub(super) fn are_closed(&self) -> bool {
        self.open.is_none() && self.left.is_none()
    }

    fn clear(&mut self) {
        (self.open, self.left) = (None, None);
    }
}

/// Number of a channel's last gaps that are searched for those of this feed: all that are kept.
pub(super) const LAST_GAPS: usize = 1000;

/// Number of attempts to fill a gap if that fails, with twice as many polls before each one as
/// before the previous one.
pub(super) const ATTEMPTS: u32 = 8;

/// Number of entries after a gap that makes a search for it pointless.
pub(super) const MUCH_SINCE: usize = 20_000;

/// Number of a channel's last updates that show the feed's last entries after a restart.
const LAST_UPDATES: u64 = 200;

/// Number of earlier batches that are read if none of these updates is of this feed.
const LOOKS: usize = 10;
const LAST_BYTES: usize = 16 << 20;

/// Number of entries of them that count: about the size of a document.
const LAST_ENTRIES: usize = 50;

impl Ingest {
    /// Records that a document shares no entry with the one before, and adds to its entries those
    /// that came and went in between, and those that have come since.
    pub(super) async fn fill_gap(&mut self, document: &mut Document) -> Result<(), StoreError> {
        self.end_or_widen_gap().await?;
        // A gap that is not filled yet, or that an earlier ingest left, is part of this one, and
        // other entries were in front of it.
        let (before, mut newer) = match (&self.gaps.open, &self.gaps.left) {
            (Some(hole), _) => (hole.before.clone(), hole.newer.clone()),
            (None, Some(gap)) => self.around(gap).await?,
            (None, None) => (self.before().await?, HashSet::new()),
        };
        if before.never {
            // The feed was read, and empty.
            return Ok(());
        }
        let mut record = match document.gap.take() {
            // The store failed during an earlier attempt.
            Some(record) => record,
            None => self.notice(document).await?,
        };
        document.gap = Some(record.clone());
        self.show_gap(&record);
        let Some(backfill) = document.backfill.clone() else {
            record.state = GapState::Open;
            let limit = if self.schedule.is_at_minimum() {
                "minimum"
            } else {
                "maximum"
            };
            record.detail = format!(
                "the feed offers no archive of entries that have left it: poll more often, with a \
                 lower {limit} of the time between polls"
            );
            document.gap = Some(record);
            self.gaps.clear();
            return Ok(());
        };
        if !self.settings.gaps.fill {
            record.state = GapState::Open;
            record.detail = "it is not looked into".into();
            document.gap = Some(record);
            self.gaps.left = None;
            return Ok(());
        }
        newer.extend(document.seen.ids.iter().cloned());
        let mut hole = self.new_gap(record, backfill, before, newer, &document.seen);
        let (found, record) = match self.search_gap(&mut hole).await {
            Ok(found) => found,
            Err(error) => {
                self.gaps.open = Some(hole);
                return Err(error);
            }
        };
        self.gaps.clear();
        let SearchResult { entries, later, .. } = found;
        // The document keeps them until they are stored, and no search starts before that.
        let both = entries.iter().chain(&later);
        hole.newer.extend(both.map(|entry| entry.id.clone()));
        self.metrics.gap_entries.inc_by(entries.len() as u64);
        hole.record = record;
        document.gap = Some(hole.record.clone());
        self.keep(hole);
        // The next document may have only these.
        let ids = later.iter().map(|entry| entry.id.clone());
        document.seen.ids.extend(ids);
        // Feeds have the newest first, and so does this.
        document.entries.splice(0..0, later);
        document.entries.extend(entries);
        Ok(())
    }

    /// Merges the previous gap into the one that was just noticed, or ends it if it takes too much
    /// memory.
    async fn end_or_widen_gap(&mut self) -> Result<(), StoreError> {
        let Some(mut hole) = self.gaps.open.take() else {
            return Ok(());
        };
        let stored = self.store_unstored(&mut hole).await;
        let is_suspected = hole.record.state == GapState::Suspected;
        if stored.is_err() || (is_suspected && hole.newer.len() <= MUCH_SINCE) {
            self.gaps.open = Some(hole);
            return stored;
        }
        let mut record = hole.record;
        if is_suspected {
            record.state = some(record.entries);
            record
                .detail
                .push_str("; there was another gap before that");
        }
        self.settle(record).await;
        Ok(())
    }

    /// Searches again after a failed attempt, and stores the result.
    pub(super) async fn fill_again(&mut self) -> Result<(), EndReason> {
        if let Err(error) = self.resume_left_gap().await {
            return self.end_or_wait(&error);
        }
        let Some(mut hole) = self.gaps.open.take() else {
            return Ok(());
        };
        hole.wait = hole.wait.saturating_sub(1);
        let is_time = hole.due().is_some_and(|due| due <= Instant::now());
        if !self.pending.is_empty() || !(is_time || hole.unstored.is_some()) {
            self.gaps.open = Some(hole);
            return self.probe_store().await;
        }
        if let Err(error) = self.find_and_store(&mut hole).await {
            self.gaps.open = Some(hole);
            return self.end_or_wait(&error);
        }
        self.store_works();
        self.settle(hole.record.clone()).await;
        self.keep(hole);
        Ok(())
    }

    /// Returns the time of the next attempt to fill the gap, with or without a poll.
    pub(super) fn gap_due(&self) -> Option<Instant> {
        let rests = !self.pending.is_empty() || self.storing.is_failing();
        self.gaps.open.as_ref().filter(|_| !rests)?.due()
    }

    /// Probes the store while nothing waits to be stored, because nothing else would show its
    /// recovery.
    async fn probe_store(&mut self) -> Result<(), EndReason> {
        if !self.pending.is_empty() || !self.storing.is_failing() {
            return Ok(());
        }
        match self.store.version().await {
            Ok(_) => {
                self.store_works();
                Ok(())
            }
            Err(error) => self.end_or_wait(&error),
        }
    }

    async fn find_and_store(&mut self, hole: &mut FeedGap) -> Result<(), StoreError> {
        if hole.unstored.is_none() {
            let (found, record) = self.search_gap(hole).await?;
            let mut entries = found.later;
            entries.extend(found.entries);
            hole.share.set(entries.iter().map(size).sum());
            hole.unstored = Some(UnstoredEntries { entries, record });
        }
        self.store_unstored(hole).await
    }

    /// Stores the entries that were found, and only then counts them.
    async fn store_unstored(&mut self, hole: &mut FeedGap) -> Result<(), StoreError> {
        let Some(UnstoredEntries { entries, record }) = &hole.unstored else {
            return Ok(());
        };
        let known = self.known(entries).await?;
        // Entries that are known by now are stored already, or came with the feed, which is never
        // older.
        let new = entries
            .iter()
            .filter(|entry| !known.contains_key(&entry.id));
        let new: Vec<Entry> = new.cloned().collect();
        if let Some(changes) = self.detect_changes(new, known).await {
            self.store_found(&changes.drafts).await?;
            // An earlier attempt may have stored all of it and failed to report so.
            self.wake.notify_one();
            self.metrics
                .gap_entries
                .inc_by(record.entries - hole.record.entries);
            hole.newer
                .extend(entries.iter().map(|entry| entry.id.clone()));
            hole.record = record.clone();
        } else {
            let record = &mut hole.record;
            record.detail = "change detection failed for the found entries; see the log".into();
            if hole.attempts >= ATTEMPTS {
                record.state = some(record.entries);
            }
        }
        hole.unstored = None;
        hole.share.set(0);
        Ok(())
    }

    /// Searches for missing entries. Returns them, and the record of the gap for after they are
    /// stored.
    async fn search_gap(
        &mut self,
        hole: &mut FeedGap,
    ) -> Result<(SearchResult, GapRecord), StoreError> {
        hole.wait = 1 << hole.attempts.min(ATTEMPTS);
        hole.attempts += 1;
        // The feed may link to a newer archive document by now.
        if let Some(backfill) = &self.gaps.backfill {
            hole.backfill.clone_from(backfill);
        }
        let found = self.find(hole).await?;
        let mut record = hole.record.clone();
        record.entries += found.entries.len() as u64;
        let count = record.entries;
        let what = match hole.backfill {
            Backfill::Archive(_) => "in the feed's archive",
            Backfill::PublicInbox(_) => "by the search of the list's archive",
        };
        let some = some(count);
        if let SearchEnd::Unproven(_) = &found.end {
            hole.wait = 0;
            hole.not_before = Instant::now() + self.settings.gaps.pause * (1 << hole.unproven);
            hole.unproven += 1;
        }
        (record.state, record.detail) = match &found.end {
            SearchEnd::Reached if count == 0 => {
                (GapState::Filled, "nothing was missing".to_owned())
            }
            SearchEnd::Reached => (
                GapState::Filled,
                format!("{count} entries were found {what}"),
            ),
            SearchEnd::Exhausted => (
                some,
                format!("{count} entries were found {what}, which does not go back far enough"),
            ),
            SearchEnd::Bound(bound) => {
                (some, format!("{count} entries were found {what}; {bound}"))
            }
            SearchEnd::Unproven(why) if hole.attempts < ATTEMPTS => (
                GapState::Suspected,
                format!("{count} entries were found {what}; it is asked again, because {why}"),
            ),
            SearchEnd::Unproven(why) => (
                some,
                format!(
                    "{count} entries were found {what}; it is not certain that these are all: \
                     {why}"
                ),
            ),
            SearchEnd::Failed(why) if hole.attempts < ATTEMPTS => (
                GapState::Suspected,
                format!("{count} entries were found {what}; it is tried again, because {why}"),
            ),
            SearchEnd::Failed(why) => (
                some,
                format!("{count} entries were found {what}; then it failed: {why}"),
            ),
        };
        Ok((found, record))
    }

    /// Keeps a gap that needs another attempt.
    fn keep(&mut self, hole: FeedGap) {
        // Of many simultaneous arrivals, some may have old dates.
        self.gaps
            .late
            .move_forward_to(Instant::now() + self.settings.gaps.pause);
        if hole.record.state == GapState::Suspected {
            self.gaps.open = Some(hole);
        }
    }

    /// Counts, logs and records a gap that was just noticed.
    async fn notice(&self, document: &Document) -> Result<GapRecord, StoreError> {
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        let open = self.gaps.open.as_ref().map(|hole| &hole.record);
        let mut record = match open.or(self.gaps.left.as_ref()) {
            Some(gap) => gap.clone(),
            None => GapRecord {
                id: 0,
                url: url.clone(),
                at_ms: now_ms(),
                state: GapState::Suspected,
                detail: String::new(),
                entries: 0,
                after: Some(self.store.channels().get(channel).await?.head),
            },
        };
        record.state = GapState::Suspected;
        record.detail = format!(
            "none of its {} entries was in the document before",
            document.entries.len()
        );
        record.id = self.store.gaps().record(channel, &record).await?;
        self.metrics.suspected_gaps.inc();
        warn!(
            feed = %url,
            entries = document.entries.len(),
            "suspected gap: no entry of the previous document; others may have been missed"
        );
        Ok(record)
    }

    /// Logs and records the result of a gap.
    pub(super) async fn settle(&self, record: GapRecord) {
        let url = &self.settings.feed.url;
        let detail = &record.detail;
        match record.state {
            GapState::Filled => info!(feed = %url, detail, "gap filled"),
            GapState::Suspected => info!(feed = %url, detail, "gap not filled yet; retrying"),
            GapState::Partly | GapState::Open => {
                self.metrics.open_gaps.inc();
                warn!(feed = %url, state = %record.state, detail, "gap not filled; giving up");
            }
        }
        self.show_gap(&record);
        self.record(&record).await;
    }

    /// Records the result of a gap.
    pub(super) async fn record(&self, record: &GapRecord) {
        let channel = &self.settings.channel;
        if let Err(error) = self.store.gaps().record(channel, record).await {
            debug!(%error, "gap record not written");
        }
    }

    pub(super) fn show_gap(&self, record: &GapRecord) {
        self.status
            .send_modify(|status| status.gap = Some(shown(record)));
    }

    /// Returns the summary of the last document of the feed.
    async fn before(&self) -> Result<DocumentSummary, StoreError> {
        match &self.history {
            History::Seen(before) => Ok(before.clone()),
            History::None => Ok(DocumentSummary::default()),
            History::Stored(at) => self.before_restart(*at).await,
        }
    }

    /// Returns the same from stored updates.
    async fn before_restart(&self, at: Option<Timestamp>) -> Result<DocumentSummary, StoreError> {
        let head = self
            .store
            .channels()
            .get(&self.settings.channel)
            .await?
            .head;
        self.stored_up_to(head, at).await
    }

    /// Returns the last updates of the feed that were stored up to a seq.
    pub(super) async fn stored_up_to(
        &self,
        last: u64,
        at: Option<Timestamp>,
    ) -> Result<DocumentSummary, StoreError> {
        let channel = &self.settings.channel;
        let mut last = last;
        for _ in 0..LOOKS {
            let from = last.saturating_sub(LAST_UPDATES) + 1;
            let limit = usize::try_from(last + 1 - from).unwrap_or(usize::MAX);
            let mut updates = self
                .store
                .updates()
                .read(channel, from, limit, LAST_BYTES)
                .await?;
            // Some may have been evicted, so that the batch extends further.
            updates.retain(|update| update.seq <= last);
            let url = self.settings.feed.url.clone();
            let ours = tokio::task::spawn_blocking(move || {
                let updates = updates.iter().rev();
                let updates = updates.filter_map(|update| payload::decode(&update.encoded).ok());
                let ours = updates.filter(|update| update.feed_url == url);
                let ours = ours.take(LAST_ENTRIES).map(|update| update.entry);
                ours.collect::<Vec<Entry>>()
            });
            // If this fails, only the time is known.
            let Ok(ours) = ours.await else {
                return Ok(DocumentSummary::of(&[], at));
            };
            if !ours.is_empty() {
                return Ok(DocumentSummary::of(&ours, at));
            }
            if from == 1 {
                return Ok(DocumentSummary {
                    never: true,
                    ..DocumentSummary::of(&[], at)
                });
            }
            last = from - 1;
        }
        Ok(DocumentSummary::of(&[], at))
    }
}

/// Returns the state of a gap that ends with this number of found entries.
pub(super) fn some(entries: u64) -> GapState {
    if entries > 0 {
        GapState::Partly
    } else {
        GapState::Open
    }
}

/// Returns a gap as the status shows it.
pub(super) fn shown(record: &GapRecord) -> GapStatus {
    GapStatus {
        at_ms: record.at_ms,
        state: record.state.as_str(),
        detail: record.detail.clone(),
        entries: record.entries,
    }
}
