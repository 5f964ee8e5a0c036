//! Messages: what a live channel carries beside its updates.
//!
//! A message is sent once to the receivers that are connected, has no number of the channel's
//! sequence, and is worthless after the channel's deadline. Byte 0 of its encoding is the version;
//! behind it are the length of its attributes, the attributes as a JSON object, and the body to the
//! end.

mod cloud_event;

use std::borrow::Cow;

use jiff::Timestamp;
use octets::{Octets, OctetsMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest body, in bytes.
pub const MAX_BODY_BYTES: usize = 65_536;
/// Longest id, in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// Longest media type, in bytes.
pub const MAX_CONTENT_TYPE_BYTES: usize = 128;
/// Longest subject, in bytes.
pub const MAX_SUBJECT_BYTES: usize = 256;
/// Longest attributes of an encoded message, in bytes.
pub const MAX_ATTRIBUTES_BYTES: usize = 2048;
/// Longest encoded message, in bytes: version, a varint of any length, attributes and body.
pub const MAX_ENCODED_BYTES: usize = 1 + MAX_VARINT_BYTES + MAX_ATTRIBUTES_BYTES + MAX_BODY_BYTES;

const MAX_VARINT_BYTES: usize = 8;

const VERSION: u8 = 1;

const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";
const JSON: &str = "application/json";

/// Message to the receivers of a live channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Id that its publisher chose, of 1 to 128 bytes without control characters.
    pub id: String,
    /// Time of the event that it reports, in Unix milliseconds.
    pub time_ms: u64,
    /// Media type of the body, of at most 128 bytes; see [`Message::default_content_type`].
    pub content_type: String,
    /// Subject, of at most 256 bytes without control characters.
    pub subject: Option<String>,
    /// Body, of at most 65,536 bytes.
    pub body: Vec<u8>,
}

/// Attributes as they are encoded.
#[derive(Serialize, Deserialize)]
struct Attributes<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    time_ms: u64,
    #[serde(borrow)]
    content_type: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    subject: Option<Cow<'a, str>>,
}

/// Defect of a message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// No version byte.
    #[error("the message is empty")]
    Empty,
    /// Version byte that this program does not know.
    #[error("the message has the unknown version {0}: a newer source? update this receiver")]
    UnknownVersion(u8),
    /// Fewer bytes than the length of the attributes says.
    #[error("the message ends within its attributes")]
    Truncated,
    /// Part that exceeds its limit.
    #[error("the message's {what} has {bytes} bytes: at most {limit} are allowed")]
    TooLong {
        /// Part of the message.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// Its limit.
        limit: usize,
    },
    /// No JSON object, or a member that is missing, there twice or of the wrong type.
    #[error("the message's attributes are not as expected: {0}")]
    Json(#[from] serde_json::Error),
    /// Attribute with a value that is not allowed.
    #[error("the message's {name} is {value:?}: {rule}")]
    Attribute {
        /// Name of the attribute.
        name: &'static str,
        /// Value, shortened.
        value: String,
        /// Rule that it breaks.
        rule: &'static str,
    },
}

