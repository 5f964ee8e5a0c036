//! HTTP pages of the relay. Everything is read-only.
//!
//! `pages` has the pages for operators and their machines, `metrics` the numbers; `service::pages`
//! serves them.

mod metrics;
mod pages;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::Router;
use axum::routing::get;
use service::pages as common;
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
    common::serve("flexfeed-relay", listener, router(site), stop).await;
}

fn router(site: Arc<Site>) -> Router {
    common::router("/")
        .route("/", get(pages::index))
        .route("/readyz", get(pages::ready))
        .route("/metrics", get(pages::metrics))
        .route("/status", get(pages::status))
        .route("/status.json", get(pages::status))
        .with_state(site)
}
