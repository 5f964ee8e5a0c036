//! A receiver over real sockets: one connection to a source that is kept alive, the flow beside it,
//! and the updates that come out.

mod batch;
mod connection;
mod delivery;
mod engine;
mod groups;
pub mod probe;
mod race;
mod reconnection;
mod route;
mod shared_groups;
mod stall;
mod suspension;
mod tunnels;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

pub use amt_tokio::RelayName;
use bytes::Bytes;
pub use flexicast::control::{Leg, LegState};
pub use flexicast::receiver::{
    AuthenticationFailure, ChannelStats, Check, DistrustedUpdate, ReceptionCounters, Redundancy,
    Validity,
};
use flexicast::signing::{Lineage, VerifyingKey};
use flexicast::{Cause, Cursor, Rung, Via};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use engine::{Cursors, Engine};
pub use shared_groups::{FlowLoss, SharedGroups};

/// Bound on events waiting for the application; beyond it, the receiver reads no more from the
/// network. Large, so that an application far behind can write many updates at once.
const EVENTS: usize = 4096;

/// Authentication of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verify {
    /// By its key: SHA-256 of the SubjectPublicKeyInfo, any one of these (two allow for rotation).
    Pins(Vec<[u8; 32]>),
    /// By a certificate for the host's name, or its address, of an authority that this system
    /// trusts: the public web PKI.
    Roots,
    /// By a certificate for the host's name, or its address, of an authority in this PEM file.
    CaFile(PathBuf),
    /// None: for tests on a private network.
    Insecure,
}

/// Configuration of a receiver.
#[derive(Clone)]
pub struct ReceiverConfig {
    /// `host:port` of the source; the name is looked up at each attempt, and all its addresses are
    /// tried.
    pub server: String,
    /// Where the source was in an earlier run ([`Event::Addresses`]): tried after the addresses of
    /// its name, which may lead nowhere any more.
    pub known: Vec<SocketAddr>,
    /// Authentication of the source.
    pub verify: Verify,
    /// Enrolment token; may be empty once the source knows the receiver by its credential. Never
    /// sent before the source is verified.
    pub token: Vec<u8>,
    /// Secret by which the source recognizes the receiver: random, made once and kept, and written
    /// to the disk before it is first used here. Never sent before the source is verified.
    pub credential: [u8; 32],
    /// Identity of the receiver: made once and kept.
    pub receiver_id: Uuid,
    /// Name for people.
    pub name: String,
    /// Program and version, for people.
    pub software: String,
    /// Names of the channels, each with the cursor of its outputs, or [`Cursor::of_last`] in the
    /// place of one.
    pub channels: Vec<(String, Option<Cursor>)>,
    /// Address of the interface to join multicast groups on, of either family; `None` leaves it to
    /// the routing table.
    pub interface: Option<IpAddr>,
    /// Whether to try native multicast, by IPv4 and IPv6.
    pub multicast: bool,
    /// Whether to have the source replicate flows to this receiver where multicast does not reach
    /// (rung 3).
    pub replicated: bool,
    /// AMT relays to use where multicast does not reach (rung 2); `None` for none.
    pub amt: Option<Relays>,
    /// Number of legs of a flow to take at once, as far as they work.
    pub redundancy: Redundancy,
    /// Folder for qlog files of all connections and flows.
    pub qlog: Option<PathBuf>,
    /// Whether encoded bytes are a valid update of this `seq`. An invalid update that any packet
    /// of a flow took part in is fetched again by unicast. `None` accepts all.
    pub check: Option<Check>,
    /// Whether signed updates are verified; on by default. Only a load generator with many
    /// receivers of the same updates may do without.
    pub verify_updates: bool,
    /// Keys that the source's updates have to be signed by, or by keys that these vouch for;
    /// without any, the source states its keys.
    pub pinned_keys: Vec<VerifyingKey>,
}

impl ReceiverConfig {
    /// Returns the configuration of a receiver that uses native multicast, replication and unicast,
    /// and accepts all bytes as updates.
    pub fn new(
        server: impl Into<String>,
        verify: Verify,
        receiver_id: Uuid,
        credential: [u8; 32],
        channels: Vec<(String, Option<Cursor>)>,
    ) -> Self {
        ReceiverConfig {
            server: server.into(),
            known: Vec::new(),
            verify,
            token: Vec::new(),
            credential,
            receiver_id,
            name: String::new(),
            software: String::new(),
            channels,
            interface: None,
            multicast: true,
            replicated: true,
            amt: None,
            redundancy: Redundancy::One,
            qlog: None,
            check: None,
            verify_updates: true,
            pinned_keys: Vec::new(),
        }
    }
}

/// AMT relays of a receiver, in addition to those announced by the source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Relays {
    /// These, in this order.
    pub configured: Vec<RelayName>,
    /// Under the reverse name of the flow's source in DNS (RFC 8777).
    pub dns: bool,
    /// At the anycast addresses of RFC 7450.
    pub anycast: bool,
    /// Local UDP port towards relays where it is free, in place of one that the kernel chooses.
    pub port: Option<u16>,
    /// File that keeps local ports and tunnels for the next run; without it, nothing is kept.
    pub memory: Option<PathBuf>,
}

