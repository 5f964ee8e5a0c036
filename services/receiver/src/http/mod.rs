//! HTTP server of the receiver: feeds, the event stream, status and health.
//!
//! `feeds` serves the feed files from memory with validators, `events` the stream of server-sent
//! events, replayed from the journal, `pages` the pages for operators and probes, `metrics` the
//! metrics; connections are `service::server`'s. All of it is read-only.

mod event_id;
mod events;
mod feeds;
mod metrics;
mod pages;
mod readiness;

#[cfg(test)]
mod replay;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, RETRY_AFTER};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use service::host;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::feeds::Feeds;
use crate::hooks::HookStats;
use crate::journal::JournalReader;
use events::Clients;
use feeds::Validators;
use metrics::Metrics;
use readiness::Readiness;
pub use readiness::sample;
use service::places::{Bounds, Connection, Limit, Places};
use service::{pages as common, server};

/// Channel, as HTTP sees it.
#[derive(Debug)]
pub struct ServedChannel {
    /// Name.
    pub channel: String,
    /// Journal.
    pub reader: Arc<JournalReader>,
    /// Feed files.
    pub feeds: Arc<Feeds>,
}

/// State of the served site.
pub struct Site {
    json: bool,
    channels: Vec<ServedChannel>,
    board: Arc<Board>,
    hooks: Vec<Arc<HookStats>>,
    clients: Clients,
    validators: Validators,
    metrics: Metrics,
    readiness: Readiness,
    places: Arc<Places>,
    stop: CancellationToken,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("channels", &self.channels)
            .finish_non_exhaustive()
    }
}

impl Site {
    /// Returns the site of the feeds and journals of `channels`, whose data folder is `data`, until
    /// `stop`. `json` if there are JSON Feed files.
    #[must_use]
    pub fn new(
        data: &Path,
        json: bool,
        channels: Vec<ServedChannel>,
        board: Arc<Board>,
        hooks: Vec<Arc<HookStats>>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            readiness: Readiness::new(data),
            json,
            channels,
            hooks,
            clients: Clients::default(),
            validators: Validators::default(),
            metrics: Metrics::new(&board),
            board,
            places: Arc::new(Places::new(Bounds::default())),
            stop,
        }
    }

    fn served(&self, channel: &str) -> Option<&ServedChannel> {
        let mut channels = self.channels.iter();
        channels.find(|served| served.channel == channel)
    }

    fn reader(&self, channel: &str) -> Option<&Arc<JournalReader>> {
        self.served(channel).map(|served| &served.reader)
    }
}

/// Serves until the site's stop; answers in progress have a bounded time more.
pub async fn serve(site: Arc<Site>, listener: TcpListener) {
    let stop = site.stop.clone();
    let local = host::is_local(&listener);
    let places = Arc::clone(&site.places);
    server::serve(listener, router(site, local), places, stop).await;
}

/// Returns the routes. `local` if only this machine can connect.
fn router(site: Arc<Site>, local: bool) -> Router {
    let counting = Arc::clone(&site);
    common::router("/")
        .route("/", get(pages::index))
        .route("/feeds/{file}", get(feeds::feed))
        .route("/events", get(events::events))
        .route("/readyz", get(pages::ready))
        .route("/metrics", get(pages::metrics))
        .route("/status.json", get(pages::status))
        .layer(from_fn(
            move |Extension(client): Extension<Arc<Connection>>, request: Request, next: Next| {
                let site = Arc::clone(&counting);
                async move { finish(&site, local, &client, request, next).await }
            },
        ))
        .with_state(site)
}

/// Counts a request, holds it to the bounds, and adds the common headers: browsers must not take
/// text of feeds for a page of this site.
async fn finish(
    site: &Site,
    local: bool,
    client: &Connection,
    request: Request,
    next: Next,
) -> Response {
    let page = match request.uri().path() {
        "/" => "index",
        "/events" => "events",
        "/healthz" => "healthz",
        "/readyz" => "readyz",
        "/metrics" => "metrics",
        "/status.json" => "status",
        path if path.starts_with("/feeds/") => "feed",
        _ => "none",
    };
    let refusal = match local {
        true => host::refusal("flexfeed-receiver", request.uri(), request.headers()),
        false => None,
    };
    // Small, quick pages are admitted without a slot: above all the health checks.
    let admitted = match (refusal, page) {
        (Some(refusal), _) => Err(refusal.into_response()),
        (None, "events" | "feed") => client.admit().map_err(busy),
        (None, _) => Ok(()),
    };
    let response = match admitted {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal,
    };
    let endless = page == "events" && response.status() == StatusCode::OK;
    let length = response.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let length = length.or(response.body().size_hint().exact()).unwrap_or(0);
    client.has_to_end_within((!endless).then_some(length));
    site.metrics.answered(page, response.status());
    host::harmless(response)
}

/// Returns the refusal of a request for which no slot is free.
fn busy(limit: Limit) -> Response {
    let whose = match limit {
        Limit::Peer => " by this address",
        _ => "",
    };
    let text = format!("too many feeds and events are being read{whose}; try again later\n");
    let later = [(RETRY_AFTER, HeaderValue::from_static("10"))];
    (StatusCode::SERVICE_UNAVAILABLE, later, text).into_response()
}
