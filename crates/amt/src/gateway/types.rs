//! Inputs and outputs of the gateway.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::ip::IpError;
use crate::{Mac, WireError};

/// Most candidates that a gateway keeps; the rest is ignored.
pub const MAX_CANDIDATES: usize = 32;
/// Most distinct subscriptions.
pub const MAX_SUBSCRIPTIONS: usize = 1024;
/// Most sources of one group: as many as one IGMPv3 or MLDv2 record in a 1,280-byte packet holds.
pub const MAX_SOURCES_PER_GROUP: usize = 64;

/// Durations and counts of the gateway. The defaults suit the Internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Pause before the next candidate is contacted in parallel with the unanswered ones.
    pub stagger: Duration,
    /// First wait for an answer from a relay of unknown round-trip time; doubles with each
    /// repetition.
    pub first_wait: Duration,
    /// Longest wait between two repetitions.
    pub longest_wait: Duration,
    /// Unanswered messages after which a candidate has failed.
    pub attempts: u32,
    /// First hold-down of a failed relay; doubles with each failure in a row.
    pub hold_down: Duration,
    /// Longest hold-down.
    pub longest_hold_down: Duration,
    /// Approximate pause between two Requests to a relay in use that stopped answering.
    pub probe: Duration,
    /// Time for which such a relay is probed before it is held down like others.
    pub probe_for: Duration,
    /// Longest pause between two queries, whatever the relay's interval: NATs forget idle mappings.
    pub longest_query_interval: Duration,
    /// Time for which packets of an unresponsive relay are still accepted after the move to another
    /// one, unless the new one delivers all its flows earlier.
    pub overlap: Duration,
    /// The same for a relay that was left although it answers. If it then still brings packets that
    /// the new one does not, it is used again.
    pub longest_overlap: Duration,
    /// Time without packets after which a suspected relay is replaced by another one; doubles each
    /// time in a row (RFC 8777, section 2.5.4.1).
    pub silence: Duration,
    /// Longest such time.
    pub longest_silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            stagger: Duration::from_millis(250),
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            attempts: 4,
            hold_down: Duration::from_secs(5),
            longest_hold_down: Duration::from_secs(60),
            probe: Duration::from_secs(1),
            probe_for: Duration::from_secs(30),
            longest_query_interval: Duration::from_secs(60),
            overlap: Duration::from_secs(1),
            longest_overlap: Duration::from_secs(10),
            silence: Duration::from_secs(4),
            longest_silence: Duration::from_secs(120),
        }
    }
}

/// Discovery of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The configuration.
    Configured,
    /// An announcement of the flow's source.
    Hint,
    /// An AMTRELAY record of the flow's source (RFC 8777).
    Dns,
    /// The anycast discovery address (RFC 7450, section 7.1).
    Anycast,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Configured => "configured",
            Origin::Hint => "hint",
            Origin::Dns => "dns",
            Origin::Anycast => "anycast",
        })
    }
}

/// A relay that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Address and port for Requests, or for Relay Discovery.
    pub addr: SocketAddr,
    /// Whether Relay Discovery goes first to learn the relay's address, as with anycast addresses.
    pub discover: bool,
    /// Discovery of this relay.
    pub origin: Origin,
}

/// Addresses of a relay in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UsedRelay {
    /// Address to which Requests go.
    pub relay: IpAddr,
    /// Address of its candidate: the same, unless Relay Discovery led from there to the relay.
    pub found_at: IpAddr,
}

/// Proof by which a gateway can tear its tunnel down (RFC 7450, section 5.1.7), even in a later
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelProof {
    /// Address of the relay.
    pub relay: SocketAddr,
    /// Nonce of the Query that carried the gateway's address.
    pub nonce: u32,
    /// MAC of that Query.
    pub mac: Mac,
    /// Address and port at which the relay sees the gateway, in the relay's own form.
    pub gateway: SocketAddr,
}

/// A flow to receive: UDP datagrams to `port` of `group`, from `source` alone or from any source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subscription {
    /// S of (S,G); `None` for any source.
    pub source: Option<IpAddr>,
    /// The group.
    pub group: IpAddr,
    /// UDP destination port of the datagrams.
    pub port: u16,
}

impl fmt::Display for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(source) => write!(f, "({source}, {}) port {}", self.group, self.port),
            None => write!(f, "(*, {}) port {}", self.group, self.port),
        }
    }
}

/// Identifier of a subscription within its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub(super) u64);

