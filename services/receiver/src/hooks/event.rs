//! An update as hooks tell of it.

use feed::payload::{PayloadError, event_json};
use serde::Deserialize;
use serde_json::Value;

/// A CloudEvents 1.0 event, taken apart.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The channel that it came on.
    pub channel: String,
    /// Its number there.
    pub seq: u64,
    /// `org.flexfeed.entry.created.v1` or `.updated.v1`.
    pub kind: String,
    /// The feed's address.
    pub source: String,
    /// `INCARNATION/SEQ`.
    pub id: String,
    /// When the source stored it (RFC 3339).
    pub time: String,
    /// The entry's id.
    pub subject: String,
    /// The entry: a JSON Feed item.
    pub data: Value,
    /// All of it as it was sent: the structured form.
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
    /// Takes an update apart.
    ///
    /// # Errors
    /// If it is none.
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

    /// The entry's address, if it has one.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.data.get("url")?.as_str()
    }

    /// The entry's title, if it has one.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.data.get("title")?.as_str()
    }

    /// The channel's incarnation.
    #[must_use]
    pub fn incarnation(&self) -> &str {
        self.id.split('/').next().unwrap_or_default()
    }
}
