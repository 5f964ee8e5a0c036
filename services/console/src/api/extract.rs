//! Parts of requests, read so that whatever is wrong with them becomes a [`Problem`].

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

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

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match axum::Json::from_request(request, state).await {
            Ok(axum::Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(of_json(&rejection)),
        }
    }
}

fn of_json(rejection: &JsonRejection) -> Problem {
    let text = rejection.body_text();
    match rejection {
        JsonRejection::JsonDataError(_) => Problem::invalid("body", text),
        JsonRejection::JsonSyntaxError(_) => Problem::malformed(text),
        JsonRejection::MissingJsonContentType(_) => {
            Problem::media_type("send it with Content-Type: application/json")
        }
        other if other.status().as_u16() == 413 => {
            Problem::too_large("a request has at most 64 KiB")
        }
        _ => Problem::malformed(text),
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
            // What has another form than what there is, is not there.
            .map_err(|rejection: PathRejection| Problem::not_found(rejection.body_text()))
    }
}
