//! Publications: entries that a publisher sends instead of a feed that is polled.
//!
//! A publication is a CloudEvents 1.0 event, or text, HTML or JSON with a title. A JSON object with
//! the members of a JSON Feed 1.1 item is that item; other JSON is shown as text. Between the
//! publisher and the source that stores it, a publication is encoded as such an item.

mod event;

use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::entry::{Entry, MAX_ENTRY_BYTES, MAX_ID_BYTES};
use crate::parse::{item_len, json_item};
pub use event::{Event, EventData, MAX_BATCH};

/// Address of the feed that publications belong to, in their updates and in the store.
pub const FEED_URL: &str = "urn:flexfeed:publications";

/// Longest event and longest encoded publication, in bytes: each byte of an entry may be an escape
/// of six in it.
pub const MAX_ENCODED_BYTES: usize = 6 * MAX_ENTRY_BYTES + (16 << 10);

/// Longest title that is taken from a text's first line, in characters.
const TITLE_CHARS: usize = 120;

/// Members of a JSON Feed item, of which one that is a text makes an object such an item.
const ITEM: [&str; 4] = ["title", "content_text", "content_html", "summary"];

/// Entry as its publisher describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    id: String,
    encoded: Vec<u8>,
}

/// Content of a publication that is no event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Id of the entry, which is published once; else that of a JSON Feed item.
    pub id: Option<String>,
    /// Title; else the first line of a text.
    pub title: Option<String>,
    /// Address of the page that the entry is about.
    pub url: Option<String>,
    /// Media type: text, HTML or JSON; text if there is none.
    pub content_type: Option<String>,
    /// The content.
    pub body: Vec<u8>,
}

/// Defect of a publication.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublicationError {
    /// No JSON object, or a member that is missing or of the wrong type.
    #[error("no CloudEvents event in structured JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Attribute or member with a value that is not allowed.
    #[error("{name} is {value:?}: {rule}")]
    Attribute {
        /// Its name.
        name: &'static str,
        /// Its value, shortened.
        value: String,
        /// Rule that it breaks.
        rule: &'static str,
    },
    /// More than a limit.
    #[error("{what} has {size}: at most {limit} are allowed")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// Content that makes no entry.
    #[error("the data make no entry: {0}")]
    Entry(String),
    /// Event of a batch with a defect.
    #[error("event {number} of the batch: {error}")]
    OfBatch {
        /// Number of the event, from 1 on.
        number: usize,
        /// The defect.
        error: Box<PublicationError>,
    },
}

impl Publication {
    /// Returns the publication of a text, HTML or JSON. It has `default_id` if neither the content
    /// nor an item in it has an id.
    ///
    /// # Errors
    /// [`PublicationError`] if the id is empty, too long or has control characters, or the content
    /// makes no entry.
    pub fn from_content(
        content: Content,
        default_id: String,
        now: Timestamp,
    ) -> Result<Self, PublicationError> {
        let form = Form::of(content.content_type.as_deref().unwrap_or("text/plain"))?;
        let mut item = item_of_bytes(form, content.body)?;
        if let Some(url) = content.url {
            item.insert("url".into(), url.into());
        }
        let its_id = || match item.get("id") {
            Some(Value::String(id)) => Some(id.clone()),
            Some(Value::Number(id)) => Some(id.to_string()),
            _ => None,
        };
        let id = content.id.or_else(its_id).unwrap_or(default_id);
        Self::new(id, item, content.title, now)
    }

    /// Completes an item: its id, its title and its time.
    fn new(
        id: String,
        mut item: Map<String, Value>,
        title: Option<String>,
        time: Timestamp,
    ) -> Result<Self, PublicationError> {
        check_id(&id)?;
        if text(&item, "title").is_none() {
            let first_line = || text(&item, "content_text").and_then(first_line);
            match title.or_else(first_line) {
                Some(title) => item.insert("title".into(), title.into()),
                None => item.remove("title"),
            };
        }
        if text(&item, "date_published").is_none() {
            item.insert("date_published".into(), format!("{time:.3}").into());
        }
        item.insert("id".into(), id.into());
        let item = Value::Object(item);
        // The id as feeds' ids are read: without surrounding spaces.
        let id = entry(&item)?.id;
        let encoded = item.to_string().into_bytes();
        Ok(Self { id, encoded })
    }

    /// Returns the id of the entry, of 1 to 2,048 bytes without control characters.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the bytes that are stored until the source takes them.
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Returns the id, and the bytes that are stored until the source takes them.
    #[must_use]
    pub fn into_parts(self) -> (String, Vec<u8>) {
        (self.id, self.encoded)
    }

    /// Returns the entry of an encoded publication; any bytes may be passed in.
    ///
    /// # Errors
    /// [`PublicationError`] for what is no publication's [`encoded`](Self::encoded) bytes.
    pub fn decode(encoded: &[u8]) -> Result<Entry, PublicationError> {
        check_size("a publication", encoded.len(), MAX_ENCODED_BYTES)?;
        let item: Value = serde_json::from_slice(encoded)?;
        check_id(item.get("id").and_then(Value::as_str).unwrap_or_default())?;
        entry(&item)
    }
}

