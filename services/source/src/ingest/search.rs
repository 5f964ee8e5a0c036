//! Search for entries that left a feed before they were seen: page by page through its archive (RFC
//! 5005) or through the responses of a public-inbox's search, from the newest on until an entry
//! that was seen before.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use feed::Entry;
use feed::fetch::{FetchError, Fetcher, redacted};
use feed::gap::{Backfill, Clock, Search};
use feed::parse::ParsedFeed;
use jiff::{SignedDuration, Timestamp};
use store::StoreError;
use tracing::debug;
use url::Url;

use super::Ingest;
use super::document::{ascending, size};
use super::feed_gap::FeedGap;
use super::rate_limit::HourlyLimit;

/// Largest number of requests to the feed's server for one attempt to fill a gap.
const PAGES: usize = 100;

/// Largest number of requests per hour for all gaps of one feed: the feed names the addresses of
/// the pages, which may be on an unrelated server.
pub(super) const PAGES_PER_HOUR: usize = 300;

/// Largest number of entries, and of bytes, that one gap holds in memory until they are stored.
const ENTRIES: usize = 5000;
pub(super) const BYTES: usize = 32 << 20;

/// Largest delay of the document after the gap.
pub(super) const TIME: Duration = Duration::from_secs(60);

/// Number of oldest entries of an archive document that must have been seen for the walk to end
/// there, if there are documents before it: an old entry or two may have been pinned on top.
const SEEN_AT_END: usize = 3;

/// Margin of a search before the last entry that was seen: mails arrive later than they are dated.
const MARGIN: SignedDuration = SignedDuration::from_mins(15);

/// The same if that was not early enough, and if only the senders' dates are searchable.
const WIDE: SignedDuration = SignedDuration::from_hours(24);

/// Overlap of a search's page with its next one, in entries. Between the two, the server may have
/// changed to a newer or an older index; if they share no entry, some may be in neither.
pub(super) const OVERLAP: usize = 10;

/// A page of a search with more entries than this is not its last one. Full pages may lack a few
/// that were removed from the list.
pub(super) const ALMOST_FULL: usize = Search::PAGE - 2 * OVERLAP;

/// Result of a search.
#[derive(Debug)]
pub(super) struct SearchResult {
    /// Entries that were not known, newest first.
    pub(super) entries: Vec<Entry>,
    /// Unknown entries that came after the document after the gap, newest first.
    pub(super) later: Vec<Entry>,
    /// Reason for the end of the search.
    pub(super) end: SearchEnd,
}

/// Reason for the end of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SearchEnd {
    /// Both sides of the gap were met, and nothing is unread between them: the search is complete.
    Reached,
    /// The responses may be older than the feed's document, so that they prove nothing. Contains
    /// the evidence.
    Unproven(String),
    /// No further pages.
    Exhausted,
    /// There may be more than is accepted at a time. Contains the bound.
    Bound(String),
    /// Failure of a request.
    Failed(String),
}

/// Walk over pages as they arrive.
struct Walk<'a> {
    ingest: &'a Ingest,
    hole: &'a FeedGap,
    found: Vec<Entry>,
    later: Vec<Entry>,
    /// Unknown entries of a search after all known ones so far.
    tail: Vec<Entry>,
    /// Whether an entry from after the gap was met.
    met_newer: bool,
    /// Whether an entry from before the gap was met in this search.
    met_seen: bool,
    /// Whether the entry next to the gap was met.
    met_edge: bool,
    /// Entries of the feed's last document that are still missing in this search.
    awaited: HashSet<String>,
    ids: HashSet<String>,
    bytes: usize,
    pages: Pages,
}

/// Reader of documents other than the feed, with its bounds.
pub(super) struct Pages {
    hourly: Arc<HourlyLimit>,
    fetcher: Arc<Fetcher>,
    /// Number of documents that may still be requested.
    left: usize,
    /// Initial value of `left`.
    most: usize,
}

