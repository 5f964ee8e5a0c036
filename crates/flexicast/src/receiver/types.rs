//! Configuration and events of a receiver.

use bytes::Bytes;
use signing::Lineage;
use uuid::Uuid;

use crate::control::{Credential, Endpoint, Leg, LegState, RelayHint, SourceAddress};
use signing::VerifyingKey;

use crate::merge::{AuthenticationFailure, Check, DistrustedUpdate};
use crate::{Cause, Cursor, FlowId, Rung};

/// Configuration of a receiver.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReceiverConfig {
    /// Identity of the receiver: made once and kept.
    pub receiver: Uuid,
    /// Name for people.
    pub name: String,
    /// Program and version.
    pub software: String,
    /// Proof that it may receive.
    pub credential: Credential,
    /// Names of the channels, each with the cursor of its outputs, or [`Cursor::of_last`] in the
    /// place of one.
    pub channels: Vec<(String, Option<Cursor>)>,
    /// Rungs on which to try to get flows.
    pub rungs: Rungs,
    /// Whether encoded bytes are a valid update of this `seq`. An invalid update that any flow
    /// packet took part in is fetched again by unicast. `None` accepts all.
    pub check: Option<Check>,
    /// Whether the owner sends what [`super::Receiver::poll_feedback`] returns; off by default.
    pub feedback: bool,
    /// Whether the receiver takes signed updates; on by default. A source sends others without
    /// their headers, and no flow of a channel that is signed.
    pub signatures: bool,
    /// Whether the receiver keeps deadlines of updates, if the source does; on by default.
    /// Otherwise it gets all updates in order, however late.
    pub deadlines: bool,
    /// Whether it verifies them; on by default. Only a load generator with many receivers of the
    /// same updates may do without.
    pub verify_updates: bool,
    /// Keys that the receiver trusts to sign updates, and to vouch for other keys. With any, it
    /// hands on nothing that is not signed, by whatever path it came.
    pub pinned_keys: Vec<VerifyingKey>,
    /// Whether the receiver takes flows whose packets are authenticated, or streams signed; on by
    /// default.
    pub packet_authentication: bool,
    /// Whether the receiver rebuilds lost packets from repair symbols; on by default.
    pub fec: bool,
    /// Whether it takes messages; on by default.
    pub messages: bool,
    /// Number of legs of a flow that the receiver takes at once.
    pub redundancy: Redundancy,
    /// Seed for jitter: a random one in real programs.
    pub seed: u64,
}

impl ReceiverConfig {
    /// Returns the configuration of a receiver without a name, which accepts all bytes as updates
    /// and tries every rung but relays. Its seed is 0: set a random one, or all such receivers draw
    /// the same jitter.
    pub fn new(
        receiver: Uuid,
        credential: Credential,
        channels: Vec<(String, Option<Cursor>)>,
    ) -> Self {
        ReceiverConfig {
            receiver,
            name: String::new(),
            software: String::new(),
            credential,
            channels,
            rungs: Rungs::default(),
            check: None,
            feedback: false,
            signatures: true,
            deadlines: true,
            verify_updates: true,
            pinned_keys: Vec::new(),
            packet_authentication: true,
            fec: true,
            messages: true,
            redundancy: Redundancy::One,
            seed: 0,
        }
    }
}

/// Number of legs of a flow that a receiver takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Redundancy {
    /// The best rung that works.
    #[default]
    One,
    /// Two: losing one costs nothing.
    Two,
}

/// The rungs on which a receiver tries to get flows, in addition to the unicast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rungs {
    /// Native multicast by IPv4.
    pub multicast_v4: bool,
    /// Native multicast by IPv6.
    pub multicast_v6: bool,
    /// IPv4 groups through an AMT relay. Requires handling of [`ReceiverEvent::Tunnel`].
    pub amt_v4: bool,
    /// IPv6 groups through an AMT relay.
    pub amt_v6: bool,
    /// Packets of the flow that are replicated on the connection's own path.
    pub replicated: bool,
}

