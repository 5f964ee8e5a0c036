//! Late arrivals: mails that reach a list's archive with dates before those that its feed shows,
//! so that they never are in the feed. Where it is the feed of a public-inbox, its search is read
//! now and then, and compared with what it had the time before.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use feed::Entry;
use feed::gap::{Clock, Way};
use feed::parse::ParsedFeed;
use jiff::{SignedDuration, Timestamp};
use store::{GapRecord, GapState, StoreError};
use tracing::{debug, info};

use super::document::{date, size};
use super::finding::{ALMOST_FULL, BYTES, End, NOTHING, OVERLAP, Pages, Stop, TIME};
use super::{Ended, History, Ingest, now_ms};

/// Mails with older dates are not looked for.
const BACK: SignedDuration = SignedDuration::from_hours(24);

/// A look costs the feed's server at most this many requests; on a busy list it does not reach
/// back for all of [`BACK`] then.
const PAGES: usize = 10;

/// So many entries that are not stored are remembered. A search has more only if its server makes
/// them up.
const STRANGERS: usize = 20_000;

/// State of the search for late arrivals.
#[derive(Debug)]
pub(super) struct Late {
    /// When to look next.
    due: Instant,
    /// Result of the last look.
    listed: Option<Listed>,
}

/// Result of a look at the search.
#[derive(Debug, Clone)]
struct Listed {
    /// Everything dated since then was looked at.
    from: Timestamp,
    /// Those that are not stored, with their dates: they were there before the feed was first
    /// read, or cannot be sent.
    strangers: HashMap<String, Timestamp>,
}

/// One look at the search.
struct Look {
    /// Entries that arrived since the last one, newest first.
    late: Vec<Entry>,
    listed: Listed,
}

impl Default for Late {
    fn default() -> Self {
        Self {
            due: Instant::now(),
            listed: None,
        }
    }
}

impl Late {
    /// Has the next look at this time, unless it is earlier anyhow.
    pub(super) fn no_later_than(&mut self, due: Instant) {
        self.due = self.due.min(due);
    }
}

impl Ingest {
    /// When to look for late arrivals; `None` where they cannot be looked for at the moment.
    pub(super) fn late_due(&self) -> Option<Instant> {
        self.settings
            .gaps
            .late
            .filter(|_| self.settings.gaps.fill)?;
        let has_search = matches!(self.way, Some(Way::PublicInbox(_)));
        let was_read = matches!(self.history, History::Seen(_));
        let in_gap = self.hole.is_some() || self.left.is_some();
        let stores = self.pending.is_empty() && !self.storing.fails();
        (has_search && was_read && !in_gap && stores).then_some(self.late.due)
    }

    /// Looks for late arrivals, and stores them.
    pub(super) async fn look_for_late(&mut self) -> Result<(), Ended> {
        let gaps = self.settings.gaps;
        self.late.due = Instant::now() + gaps.late.unwrap_or(gaps.pause);
        match self.store_late().await {
            Ok(()) => Ok(()),
            Err(error) if error.is_fenced() => self.end_or_wait(&error),
            Err(error) => {
                let url = &self.settings.feed.url;
                debug!(%url, %error, "late arrivals could not be stored; trying again");
                // Some may be stored all the same.
                self.wake.notify_one();
                self.late.due = Instant::now() + gaps.pause;
                Ok(())
            }
        }
    }

