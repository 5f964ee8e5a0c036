//! Where entries can be had that left a feed before they were seen.
//!
//! A feed shows its last few entries only. Where a poll shares no entry with the one before, some
//! may have come and gone in between; they are to be had by the archive links of RFC 5005, or, for
//! the lists of a public-inbox, by its search.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use url::Url;

use crate::parse::ParsedFeed;

/// How to get older entries of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// A document in the same format with the entries before these. It may itself link to the one
    /// before it, so that [`Way::of`] it gives the next step.
    Archive(String),
    /// The search of a public-inbox.
    PublicInbox(Search),
}

impl Way {
    /// The way that the feed at `feed_url` offers.
    #[must_use]
    pub fn of(feed_url: &str, feed: &ParsedFeed) -> Option<Self> {
        // A document that names itself as the one before it would be read for ever.
        let other = |url: &&String| url.as_str() != feed_url;
        let archive = feed.links.prev_archive.as_ref().filter(other);
        if let Some(url) = archive.or(feed.links.next.as_ref().filter(other)) {
            return Some(Self::Archive(url.clone()));
        }
        Search::of(feed_url, feed).map(Self::PublicInbox)
    }
}

/// Which of a mail's two times a search goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// When the list's server received it (`rt:`). This is the `updated` of its entry, and what
    /// orders the feed.
    Received,
    /// What the sender's clock said (`dt:`), for servers of before 2021, which do not know the
    /// other one. It may be off by any amount.
    Sent,
}

/// The search of a public-inbox (its `Documentation/design_www.txt`), as Atom documents.
///
/// It answers with at most [`Search::PAGE`] entries, newest first, as a document of the feed's own
/// format with the same ids; the rest is had with an offset. **A search without results is answered
/// with status 404**; one with an offset after the last result with status 200 and no feed.
///
/// **It answers from an index that may be older than the feed**: a public-inbox keeps one open for
/// 30 s. An answer that lacks an entry of the feed does not show that nothing else is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// The inbox.
    base: Url,
    /// What the feed searches for, where it is a search itself.
    query: Option<String>,
}

impl Search {
    /// The most entries of one answer. A full one may have fewer, where mails were removed.
    pub const PAGE: usize = 200;

    /// The search that belongs to a feed, if it is one of a public-inbox: it is called `new.atom`
    /// or is a search, and its ids are what public-inbox makes of message ids. Whatever it says
    /// about its own address, the search is in the folder that it was got from: mirrors keep the
    /// links of the original.
    fn of(feed_url: &str, feed: &ParsedFeed) -> Option<Self> {
        let url = Url::parse(feed_url).ok()?;
        let ids = &mut feed.entries.iter().map(|entry| entry.id.as_str());
        let made = |id: &str| id.strip_prefix("urn:uuid:").is_some_and(|u| u.len() == 36);
        if feed.entries.is_empty() || !ids.all(made) {
            return None;
        }
        let parameter = |name: &str| {
            url.query_pairs()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
        };
        let query = match url.path_segments()?.next_back()? {
            "new.atom" => None,
            "" if parameter("x").as_deref() == Some("A") => {
                Some(parameter("q").filter(|q| !q.trim().is_empty())?)
            }
            _ => return None,
        };
        let mut base = url.join(".").ok()?;
        base.set_query(None);
        base.set_fragment(None);
        Some(Self { base, query })
    }

