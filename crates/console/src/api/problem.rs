//! Errors as callers of the API see them: problem details (RFC 9457).

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use store::StoreError;
use tracing::warn;
use utoipa::ToSchema;

/// Prefix of all problem types; docs/console.md lists them.
pub const TYPE: &str = "urn:flexfeed:problem:";

/// The media type of problem details.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// Problem with a request (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Problem type, for programs: `urn:flexfeed:problem:` and a word.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same in a few words.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// Details of this occurrence, with the remedy.
    pub detail: String,
    /// The part of the request that is wrong; null if none alone is.
    pub field: Option<String>,
    /// Seconds to wait before another attempt; null if unknown.
    pub retry_after_s: Option<u64>,
    /// Only with `signed-out`: there is no user yet, and the first sign-in is by the link printed
    /// by the console.
    pub setup_needed: Option<bool>,
}

impl Problem {
    fn new(status: StatusCode, word: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("{TYPE}{word}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            retry_after_s: None,
            setup_needed: None,
        }
    }

    /// Of this part of the request.
    #[must_use]
    pub fn of_field(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// A value in the body cannot be used.
    pub fn invalid(field: &str, detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid",
            "A value cannot be used",
            detail,
        )
        .of_field(field)
    }

    /// Too many requests.
    pub fn too_many(detail: impl Into<String>, after_s: u64) -> Self {
        let mut problem = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many",
            "Too many requests",
            detail,
        );
        problem.retry_after_s = Some(after_s);
        problem
    }

    /// The address leads into a network that feeds may not reach.
    pub fn private_address(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "private-address",
            "The address leads into a private network",
            detail,
        )
        .of_field("url")
    }

    /// Temporarily unavailable.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "That does not work at the moment",
            detail,
        );
        problem.retry_after_s = Some(2);
        problem
    }

    /// A mistake of this program.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "The console made a mistake",
            "its log says more",
        )
    }
}

/// Declares the problems that consist of a status, a type and a title.
macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident: $status:ident, $word:literal, $title:literal;)+) => {
        impl Problem {
            $(
                $(#[$doc])*
                pub fn $name(detail: impl Into<String>) -> Self {
                    Self::new(StatusCode::$status, $word, $title, detail)
                }
            )+
        }
    };
}

problems! {
    /// The request cannot be understood.
    malformed: BAD_REQUEST, "malformed", "The request cannot be understood";
    /// No session or token.
    signed_out: UNAUTHORIZED, "signed-out", "Sign-in required";
    /// The name and password do not belong together, or the link is not the right one.
    refused: UNAUTHORIZED, "refused", "Sign-in refused";
    /// The caller lacks the right.
    forbidden: FORBIDDEN, "forbidden", "That is not allowed";
    /// A request of another site's page, or without the CSRF token.
    cross_site: FORBIDDEN, "cross-site", "The request seems to come from another site";
    /// There is no such thing.
    not_found: NOT_FOUND, "not-found", "There is no such thing";
    /// The path does not have this method.
    method: METHOD_NOT_ALLOWED, "method", "That cannot be done here";
    /// A request for another Host.
    misdirected: MISDIRECTED_REQUEST, "misdirected", "The request is for another site";
    /// Conflict with the current state.
    conflict: CONFLICT, "conflict", "That does not fit what there is";
    /// The body is too large.
    too_large: PAYLOAD_TOO_LARGE, "too-large", "The request is too large";
    /// The body is of another type.
    media_type: UNSUPPORTED_MEDIA_TYPE, "media-type", "The body has to be JSON";
}

/// Texts of the store can name hosts: they go to the log, and callers hear what they can do.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::UnknownChannel { channel, .. } => {
                Problem::not_found(format!("there is no channel {channel:?}"))
            }
            StoreError::NotLive { channel, .. } => Problem::conflict(format!(
                "channel {channel:?} is not live; give it a deadline: `flexfeed-source channel set \
                 {channel} --deadline 10s`"
            )),
            StoreError::ChannelName { .. } => {
                Problem::invalid("name", "a channel's name has 1 to 255 bytes")
            }
            StoreError::TooLong { what, limit, .. } => {
                Problem::invalid(what, format!("is too long: at most {limit} bytes"))
            }
            StoreError::UnknownUser { id, .. } => {
                Problem::not_found(format!("there is no user {id}"))
            }
            StoreError::TooMany { what, limit } => Problem::conflict(format!(
                "there are {limit} {what} already: remove some first"
            )),
            error if error.is_unavailable() => {
                warn!(%error, "request failed");
                Problem::unavailable("the database does not answer; try again in a moment")
            }
            error if error.is_full() => {
                warn!(%error, "request failed");
                Problem::unavailable("the database has no room left")
            }
            error => {
                tracing::error!(%error, "request failed");
                Problem::internal()
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Texts and numbers can always be written.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(after));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For the audit log.
        response.extensions_mut().insert(self);
        response
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}