    async fn store_late(&mut self) -> Result<(), StoreError> {
        let look = match tokio::time::timeout(TIME, self.look()).await {
            Ok(Ok(look)) => look,
            Ok(Err(Stop::Store(error))) => return Err(error),
            Ok(Err(Stop::End(end))) => {
                let url = &self.settings.feed.url;
                debug!(%url, ?end, "late arrivals could not be looked for");
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        let Look { late, mut listed } = look;
        // What is too large to be sent is found once, too.
        let ids: Vec<_> = late
            .iter()
            .filter_map(|e| Some((e.id.clone(), date(e)?)))
            .collect();
        if !late.is_empty()
            && let Some(news) = self.news(late, HashMap::new()).await
            && !news.drafts.is_empty()
        {
            let channel = &self.settings.channel;
            let after = self.store.channel(channel).await?.head;
            self.store_found(&news.drafts).await?;
            let count = news.drafts.len() as u64;
            self.metrics.gap_entries.inc_by(count);
            let record = GapRecord {
                id: 0,
                url: self.settings.feed.url.clone(),
                at_ms: i64::try_from(now_ms()).unwrap_or(i64::MAX),
                state: GapState::Filled,
                detail: format!(
                    "{count} entries arrived with dates before those that the feed showed, and \
                     were found by the search of the list's archive"
                ),
                entries: count,
                after: Some(after),
            };
            info!(url = %record.url, count, "late arrivals were found by the search");
            // A gap that could not be filled stays in sight.
            let shown = self.status.borrow().gap.as_ref().map(|gap| gap.state);
            if shown.is_none_or(|state| state == GapState::Filled.as_str()) {
                self.show_gap(&record);
            }
            self.record(&record).await;
        }
        listed.strangers.extend(ids);
        if listed.strangers.len() > STRANGERS {
            debug!(url = %self.settings.feed.url, "too many entries in the search; starting over");
            self.late.listed = None;
            return Ok(());
        }
        self.late.listed = Some(listed);
        Ok(())
    }

    /// Compares the search with what it had the time before.
    async fn look(&mut self) -> Result<Look, Stop> {
        let failed = |why: String| Stop::End(End::Failed(why));
        let fetcher = self.fetcher().map_err(|error| failed(error.to_string()))?;
        let (Some(Way::PublicInbox(search)), History::Seen(seen)) = (&self.way, &self.history)
        else {
            return Err(failed("the feed has no search".to_owned()));
        };
        let now = Timestamp::now();
        let back = now.checked_sub(BACK).unwrap_or(Timestamp::MIN);
        // The feed shows everything that is dated after its oldest entry.
        let to = seen.dates.first().copied().unwrap_or(now);
        let mut look = Look {
            late: Vec::new(),
            listed: Listed {
                from: to,
                strangers: HashMap::new(),
            },
        };
        let (mut offset, mut bytes) = (0, 0);
        let mut last_page = HashSet::new();
        let mut pages = Pages::new(self, fetcher, PAGES);
        let mut is_whole = to <= back;
        while !is_whole {
            let address = search.url(Clock::Received, back, Some(to), offset);
            let page = match pages.get(&address).await {
                Ok((page, _)) => page,
                Err(Stop::End(End::Failed(why))) if why == NOTHING => ParsedFeed::default(),
                Err(Stop::End(End::Bound(_))) => break,
                Err(stop) => return Err(stop),
            };
            let ids = page.entries.iter().map(|entry| entry.id.clone());
            let ids: HashSet<String> = ids.collect();
            if offset > 0 && ids.is_disjoint(&last_page) {
                return Err(failed("the index has changed between two pages".to_owned()));
            }
            last_page = ids;
            let listed = page.entries.len() + page.skipped.len();
            let known = self.known(&page.entries).await?;
            for entry in page.entries {
                let Some(dated) = date(&entry) else { continue };
                look.listed.from = look.listed.from.min(dated);
                if known.contains_key(&entry.id) || seen.ids.contains(&entry.id) {
                    continue;
                }
                let before = self.late.listed.as_ref();
                let is_late = before.is_some_and(|listed| {
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
        // An older index may lack what was there the last time.
        let Look { listed, .. } = &mut look;
        if let Some(before) = &self.late.listed {
            let before = before.strangers.iter();
            let still = before.filter(|(_, dated)| **dated >= listed.from);
            listed
                .strangers
                .extend(still.map(|(id, dated)| (id.clone(), *dated)));
        }
        Ok(look)
    }
}
