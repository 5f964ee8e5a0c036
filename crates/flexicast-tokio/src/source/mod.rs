//! A source over real sockets: one channel, its flow, and a QUIC connection per receiver.

mod engine;
mod peer;
mod status;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use flexicast::control::Endpoint;
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::{FlowId, source as core};
use netio::{MulticastSender, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::Error;
use crate::config::{quic_server, random};
use crate::reset::Resets;
use engine::{Command, Engine};
pub use status::{Counters, FlowStatus, Move, ReceiverStatus, SourceStatus};

/// Errors of the owner's own making that only need to be shown.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How many updates wait for the engine, and how many questions.
const UPDATES: usize = 256;
const COMMANDS: usize = 64;

/// What a source needs.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// Where receivers connect to.
    pub listen: SocketAddr,
    /// PEM certificate chain.
    pub cert: PathBuf,
    /// PEM private key.
    pub key: PathBuf,
    /// Kept across restarts: receivers of an earlier life learn by it that this one does not know them.
    pub reset_key: [u8; 32],
    /// The channel's name.
    pub channel: String,
    /// The channel's incarnation.
    pub incarnation: Uuid,
    /// The last stored `seq`, 0 if there is none.
    pub head: u64,
    /// The oldest stored `seq`, 1 if there is none.
    pub first: u64,
    /// Where the flow is sent; `None` for unicast only.
    pub flow: Option<FlowEndpoint>,
    /// Pacing of the flow and of each session, in bit/s.
    pub rate_bps: u64,
    /// How long receivers may hold acknowledgements back.
    pub ack_delay: Duration,
    /// `D_fb`.
    pub fall_back: Duration,
    /// Of an idle flow.
    pub heartbeat: Duration,
    /// Test-only.
    pub sabotage: Sabotage,
}

/// An IPv4 multicast group to send a flow to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEndpoint {
    /// Group and port.
    pub group: SocketAddrV4,
    /// The address of the interface that packets leave by: the S of (S,G).
    pub interface: Ipv4Addr,
    /// Announce any-source multicast, (*,G).
    pub asm: bool,
    /// Time to live of the flow's packets.
    pub ttl: u32,
}

/// Test-only switches, each of which breaks one promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// Lost packets are not repaired.
    pub repair_off: bool,
    /// Silent members stay on the flow.
    pub fallback_off: bool,
}

/// Why a HELLO is turned away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// The token is not valid; the text is shown to the receiver.
    Token(String),
    /// It cannot be decided now; the receiver tries again later.
    Unavailable(String),
}

/// What a source asks of the store.
#[async_trait]
pub trait Backlog: Send + Sync + 'static {
    /// Stored updates with `from <= seq`, ascending, at most `limit` of them and about `max_bytes`, but at least one if there is one.
    async fn updates(
        &self,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError>;
    /// Whether this HELLO may receive.
    async fn authorise(&self, token: &[u8], receiver: Uuid, name: &str) -> Result<(), Denied>;
}

/// A source that is bound to its sockets and not running yet.
pub struct Source {
    engine: Engine,
    handle: SourceHandle,
    local: SocketAddr,
}

impl Source {
    /// Binds the sockets and makes a fresh flow.
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
        let multicast = match &config.flow {
            Some(flow) => {
                let what = format!(
                    "cannot send multicast from {} to {}",
                    flow.interface, flow.group
                );
                Some(
                    MulticastSender::bind(flow.interface.into(), flow.ttl, true)
                        .map_err(Error::io(what))?,
                )
            }
            None => None,
        };
        let flow = config
            .flow
            .as_ref()
            .map(|_| fresh_flow(&config))
            .transpose()?;
        let endpoints = config.flow.iter().map(|f| Endpoint {
            group: f.group.into(),
            source: (!f.asm).then_some(f.interface.into()),
        });
        let core = core::Source::new(
            core::SourceConfig {
                channel: config.channel.clone(),
                incarnation: config.incarnation,
                head: config.head,
                first: config.first,
                endpoints: endpoints.collect(),
                seed: u64::from_le_bytes(random()?),
                repair_off: config.sabotage.repair_off,
            },
            flow,
        )?;
        let (updates, to_publish) = mpsc::channel(UPDATES);
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let resets = Resets::new(&config.reset_key, 0);
        let handle = SourceHandle { updates, commands };
        Ok(Source {
            engine: Engine::new(
                config, quic, socket, multicast, core, resets, backlog, to_publish, inbox,
            ),
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
    pub async fn run(self) -> Result<(), Error> {
        self.engine.run().await
    }
}

/// Secret and Flow ID are fresh random for every flow and never stored (design section 5).
fn fresh_flow(config: &SourceConfig) -> Result<FlowConfig, Error> {
    Ok(FlowConfig {
        rate: Some(config.rate_bps),
        ack_delay: config.ack_delay,
        fall_back: config.fall_back,
        heartbeat: config.heartbeat,
        fall_back_off: config.sabotage.fallback_off,
        ..FlowConfig::new(FlowId(random()?), FlowSecret(random()?))
    })
}

/// Talks to a running source; cheap to clone.
#[derive(Clone)]
pub struct SourceHandle {
    updates: mpsc::Sender<(u64, Bytes)>,
    commands: mpsc::Sender<Command>,
}

impl SourceHandle {
    /// Publishes an update that is stored already. `seq` must follow the last one. Waits while the source has more to send than it should hold; does nothing
    /// once the source has stopped.
    pub async fn publish(&self, seq: u64, encoded: Bytes) {
        let _ = self.updates.send((seq, encoded)).await;
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