impl Rungs {
    /// Whether groups of this address family may come through a relay.
    pub(super) fn tunnels(&self, v4: bool) -> bool {
        if v4 { self.amt_v4 } else { self.amt_v6 }
    }
}

/// Everything but relays, which need an owner that drives AMT gateways.
impl Default for Rungs {
    fn default() -> Self {
        Rungs {
            multicast_v4: true,
            multicast_v6: true,
            amt_v4: false,
            amt_v6: false,
            replicated: true,
        }
    }
}

/// Events and requests for the owner of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiverEvent {
    /// The source serves this channel.
    Welcome {
        /// The channel's name.
        channel: String,
        /// Its incarnation.
        incarnation: Uuid,
        /// The source's last `seq`.
        head: u64,
        /// Where delivery begins.
        first: u64,
        /// The incarnation is not the one of the cursor: delivery starts over.
        resync: bool,
    },
    /// The source signs the updates of this channel.
    Lineage {
        /// The channel's name.
        channel: String,
        /// Which key signed which updates, in the place of what was said before.
        lineage: Lineage,
    },
    /// The source turned the receiver away.
    Refused {
        /// A [`crate::control::Refusal`] number.
        code: u64,
        /// In the source's words.
        reason: String,
    },
    /// The addresses under which the source is reached, in the place of those of before. They mean
    /// something to a receiver whose connection is to one of them: from elsewhere the source is
    /// reached by a translated address.
    Addresses(Vec<SourceAddress>),
    /// Listen to this flow by one of its endpoints.
    Join {
        /// The flow.
        flow: FlowId,
        /// Where it can be had.
        endpoints: Vec<Endpoint>,
    },
    /// Nothing arrives by the join: leave and join again.
    Rejoin {
        /// The flow.
        flow: FlowId,
    },
    /// Stop listening to this flow.
    Leave {
        /// The flow.
        flow: FlowId,
    },
    /// Get this flow's packets through an AMT relay: one that is configured, one of these, or
    /// whatever else can be found. Pass in what arrives as [`Rung::Amt`] with this number, and
    /// call [`super::Receiver::relay_lost`] and [`super::Receiver::no_relay`]. For a tunnel that
    /// is open, this replaces the earlier request. Tunnels of one flow with other numbers are by
    /// other relays.
    Tunnel {
        /// The flow.
        flow: FlowId,
        /// The number of the tunnel: 0, or 1 for a second relay.
        number: u64,
        /// The name of its channel.
        channel: String,
        /// Where it can be had; one of them is enough.
        endpoints: Vec<Endpoint>,
        /// The relays that the source knows of.
        relays: Vec<RelayHint>,
    },
    /// Nothing arrives through the relay any more, or yet: check whether it is alive, and try the
    /// other relays and endpoints.
    Retunnel {
        /// The flow.
        flow: FlowId,
        /// The number of the tunnel.
        number: u64,
    },
    /// This tunnel of a flow is not wanted any more.
    EndTunnel {
        /// The flow.
        flow: FlowId,
        /// The number of the tunnel.
        number: u64,
    },
    /// Why a rung does not hold, or did not; the receiver does not move by it.
    Explained {
        /// The channel's name.
        channel: String,
        /// The rung: one that was tried without success ([`Cause::ProbeTimeout`]), or the one of
        /// the last fall-back ([`Cause::RelayLost`]).
        rung: Rung,
        /// The current rung.
        on: Rung,
        /// Why.
        cause: Cause,
    },
    /// A leg of a flow that is taken by several at once works, is lost, or, with
    /// [`LegState::Trying`], is given up. The receiver does not move by that: another one goes on.
    Leg {
        /// The channel's name.
        channel: String,
        /// The leg.
        leg: Leg,
        /// Its new state.
        state: LegState,
    },
    /// The source does not know flows by two legs: there will be one.
    OneLeg,
    /// The source moved the receiver.
    Moved {
        /// The channel's name.
        channel: String,
        /// The new rung.
        rung: Rung,
        /// Why.
        cause: Cause,
    },
    /// The flow brought an update that is invalid or contradicts itself: a member forges packets,
    /// or the source is at fault.
    Distrusted {
        /// The channel's name.
        channel: String,
        /// The update, and why.
        found: DistrustedUpdate,
    },
    /// The flow brought an update wrong, and the source does not answer NEED: end this connection
    /// and begin another, which begins with that update.
    Reconnect {
        /// The channel's name.
        channel: String,
        /// The update.
        seq: u64,
    },
    /// The source sent an update of this channel that no pinned key answers for. Nothing of the
    /// channel is taken on this connection any more: end it, and see
    /// [`super::Receiver::suspend`].
    AuthenticationFailed {
        /// The channel's name.
        channel: String,
        /// The update, and why.
        failure: AuthenticationFailure,
    },
    /// A message to all receivers of the channel, once and in no order.
    Message {
        /// The channel's name.
        channel: String,
        /// Its number.
        number: u64,
        /// Unix time in ms at which it expires, by the source's clock.
        deadline_ms: Option<u64>,
        /// Its bytes, with the header that signs them if the source does.
        encoded: Bytes,
    },
}

