//! A source over real sockets: channels, their flows, and a QUIC connection per receiver.

mod config;
mod counters;
mod engine;
mod history;
mod outlets;
mod replication;
mod shard;
mod status;
mod wall_clock;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::authentication::AuthenticationConfig;
use flexicast::control::RelayHint;
use flexicast::feedback::FEEDBACK_BIT;
use flexicast::flow::FlowConfig;
use flexicast::{DEFAULT_UDP_PAYLOAD, FlowId, source as core};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::debug;
use uuid::Uuid;

use crate::config::{SHARD, random, random_secret};
use crate::{Error, tls};
#[cfg(feature = "fault-injection")]
pub use config::Faults;
pub use config::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, FlowEndpoint, FlowSettings,
    SourceConfig,
};
pub use counters::Counters;
use engine::{Command, Engine, EngineChannel, EngineParts};
pub use flexicast::authentication::{PacketAuthentication, TAGS_UP_TO};
pub use flexicast::control::{Credential, SourceAddress};
pub use flexicast::fec::{FecConfig, FecPolicy, FecScheme};
pub use flexicast::flow::{BreakerState, RateControl};
pub use flexicast::rate::RatePolicy;
pub use flexicast::source::{Absence, MessageError};
use history::EventLog;
pub use history::{History, HistoryEvent, HistoryEventKind};
pub use status::{
    ChannelBytes, ChannelStatus, FlowStatus, Lateness, LegStatus, LoadStatus, MassFallBack, Move,
    Overload, ReceiverChannel, ReceiverStatus, SourceStatus, UNVERIFIED,
};

/// Requests that wait for the engine.
const COMMANDS: usize = 64;
/// A shard's number is the first byte of its connection IDs; that of feedback IDs has the highest
/// bit.
const MAX_SHARDS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(127);
const _: () = assert!(MAX_SHARDS.get() <= FEEDBACK_BIT as usize);

/// Datagram that makes the shard fail that receives it, if there are several; for tests.
#[cfg(feature = "fault-injection")]
pub const POISON: &[u8] = b"poison";
/// Datagram that makes it hang for [`STUPOR_LASTS`] instead.
#[cfg(feature = "fault-injection")]
pub const STUPOR: &[u8] = b"stupor";
/// Duration of the hang.
#[cfg(feature = "fault-injection")]
pub const STUPOR_LASTS: Duration = Duration::from_secs(16);

/// By what way the updates of each channel come to the engine.
type Senders = Arc<RwLock<BTreeMap<String, mpsc::Sender<Publication>>>>;
type Updates = mpsc::Receiver<Publication>;

/// An update on its way to the engine.
struct Publication {
    seq: u64,
    encoded: Bytes,
    /// Since when it waits.
    since: Instant,
}

/// A source that is bound to its sockets and not running yet.
pub struct Source {
    engine: Engine,
    handle: SourceHandle,
    local: SocketAddr,
}

impl Source {
    /// Binds the sockets and makes a fresh flow for each channel that has one.
    ///
    /// # Errors
    /// The certificate, the key, an address or an interface cannot be used; two channels have one
    /// name.
    pub async fn bind(config: SourceConfig, backlog: Arc<dyn Backlog>) -> Result<Source, Error> {
        let quic = tls::source(&config.cert, &config.key)?;
        let cannot_listen = || Error::io(format!("cannot listen on UDP {}", config.listen));
        let shards = config.shards.min(MAX_SHARDS);
        let sockets = netio::bind_group(config.listen, shards).map_err(cannot_listen())?;
        let local = sockets.0.local_addr().map_err(cannot_listen())?;
        let senders = Senders::default();
        let (mut opened, mut channels): (_, Vec<core::ChannelConfig>) = (Vec::new(), Vec::new());
        for channel in &config.channels {
            if channels.iter().any(|other| other.name == channel.name) {
                return Err(Error::TwoChannels(channel.name.clone()));
            }
            opened.push(EngineChannel::open(channel.clone(), &senders)?);
            channels.push(core_channel(&config, channel)?);
        }
        let mut core = core::Source::new(core::SourceConfig {
            channels,
            unicast_rate: config.unicast_rate_bps,
            limits: core::Limits {
                replicas: config.max_replicas,
                ..core::Limits::default()
            },
            seed: u64::from_le_bytes(random()?),
        })?;
        for (index, channel) in config.channels.iter().enumerate() {
            core.set_endorsements(channel.endorsements.clone());
            core.set_lineage(index, channel.lineage.clone());
        }
        core.enable_feedback(random_secret()?, SHARD);
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (last, latest) = watch::channel(0);
        let handle = SourceHandle {
            senders: Arc::clone(&senders),
            commands,
            latest,
        };
        let parts = EngineParts {
            quic,
            sockets,
            local,
            channels: opened,
            core,
            backlog,
            senders,
            inbox,
            event_log: EventLog::new(last),
        };
        Ok(Source {
            engine: Engine::new(config, parts)?,
            handle,
            local,
        })
    }

