//! Suspected gaps: a document that shares no entry with the one before it may have come too late.
//! What was in the feed in between is looked for where the feed lets that be done, at once, and a
//! few times more if that fails. What became of it is recorded.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use feed::Entry;
use feed::gap::Backfill;
use feed::payload;
use jiff::Timestamp;
use store::{GapRecord, GapState, StoreError};
use tracing::{debug, info, warn};

use super::bounds::Share;
use super::document::{Before, Document, size};
use super::finding::{End, Found};
use super::leftover::MUCH_SINCE;
use super::{Ended, GapStatus, History, Ingest, now_ms};

/// The search for entries that the feed's documents did not have.
#[derive(Debug, Clone, Copy)]
pub struct GapSettings {
    /// Whether they are looked for at all.
    pub fill: bool,
    /// Wait before an archive is asked again whose answer proved nothing; doubles each time.
    pub pause: Duration,
    /// Time between looks for late arrivals; `None` for never.
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

/// So many of a channel's last gaps are looked at for those of this feed: all that are kept.
pub(super) const LAST_GAPS: usize = 1000;

/// A gap is looked into so often if that fails, with twice as many polls before each time as before
/// the last one.
pub(super) const ATTEMPTS: u32 = 8;

/// From so many of a channel's last updates it is seen what was last in the feed, after a restart.
const LAST_UPDATES: u64 = 200;

/// If none of them is of this feed, it is looked so often in as many before them.
const LOOKS: usize = 10;
const LAST_BYTES: usize = 16 << 20;

/// So many of them count: about what a document has.
const LAST_ENTRIES: usize = 50;

/// What may be missing.
#[derive(Debug)]
pub(super) struct Hole {
    /// What is recorded of it.
    pub(super) record: GapRecord,
    /// How to get older entries than those of the document that came after it.
    pub(super) backfill: Backfill,
    /// What the document before it had.
    pub(super) before: Before,
    /// The ids of entries that came after it, or were found in it.
    pub(super) newer: HashSet<String>,
    /// The ids of the feed's last document.
    pub(super) latest: HashSet<String>,
    /// The entry after it that is next to it.
    pub(super) edge: Option<String>,
    /// What was found and could not be stored yet.
    pub(super) unstored: Option<Unstored>,
    /// The memory that it takes.
    pub(super) share: Share,
    pub(super) attempts: u32,
    /// So many polls are waited before the next attempt.
    pub(super) wait: u32,
    /// Attempts whose answers proved nothing.
    pub(super) unproven: u32,
    /// The next attempt is not before this.
    pub(super) not_before: Instant,
}

/// What an attempt found. It counts as found only once it is stored.
#[derive(Debug)]
pub(super) struct Unstored {
    /// Newest first.
    entries: Vec<Entry>,
    /// What is to be recorded of the gap then.
    record: GapRecord,
}

impl Hole {
    /// Another document came.
    pub(super) fn pass(&mut self, seen: &Before) {
        self.newer.extend(seen.ids.iter().cloned());
        self.latest.clone_from(&seen.ids);
    }

    /// When it is to be looked into again whether or not there is a poll; `None` where polls are
    /// waited for.
    fn due(&self) -> Option<Instant> {
        let waits = self.wait > 0 || self.unstored.is_some() || !self.share.has_room();
        (!waits).then_some(self.not_before)
    }
}

impl Ingest {
    /// Records that a document shares no entry with the one before, and adds to its entries what
    /// came and went in between, and what has come since.
    pub(super) async fn look_into(&mut self, document: &mut Document) -> Result<(), StoreError> {
        self.end_or_widen_hole().await?;
        // One that is not filled yet, or that an earlier ingest left, is part of this one, and had
        // other entries before it.
        let (before, mut newer) = match (&self.hole, &self.left) {
            (Some(hole), _) => (hole.before.clone(), hole.newer.clone()),
            (None, Some(gap)) => self.around(gap).await?,
            (None, None) => (self.before().await?, HashSet::new()),
        };
        if before.never {
            // It was read, and empty.
            return Ok(());
        }
        let mut record = match document.gap.take() {
            // The store failed while this was looked into.
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
                "the feed offers no backfill to entries that have left it: poll more often, with a \
                 lower {limit} of the time between polls"
            );
            document.gap = Some(record);
            (self.hole, self.left) = (None, None);
            return Ok(());
        };
        if !self.settings.gaps.fill {
            record.state = GapState::Open;
            record.detail = "it is not looked into".into();
            document.gap = Some(record);
            self.left = None;
            return Ok(());
        }
        newer.extend(document.seen.ids.iter().cloned());
        let mut hole = self.hole_of(record, backfill, before, newer, &document.seen);
        let (found, record) = match self.find_into(&mut hole).await {
            Ok(found) => found,
            Err(error) => {
                self.hole = Some(hole);
                return Err(error);
            }
        };
        (self.hole, self.left) = (None, None);
        let Found { entries, later, .. } = found;
        // The document keeps them until they are stored, and nothing is looked for before that.
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