/// Counts of the entries on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageStats {
    entries: usize,
    /// Entries that were seen before the gap.
    seen: usize,
    /// Length of the oldest consecutive run of entries that were seen before the gap.
    run: usize,
    /// Whether one of these has not changed since.
    unchanged: bool,
}

/// Premature end of a walk.
pub(super) enum WalkStop {
    End(SearchEnd),
    Store(StoreError),
}

impl From<StoreError> for WalkStop {
    fn from(error: StoreError) -> Self {
        WalkStop::Store(error)
    }
}

impl Ingest {
    /// Searches for the entries that were in the feed in between.
    pub(super) async fn find(&mut self, hole: &FeedGap) -> Result<SearchResult, StoreError> {
        let fetcher = match self.client.fetcher(&self.settings) {
            Ok(fetcher) => fetcher,
            Err(error) => {
                return Ok(SearchResult {
                    entries: Vec::new(),
                    later: Vec::new(),
                    end: SearchEnd::Failed(error.to_string()),
                });
            }
        };
        let mut walk = Walk {
            ingest: self,
            hole,
            found: Vec::new(),
            later: Vec::new(),
            tail: Vec::new(),
            met_newer: false,
            met_seen: false,
            met_edge: false,
            awaited: HashSet::new(),
            ids: HashSet::new(),
            bytes: 0,
            pages: Pages::new(Arc::clone(&self.gaps.pages), fetcher, PAGES),
        };
        let late = format!("it took more than {} s", TIME.as_secs());
        let ended = match &hole.backfill {
            Backfill::Archive(first) => tokio::time::timeout(TIME, walk.archive(first)).await,
            Backfill::PublicInbox(search) => tokio::time::timeout(TIME, walk.search(search)).await,
        };
        let end = match ended {
            Ok(Ok(end) | Err(WalkStop::End(end))) => end,
            Ok(Err(WalkStop::Store(error))) => return Err(error),
            // A restart from the beginning would take as long again.
            Err(_) if !walk.found.is_empty() => SearchEnd::Bound(late),
            Err(_) => SearchEnd::Failed(late),
        };
        Ok(SearchResult {
            entries: walk.found,
            later: walk.later,
            end,
        })
    }
}

