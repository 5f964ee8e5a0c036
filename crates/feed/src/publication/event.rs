//! CloudEvents 1.0 events as publications.

use data_encoding::BASE64;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Publication, PublicationError, fault};
use crate::entry::MAX_ENTRY_BYTES;

/// Most events of a batch.
pub const MAX_BATCH: usize = 1000;

/// Members of a JSON Feed item, of which one makes an object such an item.
const ITEM: [&str; 4] = ["title", "content_text", "content_html", "summary"];

/// Event as its publisher sends it. Extensions and the type are not passed on.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Event {
    /// Version of CloudEvents: 1.0.
    pub specversion: String,
    /// Id, unique among the events of `source`.
    pub id: String,
    /// URI reference of the event's origin.
    pub source: String,
    /// Kind of event.
    #[serde(rename = "type")]
    pub kind: String,
    /// Time, by RFC 3339.
    pub time: Option<String>,
    /// Subject: the title, where the data have none.
    pub subject: Option<String>,
    /// Media type of the data.
    pub datacontenttype: Option<String>,
    /// Data in an event of structured JSON.
    #[serde(default)]
    pub data: Option<Value>,
    /// Data in Base64.
    pub data_base64: Option<String>,
    /// Data in binary mode: the body.
    #[serde(skip)]
    pub body: Option<Vec<u8>>,
}

impl Publication {
    /// Returns the publication of an event in structured JSON.
    ///
    /// # Errors
    /// [`PublicationError`] if it is no event of CloudEvents 1.0, or its data make no entry.
    pub fn from_event_json(json: &[u8], now: Timestamp) -> Result<Self, PublicationError> {
        Self::from_event(serde_json::from_slice(json)?, now)
    }

    /// Returns the publications of a batch of events in structured JSON, in their order.
    ///
    /// # Errors
    /// As of [`from_event_json`](Self::from_event_json), for the first event with a defect; no
    /// event or more than [`MAX_BATCH`].
    pub fn from_batch_json(json: &[u8], now: Timestamp) -> Result<Vec<Self>, PublicationError> {
        let events: Vec<Value> = serde_json::from_slice(json)?;
        if events.is_empty() {
            return Err(fault("the batch", "[]", "it must have an event"));
        }
        if events.len() > MAX_BATCH {
            return Err(PublicationError::TooLarge {
                what: "the batch",
                size: events.len(),
                limit: MAX_BATCH,
            });
        }
        let numbered = (1..).zip(events);
        let publications = numbered.map(|(number, event)| {
            let event = serde_json::from_value(event).map_err(PublicationError::from);
            let publication = event.and_then(|event| Self::from_event(event, now));
            publication.map_err(|error| PublicationError::OfBatch {
                number,
                error: Box::new(error),
            })
        });
        publications.collect()
    }

    /// Returns the publication of an event. Its entry has the id SOURCE#ID, by which CloudEvents
    /// tells events apart.
    ///
    /// # Errors
    /// [`PublicationError`] if it is no event of CloudEvents 1.0, or its data make no entry.
    pub fn from_event(event: Event, now: Timestamp) -> Result<Self, PublicationError> {
        if event.specversion != "1.0" {
            return Err(fault("specversion", &event.specversion, "1.0 is supported"));
        }
        let required = [
            ("id", &event.id),
            ("source", &event.source),
            ("type", &event.kind),
        ];
        for (name, text) in required {
            if text.trim().is_empty() {
                return Err(fault(name, text, "it must not be empty"));
            }
        }
        let time = match &event.time {
            Some(time) => time
                .parse()
                .map_err(|_| fault("time", time, "it must be one of RFC 3339"))?,
            None => now,
        };
        let id = format!("{}#{}", event.source, event.id);
        let title = event.subject.filter(|subject| !subject.trim().is_empty());
        let bytes = match (event.data, event.data_base64, event.body) {
            (Some(_), Some(_), _) => return Err(fault("data_base64", "", "it excludes data")),
            (Some(data), None, _) => {
                let item = item_of_json(data, event.datacontenttype.as_deref())?;
                return Self::new(id, item, title, time);
            }
            (None, Some(base64), _) => decode(&base64)?,
            (None, None, body) => body.unwrap_or_default(),
        };
        let item = item_of_bytes(bytes, event.datacontenttype.as_deref())?;
        Self::new(id, item, title, time)
    }
}

fn decode(base64: &str) -> Result<Vec<u8>, PublicationError> {
    if base64.len() / 4 * 3 > MAX_ENTRY_BYTES + 2 {
        return Err(PublicationError::TooLarge {
            what: "data_base64",
            size: base64.len(),
            limit: MAX_ENTRY_BYTES / 3 * 4,
        });
    }
    let decoded = BASE64.decode(base64.as_bytes());
    decoded.map_err(|_| fault("data_base64", base64, "it is not Base64"))
}

/// Form of data, by their media type.
enum Form {
    Json,
    Text,
    Html,
}

/// Returns the form; data without a type are JSON in structured events.
fn form(content_type: Option<&str>) -> Result<Form, PublicationError> {
    let lower = content_type
        .unwrap_or("application/json")
        .to_ascii_lowercase();
    let mut parts = lower.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let charset = parts.find_map(|part| part.strip_prefix("charset="));
    let charset = charset.map_or("utf-8", |charset| charset.trim_matches('"'));
    if !matches!(charset, "utf-8" | "us-ascii") {
        return Err(fault("content-type", &lower, "texts have to be UTF-8"));
    }
    match essence {
        "application/json" => Ok(Form::Json),
        "text/html" | "application/xhtml+xml" => Ok(Form::Html),
        _ if essence.ends_with("+json") => Ok(Form::Json),
        _ if essence.starts_with("text/") => Ok(Form::Text),
        _ => {
            let rule = "entries are text, HTML or JSON, such as text/plain";
            Err(fault("content-type", &lower, rule))
        }
    }
}

/// Returns the item of data in an event of structured JSON.
fn item_of_json(
    data: Value,
    content_type: Option<&str>,
) -> Result<Map<String, Value>, PublicationError> {
    match (form(content_type)?, data) {
        (Form::Json, data) => Ok(item_of_value(data)),
        (form, Value::String(text)) => Ok(item_of_text(&form, text)),
        (_, data) => {
            let rule = "it must be a string where datacontenttype is not JSON";
            Err(fault("data", &data.to_string(), rule))
        }
    }
}

/// Returns the item of data as bytes.
pub(super) fn item_of_bytes(
    bytes: Vec<u8>,
    content_type: Option<&str>,
) -> Result<Map<String, Value>, PublicationError> {
    let form = match (content_type, bytes.is_empty()) {
        (None, _) | (_, true) => Form::Text,
        (Some(kind), false) => form(Some(kind))?,
    };
    if let Form::Json = form {
        let value = serde_json::from_slice(&bytes);
        let value = value.map_err(|error| PublicationError::Entry(format!("no JSON: {error}")))?;
        return Ok(item_of_value(value));
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|error| PublicationError::Entry(format!("no UTF-8: {error}")))?;
    Ok(item_of_text(&form, text))
}

/// Returns the item of JSON: itself if it has a member of one, else its text.
fn item_of_value(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(item) if ITEM.iter().any(|member| item.contains_key(*member)) => item,
        Value::String(text) => item_of_text(&Form::Text, text),
        other => item_of_text(&Form::Text, format!("{other:#}")),
    }
}

fn item_of_text(form: &Form, text: String) -> Map<String, Value> {
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
