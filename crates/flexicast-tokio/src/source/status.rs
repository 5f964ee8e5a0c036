//! Status of a running source.

use flexicast::flow::BreakerState;
use flexicast::source::Traffic;
use serde::Serialize;

use super::Counters;

/// A snapshot of a source.
#[derive(Debug, Clone, Serialize)]
pub struct SourceStatus {
    /// The channels that there are.
    pub channels: Vec<ChannelStatus>,
    /// The receivers that are connected.
    pub receivers: Vec<ReceiverStatus>,
    /// The last moves between rungs, oldest first, with failed attempts at better ones.
    pub moves: Vec<Move>,
    /// The last times that many receivers fell back at once, oldest first.
    pub mass_fall_backs: Vec<MassFallBack>,
    /// Flow packets that wait for the thread with the longest queue, to be replicated.
    pub replication_queue: usize,
    /// Load, by the lateness of the source.
    pub load: LoadStatus,
    /// Connections of each shard.
    pub shards: Vec<usize>,
    /// Counters since the start.
    pub counters: Counters,
}

/// Load of a source, by its lateness.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoadStatus {
    /// Whether it cannot keep up now.
    pub overloaded: bool,
    /// Longest time by which a turn of its loop was late, or that it took, in the last second; in
    /// milliseconds.
    pub lag_ms: f64,
    /// Longest time that an update waited to be taken, in the last second; in milliseconds.
    pub publish_wait_ms: f64,
    /// Acknowledgements per second that the members of a channel are asked for together; fewer
    /// while a turn of the loop comes late, or the kernel drops some.
    pub acks_per_s: u64,
    /// The last overloads, oldest first.
    pub overloads: Vec<Overload>,
}

/// A time in which a source could not keep up. Its members are not blamed for silence then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overload {
    /// Its beginning, in Unix milliseconds.
    pub since_ms: u64,
    /// Its end; `None` while it goes on.
    pub until_ms: Option<u64>,
    /// Kinds of lateness, in the order of their appearance.
    pub late: Vec<Lateness>,
}

/// Kind of lateness of a source that cannot keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lateness {
    /// Timers, packets and receivers' datagrams: a turn of the loop takes long, or comes late.
    Engine,
    /// Updates: they wait for more than a second.
    Publishing,
    /// Receivers' datagrams: the kernel drops some, because the receive queue is full.
    ReceiveQueue,
}

/// A channel.
#[derive(Debug, Clone, Serialize)]
pub struct ChannelStatus {
    /// Its name.
    pub channel: String,
    /// The last published `seq`.
    pub head: u64,
    /// Its flow; `None` for unicast only.
    pub flow: Option<FlowStatus>,
    /// Bytes sent since it was added, and those that unicast alone would have sent.
    pub bytes: ChannelBytes,
}

/// Bytes of a channel since it was added. All of them only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ChannelBytes {
    /// UDP payload of its flows to multicast groups, each packet counted once.
    pub flow: u64,
    /// UDP payload of copies of the flow's packets to single receivers (rung 3).
    pub copies: u64,
    /// Whole updates on receivers' own connections.
    pub unicast: u64,
    /// Ranges of updates on receivers' own connections that the flow had not brought.
    pub repairs: u64,
    /// Bytes that unicast alone would have sent: the whole updates on receivers' own connections,
    /// and each update of the flow once per member.
    pub by_unicast_alone: u64,
}

impl ChannelBytes {
    pub(super) fn of(traffic: Traffic, copies: u64) -> Self {
        ChannelBytes {
            flow: traffic.flow,
            copies,
            unicast: traffic.unicast,
            repairs: traffic.repairs,
            by_unicast_alone: traffic.by_unicast_alone,
        }
    }
}

