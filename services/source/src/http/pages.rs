//! Contents of the pages.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use flexicast_tokio::source::{
    Counters, FlowStatus, LoadStatus, MassFallBack, Move, ReceiverStatus, SourceStatus,
};
use serde::Serialize;
use service::exposition;
use uuid::Uuid;

use super::{Pages, Sample};
use crate::status::{
    ChannelView, DatabaseState, FeedState, FeedView, GapStatus, IngestStatus, Phase, Readiness,
    RelayView, Role, TransportState, readiness,
};

/// The version of the form of `/status.json`.
const STATUS_VERSION: u32 = 1;

/// Name and version of the program.
const SOFTWARE: &str = concat!("flexfeed-source ", env!("CARGO_PKG_VERSION"));

/// All pages. They only show things: every method but GET and HEAD is refused.
pub fn router(pages: Arc<Pages>) -> Router {
    service::pages::router("/healthz, /readyz, /metrics or /status.json")
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_text))
        .route("/status.json", get(status))
        .with_state(pages)
}

/// Body of `/readyz`.
#[derive(Serialize)]
struct ReadyPage {
    #[serde(flatten)]
    readiness: Readiness,
    /// First feed of the first channel, good or bad: without its feed, a source still serves what
    /// it has.
    feed: Option<FeedPage>,
    /// All feeds.
    feeds: Vec<ChannelFeed>,
}

#[derive(Serialize)]
struct ChannelFeed {
    channel: String,
    #[serde(flatten)]
    feed: FeedPage,
}

async fn ready(State(pages): State<Arc<Pages>>, uri: Uri, headers: HeaderMap) -> Response {
    let (sample, age) = pages.view.look(&pages.metrics).await;
    let transport = match sample.status {
        Some(_) => TransportState::Answered(age),
        None => TransportState::Ended,
    };
    let seen = pages.board.snapshot();
    let readiness = readiness(&seen, transport);
    // On request, a standby is as good as a publishing source.
    let asked = uri.query().unwrap_or_default();
    let may_stand_by = asked.split('&').any(|part| part == "standby=ok");
    let code = match readiness.ready || (may_stand_by && readiness.is_well()) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    if wants_text(&headers) {
        return (code, in_words(&readiness)).into_response();
    }
    let feeds = seen.channels.iter().flat_map(|channel| {
        let feed = |feed: &FeedView| ChannelFeed {
            channel: channel.name.clone(),
            feed: FeedPage::of(feed),
        };
        channel.feeds.iter().map(feed)
    });
    let page = ReadyPage {
        readiness,
        feed: seen.channels.first().and_then(FeedPage::first),
        feeds: feeds.collect(),
    };
    (code, Json(page)).into_response()
}

/// Whether the client prefers text: its Accept names text and not JSON.
fn wants_text(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|kinds| kinds.contains("text/plain") && !kinds.contains("json"))
}

/// The readiness as lines.
fn in_words(readiness: &Readiness) -> String {
    let mut text = match (readiness.ready, readiness.standby) {
        (true, _) => "ready\n".to_owned(),
        (false, true) => "standing by\n".to_owned(),
        (false, false) => "not ready\n".to_owned(),
    };
    for line in readiness.reasons.iter().chain(&readiness.notes) {
        text.push_str(&format!("- {line}\n"));
    }
    text
}

async fn metrics_text(State(pages): State<Arc<Pages>>, headers: HeaderMap) -> Response {
    pages.view.look(&pages.metrics).await;
    let text = pages.metrics.text(&pages.board.snapshot());
    exposition::answer(&headers, text)
}

/// Body of `/status.json`. Fields outside of the channel list are of the first channel, for clients
/// from before there were several.
#[derive(Serialize)]
struct StatusPage {
    version: u32,
    software: &'static str,
    phase: Phase,
    database: DatabaseState,
    #[serde(flatten)]
    first: Option<ChannelStatus>,
    channels: Vec<ChannelStatus>,
    receivers: Vec<Receiver>,
    relays: Vec<RelayView>,
    moves: Vec<Move>,
    mass_fall_backs: Vec<MassFallBack>,
    load: LoadStatus,
    /// Connections of each shard.
    shards: Vec<usize>,
    counters: Counters,
}