/// Protections that a receiver leaves out, for tests that must notice. All are on by default.
#[cfg(feature = "fault-injection")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Whether updates that arrive twice are delivered twice.
    pub dedupe_off: bool,
    /// Whether the flow's updates are taken as those of a source that does not sign.
    pub signatures_off: bool,
    /// Whether the bytes behind a signed header are taken unseen.
    pub hash_check_off: bool,
    /// Whether packets of flows are taken without a signature or tag.
    pub packet_check_off: bool,
    /// Whether rebuilt packets count as such that arrived.
    pub rebuilt_proves: bool,
    /// Whether messages are handed on that the source did not sign.
    pub message_check_off: bool,
    /// Whether what the second leg of a flow brings counts for nothing.
    pub legs_unmerged: bool,
    /// Whether updates are handed on although their deadline has passed.
    pub expired_delivered: bool,
    /// Whether a lost AMT relay is never replaced by another one.
    pub relay_failover_off: bool,
    /// Faults of the AMT gateways.
    pub gateway: amt_tokio::Faults,
}

impl std::fmt::Debug for ReceiverConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither token nor credential.
        f.debug_struct("ReceiverConfig")
            .field("server", &self.server)
            .field("verify", &self.verify)
            .field("receiver_id", &self.receiver_id)
            .field("name", &self.name)
            .field("channels", &self.channels)
            .field("interface", &self.interface)
            .field("multicast", &self.multicast)
            .field("replicated", &self.replicated)
            .field("amt", &self.amt)
            .finish_non_exhaustive()
    }
}

/// Events for the application.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The source is verified and connected.
    Connected {
        /// Its address.
        addr: SocketAddr,
    },
    /// The source is to be found at these addresses: the one that serves this receiver, and those
    /// that it has announced. For [`ReceiverConfig::known`] of the next run.
    Addresses {
        /// At most eight.
        known: Vec<SocketAddr>,
    },
    /// The connection is gone, or could not be made.
    Disconnected {
        /// Why, for people.
        reason: String,
        /// When the next attempt begins.
        retry_in: Duration,
    },
    /// The source turned the receiver away.
    Refused {
        /// A number of protocol.md section 4.3.
        code: u64,
        /// In the source's words.
        reason: String,
        /// Trying again would be refused again: the receiver has stopped.
        fatal: bool,
    },
    /// The source serves this channel.
    Welcome {
        /// The channel.
        channel: String,
        /// Its incarnation.
        incarnation: Uuid,
        /// The source's last `seq`.
        head: u64,
        /// Where delivery begins.
        first: u64,
        /// The channel is not the one of the cursor any more: delivery starts over.
        resync: bool,
    },
    /// The source signs the updates of this channel.
    Lineage {
        /// The channel.
        channel: String,
        /// Which key signed which updates, in the place of what was said before.
        lineage: Lineage,
    },
    /// Updates that are gone for good; it comes where they would have come.
    Gap {
        /// The channel.
        channel: String,
        /// First missing `seq`.
        from: u64,
        /// Last missing `seq`.
        to: u64,
    },
    /// An update with a deadline, as soon as it is whole: the newest of several first, each once.
    /// It comes again in order, as [`Event::Update`].
    Live {
        /// The channel.
        channel: String,
        /// The channel's incarnation.
        incarnation: Uuid,
        /// Its number.
        seq: u64,
        /// Its encoded bytes.
        encoded: Bytes,
        /// Path of the arrival.
        via: Via,
        /// Unix time in ms at which it expires, by the source's clock.
        deadline_ms: u64,
        /// Instant at which it has expired, as the source's clock was known when it was handed on:
        /// an application that takes it later than that leaves it. `None` for one that is beyond
        /// what can be counted.
        expires_at: Option<Instant>,
    },
    /// Updates whose deadline passed before all of them had come; it comes where they would have
    /// come.
    Expired {
        /// The channel.
        channel: String,
        /// First expired `seq`.
        from: u64,
        /// Last expired `seq`.
        to: u64,
    },
    /// An update: each once, in order per channel.
    Update {
        /// The channel.
        channel: String,
        /// The channel's incarnation.
        incarnation: Uuid,
        /// Its number.
        seq: u64,
        /// Its encoded bytes.
        encoded: Bytes,
        /// Path of the arrival.
        via: Via,
    },
    /// The flow brought an update that is invalid or contradicts itself: a member forges packets,
    /// or the source is at fault. Unless the update was handed out before, it is fetched again by
    /// unicast.
    Distrusted {
        /// The channel.
        channel: String,
        /// The update, and why.
        found: DistrustedUpdate,
    },
    /// The source sends updates of this channel that no pinned key answers for: the receiver takes
    /// nothing of the channel until it tries again.
    AuthenticationFailed {
        /// The channel.
        channel: String,
        /// The update, and why.
        failure: AuthenticationFailure,
        /// When the channel is tried again.
        retry_in: Duration,
    },
    /// A message to all receivers of the channel, once and in no order. One may get lost.
    Message {
        /// The channel.
        channel: String,
        /// Its number.
        number: u64,
        /// Its bytes, with the header that signs them if the source does.
        encoded: Bytes,
        /// Unix time in ms at which it expires, by the source's clock.
        deadline_ms: Option<u64>,
        /// Instant at which it has expired, as the source's clock was known when it arrived.
        expires_at: Option<Instant>,
    },
    /// The receiver has moved to another rung.
    Rung {
        /// The channel.
        channel: String,
        /// Its rung now.
        rung: Rung,
        /// Why.
        cause: Cause,
        /// When.
        at: SystemTime,
    },
    /// A leg of a flow that comes by two works, or is lost while another one goes on. The receiver
    /// does not move by that alone.
    Leg {
        /// The channel.
        channel: String,
        /// The leg.
        leg: Leg,
        /// Its new state.
        state: LegState,
        /// When.
        at: SystemTime,
    },
    /// Two legs are asked for, and the source serves one only: it is too old.
    OneLeg,
    /// Why a rung does not hold, or did not; the receiver does not move by it.
    Explained {
        /// The channel.
        channel: String,
        /// The rung: one that was tried without success ([`Cause::ProbeTimeout`]), or the one of
        /// the last fall-back ([`Cause::RelayLost`], which replaces the cause given then).
        rung: Rung,
        /// The receiver's rung.
        on: Rung,
        /// Why.
        cause: Cause,
        /// When.
        at: SystemTime,
    },
    /// The receiver has found an AMT relay for a channel's flow, has lost it, or finds none.
    /// [`Event::Rung`] reports the current rung.
    Relay {
        /// The channel.
        channel: String,
        /// The number of the leg: 0, or 1 for a second relay.
        number: u64,
        /// The relay that it has.
        relay: Option<SocketAddr>,
        /// Description for people.
        text: String,
        /// When.
        at: SystemTime,
    },
    /// Counters, about once a second while they change.
    Stats {
        /// The channel.
        channel: String,
        /// Their values since the receiver's start.
        stats: ChannelStats,
    },
}