    /// Another gap was noticed: has the one before it be a part of it, or ends it if that takes too
    /// much memory.
    async fn end_or_widen_hole(&mut self) -> Result<(), StoreError> {
        let Some(mut hole) = self.hole.take() else {
            return Ok(());
        };
        let stored = self.store_unstored(&mut hole).await;
        let is_suspected = hole.record.state == GapState::Suspected;
        if stored.is_err() || (is_suspected && hole.newer.len() <= MUCH_SINCE) {
            self.hole = Some(hole);
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

    /// Tries again to find what could not be found because something failed, and stores it.
    pub(super) async fn fill_again(&mut self) -> Result<(), Ended> {
        if let Err(error) = self.go_on_with_gap().await {
            return self.end_or_wait(&error);
        }
        let Some(mut hole) = self.hole.take() else {
            return Ok(());
        };
        hole.wait = hole.wait.saturating_sub(1);
        let is_time = hole.due().is_some_and(|due| due <= Instant::now());
        if !self.pending.is_empty() || !(is_time || hole.unstored.is_some()) {
            self.hole = Some(hole);
            return self.probe_store().await;
        }
        if let Err(error) = self.find_and_store(&mut hole).await {
            self.hole = Some(hole);
            return self.end_or_wait(&error);
        }
        self.store_works();
        self.settle(hole.record.clone()).await;
        self.keep(hole);
        Ok(())
    }

    /// When to look into the gap again, whether or not there is a poll.
    pub(super) fn hole_due(&self) -> Option<Instant> {
        let rests = !self.pending.is_empty() || self.storing.fails();
        self.hole.as_ref().filter(|_| !rests)?.due()
    }

    /// Where nothing waits to be stored, nothing else would show that the store works again.
    async fn probe_store(&mut self) -> Result<(), Ended> {
        if !self.pending.is_empty() || !self.storing.fails() {
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

    async fn find_and_store(&mut self, hole: &mut Hole) -> Result<(), StoreError> {
        if hole.unstored.is_none() {
            let (found, record) = self.find_into(hole).await?;
            let mut entries = found.later;
            entries.extend(found.entries);
            hole.share.set(entries.iter().map(size).sum());
            hole.unstored = Some(Unstored { entries, record });
        }
        self.store_unstored(hole).await
    }

    /// Stores what was found, and only then takes it for found.
    async fn store_unstored(&mut self, hole: &mut Hole) -> Result<(), StoreError> {
        let Some(Unstored { entries, record }) = &hole.unstored else {
            return Ok(());
        };
        let known = self.known(entries).await?;
        // What is known by now is stored already, or came with the feed, which is never older.
        let new = entries
            .iter()
            .filter(|entry| !known.contains_key(&entry.id));
        let new: Vec<Entry> = new.cloned().collect();
        if let Some(news) = self.news(new, known).await {
            self.store_found(&news.drafts).await?;
            // An earlier attempt may have stored all of it without being able to say so.
            self.wake.notify_one();
            self.metrics
                .gap_entries
                .inc_by(record.entries - hole.record.entries);
            hole.newer
                .extend(entries.iter().map(|entry| entry.id.clone()));
            hole.record = record.clone();
        } else {
            let record = &mut hole.record;
            record.detail = "what was found could not be worked out; the log says why".into();
            if hole.attempts >= ATTEMPTS {
                record.state = some(record.entries);
            }
        }
        hole.unstored = None;
        hole.share.set(0);
        Ok(())
    }

    /// Looks for what is missing. What was found, and what to record of the gap once it is stored.
    async fn find_into(&mut self, hole: &mut Hole) -> Result<(Found, GapRecord), StoreError> {
        hole.wait = 1 << hole.attempts.min(ATTEMPTS);
        hole.attempts += 1;
        // The feed may link to a newer archive document by now.
        if let Some(backfill) = &self.backfill {
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
        if let End::Unproven(_) = &found.end {
            hole.wait = 0;
            hole.not_before = Instant::now() + self.settings.gaps.pause * (1 << hole.unproven);
            hole.unproven += 1;
        }
        (record.state, record.detail) = match &found.end {
            End::Reached if count == 0 => (GapState::Filled, "nothing was missing".to_owned()),
            End::Reached => (
                GapState::Filled,
                format!("{count} entries were found {what}"),
            ),
            End::Exhausted => (
                some,
                format!("{count} entries were found {what}, which does not go back far enough"),
            ),
            End::Bound(bound) => (some, format!("{count} entries were found {what}; {bound}")),
            End::Unproven(why) if hole.attempts < ATTEMPTS => (
                GapState::Suspected,
                format!("{count} entries were found {what}; it is asked again, because {why}"),
            ),
            End::Unproven(why) => (
                some,
                format!(
                    "{count} entries were found {what}; it is not certain that these are all: \
                     {why}"
                ),
            ),
            End::Failed(why) if hole.attempts < ATTEMPTS => (
                GapState::Suspected,
                format!("{count} entries were found {what}; it is tried again, because {why}"),
            ),
            End::Failed(why) => (
                some,
                format!("{count} entries were found {what}; then it failed: {why}"),
            ),
        };
        Ok((found, record))
    }

    /// Keeps what has to be looked into again.
    fn keep(&mut self, hole: Hole) {
        // Where many came at once, some may have come with old dates.
        self.late
            .no_later_than(Instant::now() + self.settings.gaps.pause);
        if hole.record.state == GapState::Suspected {
            self.hole = Some(hole);
        }
    }

    /// Counts, logs and records a gap that was just noticed.
    async fn notice(&self, document: &Document) -> Result<GapRecord, StoreError> {
        let (channel, url) = (&self.settings.channel, &self.settings.feed.url);
        let open = self.hole.as_ref().map(|hole| &hole.record);
        let mut record = match open.or(self.left.as_ref()) {
            Some(gap) => gap.clone(),
            None => GapRecord {
                id: 0,
                url: url.clone(),
                at_ms: i64::try_from(now_ms()).unwrap_or(i64::MAX),
                state: GapState::Suspected,
                detail: String::new(),
                entries: 0,
                after: Some(self.store.channel(channel).await?.head),
            },
        };
        record.state = GapState::Suspected;
        record.detail = format!(
            "none of its {} entries was in the document before",
            document.entries.len()
        );
        record.id = self.store.record_gap(channel, &record).await?;
        self.metrics.suspected_gaps.inc();
        warn!(
            "suspected gap: none of the {} entries of the feed at {url} was in it before, so others \
             may have come and gone unseen",
            document.entries.len()
        );
        Ok(record)
    }

    /// Records and says what became of a gap.
    pub(super) async fn settle(&self, record: GapRecord) {
        let url = &self.settings.feed.url;
        let detail = &record.detail;
        match record.state {
            GapState::Filled => info!("the gap in the feed at {url} is filled: {detail}"),
            GapState::Suspected => {
                info!("the gap in the feed at {url} is not filled yet: {detail}")
            }
            GapState::Partly | GapState::Open => {
                self.metrics.open_gaps.inc();
                warn!(
                    "the gap in the feed at {url} stays {}: {detail}",
                    record.state
                );
            }
        }
        self.show_gap(&record);
        self.record(&record).await;
    }

    /// Records what became of a gap.
    pub(super) async fn record(&self, record: &GapRecord) {
        let channel = &self.settings.channel;
        if let Err(error) = self.store.record_gap(channel, record).await {
            debug!("what became of the gap could not be recorded: {error}");
        }
    }

    pub(super) fn show_gap(&self, record: &GapRecord) {
        self.status
            .send_modify(|status| status.gap = Some(shown(record)));
    }

    /// What was last seen of the feed.
    async fn before(&self) -> Result<Before, StoreError> {
        match &self.history {
            History::Seen(before) => Ok(before.clone()),
            History::None => Ok(Before::default()),
            History::Stored(at) => self.before_restart(*at).await,
        }
    }

    /// The same by what is stored.
    async fn before_restart(&self, at: Option<Timestamp>) -> Result<Before, StoreError> {
        let head = self.store.channel(&self.settings.channel).await?.head;
        self.stored_up_to(head, at).await
    }

    /// What was last stored of the feed up to a seq.
    pub(super) async fn stored_up_to(
        &self,
        last: u64,
        at: Option<Timestamp>,
    ) -> Result<Before, StoreError> {
        let channel = &self.settings.channel;
        let mut last = last;
        for _ in 0..LOOKS {
            let from = last.saturating_sub(LAST_UPDATES) + 1;
            let limit = usize::try_from(last + 1 - from).unwrap_or(usize::MAX);
            let mut updates = self.store.updates(channel, from, limit, LAST_BYTES).await?;
            // Some may have been let go of, so that what was read reaches further.
            updates.retain(|update| update.seq <= last);
            let url = self.settings.feed.url.clone();
            let ours = tokio::task::spawn_blocking(move || {
                let updates = updates.iter().rev();
                let updates = updates.filter_map(|update| payload::decode(&update.encoded).ok());
                let ours = updates.filter(|update| update.feed_url == url);
                let ours = ours.take(LAST_ENTRIES).map(|update| update.entry);
                ours.collect::<Vec<Entry>>()
            });
            // Should it fail, nothing is known of it but the time.
            let Ok(ours) = ours.await else {
                return Ok(Before::of(&[], at));
            };
            if !ours.is_empty() {
                return Ok(Before::of(&ours, at));
            }
            if from == 1 {
                return Ok(Before {
                    never: true,
                    ..Before::of(&[], at)
                });
            }
            last = from - 1;
        }
        Ok(Before::of(&[], at))
    }
}

/// What a gap is of which so many entries were found, and no more will be.
pub(super) fn some(entries: u64) -> GapState {
    if entries > 0 {
        GapState::Partly
    } else {
        GapState::Open
    }
}

/// A gap as the status shows it.
pub(super) fn shown(record: &GapRecord) -> GapStatus {
    GapStatus {
        at_ms: record.at_ms,
        state: record.state.as_str(),
        detail: record.detail.clone(),
        entries: record.entries,
    }
}
