//! A source over real sockets: channels, their flows, and a QUIC connection per receiver.

mod config;
mod counters;
mod engine;
mod outlets;
mod peer;
mod status;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use flexicast::control::Endpoint;
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::{FlowId, source as core};
use netio::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;
use uuid::Uuid;

use crate::Error;
use crate::config::{quic_server, random};
pub use config::{
    Backlog, BoxError, ChannelConfig, Denied, FlowEndpoint, FlowSettings, Sabotage, SourceConfig,
};
pub use counters::Counters;
use engine::{Command, Engine, Parts};
use outlets::Outlets;
pub use status::{
    ChannelStatus, FlowStatus, MassFallBack, Move, ReceiverChannel, ReceiverStatus, SourceStatus,
};

/// How many updates of each channel wait for the engine, and how many questions.
const UPDATES: usize = 256;
const COMMANDS: usize = 64;

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
    /// The certificate, the key, an address or an interface cannot be used; two channels have one name.
    pub async fn bind(config: SourceConfig, backlog: Arc<dyn Backlog>) -> Result<Source, Error> {
        let mut quic = quic_server()?;
        let pem = |path: &PathBuf, what| {
            let path = path.clone();
            move |error| Error::Pem { path, what, error }
        };
        quic.load_cert_chain_from_pem_file(&config.cert.to_string_lossy())
            .map_err(pem(&config.cert, "certificate"))?;
        quic.load_priv_key_from_pem_file(&config.key.to_string_lossy())
            .map_err(pem(&config.key, "private key"))?;
        let socket = UdpSocket::bind(config.listen)
            .map_err(Error::io(format!("cannot listen on UDP {}", config.listen)))?;
        let local = socket.local_addr();
        let (mut outlets, mut channels) = (Vec::new(), Vec::new());
        for channel in &config.channels {
            let endpoints = channel.flow.as_ref().map_or(&[][..], |f| &f.endpoints);
            outlets.push(Outlets::open(endpoints)?);
            channels.push(core_channel(&config, channel)?);
        }
        let core = core::Source::new(core::SourceConfig {
            channels,
            unicast_rate: config.unicast_rate_bps,
            limits: core::Limits::default(),
            seed: u64::from_le_bytes(random()?),
            repair_off: config.sabotage.repair_off,
        })?;
        let (mut senders, mut updates) = (BTreeMap::new(), Vec::new());
        for channel in &config.channels {
            let (sender, receiver) = mpsc::channel(UPDATES);
            if senders.insert(channel.name.clone(), sender).is_some() {
                return Err(Error::TwoChannels(channel.name.clone()));
            }
            updates.push(receiver);
        }
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let handle = SourceHandle {
            updates: Arc::new(senders),
            commands,
        };
        let parts = Parts {
            quic,
            socket,
            outlets,
            core,
            backlog,
            updates,
            inbox,
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

    /// Serves until [`SourceHandle::shutdown`], or until a socket fails for good.
    ///
    /// # Errors
    /// The QUIC socket failed, or the system gives no random bytes any more.
    pub async fn run(self) -> Result<(), Error> {
        self.engine.run().await
    }
}

/// A flow like no other: secret and Flow ID are fresh random for every flow and never stored (design section 5).
fn fresh_flow(config: &SourceConfig, flow: &FlowSettings) -> Result<FlowConfig, Error> {
    Ok(FlowConfig {
        rate: Some(flow.rate_bps),
        ack_delay: config.ack_delay,
        fall_back: config.fall_back,
        heartbeat: config.heartbeat,
        fall_back_off: config.sabotage.fallback_off,
        ..FlowConfig::new(FlowId(random()?), FlowSecret(random()?))
    })
}

/// What the state machine is told about a channel.
fn core_channel(
    config: &SourceConfig,
    channel: &ChannelConfig,
) -> Result<core::ChannelConfig, Error> {
    let endpoint = |e: &FlowEndpoint| Endpoint {
        group: e.group,
        source: (!e.asm).then_some(e.interface),
    };
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
            .flat_map(|f| f.endpoints.iter().map(endpoint))
            .collect(),
        replicate: settings.is_some_and(|f| f.replicate),
        flow,
    })
}

/// Talks to a running source; cheap to clone.
#[derive(Clone)]
pub struct SourceHandle {
    updates: Arc<BTreeMap<String, mpsc::Sender<(u64, Bytes)>>>,
    commands: mpsc::Sender<Command>,
}

impl SourceHandle {
    /// Publishes an update of a channel that is stored already. `seq` must follow the last one. Waits while the source has more to send on this channel than it
    /// should hold; does nothing once the source has stopped.
    pub async fn publish(&self, channel: &str, seq: u64, encoded: Bytes) {
        match self.updates.get(channel) {
            Some(updates) => drop(updates.send((seq, encoded)).await),
            None => warn!(
                channel,
                seq, "an update of an unknown channel was not published"
            ),
        }
    }

    /// The store's retention has moved on: updates of the channel before `first` are gone. Receivers that still need one are told of the gap.
    pub async fn set_first(&self, channel: &str, first: u64) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::First(channel, first)).await;
    }

    /// Gives the channel's flow a fresh key.
    pub async fn rekey(&self, channel: &str) {
        let _ = self.commands.send(Command::Rekey(channel.to_owned())).await;
    }

    /// Removes a receiver: its connections are closed, and what follows is encrypted with keys that it does not get.
    pub async fn eject(&self, receiver: Uuid) {
        let _ = self.commands.send(Command::Eject(receiver)).await;
    }

    /// Withdraws the channel's flow: its receivers are served by unicast until [`SourceHandle::replace_flow`].
    pub async fn withdraw(&self, channel: &str) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Withdraw(channel)).await;
    }

    /// Begins a fresh flow on the channel, in the place of the one that it has. A channel that was made without a flow gets none.
    pub async fn replace_flow(&self, channel: &str) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Replace(channel)).await;
    }

    /// Sends a message to all who listen to the channel's flow, once: it may get lost. Messages that do not fit into a packet, or for which there is no room, are
    /// dropped and counted.
    pub async fn message(&self, channel: &str, data: Bytes) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Message(channel, data)).await;
    }

    /// Sends no more of an update on the channel's flow: its members get the rest by unicast.
    pub async fn abandon(&self, channel: &str, seq: u64) {
        let channel = channel.to_owned();
        let _ = self.commands.send(Command::Abandon(channel, seq)).await;
    }

    /// What the source sees; `None` once it has stopped.
    pub async fn status(&self) -> Option<SourceStatus> {
        let (answer, status) = oneshot::channel();
        self.commands.send(Command::Status(answer)).await.ok()?;
        status.await.ok()
    }

    /// Says goodbye to all receivers and ends [`Source::run`].
    pub async fn shutdown(&self) {
        let _ = self.commands.send(Command::Shutdown).await;
    }
}