/// Reason for rejecting a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The group is not a multicast address.
    #[error("{0} is not a multicast group (224.0.0.0 to 239.255.255.255, or ff00::/8)")]
    NotMulticast(IpAddr),
    /// The group never leaves its link or host, so no relay can forward it.
    #[error(
        "{0} is a group of a single link or host, which no relay forwards; choose another group"
    )]
    LinkLocal(IpAddr),
    /// The source is not a unicast address.
    #[error("{0} cannot be the source of a flow; give the address that the sender sends from")]
    BadSource(IpAddr),
    /// The group is source-specific (RFC 4607), and no source was given.
    #[error("{0} is a group of a single source (232.0.0.0/8, ff3x::/32): give its source")]
    NeedsSource(IpAddr),
    /// Source and group are of different address families.
    #[error("source {sender} and group {group} are of different address families")]
    MixedFamilies {
        /// Source address.
        sender: IpAddr,
        /// Group address.
        group: IpAddr,
    },
    /// The port is 0.
    #[error("the port of a flow cannot be 0")]
    NoPort,
    /// The bound on subscriptions, or on sources of one group, is reached.
    #[error(
        "a gateway takes {MAX_SUBSCRIPTIONS} subscriptions, and {MAX_SOURCES_PER_GROUP} sources of \
         one group"
    )]
    TooMany,
}

/// Result of handling a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A packet of a flow.
    Data {
        /// Subscription that the packet belongs to.
        subscription: SubscriptionId,
        /// Sender, from the inner packet.
        from: SocketAddr,
        /// Range of the inner UDP payload within the datagram.
        payload: Range<usize>,
    },
    /// A packet of a flow, completed by its last fragment.
    Assembled {
        /// Subscription that the packet belongs to.
        subscription: SubscriptionId,
        /// Sender, from the inner packet.
        from: SocketAddr,
        /// Payload of the inner UDP datagram.
        payload: Vec<u8>,
    },
    /// A fragment of an incomplete packet.
    Fragment,
    /// An answer of a relay.
    Control,
    /// A datagram that was ignored.
    Dropped(DropReason),
}

/// Reason for dropping a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// Not an AMT message.
    Malformed(WireError),
    /// A message type that only gateways send.
    WrongDirection,
    /// The sender is not the relay's address and port.
    NotTheRelay,
    /// An answer with an unknown nonce, or too late.
    UnknownNonce,
    /// The inner query is damaged, or of the other address family.
    BadQuery,
    /// The relay address in an Advertisement is not a unicast address.
    BadAddress,
    /// The inner packet is damaged, or not UDP over IP.
    BadPacket(IpError),
    /// A group, source or port without a subscription.
    NotSubscribed,
}

impl DropReason {
    /// Names returned by [`reason`](Self::reason), in the order of the counters.
    pub const REASONS: [&'static str; 8] = [
        "malformed",
        "wrong-direction",
        "not-the-relay",
        "unknown-nonce",
        "bad-query",
        "bad-address",
        "bad-packet",
        "not-subscribed",
    ];

    /// Returns a short name for counters.
    pub fn reason(self) -> &'static str {
        Self::REASONS[self.index()]
    }

    pub(super) fn index(self) -> usize {
        match self {
            DropReason::Malformed(_) => 0,
            DropReason::WrongDirection => 1,
            DropReason::NotTheRelay => 2,
            DropReason::UnknownNonce => 3,
            DropReason::BadQuery => 4,
            DropReason::BadAddress => 5,
            DropReason::BadPacket(_) => 6,
            DropReason::NotSubscribed => 7,
        }
    }
}

/// Reason for not using a relay (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RelayFailure {
    /// The relay does not answer.
    Timeout,
    /// The relay accepts no further gateways (L flag, RFC 7450 section 5.1.4.4).
    Limited,
    /// There is no route to the relay.
    Unreachable,
    /// The relay answers, but brings no packets.
    NoTraffic,
    /// The relay is excluded, because another gateway uses it.
    Excluded,
}

impl fmt::Display for RelayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RelayFailure::Timeout => "it does not answer",
            RelayFailure::Limited => "it accepts no more gateways",
            RelayFailure::Unreachable => "it is unreachable",
            RelayFailure::NoTraffic => "it answers, but brings no packets",
            RelayFailure::Excluded => "another tunnel of the flow uses it",
        })
    }
}