    /// Where it listens: the port is the real one when 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// For publishing and asking.
    pub fn handle(&self) -> SourceHandle {
        self.handle.clone()
    }

    /// Leaves protections out, for tests that must notice.
    ///
    /// # Errors
    /// The TLS library refuses the other version.
    #[cfg(feature = "fault-injection")]
    pub fn inject_faults(&mut self, faults: Faults) -> Result<(), Error> {
        self.engine.inject_faults(faults)
    }

    /// Serves until [`SourceHandle::shutdown`], or until a socket fails for good.
    ///
    /// # Errors
    /// The QUIC socket failed, or the system gives no random bytes any more.
    pub async fn run(self) -> Result<(), Error> {
        self.engine.run().await
    }
}

/// A new flow: secret and Flow ID are fresh random for every flow and never stored.
fn fresh_flow(config: &SourceConfig, flow: &FlowSettings) -> Result<FlowConfig, Error> {
    let max_udp_payload = flow.max_udp_payload(config.max_udp_payload);
    let authentication = match flow.authentication {
        Some(packets) => Some(AuthenticationConfig {
            packets,
            secret: random_secret()?,
        }),
        None => None,
    };
    Ok(FlowConfig {
        udp_payload: max_udp_payload.min(DEFAULT_UDP_PAYLOAD),
        max_udp_payload,
        rate: Some(flow.rate_bps),
        control: flow.control,
        ack_delay: config.ack_delay,
        fall_back: config.fall_back,
        heartbeat: config.heartbeat,
        authentication,
        fec: flow.fec,
        ..FlowConfig::new(FlowId(random()?), random_secret()?)
    })
}

/// Returns a channel's configuration for the state machine.
fn core_channel(
    config: &SourceConfig,
    channel: &ChannelConfig,
) -> Result<core::ChannelConfig, Error> {
    let flow = match &channel.flow {
        Some(flow) => Some(fresh_flow(config, flow)?),
        None => None,
    };
    let settings = channel.flow.as_ref();
    Ok(core::ChannelConfig {
        name: channel.name.clone(),
        incarnation: channel.incarnation,
        head: channel.head,
        first: channel.first,
        private: channel.private,
        endpoints: settings
            .iter()
            .flat_map(|f| f.endpoints.iter().map(FlowEndpoint::announced))
            .collect(),
        replicate: settings.is_some_and(|f| f.replicate),
        flow,
    })
}

/// Talks to a running source; cheap to clone.
#[derive(Clone)]
pub struct SourceHandle {
    senders: Senders,
    commands: mpsc::Sender<Command>,
    latest: watch::Receiver<u64>,
}

impl SourceHandle {
    /// Publishes an update of a channel that is stored already. `seq` must follow the last one.
    /// Waits while the source has more to send on this channel than it should hold; does nothing
    /// where there is no such channel (any more), or the source has stopped.
    pub async fn publish(&self, channel: &str, seq: u64, encoded: Bytes) {
        let sender = {
            let senders = self.senders.read().unwrap_or_else(PoisonError::into_inner);
            senders.get(channel).cloned()
        };
        match sender {
            Some(sender) => {
                let since = Instant::now();
                let publication = Publication {
                    seq,
                    encoded,
                    since,
                };
                drop(sender.send(publication).await);
            }
            None => debug!(
                channel,
                seq, "an update of a channel that is not here was not published"
            ),
        }
    }

    /// Adds a channel, with a fresh flow if it is to have one.
    ///
    /// # Errors
    /// There is one with this name, an interface of its flow cannot be used, or the source has
    /// stopped.
    pub async fn add_channel(&self, channel: ChannelConfig) -> Result<(), Error> {
        self.ask(|answer| Command::Add(Box::new(channel), answer))
            .await?
    }

    /// Removes a channel with its flow. The connections of its receivers are closed, whatever else
    /// they subscribe to: they reconnect and get the current list. Without such a channel, only the
    /// reason of its absence changes.
    pub async fn remove_channel(&self, channel: &str, absence: Absence) {
        let channel = channel.to_owned();
        let _ = self
            .ask(|answer| Command::Remove(channel, absence, answer))
            .await;
    }

