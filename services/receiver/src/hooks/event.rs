//! Event of an update, as sent to hooks.

use feed::message::Message;
use feed::payload::{PayloadError, event_json};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

/// CloudEvents 1.0 event, by its parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Channel of the update.
    pub channel: String,
    /// Number in the channel.
    pub seq: u64,
    /// `org.flexfeed.entry.created.v1` or `.updated.v1`; `org.flexfeed.message.v1` for a message.
    pub kind: String,
    /// Address of the feed.
    pub source: String,
    /// `INCARNATION/SEQ`; for a message, the id of its publisher.
    pub id: String,
    /// Time at which the source stored it, or a message was published (RFC 3339).
    pub time: String,
    /// Id of the entry; the subject of a message.
    pub subject: String,
    /// Entry, a JSON Feed item; `null` for a message.
    pub data: Value,
    /// Body of a message, with its media type.
    pub body: Option<(String, Vec<u8>)>,
    /// Whole event as sent, in the structured form.
    pub json: Vec<u8>,
}

#[derive(Deserialize)]
struct RawPayload {
    #[serde(rename = "type")]
    kind: String,
    source: String,
    id: String,
    time: String,
    subject: String,
    data: Value,
}

impl Event {
    /// Parses an update.
    ///
    /// # Errors
    /// The bytes are no update.
    pub fn of(channel: &str, seq: u64, encoded: &[u8]) -> Result<Self, PayloadError> {
        let json = event_json(encoded)?;
        let raw: RawPayload = serde_json::from_slice(&json)?;
        Ok(Self {
            channel: channel.to_owned(),
            seq,
            kind: raw.kind,
            source: raw.source,
            id: raw.id,
            time: raw.time,
            subject: raw.subject,
            data: raw.data,
            body: None,
            json,
        })
    }

    /// Returns the event of a message.
    #[must_use]
    pub fn of_message(channel: &str, incarnation: Uuid, number: u64, message: Message) -> Self {
        let event = message.to_cloud_event(channel, incarnation, number);
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        Self {
            channel: channel.to_owned(),
            seq: number,
            kind: text("type"),
            source: text("source"),
            time: text("time"),
            json: event.to_string().into_bytes(),
            subject: message.subject.unwrap_or_default(),
            id: message.id,
            data: Value::Null,
            body: Some((message.content_type, message.body)),
        }
    }

    /// Returns the entry's address, if any.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.data.get("url")?.as_str()
    }

    /// Returns the entry's title, if any.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.data.get("title")?.as_str()
    }

    /// Returns the channel's incarnation.
    #[must_use]
    pub fn incarnation(&self) -> &str {
        match self.body {
            Some(_) => self.source.trim_start_matches("urn:uuid:"),
            None => self.id.split('/').next().unwrap_or_default(),
        }
    }
}
