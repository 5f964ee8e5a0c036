//! `/metrics` in the OpenMetrics text format; listed in `docs/metrics.md`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use service::places::Limit;

use crate::clock::now_ms;
use crate::site::Site;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: &'static str,
}

/// All metrics of the console.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    answers: Family<ResultLabels, Counter>,
    durations: Histogram,
    sign_ins: Family<ResultLabels, Counter>,
    limits: Family<LimitLabels, Counter>,
    connections: Gauge,
    event_clients: Gauge,
    event_topics: Gauge,
    receivers: Gauge,
    database_up: Gauge,
    data: Gauge<f64, AtomicU64>,
}

/// Results of sign-ins.
const SIGN_INS: [&str; 3] = ["ok", "refused", "limited"];

/// Results of requests, by the first digit of their status.
const ANSWERS: [&str; 4] = ["ok", "moved", "refused", "failed"];

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexfeed_console");
        let buckets = [
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
        ];
        let metrics = Self {
            answers: Family::default(),
            durations: Histogram::new(buckets),
            sign_ins: Family::default(),
            limits: Family::default(),
            connections: Gauge::default(),
            event_clients: Gauge::default(),
            event_topics: Gauge::default(),
            receivers: Gauge::default(),
            database_up: Gauge::default(),
            data: Gauge::default(),
            registry: Registry::default(),
        };
        let r = &mut registry;
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "The program", version);
        let started: Gauge<f64, AtomicU64> = Gauge::default();
        started.set(seconds(now_ms()));
        let help = "Unix time of the start";
        r.register_with_unit("start_timestamp", help, Unit::Seconds, started);
        let help = "HTTP responses, by result";
        r.register("answers", help, metrics.answers.clone());
        let help = "Time to answer a call of the API, without streams of events";
        let durations = metrics.durations.clone();
        r.register_with_unit("call_duration", help, Unit::Seconds, durations);
        let help = "Sign-in attempts, by result";
        r.register("sign_ins", help, metrics.sign_ins.clone());
        let help = "HTTP clients limited, by limit";
        r.register("limited_clients", help, metrics.limits.clone());
        let help = "HTTP connections";
        r.register("connections", help, metrics.connections.clone());
        let help = "Clients of event streams";
        r.register("event_clients", help, metrics.event_clients.clone());
        let help = "Distinct topics that clients of events watch, or watched a moment ago";
        r.register("event_topics", help, metrics.event_topics.clone());
        let help = "Known receivers";
        r.register("receivers", help, metrics.receivers.clone());
        let help = "Whether the database answers";
        r.register("database_up", help, metrics.database_up.clone());
        let help = "Unix time at which the data shown was read; 0 before the first read";
        r.register_with_unit("data_timestamp", help, Unit::Seconds, metrics.data.clone());
        for result in ANSWERS {
            drop(metrics.answers.get_or_create(&ResultLabels { result }));
        }
        for result in SIGN_INS {
            drop(metrics.sign_ins.get_or_create(&ResultLabels { result }));
        }
        Self {
            registry,
            ..metrics
        }
    }
}

impl Metrics {
    /// Counts an answer with its status; `took` if it was a call of the API.
    pub(super) fn answered(&self, status: u16, took: Option<Duration>) {
        let [ok, moved, refused, failed] = ANSWERS;
        let result = match status {
            ..300 => ok,
            300..400 => moved,
            400..500 => refused,
            _ => failed,
        };
        self.answers.get_or_create(&ResultLabels { result }).inc();
        if let Some(took) = took {
            self.durations.observe(took.as_secs_f64());
        }
    }

    /// Counts an attempt to sign in: `ok`, `refused` or `limited`.
    pub(crate) fn sign_in(&self, result: &'static str) {
        self.sign_ins.get_or_create(&ResultLabels { result }).inc();
    }

    /// All of it, as it is now.
    ///
    /// # Errors
    /// Only if a string cannot be written to.
    pub(super) fn text(&self, site: &Site) -> Result<String, fmt::Error> {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for limit in Limit::ALL {
            let counter = self.limits.get_or_create(&LimitLabels {
                limit: limit.name(),
            });
            let met = site.places.met(limit);
            counter.inner().fetch_max(met, Ordering::Relaxed);
        }
        let connections = site.places.connections();
        self.connections
            .set(i64::try_from(connections).unwrap_or(i64::MAX));
        self.event_clients.set(count(site.hub.clients()));
        self.event_topics.set(count(site.hub.topics()));
        self.receivers.set(count(site.fleet().len()));
        let up = !site.health.is_failing() && site.board().as_of_ms.is_some();
        self.database_up.set(i64::from(up));
        self.data.set(seconds(site.board().as_of_ms.unwrap_or(0)));
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Unix seconds.
fn seconds(ms: i64) -> f64 {
    let ms = u64::try_from(ms).unwrap_or(0);
    Duration::from_millis(ms).as_secs_f64()
}
