//! Messages as CloudEvents 1.0 events in structured JSON, both ways.

use data_encoding::BASE64;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{JSON, MAX_BODY_BYTES, Message, MessageError, check_length, fault, parse_object};

/// Type of the events of messages.
const TYPE: &str = "org.flexfeed.message.v1";

/// Event of a publisher. Its type, its source and its extensions are not passed on.
#[derive(Deserialize)]
struct PublishedEvent {
    specversion: String,
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    time: Option<String>,
    subject: Option<String>,
    datacontenttype: Option<String>,
    // `null` is JSON data too, and not the same as no data.
    #[serde(default, deserialize_with = "some")]
    data: Option<Value>,
    data_base64: Option<String>,
}

fn some<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Form of a body in an event, by its media type.
enum Form {
    Json,
    Text,
    Bytes,
}

impl Form {
    fn of(content_type: &str) -> Self {
        let lower = content_type.to_ascii_lowercase();
        let mut parts = lower.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default();
        if essence == JSON || essence.ends_with("+json") {
            return Self::Json;
        }
        let charset = parts.find_map(|part| part.strip_prefix("charset="));
        let charset = charset.map_or("utf-8", |charset| charset.trim_matches('"'));
        match essence.starts_with("text/") && matches!(charset, "utf-8" | "us-ascii") {
            true => Self::Text,
            false => Self::Bytes,
        }
    }
}

impl Message {
    /// Returns the message as a CloudEvents event, for the outputs of a receiver. `number` counts
    /// the messages of the channel's `incarnation`.
    #[must_use]
    pub fn to_cloud_event(&self, channel: &str, incarnation: Uuid, number: u64) -> Value {
        // A valid message has a time.
        let time = self.time().unwrap_or_default();
        let mut event = json!({
            "specversion": "1.0",
            "type": TYPE,
            "source": format!("urn:uuid:{incarnation}"),
            "id": self.id,
            "time": format!("{time:.3}"),
            "datacontenttype": self.content_type,
            "channel": channel,
            "sequence": number.to_string(),
        });
        if let Some(subject) = &self.subject {
            event["subject"] = json!(subject);
        }
        let data = match Form::of(&self.content_type) {
            Form::Json => serde_json::from_slice(&self.body).ok(),
            Form::Text => std::str::from_utf8(&self.body).ok().map(Value::from),
            Form::Bytes => None,
        };
        match data {
            Some(data) => event["data"] = data,
            None => event["data_base64"] = json!(BASE64.encode(&self.body)),
        }
        event
    }

    /// Reads a message from a CloudEvents event in structured JSON, as its publisher wrote it. One
    /// without a time gets `now_ms`.
    ///
    /// # Errors
    /// [`MessageError`] if it is no event of CloudEvents 1.0, or no valid message.
    pub fn from_cloud_event(event: &[u8], now_ms: u64) -> Result<Self, MessageError> {
        let event: PublishedEvent = parse_object(event)?;
        if event.specversion != "1.0" {
            return Err(fault("specversion", &event.specversion, "1.0 is supported"));
        }
        for (name, text) in [("source", &event.source), ("type", &event.kind)] {
            if text.is_empty() {
                return Err(fault(name, text, "it must not be empty"));
            }
        }
        let time_ms = match &event.time {
            Some(time) => milliseconds(time)?,
            None => now_ms,
        };
        let (body, content_type) = content(event.datacontenttype, event.data, event.data_base64)?;
        let message = Self {
            id: event.id,
            time_ms,
            content_type,
            subject: event.subject.filter(|subject| !subject.is_empty()),
            body,
        };
        message.validate()?;
        Ok(message)
    }
}

fn milliseconds(time: &str) -> Result<u64, MessageError> {
    let parsed: Option<Timestamp> = time.parse().ok();
    parsed
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .ok_or_else(|| fault("time", time, "it must be one of RFC 3339, from 1970 on"))
}

/// Returns the body of an event, and its media type.
fn content(
    content_type: Option<String>,
    data: Option<Value>,
    base64: Option<String>,
) -> Result<(Vec<u8>, String), MessageError> {
    let body = match (data, base64) {
        (Some(_), Some(_)) => {
            return Err(fault("data_base64", "", "it excludes data"));
        }
        (None, None) => Vec::new(),
        (None, Some(base64)) => {
            check_length("body", base64.len() / 4 * 3, MAX_BODY_BYTES + 2)?;
            let decoded = BASE64.decode(base64.as_bytes());
            decoded.map_err(|_| fault("data_base64", &base64, "it is not Base64"))?
        }
        (Some(data), None) => {
            let form = content_type.as_deref().map_or(Form::Json, Form::of);
            let body = match (form, data) {
                (Form::Json, data) => data.to_string().into_bytes(),
                (_, Value::String(text)) => text.into_bytes(),
                (_, data) => {
                    let rule = "it must be a string where datacontenttype is not JSON";
                    return Err(fault("data", &data.to_string(), rule));
                }
            };
            return Ok((body, content_type.unwrap_or_else(|| JSON.to_owned())));
        }
    };
    let content_type =
        content_type.unwrap_or_else(|| Message::default_content_type(&body).to_owned());
    Ok((body, content_type))
}
