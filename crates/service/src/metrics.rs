//! Metrics that all programs have, and their registry.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
pub use prometheus_client::registry::Unit;
use prometheus_client::registry::{Metric, Registry};

/// Gauge of a number that need not be whole.
pub type Real = Gauge<f64, AtomicU64>;

/// Metrics of a program, registered where they are made.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// Returns a registry for names with `prefix`, with the program's version.
    #[must_use]
    pub fn new(prefix: &'static str) -> Self {
        let mut registry = Registry::with_prefix(prefix);
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The program", version);
        Self(registry)
    }

    /// Adds the time of the start, which is now.
    #[must_use]
    pub fn started(mut self) -> Self {
        let started: Real = self.unit("start_timestamp", "Unix time of the start", Unit::Seconds);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        started.set(now.unwrap_or_default().as_secs_f64());
        self
    }

    /// Returns a new metric.
    pub fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    /// Returns a new metric of a unit, which ends its name.
    pub fn unit<M: Metric + Clone + Default>(&mut self, name: &str, help: &str, unit: Unit) -> M {
        let metric = M::default();
        self.0.register_with_unit(name, help, unit, metric.clone());
        metric
    }

    /// Returns the registry, for metrics that exist already.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.0
    }

    /// Returns all metrics as OpenMetrics.
    ///
    /// # Errors
    /// Only if a string cannot be written to.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// Raises a counter to a value counted elsewhere; counters never decrease.
pub fn raise(counter: &Counter, to: u64) {
    counter.inner().fetch_max(to, Ordering::Relaxed);
}
