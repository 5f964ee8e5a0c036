//! Metrics of the transport, copied from its status and counted from its history.

use std::sync::{Mutex, PoisonError};

use flexicast_tokio::Rung;
use flexicast_tokio::source::{
    BreakerState, FlowStatus, History, HistoryEventKind, LoadStatus, ReceiverChannel, SourceStatus,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use service::metrics::raise;

use super::counters::TransportCounters;
use super::labels::{MoveLabels, RungLabels, ShardLabels, of};
use super::{Counters, Gauges, Real, registered, whole};

pub(super) const RUNGS: [Rung; 4] = [Rung::Multicast, Rung::Amt, Rung::Replicated, Rung::Unicast];

/// Metrics of the transport.
#[derive(Debug)]
pub struct TransportMetrics {
    receivers: Receivers,
    flows: Flows,
    load: Load,
    counters: TransportCounters,
    /// Number of the last event that was counted.
    counted: Mutex<u64>,
}

metrics! {
    /// Metrics of the receivers.
    struct Receivers {
        by_rung: Family<RungLabels, Gauge> = "receivers", "Receivers of the channel by rung";
        connected: Gauge = "connected_receivers", "Connected receivers, of any channel";
        lag: Gauges = "receiver_lag_max_updates",
            "Updates between the head and the lowest confirmed cursor of a connected receiver";
        by_shard: Family<ShardLabels, Gauge> = "shard_sessions",
            "Receivers' connections of the shard";
        moves: Family<MoveLabels, Counter> = "moves", "Moves of receivers between rungs";
    }
}

metrics! {
    /// Metrics of the channels' flows.
    struct Flows {
        members: Gauges = "flow_members", "Receivers that owe acknowledgements on the flow";
        replication_queue: Gauge = "replication_queue_packets",
            "Flow packets that wait to be replicated, for the thread with the longest queue";
        replicas: Gauges = "flow_replicas", "Receivers that the flow's packets are replicated to";
        packets: Counters = "flow_packets", "Packets sent on the flow, each counted once";
        bytes: Counters = "flow" in Bytes, "UDP payload sent on the flow, each packet counted once";
        ecn_ce: Counters = "flow_ecn_ce_packets",
            "Flow packets that receivers reported as marked by ECN, counted for each receiver";
        repair_symbols: Counters = "flow_repair_symbols",
            "Repair symbols sent, to rebuild lost packets from; on connections counted for each";
        rebuilt: Counters = "flow_rebuilt_packets",
            "Lost flow packets that receivers rebuilt, counted for each: repairs saved";
        outstanding: Gauges = "flow_outstanding_packets",
            "Flow packets with an acknowledgement outstanding";
        key_sequence: Gauges = "flow_key_sequence", "Key epoch in use on the flow";
        rate: Gauges = "flow_rate_bytes_per_second",
            "Rate at which the flow may be sent now; absent without a limit";
        limited: Gauges = "flow_rate_limited",
            "Whether one receiver alone limits the rate of the flow";
        packet_size: Gauges = "flow_packet_size" in Bytes,
            "UDP payload of a full packet of the flow, which all members' paths take";
        narrow: Gauges = "flow_narrow_members",
            "Receivers whose paths do not take larger packets of the flow";
        breaker: Gauges = "flow_breaker",
            "State of the flow's circuit breaker: 0 closed, 1 halved, 2 open";
    }
}

metrics! {
    /// Metrics of the source's lateness.
    struct Load {
        overloaded: Gauge = "overloaded", "Whether the source cannot keep up";
        lag: Real = "engine_lag" in Seconds,
            "Longest lateness of the source with what was due, in the last second";
        wait: Real = "publish_wait" in Seconds,
            "Longest wait of an update for the transport, in the last second";
    }
}

impl TransportMetrics {
    pub(super) fn register(r: &mut Registry, counters: TransportCounters) -> Self {
        Self {
            receivers: Receivers::register(r),
            flows: Flows::register(r),
            load: Load::register(r),
            counters,
            counted: Mutex::new(0),
        }
    }

    /// Copies the current state of the transport.
    pub(super) fn observe(&self, status: &SourceStatus) {
        self.receivers.by_rung.clear();
        self.receivers.lag.clear();
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
        self.receivers
            .connected
            .set(whole(status.receivers.len() as u64));
        for (shard, sessions) in status.shards.iter().enumerate() {
            let shard = shard as u64;
            let gauge = self
                .receivers
                .by_shard
                .get_or_create(&ShardLabels { shard });
            gauge.set(whole(*sessions as u64));
        }
        let waiting = status.replication_queue as u64;
        self.flows.replication_queue.set(whole(waiting));
        self.load.observe(&status.load);
        self.counters.observe(&status.counters);
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
                .by_rung
                .get_or_create(&labels)
                .set(whole(count as u64));
        }
        // A receiver that has just connected has not reported its cursor yet.
        let cursors = receivers.iter().filter_map(|r| r.cursor);
        let lags = cursors.map(|cursor| head.saturating_sub(cursor));
        self.receivers
            .lag
            .get_or_create(&of(name))
            .set(whole(lags.max().unwrap_or(0)));
    }

    /// Returns the number of such moves.
    #[cfg(test)]
    pub(super) fn moves(&self, labels: &MoveLabels) -> u64 {
        self.receivers.moves.get_or_create(labels).get()
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
            // Reports of forged packets are counted as such.
            if let HistoryEventKind::Moved(step) | HistoryEventKind::Reported(step) = &event.what
                && step.from != step.to
            {
                let labels = MoveLabels {
                    channel: step.channel.clone(),
                    from: step.from.clone(),
                    to: step.to.clone(),
                    cause: step.cause.clone(),
                };
                self.receivers.moves.get_or_create(&labels).inc();
            }
        }
    }
}

