//! HTTP pages of the gateway (`--http`): liveness, readiness, and metrics. Everything is read-only.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use serde_json::json;
use service::places::{Bounds, Places};
use service::{exposition, host, server};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::out::{Outlet, Sent};
use crate::tunnels::Tunnels;

/// Recent status of the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageStatus {
    /// Number of configured tunnels.
    pub tunnels: usize,
    /// Number of tunnels that have a relay.
    pub connected: usize,
    /// Number of subscribed flows.
    pub flows: usize,
    /// Packets of flows received.
    pub received: u64,
    /// Bytes of their payload.
    pub received_bytes: u64,
    /// Datagrams dropped, by reason.
    pub dropped: Vec<(&'static str, u64)>,
    /// Packets that were re-emitted.
    pub sent: Sent,
    /// Failures of relays, in words.
    pub failures: Vec<String>,
}

impl PageStatus {
    /// Returns the current status.
    #[must_use]
    pub fn of(tunnels: &Tunnels, outlet: &Outlet) -> Self {
        let mut shown = Self {
            sent: outlet.sent(),
            ..Self::default()
        };
        for status in tunnels.status() {
            shown.tunnels += 1;
            shown.connected += usize::from(status.relay.is_some());
            shown.flows += status.subscriptions;
            shown.received += status.counters.data;
            shown.received_bytes += status.counters.data_bytes;
            if status.relay.is_none() {
                shown.failures.extend(status.failures());
            }
            for (reason, count) in status.counters.dropped() {
                match shown.dropped.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, sum)) => *sum += count,
                    None => shown.dropped.push((reason, count)),
                }
            }
        }
        shown
    }
}

/// Binds the address.
///
/// # Errors
/// The address cannot be bound; in words for the operator.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot answer HTTP on {address}: choose another address with --http")
    })
}

/// Serves the status in `shown` until `stop`.
pub async fn serve(
    listener: TcpListener,
    shown: watch::Receiver<PageStatus>,
    stop: CancellationToken,
) {
    // A listener without a known address gets the strict rule.
    let local = listener
        .local_addr()
        .map_or(true, |at| host::is_own(at.ip()));
    let site = Arc::new(Site {
        shown,
        metrics: Metrics::default(),
    });
    let pages = Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .with_state(site);
    let app = host::guarded("flexfeed-gateway", local, pages);
    let places = Arc::new(Places::new(Bounds::default()));
    server::serve(listener, app, places, stop).await;
}

#[derive(Debug)]
struct Site {
    shown: watch::Receiver<PageStatus>,
    metrics: Metrics,
}

async fn nothing(uri: Uri) -> (StatusCode, String) {
    let text = format!(
        "there is nothing at {}: there are /healthz, /readyz and /metrics\n",
        uri.path()
    );
    (StatusCode::NOT_FOUND, text)
}

