//! Messages to the receivers of a live channel.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use feed::message::{MAX_BODY_BYTES, Message, MessageError};
use serde::{Deserialize, Serialize};
use store::StoreError;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::{Path, Query, read_body};
use super::problem::Problem;
use crate::auth::caller::{Caller, Via};
use crate::auth::limit::seconds;
use crate::auth::rights::Scope;
use crate::clock::now_ms;
use crate::site::Site;

/// Media type of an event in structured JSON.
const EVENT: &str = "application/cloudevents+json";

/// Largest event, in bytes: each byte of a body may be an escape of six in it.
const MAX_EVENT_BYTES: usize = 6 * MAX_BODY_BYTES + (16 << 10);

/// Message that was handed to the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublishedMessage {
    /// Its id.
    pub id: String,
    /// When it expires: it is not sent after that; Unix milliseconds.
    pub expires_ms: i64,
}

/// Attributes of a message whose body is sent as it is.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MessageQuery {
    /// Id, by which a message that is sent again is recognised; else the header `ce-id`, else a
    /// new UUID.
    #[param(min_length = 1, max_length = 128)]
    pub id: Option<String>,
    /// Subject; else the header `ce-subject`.
    #[param(max_length = 256)]
    pub subject: Option<String>,
}

/// Body of a message, and what its headers say.
#[derive(Debug)]
pub struct MessageBody {
    content_type: Option<String>,
    id: Option<String>,
    subject: Option<String>,
    bytes: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for MessageBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let headers = request.headers();
        let content_type = header(headers, CONTENT_TYPE.as_str())?;
        let (id, subject) = (header(headers, "ce-id")?, header(headers, "ce-subject")?);
        let (limit, what) = match content_type.as_deref().is_some_and(is_event) {
            true => (MAX_EVENT_BYTES, "an event has at most 400 KiB"),
            false => (MAX_BODY_BYTES, "a message has at most 64 KiB"),
        };
        Ok(Self {
            bytes: read_body(request, state, limit, what).await?,
            content_type,
            id: id.map(|id| decode(&id)),
            subject: subject.map(|subject| decode(&subject)),
        })
    }
}

pub(super) fn header(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let value = headers.get(name).map(|value| value.to_str());
    let value = value.transpose().map_err(|_| {
        Problem::malformed("other than ASCII, the value has to be percent-encoded").of_field(name)
    })?;
    Ok(value.map(|value| value.trim().to_owned()))
}

/// Decodes a header's value by the HTTP binding of CloudEvents, section 3.1.3.2.
pub(super) fn decode(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let decoded =
            digits.and_then(|digits| data_encoding::HEXLOWER_PERMISSIVE.decode(digits).ok());
        match decoded {
            Some(decoded) => {
                bytes.extend_from_slice(&decoded);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_event(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(EVENT)
}

impl MessageBody {
    fn into_message(self, query: MessageQuery) -> Result<Message, Problem> {
        let now = u64::try_from(now_ms()).unwrap_or(0);
        match self.content_type {
            Some(kind) if is_event(&kind) => Ok(Message::from_cloud_event(&self.bytes, now)?),
            Some(kind)
                if kind
                    .to_ascii_lowercase()
                    .starts_with("application/cloudevents") =>
            {
                Err(Problem::malformed(format!("send one event, as {EVENT}"))
                    .of_field("content-type"))
            }
            kind => {
                let message = Message {
                    id: query.id.or(self.id).unwrap_or_else(new_id),
                    time_ms: now,
                    content_type: kind
                        .filter(|kind| !kind.is_empty())
                        .unwrap_or_else(|| Message::default_content_type(&self.bytes).to_owned()),
                    subject: query.subject.or(self.subject),
                    body: self.bytes.into(),
                };
                message.validate()?;
                Ok(message)
            }
        }
    }
}

pub(super) fn new_id() -> String {
    Uuid::new_v4().to_string()
}

impl From<MessageError> for Problem {
    fn from(error: MessageError) -> Self {
        match &error {
            MessageError::TooLong { what: "body", .. } => Problem::too_large(error.to_string()),
            MessageError::TooLong { what: name, .. } | MessageError::Attribute { name, .. } => {
                Problem::invalid(name, error.to_string())
            }
            _ => Problem::malformed(error.to_string()),
        }
    }
}

/// Sends a message to the receivers of a live channel
///
/// The body is the message, of any media type and at most 64 KiB, or a CloudEvents 1.0 event in
/// structured JSON (`application/cloudevents+json`) with the message as its data. It is sent once,
/// to the receivers that are connected; it expires after the channel's deadline. An id that was
/// sent to the channel in the last ten minutes is not sent again (200). The audit log has failures
/// only.
#[utoipa::path(post, path = "/api/v1/channels/{name}/messages", tag = "channels",
    operation_id = "publish_message",
    params(("name" = String, Path, description = "Name of the channel"), MessageQuery),
    request_body(content(
        (String = "application/octet-stream"),
        (String = "text/plain"),
        (String = "application/cloudevents+json"),
    )),
    responses((status = 202, description = "On its way", body = PublishedMessage),
        (status = 200, description = "Sent before", body = PublishedMessage)))]
pub async fn publish_message(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<MessageQuery>,
    body: MessageBody,
) -> Result<(StatusCode, Json<PublishedMessage>), Problem> {
    caller
        .may_do(&site, Scope::Publish, "message.publish", &name)
        .await?;
    take_room(&site, &caller)?;
    let message = body.into_message(query)?;
    let sent = site
        .store
        .messages()
        .send(&name, &message.id, &message.encode())
        .await;
    let receipt = sent.map_err(|error| match error {
        StoreError::TooMany { limit, .. } => {
            let what = format!("{limit} messages of the channel wait for the source already");
            Problem::too_many(what, 1)
        }
        error => error.into(),
    })?;
    let status = match receipt.is_repeat {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    let published = PublishedMessage {
        id: message.id,
        expires_ms: receipt.expires_ms,
    };
    Ok((status, Json(published)))
}

/// Takes room for a request that publishes.
pub(super) fn take_room(site: &Site, caller: &Caller) -> Result<(), Problem> {
    let key = match &caller.via {
        Via::Session { hash, .. } | Via::Token { hash, .. } => *hash,
    };
    let room = site.limits.messages.take(key, Instant::now());
    room.map_err(|wait| {
        let what = "100 requests to publish a second, or 500 at once, are the limit of a token or \
                    session";
        Problem::too_many(what, seconds(wait))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_percent_decoded() {
        assert_eq!(decode("Gr%C3%BC%c3%9fe%20%25"), "Grüße %");
        assert_eq!(decode("100%, 5%2"), "100%, 5%2");
        assert_eq!(decode("%ff"), "\u{fffd}");
    }
}