#[derive(Serialize)]
struct ChannelStatus {
    channel: String,
    incarnation: Option<Uuid>,
    #[serde(flatten)]
    role: Role,
    /// Last stored seq.
    head: u64,
    /// Last seq published here.
    published: Option<u64>,
    /// Oldest kept seq.
    #[serde(rename = "first")]
    oldest: u64,
    private: bool,
    /// As written in the settings; empty for no multicast.
    groups: String,
    /// Current failure to store or read updates.
    store_failure: Option<String>,
    /// First feed.
    feed: Option<FeedPage>,
    feeds: Vec<FeedPage>,
    flow: Option<FlowStatus>,
}

impl ChannelStatus {
    fn of(channel: &ChannelView, seen: &Option<SourceStatus>) -> Self {
        let channels = seen.as_ref().map_or(&[][..], |seen| &seen.channels);
        let seen = channels.iter().find(|c| c.channel == channel.name);
        Self {
            channel: channel.name.clone(),
            incarnation: channel.incarnation,
            role: channel.role.clone(),
            head: channel.head,
            published: channel.published,
            oldest: channel.first,
            private: channel.private,
            groups: channel.groups.clone(),
            store_failure: channel.store_failure.clone(),
            feed: FeedPage::first(channel),
            feeds: channel.feeds.iter().map(FeedPage::of).collect(),
            flow: seen.and_then(|seen| seen.flow.clone()),
        }
    }
}

#[derive(Serialize)]
struct FeedPage {
    url: String,
    title: Option<String>,
    state: FeedState,
    detail: String,
    last_poll_ms: Option<u64>,
    last_success_ms: Option<u64>,
    next_poll_ms: Option<u64>,
    interval_ms: Option<u64>,
    moved_to: Option<String>,
    /// Entries that are held in memory until they can be stored.
    held: usize,
    /// Last gap of the feed.
    gap: Option<GapStatus>,
}

impl FeedPage {
    fn of(feed: &FeedView) -> Self {
        let unknown = IngestStatus {
            detail: "not polled here".to_owned(),
            ..IngestStatus::default()
        };
        let ingest = feed.ingest.clone().unwrap_or(unknown);
        let (state, detail) = ingest.feed();
        Self {
            url: feed.url.clone(),
            title: feed.title.clone().or(ingest.title),
            state,
            detail,
            last_poll_ms: ingest.last_poll_ms,
            last_success_ms: ingest.last_success_ms,
            next_poll_ms: ingest.next_poll_ms,
            interval_ms: ingest.interval_ms,
            moved_to: ingest.moved_to,
            held: ingest.pending,
            gap: ingest.gap,
        }
    }

    fn first(channel: &ChannelView) -> Option<Self> {
        channel.feeds.first().map(Self::of)
    }
}

/// A receiver, with its state in the first channel at the top level.
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
            // Seqs begin at 1: 0 means nothing confirmed.
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
    let (Sample { status: seen, .. }, _) = pages.view.look(&pages.metrics).await;
    let seen = seen.map(Arc::unwrap_or_clone);
    let board = pages.board.snapshot();
    let first = board.channels.first();
    let of = |channel: &ChannelView| ChannelStatus::of(channel, &seen);
    let (top, channels) = (first.map(of), board.channels.iter().map(of).collect());
    let (receivers, moves, mass_fall_backs, load, shards, counters) = match seen {
        Some(s) => (
            s.receivers,
            s.moves,
            s.mass_fall_backs,
            s.load,
            s.shards,
            s.counters,
        ),
        None => Default::default(),
    };
    let first = first.map(|channel| channel.name.as_str());
    let receivers = receivers.into_iter().map(|r| Receiver::of(r, first));
    let page = StatusPage {
        version: STATUS_VERSION,
        software: SOFTWARE,
        phase: board.phase,
        database: board.database.clone(),
        first: top,
        channels,
        receivers: receivers.collect(),
        relays: board.relays,
        moves,
        mass_fall_backs,
        load,
        shards,
        counters,
    };
    let fresh = HeaderValue::from_static("no-store");
    ([(CACHE_CONTROL, fresh)], Json(page)).into_response()
}
