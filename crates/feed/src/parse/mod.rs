//! Parsing of a feed document into entries.
//!
//! The document is cut into entries first, and each is parsed on its own: the original text of each
//! Atom entry is kept, and an unreadable entry costs only itself.

mod atom;
mod dates;
pub(crate) mod decode;
mod error;
mod feed;
mod fields;
mod header;
mod identity;
mod json;
mod media;
mod rejection;
mod repair_json;
mod rss;
mod unique;

use std::borrow::Cow;

use url::Url;

use crate::entry::Entry;
pub use crate::entry::{MAX_ENTRY_BYTES, MAX_ID_BYTES};
use crate::xml::check::{Form, check};
use crate::xml::element::{Child, Element};
use crate::xml::extensions::extensions;
use crate::xml::repair::repair;
use crate::xml::scope::extract_element;
use crate::xml::split::{Document, Format, Limits, NotXmlFeed, split};
use crate::xml::{ATOM_03_NS, ATOM_NS, escape_stray_brackets, synthesise};

pub use error::ParseError;
pub use feed::{MAX_ENTRIES, ParsedFeed};
pub use header::FeedLinks;
use header::Header;
use identity::identify;
pub(crate) use json::{item_len, json_item};

/// Largest number of bytes in front of a document's beginning.
const MAX_JUNK: usize = 16 * 1024;

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
    match rejection::not_a_feed(&decode::summary(document, charset), None) {
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
        let result = extract_element(&raw, &scope, fallback).and_then(|(text, element)| {
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
