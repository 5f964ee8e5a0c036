//! Parsing of a feed document into entries.
//!
//! The document is cut into entries first, and each is parsed on its own: the original text of each
//! Atom entry is kept, and an unreadable entry costs only itself.

mod atom;
mod dates;
pub(crate) mod decode;
mod fields;
mod header;
mod json;
mod media;
mod rejection;
mod repair_json;
mod rss;
mod unique;

use std::borrow::Cow;
use std::time::Duration;

use thiserror::Error;
use url::Url;

use crate::entry::{Entry, Fields};
use crate::xml::check::{Form, check};
use crate::xml::element::{Child, Element};
use crate::xml::extensions::extensions;
use crate::xml::repair::repair;
use crate::xml::scope::stand_alone;
use crate::xml::split::{Document, Format, Limits, NotXmlFeed, split};
use crate::xml::{ATOM_03_NS, ATOM_NS, escape_stray_brackets, synthesise};

pub use header::FeedLinks;
use header::Header;

/// Largest number of entries taken from one document, the first ones.
pub const MAX_ENTRIES: usize = 1000;

/// Longest entry in bytes, as text. A longer one is skipped and named in [`ParsedFeed::skipped`].
pub const MAX_ENTRY_BYTES: usize = 1 << 20;

/// Largest number of bytes in front of a document's beginning.
const MAX_JUNK: usize = 16 * 1024;

/// Longest entry id in bytes. A longer one is replaced by its hash.
pub const MAX_ID_BYTES: usize = 2048;

/// Parsed feed document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedFeed {
    /// Title of the feed, as plain text.
    pub title: Option<String>,
    /// Addresses of the feed's other documents.
    pub links: FeedLinks,
    /// Interval between changes, as stated by the feed: the longer of RSS's `ttl` and the
    /// Syndication module's `updatePeriod` and `updateFrequency`. Many publishing systems insert a
    /// default that is unrelated to the feed's real rate. `skipHours` and `skipDays` are ignored:
    /// an entry that appears in such an hour would be many hours late, and a conditional request
    /// costs the server next to nothing.
    pub interval: Option<Duration>,
    /// Entries in the document's order, which is newest first in nearly all feeds.
    pub entries: Vec<Entry>,
    /// Skipped entries with reasons, for the log: unreadable, too long, or past [`MAX_ENTRIES`]. At
    /// most about a hundred lines.
    pub skipped: Vec<String>,
    /// Label of the encoding that the server or the document states, if it is not known. The
    /// document is UTF-8 and was read as such.
    pub unknown_encoding: Option<String>,
}

impl ParsedFeed {
    /// Returns the remarks on a feed that was read all the same: everything that was skipped, and
    /// an unknown encoding.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let label = self.unknown_encoding.as_deref();
        let encoding = label.map(|label| {
            format!("the encoding {label:?}, which is not known; the document is UTF-8")
        });
        encoding.into_iter().chain(self.skipped.clone()).collect()
    }
}

/// Failure of a document to give any entries.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// Document that is no feed.
    #[error("not a feed but {seen}")]
    NotAFeed {
        /// Apparent kind of the document, for people: "an HTML page titled '…'".
        seen: String,
        /// Whether the document looks like a bot check: a poll later, or from another address, may
        /// succeed.
        challenge: bool,
    },
    /// Feed with entries, none of which is readable.
    #[error("a feed of which no entry can be read: {first}")]
    NoUsableEntry {
        /// Defect of the first entry.
        first: String,
    },
    /// Unknown encoding of the server or the document, which is not UTF-8.
    #[error("in the unknown encoding {label:?}, and not UTF-8: it cannot be read")]
    UnknownEncoding {
        /// Label of the encoding.
        label: String,
    },
}

impl ParseError {
    /// Whether the document looks like a bot check.
    #[must_use]
    pub fn is_challenge(&self) -> bool {
        matches!(
            self,
            Self::NotAFeed {
                challenge: true,
                ..
            }
        )
    }
}

/// Parses a document without its HTTP header: see [`parse_served`].
///
/// # Errors
/// See [`parse_served`].
pub fn parse(document: &[u8], address: &str) -> Result<ParsedFeed, ParseError> {
    parse_served(document, address, None)
}

