//! Configuration and events of a source.

use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use crate::control::{Endpoint, Hello, Leg, LegReport, LegState};
use crate::flow::{BreakerState, FlowConfig};
use crate::{Cause, Cursor, Rung};

/// The caller's number for a unicast session.
pub type SessionId = u64;

/// A channel's place: in [`SourceConfig::channels`], or as [`super::Source::add_channel`] returned
/// it.
pub type ChannelIndex = usize;

/// A receiver with more updates than this before it gets them on a catch-up stream and is not
/// promoted.
pub const LIVE_WITHIN: u64 = 256;
/// Without a cursor a receiver gets this many of the last updates, unless it asks for another
/// number.
pub const FIRST_UPDATES: u64 = 100;

/// Returns the number of a channel on the wire.
pub(super) fn channel_number(index: ChannelIndex) -> u64 {
    index as u64 + 1
}

/// Configuration of a source.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// The channels; each keeps its place in this list as its [`ChannelIndex`].
    pub channels: Vec<ChannelConfig>,
    /// Bit/s of updates on all unicast paths together: so that many receivers that lose the flow at
    /// once do not stampede. `None` for no limit.
    pub unicast_rate: Option<u64>,
    /// Limits on a single receiver's requests.
    pub limits: Limits,
    /// For jitter.
    pub seed: u64,
}

/// Protections that a source leaves out, for tests that must notice. All are on by default.
#[cfg(feature = "fault-injection")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Whether lost packets of members are left unrepaired.
    pub repair_off: bool,
    /// Whether silent members stay on the flow.
    pub fall_back_off: bool,
    /// Whether slow and lossy members stay on the flow.
    pub eviction_off: bool,
    /// Whether late packets count as lost ones.
    pub reordering_off: bool,
    /// Whether packets grow without a member's acknowledgement.
    pub sizes_unconfirmed: bool,
    /// Whether members are blamed for silence while the source itself was late.
    pub lag_grace_off: bool,
    /// Whether repair symbols span key epochs.
    pub window_across_epochs: bool,
    /// Whether updates are sent although their deadline has passed.
    pub expired_delivered: bool,
    /// Whether messages are sent on the flow alone.
    pub message_copies_off: bool,
}

/// One channel.
#[derive(Debug, Clone)]
pub struct ChannelConfig {
    /// Its name.
    pub name: String,
    /// Its incarnation.
    pub incarnation: Uuid,
    /// The last stored `seq`; 0 for none.
    pub head: u64,
    /// The oldest stored `seq`; 1 if there is none.
    pub first: u64,
    /// Whether new members must not be able to read earlier packets: each join begins a key epoch.
    pub private: bool,
    /// Where the flow can be had by multicast, IPv4 and IPv6; may be empty.
    pub endpoints: Vec<Endpoint>,
    /// Whether receivers that ask for it get copies of the flow's packets (rung 3).
    pub replicate: bool,
    /// The flow; `None` for unicast only. Fresh random at every start.
    pub flow: Option<FlowConfig>,
}

/// Why a channel is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// Removed: requests for it are refused as unknown.
    Gone,
    /// Published by another source: requests for it are refused for now.
    Elsewhere,
}

/// Limits on receivers' input. A frame beyond a limit is refused and counted, and repetition
/// disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Receivers that are served at once.
    pub receivers: usize,
    /// Receivers that get copies of one channel's flow at once.
    pub replicas: usize,
    /// Control frames of one receiver per second; those of five seconds at once.
    pub control_per_s: u64,
    /// Acknowledgements of one receiver per second; those of five seconds at once.
    pub acks_per_s: u64,
    /// Acknowledgements of all members of one channel per second: with more members, each is asked
    /// for fewer.
    pub channel_acks_per_s: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            receivers: 20_000,
            replicas: 2_000,
            control_per_s: 200,
            acks_per_s: 1_000,
            channel_acks_per_s: 20_000,
        }
    }
}