    /// Marks a channel as published by another source: requests for it are answered with a retry
    /// later. Does nothing for a channel of this source.
    pub async fn elsewhere(&self, channel: &str) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Elsewhere(channel)).await;
    }

    /// Shows this certificate from now on, both files PEM. Connections that there are stay as they
    /// are.
    ///
    /// # Errors
    /// A file cannot be used, or they do not belong together: the present certificate is kept.
    pub async fn reload_certificate(&self, cert: PathBuf, key: PathBuf) -> Result<(), Error> {
        let read = tokio::task::spawn_blocking(move || tls::source(&cert, &key));
        let quic = read.await.map_err(|_| Error::Stopped)??;
        self.ask(|answer| Command::Certificate(Box::new(quic), answer))
            .await
    }

    /// Ends [`Source::run`] gracefully: new receivers are referred to a later time, published
    /// updates are delivered, and then all connections are closed, after `within` at the latest.
    /// Returns when the source has stopped.
    pub async fn drain(&self, within: Duration) {
        let _ = self.ask(|answer| Command::Drain(within, answer)).await;
    }

    /// Asks the engine something and waits for the answer.
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let sent = self.commands.send(question(answer)).await;
        sent.map_err(|_| Error::Stopped)?;
        answered.await.map_err(|_| Error::Stopped)
    }

    /// Reports the store's retention: updates of the channel before `first` are gone. Receivers
    /// that still need one are notified of the gap.
    pub async fn set_first(&self, channel: &str, first: u64) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::First(channel, first)).await;
    }

    /// Replaces the AMT relays announced to receivers, for the flows of all channels.
    pub async fn set_relays(&self, relays: Vec<RelayHint>) {
        let _ = self.commands.send(Command::Relays(relays)).await;
    }

    /// Replaces the addresses announced to receivers as those of this source. Receivers on one that
    /// is leaving move to another one; all try them when they lose their connection.
    pub async fn set_addresses(&self, addresses: Vec<SourceAddress>) {
        let _ = self.commands.send(Command::Addresses(addresses)).await;
    }

    /// Sends the channel's flow to these groups from now on; those of before get it for two seconds
    /// more, while receivers join. Does nothing for a channel without a flow.
    ///
    /// # Errors
    /// An interface cannot be used: everything stays as it is. The source has stopped.
    pub async fn set_endpoints(
        &self,
        channel: &str,
        endpoints: Vec<FlowEndpoint>,
    ) -> Result<(), Error> {
        let channel = channel.to_owned();
        self.ask(|answer| Command::Endpoints(channel, endpoints, answer))
            .await?
    }

    /// Gives the channel's flow a fresh key.
    pub async fn rekey(&self, channel: &str) {
        let _ = self.commands.send(Command::Rekey(channel.to_owned())).await;
    }

    /// Removes a receiver: its connections are closed, and what follows is encrypted with keys that
    /// it does not get.
    pub async fn eject(&self, receiver: Uuid) {
        let _ = self.commands.send(Command::Eject(receiver)).await;
    }

    /// Ends a receiver's connections, and nothing else: it comes back by itself. Returns how many
    /// there were; `None` once the source has stopped.
    pub async fn disconnect(&self, receiver: Uuid) -> Option<usize> {
        self.ask(|answer| Command::Disconnect(receiver, answer))
            .await
            .ok()
    }

    /// Keeps these receivers on unicast, and no others, whether they are connected or not: until it
    /// is called again they are on no flow.
    pub async fn hold(&self, receivers: BTreeSet<Uuid>) {
        let _ = self.commands.send(Command::Hold(receivers)).await;
    }

    /// Returns the events of receivers after number `after`, 0 for the source's start; `None` once
    /// the source has stopped.
    pub async fn history(&self, after: u64) -> Option<History> {
        self.ask(|answer| Command::History(after, answer))
            .await
            .ok()
    }

    /// The number of what has happened last: it changes as soon as there is more history.
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.clone()
    }

    /// Withdraws the channel's flow: its receivers are served by unicast until
    /// [`SourceHandle::replace_flow`].
    pub async fn withdraw(&self, channel: &str) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Withdraw(channel)).await;
    }

    /// Begins a fresh flow on the channel, in the place of the one that it has. A channel that was
    /// made without a flow gets none.
    pub async fn replace_flow(&self, channel: &str) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Replace(channel)).await;
    }

    /// Sends a message to all receivers of the channel that are connected now, once: it is neither
    /// stored nor repaired, and may get lost. The numbers of a channel's messages ascend. On a
    /// channel that is signed it has to be, too ([`flexicast::signing::Signer::sign_message`], with
    /// the number in the place of a `seq`), and not after the deadline in its header.
    ///
    /// # Errors
    /// [`Error::Message`] says why it is not sent; [`Error::Stopped`] that the source has stopped.
    pub async fn message(&self, channel: &str, number: u64, message: Bytes) -> Result<(), Error> {
        let channel = channel.to_owned();
        let sent = self.ask(|answer| Command::Message(channel, number, message, answer));
        Ok(sent.await??)
    }

    /// Sends no more of an update on the channel's flow: its members get the rest by unicast.
    pub async fn abandon(&self, channel: &str, seq: u64) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Abandon(channel, seq)).await;
    }

    /// Returns the source's status; `None` once it has stopped.
    pub async fn status(&self) -> Option<SourceStatus> {
        self.ask(Command::Status).await.ok()
    }

    /// Says goodbye to all receivers and ends [`Source::run`].
    pub async fn shutdown(&self) {
        let _ = self.commands.send(Command::Shutdown).await;
    }
}
