//! Outcomes of flow packets, for logs (qlog).

use std::collections::VecDeque;
use std::time::Instant;

use crate::frame::{Frame, Frames, STREAM_SIGNATURE};
use crate::{FlowId, PathId};

/// So many packets are kept for the owner to take; older ones are forgotten.
const KEPT: usize = 8192;

/// One flow packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketTrace {
    /// When it was sent or arrived.
    pub at: Instant,
    /// Its flow.
    pub flow: FlowId,
    /// By which path it arrived; the unicast path id where it was sent.
    pub path: PathId,
    /// The outcome.
    pub outcome: Outcome,
    /// Its number, where it could be read.
    pub pn: Option<u64>,
    /// The key epoch that protects it; 0 where it is not known.
    pub key_sequence: u64,
    /// UDP payload in bytes.
    pub len: usize,
    /// Its frames, where it could be opened.
    pub frames: Vec<TracedFrame>,
}

/// Outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Sent.
    Sent,
    /// Arrived and taken.
    Received,
    /// Arrived and not taken.
    Dropped(FlowInput),
}

/// Outcome of a flow packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowInput {
    /// Its frames were taken.
    Accepted,
    /// Received before by the same path.
    Duplicate,
    /// No flow with this ID is known, or its key is not here yet.
    UnknownFlow,
    /// Not authentic under the flow's key.
    Unverified,
    /// Authentic under the flow's key, and not sent by the source.
    Forged,
    /// Kept until its tag comes.
    Held,
    /// Authentic, with invalid frames.
    Invalid,
    /// There is no room for its updates; it is not acknowledged, so the source repairs it on the
    /// unicast path.
    NoRoom,
    /// Not opened: too many checks of forged ones have failed (protocol.md section 7.4).
    Unchecked,
}

/// A frame without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracedFrame {
    /// PADDING.
    Padding,
    /// PING.
    Ping,
    /// STREAM.
    Stream {
        /// The update.
        seq: u64,
        /// Where its bytes begin.
        offset: u64,
        /// Number of bytes.
        len: usize,
        /// Whether the update ends with them.
        fin: bool,
    },
    /// RESET_STREAM.
    Reset {
        /// The update.
        seq: u64,
        /// The error code.
        code: u64,
        /// Length of the whole update in bytes.
        size: u64,
    },
    /// DATAGRAM.
    Datagram {
        /// Number of bytes.
        len: usize,
    },
    /// A repair symbol.
    Repair {
        /// Number of bytes, with its header.
        len: usize,
    },
    /// An extension.
    Unknown {
        /// Its type.
        kind: u64,
    },
}

/// Collects packets while it is switched on.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    on: bool,
    packets: VecDeque<PacketTrace>,
}

impl Tracer {
    pub(crate) fn set(&mut self, on: bool) {
        self.on = on;
        self.packets.clear();
    }

    /// Notes a packet; it is made only while tracing is on.
    pub(crate) fn note(&mut self, packet: impl FnOnce() -> PacketTrace) {
        if !self.on {
            return;
        }
        if self.packets.len() >= KEPT {
            self.packets.pop_front();
        }
        self.packets.push_back(packet());
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    pub(crate) fn take(&mut self) -> Vec<PacketTrace> {
        self.packets.drain(..).collect()
    }
}

/// The frames of a packet's plain text, as far as they can be read.
pub(crate) fn frames(plain: &[u8]) -> Vec<TracedFrame> {
    let traced = |frame: Frame<'_>| match frame {
        Frame::Padding => TracedFrame::Padding,
        Frame::Ping => TracedFrame::Ping,
        Frame::Stream {
            seq,
            offset,
            data,
            fin,
        } => TracedFrame::Stream {
            seq,
            offset,
            len: data.len(),
            fin,
        },
        Frame::Reset { seq, code, size } => TracedFrame::Reset { seq, code, size },
        Frame::Datagram { data } => TracedFrame::Datagram { len: data.len() },
        Frame::Repair { symbol } => TracedFrame::Repair { len: symbol.len() },
        Frame::StreamSignature { .. } => TracedFrame::Unknown {
            kind: STREAM_SIGNATURE,
        },
        Frame::Unknown { kind } => TracedFrame::Unknown { kind },
    };
    Frames::new(plain).flatten().map(traced).collect()
}
