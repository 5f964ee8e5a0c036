//! What a running source shows.

use serde::Serialize;

use super::Counters;

/// A snapshot of a source.
#[derive(Debug, Clone, Serialize)]
pub struct SourceStatus {
    /// The channels that there are.
    pub channels: Vec<ChannelStatus>,
    /// The receivers that are connected.
    pub receivers: Vec<ReceiverStatus>,
    /// The last moves between rungs, oldest first.
    pub moves: Vec<Move>,
    /// The last times that many receivers fell back at once, oldest first.
    pub mass_fall_backs: Vec<MassFallBack>,
    /// Counters since the start.
    pub counters: Counters,
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
    /// Packets that somebody still owes an acknowledgement for.
    pub outstanding: usize,
}

/// One receiver.
#[derive(Debug, Clone, Serialize)]
pub struct ReceiverStatus {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where its connection comes from.
    pub addr: String,
    /// Smoothed round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// The channels that it receives.
    pub channels: Vec<ReceiverChannel>,
}

/// A receiver in one channel.
#[derive(Debug, Clone, Serialize)]
pub struct ReceiverChannel {
    /// The channel.
    pub channel: String,
    /// Where the receiver stands.
    pub rung: String,
    /// Since when, in Unix milliseconds.
    pub since_ms: u64,
    /// The last `seq` that its outputs hold.
    pub cursor: Option<u64>,
    /// Updates that it still has to get on its unicast path.
    pub backlog: u64,
    /// The key epoch of the flow that it has confirmed.
    pub key_sequence: Option<u64>,
}

/// A move between rungs.
#[derive(Debug, Clone, Serialize)]
pub struct Move {
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// The channel.
    pub channel: String,
    /// The receiver's id.
    pub receiver: String,
    /// The receiver's name.
    pub name: String,
    /// From which rung.
    pub from: String,
    /// To which rung.
    pub to: String,
    /// Why.
    pub cause: String,
}

/// Many receivers fell back at once: something between the source and them broke.
#[derive(Debug, Clone, Serialize)]
pub struct MassFallBack {
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// The channel.
    pub channel: String,
    /// How many members fell back.
    pub members: usize,
    /// Why.
    pub cause: String,
}