/// A change of the gateway's relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A relay was selected, and the subscriptions were reported to it.
    Connected {
        /// Address of the relay.
        relay: SocketAddr,
        /// Discovery of this relay.
        origin: Origin,
        /// Time from the Request to its Query.
        rtt: Duration,
    },
    /// The relay is not used any more; a search, or [`Event::Connected`], follows.
    Lost {
        /// Address of the relay.
        relay: SocketAddr,
        /// Reason of the loss.
        why: RelayFailure,
    },
    /// All candidates failed, or there are none. The first is tried again at `retry`; a caller that
    /// can find other candidates should do so now.
    NoRelay {
        /// Number of candidates.
        candidates: usize,
        /// Time of the next attempt, if there are candidates.
        retry: Option<Instant>,
    },
    /// The relay sees this gateway at another address than before, and was notified.
    AddressChanged {
        /// Previous address.
        from: SocketAddr,
        /// Current address.
        to: SocketAddr,
    },
    /// The relay does not answer for one of the two inner address families.
    Unanswered {
        /// Address of the relay.
        relay: SocketAddr,
        /// Whether the family is IPv6 (MLD), else IPv4 (IGMP).
        mld: bool,
    },
    /// No subscription is left; the relay was left.
    Idle {
        /// Address of the relay.
        relay: SocketAddr,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Connected { relay, origin, rtt } => {
                write!(f, "AMT relay {relay} ({origin}) answered within {rtt:.1?}")
            }
            Event::Lost { relay, why } => write!(f, "AMT relay {relay} is abandoned: {why}"),
            Event::NoRelay { candidates: 0, .. } => f.write_str("no AMT relay is known"),
            Event::NoRelay { candidates, .. } => {
                write!(
                    f,
                    "none of the {candidates} known AMT relays can be used now"
                )
            }
            Event::AddressChanged { from, to } => write!(
                f,
                "the AMT relay sees this gateway at {to} (before: {from})"
            ),
            Event::Unanswered { relay, mld } => write!(
                f,
                "AMT relay {relay} does not answer for {}",
                if *mld { "IPv6 groups" } else { "IPv4 groups" }
            ),
            Event::Idle { relay } => {
                write!(f, "AMT relay {relay} is disconnected: no subscriptions")
            }
        }
    }
}

/// Counters of a gateway; they never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets of flows handed to the caller.
    pub data: u64,
    /// Bytes of their payload.
    pub data_bytes: u64,
    /// Relay Discovery messages sent.
    pub discoveries: u64,
    /// Requests sent.
    pub requests: u64,
    /// Valid Queries received.
    pub queries: u64,
    /// Membership Updates sent.
    pub updates: u64,
    /// Teardowns sent.
    pub teardowns: u64,
    /// Messages not sent because too many were waiting.
    pub unsent: u64,
    /// Datagrams dropped, by reason in the order of [`DropReason::REASONS`].
    pub dropped: [u64; DropReason::REASONS.len()],
}

impl Counters {
    /// Returns the dropped datagrams of each of [`DropReason::REASONS`].
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DropReason::REASONS.into_iter().zip(self.dropped)
    }
}

/// Snapshot of a gateway, for a status page.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Relay in use.
    pub relay: Option<RelayStatus>,
    /// All known candidates, in the order of preference.
    pub candidates: Vec<CandidateStatus>,
    /// Number of distinct subscriptions.
    pub subscriptions: usize,
    /// Counters.
    pub counters: Counters,
}

/// Status of the relay in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// Address of the relay.
    pub addr: SocketAddr,
    /// Discovery of this relay.
    pub origin: Origin,
    /// Start of its use.
    pub since: Instant,
    /// Round-trip time of the last handshake.
    pub rtt: Duration,
    /// Address at which the relay sees this gateway, if it reports that.
    pub gateway: Option<SocketAddr>,
    /// Whether the relay accepts no further gateways; it continues to serve this one.
    pub limited: bool,
    /// Whether the relay answered for IPv4 groups.
    pub igmp: bool,
    /// Whether the relay answered for IPv6 groups.
    pub mld: bool,
    /// Arrival of the last datagram from the relay.
    pub heard: Instant,
}

/// Status of one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CandidateStatus {
    /// The candidate.
    pub candidate: Candidate,
    /// Current state.
    pub state: CandidateState,
    /// Reason of the last failure since it was last selected.
    pub failed: Option<RelayFailure>,
}

/// State of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CandidateState {
    /// Not needed, or not tried yet.
    Waiting,
    /// Asked, and no answer yet.
    Asked,
    /// In use.
    Selected,
    /// Failed, and not tried again before the end of its hold-down.
    HeldDown {
        /// End of the hold-down.
        until: Instant,
    },
}
