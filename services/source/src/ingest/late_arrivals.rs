//! Late arrivals: mails that reach a list's archive with dates before those that its feed shows, so
//! that they never are in the feed. For the feed of a public-inbox, the ingest reads its search
//! periodically, and compares the result with the previous one. The search runs alongside the
//! polls: a long response never delays a poll, which could let entries leave the feed unseen.

use std::collections::{HashMap, HashSet};
use std::future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feed::Entry;
use feed::fetch::Fetcher;
use feed::gap::{Backfill, Clock, Search};
use feed::parse::ParsedFeed;
use jiff::{SignedDuration, Timestamp};
use store::{GapRecord, GapState, Store, StoreError};
use tokio::task::JoinSet;
use tracing::{debug, info};

use super::document::{DocumentSummary, date, size};
use super::rate_limit::HourlyLimit;
use super::search::{ALMOST_FULL, BYTES, NOTHING, OVERLAP, Pages, SearchEnd, TIME, WalkStop};
use super::{EndReason, History, Ingest};
use crate::clock::now_ms;

/// Mails with older dates are not searched for.
const BACK: SignedDuration = SignedDuration::from_hours(24);

/// Largest number of requests to the feed's server for one search; on a busy list the search then
/// does not reach back for all of [`BACK`].
const PAGES: usize = 10;

/// Largest number of requests per hour for all searches. These do not count against the limit for
/// gaps.
const PAGES_PER_HOUR: usize = 60;

/// Smallest time between two searches as a fraction of the ordinary time, whatever gaps occur.
const LEAST: u32 = 6;

/// Largest number of entries that are remembered without being stored. Only an invented search
/// result has more.
const STRANGERS: usize = 20_000;

/// State of the search for late arrivals.
#[derive(Debug)]
pub(super) struct LateArrivals {
    /// Time of the next search.
    due: Instant,
    /// Earliest time of the next search.
    not_before: Instant,
    /// Result of the last search.
    listed: Option<Listing>,
    /// The search in progress, if any. It is cancelled with the ingest, and the next one finds the
    /// same.
    looks: JoinSet<Result<LateSearch, WalkStop>>,
    /// Requests for pages of the search.
    pages: Arc<HourlyLimit>,
}

/// Listing of a search.
#[derive(Debug, Clone)]
struct Listing {
    /// Date since which everything was searched.
    from: Timestamp,
    /// Entries that are not stored, with their dates: they existed before the feed was first read,
    /// or cannot be sent.
    strangers: HashMap<String, Timestamp>,
}

/// Result of one search.
#[derive(Debug)]
pub(super) struct LateSearch {
    /// Entries that arrived since the last search, newest first.
    late: Vec<Entry>,
    listed: Listing,
}

impl Default for LateArrivals {
    fn default() -> Self {
        Self {
            due: Instant::now(),
            not_before: Instant::now(),
            listed: None,
            looks: JoinSet::new(),
            pages: Arc::new(HourlyLimit::new(PAGES_PER_HOUR)),
        }
    }
}

impl LateArrivals {
    /// Moves the next search forward to this time, unless that is too soon after the last one.
    pub(super) fn move_forward_to(&mut self, due: Instant) {
        self.due = self.due.min(due.max(self.not_before));
    }

    /// Records that a search starts now.
    fn begin(&mut self, now: Instant, pause: Duration) {
        self.due = now + pause;
        self.not_before = now + pause / LEAST;
    }

    /// Waits for the result of the search in progress, for ever if there is none. Cancel-safe.
    pub(super) async fn next_result(&mut self) -> Result<LateSearch, WalkStop> {
        match self.looks.join_next().await {
            Some(Ok(look)) => look,
            Some(Err(error)) => Err(failed(format!("the search broke off: {error}"))),
            None => future::pending().await,
        }
    }
}

fn failed(why: String) -> WalkStop {
    WalkStop::End(SearchEnd::Failed(why))
}

impl Ingest {
    /// Returns the time of the next search; `None` while no search is possible.
    pub(super) fn late_due(&self) -> Option<Instant> {
        self.settings
            .gaps
            .late
            .filter(|_| self.settings.gaps.fill)?;
        let has_search = matches!(self.gaps.backfill, Some(Backfill::PublicInbox(_)));
        let was_read = matches!(self.history, History::Seen(_));
        let may =
            has_search && was_read && self.gaps.late.looks.is_empty() && self.can_store_late();
        may.then_some(self.gaps.late.due)
    }

