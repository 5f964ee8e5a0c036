//! Late arrivals: mails that reach a list's archive with dates before those that its feed shows,
//! so that they never are in the feed. Where it is the feed of a public-inbox, its search is read
//! now and then, and compared with what it had the time before. That goes on beside the polls: a
//! long answer never makes a poll late, which would have entries leave the feed unseen.

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

use super::document::{Before, date, size};
use super::finding::{ALMOST_FULL, BYTES, End, NOTHING, OVERLAP, Pages, Stop, TIME};
use super::hourly::Hourly;
use super::{Ended, History, Ingest, now_ms};

/// Mails with older dates are not looked for.
const BACK: SignedDuration = SignedDuration::from_hours(24);

/// A look costs the feed's server at most this many requests; on a busy list it does not reach
/// back for all of [`BACK`] then.
const PAGES: usize = 10;

/// All looks cost it at most so many in an hour. They take none of those for gaps.
const PAGES_PER_HOUR: usize = 60;

/// Between two looks is at least this part of the ordinary time between them, whatever gaps come.
const LEAST: u32 = 6;

/// So many entries that are not stored are remembered. A search has more only if its server makes
/// them up.
const STRANGERS: usize = 20_000;

/// State of the search for late arrivals.
#[derive(Debug)]
pub(super) struct Late {
    /// When to look next.
    due: Instant,
    /// The next look is not before this.
    not_before: Instant,
    /// Result of the last look.
    listed: Option<Listed>,
    /// The look that goes on, if any. It ends with the ingest, and the next one finds the same.
    looks: JoinSet<Result<Look, Stop>>,
    /// Requests for pages of the search.
    pages: Arc<Hourly>,
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
#[derive(Debug)]
pub(super) struct Look {
    /// Entries that arrived since the last one, newest first.
    late: Vec<Entry>,
    listed: Listed,
}

impl Default for Late {
    fn default() -> Self {
        Self {
            due: Instant::now(),
            not_before: Instant::now(),
            listed: None,
            looks: JoinSet::new(),
            pages: Arc::new(Hourly::new(PAGES_PER_HOUR)),
        }
    }
}

impl Late {
    /// Has the next look at this time, unless it is earlier anyhow or too soon after the last one.
    pub(super) fn no_later_than(&mut self, due: Instant) {
        self.due = self.due.min(due.max(self.not_before));
    }

    /// A look begins now.
    fn begin(&mut self, now: Instant, pause: Duration) {
        self.due = now + pause;
        self.not_before = now + pause / LEAST;
    }

    /// Waits for the result of the look that goes on, for ever if there is none. Nothing is lost
    /// where this is given up.
    pub(super) async fn looked(&mut self) -> Result<Look, Stop> {
        match self.looks.join_next().await {
            Some(Ok(look)) => look,
            Some(Err(error)) => Err(failed(format!("the look broke off: {error}"))),
            None => future::pending().await,
        }
    }
}

fn failed(why: String) -> Stop {
    Stop::End(End::Failed(why))
}

impl Ingest {
    /// When to look for late arrivals; `None` where they cannot be looked for at the moment.
    pub(super) fn late_due(&self) -> Option<Instant> {
        self.settings
            .gaps
            .late
            .filter(|_| self.settings.gaps.fill)?;
        let has_search = matches!(self.backfill, Some(Backfill::PublicInbox(_)));
        let was_read = matches!(self.history, History::Seen(_));
        let may = has_search && was_read && self.late.looks.is_empty() && self.takes_late();
        may.then_some(self.late.due)
    }

    /// Whether late arrivals can be stored. What is stored while a gap is looked into would be
    /// taken for seen before it.
    fn takes_late(&self) -> bool {
        let in_gap = self.hole.is_some() || self.left.is_some();
        !in_gap && self.pending.is_empty() && !self.storing.fails()
    }

