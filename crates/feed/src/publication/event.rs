//! CloudEvents 1.0 events as publications.

use std::borrow::Cow;
use std::fmt;

use data_encoding::BASE64;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    Form, MAX_ENCODED_BYTES, Publication, PublicationError, check_size, fault, item_of_bytes,
    item_of_json, item_of_text,
};
use crate::entry::MAX_ENTRY_BYTES;

/// Most events of a batch.
pub const MAX_BATCH: usize = 1000;

/// Event as its publisher sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Version of CloudEvents: 1.0.
    pub specversion: String,
    /// Id, unique among the events of `source`.
    pub id: String,
    /// URI reference of the event's origin.
    pub source: String,
    /// Type of the event.
    pub kind: String,
    /// Time, by RFC 3339.
    pub time: Option<String>,
    /// Subject: the title, where the data have none.
    pub subject: Option<String>,
    /// Media type of the data.
    pub datacontenttype: Option<String>,
    /// Data.
    pub data: EventData,
}

/// Data of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum EventData {
    /// None.
    #[default]
    None,
    /// JSON text, as an event in structured JSON has it.
    Json(String),
    /// Bytes, in Base64 there or as the body in binary mode.
    Bytes(Vec<u8>),
}

/// Event in structured JSON. Extensions are ignored.
#[derive(Deserialize)]
struct StructuredEvent<'a> {
    #[serde(borrow)]
    specversion: Cow<'a, str>,
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    source: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    time: Option<String>,
    subject: Option<String>,
    datacontenttype: Option<String>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    data_base64: Option<Cow<'a, str>>,
}

/// Events of a batch, unread.
struct Batch<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Batch<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Events;

        impl<'de> Visitor<'de> for Events {
            type Value = Batch<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MAX_BATCH} events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut events = Vec::new();
                while let Some(event) = from.next_element()? {
                    if events.len() == MAX_BATCH {
                        return Err(serde::de::Error::invalid_length(MAX_BATCH + 1, &self));
                    }
                    events.push(event);
                }
                Ok(Batch(events))
            }
        }

        from.deserialize_seq(Events)
    }
}

impl Publication {
    /// Returns the publication of an event in structured JSON.
    ///
    /// # Errors
    /// [`PublicationError`] if it is no event of CloudEvents 1.0, or its data make no entry.
    pub fn from_event_json(json: &[u8], now: Timestamp) -> Result<Self, PublicationError> {
        check_size("the event", json.len(), MAX_ENCODED_BYTES)?;
        // A struct could be read from an array as well.
        if !json.trim_ascii_start().starts_with(b"{") {
            return Err(fault("the event", &start_of(json), "it must be an object"));
        }
        Self::from_event(read(serde_json::from_slice(json)?)?, now)
    }

    /// Returns the publications of a batch of events in structured JSON, in their order.
    ///
    /// # Errors
    /// As of [`from_event_json`](Self::from_event_json), for the first event with a defect; no
    /// event or more than [`MAX_BATCH`].
    pub fn from_batch_json(json: &[u8], now: Timestamp) -> Result<Vec<Self>, PublicationError> {
        let Batch(events) = serde_json::from_slice(json)?;
        if events.is_empty() {
            return Err(fault("the batch", "[]", "it must have an event"));
        }
        let numbered = (1..).zip(events);
        let publications = numbered.map(|(number, event)| {
            let publication = Self::from_event_json(event.get().as_bytes(), now);
            publication.map_err(|error| PublicationError::OfBatch {
                number,
                error: Box::new(error),
            })
        });
        publications.collect()
    }

    /// Returns the publication of an event. Its entry has the id SOURCE#ID, by which CloudEvents
    /// tells events apart; `#` and `%` in ID are percent-encoded.
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
        let id = event.id.replace('%', "%25").replace('#', "%23");
        let id = format!("{}#{id}", event.source);
        let title = event.subject.filter(|subject| !subject.trim().is_empty());
        let form = |default| Form::of(event.datacontenttype.as_deref().unwrap_or(default));
        let item = match event.data {
            EventData::None => item_of_text(Form::Text, String::new()),
            EventData::Json(json) => match form("application/json")? {
                Form::Json => item_of_json(&json)?,
                form => {
                    let text = serde_json::from_str(&json).map_err(|_| {
                        let rule = "it must be a string where datacontenttype is not JSON";
                        fault("data", &json, rule)
                    })?;
                    item_of_text(form, text)
                }
            },
            EventData::Bytes(bytes) if bytes.is_empty() => item_of_text(Form::Text, String::new()),
            EventData::Bytes(bytes) => item_of_bytes(form("text/plain")?, bytes)?,
        };
        Self::new(id, item, title, time)
    }
}

fn start_of(json: &[u8]) -> String {
    String::from_utf8_lossy(json.get(..80).unwrap_or(json)).into_owned()
}

/// Returns an event in structured JSON with its data.
fn read(event: StructuredEvent<'_>) -> Result<Event, PublicationError> {
    let data = match (event.data, event.data_base64) {
        (Some(_), Some(_)) => return Err(fault("data_base64", "", "it excludes data")),
        (Some(data), None) => EventData::Json(data.get().to_owned()),
        (None, Some(base64)) => EventData::Bytes(decode(&base64)?),
        (None, None) => EventData::None,
    };
    Ok(Event {
        specversion: event.specversion.into_owned(),
        id: event.id.into_owned(),
        source: event.source.into_owned(),
        kind: event.kind.into_owned(),
        time: event.time,
        subject: event.subject,
        datacontenttype: event.datacontenttype,
        data,
    })
}

fn decode(base64: &str) -> Result<Vec<u8>, PublicationError> {
    check_size("data_base64", base64.len(), MAX_ENTRY_BYTES / 3 * 4 + 4)?;
    let decoded = BASE64.decode(base64.as_bytes());
    decoded.map_err(|_| fault("data_base64", base64, "it is not Base64"))
}
