//! Pages for operators and their machines.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use service::exposition;
use service::pages::{NOT_STORED, readiness};
use tokio::sync::Mutex;

use super::Site;
use crate::engine::View;
use crate::status::model::{self, EngineSnapshot, Status};

/// Shortest time that rates are computed over.
const LEAST: Duration = Duration::from_millis(250);

/// Longest such time; a longer one gives no rate of the present.
const MOST: Duration = Duration::from_secs(10);

/// A thread that does not respond within this time does not forward, either.
const PATIENCE: Duration = Duration::from_secs(2);

/// The last view, which the next one is compared with, and the last status.
#[derive(Debug, Default)]
pub(super) struct RecentViews(Mutex<Option<(EngineSnapshot, Option<Arc<Status>>)>>);

pub(super) async fn index() -> &'static str {
    "flexfeed-relay\n\n/status   gateways and groups, as JSON\n/healthz  liveness\n\
     /readyz   readiness\n/metrics  metrics\n"
}

/// Whether the relay works.
pub(super) async fn ready(State(site): State<Arc<Site>>) -> Response {
    let mut reasons = Vec::new();
    // A turn of the thread, and no view: any number of requests leaves packets undisturbed.
    if !site.engine.is_alive(PATIENCE).await {
        reasons.push("the thread that forwards packets does not answer".to_owned());
    }
    if site.engine.counters().not_capturing.get() > 0 {
        reasons.push("nothing is captured: the interface is down or gone".to_owned());
    }
    if site.leaving.load(Ordering::Relaxed) {
        reasons.push("the relay is about to stop".to_owned());
    }
    readiness(&reasons)
}

pub(super) async fn metrics(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    exposition::answer(&headers, site.metrics.text(site.engine.counters()))
}

pub(super) async fn status(State(site): State<Arc<Site>>) -> Response {
    match see(&site).await {
        Some(status) => ([NOT_STORED], Json(&*status)).into_response(),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the thread that forwards packets does not answer\n",
        )
            .into_response(),
    }
}

async fn look(site: &Site) -> Option<View> {
    tokio::time::timeout(PATIENCE, site.engine.view())
        .await
        .ok()
        .flatten()
}

async fn now(site: &Site) -> Option<EngineSnapshot> {
    let view = look(site).await?;
    Some(EngineSnapshot::new(view, site.engine.counters()))
}

/// Returns the status with rates since the last view, or a recent status. Any number of requests
/// reaches the packet thread only a few times a second.
async fn see(site: &Site) -> Option<Arc<Status>> {
    let mut last = site.looks.0.lock().await;
    let age = |now: &EngineSnapshot| Instant::now().saturating_duration_since(now.view.at);
    let before = match last.take() {
        Some((now, Some(shown))) if age(&now) < LEAST => {
            *last = Some((now, Some(Arc::clone(&shown))));
            return Some(shown);
        }
        Some((now, _)) if age(&now) <= MOST => now,
        _ => {
            let before = now(site).await?;
            tokio::time::sleep(LEAST).await;
            before
        }
    };
    let now = now(site).await?;
    let status = Arc::new(model::status(
        &before,
        &now,
        &site.listen,
        site.started.elapsed(),
        site.leaving.load(Ordering::Relaxed),
    ));
    *last = Some((now, Some(Arc::clone(&status))));
    Some(status)
}
