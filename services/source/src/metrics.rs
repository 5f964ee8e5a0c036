//! What `/metrics` shows, in the OpenMetrics text format.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flexicast_tokio::Rung;
use flexicast_tokio::source::{Move, SourceStatus};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::ingest::{FeedState, IngestStatus};

/// What the answer of `/metrics` is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const RUNGS: [Rung; 4] = [Rung::Multicast, Rung::Amt, Rung::Replicated, Rung::Unicast];

/// A gauge of a number that need not be whole.
type Real = Gauge<f64, AtomicU64>;

/// A point in time that is absent until it is known: 1970 would look like an outage.
#[derive(Debug, Clone, Default)]
struct Moment {
    seconds: Real,
    known: Arc<AtomicBool>,
}

impl Moment {
    fn set(&self, unix_ms: Option<u64>) {
        if let Some(ms) = unix_ms {
            self.seconds.set(ms as f64 / 1e3);
            self.known.store(true, Ordering::Release);
        }
    }
}

impl EncodeMetric for Moment {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        if self.known.load(Ordering::Acquire) {
            self.seconds.encode(encoder)
        } else {
            Ok(())
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// All metrics of the source. The ingest counts its own as things happen; those of the transport
/// are taken over from its status by [`Metrics::observe`].
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Updates stored and handed to the transport.
    pub updates: Counter,
    /// New or changed entries that were too large to be sent.
    pub oversized: Counter,
    /// Polls by how they ended.
    pub polls: Family<PollLabels, Counter>,
    /// How long fetching took.
    pub poll_seconds: Histogram,
    /// Documents that shared no entry with the one before.
    pub suspected_gaps: Counter,
    /// Failed attempts to store something.
    pub store_failures: Counter,
    head: Gauge,
    feed_state: Family<StateLabels, Gauge>,
    last_poll: Moment,
    last_success: Moment,
    receivers: Family<RungLabels, Gauge>,
    receiver_lag: Gauge,
    moves: Family<MoveLabels, Counter>,
    transport: Transport,
    last_move: Mutex<Option<Move>>,
}

/// Counters that the transport keeps.
#[derive(Debug, Default)]
struct Transport {
    flow_members: Gauge,
    flow_packets: Counter,
    flow_bytes: Counter,
    flow_outstanding: Gauge,
    unicast_bytes: Counter,
    connections: Counter,
    refused: Counter,
    violations: Counter,
    over_limit: Counter,
    stray_datagrams: Counter,
    resets: Counter,
}

/// How a poll ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PollLabels {
    /// A word of [`FeedState`].
    pub result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RungLabels {
    rung: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MoveLabels {
    from: String,
    to: String,
    cause: String,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("flexfeed_source"),
            updates: Counter::default(),
            oversized: Counter::default(),
            polls: Family::default(),
            // From a server next door to one that just makes the time limit.
            poll_seconds: Histogram::new(exponential_buckets(0.005, 2.0, 13)),
            suspected_gaps: Counter::default(),
            store_failures: Counter::default(),
            head: Gauge::default(),
            feed_state: Family::default(),
            last_poll: Moment::default(),
            last_success: Moment::default(),
            receivers: Family::default(),
            receiver_lag: Gauge::default(),
            moves: Family::default(),
            transport: Transport::default(),
            last_move: Mutex::new(None),
        };
        metrics.register_ingest();
        metrics.register_transport();
        metrics
    }
}

