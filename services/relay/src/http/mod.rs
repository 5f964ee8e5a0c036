//! What the relay answers over HTTP: how it is. Everything is read-only.
//!
//! `pages` is what operators and their machines look at, `metrics` the numbers, `host` whose names it
//! answers to, `server` the connections and their bounds.

mod host;
mod metrics;
mod pages;
mod server;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
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
    server::serve(listener, router(site, local), stop).await;
}

/// `local` if only this machine reaches it.
fn router(site: Arc<Site>, local: bool) -> Router {
    Router::new()
        .route("/", get(pages::index))
        .route("/healthz", get(pages::alive))
        .route("/readyz", get(pages::ready))
        .route("/metrics", get(pages::metrics))
        .route("/status", get(pages::status))
        .route("/status.json", get(pages::status))
        .fallback(nothing)
        .layer(from_fn(move |request: Request, next: Next| async move {
            finish(local, request, next).await
        }))
        .with_state(site)
}

/// Refuses what is meant for another site, and adds what every answer has.
async fn finish(local: bool, request: Request, next: Next) -> Response {
    let refusal = match local {
        true => host::refusal(request.uri(), request.headers()),
        false => None,
    };
    let mut response = match refusal {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; sandbox"),
    );
    response
}

async fn nothing(uri: Uri) -> (StatusCode, String) {
    (
        StatusCode::NOT_FOUND,
        format!("there is nothing at {}: see /\n", uri.path()),
    )
}
