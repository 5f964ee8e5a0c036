//! Counters of a source since its start. Each limit has a counter.

use flexicast::source::SourceCounters;
use serde::Serialize;

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Connections whose receiver was welcomed.
    pub connections: u64,
    /// HELLOs that were refused.
    pub refused: u64,
    /// Handshakes that began.
    pub handshakes: u64,
    /// Connections that ended before their receiver's HELLO.
    pub handshakes_abandoned: u64,
    /// Retry packets: receivers that were asked to prove their address because many connections
    /// were not served yet.
    pub retries: u64,
    /// Datagrams on the QUIC port that belong to nothing.
    pub stray_datagrams: u64,
    /// Stateless resets that were sent.
    pub resets: u64,
    /// Stateless resets that were not sent because there are too many.
    pub resets_withheld: u64,
    /// Connections that were closed because the receiver violated the protocol.
    pub violations: u64,
    /// Connections that were turned away because there are too many.
    pub over_limit: u64,
    /// Times that a receiver moved to another address and proved it.
    pub migrations: u64,
    /// Addresses that a receiver seemed to have moved to and that did not prove themselves.
    pub failed_paths: u64,
    /// Packets of connections from addresses that were not followed: forged, or of a receiver that
    /// changes its address more often than a connection bears.
    pub unknown_paths: u64,
    /// Datagrams that the kernel gave to another shard than their connection's: they are passed
    /// on.
    pub misdelivered: u64,
    /// Those of them that were dropped because too many waited.
    pub misdelivered_dropped: u64,
    /// Shards that failed and were restarted.
    pub shard_failures: u64,
    /// Those of them that hung.
    pub shard_hangs: u64,
    /// Fragments of messages that were dropped because more waited for a connection than may.
    pub fragments_dropped: u64,
    /// Datagrams of connections that the kernel refused to send.
    pub send_errors: u64,
    /// Packets of flows that the kernel refused to send to a group.
    pub multicast_errors: u64,
    /// Copies of flow packets that were to be sent to receivers (rung 3), those that the kernel
    /// refused included.
    pub copies: u64,
    /// Receivers to which the kernel refused to send copies.
    pub copy_errors: u64,
    /// Copies that were dropped because the queue of a sending thread or the socket's buffer was
    /// full; they are repaired as losses.
    pub copies_dropped: u64,
    /// Datagrams of receivers that the kernel dropped because the receive queue was full.
    pub datagrams_dropped: u64,
    /// Times that the source was overloaded.
    pub overloads: u64,
    /// Bytes of updates that were handed to unicast sessions, repairs included.
    pub unicast_bytes: u64,
    /// Counters of the state machine, each a member of this object.
    #[serde(flatten)]
    pub protocol: SourceCounters,
}

impl Counters {
    /// Adds what a shard has counted.
    pub(super) fn add(&mut self, shard: &Counters) {
        self.handshakes += shard.handshakes;
        self.handshakes_abandoned += shard.handshakes_abandoned;
        self.retries += shard.retries;
        self.stray_datagrams += shard.stray_datagrams;
        self.resets += shard.resets;
        self.resets_withheld += shard.resets_withheld;
        self.violations += shard.violations;
        self.over_limit += shard.over_limit;
        self.unknown_paths += shard.unknown_paths;
        self.misdelivered += shard.misdelivered;
        self.datagrams_dropped += shard.datagrams_dropped;
        self.fragments_dropped += shard.fragments_dropped;
        self.misdelivered_dropped += shard.misdelivered_dropped;
        self.send_errors += shard.send_errors;
    }
}
