//! Publications: entries that a publisher sends instead of a feed that is polled.
//!
//! A publication is a CloudEvents 1.0 event, or text with a title. Its data becomes the content of
//! an entry: text, HTML, or JSON; a JSON object with the members of a JSON Feed 1.1 item is that
//! item. Between the publisher and the source that stores it, a publication is encoded as such an
//! item.

mod event;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::entry::{Entry, MAX_ENTRY_BYTES, MAX_ID_BYTES};
use crate::parse::json_item;
pub use event::{Event, MAX_BATCH};

/// Address of the feed that publications belong to, in their updates and in the store.
pub const FEED_URL: &str = "urn:flexfeed:publications";

/// Longest encoded publication, in bytes: each byte of an entry may be an escape of six in it.
pub const MAX_ENCODED_BYTES: usize = 6 * MAX_ENTRY_BYTES + (16 << 10);

/// Longest title that is taken from a text's first line, in characters.
const TITLE_CHARS: usize = 120;

/// Entry as its publisher describes it: a JSON Feed item with an id.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    id: String,
    item: Map<String, Value>,
}

/// Content of a publication that is no event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Id of the entry; an entry that is published again under its id is not stored again.
    pub id: String,
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
    /// Returns the publication of a text, HTML or JSON.
    ///
    /// # Errors
    /// [`PublicationError`] if the id is empty, too long or has control characters, or the content
    /// makes no entry.
    pub fn from_content(content: Content, now: Timestamp) -> Result<Self, PublicationError> {
        let mut item = event::item_of_bytes(content.body, content.content_type.as_deref())?;
        if let Some(url) = content.url {
            item.insert("url".into(), url.into());
        }
        Self::new(content.id, item, content.title, now)
    }

    /// Completes an item: its id, its title and its time.
    fn new(
        id: String,
        mut item: Map<String, Value>,
        title: Option<String>,
        time: Timestamp,
    ) -> Result<Self, PublicationError> {
        check_id(&id)?;
        let has =
            |item: &Map<String, Value>, member| item.get(member).is_some_and(Value::is_string);
        if !has(&item, "title") {
            let text = item.get("content_text").and_then(Value::as_str);
            let title = title.or_else(|| text.and_then(first_line));
            if let Some(title) = title {
                item.insert("title".into(), title.into());
            }
        }
        if !has(&item, "date_published") {
            item.insert("date_published".into(), format!("{time:.3}").into());
        }
        item.insert("id".into(), id.into());
        // The id as feeds' ids are read: without surrounding spaces.
        let id = entry(&Value::Object(item.clone()))?.id;
        Ok(Self { id, item })
    }

    /// Returns the id of the entry, of 1 to 2,048 bytes without control characters.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the bytes that are stored until the source takes them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        json!(self.item).to_string().into_bytes()
    }

    /// Returns the entry of an encoded publication; any bytes may be passed in.
    ///
    /// # Errors
    /// [`PublicationError`] for what [`encode`](Self::encode) does not make.
    pub fn decode(encoded: &[u8]) -> Result<Entry, PublicationError> {
        if encoded.len() > MAX_ENCODED_BYTES {
            return Err(PublicationError::TooLarge {
                what: "a publication",
                size: encoded.len(),
                limit: MAX_ENCODED_BYTES,
            });
        }
        let item: Value = serde_json::from_slice(encoded)?;
        check_id(item.get("id").and_then(Value::as_str).unwrap_or_default())?;
        entry(&item)
    }
}

fn entry(item: &Value) -> Result<Entry, PublicationError> {
    let entry = json_item(item).map_err(PublicationError::Entry)?;
    let has_content = entry.content_html.is_some() || entry.content_text.is_some();
    match has_content || entry.title.is_some() {
        true => Ok(entry),
        false => Err(PublicationError::Entry("neither title nor content".into())),
    }
}

fn check_id(id: &str) -> Result<(), PublicationError> {
    if id.trim().is_empty() {
        return Err(fault("id", id, "it must not be empty"));
    }
    if id.contains(char::is_control) {
        return Err(fault("id", id, "control characters are not allowed"));
    }
    match id.len() > MAX_ID_BYTES {
        true => Err(PublicationError::TooLarge {
            what: "the id",
            size: id.len(),
            limit: MAX_ID_BYTES,
        }),
        false => Ok(()),
    }
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
