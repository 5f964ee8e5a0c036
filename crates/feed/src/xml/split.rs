//! Cutting of a feed document into its entries without losing the good ones to a bad one.

use std::borrow::Cow;

use memchr::memchr;
use url::Url;

use super::element::{push_data, raw_attributes};
use super::nesting::Nesting;
use super::scope::Scope;
use super::token::{Tag, Token, Tokens, local};
use super::{ATOM_03_NS, ATOM_NS, lower};

/// Largest number of unreadable entries that are skipped before the rest of the document is
/// ignored: each one may cost a scan of [`Limits::entry_bytes`].
const MAX_SKIPPED: usize = 100;

/// Largest number of elements of the feed's own header that are kept, and their length.
const MAX_HEADER: usize = 64;
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// Elements of the header that are kept, by local name: its authors, its language, the addresses of
/// its other documents, and its interval.
const HEADER: [&str; 6] = [
    "author",
    "language",
    "link",
    "ttl",
    "updatefrequency",
    "updateperiod",
];

/// Bytes of the feed's own title that are kept.
const MAX_TITLE: usize = 4096;

/// The XML feed formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// RFC 4287, and Atom 0.3.
    Atom,
    /// RSS 0.9x and 2.0.
    Rss,
    /// RSS 1.0.
    Rdf,
}

/// Bounds of the work on one document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub entries: usize,
    pub entry_bytes: usize,
}

/// Document, cut up.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    pub format: Format,
    pub scope: Scope,
    pub title: Option<String>,
    /// Texts of some elements alongside the entries, see [`HEADER`].
    pub header: Vec<&'a str>,
    /// Text of each entry, from `<` to `>`, in document order. An entry without an end tag gets one
    /// in front of the next entry.
    pub entries: Vec<Cow<'a, str>>,
    /// Skipped entries, with reasons.
    pub skipped: Vec<String>,
    /// Whether entries are or may be missing: some were unreadable, or the document ends early.
    pub lost: bool,
}

impl<'a> Document<'a> {
    /// Keeps an element of the header.
    fn keep(&mut self, text: Option<&'a str>) {
        if self.header.len() < MAX_HEADER {
            self.header
                .extend(text.filter(|t| t.len() <= MAX_HEADER_BYTES));
        }
    }
}

/// Text that is no XML feed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotXmlFeed {
    /// XML, or similar, with another root element.
    Root(String),
    /// No element at all.
    NoElement,
}

/// Cuts up `text`.
///
/// # Errors
/// [`NotXmlFeed`] if the root element is not that of a feed.
pub(crate) fn split<'a>(
    text: &'a str,
    address: Option<&Url>,
    limits: Limits,
) -> Result<Document<'a>, NotXmlFeed> {
    let mut walker = Walker::new(text);
    let root = loop {
        match walker.tokens.next() {
            Ok(Token::Start(start)) => break start,
            Ok(Token::Text(data)) if !data.trim().is_empty() => return Err(NotXmlFeed::NoElement),
            Ok(Token::Eof) | Err(_) => return Err(NotXmlFeed::NoElement),
            Ok(_) => {}
        }
    };
    let mut scope = Scope::new(address);
    scope.enter(&root);
    let format = format(&root, &scope)?;
    let mut document = Document {
        format,
        scope,
        title: None,
        header: Vec::new(),
        entries: Vec::new(),
        skipped: Vec::new(),
        lost: false,
    };
    if !root.empty {
        walker.children(&mut document, &root, limits);
    }
    Ok(document)
}

fn format(root: &Tag, scope: &Scope) -> Result<Format, NotXmlFeed> {
    let namespace = scope.namespace(root.prefix().unwrap_or(""));
    match (&*lower(root.local()), namespace) {
        ("feed", None | Some(ATOM_NS | ATOM_03_NS)) => Ok(Format::Atom),
        ("rss", _) => Ok(Format::Rss),
        ("rdf", _) => Ok(Format::Rdf),
        (_, Some(namespace)) => Err(NotXmlFeed::Root(format!(
            "<{}> of the namespace {namespace}",
            root.name
        ))),
        (_, None) => Err(NotXmlFeed::Root(format!("<{}>", root.name))),
    }
}