    /// The address of the entries between two times, both included, without the first `offset`
    /// ones; without `to`, of all since `from`.
    #[must_use]
    pub fn url(
        &self,
        clock: Clock,
        from: Timestamp,
        to: Option<Timestamp>,
        offset: usize,
    ) -> String {
        // Whole seconds, outwards.
        let early = from.as_second() - i64::from(from.subsec_nanosecond() < 0);
        let late = to.map(|t| t.as_second() + i64::from(t.subsec_nanosecond() > 0));
        let (prefix, format) = match clock {
            // A bare number would be taken for seconds since 1970.
            Clock::Received => ("rt", "%Y-%m-%dT%H:%M:%SZ"),
            Clock::Sent => ("dt", "%Y%m%d%H%M%S"),
        };
        let write = |second| {
            Timestamp::from_second(second)
                .map(|t| t.to_zoned(TimeZone::UTC).strftime(format).to_string())
                .unwrap_or_default()
        };
        let until = late.map(write).unwrap_or_default();
        let range = format!("{prefix}:{}..{until}", write(early));
        let q = match &self.query {
            Some(query) => format!("({query}) AND {range}"),
            None => range,
        };
        let mut url = self.base.clone();
        url.query_pairs_mut()
            .append_pair("q", &q)
            .append_pair("x", "A");
        if offset > 0 {
            url.query_pairs_mut().append_pair("o", &offset.to_string());
        }
        url.into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::Entry;
    use crate::parse::FeedLinks;

    fn inbox() -> ParsedFeed {
        let entry = |n: u32| Entry {
            id: format!("urn:uuid:87aff0bc-9c04-f95a-7dfc-4a434796a8{n:02}"),
            ..Entry::default()
        };
        ParsedFeed {
            entries: (10..12).map(entry).collect(),
            // A mirror keeps the links of the original.
            links: FeedLinks {
                self_: Some("https://elsewhere.example/all/new.atom".into()),
                ..FeedLinks::default()
            },
            ..ParsedFeed::default()
        }
    }

    fn search(url: &str) -> Search {
        match Way::of(url, &inbox()) {
            Some(Way::PublicInbox(search)) => search,
            other => panic!("{url}: {other:?}"),
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn archives_come_first_and_never_lead_in_a_circle() {
        let mut feed = inbox();
        feed.links.next = Some("https://a.example/all/new.atom?page=2".into());
        let here = "https://a.example/all/new.atom";
        let archive = |url: &str| Some(Way::Archive(url.to_owned()));
        assert_eq!(
            Way::of(here, &feed),
            archive("https://a.example/all/new.atom?page=2")
        );
        feed.links.prev_archive = Some("https://a.example/2025-08.atom".into());
        assert_eq!(
            Way::of(here, &feed),
            archive("https://a.example/2025-08.atom")
        );
        feed.links.prev_archive = Some(here.into());
        feed.links.next = None;
        assert!(matches!(Way::of(here, &feed), Some(Way::PublicInbox(_))));
        assert_eq!(
            Way::of("https://a.example/a.rss", &ParsedFeed::default()),
            None
        );
    }

    #[test]
    fn a_public_inbox_is_known_by_its_feed() {
        let is = |url: &str, feed: &ParsedFeed| Way::of(url, feed).is_some();
        assert!(is("https://lore.example/all/new.atom", &inbox()));
        assert!(!is("https://lore.example/all/feed.atom", &inbox()));
        assert!(!is("https://lore.example/all/", &inbox()));
        let mut other = inbox();
        other.entries[1].id = "https://blog.example/1".into();
        assert!(!is("https://blog.example/new.atom", &other));
        assert!(!is("https://blog.example/new.atom", &ParsedFeed::default()));
        assert!(!is("not an address", &inbox()));
    }

    #[test]
    fn searches_are_by_whole_seconds_and_pages() {
        let search = search("http://127.0.0.1:8070/all/new.atom?x#f");
        let (from, to) = (
            time("2025-09-05T09:49:57.9Z"),
            time("2025-09-05T10:00:00.1Z"),
        );
        assert_eq!(
            search.url(Clock::Received, from, Some(to), 0),
            "http://127.0.0.1:8070/all/?q=rt%3A2025-09-05T09%3A49%3A57Z..2025-09-05T10%3A00%3A01Z&x=A"
        );
        assert_eq!(
            search.url(Clock::Sent, from, None, 400),
            "http://127.0.0.1:8070/all/?q=dt%3A20250905094957..&x=A&o=400"
        );
        // Before 1970, and at the end of time.
        let early = search.url(
            Clock::Sent,
            time("1969-12-31T23:59:58.5Z"),
            Some(Timestamp::MAX),
            0,
        );
        assert!(early.contains("dt%3A19691231235958..&"), "{early}");
    }

    #[test]
    fn a_feed_that_is_a_search_keeps_what_it_searches_for() {
        let search = search("https://lore.example/all/?q=s%3Anetdev+f%3Aa&x=A");
        let url = search.url(
            Clock::Sent,
            time("2025-01-01T00:00:00Z"),
            None,
            Search::PAGE,
        );
        assert_eq!(
            url,
            "https://lore.example/all/?q=%28s%3Anetdev+f%3Aa%29+AND+dt%3A20250101000000..&x=A&o=200"
        );
    }
}