/// Form of data, by their media type.
#[derive(Debug, Clone, Copy)]
enum Form {
    Json,
    Text,
    Html,
}

impl Form {
    fn of(content_type: &str) -> Result<Self, PublicationError> {
        let lower = content_type.to_ascii_lowercase();
        let mut parts = lower.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default();
        let charset = parts.find_map(|part| part.strip_prefix("charset="));
        let charset = charset.map_or("utf-8", |charset| charset.trim_matches('"'));
        if !matches!(charset, "utf-8" | "us-ascii") {
            return Err(fault("content-type", &lower, "texts have to be UTF-8"));
        }
        match essence {
            "application/json" => Ok(Self::Json),
            "text/html" | "application/xhtml+xml" => Ok(Self::Html),
            _ if essence.ends_with("+json") => Ok(Self::Json),
            _ if essence.starts_with("text/") => Ok(Self::Text),
            _ => {
                let rule = "entries are text, HTML or JSON, such as text/plain";
                Err(fault("content-type", &lower, rule))
            }
        }
    }
}

/// Returns the item of data as bytes.
fn item_of_bytes(form: Form, bytes: Vec<u8>) -> Result<Map<String, Value>, PublicationError> {
    check_size("the entry", bytes.len(), MAX_ENTRY_BYTES)?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|error| PublicationError::Entry(format!("no UTF-8: {error}")))?;
    match form {
        Form::Json => item_of_json(&text),
        form => Ok(item_of_text(form, text)),
    }
}

/// Returns the item of JSON: itself if it is one, else its text.
fn item_of_json(json: &str) -> Result<Map<String, Value>, PublicationError> {
    check_size("the entry", json.len(), MAX_ENTRY_BYTES)?;
    let value: Value = serde_json::from_str(json)
        .map_err(|error| PublicationError::Entry(format!("no JSON: {error}")))?;
    match value {
        Value::Object(item) if ITEM.iter().any(|member| text(&item, member).is_some()) => Ok(item),
        Value::String(text) => Ok(item_of_text(Form::Text, text)),
        other => Ok(item_of_text(Form::Text, pretty(&other)?)),
    }
}

fn item_of_text(form: Form, text: String) -> Map<String, Value> {
    let member = match form {
        Form::Html => "content_html",
        Form::Json | Form::Text => "content_text",
    };
    let mut item = Map::new();
    if !text.is_empty() {
        item.insert(member.to_owned(), text.into());
    }
    item
}

/// Returns a member that is a text and not blank.
fn text<'a>(item: &'a Map<String, Value>, member: &str) -> Option<&'a str> {
    let text = item.get(member).and_then(Value::as_str);
    text.filter(|text| !text.trim().is_empty())
}

/// Returns JSON with line breaks and indents, which may be many times as long.
fn pretty(value: &Value) -> Result<String, PublicationError> {
    /// Text of an entry's length at most.
    struct Bounded(Vec<u8>);

    impl Write for Bounded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() + bytes.len() > MAX_ENTRY_BYTES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut out = Bounded(Vec::new());
    match serde_json::to_writer_pretty(&mut out, value) {
        Ok(()) => Ok(String::from_utf8_lossy(&out.0).into_owned()),
        Err(_) => Err(PublicationError::TooLarge {
            what: "the JSON with its indents",
            size: MAX_ENTRY_BYTES + 1,
            limit: MAX_ENTRY_BYTES,
        }),
    }
}

fn entry(item: &Value) -> Result<Entry, PublicationError> {
    if let Value::Object(item) = item {
        check_size("the entry", item_len(item), MAX_ENTRY_BYTES)?;
    }
    let entry = json_item(item).map_err(PublicationError::Entry)?;
    let texts = [
        &entry.title,
        &entry.content_html,
        &entry.content_text,
        &entry.summary,
    ];
    match texts.iter().any(|text| text.is_some()) {
        true => Ok(entry),
        false => Err(PublicationError::Entry("neither title nor content".into())),
    }
}

fn check_size(what: &'static str, size: usize, limit: usize) -> Result<(), PublicationError> {
    match size > limit {
        true => Err(PublicationError::TooLarge { what, size, limit }),
        false => Ok(()),
    }
}

fn check_id(id: &str) -> Result<(), PublicationError> {
    if id.trim().is_empty() {
        return Err(fault("id", id, "it must not be empty"));
    }
    if id.contains(char::is_control) {
        return Err(fault("id", id, "control characters are not allowed"));
    }
    check_size("the id", id.len(), MAX_ID_BYTES)
}

/// Returns the first line of a text that is not blank, shortened.
fn first_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let mut chars = line.chars();
    let mut title: String = chars.by_ref().take(TITLE_CHARS).collect();
    if chars.next().is_some() {
        title.push('…');
    }
    Some(title)
}

fn fault(name: &'static str, value: &str, rule: &'static str) -> PublicationError {
    PublicationError::Attribute {
        name,
        value: value.chars().take(80).collect(),
        rule,
    }
}

#[cfg(test)]
mod tests;
