//! What goes into the gateway and what comes out of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::ip::IpError;
use crate::{Mac, WireError};

/// Most candidates that a gateway keeps; further ones are ignored.
pub const MAX_CANDIDATES: usize = 32;
/// Most different subscriptions.
pub const MAX_SUBSCRIPTIONS: usize = 1024;
/// Most sources of one group: what one IGMPv3 or MLDv2 record in a 1,280-byte packet can name.
pub const MAX_SOURCES_PER_GROUP: usize = 64;

/// The durations that the gateway goes by. The defaults suit the Internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Pause before the next candidate is tried beside the ones that have not answered yet.
    pub stagger: Duration,
    /// First wait for the answer to a message to a relay whose round-trip time is not known; it
    /// doubles with each repetition.
    pub first_wait: Duration,
    /// Longest wait between two repetitions.
    pub longest_wait: Duration,
    /// Messages without an answer after which a candidate has failed.
    pub attempts: u32,
    /// First hold-down of a relay that failed; it doubles with each failure in a row.
    pub hold_down: Duration,
    /// Longest hold-down.
    pub longest_hold_down: Duration,
    /// Pause between two Requests to a relay that was in use and stopped answering, about.
    pub probe: Duration,
    /// Time for which such a relay is probed before it is held down like others.
    pub probe_for: Duration,
    /// Longest pause between two queries, whatever the relay's interval: address translators
    /// forget a mapping that nothing is sent over.
    pub longest_query_interval: Duration,
    /// How long packets of a relay that did not answer are still taken after the move to another
    /// one, unless that one brings all that it brought.
    pub overlap: Duration,
    /// The same for a relay that was left although it answers. If it then still brings packets
    /// that the other one does not, it is used again.
    pub longest_overlap: Duration,
    /// A relay that is suspected and has brought nothing for this time is left for another one.
    /// Each time in a row, it takes twice as long (RFC 8777, section 2.5.4.1).
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

/// How a relay became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// It was configured.
    Configured,
    /// The source announced it.
    Hint,
    /// An AMTRELAY record of the source (RFC 8777).
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
    /// Where it is asked.
    pub addr: SocketAddr,
    /// Whether it is asked for a relay's address first (Relay Discovery), as anycast addresses are.
    pub discover: bool,
    /// How it became known.
    pub origin: Origin,
}

/// A tunnel as its gateway can take it down (RFC 7450, section 5.1.7), also in a later run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelProof {
    /// Where the relay is.
    pub relay: SocketAddr,
    /// Nonce of the Query that named the gateway's address.
    pub nonce: u32,
    /// MAC of that Query.
    pub mac: Mac,
    /// Address and port at which the relay sees the gateway, in the relay's own form.
    pub gateway: SocketAddr,
}

/// What one wants to receive: UDP datagrams to `port` of `group`, from `source` alone or from any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subscription {
    /// S of (S,G); `None` for any source.
    pub source: Option<IpAddr>,
    /// The group.
    pub group: IpAddr,
    /// The UDP port that the datagrams are sent to.
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

/// Names a subscription of one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub(super) u64);

/// Why a subscription is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The group is not a multicast address.
    #[error("{0} is not a multicast group (224.0.0.0 to 239.255.255.255, or ff00::/8)")]
    NotMulticast(IpAddr),
    /// The group never leaves its link or host, so no relay can forward it.
    #[error(
        "{0} is a group of a single link or host, which no relay forwards; choose another group"
    )]
    LinkLocal(IpAddr),
    /// The source cannot be one.
    #[error("{0} cannot be the source of a flow; give the address that the sender sends from")]
    BadSource(IpAddr),
    /// The group is one of a single source (RFC 4607), and none was given.
    #[error("{0} is a group of a single source (232.0.0.0/8, ff3x::/32): name its source")]
    NeedsSource(IpAddr),
    /// One is IPv4, the other IPv6.
    #[error("source {sender} and group {group} are of different address families")]
    MixedFamilies {
        /// The source.
        sender: IpAddr,
        /// The group.
        group: IpAddr,
    },
    /// UDP has no port 0.
    #[error("the port of a flow cannot be 0")]
    NoPort,
    /// There are as many as a gateway takes.
    #[error(
        "a gateway takes {MAX_SUBSCRIPTIONS} subscriptions, and {MAX_SOURCES_PER_GROUP} sources of one group"
    )]
    TooMany,
}

/// What became of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A packet of a flow.
    Data {
        /// Whose it is.
        subscription: SubscriptionId,
        /// The sender, as the packet inside says.
        from: SocketAddr,
        /// Where the payload of the UDP datagram inside is in what came in.
        payload: Range<usize>,
    },
    /// The last fragment of a packet of a flow.
    Assembled {
        /// Whose it is.
        subscription: SubscriptionId,
        /// The sender, as the packet inside says.
        from: SocketAddr,
        /// The payload of the UDP datagram inside.
        payload: Vec<u8>,
    },
    /// A fragment whose packet is not whole yet.
    Fragment,
    /// An answer of a relay, which the gateway goes on with.
    Control,
    /// Nothing that it wants.
    Dropped(Dropped),
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Not an AMT message.
    Malformed(WireError),
    /// A message that only gateways send.
    WrongDirection,
    /// It does not come from the address and port of the relay.
    NotTheRelay,
    /// An answer to no question of ours: another nonce, or too late.
    UnknownNonce,
    /// The query inside is none, or of the other address family.
    BadQuery,
    /// The relay's address in an advertisement cannot be one.
    BadAddress,
    /// The packet inside is damaged, or not UDP over IP.
    BadPacket(IpError),
    /// A group, source or port that nobody subscribed to.
    NotSubscribed,
}

