//! Header of a feed: its links to other documents, its interval, its language.

use std::time::Duration;

use url::Url;

use crate::xml::element::Element;
use crate::xml::scope::{Scope, extract_element};
use crate::xml::split::Format;
use crate::xml::{ATOM_03_NS, ATOM_NS, clean, lower};

use super::atom;
use super::fields::add_author;
use crate::entry::Author;
use crate::html::links;

const SYNDICATION_NS: &str = "http://purl.org/rss/1.0/modules/syndication/";
const DUBLIN_CORE_NS: &str = "http://purl.org/dc/elements/1.1/";
/// Prefix of link relations that are written out in full (RFC 4287 section 4.2.7.2, RFC 5005).
const RELATIONS: &str = "http://www.iana.org/assignments/relation/";

/// Longest plausible interval.
const MAX_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);

/// Longest accepted address.
const MAX_URL: usize = 4096;

/// Other documents that belong to the feed, as absolute `http` or `https` addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedLinks {
    /// Archive document with the preceding entries (RFC 5005 section 4).
    pub prev_archive: Option<String>,
    /// Next page of a paged feed, with older entries (RFC 5005 section 3); `next_url` of JSON Feed.
    pub next: Option<String>,
    /// The feed's own first document, if this one is an archive (RFC 5005 section 4).
    pub current: Option<String>,
    /// Address that the feed states for itself.
    pub self_: Option<String>,
    /// WebSub hub.
    pub hub: Option<String>,
}

impl FeedLinks {
    /// Records one link. The first of each relation counts.
    pub(super) fn note(&mut self, relation: &str, href: &str, base: Option<&Url>) {
        let Some(url) = absolute(href, base) else {
            return;
        };
        for relation in relation.split_ascii_whitespace() {
            let relation = relation.strip_prefix(RELATIONS).unwrap_or(relation);
            let place = match relation.to_ascii_lowercase().as_str() {
                "prev-archive" => &mut self.prev_archive,
                "next" => &mut self.next,
                "current" => &mut self.current,
                "self" => &mut self.self_,
                "hub" => &mut self.hub,
                _ => continue,
            };
            place.get_or_insert_with(|| url.clone());
        }
    }
}

fn absolute(href: &str, base: Option<&Url>) -> Option<String> {
    let href = href.trim();
    if href.is_empty() || href.len() > MAX_URL {
        return None;
    }
    let url = match base {
        Some(base) => base.join(href).ok()?,
        None => Url::parse(href).ok()?,
    };
    matches!(url.scheme(), "http" | "https").then(|| url.into())
}

/// Header of a feed.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub links: FeedLinks,
    pub interval: Option<Duration>,
    pub language: Option<String>,
    /// Authors of all entries that name none (RFC 4287 section 4.2.1).
    pub authors: Vec<Author>,
}

/// Reads the elements alongside a document's entries.
pub(super) fn read(format: Format, elements: &[&str], scope: &Scope, fallback: &str) -> Header {
    let mut header = Header {
        language: scope.lang().and_then(language),
        ..Header::default()
    };
    let mut ttl = None;
    let mut period = None;
    let mut frequency = None;
    for text in elements {
        // An unreadable header element costs only itself.
        let Ok((text, element)) = extract_element(text, scope, fallback) else {
            continue;
        };
        let local = lower(&element.local);
        let name = (element.namespace.as_str(), &*local);
        let value = element.text.trim();
        match name {
            (SYNDICATION_NS, "updateperiod") => period = Some(period_of(value)),
            (SYNDICATION_NS, "updatefrequency") => frequency = value.parse::<u32>().ok(),
            (DUBLIN_CORE_NS, "language") => header.language = language(value),
            (ATOM_NS, "link") => link(&mut header.links, &element, scope.base()),
            (ATOM_NS | ATOM_03_NS, "author") if format == Format::Atom => {
                add_author(&mut header.authors, atom::person_of(&text, scope.base()));
            }
            // RSS elements are in no namespace, or wrongly in a default one.
            (_, "ttl") if format != Format::Atom => ttl = value.parse::<u64>().ok(),
            (_, "language") if format != Format::Atom => header.language = language(value),
            // A link of another format without its namespace: `<link rel="hub" href="…"/>`.
            (_, "link") if element.attribute("rel").is_some() => {
                link(&mut header.links, &element, scope.base());
            }
            _ => {}
        }
    }
    let ttl = ttl.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    // The module's own defaults: daily, once.
    let period = match (period, frequency) {
        (None, None) => None,
        (period, frequency) => Some(period.unwrap_or(DAY) / frequency.unwrap_or(1).max(1)),
    };
    header.interval = ttl
        .max(period)
        .filter(|i| !i.is_zero())
        .map(|i| i.min(MAX_INTERVAL));
    header
}

fn link(links: &mut FeedLinks, element: &Element, base: Option<&Url>) {
    if let (Some(relation), Some(href)) = (element.attribute("rel"), element.attribute("href")) {
        let own = element.attribute("xml:base");
        let own = own.and_then(|own| links::join(base, own));
        links.note(relation, href, own.as_ref().or(base));
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

fn period_of(name: &str) -> Duration {
    match name.to_ascii_lowercase().as_str() {
        "hourly" => DAY / 24,
        "weekly" => DAY * 7,
        "monthly" => DAY * 30,
        "yearly" => DAY * 365,
        _ => DAY,
    }
}

/// Returns a language tag (RFC 5646) of valid form: `en`, `pt-BR`, `zh-Hant`.
pub(super) fn language(tag: &str) -> Option<String> {
    let tag = clean(tag.trim()).replace('_', "-");
    let good = (2..=35).contains(&tag.len())
        && tag.split('-').all(|part| {
            (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
        })
        && tag.starts_with(|c: char| c.is_ascii_alphabetic());
    good.then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_are_known_in_all_spellings() {
        let base = Url::parse("https://example.org/feeds/a.atom").ok();
        let mut links = FeedLinks::default();
        links.note("Prev-Archive", "2025/08.atom", base.as_ref());
        links.note(&format!("{RELATIONS}next"), "?page=2", base.as_ref());
        links.note("self  hub", "/x", base.as_ref());
        links.note("self", "/second", base.as_ref());
        links.note("current", "javascript:alert(1)", base.as_ref());
        assert_eq!(
            links,
            FeedLinks {
                prev_archive: Some("https://example.org/feeds/2025/08.atom".into()),
                next: Some("https://example.org/feeds/a.atom?page=2".into()),
                current: None,
                self_: Some("https://example.org/x".into()),
                hub: Some("https://example.org/x".into()),
            }
        );
    }

    #[test]
    fn languages_are_tags() {
        for (given, tag) in [
            (" en ", Some("en")),
            ("en_US", Some("en-US")),
            ("zh-Hant-TW", Some("zh-Hant-TW")),
            ("English language", None),
            ("", None),
            ("x", None),
            ("1a", None),
            ("en--us", None),
        ] {
            assert_eq!(language(given).as_deref(), tag, "{given}");
        }
    }
}