impl Walk<'_> {
    /// Walks from each archive document to the one before it.
    async fn archive(&mut self, first: &str) -> Result<SearchEnd, WalkStop> {
        let mut visited = HashSet::new();
        let mut next = Some(first.to_owned());
        while let Some(address) = next.take() {
            if !visited.insert(address.clone()) {
                break;
            }
            let (page, url) = self.pages.get(&address).await?;
            next = match Backfill::of(&url, &page) {
                Some(Backfill::Archive(older)) => Some(older),
                Some(Backfill::PublicInbox(_)) | None => None,
            };
            let had = self.add(page.entries, true).await?;
            // A changed entry may have been moved here from far below. If all of them have changed,
            // the archive merely has other texts than the feed. An entry that was pinned on top of
            // the document proves nothing for those below it.
            let needed = match next {
                Some(_) => SEEN_AT_END.min(had.entries),
                None => 1,
            };
            let is_end = had.unchanged && had.run >= needed;
            if is_end || (had.seen > 0 && had.seen == had.entries) {
                return Ok(self.end_of_archive());
            }
        }
        Ok(SearchEnd::Exhausted)
    }

    /// Returns the end of an archive that was read back to an entry seen before the gap. An archive
    /// that is made or cached separately from the feed may still lack the entries just before the
    /// feed's document.
    fn end_of_archive(&self) -> SearchEnd {
        let hole = self.hole;
        match &hole.edge {
            Some(edge) if !self.met_edge && !hole.latest.contains(edge) => {
                SearchEnd::Unproven("it lacks an entry that has left the feed since".to_owned())
            }
            // Nothing shows that they adjoin, and nothing that they do not.
            Some(_) if !self.met_edge => {
                SearchEnd::Unproven("it shares no entry with the feed".to_owned())
            }
            _ => SearchEnd::Reached,
        }
    }

    /// Searches all mails since the last one that was seen, by their arrival; if that is not
    /// searchable, by their dates.
    async fn search(&mut self, search: &Search) -> Result<SearchEnd, WalkStop> {
        let now = Timestamp::now();
        let last = self.hole.before.time().unwrap_or(now);
        let early = |by: SignedDuration| last.checked_sub(by).unwrap_or(Timestamp::MIN);
        for (clock, from) in [
            (Clock::Received, early(MARGIN)),
            (Clock::Received, early(WIDE)),
            (Clock::Sent, early(WIDE)),
        ] {
            if let Some(end) = self.range(search, clock, from).await? {
                return Ok(end);
            }
            debug!(?clock, %from, "no known entry in the search");
        }
        let why = "none of its answers has an entry that was seen before";
        Ok(SearchEnd::Unproven(why.to_owned()))
    }

    /// Reads all pages of one search; `None` if no entry on them was seen before.
    ///
    /// A public-inbox answers from an index that may be half a minute older than its feed. Only an
    /// index with all entries of the feed's last document has all earlier ones.
    async fn range(
        &mut self,
        search: &Search,
        clock: Clock,
        from: Timestamp,
    ) -> Result<Option<SearchEnd>, WalkStop> {
        self.awaited.clone_from(&self.hole.latest);
        self.tail.clear();
        self.met_seen = false;
        let (mut offset, mut seen) = (0, 0);
        let mut last_page = HashSet::new();
        loop {
            let address = search.url(clock, from, None, offset);
            let page = match self.pages.get(&address).await {
                Ok((page, _)) => page,
                // No results, or no more.
                Err(WalkStop::End(SearchEnd::Failed(why))) if why == NOTHING => {
                    ParsedFeed::default()
                }
                Err(stop) => return Err(stop),
            };
            // Unreadable entries have their position in the list as well.
            let listed = page.entries.len() + page.skipped.len();
            let ids = page.entries.iter().map(|entry| entry.id.clone());
            let ids: HashSet<String> = ids.collect();
            if offset > 0 && ids.is_disjoint(&last_page) {
                let why = "its pages do not follow one another: the index has changed in between";
                return Ok(Some(SearchEnd::Unproven(why.to_owned())));
            }
            last_page = ids;
            // By arrival, an entry after all that were seen existed before this feed was first
            // read. By date, it may be a mail that was long delayed.
            let had = self.add(page.entries, clock == Clock::Received).await?;
            seen += had.seen;
            if listed <= ALMOST_FULL {
                break;
            }
            offset += listed - OVERLAP;
        }
        Ok(match self.awaited.len() {
            _ if seen == 0 => None,
            0 => Some(SearchEnd::Reached),
            count => Some(SearchEnd::Unproven(format!(
                "its answer lacks {count} entries that the feed shows"
            ))),
        })
    }

    /// Collects the missing entries of a page. With `in_order`, an entry before one from after the
    /// gap is later than that, and an entry after all that were seen is none of it. The latter
    /// applies only to a search: an archive may have an old entry on top, and sending one from
    /// before the feed was first read does less harm than losing one. In a search, an entry dated
    /// after one that was seen would have been seen with it: it arrived later.
    async fn add(
        &mut self,
        mut entries: Vec<Entry>,
        in_order: bool,
    ) -> Result<PageStats, WalkStop> {
        if ascending(&entries) {
            entries.reverse();
        }
        let known = self.ingest.known(&entries).await?;
        let hole = self.hole;
        let seen = |entry: &Entry| {
            !hole.newer.contains(&entry.id)
                && (hole.before.ids.contains(&entry.id) || known.contains_key(&entry.id))
        };
        let unchanged = |entry: &Entry| {
            let known = known.get(&entry.id);
            known.is_none_or(|hash| *hash == entry.content_hash())
        };
        let run = entries.iter().rev().take_while(|entry| seen(entry)).count();
        let had = PageStats {
            entries: entries.len(),
            seen: entries.iter().filter(|entry| seen(entry)).count(),
            run,
            unchanged: entries.iter().rev().take(run).any(unchanged),
        };
        let sorted = in_order && matches!(hole.backfill, Backfill::PublicInbox(_));
        let newer = |entry: &Entry| hole.newer.contains(&entry.id);
        let mut later = match entries.iter().position(newer) {
            Some(first) if in_order && !self.met_newer => first,
            _ => 0,
        };
        self.met_newer |= entries.iter().any(newer);
        for entry in entries {
            let is_later = later > 0;
            later = later.saturating_sub(1);
            self.awaited.remove(&entry.id);
            self.met_edge |= hole.edge.as_ref() == Some(&entry.id);
            if sorted && seen(&entry) {
                self.met_seen = true;
                self.found.append(&mut self.tail);
            }
            let new = !known.contains_key(&entry.id) && !hole.newer.contains(&entry.id);
            if !new || hole.before.ids.contains(&entry.id) || !self.ids.insert(entry.id.clone()) {
                continue;
            }
            self.bytes += size(&entry);
            let held = self.found.len() + self.tail.len() + self.later.len();
            if held >= ENTRIES || self.bytes > BYTES {
                let bound = format!(
                    "more than {ENTRIES} entries or {} MiB are not taken at a time",
                    BYTES >> 20
                );
                return Err(WalkStop::End(SearchEnd::Bound(bound)));
            }
            if is_later {
                self.later.push(entry);
            } else if sorted && self.met_seen {
                self.tail.push(entry);
            } else {
                self.found.push(entry);
            }
        }
        Ok(had)
    }
}

