//! What each page says.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use flexicast_tokio::source::{
    Counters, FlowStatus, MassFallBack, Move, ReceiverStatus, SourceStatus,
};
use serde::Serialize;
use uuid::Uuid;

use super::{ChannelPage, Pages};
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
    /// Of the first channel's feed, good or bad: a source whose feed is away still serves what it
    /// has.
    feed: Option<FeedPage>,
    /// Of all channels' feeds.
    feeds: Vec<ChannelFeed>,
}

#[derive(Serialize)]
struct ChannelFeed {
    channel: String,
    #[serde(flatten)]
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
    for channel in &pages.channels {
        let ingest = channel.ingest.borrow();
        // With one channel, its name says nothing.
        let which = match pages.channels.len() {
            1 => String::new(),
            _ => format!("channel {}: ", channel.name),
        };
        if let Some(failure) = &ingest.store_failure {
            reasons.push(format!("{which}updates cannot be stored: {failure}"));
        } else if ingest.feed == FeedState::Pending {
            reasons.push(format!("{which}the first poll of the feed is not done yet"));
        }
    }
    let feeds = pages.channels.iter().map(|channel| ChannelFeed {
        channel: channel.name.clone(),
        feed: FeedPage::of(channel),
    });
    let code = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let readiness = Readiness {
        ready: reasons.is_empty(),
        reasons,
        feed: pages.channels.first().map(FeedPage::of),
        feeds: feeds.collect(),
    };
    (code, Json(readiness))
}

async fn metrics_text(State(pages): State<Arc<Pages>>) -> Response {
    pages.view.look(&pages.metrics).await;
    let ingests = pages.channels.iter();
    let ingests = ingests.map(|c| (c.name.as_str(), c.ingest.borrow().clone()));
    let text = pages.metrics.text(ingests);
    match text {
        Ok(text) => {
            let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
            ([(CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// What `/status.json` says. What is not in a list of channels is of the first channel, as it was
/// when there was only one.
#[derive(Serialize)]
struct StatusPage {
    version: u32,
    #[serde(flatten)]
    first: Option<ChannelStatus>,
    channels: Vec<ChannelStatus>,
    receivers: Vec<Receiver>,
    moves: Vec<Move>,
    mass_fall_backs: Vec<MassFallBack>,
    counters: Counters,
}

#[derive(Serialize)]
struct ChannelStatus {
    channel: String,
    incarnation: Uuid,
    /// The last stored `seq`.
    head: u64,
    /// The oldest `seq` that is kept.
    #[serde(rename = "first")]
    oldest: u64,
    private: bool,
    feed: FeedPage,
    flow: Option<FlowStatus>,
}

impl ChannelStatus {
    fn of(channel: &ChannelPage, seen: &Option<SourceStatus>) -> Self {
        let channels = seen.as_ref().map_or(&[][..], |seen| &seen.channels);
        let seen = channels.iter().find(|c| c.channel == channel.name);
        let ingest = channel.ingest.borrow();
        Self {
            channel: channel.name.clone(),
            incarnation: channel.incarnation,
            head: ingest.head,
            oldest: ingest.first,
            private: channel.private,
            feed: FeedPage::of(channel),
            flow: seen.and_then(|seen| seen.flow.clone()),
        }
    }
}

#[derive(Serialize)]
struct FeedPage {
    url: String,
    state: FeedState,
    last_poll_ms: Option<u64>,
    detail: String,
}

impl FeedPage {
    fn of(channel: &ChannelPage) -> Self {
        let ingest = channel.ingest.borrow();
        let (state, detail) = ingest.feed();
        Self {
            url: channel.url.clone(),
            state,
            last_poll_ms: ingest.last_poll_ms,
            detail,
        }
    }
}

/// A receiver, with its place in the first channel beside it.
#[derive(Serialize)]
struct Receiver {
    #[serde(flatten)]
    receiver: ReceiverStatus,
    rung: String,
    since_ms: u64,
    cursor: u64,
    backlog: u64,
}

impl Receiver {
    fn of(mut receiver: ReceiverStatus, first: Option<&str>) -> Self {
        for channel in &mut receiver.channels {
            // Seqs begin at 1: who has confirmed nothing stands before that.
            channel.cursor.get_or_insert(0);
        }
        let in_first = receiver
            .channels
            .iter()
            .find(|channel| Some(channel.channel.as_str()) == first)
            .or(receiver.channels.first());
        let (rung, since_ms, cursor, backlog) = match in_first {
            Some(c) => (c.rung.clone(), c.since_ms, c.cursor.unwrap_or(0), c.backlog),
            None => Default::default(),
        };
        Self {
            receiver,
            rung,
            since_ms,
            cursor,
            backlog,
        }
    }
}

async fn status(State(pages): State<Arc<Pages>>) -> Response {
    let (seen, _) = pages.view.look(&pages.metrics).await;
    let first = pages.channels.first();
    let of = |channel: &ChannelPage| ChannelStatus::of(channel, &seen);
    let (top, channels) = (first.map(of), pages.channels.iter().map(of).collect());
    let (receivers, moves, mass_fall_backs, counters) = match seen {
        Some(s) => (s.receivers, s.moves, s.mass_fall_backs, s.counters),
        None => Default::default(),
    };
    let first = first.map(|channel| channel.name.as_str());
    let receivers = receivers.into_iter().map(|r| Receiver::of(r, first));
    let page = StatusPage {
        version: STATUS_VERSION,
        first: top,
        channels,
        receivers: receivers.collect(),
        moves,
        mass_fall_backs,
        counters,
    };
    let fresh = HeaderValue::from_static("no-store");
    ([(CACHE_CONTROL, fresh)], Json(page)).into_response()
}
