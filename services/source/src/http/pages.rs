//! What each page says.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use flexicast_tokio::source::{Counters, FlowStatus, Move, ReceiverStatus};
use serde::Serialize;
use uuid::Uuid;

use super::Pages;
use crate::ingest::FeedState;
use crate::metrics;

/// A transport that has not answered for this long counts as stuck.
const STUCK: Duration = Duration::from_secs(10);

/// The longest check of the store before it counts as failed.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// The version of the form of `/status.json`.
const STATUS_VERSION: u32 = 1;

/// All pages. They only show things: every method but GET and HEAD is refused.
pub fn router(pages: Arc<Pages>) -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_text))
        .route("/status.json", get(status))
        .fallback(nothing)
        .with_state(pages)
}

/// The process runs its tasks; that is all that this says.
async fn alive() -> &'static str {
    "alive\n"
}

async fn nothing(uri: Uri) -> (StatusCode, String) {
    (
        StatusCode::NOT_FOUND,
        format!(
            "there is nothing at {}: see /healthz, /readyz, /metrics or /status.json\n",
            uri.path()
        ),
    )
}

/// What `/readyz` says.
#[derive(Serialize)]
struct Readiness {
    ready: bool,
    /// Why not.
    reasons: Vec<String>,
    /// Of the feed, good or bad: a source whose feed is away still serves what it has.
    feed: FeedPage,
}

async fn ready(State(pages): State<Arc<Pages>>) -> (StatusCode, Json<Readiness>) {
    let mut reasons = Vec::new();
    match tokio::time::timeout(STORE_PATIENCE, pages.store.check()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => reasons.push(format!("the store cannot be read: {error}")),
        Err(_) => reasons.push("the store does not answer".to_owned()),
    }
    let (status, age) = pages.view.look(&pages.metrics).await;
    if status.is_none() {
        reasons.push("the transport is not running".to_owned());
    } else if age > STUCK {
        reasons.push(format!(
            "the transport has not answered for {} s",
            age.as_secs()
        ));
    }
    let feed = FeedPage::of(&pages);
    let ingest = pages.ingest.borrow();
    if let Some(failure) = &ingest.store_failure {
        reasons.push(format!("updates cannot be stored: {failure}"));
    } else if ingest.feed == FeedState::Pending {
        reasons.push("the first poll of the feed is not done yet".to_owned());
    }
    let code = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let readiness = Readiness {
        ready: reasons.is_empty(),
        reasons,
        feed,
    };
    (code, Json(readiness))
}

async fn metrics_text(State(pages): State<Arc<Pages>>) -> Response {
    pages.view.look(&pages.metrics).await;
    let text = pages.metrics.text(&pages.ingest.borrow());
    match text {
        Ok(text) => {
            let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
            ([(CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// What `/status.json` says.
#[derive(Serialize)]
struct StatusPage {
    version: u32,
    channel: String,
    incarnation: Uuid,
    /// The last stored `seq`.
    head: u64,
    feed: FeedPage,
    flow: Option<FlowStatus>,
    receivers: Vec<ReceiverStatus>,
    moves: Vec<Move>,
    counters: Counters,
}

#[derive(Serialize)]
struct FeedPage {
    url: String,
    state: FeedState,
    last_poll_ms: Option<u64>,
    detail: String,
}

impl FeedPage {
    fn of(pages: &Pages) -> Self {
        let ingest = pages.ingest.borrow();
        let (state, detail) = ingest.feed();
        Self {
            url: pages.url.clone(),
            state,
            last_poll_ms: ingest.last_poll_ms,
            detail,
        }
    }
}

async fn status(State(pages): State<Arc<Pages>>) -> Response {
    let (seen, _) = pages.view.look(&pages.metrics).await;
    let (flow, mut receivers, moves, counters) = match seen {
        Some(seen) => (seen.flow, seen.receivers, seen.moves, seen.counters),
        None => Default::default(),
    };
    for receiver in &mut receivers {
        // Seqs begin at 1: who has confirmed nothing stands before that.
        receiver.cursor.get_or_insert(0);
    }
    let page = StatusPage {
        version: STATUS_VERSION,
        channel: pages.channel.clone(),
        incarnation: pages.incarnation,
        head: pages.ingest.borrow().head,
        feed: FeedPage::of(&pages),
        flow,
        receivers,
        moves,
        counters,
    };
    let fresh = HeaderValue::from_static("no-store");
    ([(CACHE_CONTROL, fresh)], Json(page)).into_response()
}