/// A flow.
#[derive(Debug, Clone, Serialize)]
pub struct FlowStatus {
    /// Flow ID in hex.
    pub id: String,
    /// Where it can be had by multicast: `(source, group:port)` each, with `*` for any source.
    pub endpoints: Vec<String>,
    /// Group and port of the first endpoint; empty without one.
    pub group: String,
    /// The S of the first endpoint's (S,G); `None` with any-source multicast.
    pub source: Option<String>,
    /// The next packet number.
    pub next_pn: u64,
    /// The key epoch that packets are sent in.
    pub key_sequence: u64,
    /// Receivers that owe acknowledgements.
    pub members: usize,
    /// Receivers that are sent copies.
    pub replicas: usize,
    /// Packets sent, each counted once.
    pub packets: u64,
    /// Bytes of UDP payload sent, each packet counted once.
    pub bytes: u64,
    /// Packets that some member still owes an acknowledgement for.
    pub outstanding: usize,
    /// UDP payload of a full packet in bytes, at most.
    pub packet_size: usize,
    /// Members whose paths do not take the next larger size.
    pub narrow_members: usize,
    /// Packets that receivers reported as marked with ECN's CE, counted for each receiver.
    pub ecn_ce: u64,
    /// Erasure coding in text form; `None` if the flow sends no repair symbols.
    pub fec: Option<String>,
    /// Repair symbols sent, each in a packet of its own, which is among the packets, or on the
    /// members' connections, once for each.
    pub repair_symbols: u64,
    /// Lost packets that members rebuilt from repair symbols, counted for each member: each of them
    /// saved a repair.
    pub rebuilt: u64,
    /// Current rate in bit/s; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// Id of the receiver that alone limits the rate.
    pub limited_by: Option<String>,
    /// State of the circuit breaker: `closed`, `halved` or `open`.
    pub breaker: BreakerState,
}

/// One receiver.
#[derive(Debug, Clone, Serialize)]
pub struct ReceiverStatus {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its connection's number: no other one of this source has the same.
    pub session: u64,
    /// Its program and version, as it says.
    pub software: String,
    /// Where its connection comes from.
    pub addr: String,
    /// Since when it is served, in Unix milliseconds.
    pub connected_ms: u64,
    /// Smoothed round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// The channels that it receives.
    pub channels: Vec<ReceiverChannel>,
}

/// Cause of unicast for a receiver that does not verify the signatures of the channel's updates.
pub const UNVERIFIED: &str = "unverified";

/// A receiver in one channel.
#[derive(Debug, Clone, Serialize)]
pub struct ReceiverChannel {
    /// The channel.
    pub channel: String,
    /// The receiver's rung.
    pub rung: String,
    /// Since when, in Unix milliseconds: the very time of the move that brought it there.
    pub since_ms: u64,
    /// Why; nothing for one that has not moved since it connected. [`UNVERIFIED`] is no cause of a
    /// move.
    pub cause: Option<String>,
    /// Its legs, where it takes the flow by several at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub legs: Vec<LegStatus>,
    /// The last `seq` that its outputs hold.
    pub cursor: Option<u64>,
    /// Updates that it still has to get on its unicast path.
    pub backlog: u64,
    /// The key epoch of the flow that it has confirmed.
    pub key_sequence: Option<u64>,
}

/// One of the legs by which a receiver takes a flow at once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LegStatus {
    /// `multicast`, `amt`, or `amt-2` for a second relay.
    pub leg: String,
    /// `trying`, `working` or `lost`.
    pub state: String,
    /// Packets that another leg brought and this one did not.
    pub missed: u64,
    /// Time by which its packets come after those of the leg that is ahead, in milliseconds.
    pub lag_ms: f64,
}

/// A move between rungs. No moves are those with the cause `probe-timeout`, a better rung that a
/// receiver tried and that brought nothing, those with `leg-lost` to a better rung, a leg that a
/// receiver lost in addition to the one of its rung, and those from a rung to itself, where the
/// receiver reports forged packets.
#[derive(Debug, Clone, Serialize)]
pub struct Move {
    /// Number among all events since the source's start, as in
    /// [`HistoryEvent`](super::HistoryEvent::number).
    pub number: u64,
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// The channel.
    pub channel: String,
    /// The receiver's id.
    pub receiver: String,
    /// The receiver's name.
    pub name: String,
    /// Previous rung; for a failed attempt, the one that was tried.
    pub from: String,
    /// Next rung; for a failed attempt, the receiver's own.
    pub to: String,
    /// Why. A receiver that was missed before it could know that its AMT relay is gone says so
    /// later: `relay-lost` then takes the place of `ack-timeout` or `heartbeat-lost`.
    pub cause: String,
}

/// Many receivers fell back at once: something between the source and them broke.
#[derive(Debug, Clone, Serialize)]
pub struct MassFallBack {
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// The channel.
    pub channel: String,
    /// Number of members that fell back.
    pub members: usize,
    /// Why.
    pub cause: String,
}
