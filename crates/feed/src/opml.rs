//! Lists of feeds as OPML (opml.org), the format in which feed readers import and export.
//!
//! The reader accepts 2.0 and the 1.0 in the field: nested folders, attributes in any case,
//! unescaped ampersands, any encoding. The writer writes 2.0 with one folder per channel.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use thiserror::Error;

use crate::parse::decode::{UnknownEncoding, decode};
use crate::xml::{MAX_ATTRIBUTES, clean, push_attribute, push_text};

/// Longest list that is read, in bytes.
pub const MAX_BYTES: usize = 16 << 20;

/// Largest number of feeds that are read from one list.
pub const MAX_OUTLINES: usize = 20_000;

/// Longest title, address or folder name that is kept, in characters.
const MAX_TEXT: usize = 4096;

/// Largest depth of nested folders.
const MAX_FOLDERS: usize = 64;

/// One feed of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    /// Name of the feed for people, if it has one.
    pub title: Option<String>,
    /// Address as in the list, except that `feed:` addresses become `http:` or `https:`. Not
    /// checked: that is up to the caller that adds the feed.
    pub url: String,
    /// Innermost folder of the feed; flexfeed writes its channels as folders.
    pub channel: Option<String>,
}

/// Failure to read a list.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpmlError {
    /// Document that is no OPML list.
    #[error(
        "not an OPML list but {seen}; export one from your feed reader (\"export subscriptions\")"
    )]
    NotOpml {
        /// Apparent kind of the document.
        seen: String,
    },
    /// Unknown encoding, and not UTF-8.
    #[error(
        "the OPML list is in the unknown encoding {label:?}, and not UTF-8: it cannot be read; \
         export it again as UTF-8"
    )]
    Encoding {
        /// Label of the encoding.
        label: String,
    },
    /// List that is truncated or no XML from some point on. Part of a list would pass for the
    /// whole.
    #[error("the OPML list is broken after {after} feeds: {what}; export it again")]
    Broken {
        /// Number of feeds in front of the defect.
        after: usize,
        /// Defect of the document.
        what: String,
    },
    /// List longer than [`MAX_BYTES`] or with more than [`MAX_OUTLINES`] feeds.
    #[error(
        "the OPML list is too long; at most {MAX_OUTLINES} feeds and {MAX_BYTES} bytes are read: \
         split it"
    )]
    TooLong,
}

/// Reads a list. The same feed in the same folder counts once.
///
/// # Errors
/// [`OpmlError`] if the document is no list, or not a whole one.
pub fn read(document: &[u8]) -> Result<Vec<Outline>, OpmlError> {
    if document.len() > MAX_BYTES {
        return Err(OpmlError::TooLong);
    }
    let decoded = decode(document, None);
    let text = decoded
        .map_err(|UnknownEncoding(label)| OpmlError::Encoding { label })?
        .text;
    let mut reader = Reader::from_str(&text);
    // A wrong end tag does no harm here; a missing one is found at the end.
    reader.config_mut().check_end_names = false;
    reader.config_mut().allow_unmatched_ends = true;
    let mut feeds = Feeds::default();
    let mut inside = false;
    // One for each open outline: its name, if it is a folder.
    let mut open: Vec<Option<String>> = Vec::new();
    loop {
        let broken = |what: String| OpmlError::Broken {
            after: feeds.list.len(),
            what,
        };
        match reader.read_event() {
            Ok(Event::Start(tag)) if !inside => {
                if !is(&tag, "opml") {
                    return Err(not_opml(document));
                }
                inside = true;
            }
            Ok(Event::Empty(tag)) if !inside => {
                return if is(&tag, "opml") {
                    Ok(Vec::new())
                } else {
                    Err(not_opml(document))
                };
            }
            Ok(Event::Start(tag)) if is(&tag, "outline") => {
                let found = outline(&tag);
                if open.len() >= MAX_FOLDERS {
                    return Err(broken(format!(
                        "folders nested more than {MAX_FOLDERS} deep"
                    )));
                }
                let folder = if found.url.is_empty() {
                    found.title.clone()
                } else {
                    None
                };
                feeds.add(found, &open)?;
                open.push(folder);
            }
            Ok(Event::Empty(tag)) if is(&tag, "outline") => feeds.add(outline(&tag), &open)?,
            Ok(Event::End(tag)) => {
                if tag.local_name().as_ref().eq_ignore_ascii_case("outline") {
                    open.pop();
                } else if tag.local_name().as_ref().eq_ignore_ascii_case("opml") {
                    return Ok(feeds.list);
                }
            }
            Ok(Event::Eof) if !inside => return Err(not_opml(document)),
            Ok(Event::Eof) => return Err(broken("it ends early".into())),
            Ok(Event::Text(data)) if !inside && !data.trim().is_empty() => {
                return Err(not_opml(document));
            }
            Ok(_) => {}
            Err(_) if !inside => return Err(not_opml(document)),
            Err(e) => {
                let at = reader.error_position();
                return Err(broken(format!("{e} at character {at}")));
            }
        }
    }
}

#[derive(Default)]
struct Feeds {
    list: Vec<Outline>,
    seen: std::collections::HashSet<(Option<String>, String)>,
}