impl Pages {
    /// Returns a reader of at most `most` documents, which count against the hourly limit.
    pub(super) fn new(hourly: Arc<HourlyLimit>, fetcher: Arc<Fetcher>, most: usize) -> Self {
        Self {
            hourly,
            fetcher,
            left: most,
            most,
        }
    }

    /// Fetches one document, and returns it with its final address.
    pub(super) async fn get(&mut self, address: &str) -> Result<(ParsedFeed, String), WalkStop> {
        let Some(left) = self.left.checked_sub(1) else {
            let bound = format!("more than {} pages are not read", self.most);
            return Err(WalkStop::End(SearchEnd::Bound(bound)));
        };
        self.left = left;
        if !self.hourly.take() {
            let most = self.hourly.most();
            let why = format!("more than {most} pages are not asked for in an hour");
            return Err(WalkStop::End(SearchEnd::Failed(why)));
        }
        let page = match self.fetcher.get(address).await {
            Ok(page) => page,
            Err(error) => {
                let nothing = matches!(
                    error,
                    FetchError::Status {
                        status: 404,
                        challenge: false,
                        ..
                    }
                );
                let why = if nothing {
                    NOTHING.to_owned()
                } else {
                    error.to_string()
                };
                return Err(WalkStop::End(SearchEnd::Failed(why)));
            }
        };
        let (document, url, charset) = (page.document, page.url.clone(), page.charset);
        let parsed = tokio::task::spawn_blocking(move || {
            feed::parse::parse_served(&document, &url, charset.as_deref())
        });
        let failed = |why: String| WalkStop::End(SearchEnd::Failed(why));
        match parsed.await {
            Ok(Ok(parsed)) => Ok((parsed, page.url)),
            Ok(Err(error)) => Err(failed(format!("{} is {error}", shown(&page.url)))),
            Err(error) => {
                let url = shown(&page.url);
                Err(failed(format!("{url} could not be parsed: {error}")))
            }
        }
    }
}

/// Returns the address of a page for messages: after a redirect, its query may contain keys.
fn shown(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => redacted(&url),
        Err(_) => "the page".to_owned(),
    }
}

/// Message for a page that does not exist.
pub(super) const NOTHING: &str = "it is not there (404)";
