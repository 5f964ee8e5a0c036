//! Event of an update, as sent to hooks.

use feed::payload::{PayloadError, event_json};
use serde::Deserialize;
use serde_json::Value;

/// CloudEvents 1.0 event, by its parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Channel of the update.
    pub channel: String,
    /// Number in the channel.
    pub seq: u64,
    /// `org.flexfeed.entry.created.v1` or `.updated.v1`.
    pub kind: String,
    /// Address of the feed.
    pub source: String,
    /// `INCARNATION/SEQ`.
    pub id: String,
    /// Time at which the source stored it (RFC 3339).
    pub time: String,
    /// Id of the entry.
    pub subject: String,
    /// Entry, a JSON Feed item.
    pub data: Value,
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
            json,
        })
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
        self.id.split('/').next().unwrap_or_default()
    }
}