struct Walker<'a> {
    text: &'a str,
    tokens: Tokens<'a>,
}

impl<'a> Walker<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            tokens: Tokens::new(text),
        }
    }

    fn position(&self) -> usize {
        self.tokens.position()
    }

    fn children(&mut self, document: &mut Document<'a>, root: &Tag, limits: Limits) {
        let entry_local = match document.format {
            Format::Atom => "entry",
            Format::Rss | Format::Rdf => "item",
        };
        // After an error outside an entry, reading resumes at the next entry with the prefix of the
        // root.
        let usual = match root.prefix() {
            Some(prefix) if document.format == Format::Atom => format!("{prefix}:{entry_local}"),
            _ => entry_local.to_owned(),
        };
        let mut open = 1usize;
        while open > 0 {
            let start = self.position();
            match self.tokens.next() {
                Ok(Token::Start(tag)) if tag.empty => {
                    if HEADER.contains(&&*lower(tag.local())) {
                        let end = self.position();
                        document.keep(self.text.get(start..end));
                    }
                }
                Ok(Token::Start(tag)) => {
                    let local = &*lower(tag.local());
                    if local == entry_local {
                        if document.entries.len() >= limits.entries {
                            document.skipped.push(format!(
                                "everything after the first {} entries",
                                limits.entries
                            ));
                            return;
                        }
                        let name = tag.name;
                        match self.skip(name, start, limits.entry_bytes) {
                            Ok(end) => document
                                .entries
                                .extend(self.text.get(start..end).map(Cow::Borrowed)),
                            Err(Fault::Next(at)) => {
                                let text = self.text.get(start..at).unwrap_or("");
                                let whole = format!("{text}</{name}>");
                                document.entries.push(Cow::Owned(whole));
                                self.tokens.seek(at);
                            }
                            Err(why) => {
                                let n = document.entries.len() + document.skipped.len() + 1;
                                document.skipped.push(format!("entry {n}: {why}"));
                                document.lost = true;
                                if !self.resume(start, name, document) {
                                    return;
                                }
                            }
                        }
                    } else if local == "channel" && document.format != Format::Atom {
                        document.scope.enter(&tag);
                        open += 1;
                    } else {
                        let title = local == "title" && document.title.is_none();
                        let header = HEADER.contains(&local);
                        let name = tag.name;
                        match self.skip(name, start, usize::MAX) {
                            Ok(end) if title => {
                                document.title = self.text.get(start..end).and_then(title_text);
                            }
                            Ok(end) if header => document.keep(self.text.get(start..end)),
                            Ok(_) => {}
                            Err(why) => {
                                document.skipped.push(format!("<{name}>: {why}"));
                                if !self.resume(start, &usual, document) {
                                    // No entry follows, unless the end is missing.
                                    document.lost |= !self.closes(start, root);
                                    return;
                                }
                            }
                        }
                    }
                }
                // A stray end tag ends nothing.
                Ok(Token::End(name)) => {
                    let around = ["feed", "rss", "rdf", "channel"];
                    open -= usize::from(around.contains(&&*lower(local(name))));
                }
                Ok(Token::Eof) => {
                    document.skipped.push("the document ends early".into());
                    document.lost = true;
                    return;
                }
                Ok(_) => {}
                Err(e) => {
                    document.skipped.push(format!("between entries: {e}"));
                    if !self.resume(start, &usual, document) {
                        document.lost |= !self.closes(start, root);
                        return;
                    }
                }
            }
        }
    }

    /// Reads to the end of the element whose start tag was just read, and returns that position.
    fn skip(&mut self, name: &'a str, start: usize, most: usize) -> Result<usize, Fault> {
        let mut nesting = Nesting::default();
        nesting.open(name).map_err(Fault::Other)?;
        loop {
            let at = self.position();
            match self.tokens.next() {
                Ok(Token::Start(tag)) if tag.empty => {}
                Ok(Token::Start(tag)) => {
                    // An entry directly in an entry: the outer one's end tag is missing.
                    if nesting.depth() == 1 && tag.name == name {
                        return Err(Fault::Next(at));
                    }
                    nesting.open(tag.name).map_err(Fault::Other)?;
                }
                Ok(Token::End(ended)) => {
                    if ended.contains('<') {
                        return Err(Fault::Other("an end tag that does not end".into()));
                    }
                    if nesting.close(ended) > 0 && nesting.depth() == 0 {
                        let end = self.position();
                        if end.saturating_sub(start) > most {
                            return Err(too_long(most));
                        }
                        return Ok(end);
                    }
                }
                Ok(Token::Eof) => {
                    return Err(Fault::Other("the document ends inside it".into()));
                }
                Ok(_) => {}
                Err(e) => return Err(Fault::Other(e.to_string())),
            }
            if self.position().saturating_sub(start) > most {
                return Err(too_long(most));
            }
        }
    }

    /// Whether the document's root element ends somewhere after `start`.
    fn closes(&self, start: usize, root: &Tag) -> bool {
        find_tag(self.text, start, &format!("</{}", root.name)).is_some()
    }

    /// Resumes after something unreadable that began at `start`: continues at the next position
    /// where an entry named `name` surely ends or begins. Returns whether there is one within the
    /// limits.
    fn resume(&mut self, start: usize, name: &str, document: &Document) -> bool {
        if document.skipped.len() >= MAX_SKIPPED {
            return false;
        }
        let search = start + 1;
        let begin = find_tag(self.text, search, &format!("<{name}"));
        let end = find_tag(self.text, search, &format!("</{name}"));
        let at = match (begin, end) {
            (Some(begin), Some(end)) if begin < end => begin,
            // Past the end tag; if that itself is truncated, only past its name.
            (_, Some(end)) => {
                let after = end + "</".len() + name.len();
                let rest = self.text.get(after..).unwrap_or("");
                let space = rest.len() - rest.trim_start().len();
                after + space + usize::from(rest[space..].starts_with('>'))
            }
            (Some(begin), None) => begin,
            (None, None) => return false,
        };
        self.tokens.seek(at);
        true
    }
}

