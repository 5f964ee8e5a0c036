//! A scenario: participants, network, and timed acts. Made from one seed, or by hand in a test.

use std::time::Duration;

use flexicast::authentication::PacketAuthentication;
use flexicast::fec::FecConfig;

use crate::link::{Loss, Quality};

/// One scenario.
#[derive(Debug, Clone)]
pub struct Script {
    /// Of everything in the run that is left to chance.
    pub seed: u64,
    /// When the disturbances end and healing begins.
    pub duration: Duration,
    /// One to three.
    pub channels: Vec<ChannelPlan>,
    /// Two to two hundred.
    pub receivers: Vec<ReceiverPlan>,
    /// Acts in order of time.
    pub acts: Vec<(Duration, Act)>,
    /// Lateness of the hosts' timers.
    pub timer_slack: Duration,
    /// A unicast connection without an answer dies after this time at the source.
    pub source_patience: Duration,
    /// The same at a receiver.
    pub receiver_patience: Duration,
    /// All unicast sessions together, bit/s (see `SourceConfig::unicast_rate`).
    pub unicast_rate: Option<u64>,
    /// AMT relays that everybody knows of.
    pub relays: usize,
    /// Receivers that get copies of one channel at once (see `Limits::copies`).
    pub copies: usize,
    /// A member forges packets of the flows.
    pub forger: bool,
    /// After healing, wait until every receiver is on the best rung that it can have: back-off may
    /// take minutes.
    pub patient: bool,
}

impl Script {
    /// Whether a packet that a member forges has any effect.
    pub(crate) fn is_forgery_believed(&self) -> bool {
        let is_open = |channel: &ChannelPlan| {
            let of = channel.authentication;
            channel.flow && of.is_none_or(|of| of == PacketAuthentication::Stream)
        };
        self.forger && self.channels.iter().any(is_open)
    }
}

/// One channel.
#[derive(Debug, Clone)]
pub struct ChannelPlan {
    /// Joins rekey.
    pub private: bool,
    /// There is a flow.
    pub flow: bool,
    /// Its packets are protected with ChaCha20-Poly1305.
    pub chacha: bool,
    /// The flow has an IPv4 endpoint.
    pub v4: bool,
    /// The flow has an IPv6 endpoint.
    pub v6: bool,
    /// The source offers copies (rung 3).
    pub copies: bool,
    /// Of the flow in bit/s.
    pub rate: Option<u64>,
    /// Maximum acknowledgement delay of members.
    pub ack_delay: Duration,
    /// `D_fb`.
    pub fall_back: Duration,
    /// Of the idle flow.
    pub heartbeat: Duration,
    /// Authentication of the flow's packets, or of its streams.
    pub authentication: Option<PacketAuthentication>,
    /// Erasure coding of the flow.
    pub fec: Option<FecConfig>,
    /// Packets per key epoch; a small number wears keys out within the run.
    pub epoch_packets: Option<u64>,
    /// Updates that are stored before the run begins.
    pub stored: u64,
    /// Each update has at most so many bytes.
    pub max_len: usize,
}

/// One receiver.
#[derive(Debug, Clone)]
pub struct ReceiverPlan {
    /// Time of the first connection.
    pub joins_at: Duration,
    /// Indices into [`Script::channels`], ascending.
    pub channels: Vec<usize>,
    /// Can join IPv4 groups.
    pub v4: bool,
    /// Can join IPv6 groups.
    pub v6: bool,
    /// Can get IPv4 groups through a relay.
    pub amt_v4: bool,
    /// Can get IPv6 groups through a relay.
    pub amt_v6: bool,
    /// Takes copies (rung 3).
    pub copies: bool,
    /// By which the flow's packets come.
    pub multicast: Quality,
    /// By which packets come through a relay.
    pub relayed: Quality,
    /// By which copies come.
    pub copied: Quality,
    /// By which QUIC's packets go, both ways. What of it is lost shows as delay, but for DATAGRAM
    /// frames.
    pub unicast: Quality,
    /// To the receiver on the unicast path, bit/s.
    pub bandwidth: u64,
    /// Delay from the application to the disk.
    pub confirms_after: Duration,
    /// The application reads so many updates a second at most.
    pub reads_per_second: Option<u32>,
}