impl Feeds {
    fn add(&mut self, mut outline: Outline, open: &[Option<String>]) -> Result<(), OpmlError> {
        if outline.url.is_empty() {
            return Ok(());
        }
        if self.list.len() >= MAX_OUTLINES {
            return Err(OpmlError::TooLong);
        }
        outline.channel = open.iter().rev().find_map(Clone::clone);
        if self
            .seen
            .insert((outline.channel.clone(), outline.url.clone()))
        {
            self.list.push(outline);
        }
        Ok(())
    }
}

fn is(tag: &BytesStart, name: &str) -> bool {
    tag.local_name().as_ref().eq_ignore_ascii_case(name)
}

fn not_opml(document: &[u8]) -> OpmlError {
    let seen = match crate::parse::parse(document, "") {
        Ok(_) => "a feed itself: add its address".to_owned(),
        Err(_) => crate::parse::describe(document, None).0,
    };
    OpmlError::NotOpml { seen }
}

/// Returns the attributes of an outline. Without `url`, the outline is a folder or something else.
fn outline(tag: &BytesStart) -> Outline {
    let mut text = None;
    let mut title = None;
    let mut url = None;
    let mut link = None;
    let mut kind = String::new();
    for attribute in tag
        .attributes()
        .with_checks(false)
        .flatten()
        .take(MAX_ATTRIBUTES)
    {
        let value = value(&attribute.value);
        match attribute.key.as_ref().to_ascii_lowercase().as_str() {
            "text" => text = value,
            "title" => title = value,
            "xmlurl" => url = value,
            "url" => link = value,
            "type" => kind = value.unwrap_or_default().to_ascii_lowercase(),
            _ => {}
        }
    }
    // OPML 1.0 lists of some readers have the feed's address in `url`.
    let feed = matches!(kind.as_str(), "rss" | "rss1" | "atom" | "feed" | "json");
    let url = url.or_else(|| link.filter(|_| feed)).unwrap_or_default();
    Outline {
        title: title.or(text).map(|t| crate::html::plain_text(&t)),
        url: without_feed_scheme(url),
        channel: None,
    }
}

/// Returns the address without the scheme `feed`: `feed://example.org/` and
/// `feed:https://example.org/` are links that browsers pass to readers.
fn without_feed_scheme(url: String) -> String {
    let scheme = url.get(..5).filter(|s| s.eq_ignore_ascii_case("feed:"));
    match scheme.and_then(|_| url.get(5..)) {
        Some(rest) if rest.starts_with("//") => format!("http:{rest}"),
        Some(rest) => rest.to_owned(),
        None => url,
    }
}

fn value(raw: &str) -> Option<String> {
    // An ampersand that begins none of XML's references is an ampersand.
    let value = match quick_xml::escape::unescape(raw) {
        Ok(value) => value.into_owned(),
        Err(_) => resolve_references(raw),
    };
    let value: String = clean(value.trim()).chars().take(MAX_TEXT).collect();
    (!value.is_empty()).then_some(value)
}

/// Resolves the references of XML in a text in which other ampersands are literal.
fn resolve_references(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut parts = raw.split('&');
    out.push_str(parts.next().unwrap_or(""));
    for part in parts {
        let resolved = part.split_once(';').and_then(|(name, rest)| {
            let reference = format!("&{name};");
            let c = quick_xml::escape::unescape(&reference).ok()?;
            Some((c.into_owned(), rest))
        });
        match resolved {
            Some((c, rest)) => {
                out.push_str(&c);
                out.push_str(rest);
            }
            None => {
                out.push('&');
                out.push_str(part);
            }
        }
    }
    out
}

/// Returns a list, made at `created`: the feeds of each channel in a folder of its name, in the
/// order in which the channels first occur.
#[must_use]
pub fn write(title: &str, created: Timestamp, outlines: &[Outline]) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<opml version=\"2.0\">\n<head>\n<title>",
    );
    push_text(&mut out, title);
    out.push_str("</title>\n<dateCreated>");
    // RFC 822, as required by the format.
    let created = created.to_zoned(TimeZone::UTC);
    out.push_str(&created.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
    out.push_str("</dateCreated>\n</head>\n<body>\n");
    let mut channels: Vec<Option<&str>> = Vec::new();
    for outline in outlines {
        if !channels.contains(&outline.channel.as_deref()) {
            channels.push(outline.channel.as_deref());
        }
    }
    for channel in channels {
        if let Some(channel) = channel {
            out.push_str("<outline text=\"");
            push_attribute(&mut out, channel);
            out.push_str("\">\n");
        }
        for outline in outlines.iter().filter(|o| o.channel.as_deref() == channel) {
            out.push_str("<outline type=\"rss\" text=\"");
            // Readers show this attribute, and it may not be absent.
            push_attribute(&mut out, outline.title.as_deref().unwrap_or(&outline.url));
            if let Some(title) = &outline.title {
                out.push_str("\" title=\"");
                push_attribute(&mut out, title);
            }
            out.push_str("\" xmlUrl=\"");
            push_attribute(&mut out, &outline.url);
            out.push_str("\"/>\n");
        }
        if channel.is_some() {
            out.push_str("</outline>\n");
        }
    }
    out.push_str("</body>\n</opml>\n");
    out
}

#[cfg(test)]
mod tests;