impl Dropped {
    /// All names of [`reason`](Self::reason), in the order of the counters.
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

    /// A short name for counters.
    pub fn reason(self) -> &'static str {
        Self::REASONS[self.index()]
    }

    pub(super) fn index(self) -> usize {
        match self {
            Dropped::Malformed(_) => 0,
            Dropped::WrongDirection => 1,
            Dropped::NotTheRelay => 2,
            Dropped::UnknownNonce => 3,
            Dropped::BadQuery => 4,
            Dropped::BadAddress => 5,
            Dropped::BadPacket(_) => 6,
            Dropped::NotSubscribed => 7,
        }
    }
}

/// Why a relay is not used (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lost {
    /// It does not answer.
    Timeout,
    /// It takes no further gateways (L flag, RFC 7450 section 5.1.4.4).
    Limited,
    /// Nothing can be sent there.
    Unreachable,
    /// It answers, and brings no packets.
    NoTraffic,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lost::Timeout => "it does not answer",
            Lost::Limited => "it is full",
            Lost::Unreachable => "nothing can be sent there",
            Lost::NoTraffic => "it answers, but brings no packets",
        })
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A relay was selected, and has been told the subscriptions.
    Connected {
        /// Where it is.
        relay: SocketAddr,
        /// How it became known.
        origin: Origin,
        /// From the Request to its answer.
        rtt: Duration,
    },
    /// The relay is not used any more; the next is looked for, or [`Event::Connected`] follows.
    Lost {
        /// Where it was.
        relay: SocketAddr,
        /// Why.
        why: Lost,
    },
    /// All candidates failed (or there is none). The first of them is tried again at `retry`; who
    /// knows how to find others does so now.
    NoRelay {
        /// How many there are.
        candidates: usize,
        /// When the next attempt is due, if there are candidates.
        retry: Option<Instant>,
    },
    /// The relay sees this gateway at another address than before; it was told.
    AddressChanged {
        /// The address before.
        from: SocketAddr,
        /// The address now.
        to: SocketAddr,
    },
    /// The relay does not answer for one of the two address families inside.
    Unanswered {
        /// Where it is.
        relay: SocketAddr,
        /// IPv6 (MLD), else IPv4 (IGMP).
        mld: bool,
    },
    /// Nothing is subscribed any more; the relay was left.
    Idle {
        /// Where it was.
        relay: SocketAddr,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Connected { relay, origin, rtt } => {
                write!(f, "AMT relay {relay} ({origin}) answered within {rtt:.1?}")
            }
            Event::Lost { relay, why } => write!(f, "AMT relay {relay} is given up: {why}"),
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
            Event::Idle { relay } => write!(f, "AMT relay {relay} is left: no group is wanted"),
        }
    }
}

/// Numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of flows that were handed out.
    pub data: u64,
    /// Bytes of their payload.
    pub data_bytes: u64,
    /// Relay Discovery messages sent.
    pub discoveries: u64,
    /// Requests sent.
    pub requests: u64,
    /// Queries taken.
    pub queries: u64,
    /// Membership Updates sent.
    pub updates: u64,
    /// Teardowns sent.
    pub teardowns: u64,
    /// Messages not sent because too many were waiting.
    pub unsent: u64,
    /// Datagrams dropped, by reason: the order is that of [`Dropped::REASONS`].
    pub dropped: [u64; Dropped::REASONS.len()],
}

impl Counters {
    /// Datagrams dropped for one of [`Dropped::REASONS`].
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Dropped::REASONS.into_iter().zip(self.dropped)
    }
}

/// How things stand, for a status page.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The relay in use.
    pub relay: Option<RelayStatus>,
    /// All known candidates, in the order of preference.
    pub candidates: Vec<CandidateStatus>,
    /// Different subscriptions.
    pub subscriptions: usize,
    /// All counters.
    pub counters: Counters,
}

/// The relay in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayStatus {
    /// Where it is.
    pub addr: SocketAddr,
    /// How it became known.
    pub origin: Origin,
    /// Since when it is used.
    pub since: Instant,
    /// Of the last handshake.
    pub rtt: Duration,
    /// Where the relay sees this gateway, if it says so.
    pub gateway: Option<SocketAddr>,
    /// It takes no further gateways, but goes on to serve this one.
    pub limited: bool,
    /// It answered for IPv4 groups.
    pub igmp: bool,
    /// It answered for IPv6 groups.
    pub mld: bool,
    /// When something came from it last.
    pub heard: Instant,
}

/// One candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateStatus {
    /// The candidate.
    pub candidate: Candidate,
    /// What is known of it.
    pub state: CandidateState,
    /// Why it failed last, if it did since it was selected last.
    pub failed: Option<Lost>,
}

/// What is known of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateState {
    /// Not needed, or not tried yet.
    Waiting,
    /// It was asked and has not answered yet.
    Asked,
    /// In use.
    Selected,
    /// It failed, and is not tried again before this time.
    HeldDown {
        /// The end of it.
        until: Instant,
    },
}
