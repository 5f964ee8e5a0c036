//! Configuration of a source, and its interface to the store.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flexicast::authentication::PacketAuthentication;
use flexicast::control::{Credential, Endpoint};
use flexicast::fec::FecConfig;
use flexicast::flow::RateControl;
use flexicast::signing::{Endorsement, Lineage};
use flexicast::source::Limits;
use uuid::Uuid;

/// Errors of the owner's own making that only need to be shown.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Configuration of a source.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// Address on which receivers connect. `[::]` also takes IPv4.
    pub listen: SocketAddr,
    /// PEM certificate chain.
    pub cert: PathBuf,
    /// PEM private key.
    pub key: PathBuf,
    /// Key of stateless resets, kept across restarts: by it, receivers of an earlier run learn that
    /// this one does not know them.
    pub reset_key: [u8; 32],
    /// The channels to begin with; their names differ. More come by
    /// [`super::SourceHandle::add_channel`].
    pub channels: Vec<ChannelConfig>,
    /// Pacing of each receiver's own connection, in bit/s. Receivers far behind share half of
    /// `unicast_rate_bps`, where that is more.
    pub rate_bps: u64,
    /// Pacing of the updates to all receivers' own connections together, in bit/s; `None` for no
    /// limit.
    pub unicast_rate_bps: Option<u64>,
    /// Receivers that flow packets are replicated to at once (rung 3), for each channel.
    pub max_replicas: usize,
    /// Threads that send replicated packets; the receivers are divided among them.
    pub replication_threads: NonZeroUsize,
    /// Shards that the receivers' connections are divided among, 128 at most: each has a thread
    /// and a socket of its own. A single one runs in the task of [`super::Source::run`].
    pub shards: NonZeroUsize,
    /// Maximum acknowledgement delay of receivers.
    pub ack_delay: Duration,
    /// Time without acknowledgements after which a member falls back (`D_fb`).
    pub fall_back: Duration,
    /// Interval of heartbeats on an idle flow.
    pub heartbeat: Duration,
    /// UDP payload in bytes that flow packets may grow to if all members take it; `None` for what
    /// the flow's interfaces take, up to jumbo frames.
    pub max_udp_payload: Option<usize>,
    /// Folder for qlog files of all connections and flows.
    pub qlog: Option<PathBuf>,
}

/// Largest UDP payload that is ever tried: jumbo frames of 9,000 bytes with IPv4.
const MAX_UDP_PAYLOAD: usize = 8_972;
/// MTU of paths whose interface is not known.
const ETHERNET: usize = 1_500;

impl SourceConfig {
    /// Returns the configuration of a source without channels, with the protocol's timing,
    /// 10 Mbit/s for each receiver's connection and 200 Mbit/s for all of them together.
    pub fn new(listen: SocketAddr, cert: PathBuf, key: PathBuf, reset_key: [u8; 32]) -> Self {
        SourceConfig {
            listen,
            cert,
            key,
            reset_key,
            channels: Vec::new(),
            rate_bps: 10_000_000,
            unicast_rate_bps: Some(200_000_000),
            max_replicas: Limits::default().replicas,
            replication_threads: NonZeroUsize::MIN,
            shards: NonZeroUsize::MIN,
            ack_delay: Duration::from_millis(25),
            fall_back: Duration::from_millis(150),
            heartbeat: Duration::from_secs(1),
            max_udp_payload: None,
            qlog: None,
        }
    }
}

/// A channel.
#[derive(Debug, Clone)]
pub struct ChannelConfig {
    /// Its name.
    pub name: String,
    /// Its incarnation.
    pub incarnation: Uuid,
    /// The last stored `seq`, 0 if there is none.
    pub head: u64,
    /// The oldest stored `seq`, 1 if there is none.
    pub first: u64,
    /// Whether new members cannot decrypt earlier packets.
    pub private: bool,
    /// Keys that sign its updates; without any, they are not signed.
    pub lineage: Lineage,
    /// Signing keys of the source that vouch for each other: they replace those of channels that
    /// were added before.
    pub endorsements: Vec<Endorsement>,
    /// Its flow; `None` for unicast only.
    pub flow: Option<FlowSettings>,
}

