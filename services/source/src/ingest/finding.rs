//! Finding entries that left a feed before they were seen: page by page through its archive (RFC
//! 5005) or through the answers of a public-inbox's search, from the newest on until something
//! is met that was seen.

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
use super::document::{date, size};
use super::filling::Hole;
use super::hourly::Hourly;

/// One gap costs the feed's server at most so many requests at a time.
const PAGES: usize = 100;

/// And the gaps of one feed at most so many in an hour: where the pages are is said by the feed, and
/// may be a server that has nothing to do with it.
pub(super) const PAGES_PER_HOUR: usize = 300;

/// What is found in one gap is held in memory until it is stored: at most so many entries and
/// bytes.
const ENTRIES: usize = 5000;
pub(super) const BYTES: usize = 32 << 20;

/// The document that came after the gap waits at most this long.
pub(super) const TIME: Duration = Duration::from_secs(60);

/// The oldest entries of an archive document that must have been seen for the walk to end there,
/// where there are documents before it: an old entry or two may have been put on top.
const SEEN_AT_END: usize = 3;

/// A search begins so much before what was seen last: mails arrive later than they are dated.
const MARGIN: SignedDuration = SignedDuration::from_mins(15);

/// The same where that was not early enough, and where only the senders' dates can be searched.
const WIDE: SignedDuration = SignedDuration::from_hours(24);

/// Entries of a search's page that its next one has as well. Between the two, the server may have
/// gone over to a newer or an older index; where they share no entry, some may be in neither.
pub(super) const OVERLAP: usize = 10;

/// A page of a search with more entries than this is not its last one. Full pages may lack a few
/// that were removed from the list.
pub(super) const ALMOST_FULL: usize = Search::PAGE - 2 * OVERLAP;

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    /// Entries that were not known, newest first.
    pub(super) entries: Vec<Entry>,
    /// The same of entries that came after the document that came after the gap.
    pub(super) later: Vec<Entry>,
    /// Why there are no more.
    pub(super) end: End,
}

/// Why a search ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both sides of the gap were met, and nothing is unread between them: there are no more.
    Reached,
    /// The answers may be older than the feed's document, so that they prove nothing: what shows
    /// that.
    Unproven(String),
    /// There was nothing more to ask for.
    Exhausted,
    /// There may be more than is taken at a time: which bound that is.
    Bound(String),
    /// Something did not work.
    Failed(String),
}

/// Pages while they come in.
struct Walk<'a> {
    ingest: &'a Ingest,
    hole: &'a Hole,
    found: Vec<Entry>,
    later: Vec<Entry>,
    /// Unknown entries of a search that stand after all known ones so far.
    tail: Vec<Entry>,
    /// An entry from after the gap was met.
    met_newer: bool,
    /// An entry from before the gap was met in this search.
    met_seen: bool,
    /// The entry next to the gap was met.
    met_edge: bool,
    /// Entries of the feed's last document that this search did not have yet.
    awaited: HashSet<String>,
    ids: HashSet<String>,
    bytes: usize,
    pages: Pages,
}

/// Documents beside the feed, within the bounds on them.
pub(super) struct Pages {
    hourly: Arc<Hourly>,
    fetcher: Arc<Fetcher>,
    /// Documents that may still be asked for.
    left: usize,
    /// The same at the beginning.
    most: usize,
}

/// What a page had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Had {
    entries: usize,
    /// Of these, seen before the gap.
    seen: usize,
    /// Of the oldest ones in a row, those that were seen before the gap.
    run: usize,
    /// One of these is as it was then.
    unchanged: bool,
}

/// The end of a walk before its time.
pub(super) enum Stop {
    End(End),
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Store(error)
    }
}

impl Ingest {
    /// Looks for the entries that were in the feed in between.
    pub(super) async fn find(&mut self, hole: &Hole) -> Result<Found, StoreError> {
        let fetcher = match self.fetcher() {
            Ok(fetcher) => fetcher,
            Err(error) => {
                return Ok(Found {
                    entries: Vec::new(),
                    later: Vec::new(),
                    end: End::Failed(error.to_string()),
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
            pages: Pages::new(Arc::clone(&self.pages), fetcher, PAGES),
        };
        let late = format!("it took more than {} s", TIME.as_secs());
        let ended = match &hole.backfill {
            Backfill::Archive(first) => tokio::time::timeout(TIME, walk.archive(first)).await,
            Backfill::PublicInbox(search) => tokio::time::timeout(TIME, walk.search(search)).await,
        };
        let end = match ended {
            Ok(Ok(end) | Err(Stop::End(end))) => end,
            Ok(Err(Stop::Store(error))) => return Err(error),
            // From the beginning it would take as long again.
            Err(_) if !walk.found.is_empty() => End::Bound(late),
            Err(_) => End::Failed(late),
        };
        Ok(Found {
            entries: walk.found,
            later: walk.later,
            end,
        })
    }
}

impl Walk<'_> {
    /// From each archive document to the one before it.
    async fn archive(&mut self, first: &str) -> Result<End, Stop> {
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
            // An entry that has changed may have been moved here from far below. Where all of them
            // have, the archive only has other texts than the feed. One that was put on top of the
            // document proves nothing for what is below it.
            let needed = match next {
                Some(_) => SEEN_AT_END.min(had.entries),
                None => 1,
            };
            let is_end = had.unchanged && had.run >= needed;
            if is_end || (had.seen > 0 && had.seen == had.entries) {
                return Ok(self.end_of_archive());
            }
        }
        Ok(End::Exhausted)
    }

    /// The end of an archive that was read back to what was seen before the gap. One that is made
    /// or cached apart from the feed may not have yet what is just before the feed's document.
    fn end_of_archive(&self) -> End {
        let hole = self.hole;
        match &hole.edge {
            Some(edge) if !self.met_edge && !hole.latest.contains(edge) => {
                End::Unproven("it lacks an entry that has left the feed since".to_owned())
            }
            // Nothing shows that they adjoin, and nothing that they do not.
            Some(_) if !self.met_edge => {
                End::Unproven("it shares no entry with the feed".to_owned())
            }
            _ => End::Reached,
        }
    }

    /// All mails since what was seen last, by their arrival; where that cannot be searched for, by
    /// their dates.
    async fn search(&mut self, search: &Search) -> Result<End, Stop> {
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
            debug!("nothing that was seen is found by {clock:?} from {from} on");
        }
        let why = "none of its answers has an entry that was seen before";
        Ok(End::Unproven(why.to_owned()))
    }