/// Parses an Atom, RSS or JSON Feed document in any encoding that the server or the document
/// states.
///
/// `address` is the document's own address; relative links are resolved against it, also those in
/// HTML. `charset` is that of the server's `Content-Type`, if present.
///
/// Accepted are RSS 0.90 to 2.0 and 1.0, Atom 0.3 and 1.0, and JSON Feed 1.0 and 1.1, also if they
/// are broken in the usual respects: unescaped signs, missing end tags, text in front of the
/// document, a wrong name of the encoding, undeclared prefixes, names in capitals, a missing end.
/// Entities that a document declares itself are not expanded.
///
/// # Errors
/// [`ParseError::NotAFeed`] for anything that is not a feed, above all an HTML page served with
/// status 200; [`ParseError::NoUsableEntry`] if there are entries and none is readable, or if there
/// are none and the document ends early; [`ParseError::UnknownEncoding`]. A whole feed without
/// entries is no error.
pub fn parse_served(
    document: &[u8],
    address: &str,
    charset: Option<&str>,
) -> Result<ParsedFeed, ParseError> {
    let decoded = decode::decode(document, charset);
    let decode::DecodedText { text, unknown } =
        decoded.map_err(|decode::UnknownEncoding(label)| ParseError::UnknownEncoding { label })?;
    let address = Url::parse(address).ok();
    let (mut feed, lost) = if text.trim_start().starts_with('{') {
        let feed = json::parse(&text, address.as_ref())?;
        let lost = !feed.skipped.is_empty();
        (feed, lost)
    } else {
        let limits = Limits {
            entries: MAX_ENTRIES,
            entry_bytes: MAX_ENTRY_BYTES,
        };
        let escaped = escape_stray_brackets(&text);
        match split(&escaped, address.as_ref(), limits) {
            Ok(document) => xml(document),
            Err(why) => after_junk(&escaped)
                .and_then(|rest| split(rest, address.as_ref(), limits).ok())
                .map(xml)
                .filter(|(feed, _)| !feed.entries.is_empty())
                .ok_or_else(|| match why {
                    NotXmlFeed::Root(root) => rejection::not_a_feed(&text, Some(&root)),
                    NotXmlFeed::NoElement => rejection::not_a_feed(&text, None),
                })?,
        }
    };
    feed.unknown_encoding = unknown;
    unique::separate(&mut feed.entries);
    match feed.skipped.first() {
        Some(first) if feed.entries.is_empty() && lost => Err(ParseError::NoUsableEntry {
            first: first.clone(),
        }),
        _ => Ok(feed),
    }
}

/// Returns the feed in a document with other text in front, such as a warning of the program that
/// makes it.
fn after_junk(text: &str) -> Option<&str> {
    let head = text.get(..text.floor_char_boundary(MAX_JUNK))?;
    let lower = head.to_ascii_lowercase();
    // A page may mention feeds.
    if ["<html", "<!doctype html"]
        .iter()
        .any(|t| lower.contains(t))
    {
        return None;
    }
    let begin = ["<?xml", "<rss", "<feed", "<rdf:rdf"]
        .iter()
        .filter_map(|begin| lower.find(begin))
        .min()
        .filter(|at| *at > 0)?;
    text.get(begin..)
}

/// Describes a document that is no feed; for the bodies of error responses.
pub(crate) fn describe(document: &[u8], charset: Option<&str>) -> (String, bool) {
    match rejection::not_a_feed(&decode::glance(document, charset), None) {
        ParseError::NotAFeed { seen, challenge } => (seen, challenge),
        other => (other.to_string(), false),
    }
}

/// Returns the feed of a document, and whether entries of it are lost.
fn xml(document: Document) -> (ParsedFeed, bool) {
    let Document {
        format,
        scope,
        title,
        header,
        entries,
        mut skipped,
        mut lost,
    } = document;
    let mut parsed = Vec::with_capacity(entries.len());
    // Atom feeds without any declaration exist; RSS elements are in no namespace by definition.
    let fallback = match format {
        Format::Atom => ATOM_NS,
        Format::Rss | Format::Rdf => "",
    };
    let header = header::read(format, &header, &scope, fallback);
    for (n, raw) in entries.into_iter().enumerate() {
        let result = stand_alone(&raw, &scope, fallback).and_then(|(text, element)| {
            let known = matches!(element.namespace.as_str(), ATOM_NS | ATOM_03_NS);
            if format == Format::Atom && !known {
                return Err(format!(
                    "an <entry> of the namespace {:?}",
                    element.namespace
                ));
            }
            let language = element.attribute("xml:lang").and_then(header::language);
            entry(format, &text, &element, &header, language, scope.base())
        });
        match result {
            Ok(entry) => parsed.push(entry),
            Err(why) => {
                lost = true;
                skipped.push(format!("entry {}: {why}", n + 1));
            }
        }
    }
    let feed = ParsedFeed {
        title,
        links: header.links,
        interval: header.interval,
        entries: parsed,
        skipped,
        unknown_encoding: None,
    };
    (feed, lost)
}