impl Metrics {
    fn register_ingest(&mut self) {
        let r = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))].to_vec();
        r.register("build", "The program", Info::new(version));
        let help = "Updates stored and published since the start";
        r.register("updates", help, self.updates.clone());
        let help = "New or changed entries that were too large to be sent";
        r.register("updates_oversized", help, self.oversized.clone());
        let help = "The seq of the last stored update";
        r.register("head_seq", help, self.head.clone());
        let help = "Polls of the feed by result";
        r.register("polls", help, self.polls.clone());
        let help = "Time to fetch the feed";
        let unit = Unit::Seconds;
        r.register_with_unit("poll_duration", help, unit, self.poll_seconds.clone());
        let help = "Unix time of the last poll's end";
        let unit = Unit::Seconds;
        r.register_with_unit("last_poll_timestamp", help, unit, self.last_poll.clone());
        let help = "Unix time of the end of the last poll that could read the feed";
        let (name, unit) = ("feed_last_success_timestamp", Unit::Seconds);
        r.register_with_unit(name, help, unit, self.last_success.clone());
        let help = "How the last poll went: 1 for the state that holds";
        r.register("feed_state", help, self.feed_state.clone());
        let help = "Documents that shared no entry with the one before: entries may be missing";
        r.register("suspected_gaps", help, self.suspected_gaps.clone());
        let help = "Failed attempts to store updates";
        r.register("store_failures", help, self.store_failures.clone());
    }

    fn register_transport(&mut self) {
        let r = &mut self.registry;
        let t = &self.transport;
        let help = "Connected receivers by rung";
        r.register("receivers", help, self.receivers.clone());
        let help = "Updates between the head and the last confirmed cursor furthest behind it, of connected receivers";
        r.register("receiver_lag_max_updates", help, self.receiver_lag.clone());
        let help = "Moves of receivers between rungs";
        r.register("moves", help, self.moves.clone());
        let help = "Receivers that owe acknowledgements on the flow";
        r.register("flow_members", help, t.flow_members.clone());
        let help = "Packets sent on the flow";
        r.register("flow_packets", help, t.flow_packets.clone());
        let help = "UDP payload sent on the flow";
        r.register_with_unit("flow", help, Unit::Bytes, t.flow_bytes.clone());
        let help = "Packets of the flow that somebody still owes an acknowledgement for";
        r.register("flow_outstanding_packets", help, t.flow_outstanding.clone());
        let help = "Updates handed to the receivers' own connections, repairs included";
        r.register_with_unit("unicast", help, Unit::Bytes, t.unicast_bytes.clone());
        let help = "Completed handshakes";
        r.register("connections", help, t.connections.clone());
        let help = "Receivers turned away, for example with a wrong token";
        r.register("refused", help, t.refused.clone());
        let help = "Connections closed because the receiver violated the protocol";
        r.register("protocol_violations", help, t.violations.clone());
        let help = "Connections turned away because there were too many";
        r.register("over_limit", help, t.over_limit.clone());
        let help = "Datagrams on the QUIC port that belong to nothing";
        r.register("stray_datagrams", help, t.stray_datagrams.clone());
        let help = "Stateless resets sent";
        r.register("stateless_resets", help, t.resets.clone());
    }

    /// Takes over what the transport has seen. Call it often enough that no more moves happen in
    /// between than a status holds.
    pub fn observe(&self, status: &SourceStatus) {
        for rung in RUNGS {
            let rung = rung.to_string();
            let count = status.receivers.iter().filter(|r| r.rung == rung).count();
            self.receivers
                .get_or_create(&RungLabels { rung })
                .set(whole(count as u64));
        }
        // One that has just connected has not said yet how far it is.
        let cursors = status.receivers.iter().filter_map(|r| r.cursor);
        let lags = cursors.map(|cursor| status.head.saturating_sub(cursor));
        self.receiver_lag.set(whole(lags.max().unwrap_or(0)));
        let t = &self.transport;
        if let Some(flow) = &status.flow {
            t.flow_members.set(whole(flow.members as u64));
            t.flow_outstanding.set(whole(flow.outstanding as u64));
            raise(&t.flow_packets, flow.packets);
            raise(&t.flow_bytes, flow.bytes);
        }
        let counters = &status.counters;
        raise(&t.unicast_bytes, counters.unicast_bytes);
        raise(&t.connections, counters.connections);
        raise(&t.refused, counters.refused);
        raise(&t.violations, counters.violations);
        raise(&t.over_limit, counters.over_limit);
        raise(&t.stray_datagrams, counters.stray_datagrams);
        raise(&t.resets, counters.resets);
        self.count_moves(&status.moves);
    }

    /// Counts those of the last moves that were not there the last time.
    fn count_moves(&self, moves: &[Move]) {
        let Ok(mut last) = self.last_move.lock() else {
            return;
        };
        let counted = last.as_ref().and_then(|last| {
            let same =
                |m: &Move| (m.at_ms, &m.receiver, &m.to) == (last.at_ms, &last.receiver, &last.to);
            moves.iter().rposition(same)
        });
        let fresh = moves.iter().skip(counted.map_or(0, |at| at + 1));
        for step in fresh {
            let labels = MoveLabels {
                from: step.from.clone(),
                to: step.to.clone(),
                cause: step.cause.clone(),
            };
            self.moves.get_or_create(&labels).inc();
        }
        if let Some(newest) = moves.last() {
            *last = Some(newest.clone());
        }
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// The text cannot be made; it is only memory, so this does not happen.
    pub fn text(&self, ingest: &IngestStatus) -> Result<String, std::fmt::Error> {
        self.head.set(whole(ingest.head));
        self.last_poll.set(ingest.last_poll_ms);
        self.last_success.set(ingest.last_success_ms);
        let (present, _) = ingest.feed();
        for state in FeedState::ALL {
            let labels = StateLabels {
                state: state.word(),
            };
            self.feed_state
                .get_or_create(&labels)
                .set(i64::from(state == present));
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Brings a counter up to what the transport counted; counters never go down.
fn raise(counter: &Counter, to: u64) {
    counter.inner().fetch_max(to, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use flexicast_tokio::source::{Counters, FlowStatus, ReceiverStatus};

    fn step(at_ms: u64, to: &str) -> Move {
        let from = if to == "unicast" {
            "multicast"
        } else {
            "unicast"
        };
        Move {
            at_ms,
            receiver: "r".into(),
            name: "r1".into(),
            from: from.into(),
            to: to.into(),
            cause: "joined".into(),
        }
    }

    fn receiver(rung: &str, cursor: Option<u64>) -> ReceiverStatus {
        ReceiverStatus {
            id: String::new(),
            name: String::new(),
            addr: String::new(),
            rung: rung.into(),
            since_ms: 0,
            cursor,
            backlog: 0,
            rtt_ms: 0.0,
        }
    }

    fn value(text: &str, name: &str) -> Option<f64> {
        let line = text.lines().find(|l| l.split(' ').next() == Some(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    #[test]
    fn what_the_transport_saw_is_shown() {
        let metrics = Metrics::default();
        let status = SourceStatus {
            head: 10,
            flow: Some(FlowStatus {
                id: String::new(),
                group: String::new(),
                source: None,
                next_pn: 7,
                members: 2,
                packets: 7,
                bytes: 700,
                outstanding: 1,
            }),
            receivers: vec![
                receiver("multicast", Some(9)),
                receiver("multicast", Some(10)),
                receiver("unicast", Some(4)),
                receiver("unicast", None),
            ],
            moves: vec![],
            counters: Counters {
                refused: 3,
                ..Counters::default()
            },
        };
        metrics.observe(&status);
        metrics.updates.inc_by(5);
        let ingest = IngestStatus {
            head: 10,
            feed: FeedState::NotAFeed,
            last_poll_ms: Some(1500),
            last_success_ms: Some(500),
            ..IngestStatus::default()
        };
        let text = metrics.text(&ingest).unwrap();
        for (name, expected) in [
            ("flexfeed_source_updates_total", 5.0),
            ("flexfeed_source_head_seq", 10.0),
            ("flexfeed_source_receivers{rung=\"multicast\"}", 2.0),
            ("flexfeed_source_receivers{rung=\"unicast\"}", 2.0),
            ("flexfeed_source_receivers{rung=\"amt\"}", 0.0),
            ("flexfeed_source_receiver_lag_max_updates", 6.0),
            ("flexfeed_source_flow_packets_total", 7.0),
            ("flexfeed_source_flow_bytes_total", 700.0),
            ("flexfeed_source_flow_members", 2.0),
            ("flexfeed_source_refused_total", 3.0),
            ("flexfeed_source_feed_state{state=\"not-a-feed\"}", 1.0),
            ("flexfeed_source_feed_state{state=\"ok\"}", 0.0),
            ("flexfeed_source_last_poll_timestamp_seconds", 1.5),
            ("flexfeed_source_feed_last_success_timestamp_seconds", 0.5),
            ("flexfeed_source_suspected_gaps_total", 0.0),
        ] {
            assert_eq!(value(&text, name), Some(expected), "{name} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        // Each metric is explained.
        let count = |word: &str| text.lines().filter(|l| l.starts_with(word)).count();
        assert_eq!(count("# HELP"), count("# TYPE"));
    }

    #[test]
    fn times_are_absent_until_they_are_known() {
        let metrics = Metrics::default();
        let poll = "flexfeed_source_last_poll_timestamp_seconds";
        let success = "flexfeed_source_feed_last_success_timestamp_seconds";
        let mut ingest = IngestStatus::default();
        let text = metrics.text(&ingest).unwrap();
        assert_eq!((value(&text, poll), value(&text, success)), (None, None));
        ingest.last_poll_ms = Some(2000);
        let text = metrics.text(&ingest).unwrap();
        assert_eq!(
            (value(&text, poll), value(&text, success)),
            (Some(2.0), None)
        );
    }

    #[test]
    fn every_move_counts_once() {
        let metrics = Metrics::default();
        let moves = |steps: &[(u64, &str)]| {
            let steps: Vec<Move> = steps.iter().map(|(at, to)| step(*at, to)).collect();
            metrics.count_moves(&steps);
        };
        moves(&[]);
        moves(&[(1, "multicast"), (2, "unicast")]);
        moves(&[(1, "multicast"), (2, "unicast")]);
        moves(&[(2, "unicast"), (3, "multicast")]);
        // So many in between that the last counted one is gone.
        moves(&[(8, "unicast"), (9, "multicast")]);
        let labels = |from: &str, to: &str| MoveLabels {
            from: from.into(),
            to: to.into(),
            cause: "joined".into(),
        };
        let count = |from, to| metrics.moves.get_or_create(&labels(from, to)).get();
        assert_eq!(count("unicast", "multicast"), 3);
        assert_eq!(count("multicast", "unicast"), 2);
    }
}
