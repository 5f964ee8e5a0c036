//! Backfill: sources of entries that left a feed before they were seen.
//!
//! A feed shows its last few entries only. If a poll shares no entry with the one before, some may
//! have come and gone in between; they are available by the archive links of RFC 5005, or, for the
//! lists of a public-inbox, by its search.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use url::Url;

use crate::parse::ParsedFeed;

/// Source of older entries of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backfill {
    /// Address of a document in the same format with the preceding entries. The document may itself
    /// link to the one before it, so that [`Backfill::of`] returns the next step.
    Archive(String),
    /// Search of a public-inbox.
    PublicInbox(Search),
}

impl Backfill {
    /// Returns the source of older entries that the feed at `feed_url` offers.
    #[must_use]
    pub fn of(feed_url: &str, feed: &ParsedFeed) -> Option<Self> {
        // A document that names itself as its predecessor would be read for ever.
        let other = |url: &&String| url.as_str() != feed_url;
        let archive = feed.links.prev_archive.as_ref().filter(other);
        if let Some(url) = archive.or(feed.links.next.as_ref().filter(other)) {
            return Some(Self::Archive(url.clone()));
        }
        Search::of(feed_url, feed).map(Self::PublicInbox)
    }
}

/// Which of a mail's two times a search uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Time of receipt by the list's server (`rt:`). This is the `updated` of the mail's entry, and
    /// the order of the feed.
    Received,
    /// Time by the sender's clock (`dt:`), for servers from before 2021, which do not support the
    /// other one. May be off by any amount.
    Sent,
}

/// Search of a public-inbox (its `Documentation/design_www.txt`), as Atom documents.
///
/// A response has at most [`Search::PAGE`] entries, newest first, as a document of the feed's own
/// format with the same ids; the rest is available with an offset. **A search without results is
/// answered with status 404**; one with an offset after the last result with status 200 and no
/// feed.
///
/// **The index may be older than the feed**: a public-inbox keeps one open for 30 s. A response
/// that lacks an entry of the feed does not show that nothing else is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// Address of the inbox.
    base: Url,
    /// The feed's own search terms, if it is a search itself.
    query: Option<String>,
}

impl Search {
    /// Largest number of entries in one response. A full one may have fewer, if mails were removed.
    pub const PAGE: usize = 200;

    /// Returns the search of a feed that is one of a public-inbox: the feed is called `new.atom` or
    /// is a search, and its ids are those that public-inbox makes of message ids. The search is in
    /// the folder of the feed's actual address, whatever the document states: mirrors keep the
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

    /// Returns the address of the entries between two times, both included, without the first
    /// `offset` ones; without `to`, of all since `from`.
    #[must_use]
    pub fn url(
        &self,
        clock: Clock,
        from: Timestamp,
        to: Option<Timestamp>,
        offset: usize,
    ) -> String {
        // Whole seconds, rounded outwards.
        let early = from.as_second() - i64::from(from.subsec_nanosecond() < 0);
        let late = to.map(|t| t.as_second() + i64::from(t.subsec_nanosecond() > 0));
        let (prefix, format) = match clock {
            // A bare number would be read as seconds since 1970.
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
        match Backfill::of(url, &inbox()) {
            Some(Backfill::PublicInbox(search)) => search,
            other => panic!("{url}: {other:?}"),
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn archives_come_first_and_never_loop() {
        let mut feed = inbox();
        feed.links.next = Some("https://a.example/all/new.atom?page=2".into());
        let here = "https://a.example/all/new.atom";
        let archive = |url: &str| Some(Backfill::Archive(url.to_owned()));
        assert_eq!(
            Backfill::of(here, &feed),
            archive("https://a.example/all/new.atom?page=2")
        );
        feed.links.prev_archive = Some("https://a.example/2025-08.atom".into());
        assert_eq!(
            Backfill::of(here, &feed),
            archive("https://a.example/2025-08.atom")
        );
        feed.links.prev_archive = Some(here.into());
        feed.links.next = None;
        assert!(matches!(
            Backfill::of(here, &feed),
            Some(Backfill::PublicInbox(_))
        ));
        assert_eq!(
            Backfill::of("https://a.example/a.rss", &ParsedFeed::default()),
            None
        );
    }

    #[test]
    fn a_public_inbox_is_known_by_its_feed() {
        let is = |url: &str, feed: &ParsedFeed| Backfill::of(url, feed).is_some();
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
    fn a_search_feed_keeps_its_search_terms() {
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
