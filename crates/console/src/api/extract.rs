//! Parts of requests, read so that whatever is wrong with them becomes a [`Problem`].

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::MAX_BODY;
use super::problem::Problem;

/// A body of JSON.
#[derive(Debug)]
pub struct Json<T>(pub T);

/// The query of the address.
#[derive(Debug)]
pub struct Query<T>(pub T);

/// The variable parts of the path.
#[derive(Debug)]
pub struct Path<T>(pub T);

/// Reads a body of at most `limit` bytes; `what` says so.
pub(super) async fn read_body<S: Send + Sync>(
    mut request: Request,
    state: &S,
    limit: usize,
    what: &str,
) -> Result<Bytes, Problem> {
    DefaultBodyLimit::max(limit).apply(&mut request);
    let body = Bytes::from_request(request, state).await;
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(what),
        _ => Problem::malformed(rejection.body_text()),
    })
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let what = "send it with Content-Type: application/json";
            return Err(Problem::media_type(what));
        }
        let body = read_body(request, state, MAX_BODY, "a request has at most 64 KiB").await?;
        let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
        if first.is_some_and(|byte| *byte == b'[') {
            // An array would be taken for the members in their order.
            return Err(Problem::invalid("body", "the body has to be a JSON object"));
        }
        match axum::Json::from_bytes(&body) {
            Ok(axum::Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(match rejection {
                JsonRejection::JsonDataError(_) => Problem::invalid("body", rejection.body_text()),
                _ => Problem::malformed(rejection.body_text()),
            }),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        axum::extract::Query::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|rejection: QueryRejection| Problem::malformed(rejection.body_text()))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(value)| Self(value))
            // A malformed id names no existing object.
            .map_err(|rejection: PathRejection| Problem::not_found(rejection.body_text()))
    }
}