/// Counters since the start; each is a metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SourceCounters {
    /// Acknowledgements that were looked at: those in feedback packets, and in DATAGRAM frames.
    pub acks: u64,
    /// Acknowledgements of packets that were never sent.
    pub invalid_acks: u64,
    /// Signs of forgery: acknowledgements of packets that were never sent, requests for updates
    /// that were forged, and receivers that left a flow because of that.
    pub forged_reports: u64,
    /// Requests for bytes of updates that the flow brought wrong.
    pub needs: u64,
    /// Requests for bytes that did not arrive within three seconds, of published updates.
    pub needs_missing: u64,
    /// Cursors beyond the head, each of which ended its connection.
    pub cursors_ahead: u64,
    /// HELLOs whose cursor was beyond the head of the same incarnation.
    pub hellos_ahead: u64,
    /// Acknowledgements that were ignored because the receiver sends too many.
    pub excess_acks: u64,
    /// Counters of feedback packets, each a member of this object.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub feedback: FeedbackCounters,
    /// Receivers that were disconnected because they sent too many control frames.
    pub excess_control: u64,
    /// Requests for bytes that were not answered because the receiver sends too many.
    pub excess_needs: u64,
    /// HELLOs that were refused because as many receivers as allowed are served.
    pub too_many: u64,
    /// HELLOs that were refused because the receiver with this id lives elsewhere.
    pub ids_in_use: u64,
    /// Counters of replication, each a member of this object.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub replication: ReplicationCounters,
    /// Counters of deadlines, each a member of this object.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub deadlines: DeadlineCounters,
    /// Counters of messages, each a member of this object.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub messages: MessageCounters,
    /// Proofs that were not accepted: of another flow, an old key, a rung that is not served, or
    /// too soon after flapping.
    pub proofs_ignored: u64,
    /// Ranges of updates that were repaired on unicast paths.
    pub repairs: u64,
    /// Flow packets whose updates were sent again on the flow because many members missed them.
    pub shared_repairs: u64,
    /// Updates that were sent again because the receiver's cursor stayed before them.
    pub resent_updates: u64,
    /// Moves to a better rung.
    pub promotions: u64,
    /// Moves to the unicast rung.
    pub fall_backs: u64,
    /// Times that a leg of a member with several fell silent, while it stayed a member.
    pub legs_lost: u64,
    /// Times that many receivers fell back at once.
    pub mass_fall_backs: u64,
    /// Key epochs that were announced after a flow's first.
    pub rekeys: u64,
    /// Members that fell back because they did not confirm a key in time.
    pub rekeys_missed: u64,
    /// Members that fell back because they held the flow up.
    pub evicted_too_slow: u64,
    /// Members that fell back because they lost too many packets.
    pub evicted_lossy: u64,
    /// Times that a flow's circuit breaker stopped it.
    pub breaker_trips: u64,
    /// Receivers notified that updates are gone for good.
    pub gaps: u64,
    /// Times that updates on unicast paths had to wait for the rate of all of them together.
    pub unicast_held: u64,
}

/// Counters of messages since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MessageCounters {
    /// Messages that were sent, each counted once.
    #[cfg_attr(feature = "serde", serde(rename = "messages_sent"))]
    pub sent: u64,
    /// Messages that were not sent on the flow: their deadline had passed, or more waited than may.
    #[cfg_attr(feature = "serde", serde(rename = "messages_refused"))]
    pub refused: u64,
    /// Messages for connections of receivers that are not on the flow.
    #[cfg_attr(feature = "serde", serde(rename = "message_copies"))]
    pub copies: u64,
    /// Those that were dropped because more waited for the connection than may.
    #[cfg_attr(feature = "serde", serde(rename = "message_copies_dropped"))]
    pub dropped: u64,
}

/// Counters of feedback packets since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FeedbackCounters {
    /// Packets that verified.
    #[cfg_attr(feature = "serde", serde(rename = "feedback_packets"))]
    pub packets: u64,
    /// Packets that were dropped: of no receiver, too many, received before, forged, or with a
    /// malformed acknowledgement.
    #[cfg_attr(feature = "serde", serde(rename = "feedback_invalid"))]
    pub invalid: u64,
    /// Packets that were dropped because they came from another address than their receiver's
    /// connection.
    #[cfg_attr(feature = "serde", serde(rename = "feedback_elsewhere"))]
    pub elsewhere: u64,
}

