//! HTTP pages of the gateway (`--http`): liveness, readiness, and metrics. Everything is read-only.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use service::listen::listen;
use service::metrics::{self, Unit, raise};
use service::{exposition, pages};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::out::{Outlet, SentCounters};
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
    pub sent: SentCounters,
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

/// Binds the address. To be called within a runtime.
///
/// # Errors
/// The address cannot be bound; in words for the operator.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    listen(address).with_context(|| {
        format!("cannot answer HTTP on {address}: choose another address with --http")
    })
}

/// Serves the status in `shown` until `stop`.
pub async fn serve(
    listener: TcpListener,
    shown: watch::Receiver<PageStatus>,
    stop: CancellationToken,
) {
    let site = Arc::new(Site {
        shown,
        metrics: Metrics::default(),
    });
    let router = pages::router("/healthz, /readyz and /metrics")
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_text))
        .with_state(site);
    pages::serve("flexfeed-gateway", listener, router, stop).await;
}

#[derive(Debug)]
struct Site {
    shown: watch::Receiver<PageStatus>,
    metrics: Metrics,
}

/// Whether the gateway works: every tunnel has a relay.
async fn ready(State(site): State<Arc<Site>>) -> Response {
    let shown = site.shown.borrow().clone();
    if shown.tunnels > 0 && shown.connected == shown.tunnels {
        return pages::readiness(&[]);
    }
    let missing = shown.tunnels - shown.connected;
    let missing = format!("{missing} of {} tunnels have no relay", shown.tunnels);
    let reasons = std::iter::once(missing).chain(shown.failures);
    pages::readiness(&reasons.collect::<Vec<_>>())
}

async fn metrics_text(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    exposition::answer(&headers, site.metrics.text(&site.shown.borrow()))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// All metrics; `docs/metrics.md` lists them.
#[derive(Debug)]
struct Metrics {
    registry: metrics::Metrics,
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
        let mut r = metrics::Metrics::new("flexfeed_gateway").started();
        Self {
            tunnels: r.add(
                "tunnels",
                "Configured tunnels: one, or one for each source with relays of its own",
            ),
            connected: r.add("connected_tunnels", "Tunnels connected to a relay"),
            flows: r.add("flows", "Subscribed flows"),
            received: r.add("received_packets", "Received flow packets"),
            received_bytes: r.unit(
                "received",
                "Payload bytes of received flow packets",
                Unit::Bytes,
            ),
            dropped: r.add("dropped_packets", "Datagrams dropped, by reason"),
            sent: r.add("sent_packets", "Forwarded packets"),
            lost: r.add("lost_packets", "Packets that could not be forwarded"),
            own: r.add(
                "own_packets",
                "Forwarded packets that came back through a relay and were dropped",
            ),
            registry: r,
        }
    }
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
        self.registry.text()
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
            sent: SentCounters {
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