/// Whether the gateway works: every tunnel has a relay.
async fn ready(State(site): State<Arc<Site>>) -> Response {
    let shown = site.shown.borrow().clone();
    let is_ready = shown.tunnels > 0 && shown.connected == shown.tunnels;
    let mut reasons = shown.failures;
    if !is_ready {
        let missing = shown.tunnels - shown.connected;
        reasons.insert(
            0,
            format!("{missing} of {} tunnels have no relay", shown.tunnels),
        );
    }
    let code = match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({"ready": is_ready, "reasons": reasons});
    (code, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

async fn metrics(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    exposition::answer(&headers, site.metrics.text(&site.shown.borrow()))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// All metrics; `docs/metrics.md` lists them.
#[derive(Debug)]
struct Metrics {
    registry: Registry,
    tunnels: Gauge,
    connected: Gauge,
    flows: Gauge,
    received: Counter,
    received_bytes: Counter,
    dropped: Family<ReasonLabels, Counter>,
    sent: Counter,
    lost: Counter,
    own: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexfeed_gateway");
        let metrics = Self {
            registry: Registry::default(),
            tunnels: Gauge::default(),
            connected: Gauge::default(),
            flows: Gauge::default(),
            received: Counter::default(),
            received_bytes: Counter::default(),
            dropped: Family::default(),
            sent: Counter::default(),
            lost: Counter::default(),
            own: Counter::default(),
        };
        let r = &mut registry;
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "The program", version);
        let started: Gauge<f64, AtomicU64> = Gauge::default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        started.set(now.unwrap_or_default().as_secs_f64());
        let help = "Unix time of the start";
        r.register_with_unit("start_timestamp", help, Unit::Seconds, started);
        let help = "Configured tunnels: one, or one for each source with relays of its own";
        r.register("tunnels", help, metrics.tunnels.clone());
        let help = "Tunnels connected to a relay";
        r.register("connected_tunnels", help, metrics.connected.clone());
        let help = "Subscribed flows";
        r.register("flows", help, metrics.flows.clone());
        let help = "Received flow packets";
        r.register("received_packets", help, metrics.received.clone());
        let help = "Payload bytes of received flow packets";
        let bytes = metrics.received_bytes.clone();
        r.register_with_unit("received", help, Unit::Bytes, bytes);
        let help = "Datagrams dropped, by reason";
        r.register("dropped_packets", help, metrics.dropped.clone());
        let help = "Forwarded packets";
        r.register("sent_packets", help, metrics.sent.clone());
        let help = "Packets that could not be forwarded";
        r.register("lost_packets", help, metrics.lost.clone());
        let help = "Forwarded packets that came back through a relay and were dropped";
        r.register("own_packets", help, metrics.own.clone());
        Self {
            registry,
            ..metrics
        }
    }
}

/// Raises a counter to `total`.
fn raise(counter: &Counter, total: u64) {
    counter.inner().fetch_max(total, Ordering::Relaxed);
}

impl Metrics {
    /// Returns all metrics as OpenMetrics.
    ///
    /// # Errors
    /// Only if a string cannot be written to.
    fn text(&self, shown: &PageStatus) -> Result<String, fmt::Error> {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.tunnels.set(count(shown.tunnels));
        self.connected.set(count(shown.connected));
        self.flows.set(count(shown.flows));
        raise(&self.received, shown.received);
        raise(&self.received_bytes, shown.received_bytes);
        for &(reason, total) in &shown.dropped {
            let labels = ReasonLabels { reason };
            raise(&self.dropped.get_or_create(&labels), total);
        }
        raise(&self.sent, shown.sent.packets);
        raise(&self.lost, shown.sent.lost);
        raise(&self.own, shown.sent.own);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn the_list_of_metrics_is_complete() {
        let shown = PageStatus {
            tunnels: 2,
            connected: 1,
            flows: 3,
            received: 4,
            received_bytes: 5,
            dropped: vec![("malformed", 6)],
            sent: Sent {
                packets: 7,
                lost: 8,
                own: 9,
            },
            failures: Vec::new(),
        };
        let metrics = Metrics::default();
        let text = metrics.text(&shown).unwrap();
        for line in [
            "flexfeed_gateway_connected_tunnels 1\n",
            "flexfeed_gateway_received_bytes_total 5\n",
            "flexfeed_gateway_dropped_packets_total{reason=\"malformed\"} 6\n",
            "flexfeed_gateway_own_packets_total 9\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert_eq!(
            metrics.text(&shown).unwrap(),
            text,
            "nothing is counted twice"
        );
        let wrong = openmetrics::forms(&exposition::plain(&text), &text);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let families = openmetrics::parse(&text).unwrap();
        let document = include_str!("../../../docs/metrics.md");
        let found = openmetrics::differences(document, "flexfeed_gateway_", &families);
        let table = openmetrics::table(&families).join("\n");
        assert!(
            found.is_empty(),
            "{}\n\nIt should be:\n\n{table}",
            found.join("\n")
        );
    }
}