    /// Whether late arrivals can be stored. Entries stored during the search of a gap would be
    /// mistaken for entries from before it.
    fn can_store_late(&self) -> bool {
        self.gaps.are_closed() && self.pending.is_empty() && !self.storing.is_failing()
    }

    /// Starts a search for late arrivals.
    pub(super) fn start_late_search(&mut self) {
        let gaps = self.settings.gaps;
        let pause = gaps.late.unwrap_or(gaps.pause);
        self.gaps.late.begin(Instant::now(), pause);
        let fetcher = match self.client.fetcher(&self.settings) {
            Ok(fetcher) => fetcher,
            Err(error) => {
                let url = &self.settings.feed.url;
                debug!(feed = %url, %error, "search for late arrivals failed");
                return;
            }
        };
        let (Some(Backfill::PublicInbox(search)), History::Seen(seen)) =
            (&self.gaps.backfill, &self.history)
        else {
            return;
        };
        let looker = LateSearcher {
            store: self.store.clone(),
            channel: self.settings.channel.clone(),
            url: self.settings.feed.url.clone(),
            fetcher,
            pages: Arc::clone(&self.gaps.late.pages),
            search: search.clone(),
            seen: seen.clone(),
            before: self.gaps.late.listed.clone(),
        };
        self.gaps.late.looks.spawn(async move {
            match tokio::time::timeout(TIME, looker.look()).await {
                Ok(look) => look,
                Err(_) => Err(failed(format!("it took more than {} s", TIME.as_secs()))),
            }
        });
    }

    /// Stores the result of a search.
    pub(super) async fn finish_late_search(
        &mut self,
        look: Result<LateSearch, WalkStop>,
    ) -> Result<(), EndReason> {
        let gaps = self.settings.gaps;
        if !self.can_store_late() {
            // The next search finds the same: it is compared with the one before this.
            self.gaps.late.move_forward_to(Instant::now() + gaps.pause);
            return Ok(());
        }
        match self.store_late(look).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_fenced() => self.end_or_wait(&error),
            Err(error) => {
                let url = &self.settings.feed.url;
                debug!(feed = %url, %error, "late arrivals not stored; retrying");
                // Some may be stored all the same.
                self.wake.notify_one();
                self.gaps.late.move_forward_to(Instant::now() + gaps.pause);
                Ok(())
            }
        }
    }

    async fn store_late(&mut self, look: Result<LateSearch, WalkStop>) -> Result<(), StoreError> {
        let look = match look {
            Ok(look) => look,
            Err(WalkStop::Store(error)) => return Err(error),
            Err(WalkStop::End(end)) => {
                let url = &self.settings.feed.url;
                debug!(feed = %url, ?end, "search for late arrivals failed");
                return Ok(());
            }
        };
        let LateSearch {
            mut late,
            mut listed,
        } = look;
        // Concurrent polls may have brought the same.
        let known = self.known(&late).await?;
        late.retain(|entry| !known.contains_key(&entry.id));
        // An entry that is too large to be sent is found once, too.
        let ids: Vec<_> = late
            .iter()
            .filter_map(|e| Some((e.id.clone(), date(e)?)))
            .collect();
        if !late.is_empty()
            && let Some(changes) = self.detect_changes(late, HashMap::new()).await
            && !changes.drafts.is_empty()
        {
            let channel = &self.settings.channel;
            let after = self.store.channels().get(channel).await?.head;
            self.store_found(&changes.drafts).await?;
            let count = changes.drafts.len() as u64;
            self.metrics.gap_entries.inc_by(count);
            let record = GapRecord {
                id: 0,
                url: self.settings.feed.url.clone(),
                at_ms: now_ms(),
                state: GapState::Filled,
                detail: format!(
                    "{count} entries arrived with dates before those that the feed showed, and \
                     were found by the search of the list's archive"
                ),
                entries: count,
                after: Some(after),
            };
            info!(feed = %record.url, count, "late arrivals found");
            // A gap that could not be filled stays visible.
            let shown = self.status.borrow().gap.as_ref().map(|gap| gap.state);
            if shown.is_none_or(|state| state == GapState::Filled.as_str()) {
                self.show_gap(&record);
            }
            self.record(&record).await;
        }
        listed.strangers.extend(ids);
        if listed.strangers.len() > STRANGERS {
            debug!(feed = %self.settings.feed.url, "too many entries in the search; starting over");
            self.gaps.late.listed = None;
            return Ok(());
        }
        self.gaps.late.listed = Some(listed);
        Ok(())
    }
}

