//! Messages between the engine and its shards.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::WireError;
use flexicast::source::Datagram;
use zeroize::Zeroizing;

use super::passage::Passed;
use crate::link::Path;
use crate::source::Counters;

/// Work of the engine for a shard; executed in order.
#[derive(Debug)]
pub(in crate::source) enum Work {
    /// Something for one session's connection. Sessions that are gone ignore it.
    Session(u64, SessionWork),
    /// Provoke an answer of the session's receiver, and report it as [`ShardEvent::Heard`].
    Probe(u64),
    /// Report sessions whose receivers have acknowledged everything, from now on.
    Drain,
    /// Answer with this number once what has arrived is read.
    Sync(u64),
    /// Answer this datagram without a connection.
    Answer(Passed, Vec<u8>),
    /// Say goodbye to all receivers and end.
    Shutdown,
}

/// Work for one session's connection.
#[derive(Debug, Default)]
pub(in crate::source) struct SessionWork {
    /// Bytes of the control stream; keys are among them.
    pub(in crate::source) control: Zeroizing<Vec<u8>>,
    /// Bytes of other streams, in order.
    pub(in crate::source) pieces: Vec<StreamPiece>,
    /// Whether repairs are among these.
    pub(in crate::source) repairs: bool,
    /// Messages, in order.
    pub(in crate::source) datagrams: Vec<Datagram>,
    /// Pacing from now on, in bit/s, if it changes.
    pub(in crate::source) rate: Option<u64>,
    /// Whether the receiver has said HELLO.
    pub(in crate::source) greeted: bool,
    /// Application error code and reason to close with, once the control bytes are sent.
    pub(in crate::source) close: Option<(u64, String)>,
}

/// Bytes for a stream of updates.
#[derive(Debug)]
pub(in crate::source) struct StreamPiece {
    pub(in crate::source) stream: u64,
    pub(in crate::source) parts: Vec<Bytes>,
    /// Whether the stream ends with this.
    pub(in crate::source) fin: bool,
}

/// An event of one session's connection.
#[derive(Debug)]
pub(in crate::source) enum ShardEvent {
    /// The handshake is complete. The first event of every session.
    Accepted,
    /// Bytes of the control stream; there may be a token in them.
    Control(Zeroizing<Vec<u8>>),
    /// A datagram.
    Datagram(Vec<u8>),
    /// The receiver violates the protocol.
    Violation(WireError),
    /// Smoothed round-trip time.
    Rtt(Duration),
    /// The path in use, with the changes since the last report.
    Path(PathReport),
    /// An authentic packet of a probed session, which was at this address before.
    Heard(SocketAddr),
    /// The receiver has closed the connection.
    Leaving,
    /// Pieces, and bytes in them, that quiche has taken since the session began.
    Written { pieces: u64, bytes: u64 },
    /// The receiver has acknowledged the first so many [`SessionWork`]s.
    Delivered { works: u64 },
    /// The connection is gone, for this reason. The last event of every session.
    Closed { reason: String },
}

/// Changes of a connection's paths.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::source) struct PathReport {
    /// The 4-tuple in use.
    pub(in crate::source) path: Option<Path>,
    /// Number of moves to another address.
    pub(in crate::source) migrations: u64,
    /// Number of addresses that did not prove themselves.
    pub(in crate::source) failed: u64,
}

/// Report of a shard about what has happened since the last one.
#[derive(Debug, Default)]
pub(in crate::source) struct Batch {
    /// Events with their sessions, in order.
    pub(in crate::source) events: Vec<(u64, ShardEvent)>,
    /// Increase of the counters that shards keep.
    pub(in crate::source) counts: Counters,
    /// Number of the last [`Work::Sync`].
    pub(in crate::source) synced: Option<u64>,
    /// Datagrams that are addressed to feedback IDs, in order.
    pub(in crate::source) feedback: Vec<Passed>,
    /// Since when arrived datagrams may lie unread.
    pub(in crate::source) unread_since: Option<Instant>,
    /// Since when the kernel may have dropped what arrived; how much, is in `counts`.
    pub(in crate::source) dropped_since: Option<Instant>,
}

impl Batch {
    /// Whether there is nothing to report.
    pub(in crate::source) fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.feedback.is_empty()
            && self.synced.is_none()
            && self.unread_since.is_none()
            && self.counts == Counters::default()
    }
}
