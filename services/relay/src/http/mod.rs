//! What the relay answers over HTTP: how it is. Everything is read-only.
//!
//! `pages` is what operators and their machines look at, `metrics` the numbers, `host` whose names it
//! answers to, `service::server` has the connections.

mod metrics;
mod pages;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
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
use tracing::warn;

use crate::config::HttpSettings;
use crate::engine::Engine;
use metrics::Metrics;
use pages::Looks;

/// All that is served.
#[derive(Debug)]
pub struct Site {
    engine: Arc<Engine>,
    listen: Vec<String>,
    started: Instant,
    looks: Looks,
    metrics: Metrics,
    leaving: AtomicBool,
    stop: CancellationToken,
}

impl Site {
    /// Tells how `engine` is, which gateways reach at `listen`, until `stop`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, listen: Vec<String>, stop: CancellationToken) -> Self {
        Self {
            engine,
            listen,
            started: Instant::now(),
            looks: Looks::default(),
            metrics: Metrics::default(),
            leaving: AtomicBool::new(false),
            stop,
        }
    }

    /// From now on it is not ready: it is about to stop.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }
}

/// Takes the address. `None`, with a warning, where another program has it and nobody asked for it.
///
/// # Errors
/// If it cannot be had although somebody asked for it; in words for the operator.
pub async fn bind(settings: HttpSettings) -> anyhow::Result<Option<TcpListener>> {
    let HttpSettings { addr, explicit } = settings;
    match TcpListener::bind(addr).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if explicit => Err(refused(addr, &error)),
        Err(error) => {
            warn!("{}; going on without", refused(addr, &error));
            Ok(None)
        }
    }
}

fn refused(addr: SocketAddr, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "cannot answer HTTP on {addr}: {error}; choose another address with --http ADDRESS:PORT or FLEXFEED_RELAY_HTTP"
    )
}

/// Serves until the site's stop.
pub async fn serve(site: Arc<Site>, listener: TcpListener) {
    let stop = site.stop.clone();
    // Who cannot say where it listens gets the strict rule.
    let local = listener
        .local_addr()
        .map_or(true, |at| host::is_own(at.ip()));
    let places = Arc::new(Places::new(Bounds::default()));
    server::serve(listener, router(site, local), places, stop).await;
}

/// `local` if only this machine reaches it.
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