/// State and counters of one channel since the receiver's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// The largest `seq` that the source is known to have.
    pub head: u64,
    /// Counters of the reception.
    pub reception: ReceptionCounters,
    /// Accepted flow packets that came replicated on the connection's own path.
    pub copied_packets: u64,
    /// Accepted flow packets that came through an AMT relay.
    pub tunnelled_packets: u64,
    /// Flow packets for whose updates there was no room: they come again on the unicast path.
    pub no_room: u64,
    /// Flow packets that opened under the flow's key, and that the source did not send: their
    /// signature was wrong. They count as invalid, too.
    pub forged_packets: u64,
    /// Flow packets that were dropped because no tag came for them: those of a forger, and those
    /// whose tags were lost.
    pub untagged_packets: u64,
    /// Tags that failed: comparisons with a packet that the tag does not fit, and tags that no
    /// packet waited for. Some are the source's own, where packets were lost or overtaken.
    pub failed_tags: u64,
    /// Key epochs that were learnt.
    pub keys: u64,
    /// Updates that the source took off the flow before all of them was sent.
    pub resets: u64,
    /// Counters of messages.
    pub messages: MessageCounters,
    /// Updates that are gone for good.
    pub gone: u64,
}

/// Counters of the messages of a channel that were whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MessageCounters {
    /// Those that were handed on.
    pub taken: u64,
    /// Those whose deadline had passed.
    pub late: u64,
    /// Those for which the application left no room.
    pub dropped: u64,
    /// Those that the source did not send.
    pub forged: u64,
}

/// Counters of what arrived on a channel, which a status shows as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReceptionCounters {
    /// Flow packets that were accepted.
    pub flow_packets: u64,
    /// Packets that did not arrive and were rebuilt from repair symbols.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rebuilt: u64,
    /// Flow packets that did not verify, or whose frames were invalid.
    pub flow_invalid: u64,
    /// Flow packets that arrived twice, and pieces of updates that were whole already.
    pub duplicates: u64,
    /// Times that bytes of an update contradicted each other.
    pub mismatches: u64,
    /// Updates whose bytes from the flow were dropped, and fetched again by unicast.
    #[cfg_attr(feature = "serde", serde(default))]
    pub refetched: u64,
    /// Headers and whole updates that the flow brought and the source did not sign.
    #[cfg_attr(feature = "serde", serde(default))]
    pub forged: u64,
    /// Updates with a deadline that were handed on as soon as they were whole.
    #[cfg_attr(feature = "serde", serde(default))]
    pub live: u64,
    /// Updates that were passed over because their deadline had passed.
    #[cfg_attr(feature = "serde", serde(default))]
    pub expired: u64,
    /// Those of them of which at least the header had come: they expired by the receiver's own
    /// clock.
    #[cfg_attr(feature = "serde", serde(default))]
    pub late: u64,
    /// Times that a working leg of a flow that comes by two fell silent.
    #[cfg_attr(feature = "serde", serde(default))]
    pub legs_lost: u64,
    /// Flow packets that came by one leg after another had brought them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub redundant: u64,
}
