//! Metrics of the console's records and of operators' commands.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::labels::{CommandLabels, KindLabels};
use super::whole;

/// Kinds of rows, as `flexfeed_source_records_dropped_total` names them.
pub const KINDS: [&str; 6] = [
    "states", "moves", "sessions", "progress", "samples", "feeds",
];

/// The known commands, and a word for all others: labels are not chosen by clients.
pub(super) const COMMANDS: [&str; 5] = ["disconnect", "drain", "refresh-feed", "rekey", "other"];
pub(super) const RESULTS: [&str; 2] = ["done", "failed"];

/// Metrics of the console's records. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RecordMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    written: Family<KindLabels, Counter>,
    dropped: Family<KindLabels, Counter>,
    waiting: Family<KindLabels, Gauge>,
    failures: Counter,
    seconds: Histogram,
    commands: Family<CommandLabels, Counter>,
}

impl Default for RecordMetrics {
    fn default() -> Self {
        let inner = Inner {
            written: Family::default(),
            dropped: Family::default(),
            waiting: Family::default(),
            failures: Counter::default(),
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            commands: Family::default(),
        };
        for kind in KINDS {
            let labels = KindLabels { kind };
            drop(inner.written.get_or_create(&labels));
            drop(inner.dropped.get_or_create(&labels));
            drop(inner.waiting.get_or_create(&labels));
        }
        for kind in COMMANDS {
            for result in RESULTS {
                drop(
                    inner
                        .commands
                        .get_or_create(&CommandLabels { kind, result }),
                );
            }
        }
        Self(Arc::new(inner))
    }
}

impl RecordMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        let records = Self::default();
        let inner = &records.0;
        let help = "Rows written for the console";
        r.register("records_written", help, inner.written.clone());
        let help = "Rows for the console dropped because the database was away too long, another \
            source took over, or too many came at once";
        r.register("records_dropped", help, inner.dropped.clone());
        let help = "Rows for the console waiting to be written";
        r.register("records_waiting", help, inner.waiting.clone());
        let help = "Failed attempts to write rows for the console";
        r.register("records_failures", help, inner.failures.clone());
        let help = "Time to write rows for the console, failed attempts included";
        let (name, unit) = ("records_write_duration", Unit::Seconds);
        r.register_with_unit(name, help, unit, inner.seconds.clone());
        let help = "Operators' commands to this source, by result";
        r.register("commands", help, inner.commands.clone());
        records
    }

    fn add(family: &Family<KindLabels, Counter>, counts: [usize; KINDS.len()]) {
        for (kind, count) in KINDS.into_iter().zip(counts) {
            family
                .get_or_create(&KindLabels { kind })
                .inc_by(count as u64);
        }
    }

    /// Counts written rows of each kind.
    pub fn written(&self, counts: [usize; KINDS.len()]) {
        Self::add(&self.0.written, counts);
    }

    /// Counts dropped rows of a kind.
    pub fn dropped(&self, kind: &'static str, count: usize) {
        let counter = self.0.dropped.get_or_create(&KindLabels { kind });
        counter.inc_by(count as u64);
    }

    /// Sets the number of pending rows of each kind.
    pub fn waiting(&self, counts: [usize; KINDS.len()]) {
        for (kind, count) in KINDS.into_iter().zip(counts) {
            let gauge = self.0.waiting.get_or_create(&KindLabels { kind });
            gauge.set(whole(count as u64));
        }
    }

    /// Counts a failed write.
    pub fn failed(&self) {
        self.0.failures.inc();
    }

    /// Records the duration of a write.
    pub fn took(&self, time: Duration) {
        self.0.seconds.observe(time.as_secs_f64());
    }

    /// Counts a command by its result.
    pub fn command(&self, kind: &str, done: bool) {
        let kind = COMMANDS.into_iter().find(|known| *known == kind);
        let labels = CommandLabels {
            kind: kind.unwrap_or("other"),
            result: if done { "done" } else { "failed" },
        };
        self.0.commands.get_or_create(&labels).inc();
    }

    /// Returns the number of failed writes.
    #[cfg(test)]
    pub fn failures(&self) -> u64 {
        self.0.failures.get()
    }

    /// Returns the numbers of dropped and of written rows of a kind.
    #[cfg(test)]
    pub fn counted(&self, kind: &'static str) -> (u64, u64) {
        let labels = KindLabels { kind };
        let of = |family: &Family<KindLabels, Counter>| family.get_or_create(&labels).get();
        (of(&self.0.dropped), of(&self.0.written))
    }
}
