//! HTTP pages of the relay. Everything is read-only.
//!
//! `pages` has the pages for operators and their machines, `metrics` the numbers, `host` the
//! accepted Host names; `service::server` handles the connections.

mod metrics;
mod pages;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use service::host;
use service::places::{Bounds, Places};
use service::server;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use metrics::Metrics;
use pages::RecentViews;

/// State of the served site.
#[derive(Debug)]
pub struct Site {
    engine: Arc<Engine>,
    listen: Vec<String>,
    started: Instant,
    looks: RecentViews,
    metrics: Metrics,
    leaving: AtomicBool,
    stop: CancellationToken,
}

impl Site {
    /// Returns the site of `engine`, which gateways reach at `listen`, until `stop`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, listen: Vec<String>, stop: CancellationToken) -> Self {
        Self {
            engine,
            listen,
            started: Instant::now(),
            looks: RecentViews::default(),
            metrics: Metrics::default(),
            leaving: AtomicBool::new(false),
            stop,
        }
    }

    /// Marks the relay as not ready, because it is about to stop.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }
}

/// Serves until the site's stop.
pub async fn serve(site: Arc<Site>, listener: TcpListener) {
    let stop = site.stop.clone();
    let local = host::is_local(&listener);
    let places = Arc::new(Places::new(Bounds::default()));
    server::serve(listener, router(site, local), places, stop).await;
}

/// Returns the routes. `local` if only this machine can connect.
fn router(site: Arc<Site>, local: bool) -> Router {
    let pages = Router::new()
        .route("/", get(pages::index))
        .route("/healthz", get(pages::alive))
        .route("/readyz", get(pages::ready))
        .route("/metrics", get(pages::metrics))
        .route("/status", get(pages::status))
        .route("/status.json", get(pages::status))
        .fallback(nothing)
        .with_state(site);
    host::guarded("flexfeed-relay", local, pages)
}

async fn nothing(uri: Uri) -> (StatusCode, String) {
    (
        StatusCode::NOT_FOUND,
        format!("there is nothing at {}: see /\n", uri.path()),
    )
}