    /// Begins to look for late arrivals.
    pub(super) fn begin_late_look(&mut self) {
        let gaps = self.settings.gaps;
        let pause = gaps.late.unwrap_or(gaps.pause);
        self.late.begin(Instant::now(), pause);
        let fetcher = match self.fetcher() {
            Ok(fetcher) => fetcher,
            Err(error) => {
                let url = &self.settings.feed.url;
                debug!(%url, %error, "late arrivals could not be looked for");
                return;
            }
        };
        let (Some(Backfill::PublicInbox(search)), History::Seen(seen)) =
            (&self.backfill, &self.history)
        else {
            return;
        };
        let looker = Looker {
            store: Arc::clone(&self.store),
            channel: self.settings.channel.clone(),
            url: self.settings.feed.url.clone(),
            fetcher,
            pages: Arc::clone(&self.late.pages),
            search: search.clone(),
            seen: seen.clone(),
            before: self.late.listed.clone(),
        };
        self.late.looks.spawn(async move {
            match tokio::time::timeout(TIME, looker.look()).await {
                Ok(look) => look,
                Err(_) => Err(failed(format!("it took more than {} s", TIME.as_secs()))),
            }
        });
    }

    /// Stores what a look found.
    pub(super) async fn take_late_look(&mut self, look: Result<Look, Stop>) -> Result<(), Ended> {
        let gaps = self.settings.gaps;
        if !self.takes_late() {
            // The next look finds the same: it is compared with the one before this.
            self.late.no_later_than(Instant::now() + gaps.pause);
            return Ok(());
        }
        match self.store_late(look).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_fenced() => self.end_or_wait(&error),
            Err(error) => {
                let url = &self.settings.feed.url;
                debug!(%url, %error, "late arrivals could not be stored; trying again");
                // Some may be stored all the same.
                self.wake.notify_one();
                self.late.no_later_than(Instant::now() + gaps.pause);
                Ok(())
            }
        }
    }

    async fn store_late(&mut self, look: Result<Look, Stop>) -> Result<(), StoreError> {
        let look = match look {
            Ok(look) => look,
            Err(Stop::Store(error)) => return Err(error),
            Err(Stop::End(end)) => {
                let url = &self.settings.feed.url;
                debug!(%url, ?end, "late arrivals could not be looked for");
                return Ok(());
            }
        };
        let Look {
            mut late,
            mut listed,
        } = look;
        // Polls went on beside the look, and may have brought the same.
        let known = self.known(&late).await?;
        late.retain(|entry| !known.contains_key(&entry.id));
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
}

/// A look on its backfill. It has all that it needs, for the ingest goes on beside it.
struct Looker {
    store: Arc<dyn Store>,
    channel: String,
    url: String,
    fetcher: Arc<Fetcher>,
    pages: Arc<Hourly>,
    search: Search,
    /// The feed's last document.
    seen: Before,
    /// Result of the look before.
    before: Option<Listed>,
}

impl Looker {
    /// Compares the search with what it had the time before.
    async fn look(self) -> Result<Look, Stop> {
        let seen = &self.seen;
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
        let mut pages = Pages::new(self.pages, self.fetcher, PAGES);
        let mut is_whole = to <= back;
        while !is_whole {
            let address = self.search.url(Clock::Received, back, Some(to), offset);
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
            let ids: Vec<&str> = page.entries.iter().map(|entry| entry.id.as_str()).collect();
            let known = self.store.known(&self.channel, &self.url, &ids).await?;
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
        // An older index may lack what was there the last time.
        let Look { listed, .. } = &mut look;
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
    async fn gaps_do_not_bring_looks_closer_than_the_least_time_between_them() {
        let (mut late, now) = (Late::default(), Instant::now());
        let minute = Duration::from_secs(60);
        late.begin(now, 30 * minute);
        assert_eq!(late.due, now + 30 * minute);
        for seconds in [0, 35, 299] {
            late.no_later_than(now + Duration::from_secs(seconds));
            assert_eq!(late.due, now + 5 * minute);
        }
        late.begin(now, 30 * minute);
        late.no_later_than(now + 7 * minute);
        assert_eq!(late.due, now + 7 * minute);
        late.no_later_than(now + 9 * minute);
        assert_eq!(late.due, now + 7 * minute);
    }
}
