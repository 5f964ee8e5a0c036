//! The page `/metrics`, in the OpenMetrics text format; `docs/metrics.md` lists the metrics.
//! Metrics of a channel have the label `channel`.

mod admissions;
mod counters;
mod labels;
mod records;
mod state_gauges;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flexicast_tokio::Rung;
use flexicast_tokio::source::{
    FlowStatus, History, HistoryEventKind, ReceiverChannel, SourceStatus,
};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

use crate::status::{FeedState, Snapshot};
pub use admissions::Admissions;
use counters::TransportCounters;
use labels::{ChannelLabels, MoveLabels, PollLabels, RungLabels, of};
pub use records::{KINDS, RecordMetrics};
use state_gauges::StateGauges;

const RUNGS: [Rung; 4] = [Rung::Multicast, Rung::Amt, Rung::Replicated, Rung::Unicast];

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
    updates: Counters,
    oversized: Counters,
    polls: Family<PollLabels, Counter>,
    poll_seconds: Family<ChannelLabels, Histogram, fn() -> Histogram>,
    suspected_gaps: Counters,
    gap_entries: Counters,
    open_gaps: Counters,
    store_failures: Counters,
    breakdowns: Counters,
    certificate_end: TimeGauge,
    places: StateGauges,
    admissions: Admissions,
    records: RecordMetrics,
    flows: Flows,
    receivers: Family<RungLabels, Gauge>,
    connected: Gauge,
    receiver_lag: Gauges,
    moves: Family<MoveLabels, Counter>,
    transport: TransportCounters,
    /// Number of the last event that was counted.
    counted: Mutex<u64>,
    /// Held while the present state is copied.
    shown: Mutex<()>,
}

/// Metrics of one channel's ingest.
#[derive(Debug, Clone)]
pub struct ChannelMetrics {
    channel: String,
    /// Updates stored and handed to the transport.
    pub updates: Counter,
    /// New or changed entries that were too large to be sent.
    pub oversized: Counter,
    /// Duration of fetches.
    pub poll_seconds: Histogram,
    /// Documents that shared no entry with the one before.
    pub suspected_gaps: Counter,
    /// Entries that were found in suspected gaps, or arrived with old dates.
    pub gap_entries: Counter,
    /// Suspected gaps that could not be filled wholly.
    pub open_gaps: Counter,
    /// Failed attempts to store something.
    pub store_failures: Counter,
    /// Internal errors that skipped an entry or restarted a feed's ingest.
    pub breakdowns: Counter,
    polls: Family<PollLabels, Counter>,
}

impl ChannelMetrics {
    /// Counts a poll by its result.
    pub fn polled(&self, result: FeedState) {
        self.polls.get_or_create(&self.poll_labels(result)).inc();
    }

    /// Returns the number of polls with this result.
    #[cfg(test)]
    pub fn polls(&self, result: FeedState) -> u64 {
        self.polls.get_or_create(&self.poll_labels(result)).get()
    }

    fn poll_labels(&self, result: FeedState) -> PollLabels {
        PollLabels {
            channel: self.channel.clone(),
            result: result.word(),
        }
    }
}

/// Metrics of the channels' flows.
#[derive(Debug, Default)]
struct Flows {
    members: Gauges,
    replicas: Gauges,
    packets: Counters,
    bytes: Counters,
    outstanding: Gauges,
    key_sequence: Gauges,
}

/// Returns buckets from a server next door to one that just meets the timeout.
fn poll_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 13))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexfeed_source");
        let transport = TransportCounters::register(&mut registry);
        let mut metrics = Self {
            registry,
            updates: Family::default(),
            oversized: Family::default(),
            polls: Family::default(),
            poll_seconds: Family::new_with_constructor(poll_buckets),
            suspected_gaps: Family::default(),
            gap_entries: Family::default(),
            open_gaps: Family::default(),
            store_failures: Family::default(),
            breakdowns: Family::default(),
            certificate_end: TimeGauge::default(),
            places: StateGauges::default(),
            admissions: Admissions::default(),
            records: RecordMetrics::default(),
            flows: Flows::default(),
            receivers: Family::default(),
            connected: Gauge::default(),
            receiver_lag: Family::default(),
            moves: Family::default(),
            transport,
            counted: Mutex::new(0),
            shown: Mutex::new(()),
        };
        metrics.register_channels();
        metrics.register_transport();
        metrics
    }
}

