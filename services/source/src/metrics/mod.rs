//! The page `/metrics`, in the OpenMetrics text format; `docs/metrics.md` lists the metrics.
//! Metrics of a channel have the label `channel`.

/// Declares a struct of metrics with their names, units and help texts, and its `register`.
macro_rules! metrics {
    (
        $(#[$doc:meta])*
        struct $set:ident {
            $($field:ident: $kind:ty = $name:literal $(in $unit:ident)?, $help:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $set {
            $(pub(super) $field: $kind,)*
        }

        impl $set {
            pub(super) fn register(r: &mut Registry) -> Self {
                Self {
                    $($field: registered(r, $name, None$(.or(Some(Unit::$unit)))?, $help),)*
                }
            }
        }
    };
}

mod admissions;
mod channel;
mod counters;
mod labels;
mod records;
mod state_gauges;
mod transport;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flexicast_tokio::source::SourceStatus;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::status::Snapshot;
pub use admissions::Admissions;
use channel::ChannelFamilies;
pub use channel::ChannelMetrics;
use counters::TransportCounters;
use labels::ChannelLabels;
pub use records::{KINDS, RecordMetrics};
use state_gauges::StateGauges;
pub use transport::TransportMetrics;

/// A gauge of a number that need not be whole.
type Real = Gauge<f64, AtomicU64>;

/// A number for each channel.
type Gauges = Family<ChannelLabels, Gauge>;
type Counters = Family<ChannelLabels, Counter>;
type Moments = Family<ChannelLabels, TimeGauge>;

/// A point in time that is absent until it is known: 1970 would look like an outage.
#[derive(Debug, Clone, Default)]
struct TimeGauge {
    seconds: Real,
    known: Arc<AtomicBool>,
}

impl TimeGauge {
    fn set(&self, unix_ms: Option<u64>) {
        if let Some(ms) = unix_ms {
            self.seconds.set(ms as f64 / 1e3);
            self.known.store(true, Ordering::Release);
        }
    }
}

impl EncodeMetric for TimeGauge {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        if self.known.load(Ordering::Acquire) {
            self.seconds.encode(encoder)
        } else {
            Ok(())
        }
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for TimeGauge {
    const TYPE: MetricType = MetricType::Gauge;
}

/// All metrics of the source. Each ingest counts its own events by its [`ChannelMetrics`]; those of
/// the transport are copied from its status by [`Metrics::observe`].
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    state: StateGauges,
    /// Admissions of receivers.
    pub admissions: Admissions,
    /// The console's records.
    pub records: RecordMetrics,
    channels: ChannelFamilies,
    certificate_end: TimeGauge,
    /// Moves and state of the transport.
    pub transport: TransportMetrics,
    /// Held while the present state is copied.
    shown: Mutex<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexfeed_source");
        let r = &mut registry;
        let counters = TransportCounters::register(r);
        let version = [("version", env!("CARGO_PKG_VERSION"))].to_vec();
        r.register("build", "The program", Info::new(version));
        Self {
            state: StateGauges::register(r),
            admissions: Admissions::register(r),
            records: RecordMetrics::register(r),
            channels: ChannelFamilies::register(r),
            certificate_end: registered(
                r,
                "certificate_not_after_timestamp",
                Some(Unit::Seconds),
                "Unix time at which the certificate shown to receivers expires",
            ),
            transport: TransportMetrics::register(r, counters),
            shown: Mutex::new(()),
            registry,
        }
    }
}

impl Metrics {
    /// Returns the metrics of one channel.
    pub fn channel(&self, name: &str) -> ChannelMetrics {
        self.channels.channel(name)
    }

    /// Copies the current state of the transport.
    pub fn observe(&self, status: &SourceStatus) {
        let _whole = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.transport.observe(status);
    }

    /// Returns the text of `/metrics`, with the state of each channel.
    ///
    /// # Errors
    /// The text cannot be made; it is only memory, so this does not happen.
    pub(crate) fn text(&self, seen: &Snapshot) -> Result<String, std::fmt::Error> {
        let _whole = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.show(seen);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Sets the end of the certificate's validity, in Unix seconds.
    pub fn certificate_ends(&self, unix_s: i64) {
        let ms = u64::try_from(unix_s).unwrap_or_default();
        self.certificate_end.set(Some(ms.saturating_mul(1000)));
    }
}

/// Returns a new metric that is part of the page. The page appends the unit to its name.
fn registered<M>(r: &mut Registry, name: &str, unit: Option<Unit>, help: &str) -> M
where
    M: Metric + Clone + Default,
{
    let metric = M::default();
    match unit {
        Some(unit) => r.register_with_unit(name, help, unit, metric.clone()),
        None => r.register(name, help, metric.clone()),
    }
    metric
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
