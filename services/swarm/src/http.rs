//! HTTP pages of the swarm (`--http`): liveness, readiness, and metrics. Everything is read-only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use flexicast::Rung;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use service::listen::listen;
use service::metrics::{self, Real, Unit, raise};
use service::{exposition, pages};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::board::{Board, Events, Totals};
use crate::cli::Options;
use crate::latency::Percentiles;

/// The rungs that receivers of a swarm can be on.
const RUNGS: [Rung; 3] = [Rung::Multicast, Rung::Replicated, Rung::Unicast];

/// Pages that are served.
pub struct Pages {
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Pages {
    /// Serves the pages, if an address is set. To be called within a runtime.
    ///
    /// # Errors
    /// The address cannot be bound; in words for the operator.
    pub fn open(options: &Options, board: &Arc<Board>) -> anyhow::Result<Option<Self>> {
        let Some(address) = options.http else {
            return Ok(None);
        };
        let listener = listen(address).with_context(|| {
            format!("cannot answer HTTP on {address}: choose another address with --http")
        })?;
        let at = listener.local_addr().context("no address")?;
        tracing::info!("serving metrics at http://{at}/metrics");
        let site = Arc::new(Site {
            receivers: options.receivers,
            board: board.clone(),
            metrics: Metrics::default(),
        });
        let router = pages::router("/healthz, /readyz and /metrics")
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics_text))
            .with_state(site);
        let stop = CancellationToken::new();
        let serving = pages::serve("flexfeed-swarm", listener, router, stop.clone());
        Ok(Some(Self {
            stop,
            serving: tokio::spawn(serving),
        }))
    }

    /// Ends the pages.
    pub async fn stop(self) {
        self.stop.cancel();
        // The panic hook reports a panic of the task.
        let _ = self.serving.await;
    }
}

struct Site {
    receivers: u32,
    board: Arc<Board>,
    metrics: Metrics,
}

/// Whether every receiver is served.
async fn ready(State(site): State<Arc<Site>>) -> Response {
    let served = site.board.totals().served;
    let receivers = u64::from(site.receivers);
    let missing = (served < receivers).then(|| format!("{served} of {receivers} are served"));
    pages::readiness(&missing.into_iter().collect::<Vec<_>>())
}

async fn metrics_text(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    let board = &site.board;
    let latency = board.latencies().percentiles();
    let text = site.metrics.text(&board.totals(), &board.events(), latency);
    exposition::answer(&headers, text)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RungLabels {
    channel: String,
    rung: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    path: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QuantileLabels {
    of: &'static str,
}

/// All metrics; `docs/metrics.md` lists them.
struct Metrics {
    registry: metrics::Metrics,
    served: Gauge,
    refused: Gauge,
    rungs: Family<RungLabels, Gauge>,
    updates: Family<PathLabels, Counter>,
    violations: Family<KindLabels, Counter>,
    fall_backs: Counter,
    disconnections: Counter,
    returns: Counter,
    latency: Family<QuantileLabels, Real>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut r = metrics::Metrics::new("flexfeed_swarm").started();
        Self {
            served: r.add("served_receivers", "Receivers served by the source"),
            refused: r.add("refused_receivers", "Receivers refused for good"),
            rungs: r.add("receivers", "Receivers served, by rung"),
            updates: r.add("updates", "Updates delivered, at all receivers, by path"),
            violations: r.add(
                "violations",
                "Updates left out, delivered again or late, with wrong bytes, or gone at the source",
            ),
            fall_backs: r.add("fall_backs", "Moves of receivers to a worse rung"),
            disconnections: r.add(
                "disconnections",
                "Connections that failed or were lost, those left by intention excepted",
            ),
            returns: r.add("returns", "Receivers that left by intention and are back"),
            latency: r.unit(
                "latency",
                "From storing at the source to delivery, in the measurement",
                Unit::Seconds,
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
    fn text(
        &self,
        totals: &Totals,
        events: &Events,
        latency: Percentiles,
    ) -> Result<String, fmt::Error> {
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.served.set(whole(totals.served));
        self.refused.set(whole(totals.refused));
        let channels = totals.rungs.keys().map(|(channel, _)| channel);
        for channel in channels {
            for rung in RUNGS {
                let count = totals.rungs.get(&(channel.clone(), rung));
                let labels = RungLabels {
                    channel: channel.clone(),
                    rung: rung.to_string(),
                };
                let gauge = self.rungs.get_or_create(&labels);
                gauge.set(whole(count.copied().unwrap_or_default()));
            }
        }
        let via = totals.via;
        let paths = [
            ("flow", via.flow),
            ("repaired", via.repaired),
            ("unicast", via.unicast),
        ];
        for (path, count) in paths {
            raise(&self.updates.get_or_create(&PathLabels { path }), count);
        }
        let broken = totals.violations;
        let kinds = [
            ("missing", broken.missing),
            ("repeated", broken.repeated),
            ("wrong", broken.wrong),
            ("gone", broken.gone),
        ];
        for (kind, count) in kinds {
            raise(&self.violations.get_or_create(&KindLabels { kind }), count);
        }
        let sum = |counts: &BTreeMap<String, u64>| counts.values().sum();
        raise(&self.fall_backs, sum(&events.fall_backs));
        raise(&self.disconnections, sum(&events.disconnections));
        raise(&self.returns, events.returns);
        let Percentiles { p50, p99, max, .. } = latency;
        for (of, ms) in [("p50", p50), ("p99", p99), ("max", max)] {
            let gauge = self.latency.get_or_create(&QuantileLabels { of });
            gauge.set(ms as f64 / 1e3);
        }
        self.registry.text()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::position::{ViaCounts, Violations};

    #[test]
    fn the_list_of_metrics_is_complete() {
        let totals = Totals {
            served: 9,
            refused: 1,
            rungs: [(("lore".to_owned(), Rung::Multicast), 8)].into(),
            via: ViaCounts {
                flow: 3,
                repaired: 2,
                unicast: 1,
            },
            violations: Violations {
                missing: 4,
                ..Violations::default()
            },
        };
        let events = Events {
            fall_backs: [("a".to_owned(), 2), ("b".to_owned(), 3)].into(),
            ..Events::default()
        };
        let latency = Percentiles {
            p50: 3,
            ..Percentiles::default()
        };
        let metrics = Metrics::default();
        let text = metrics.text(&totals, &events, latency).unwrap();
        for line in [
            "flexfeed_swarm_served_receivers 9\n",
            "flexfeed_swarm_receivers{channel=\"lore\",rung=\"multicast\"} 8\n",
            "flexfeed_swarm_receivers{channel=\"lore\",rung=\"unicast\"} 0\n",
            "flexfeed_swarm_updates_total{path=\"repaired\"} 2\n",
            "flexfeed_swarm_violations_total{kind=\"missing\"} 4\n",
            "flexfeed_swarm_fall_backs_total 5\n",
            "flexfeed_swarm_latency_seconds{of=\"p50\"} 0.003\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let again = metrics.text(&totals, &events, latency).unwrap();
        assert_eq!(again, text, "nothing is counted twice");
        let wrong = openmetrics::forms(&exposition::plain(&text), &text);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let families = openmetrics::parse(&text).unwrap();
        let document = include_str!("../../../docs/metrics.md");
        let found = openmetrics::differences(document, "flexfeed_swarm_", &families);
        let table = openmetrics::table(&families).join("\n");
        assert!(
            found.is_empty(),
            "{}\n\nIt should be:\n\n{table}",
            found.join("\n")
        );
    }
}
