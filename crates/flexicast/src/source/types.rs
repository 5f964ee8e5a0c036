//! What a source is made with and what it tells.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::SessionId;
use crate::control::{Endpoint, Hello};
use crate::{Cause, Cursor, Rung};

/// What a source is made with.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// The channel's name.
    pub channel: String,
    /// The channel's incarnation.
    pub incarnation: Uuid,
    /// The last stored `seq`; 0 for none.
    pub head: u64,
    /// The oldest stored `seq`; 1 if there is none.
    pub first: u64,
    /// Where the flow can be had; empty for a source without a flow.
    pub endpoints: Vec<Endpoint>,
    /// For jitter.
    pub seed: u64,
    /// Test-only: lost packets of members are not repaired.
    pub repair_off: bool,
}

/// What the owner of a source should do or know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// Decide about this HELLO and call [`Source::authorised`].
    Authorise {
        /// The session.
        session: SessionId,
        /// What it said.
        hello: Hello,
    },
    /// A receiver stands on another rung.
    Moved {
        /// The session.
        session: SessionId,
        /// From where.
        from: Rung,
        /// To where.
        to: Rung,
        /// Why.
        cause: Cause,
    },
    /// Close this session's connection once its control bytes are out.
    Close {
        /// The session.
        session: SessionId,
        /// An application error code of protocol.md section 2.
        code: u64,
        /// For people.
        reason: String,
    },
    /// The flow's key has protected nearly as many packets as it may: call [`Source::replace_flow`].
    FlowWornOut,
}

/// Application error codes (protocol.md section 2).
pub mod close {
    /// The end of a connection that did what it should.
    pub const DONE: u64 = 0;
    /// The peer violated the protocol.
    pub const PROTOCOL_VIOLATION: u64 = 1;
    /// The HELLO was refused; REFUSED says why.
    pub const REFUSED: u64 = 2;
    /// The same receiver has connected anew.
    pub const SUPERSEDED: u64 = 3;
    /// The source shuts down; come back soon.
    pub const GOING_AWAY: u64 = 4;
}

/// What a session looks like from outside.
#[derive(Debug, Clone)]
pub struct SessionStatus {
    /// The session.
    pub session: SessionId,
    /// The receiver's id.
    pub receiver: Uuid,
    /// The receiver's name.
    pub name: String,
    /// Where it stands.
    pub rung: Rung,
    /// Since when.
    pub since: Instant,
    /// What its outputs hold.
    pub cursor: Option<Cursor>,
    /// Updates that it still has to get on its unicast path.
    pub backlog: u64,
    /// Round-trip time: of the flow as a member, else of the unicast path.
    pub rtt: Duration,
}