/// Makes the entry of one element that is cut out of its document.
fn entry(
    format: Format,
    text: &str,
    element: &Element,
    header: &Header,
    language: Option<String>,
    base: Option<&Url>,
) -> Result<Entry, String> {
    let mut entry = match format {
        Format::Atom => atom::read(text, element, base),
        Format::Rss | Format::Rdf => rss::read(text, element, base),
    };
    entry.language = language.or_else(|| header.language.clone());
    if entry.authors.is_empty() {
        entry.authors.clone_from(&header.authors);
    }
    // RSS elements are in no namespace, or wrongly in a default one.
    let child = |local: &str| {
        let mut children = element.children.iter();
        let found = children.find(|c| c.local.eq_ignore_ascii_case(local));
        found.map(|c| c.text.as_str())
    };
    let own_id = match format {
        Format::Atom => child("id"),
        Format::Rss => child("guid").or_else(|| child("id")),
        Format::Rdf => element
            .attributes
            .iter()
            .find(|(name, _)| {
                name.rsplit(':')
                    .next()
                    .is_some_and(|n| n.eq_ignore_ascii_case("about"))
            })
            .map(|(_, value)| value.as_str()),
    };
    entry.id = identify(own_id, &entry).ok_or("it has no id, link, title or content")?;
    entry.xml = match original(text, element) {
        Some(original) => original.into_owned(),
        None => synthesise::entry(&entry, &extensions(text, element)),
    };
    Ok(entry)
}

/// Returns the element's own text if that is an Atom entry, repaired if it is not XML.
fn original<'a>(text: &'a str, element: &Element) -> Option<Cow<'a, str>> {
    let in_capitals = |child: &Child| {
        child.namespace == ATOM_NS && child.local.bytes().any(|b| b.is_ascii_uppercase())
    };
    if element.namespace != ATOM_NS
        || element.local != "entry"
        || element.children.iter().any(in_capitals)
    {
        return None;
    }
    if check(text, Form::Element).is_ok() {
        return Some(Cow::Borrowed(text));
    }
    repair(text).map(Cow::Owned)
}

/// Returns the entry's own id, or a stable one from its constant properties; `None` if the entry
/// has none of these.
fn identify(own: Option<&str>, entry: &Entry) -> Option<String> {
    let own = own.map(str::trim).filter(|id| !id.is_empty());
    if let Some(id) = own
        && id.len() <= MAX_ID_BYTES
    {
        return Some(crate::xml::clean(id).into_owned()).filter(|id| !id.is_empty());
    }
    let mut fields = Fields::new(b"flexfeed entry id v1");
    if let Some(id) = own {
        fields.field(Some(id));
        return Some(fields.finish_urn());
    }
    let texts = [
        &entry.title,
        &entry.content_html,
        &entry.content_text,
        &entry.summary,
    ];
    if entry.url.is_none() && texts.iter().all(|t| t.is_none()) {
        // A podcast's episode may be nothing but its file.
        fields.field(Some(&entry.attachments.first()?.url));
        return Some(fields.finish_urn());
    }
    // Dates do not count: they change with every generation of some feeds. White space does not
    // either.
    let folded = |text: &Option<String>| {
        let text = text.as_deref()?;
        Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    // The title counts alongside the link, because feeds exist whose entries all link to one page:
    // an entry that appears twice is better than one that is lost.
    fields.field(entry.url.as_deref());
    fields.field(folded(&entry.title).as_deref());
    if entry.url.is_none() {
        for text in &texts[1..] {
            fields.field(folded(text).as_deref());
        }
    }
    Some(fields.finish_urn())
}