/// Starts receivers.
pub struct Receiver;

impl Receiver {
    /// Starts a receiver on the current tokio runtime. It connects by itself and reconnects for
    /// ever, with growing and jittered pauses. Events have to be read: an application that does not
    /// read them stops the transport, and loses nothing.
    pub fn start(config: ReceiverConfig) -> (ReceiverHandle, mpsc::Receiver<Event>) {
        Self::spawn(config, |_| ())
    }

    /// Starts a receiver like [`Receiver::start`] that takes multicast by the groups that all
    /// receivers started with `groups` share. A process with thousands of receivers joins each
    /// group once, and gets each of its packets once.
    pub fn start_sharing(
        config: ReceiverConfig,
        groups: &SharedGroups,
    ) -> (ReceiverHandle, mpsc::Receiver<Event>) {
        Self::spawn(config, |engine| engine.share_groups(groups.clone()))
    }

    /// Starts a receiver like [`Receiver::start`] that leaves protections out, for tests that must
    /// notice.
    #[cfg(feature = "fault-injection")]
    pub fn start_with_faults(
        config: ReceiverConfig,
        faults: Faults,
    ) -> (ReceiverHandle, mpsc::Receiver<Event>) {
        Self::spawn(config, |engine| engine.inject_faults(faults))
    }

    fn spawn(
        config: ReceiverConfig,
        prepare: impl FnOnce(&mut Engine),
    ) -> (ReceiverHandle, mpsc::Receiver<Event>) {
        let (events, outbox) = mpsc::channel(EVENTS);
        let (cursors, confirmed) = watch::channel(Cursors::new());
        let mut engine = Engine::new(config, events, confirmed);
        prepare(&mut engine);
        let task = tokio::spawn(engine.run());
        (ReceiverHandle { cursors, task }, outbox)
    }
}

/// Talks to a running receiver.
pub struct ReceiverHandle {
    cursors: watch::Sender<Cursors>,
    task: tokio::task::JoinHandle<()>,
}

impl ReceiverHandle {
    /// Confirms that the outputs hold everything up to `cursor` of the channel, durably. Sent
    /// within about a second.
    pub fn confirm(&self, channel: &str, cursor: Cursor) {
        self.cursors.send_modify(|cursors| {
            cursors.insert(channel.to_owned(), cursor);
        });
    }

    /// Says goodbye to the source, with the last confirmed cursors, and ends the receiver.
    pub async fn shutdown(self) {
        drop(self.cursors);
        let _ = self.task.await;
    }

    /// Ends the receiver at once without a word to the source, as a crash would.
    pub fn abort(self) {
        self.task.abort();
    }
}
