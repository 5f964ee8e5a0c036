//! Pages that all programs answer.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::places::{Bounds, Places};
use crate::{host, server};

/// Header of pages about the present moment.
pub const NOT_STORED: (HeaderName, HeaderValue) =
    (CACHE_CONTROL, HeaderValue::from_static("no-store"));

/// Returns routes with `/healthz`, which reports only that the process runs its tasks, and an
/// answer to unknown paths that refers to the page or pages `see`.
pub fn router<S: Clone + Send + Sync + 'static>(see: &'static str) -> Router<S> {
    let unknown = async move |uri: Uri| {
        let text = format!("there is nothing at {}: see {see}\n", uri.path());
        (StatusCode::NOT_FOUND, text)
    };
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .fallback(unknown)
}

/// Answers `/readyz`: ready without `reasons`.
#[must_use]
pub fn readiness(reasons: &[String]) -> Response {
    let code = match reasons {
        [] => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({"ready": reasons.is_empty(), "reasons": reasons});
    (code, [NOT_STORED], Json(body)).into_response()
}

/// Serves the pages of `program` until `stop`; answers in progress have a bounded time more.
pub async fn serve(
    program: &'static str,
    listener: TcpListener,
    pages: Router,
    stop: CancellationToken,
) {
    let app = host::guarded(program, host::is_local(&listener), pages);
    let places = Arc::new(Places::new(Bounds::default()));
    server::serve(listener, app, places, stop).await;
}
