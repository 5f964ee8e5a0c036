//! The pages for operators' machines.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use serde_json::json;
use service::exposition;

use crate::clock::now_ms;
use crate::site::Site;

/// A database that does not answer within this time does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Maximum age of the state, in milliseconds.
const STALE: i64 = 30_000;

/// Answers while the process runs its tasks.
pub(super) async fn alive() -> &'static str {
    "alive\n"
}

/// Whether it does what it is for.
pub(super) async fn ready(State(site): State<Arc<Site>>) -> Response {
    let mut reasons = Vec::new();
    let checked = tokio::time::timeout(PATIENCE, site.store.check()).await;
    if !matches!(checked, Ok(Ok(()))) {
        reasons.push("the database does not answer");
    }
    match site.board().as_of_ms {
        None => reasons.push("the database has not been read yet"),
        Some(at) if now_ms() - at > STALE => reasons.push("what is shown is old"),
        Some(_) => {}
    }
    if site.stop.is_cancelled() {
        reasons.push("the console is about to stop");
    }
    let code = match reasons.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({"ready": reasons.is_empty(), "reasons": reasons});
    (code, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

pub(super) async fn metrics(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    exposition::answer(&headers, site.metrics.text(&site))
}