impl ChannelConfig {
    /// Returns the configuration of an empty channel that is served by unicast only.
    pub fn new(name: impl Into<String>, incarnation: Uuid) -> Self {
        ChannelConfig {
            name: name.into(),
            incarnation,
            head: 0,
            first: 1,
            private: false,
            lineage: Lineage::default(),
            endorsements: Vec::new(),
            flow: None,
        }
    }
}

/// A channel's flow.
#[derive(Debug, Clone)]
pub struct FlowSettings {
    /// The multicast groups, IPv4 and IPv6; empty for a flow that only exists as copies.
    pub endpoints: Vec<FlowEndpoint>,
    /// Copy the flow's packets to receivers that multicast does not reach (rung 3).
    pub replicate: bool,
    /// Highest rate of the flow in bit/s.
    pub rate_bps: u64,
    /// Rate control within that.
    pub control: RateControl,
    /// Authentication of packets or streams; receivers that cannot have it get no flow then.
    pub authentication: Option<PacketAuthentication>,
    /// Erasure coding; `None` for a flow that sends no repair symbols.
    pub fec: Option<FecConfig>,
}

impl FlowSettings {
    /// Returns the UDP payload in bytes that all interfaces of the flow take, of at most `limit`.
    pub(super) fn max_udp_payload(&self, limit: Option<usize>) -> usize {
        let room = |endpoint: &FlowEndpoint| {
            let headers = if endpoint.group.is_ipv4() { 28 } else { 48 };
            let mtu = netio::interface_mtu(endpoint.interface).unwrap_or(ETHERNET);
            mtu.saturating_sub(headers)
        };
        let rooms = self.endpoints.iter().map(room);
        let most = rooms.min().unwrap_or(ETHERNET - 28);
        most.min(limit.unwrap_or(MAX_UDP_PAYLOAD))
    }
}

/// A multicast group to send a flow to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEndpoint {
    /// Group and port.
    pub group: SocketAddr,
    /// The address of the interface that packets leave by, of the group's family: the S of (S,G).
    pub interface: IpAddr,
    /// Announce any-source multicast, (*,G).
    pub asm: bool,
    /// Time to live, or hop limit, of the flow's packets.
    pub ttl: u32,
}

impl FlowEndpoint {
    /// Returns the endpoint as FC_ANNOUNCE names it.
    pub(super) fn announced(&self) -> Endpoint {
        Endpoint {
            group: self.group,
            source: (!self.asm).then_some(self.interface),
        }
    }
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
    /// Whether packets grow without a member's acknowledgement.
    pub sizes_unconfirmed: bool,
    /// Whether members are blamed for silence while the source itself was late.
    pub lag_grace_off: bool,
    /// Whether updates are sent although their deadline has passed.
    pub expired_delivered: bool,
    /// Whether messages are sent on the flow alone.
    pub message_copies_off: bool,
    /// Whether shards that fail are left as they are.
    pub shard_restart_off: bool,
    /// Whether the source speaks another version of the protocol than its receivers.
    pub other_version: bool,
}

/// A receiver that asks to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Why it may receive.
    pub credential: Credential,
    /// Its id.
    pub receiver: Uuid,
    /// Its name for people, unauthenticated.
    pub name: String,
    /// Its program and version; not to be relied upon.
    pub software: String,
    /// The channels that it asks for; they need not exist.
    pub channels: Vec<String>,
    /// Where its connection comes from.
    pub from: SocketAddr,
}

/// Reason for which a HELLO is turned away.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdmissionError {
    /// The token or the credential is not valid; the text is shown to the receiver, which gives up.
    Token(String),
    /// Another receiver has this id: the text is shown to the receiver, which tries again much
    /// later.
    InUse(String),
    /// Undecidable now; the receiver retries later.
    Unavailable(String),
}

/// The source's interface to the store.
#[async_trait]
pub trait Backlog: Send + Sync + 'static {
    /// Returns stored updates of a channel with `from <= seq`, ascending: at most `limit` of them
    /// and about `max_bytes`, but at least one if there is one.
    ///
    /// # Errors
    ///
    /// The store cannot be read now; the source asks again.
    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError>;
    /// Decides whether this receiver may receive. Called once per connection.
    ///
    /// # Errors
    ///
    /// The receiver is turned away.
    async fn authorise(&self, request: &Admission) -> Result<(), AdmissionError>;
}