    /// All pages of one search; `None` if nothing that was seen is in them.
    ///
    /// A public-inbox answers from an index that may be half a minute older than its feed. Only
    /// one that has all entries of the feed's last document has all that came before them.
    async fn range(
        &mut self,
        search: &Search,
        clock: Clock,
        from: Timestamp,
    ) -> Result<Option<End>, Stop> {
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
                Err(Stop::End(End::Failed(why))) if why == NOTHING => ParsedFeed::default(),
                Err(stop) => return Err(stop),
            };
            // What cannot be read has its place in the list as well.
            let listed = page.entries.len() + page.skipped.len();
            let ids = page.entries.iter().map(|entry| entry.id.clone());
            let ids: HashSet<String> = ids.collect();
            if offset > 0 && ids.is_disjoint(&last_page) {
                let why = "its pages do not follow one another: the index has changed in between";
                return Ok(Some(End::Unproven(why.to_owned())));
            }
            last_page = ids;
            // By arrival, what comes after all that was seen was there before this feed was first
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
            0 => Some(End::Reached),
            count => Some(End::Unproven(format!(
                "its answer lacks {count} entries that the feed shows"
            ))),
        })
    }

    /// Takes what is missing from a page. With `in_order`, what lies before an entry from after the
    /// gap is later than that, and what lies after all that were seen is none of it. The latter
    /// goes only for a search: an archive may have an old entry on top, and to send one that was
    /// there before the feed was first read does less harm than to lose one. In a search, what is
    /// dated after one that was seen would have been seen with it: it arrived later.
    async fn add(&mut self, mut entries: Vec<Entry>, in_order: bool) -> Result<Had, Stop> {
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
        let had = Had {
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
                return Err(Stop::End(End::Bound(bound)));
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
    /// At most so many documents, which are taken from what may be asked for in an hour.
    pub(super) fn new(hourly: Arc<Hourly>, fetcher: Arc<Fetcher>, most: usize) -> Self {
        Self {
            hourly,
            fetcher,
            left: most,
            most,
        }
    }

    /// Gets one document, and where it came from.
    pub(super) async fn get(&mut self, address: &str) -> Result<(ParsedFeed, String), Stop> {
        let Some(left) = self.left.checked_sub(1) else {
            let bound = format!("more than {} pages are not read", self.most);
            return Err(Stop::End(End::Bound(bound)));
        };
        self.left = left;
        if !self.hourly.take() {
            let most = self.hourly.most();
            let why = format!("more than {most} pages are not asked for in an hour");
            return Err(Stop::End(End::Failed(why)));
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
                return Err(Stop::End(End::Failed(why)));
            }
        };
        let (document, url, charset) = (page.document, page.url.clone(), page.charset);
        let parsed = tokio::task::spawn_blocking(move || {
            feed::parse::parse_served(&document, &url, charset.as_deref())
        });
        let failed = |why: String| Stop::End(End::Failed(why));
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

/// The address of a page for messages: where a redirect led, its query may have keys.
fn shown(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => redacted(&url),
        Err(_) => "the page".to_owned(),
    }
}

/// What a page is that is not there.
pub(super) const NOTHING: &str = "it is not there (404)";

/// Whether a document has the oldest entry first, as some archives do.
pub(super) fn ascending(entries: &[Entry]) -> bool {
    let dates: Vec<Timestamp> = entries.iter().filter_map(date).collect();
    let pairs = || dates.iter().zip(dates.iter().skip(1));
    let up = pairs().filter(|(a, b)| a < b).count();
    let down = pairs().filter(|(a, b)| a > b).count();
    up > down
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn the_order_of_a_page_follows_from_its_dates() {
        let page = |seconds: &[i64]| -> Vec<Entry> {
            let entry = |s: &i64| Entry {
                updated: Some(Timestamp::from_second(*s).unwrap()),
                ..Entry::default()
            };
            seconds.iter().map(entry).collect()
        };
        assert!(!ascending(&page(&[9, 8, 7, 1, 6])));
        assert!(ascending(&page(&[1, 2, 9, 3, 4])));
        assert!(!ascending(&page(&[])) && !ascending(&page(&[5])));
        assert!(!ascending(&[Entry::default(), Entry::default()]));
    }
}
