//! What a running source shows.

use serde::Serialize;

/// A snapshot of a source.
#[derive(Debug, Clone, Serialize)]
pub struct SourceStatus {
    /// The last published `seq`.
    pub head: u64,
    /// The flow; `None` for unicast only.
    pub flow: Option<FlowStatus>,
    /// The receivers that are connected.
    pub receivers: Vec<ReceiverStatus>,
    /// The last moves between rungs, oldest first.
    pub moves: Vec<Move>,
    /// Counters since the start.
    pub counters: Counters,
}

/// The flow.
#[derive(Debug, Clone, Serialize)]
pub struct FlowStatus {
    /// Flow ID in hex.
    pub id: String,
    /// Group and port.
    pub group: String,
    /// The S of (S,G); `None` with any-source multicast.
    pub source: Option<String>,
    /// The next packet number.
    pub next_pn: u64,
    /// Receivers that owe acknowledgements.
    pub members: usize,
    /// Packets sent.
    pub packets: u64,
    /// Bytes of UDP payload sent.
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
    /// Where it stands.
    pub rung: String,
    /// Since when, in Unix milliseconds.
    pub since_ms: u64,
    /// The last `seq` that its outputs hold.
    pub cursor: Option<u64>,
    /// Updates that it still has to get on its unicast path.
    pub backlog: u64,
    /// Smoothed round-trip time in milliseconds.
    pub rtt_ms: f64,
}

/// A move between rungs.
#[derive(Debug, Clone, Serialize)]
pub struct Move {
    /// When, in Unix milliseconds.
    pub at_ms: u64,
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

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counters {
    /// Connections that completed their handshake.
    pub connections: u64,
    /// HELLOs that were refused.
    pub refused: u64,
    /// Datagrams on the QUIC port that belong to nothing.
    pub stray_datagrams: u64,
    /// Stateless resets that were sent.
    pub resets: u64,
    /// Connections that were closed because the receiver violated the protocol.
    pub violations: u64,
    /// Acknowledgements of flow packets that were never sent: a receiver made them up, or somebody with the flow's key forges packets.
    pub invalid_acks: u64,
    /// Connections that were turned away because there are too many.
    pub over_limit: u64,
    /// Bytes of updates that were handed to unicast sessions, repairs included.
    pub unicast_bytes: u64,
}