/// Something that happens. Receivers and channels are given by index.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// The feed has something new.
    Publish {
        /// Channel index.
        channel: usize,
        /// Length of the encoded update.
        len: usize,
    },
    /// A message to all on the flow, unreliable.
    Message {
        /// Channel index.
        channel: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The flow's path to a receiver changes.
    Weather {
        /// Index of the receiver.
        receiver: usize,
        /// Of multicast, otherwise of copies.
        multicast: bool,
        /// Loss model from now on.
        loss: Loss,
    },
    /// A receiver's paths take longer, or shorter, from now on.
    Distance {
        /// Index of the receiver.
        receiver: usize,
        /// Of the flow's packets, one way.
        flow: Duration,
        /// Of the unicast path, one way.
        unicast: Duration,
    },
    /// The flow does not reach a receiver.
    Cut {
        /// Index of the receiver.
        receiver: usize,
        /// Copies are cut, too.
        copies: bool,
        /// Duration.
        span: Duration,
    },
    /// The flow does not reach anybody.
    CutAll {
        /// Duration.
        span: Duration,
    },
    /// Nothing of a receiver's unicast path gets through: it recovers, or the connection dies.
    Partition {
        /// Index of the receiver.
        receiver: usize,
        /// Duration.
        span: Duration,
    },
    /// The network forgets that a receiver joined the groups.
    ForgetJoin {
        /// Index of the receiver.
        receiver: usize,
    },
    /// The source's process dies and starts again with the same store.
    RestartSource {
        /// Downtime.
        down: Duration,
        /// Whether the store is replaced: another incarnation, none of the updates.
        new_store: bool,
    },
    /// A receiver's process dies and starts again from the last cursor that it wrote.
    RestartReceiver {
        /// Receiver index.
        receiver: usize,
        /// Downtime.
        down: Duration,
        /// The source learns of it at once.
        politely: bool,
    },
    /// A receiver goes for good. It goes on listening to the flow.
    Leave {
        /// Receiver index.
        receiver: usize,
        /// The source learns of it at once.
        politely: bool,
    },
    /// The operator throws a receiver out. It goes on listening to the flow.
    Eject {
        /// Receiver index.
        receiver: usize,
    },
    /// The operator wants new keys.
    Rekey {
        /// Channel index.
        channel: usize,
    },
    /// The flow is withdrawn and another is announced a while later.
    Withdraw {
        /// Channel index.
        channel: usize,
        /// Duration of the absence.
        span: Duration,
    },
    /// The flow is replaced by another at once.
    ReplaceFlow {
        /// Channel index.
        channel: usize,
    },
    /// The flow moves to other endpoints.
    Endpoints {
        /// Channel index.
        channel: usize,
        /// IPv4 among them.
        v4: bool,
        /// IPv6 among them.
        v6: bool,
    },
    /// The store answers slowly, or not at all.
    Store {
        /// Duration.
        span: Duration,
        /// Delay of each answer.
        delay: Duration,
        /// There are no answers but errors.
        fails: bool,
    },
    /// The store forgets all but the last updates.
    Retain {
        /// Channel index.
        channel: usize,
        /// Number of updates kept.
        keep: u64,
    },
    /// An application does not read.
    Stall {
        /// Index of the receiver.
        receiver: usize,
        /// Duration.
        span: Duration,
    },
    /// The flow sends no more of the newest update.
    Abandon {
        /// Channel index.
        channel: usize,
    },
    /// All hosts stand still: every clock leaps.
    Leap {
        /// Size of the jump.
        span: Duration,
    },
    /// Suspends the source's host: its clock has jumped when it resumes.
    SuspendSource {
        /// Duration.
        span: Duration,
    },
    /// Suspends a receiver's host.
    Suspend {
        /// Receiver index.
        receiver: usize,
        /// Duration.
        span: Duration,
    },
    /// A receiver appears at another address.
    Moves {
        /// Receiver index.
        receiver: usize,
        /// Delay until that address is validated.
        validated_after: Duration,
    },
    /// A receiver learns that its network changed.
    NetworkChanged {
        /// Receiver index.
        receiver: usize,
    },
    /// A relay dies and comes back without any tunnel.
    RelayFails {
        /// Relay index.
        relay: usize,
        /// Duration of the absence.
        span: Duration,
        /// Gateways learn of it at once.
        notified: bool,
    },
    /// Nothing comes through to a receiver from its relay, which lives.
    CutRelay {
        /// Index of the receiver.
        receiver: usize,
        /// Duration.
        span: Duration,
    },
    /// All native listeners get a packet with bytes that the source did not send, of an update
    /// that is not published yet or just was.
    Forge {
        /// Channel index.
        channel: usize,
        /// The update, counted from the head.
        ahead: u64,
        /// The first byte's place in the update.
        offset: u64,
        /// Number of bytes.
        len: usize,
        /// The bytes end the update.
        fin: bool,
    },
    /// All native listeners get a packet with wrong tags for all receivers, where packets are
    /// authenticated.
    ForgeTags {
        /// Channel index.
        channel: usize,
        /// The packet that the tags are of, counted from the next one.
        ahead: u64,
    },
    /// All native listeners get a datagram again that the source sent, where packets are
    /// authenticated.
    Replay {
        /// Channel index.
        channel: usize,
        /// Number of datagrams that the source sent after it.
        back: usize,
    },
    /// The next copy to a receiver cannot be sent.
    CopyFails {
        /// Index of the receiver.
        receiver: usize,
    },
}