/// Search in progress, with its own copy of all state, because the ingest continues concurrently.
struct LateSearcher {
    store: Store,
    channel: String,
    url: String,
    fetcher: Arc<Fetcher>,
    pages: Arc<HourlyLimit>,
    search: Search,
    /// The feed's last document.
    seen: DocumentSummary,
    /// Listing of the search before.
    before: Option<Listing>,
}

impl LateSearcher {
    /// Compares the listing of the search with the previous one.
    async fn look(self) -> Result<LateSearch, WalkStop> {
        let seen = &self.seen;
        let now = Timestamp::now();
        let back = now.checked_sub(BACK).unwrap_or(Timestamp::MIN);
        // The feed shows everything that is dated after its oldest entry.
        let to = seen.dates.first().copied().unwrap_or(now);
        let mut look = LateSearch {
            late: Vec::new(),
            listed: Listing {
                from: to,
                strangers: HashMap::new(),
            },
        };
        let (mut offset, mut bytes) = (0, 0);
        let mut last_page = HashSet::new();
        let mut pages = Pages::new(self.pages, self.fetcher, PAGES);
        let mut is_whole = to <= back;
        while !is_whole {
            let address = self.search.url(Clock::Received, back, Some(to), offset);
            let page = match pages.get(&address).await {
                Ok((page, _)) => page,
                Err(WalkStop::End(SearchEnd::Failed(why))) if why == NOTHING => {
                    ParsedFeed::default()
                }
                Err(WalkStop::End(SearchEnd::Bound(_))) => break,
                Err(stop) => return Err(stop),
            };
            let ids = page.entries.iter().map(|entry| entry.id.clone());
            let ids: HashSet<String> = ids.collect();
            if offset > 0 && ids.is_disjoint(&last_page) {
                return Err(failed("the index has changed between two pages".to_owned()));
            }
            last_page = ids;
            let listed = page.entries.len() + page.skipped.len();
            let ids: Vec<&str> = page.entries.iter().map(|entry| entry.id.as_str()).collect();
            let known = self
                .store
                .entries()
                .hashes(&self.channel, &self.url, &ids)
                .await?;
            for entry in page.entries {
                let Some(dated) = date(&entry) else { continue };
                look.listed.from = look.listed.from.min(dated);
                if known.contains_key(&entry.id) || seen.ids.contains(&entry.id) {
                    continue;
                }
                let is_late = self.before.as_ref().is_some_and(|listed| {
                    dated >= listed.from && !listed.strangers.contains_key(&entry.id)
                });
                if is_late && !look.late.iter().any(|late| late.id == entry.id) {
                    bytes += size(&entry);
                    look.late.push(entry);
                } else if !is_late {
                    look.listed.strangers.insert(entry.id, dated);
                }
            }
            is_whole = listed <= ALMOST_FULL;
            if bytes > BYTES {
                break;
            }
            offset += listed.saturating_sub(OVERLAP);
        }
        if is_whole {
            look.listed.from = look.listed.from.min(back);
        }
        // An older index may lack entries that were present the last time.
        let LateSearch { listed, .. } = &mut look;
        if let Some(before) = &self.before {
            let before = before.strangers.iter();
            let still = before.filter(|(_, dated)| **dated >= listed.from);
            listed
                .strangers
                .extend(still.map(|(id, dated)| (id.clone(), *dated)));
        }
        Ok(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gaps_do_not_shorten_the_minimum_time_between_searches() {
        let (mut late, now) = (LateArrivals::default(), Instant::now());
        let minute = Duration::from_secs(60);
        late.begin(now, 30 * minute);
        assert_eq!(late.due, now + 30 * minute);
        for seconds in [0, 35, 299] {
            late.move_forward_to(now + Duration::from_secs(seconds));
            assert_eq!(late.due, now + 5 * minute);
        }
        late.begin(now, 30 * minute);
        late.move_forward_to(now + 7 * minute);
        assert_eq!(late.due, now + 7 * minute);
        late.move_forward_to(now + 9 * minute);
        assert_eq!(late.due, now + 7 * minute);
    }
}