/// Reason for which the end of an element was not found.
enum Fault {
    /// The next element of that name begins here, inside the current one.
    Next(usize),
    Other(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Next(_) => f.write_str("its end tag is missing"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

fn too_long(most: usize) -> Fault {
    Fault::Other(format!("longer than {most} bytes"))
}

/// Finds `tag`, in capitals or not, if its name is not just the beginning of a longer one.
fn find_tag(text: &str, from: usize, tag: &str) -> Option<usize> {
    let text = text.as_bytes();
    let mut from = from;
    loop {
        let at = from + memchr(b'<', text.get(from..)?)?;
        let end = at + tag.len();
        let found = text.get(at..end)?.eq_ignore_ascii_case(tag.as_bytes());
        match text.get(end) {
            Some(b'>' | b'/' | b' ' | b'\t' | b'\r' | b'\n') if found => return Some(at),
            _ => from = at + 1,
        }
    }
}

/// Returns the text of the feed's title, without markup.
fn title_text(xml: &str) -> Option<String> {
    let mut tokens = Tokens::new(xml);
    let mut text = String::new();
    let mut html = false;
    loop {
        match tokens.next() {
            Ok(Token::Start(tag)) => {
                html |= raw_attributes(tag.attributes).any(|a| a == ("type", "html"));
            }
            Ok(Token::Eof) | Err(_) => break,
            Ok(other) => push_data(&mut text, &other),
        }
        if text.len() > MAX_TITLE {
            break;
        }
    }
    let text = if html {
        crate::html::plain_text(&text)
    } else {
        crate::html::text_or_html(&text)
    };
    let text: String = super::clean(&text).chars().take(MAX_TITLE / 4).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests;