/// Counters of updates with a deadline since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeadlineCounters {
    /// Updates that receivers did not get because their deadline had passed; one of several
    /// receivers counts for each.
    #[cfg_attr(feature = "serde", serde(rename = "expired_updates"))]
    pub expired: u64,
    /// Updates that were taken off a flow, or its repairs, because their deadline had passed.
    #[cfg_attr(feature = "serde", serde(rename = "expired_on_flow"))]
    pub withdrawn: u64,
}

/// Counters of replication since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ReplicationCounters {
    /// Requests that were refused because the limit was reached.
    #[cfg_attr(feature = "serde", serde(rename = "copies_refused"))]
    pub refused: u64,
    /// Receivers whose replication ended because no arrival was proved.
    #[cfg_attr(feature = "serde", serde(rename = "copies_unproved"))]
    pub unproved: u64,
    /// Receivers whose replication ended because packets could not be sent.
    #[cfg_attr(feature = "serde", serde(rename = "copies_failed"))]
    pub failed: u64,
}

/// Events and requests for the owner of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// Decide about this HELLO and call [`super::Source::authorised`].
    Authorise {
        /// The session.
        session: SessionId,
        /// Its HELLO.
        hello: Hello,
    },
    /// Ask this session's receiver for a sign of life, by something that it has to acknowledge:
    /// another one with its id has come. Call [`super::Source::heard`] if anything authentic
    /// arrives from it from now on, and [`super::Source::closed`] if it has said goodbye.
    Probe {
        /// The session.
        session: SessionId,
    },
    /// The cursor of a receiver that was welcomed is beyond the head of its own incarnation: the
    /// store was set back, or the receiver put out a forged update.
    Ahead {
        /// The session.
        session: SessionId,
        /// The channel.
        channel: ChannelIndex,
        /// The cursor's seq.
        seq: u64,
    },
    /// A receiver moved to another rung.
    Moved {
        /// The session.
        session: SessionId,
        /// The channel.
        channel: ChannelIndex,
        /// From where.
        from: Rung,
        /// To where.
        to: Rung,
        /// Why.
        cause: Cause,
        /// When: [`SubscriptionStatus::since`] says the same.
        at: Instant,
    },
    /// Why a rung does not hold for a receiver, or did not; it does not move by it.
    Explained {
        /// The session.
        session: SessionId,
        /// The channel.
        channel: ChannelIndex,
        /// The rung: one that was tried without success ([`Cause::ProbeTimeout`]), or the one of
        /// the last fall-back ([`Cause::RelayLost`], which replaces the cause given then).
        rung: Rung,
        /// Current rung of the receiver.
        on: Rung,
        /// Why.
        cause: Cause,
    },
    /// A leg of a member that takes the flow by several works, or is lost. That is no fall-back.
    Leg {
        /// The session.
        session: SessionId,
        /// The channel.
        channel: ChannelIndex,
        /// The leg.
        leg: Leg,
        /// Its new state.
        state: LegState,
        /// Whether it worked until then.
        worked: bool,
        /// When.
        at: Instant,
    },
    /// A receiver reports forged packets, and does not move by that; once in five minutes at most.
    Forged {
        /// The session.
        session: SessionId,
        /// The channel.
        channel: ChannelIndex,
        /// Current rung of the receiver.
        on: Rung,
        /// Number of its reports since the last event, or since it moved because of them.
        signs: u64,
    },
    /// Many members of a flow fell back within a second: one event, most likely with one reason.
    MassFallBack {
        /// The channel.
        channel: ChannelIndex,
        /// Number.
        members: usize,
        /// The cause of the first of them.
        cause: Cause,
    },
    /// The circuit breaker of a channel's flow changed its state.
    Breaker {
        /// The channel.
        channel: ChannelIndex,
        /// New state.
        state: BreakerState,
    },
    /// Another key epoch is due: call [`super::Source::rekey`] with a fresh random secret.
    SecretWanted {
        /// The channel.
        channel: ChannelIndex,
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
}

