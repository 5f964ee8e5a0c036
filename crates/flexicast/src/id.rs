//! Names of things: flows, paths, rungs, causes, cursors.

use std::fmt;

use uuid::Uuid;

use crate::wire::VARINT_MAX;

/// A Flow ID: the destination connection ID of a flow's packets, exactly 8 random bytes in this
/// version (protocol.md section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub [u8; FlowId::LEN]);

impl FlowId {
    /// Length in bytes.
    pub const LEN: usize = 8;
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Path of a flow's packets to a receiver, best first: the delivery ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rung {
    /// Native SSM or ASM join.
    Multicast = 1,
    /// Through an AMT relay.
    Amt = 2,
    /// The same ciphertext, copied by the source to the receiver's own 4-tuple.
    Replicated = 3,
    /// Each update on the receiver's own QUIC connection.
    Unicast = 4,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rung::Multicast => "multicast",
            Rung::Amt => "amt",
            Rung::Replicated => "replicated",
            Rung::Unicast => "unicast",
        })
    }
}

/// Where a packet travelled: 0 is the unicast path, otherwise 4 · flow-index + rung with rung 1 to
/// 3 (protocol.md section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u64);

impl PathId {
    /// The receiver's own QUIC connection.
    pub const UNICAST: PathId = PathId(0);

    /// The path of a flow by a rung; the unicast rung has path id 0 whatever the flow.
    pub fn new(flow_index: u64, rung: Rung) -> Self {
        match rung {
            Rung::Unicast => PathId::UNICAST,
            rung => PathId(flow_index.saturating_mul(4).saturating_add(rung as u64)),
        }
    }

    /// The rung, or `None` for a number that names no path.
    pub fn rung(self) -> Option<Rung> {
        match (self.0, self.0 % 4) {
            (0, _) => Some(Rung::Unicast),
            (_, 1) => Some(Rung::Multicast),
            (_, 2) => Some(Rung::Amt),
            (_, 3) => Some(Rung::Replicated),
            _ => None,
        }
    }

    /// The flow-index that FC_ANNOUNCE gave; meaningless for the unicast path.
    pub fn flow_index(self) -> u64 {
        self.0 / 4
    }
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $value:literal $text:literal,)*) => {
        /// Cause of a receiver's move from one rung to another (protocol.md section 4 has the
        /// numbers).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Cause { $($(#[$doc])* $name = $value,)* }

        impl Cause {
            /// The cause with this number on the wire, if there is one.
            pub fn from_number(number: u64) -> Option<Cause> {
                match number { $($value => Some(Cause::$name),)* _ => None }
            }
        }

        impl fmt::Display for Cause {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Cause::$name => $text,)* })
            }
        }
    };
}

causes! {
    /// Packets were proved to arrive by a better rung.
    Joined = 1 "joined",
    /// A better rung was tried and no packet arrived.
    ProbeTimeout = 2 "probe-timeout",
    /// Flow data went unacknowledged for the fall-back delay.
    AckTimeout = 3 "ack-timeout",
    /// Three heartbeats in a row were missed.
    HeartbeatLost = 4 "heartbeat-lost",
    /// The AMT relay stopped answering.
    RelayLost = 5 "relay-lost",
    /// Lost more packets than the channel allows.
    LossTooHigh = 6 "loss-too-high",
    /// Held the flow below its minimum rate, granted it too little, or did not take what it was
    /// owed by unicast.
    TooSlow = 7 "too-slow",
    /// Too many packets of the flow were invalid for it, or the flow was replaced.
    FlowInvalid = 8 "flow-invalid",
    /// A new key was not confirmed in time.
    RekeyMissed = 9 "rekey-missed",
    /// The source or its operator removed it from the flow.
    Ejected = 10 "ejected",
    /// The receiver left the flow by itself.
    Left = 11 "left",
    /// Its network changed.
    NetworkChanged = 12 "network-changed",
    /// The operator keeps it on unicast.
    Held = 13 "held",
    /// Somebody forges packets of the flow, and it gets too many of them.
    Forged = 14 "forged",
    /// One of the legs that it merges fell silent, and another one goes on.
    LegLost = 15 "leg-lost",
}

/// By which way the bytes of an update first arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Via {
    /// Every byte by the flow.
    Flow,
    /// Some by the flow, the rest repaired on the unicast path.
    Repaired,
    /// Every byte by the unicast path.
    Unicast,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Via::Flow => "flow",
            Via::Repaired => "repaired",
            Via::Unicast => "unicast",
        })
    }
}

/// Progress of a receiver's outputs in a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The channel's incarnation: another one after the store was restored or replaced.
    pub incarnation: Uuid,
    /// The last contiguous `seq` that the outputs hold; 0 for none.
    pub seq: u64,
}

impl Cursor {
    /// Returns the substitute for a missing cursor: a request for the last `updates` (protocol.md
    /// section 4.1). More than there are means all.
    #[must_use]
    pub fn of_last(updates: u64) -> Self {
        Cursor {
            incarnation: Uuid::nil(),
            seq: updates.min(VARINT_MAX),
        }
    }

    /// Returns the number of last updates that this requests in place of a cursor; `None` for a
    /// real cursor.
    #[must_use]
    pub fn asked(&self) -> Option<u64> {
        self.incarnation.is_nil().then_some(self.seq)
    }
}