impl Load {
    fn observe(&self, load: &LoadStatus) {
        self.overloaded.set(load.overloaded.into());
        self.lag.set(load.lag_ms / 1e3);
        self.wait.set(load.publish_wait_ms / 1e3);
    }
}

impl Flows {
    /// Clears the state before the present one is copied: flows come and go.
    fn clear(&self) {
        for gauges in [
            &self.members,
            &self.replicas,
            &self.outstanding,
            &self.key_sequence,
            &self.rate,
            &self.limited,
            &self.packet_size,
            &self.narrow,
            &self.breaker,
        ] {
            gauges.clear();
        }
    }

    fn observe(&self, channel: &str, flow: &FlowStatus) {
        let labels = of(channel);
        let set = |gauge: &Gauges, to: u64| {
            gauge.get_or_create(&labels).set(whole(to));
        };
        set(&self.members, flow.members as u64);
        set(&self.replicas, flow.replicas as u64);
        set(&self.outstanding, flow.outstanding as u64);
        set(&self.key_sequence, flow.key_sequence);
        if let Some(rate) = flow.rate_bps {
            set(&self.rate, rate / 8);
        }
        set(&self.packet_size, flow.packet_size as u64);
        set(&self.narrow, flow.narrow_members as u64);
        set(&self.limited, flow.limited_by.is_some().into());
        let breaker = match flow.breaker {
            BreakerState::Closed => 0,
            BreakerState::Halved => 1,
            BreakerState::Open => 2,
        };
        set(&self.breaker, breaker);
        raise(&self.packets.get_or_create(&labels), flow.packets);
        raise(&self.bytes.get_or_create(&labels), flow.bytes);
        raise(&self.ecn_ce.get_or_create(&labels), flow.ecn_ce);
        let symbols = self.repair_symbols.get_or_create(&labels);
        raise(&symbols, flow.repair_symbols);
        raise(&self.rebuilt.get_or_create(&labels), flow.rebuilt);
    }
}
