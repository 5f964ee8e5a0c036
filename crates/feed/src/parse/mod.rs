//! From the bytes of a feed document to its entries.
//!
//! The document is cut into entries first, and each is parsed on its own: the original text of
//! each Atom entry is kept, and an entry that cannot be read costs only itself.

mod atom;
mod dates;
pub(crate) mod decode;
mod fields;
mod header;
mod json;
mod media;
mod mend_json;
mod rss;
mod seen;
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
use crate::xml::{ATOM_03_NS, ATOM_NS, mend, synthesise};

pub use header::FeedLinks;
use header::Header;

/// The most entries taken from one document, the first ones.
pub const MAX_ENTRIES: usize = 1000;

/// The longest entry in bytes, as text. A longer one is passed over and named in
/// [`ParsedFeed::skipped`].
pub const MAX_ENTRY_BYTES: usize = 1 << 20;

/// How much may stand before a document's beginning.
const MAX_JUNK: usize = 16 * 1024;

/// The longest entry id in bytes. A longer one is replaced by a hash of it.
pub const MAX_ID_BYTES: usize = 2048;

/// A feed document, parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedFeed {
    /// The feed's own title, as plain text.
    pub title: Option<String>,
    /// Where the feed's other documents are.
    pub links: FeedLinks,
    /// How often the feed says that it changes: the longer of RSS's `ttl` and the Syndication
    /// module's `updatePeriod` and `updateFrequency`. Many publishing systems put in a default
    /// that has nothing to do with the feed's real rate. `skipHours` and `skipDays` are passed
    /// over: an entry that appears in such an hour would come many hours late, and a conditional
    /// request costs the server next to nothing.
    pub interval: Option<Duration>,
    /// In the document's order, which is newest first in nearly all feeds.
    pub entries: Vec<Entry>,
    /// What was passed over and why, for the log: entries that cannot be read, are too long, or
    /// are past [`MAX_ENTRIES`]. At most about a hundred lines.
    pub skipped: Vec<String>,
    /// The label of the encoding that the server or the document states, where it is not known.
    /// The document is UTF-8 and was read as such.
    pub unknown_encoding: Option<String>,
}

impl ParsedFeed {
    /// Returns the remarks on a feed that was read all the same: everything that was passed over,
    /// and an encoding that is not known.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let label = self.unknown_encoding.as_deref();
        let encoding = label.map(|label| {
            format!("the encoding {label:?}, which is not known; the document is UTF-8")
        });
        encoding.into_iter().chain(self.skipped.clone()).collect()
    }
}

/// Why a document gives no entries at all.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// Something else than a feed.
    #[error("not a feed but {seen}")]
    NotAFeed {
        /// What it is, for people: "an HTML page titled '…'".
        seen: String,
        /// It looks like a bot check: asking again later, or from elsewhere, may help.
        challenge: bool,
    },
    /// A feed with entries, none of which can be read.
    #[error("a feed of which no entry can be read: {first}")]
    NoUsableEntry {
        /// What is wrong with the first one.
        first: String,
    },
    /// The encoding that the server or the document states is not known, and the document is not
    /// UTF-8.
    #[error("in the unknown encoding {label:?}, and not UTF-8: it cannot be read")]
    UnknownEncoding {
        /// The encoding's label.
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

/// Parses a document of which no HTTP header is known: see [`parse_served`].
///
/// # Errors
/// See [`parse_served`].
pub fn parse(document: &[u8], address: &str) -> Result<ParsedFeed, ParseError> {
    parse_served(document, address, None)
}

/// Parses an Atom, RSS or JSON Feed document in any encoding that the server or it itself states.
///
/// `address` is where the document came from; relative links are resolved against it, also those
/// in HTML. `charset` is what the server's `Content-Type` says, if it says it.
///
/// Read are RSS 0.90 to 2.0 and 1.0, Atom 0.3 and 1.0, and JSON Feed 1.0 and 1.1, also where they
/// are broken in the usual ways: unescaped signs, missing end tags, something before the document,
/// a wrong name of the encoding, undeclared prefixes, names in capitals, a missing end. Entities
/// that a document declares itself are not expanded.
///
/// # Errors
/// [`ParseError::NotAFeed`] for anything that is not a feed, above all an HTML page served with
/// status 200; [`ParseError::NoUsableEntry`] if there are entries and none can be read, or if there
/// are none and the document ends early; [`ParseError::UnknownEncoding`]. A whole feed without
/// entries is no error.
pub fn parse_served(
    document: &[u8],
    address: &str,
    charset: Option<&str>,
) -> Result<ParsedFeed, ParseError> {
    let decoded = decode::decode(document, charset);
    let decode::Decoded { text, unknown } =
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
        let mended = mend(&text);
        match split(&mended, address.as_ref(), limits) {
            Ok(document) => xml(document),
            Err(why) => after_junk(&mended)
                .and_then(|rest| split(rest, address.as_ref(), limits).ok())
                .map(xml)
                .filter(|(feed, _)| !feed.entries.is_empty())
                .ok_or_else(|| match why {
                    NotXmlFeed::Root(root) => seen::not_a_feed(&text, Some(&root)),
                    NotXmlFeed::NoElement => seen::not_a_feed(&text, None),
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

/// The feed in a document that begins with something else, such as a warning of the program that
/// makes it.
fn after_junk(text: &str) -> Option<&str> {
    let head = text.get(..text.floor_char_boundary(MAX_JUNK))?;
    let lower = head.to_ascii_lowercase();
    // A page may speak of feeds.
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

/// What a document that is no feed seems to be; for the bodies of error responses.
pub(crate) fn describe(document: &[u8], charset: Option<&str>) -> (String, bool) {
    match seen::not_a_feed(&decode::glance(document, charset), None) {
        ParseError::NotAFeed { seen, challenge } => (seen, challenge),
        other => (other.to_string(), false),
    }
}

/// The feed of a document, and whether entries of it are lost.
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

/// Makes the entry of one element that stands alone.
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

/// The element's own text where that is an Atom entry, put right where it is not XML.
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

/// The entry's own id, or a stable one from what should not change about it; `None` if there is
/// nothing to make one from.
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
    // The title counts beside the link, because feeds exist whose entries all link to one page: an
    // entry that appears twice is better than one that is lost.
    fields.field(entry.url.as_deref());
    fields.field(folded(&entry.title).as_deref());
    if entry.url.is_none() {
        for text in &texts[1..] {
            fields.field(folded(text).as_deref());
        }
    }
    Some(fields.finish_urn())
}