/// Application error codes (protocol.md section 2).
pub mod close {
    /// The end of a connection that did what it should.
    pub const DONE: u64 = 0;
    /// The peer violated the protocol.
    pub const PROTOCOL_VIOLATION: u64 = 1;
    /// The HELLO was refused; REFUSED says why.
    pub const REFUSED: u64 = 2;
    /// The same receiver has reconnected.
    pub const SUPERSEDED: u64 = 3;
    /// The source shuts down; come back soon.
    pub const GOING_AWAY: u64 = 4;
    /// The receiver sent more than the source takes.
    pub const EXCESSIVE: u64 = 5;
    /// The operator removed the receiver.
    pub const EJECTED: u64 = 6;
    /// A channel that the receiver listens to is not served here any more; come back soon.
    pub const CHANNEL_GONE: u64 = 7;
    /// The operator ended the connection; the receiver is welcome to come back at once.
    pub const RECONNECT: u64 = 8;
}

/// Status of a session.
#[derive(Debug, Clone)]
pub struct SessionStatus {
    /// The session.
    pub session: SessionId,
    /// The receiver's id.
    pub receiver: Uuid,
    /// The receiver's name.
    pub name: String,
    /// Its program and version, as it says.
    pub software: String,
    /// Its subscriptions.
    pub channels: Vec<SubscriptionStatus>,
}

/// Bytes of updates that a channel has cost since it was added, and what they would have cost by
/// unicast alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// UDP payload that its flows have sent, each packet counted once.
    pub flow: u64,
    /// Whole updates that were handed to unicast paths.
    pub unicast: u64,
    /// Ranges of updates that were handed to unicast paths because the flow had not brought them.
    pub repairs: u64,
    /// Bytes that unicast alone would have sent: the whole updates of `unicast`, and each update on
    /// the flow once per member.
    pub by_unicast_alone: u64,
}

/// A session's subscription to one channel.
#[derive(Debug, Clone)]
pub struct SubscriptionStatus {
    /// The channel.
    pub channel: ChannelIndex,
    /// Current rung of the receiver.
    pub rung: Rung,
    /// Since when.
    pub since: Instant,
    /// Cause of the rung; `None` for a session that has not moved since it connected, and has not
    /// reported a failed attempt at a better rung.
    pub cause: Option<Cause>,
    /// Whether the receiver has no flow because it does not verify the signed updates.
    pub unverified: bool,
    /// Cursor of its outputs.
    pub cursor: Option<Cursor>,
    /// Legs of a member that takes the flow by several; empty for others.
    pub legs: Vec<LegReport>,
    /// Updates that it still has to get on its unicast path.
    pub backlog: u64,
    /// Round-trip time: of the flow as a member, else of the unicast path.
    pub rtt: Duration,
    /// The key epoch that it says it holds; `None` for none.
    pub key_sequence: Option<u64>,
}

/// Next item for a session's unicast path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unicast {
    /// A new server-initiated stream: the head, then the body, then FIN. Streams are not
    /// interleaved: the one that was opened first goes first.
    Stream {
        /// The header's bytes.
        head: Vec<u8>,
        /// The range's bytes.
        body: Bytes,
        /// Whether the flow was to bring them: the loss of a repair should show soon.
        is_repair: bool,
    },
    /// More for the channel's catch-up stream, which is opened if there is none.
    CatchUp {
        /// The channel.
        channel: ChannelIndex,
        /// Goes before the body.
        head: Vec<u8>,
        /// An encoded update.
        body: Bytes,
    },
    /// The end of the channel's catch-up stream.
    CatchUpEnd {
        /// The channel.
        channel: ChannelIndex,
    },
    /// Ask the store for updates of a channel from `from` on, at most `limit`, and call
    /// [`super::Source::provide`]. Nothing else comes of this channel until then.
    Fetch {
        /// The channel.
        channel: ChannelIndex,
        /// First `seq`.
        from: u64,
        /// Most updates to be returned.
        limit: usize,
    },
    /// Nothing to send now.
    Idle,
}
