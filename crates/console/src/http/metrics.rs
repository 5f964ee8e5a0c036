//! `/metrics` in the OpenMetrics text format; listed in `docs/metrics.md`.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use service::metrics::{self, Real, Unit, raise};
use service::places::Limit;

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
    registry: metrics::Metrics,
    answers: Family<ResultLabels, Counter>,
    durations: Histogram,
    sign_ins: Family<ResultLabels, Counter>,
    limits: Family<LimitLabels, Counter>,
    connections: Gauge,
    event_clients: Gauge,
    event_topics: Gauge,
    receivers: Gauge,
    database_up: Gauge,
    data: Real,
}

/// Results of sign-ins.
const SIGN_INS: [&str; 3] = ["ok", "refused", "limited"];

/// Results of requests, by the first digit of their status.
const ANSWERS: [&str; 4] = ["ok", "moved", "refused", "failed"];

impl Default for Metrics {
    fn default() -> Self {
        let buckets = [
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
        ];
        let durations = Histogram::new(buckets);
        let mut r = metrics::Metrics::new("flexfeed_console").started();
        let help = "Time to answer a call of the API, without streams of events";
        r.registry()
            .register_with_unit("call_duration", help, Unit::Seconds, durations.clone());
        let metrics = Self {
            answers: r.add("answers", "HTTP responses, by result"),
            durations,
            sign_ins: r.add("sign_ins", "Sign-in attempts, by result"),
            limits: r.add("limited_clients", "HTTP clients limited, by limit"),
            connections: r.add("connections", "HTTP connections"),
            event_clients: r.add("event_clients", "Clients of event streams"),
            event_topics: r.add(
                "event_topics",
                "Distinct topics that clients of events watch, or watched a moment ago",
            ),
            receivers: r.add("receivers", "Known receivers"),
            database_up: r.add("database_up", "Whether the database answers"),
            data: r.unit(
                "data_timestamp",
                "Unix time at which the data shown was read; 0 before the first read",
                Unit::Seconds,
            ),
            registry: r,
        };
        for result in ANSWERS {
            drop(metrics.answers.get_or_create(&ResultLabels { result }));
        }
        for result in SIGN_INS {
            drop(metrics.sign_ins.get_or_create(&ResultLabels { result }));
        }
        metrics
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

    /// Returns the metrics' current text.
    ///
    /// # Errors
    /// Only if a string cannot be written to.
    pub(super) fn text(&self, site: &Site) -> Result<String, fmt::Error> {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for limit in Limit::ALL {
            let counter = self.limits.get_or_create(&LimitLabels {
                limit: limit.name(),
            });
            raise(&counter, site.places.met(limit));
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
        self.registry.text()
    }
}

/// Unix seconds.
fn seconds(ms: i64) -> f64 {
    let ms = u64::try_from(ms).unwrap_or(0);
    Duration::from_millis(ms).as_secs_f64()
}