impl Metrics {
    fn register_channels(&mut self) {
        let r = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))].to_vec();
        r.register("build", "The program", Info::new(version));
        self.places.register(r);
        self.admissions.register(r);
        self.records.register(r);
        let help = "Updates published since the start";
        r.register("updates", help, self.updates.clone());
        let help = "New or changed entries too large to be sent";
        r.register("updates_oversized", help, self.oversized.clone());
        let help = "Polls of the channel's feeds, by result";
        r.register("polls", help, self.polls.clone());
        let help = "Time to fetch a feed";
        let unit = Unit::Seconds;
        r.register_with_unit("poll_duration", help, unit, self.poll_seconds.clone());
        let help =
            "Documents without an entry in common with the one before: entries may be missing";
        r.register("suspected_gaps", help, self.suspected_gaps.clone());
        let help = "Entries found in suspected gaps, or arrived with old dates";
        r.register("gap_entries", help, self.gap_entries.clone());
        let help = "Suspected gaps that could not be filled completely: entries may be missing";
        r.register("open_gaps", help, self.open_gaps.clone());
        let help = "Failed attempts to store updates";
        r.register("store_failures", help, self.store_failures.clone());
        let help = "Internal errors that skipped an entry or restarted a feed's ingest";
        r.register("breakdowns", help, self.breakdowns.clone());
        let help = "Unix time at which the certificate shown to receivers expires";
        let (name, end) = ("certificate_not_after_timestamp", &self.certificate_end);
        r.register_with_unit(name, help, Unit::Seconds, end.clone());
    }

    fn register_transport(&mut self) {
        let r = &mut self.registry;
        let f = &self.flows;
        let help = "Receivers of the channel by rung";
        r.register("receivers", help, self.receivers.clone());
        let help = "Connected receivers, of any channel";
        r.register("connected_receivers", help, self.connected.clone());
        let help =
            "Updates between the head and the lowest confirmed cursor of a connected receiver";
        r.register("receiver_lag_max_updates", help, self.receiver_lag.clone());
        let help = "Moves of receivers between rungs";
        r.register("moves", help, self.moves.clone());
        let help = "Receivers that owe acknowledgements on the flow";
        r.register("flow_members", help, f.members.clone());
        let help = "Receivers that the flow's packets are replicated to";
        r.register("flow_replicas", help, f.replicas.clone());
        let help = "Packets sent on the flow, each counted once";
        r.register("flow_packets", help, f.packets.clone());
        let help = "UDP payload sent on the flow, each packet counted once";
        r.register_with_unit("flow", help, Unit::Bytes, f.bytes.clone());
        let help = "Flow packets with an acknowledgement outstanding";
        r.register("flow_outstanding_packets", help, f.outstanding.clone());
        let help = "Key epoch in use on the flow";
        r.register("flow_key_sequence", help, f.key_sequence.clone());
    }

    /// Returns the metrics of a channel's ingest.
    pub fn channel(&self, name: &str) -> ChannelMetrics {
        let labels = of(name);
        ChannelMetrics {
            channel: name.to_owned(),
            updates: self.updates.get_or_create_owned(&labels),
            oversized: self.oversized.get_or_create_owned(&labels),
            poll_seconds: self.poll_seconds.get_or_create_owned(&labels),
            suspected_gaps: self.suspected_gaps.get_or_create_owned(&labels),
            gap_entries: self.gap_entries.get_or_create_owned(&labels),
            open_gaps: self.open_gaps.get_or_create_owned(&labels),
            store_failures: self.store_failures.get_or_create_owned(&labels),
            breakdowns: self.breakdowns.get_or_create_owned(&labels),
            polls: self.polls.clone(),
        }
    }

    /// Copies the current state of the transport.
    pub fn observe(&self, status: &SourceStatus) {
        let _whole = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.receivers.clear();
        self.receiver_lag.clear();
        self.flows.clear();
        for channel in &status.channels {
            let name = channel.channel.as_str();
            let here = |c: &&ReceiverChannel| c.channel == name;
            let receivers: Vec<&ReceiverChannel> = status
                .receivers
                .iter()
                .filter_map(|r| r.channels.iter().find(here))
                .collect();
            self.observe_receivers(name, channel.head, &receivers);
            if let Some(flow) = &channel.flow {
                self.flows.observe(name, flow);
            }
        }
        self.connected.set(whole(status.receivers.len() as u64));
        self.transport.observe(&status.counters);
    }

    fn observe_receivers(&self, name: &str, head: u64, receivers: &[&ReceiverChannel]) {
        for rung in RUNGS {
            let rung = rung.to_string();
            let count = receivers.iter().filter(|r| r.rung == rung).count();
            let labels = RungLabels {
                channel: name.to_owned(),
                rung,
            };
            self.receivers
                .get_or_create(&labels)
                .set(whole(count as u64));
        }
        // A receiver that has just connected has not reported its cursor yet.
        let cursors = receivers.iter().filter_map(|r| r.cursor);
        let lags = cursors.map(|cursor| head.saturating_sub(cursor));
        self.receiver_lag
            .get_or_create(&of(name))
            .set(whole(lags.max().unwrap_or(0)));
    }

    /// Returns the number of the last counted event, after which the next history starts.
    pub fn counted(&self) -> u64 {
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the moves of a part of the transport's history, each once, even if histories overlap.
    pub fn count(&self, history: &History) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        for event in &history.events {
            if event.number <= *counted {
                continue;
            }
            *counted = event.number;
            if let HistoryEventKind::Moved(step) | HistoryEventKind::Tried(step) = &event.what {
                let labels = MoveLabels {
                    channel: step.channel.clone(),
                    from: step.from.clone(),
                    to: step.to.clone(),
                    cause: step.cause.clone(),
                };
                self.moves.get_or_create(&labels).inc();
            }
        }
    }

    /// Returns the text of `/metrics`, with the state of each channel.
    ///
    /// # Errors
    /// The text cannot be made; it is only memory, so this does not happen.
    pub(crate) fn text(&self, seen: &Snapshot) -> Result<String, std::fmt::Error> {
        let _whole = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.places.show(seen);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Sets the end of the certificate's validity, in Unix seconds.
    pub fn certificate_ends(&self, unix_s: i64) {
        let ms = u64::try_from(unix_s).unwrap_or_default();
        self.certificate_end.set(Some(ms.saturating_mul(1000)));
    }

    /// Returns the metrics of the console's records.
    pub fn records(&self) -> RecordMetrics {
        self.records.clone()
    }

    /// Returns the metrics of admissions.
    pub fn admissions(&self) -> Admissions {
        self.admissions.clone()
    }
}

impl Flows {
    /// Clears the state before the present one is copied: flows come and go.
    fn clear(&self) {
        for gauges in [&self.members, &self.replicas, &self.outstanding] {
            gauges.clear();
        }
        self.key_sequence.clear();
    }

    fn observe(&self, channel: &str, flow: &FlowStatus) {
        let labels = of(channel);
        let set = |gauge: &Gauges, to: usize| {
            gauge.get_or_create(&labels).set(whole(to as u64));
        };
        set(&self.members, flow.members);
        set(&self.replicas, flow.replicas);
        set(&self.outstanding, flow.outstanding);
        self.key_sequence
            .get_or_create(&labels)
            .set(whole(flow.key_sequence));
        raise(&self.packets.get_or_create(&labels), flow.packets);
        raise(&self.bytes.get_or_create(&labels), flow.bytes);
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Raises a counter to the transport's value; counters never decrease.
fn raise(counter: &Counter, to: u64) {
    counter.inner().fetch_max(to, Ordering::Relaxed);
}