impl Message {
    /// Returns the media type of a body that has none: text if it is UTF-8, else arbitrary bytes.
    #[must_use]
    pub fn default_content_type(body: &[u8]) -> &'static str {
        match std::str::from_utf8(body) {
            Ok(_) => TEXT,
            Err(_) => BYTES,
        }
    }

    /// Checks what [`decode`](Self::decode) requires.
    ///
    /// # Errors
    /// [`MessageError`] that names the first part with a fault.
    pub fn validate(&self) -> Result<(), MessageError> {
        let limits = [
            ("id", self.id.len(), MAX_ID_BYTES),
            (
                "content type",
                self.content_type.len(),
                MAX_CONTENT_TYPE_BYTES,
            ),
            (
                "subject",
                self.subject.as_ref().map_or(0, String::len),
                MAX_SUBJECT_BYTES,
            ),
            ("body", self.body.len(), MAX_BODY_BYTES),
        ];
        for (what, bytes, limit) in limits {
            check_length(what, bytes, limit)?;
        }
        if self.id.is_empty() {
            return Err(fault("id", "", "it must not be empty"));
        }
        let texts = [
            ("id", Some(self.id.as_str())),
            ("subject", self.subject.as_deref()),
        ];
        for (name, text) in texts {
            if let Some(text) = text.filter(|text| text.contains(char::is_control)) {
                return Err(fault(name, text, "control characters are not allowed"));
            }
        }
        if !is_media_type(&self.content_type) {
            let rule = "it must be a media type, such as text/plain";
            return Err(fault("content type", &self.content_type, rule));
        }
        self.time().map(|_| ())
    }

    /// Returns the bytes that are stored and sent. Only a [valid](Self::validate) message can be
    /// decoded again.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let attributes = Attributes {
            id: self.id.as_str().into(),
            time_ms: self.time_ms,
            content_type: self.content_type.as_str().into(),
            subject: self.subject.as_deref().map(Into::into),
        };
        // Writing strings and numbers to memory cannot fail. A bug there sends a message without
        // attributes, which no receiver takes for one.
        let attributes = serde_json::to_vec(&attributes).unwrap_or_default();
        let mut length = [0; MAX_VARINT_BYTES];
        let mut writer = OctetsMut::with_slice(&mut length);
        let length_len = match writer.put_varint(attributes.len() as u64) {
            Ok(_) => writer.off(),
            Err(_) => 0,
        };
        [
            &[VERSION],
            &length[..length_len],
            attributes.as_slice(),
            self.body.as_slice(),
        ]
        .concat()
    }

    /// Decodes a message; any bytes may be passed in.
    ///
    /// # Errors
    /// [`MessageError`] for anything that is no encoding of a valid message. Unknown attributes are
    /// ignored.
    pub fn decode(encoded: &[u8]) -> Result<Self, MessageError> {
        let (version, rest) = encoded.split_first().ok_or(MessageError::Empty)?;
        if *version != VERSION {
            return Err(MessageError::UnknownVersion(*version));
        }
        let mut reader = Octets::with_slice(rest);
        let length = reader.get_varint().map_err(|_| MessageError::Truncated)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        check_length("attributes", length, MAX_ATTRIBUTES_BYTES)?;
        let (attributes, body) = rest
            .get(reader.off()..)
            .and_then(|rest| rest.split_at_checked(length))
            .ok_or(MessageError::Truncated)?;
        check_length("body", body.len(), MAX_BODY_BYTES)?;
        let attributes: Attributes<'_> = parse_object(attributes)?;
        let message = Self {
            id: attributes.id.into_owned(),
            time_ms: attributes.time_ms,
            content_type: attributes.content_type.into_owned(),
            subject: attributes.subject.map(Cow::into_owned),
            body: body.to_vec(),
        };
        message.validate()?;
        Ok(message)
    }

    /// Returns the time as a timestamp.
    fn time(&self) -> Result<Timestamp, MessageError> {
        i64::try_from(self.time_ms)
            .ok()
            .and_then(|time| Timestamp::from_millisecond(time).ok())
            .ok_or_else(|| {
                let rule = "it must be before the year 10,000, in Unix milliseconds";
                fault("time", &self.time_ms.to_string(), rule)
            })
    }
}

/// Parses a JSON object. (A struct could be read from an array as well.)
fn parse_object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, MessageError> {
    if !json.trim_ascii_start().starts_with(b"{") {
        let text = String::from_utf8_lossy(json);
        return Err(fault("JSON", &text, "it must be an object"));
    }
    Ok(serde_json::from_slice(json)?)
}

/// Whether `text` is a media type, maybe with parameters (RFC 9110 section 8.3.1).
fn is_media_type(text: &str) -> bool {
    let is_token = |text: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        !text.is_empty() && text.chars().all(is_allowed)
    };
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_essence = essence
        .trim_end_matches(' ')
        .split_once('/')
        .is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype));
    is_essence && parameters.chars().all(|c| matches!(c, ' '..='~'))
}

fn check_length(what: &'static str, bytes: usize, limit: usize) -> Result<(), MessageError> {
    match bytes > limit {
        true => Err(MessageError::TooLong { what, bytes, limit }),
        false => Ok(()),
    }
}

fn fault(name: &'static str, value: &str, rule: &'static str) -> MessageError {
    MessageError::Attribute {
        name,
        value: value.chars().take(80).collect(),
        rule,
    }
}

#[cfg(test)]
mod tests;
