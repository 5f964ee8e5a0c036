//! The source's loop: one task owns the sockets, all connections and the state machine.

mod channels;
mod drain;
mod flow;
mod handshakes;
mod load;
mod peers;
mod records;
mod report;
mod requests;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{RelayHint, SourceAddress};
use flexicast::feedback::is_feedback;
use flexicast::source::{ChannelIndex, Source as Core, close};
use netio::{RecvBatch, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::history::{EventLog, History, HistoryEventKind};
use super::peer::HELLO_WITHIN;
use super::replication::Replication;
use super::{
    Absence, Backlog, ChannelConfig, Counters, FlowEndpoint, Publication, Senders, SourceConfig,
    SourceStatus,
};
pub(super) use channels::EngineChannel;
use channels::EngineChannels;
use drain::Draining;
use peers::Peers;
use records::Records;
use report::end_of;
use requests::StoreAnswer;

use crate::Error;
use crate::config::{CID_LEN, SHARD};
use crate::link::Link;
use crate::qlog::{LocalEnd, Qlog};
use crate::reset::Resets;
use crate::retry::Retries;
use crate::timers::{Timers, away};

/// Answers of the store that wait for the engine.
const ANSWERS: usize = 256;
/// Batches of datagrams that are read before anything is sent.
const BATCHES: usize = 8;
/// Share of the total unicast rate for catch-up, as one part of so many: the other receivers want
/// new updates, and the processor some rest.
const CATCH_UP_PART: u64 = 2;
/// After so many sessions the flow gets its turn again.
const FLOW_EVERY: usize = 8;

pub(super) enum Command {
    First(String, u64),
    Relays(Vec<RelayHint>),
    Addresses(Vec<SourceAddress>),
    Endpoints(
        String,
        Vec<FlowEndpoint>,
        oneshot::Sender<Result<(), Error>>,
    ),
    Rekey(String),
    Eject(Uuid),
    Disconnect(Uuid, oneshot::Sender<usize>),
    Hold(BTreeSet<Uuid>),
    History(u64, oneshot::Sender<History>),
    Withdraw(String),
    Replace(String),
    Message(String, Bytes),
    Abandon(String, u64),
    Status(oneshot::Sender<SourceStatus>),
    Add(Box<ChannelConfig>, oneshot::Sender<Result<(), Error>>),
    Remove(String, Absence, oneshot::Sender<()>),
    Elsewhere(String),
    Certificate(Box<quiche::Config>, oneshot::Sender<()>),
    Drain(Duration, oneshot::Sender<()>),
    Shutdown,
}

/// Components of a source.
pub(super) struct EngineParts {
    pub(super) quic: quiche::Config,
    pub(super) socket: UdpSocket,
    pub(super) channels: Vec<EngineChannel>,
    pub(super) core: Core,
    pub(super) backlog: Arc<dyn Backlog>,
    pub(super) senders: Senders,
    pub(super) inbox: mpsc::Receiver<Command>,
    pub(super) event_log: EventLog,
}

pub(super) struct Engine {
    config: SourceConfig,
    quic: quiche::Config,
    socket: UdpSocket,
    local: SocketAddr,
    channels: EngineChannels,
    core: Core,
    resets: Resets,
    retries: Retries,
    backlog: Arc<dyn Backlog>,
    senders: Senders,
    inbox: mpsc::Receiver<Command>,
    /// Answers of the store, in a queue of their own: they are taken even while no further update
    /// is.
    answers: (mpsc::Sender<StoreAnswer>, mpsc::Receiver<StoreAnswer>),
    peers: Peers,
    /// Connections that were read from or written to in this round.
    touched: BTreeSet<u64>,
    timers: Timers,
    replication: Replication,
    records: Records,
    counters: Counters,
    /// The source is on its way out.
    draining: Option<Draining>,
    qlog: Option<Qlog>,
}

impl Engine {
    pub(super) fn new(config: SourceConfig, parts: EngineParts) -> Result<Self, Error> {
        let EngineParts {
            quic,
            socket,
            channels,
            mut core,
            backlog,
            senders,
            inbox,
            event_log,
        } = parts;
        let qlog = config
            .qlog
            .clone()
            .map(|path| Qlog::new(path, LocalEnd::Source, "source".into()));
        core.set_tracing(qlog.is_some());
        Ok(Engine {
            resets: Resets::new(&config.reset_key, SHARD),
            retries: Retries::new(Instant::now())?,
            replication: Replication::start(&socket, config.replication_threads)?,
            local: socket.local_addr(),
            config,
            quic,
            socket,
            channels: EngineChannels::new(channels),
            core,
            backlog,
            senders,
            inbox,
            answers: mpsc::channel(ANSWERS),
            peers: Peers::default(),
            touched: BTreeSet::new(),
            timers: Timers::default(),
            records: Records::new(event_log, Instant::now()),
            counters: Counters::default(),
            draining: None,
            qlog,
        })
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn inject_faults(&mut self, faults: super::Faults) -> Result<(), Error> {
        if faults.other_version {
            let other = [&b"flexfeed/none"[..]];
            self.quic
                .set_application_protos(&other)
                .map_err(Error::quic)?;
        }
        self.core.inject_faults(flexicast::source::Faults {
            repair_off: faults.repair_off,
            fall_back_off: faults.fall_back_off,
            eviction_off: faults.eviction_off,
            reordering_off: false,
            sizes_unconfirmed: faults.sizes_unconfirmed,
            lag_grace_off: faults.lag_grace_off,
        });
        Ok(())
    }

    pub(super) async fn run(mut self) -> Result<(), Error> {
        let mut batch = RecvBatch::new();
        let mut buffer = vec![0; 65_536.max(Link::BUFFER)];
        // tokio learns only by this that the socket can be written to, and resets do not wait for
        // it.
        self.socket
            .writable()
            .await
            .map_err(Error::io("the QUIC socket failed"))?;
        loop {
            let now = Instant::now();
            let end = self.draining.as_ref().map(|draining| draining.until);
            let wake = [self.timers.next(), self.core.poll_timeout(now), end]
                .into_iter()
                .flatten()
                .min();
            let wake = wake.unwrap_or(now + Duration::from_secs(60));
            // Nothing more is written to an address whose receiver has gone in the last turn.
            self.follow_replicas();
            tokio::select! {
                ready = self.socket.readable() => {
                    ready.map_err(Error::io("the QUIC socket failed"))?
                }
                (channel, update) = self.channels.next_update(&self.core) => {
                    self.publish(channel, update)
                }
                command = self.inbox.recv() => match command {
                    None | Some(Command::Shutdown) => return self.close_gracefully(&mut buffer).await,
                    Some(command) => self.command(command),
                },
                Some(answer) = self.answers.1.recv() => self.answer(answer),
                Some(failure) = self.replication.next_failure() => {
                    self.end_replication(failure, Instant::now())
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            let woken = Instant::now();
            // Which branch was taken is chance. What has come is read before any receiver is
            // blamed for being silent.
            let is_drained = self.receive(&mut batch, &mut buffer)?;
            // All are judged by this time: should the process pause from here on, the next round
            // detects that it did.
            let now = Instant::now();
            if let Some(span) = away(wake, now) {
                self.core.grant_grace(span, now);
            }
            let late = self.note_lag(wake, is_drained, now);
            self.drive(&mut buffer, now).await?;
            let end = Instant::now();
            self.records.load.turned(late.max(end - woken));
            self.records.load.judge(end);
            if self.has_drained(Instant::now()) {
                return self.close_gracefully(&mut buffer).await;
            }
        }
    }

    /// Reads datagrams. Returns whether none is left.
    fn receive(&mut self, batch: &mut RecvBatch, buffer: &mut [u8]) -> Result<bool, Error> {
        // Answers to a datagram are sent after the loop: the socket is borrowed while it is read.
        for _ in 0..BATCHES {
            let mut datagrams = Vec::new();
            match self
                .socket
                .try_recv(batch, |d| datagrams.push((d.from, d.to, d.data.to_vec())))
            {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(Error::io("the QUIC socket failed")(error)),
            }
            let now = Instant::now();
            for (from, to, mut data) in datagrams {
                let to = self.address_of(to);
                self.datagram(from, to, &mut data, buffer, now);
            }
        }
        Ok(false)
    }

    /// The local end of the path that a datagram came by: on a socket that is bound to all
    /// addresses, the one that the receiver wrote to.
    fn address_of(&self, to: Option<IpAddr>) -> SocketAddr {
        let written = to.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
        match written {
            Some(ip) if self.local.ip().is_unspecified() => SocketAddr::new(ip, self.local.port()),
            _ => self.local,
        }
    }

    fn datagram(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        data: &mut [u8],
        buffer: &mut [u8],
        now: Instant,
    ) {
        if is_feedback(data) {
            return self.feedback(from, to, data, now);
        }
        let Ok(header) = quiche::Header::from_slice(data, CID_LEN) else {
            self.counters.stray_datagrams += 1;
            return;
        };
        let session = match self.peers.session_of(&header.dcid) {
            Some(session) => session,
            None => match self.stranger(from, to, &header, data, now) {
                Some(session) => session,
                None => return,
            },
        };
        let Some(peer) = self.peers.get_mut(session) else {
            return;
        };
        let probed = self.core.is_probed(session);
        let before = probed.then(|| (peer.link.conn.stats().recv, peer.address()));
        let info = quiche::RecvInfo { from, to };
        if let Err(error) = peer.link.receive(data, info) {
            debug!(%from, %error, "a packet was not taken");
        }
        let conn = &peer.link.conn;
        match before {
            Some(_) if conn.is_draining() => self.core.closed(session, now),
            // Only what could be decrypted counts.
            Some((count, at)) if conn.stats().recv > count => self.core.heard(session, at),
            _ => {}
        }
        if let Err(violation) = peer.read(session, &mut self.core, buffer, now) {
            self.counters.violations += 1;
            warn!(%from, %violation, "closing a connection: the receiver violates the protocol");
            peer.close(close::PROTOCOL_VIOLATION, &violation.to_string());
        }
        if !peer.is_at(from) {
            self.counters.unknown_paths += 1;
        }
        self.follow(session, now);
        self.touched.insert(session);
    }

    /// Takes a datagram that is addressed to a feedback ID: nothing of it concerns quiche.
    fn feedback(&mut self, from: SocketAddr, to: SocketAddr, data: &mut [u8], now: Instant) {
        let (core, peers) = (&mut self.core, &self.peers);
        let notice = core.on_feedback(data, now, |session| {
            peers.get(session).is_some_and(|peer| peer.is_on(from, to))
        });
        if let Some(notice) = notice {
            self.reply(from, to, &notice);
        }
    }

    /// Notes where a receiver is now and which connection IDs lead to it.
    fn follow(&mut self, session: u64, now: Instant) {
        let Some(peer) = self.peers.get_mut(session) else {
            return;
        };
        let paths = peer.follow(session, &mut self.core, now);
        if paths.migrations > 0 {
            let name = self.core.receiver(session).map(|(_, name)| name);
            info!(receiver = name, to = %peer.address(), "moved to another address");
        }
        if paths.switched {
            self.peers.note_switch();
        }
        self.counters.migrations += paths.migrations;
        self.counters.failed_paths += paths.failed;
        self.peers.renew_ids(session, &self.resets);
    }

    fn publish(&mut self, channel: ChannelIndex, update: Publication) {
        let Publication {
            seq,
            encoded,
            since,
        } = update;
        self.records.load.waited(since.elapsed());
        let head = self.core.head(channel);
        if seq == head + 1 {
            self.core.publish(channel, seq, encoded);
        } else {
            let channel = self.core.channel_name(channel);
            warn!(
                channel,
                seq, head, "an update that does not follow the head was not published"
            );
        }
    }

    /// Does everything that can be done now, for all connections that something happened to.
    async fn drive(&mut self, buffer: &mut [u8], now: Instant) -> Result<(), Error> {
        while let Some(session) = self.timers.pop_due(now) {
            if let Some(peer) = self.peers.get_mut(session) {
                peer.link.conn.on_timeout();
                if peer.is_overdue(&self.core, session, now) {
                    peer.close_overdue();
                }
                self.follow(session, now);
                self.touched.insert(session);
            }
        }
        self.core.handle_timeout(now);
        self.send_flows(now).await;
        self.events(now)?;
        while let Some(session) = self.core.poll_dirty() {
            self.touched.insert(session);
        }
        let mut served = 0;
        while let Some(session) = self.touched.pop_first() {
            self.flush(session, buffer, now).await?;
            served += 1;
            if served % FLOW_EVERY == 0 {
                // Many sessions that need data at once, as after a correlated failure, do not hold
                // up the members of the flow.
                self.send_flows(Instant::now()).await;
            }
        }
        // Filling a session can promote it.
        self.events(now)?;
        while let Some(session) = self.core.poll_dirty() {
            self.flush(session, buffer, now).await?;
        }
        if let Some(qlog) = &mut self.qlog {
            qlog.packets(self.core.take_trace());
        }
        Ok(())
    }

    /// Moves a session's work to its connection and its packets to the socket.
    async fn flush(&mut self, session: u64, buffer: &mut [u8], now: Instant) -> Result<(), Error> {
        let Some(peer) = self.peers.get_mut(session) else {
            return Ok(());
        };
        let mut requests = Vec::new();
        if peer.known {
            let (taken, wanted) = peer.fill(session, &mut self.core, now);
            self.counters.unicast_bytes += taken;
            requests = wanted;
            let mut rate = self.config.rate_bps;
            if let Some(all) = self.config.unicast_rate_bps
                && peer.is_catching_up()
            {
                // The congestion window keeps it to what the path to the receiver bears.
                let part = all / CATCH_UP_PART / self.core.catching_up().max(1) as u64;
                rate = rate.max(part);
            }
            peer.link.set_rate(rate, now);
        }
        if !peer.served && self.core.is_served(session) {
            self.has_connected(session);
        }
        let Some(peer) = self.peers.get_mut(session) else {
            return Ok(());
        };
        if peer.link.is_choked() {
            self.counters.violations += 1;
            peer.close(close::PROTOCOL_VIOLATION, "the control stream is not read");
        }
        let failed = || Error::io("the QUIC socket failed");
        peer.link
            .transmit(&self.socket, buffer, now)
            .await
            .map_err(failed())?;
        if let Some((code, reason)) = peer.closing.take() {
            // Behind the control frames, so that a REFUSED is not overtaken: quiche sends nothing
            // else once it closes.
            peer.close(code, &reason);
            peer.link
                .transmit(&self.socket, buffer, now)
                .await
                .map_err(failed())?;
        }
        self.counters.send_errors += std::mem::take(&mut peer.link.refused);
        let deadline = peer.link.deadline();
        let overdue = (!peer.known || self.core.receiver(session).is_none())
            .then_some(peer.accepted_at + HELLO_WITHIN);
        if peer.link.conn.is_closed() || peer.abandoned {
            self.forget(session, now);
        } else {
            // An overdue time that has passed was acted upon: the connection is closing.
            let overdue = overdue.filter(|at| *at > now);
            self.timers
                .set(session, [deadline, overdue].into_iter().flatten().min());
        }
        for request in requests {
            self.fetch(session, request);
        }
        Ok(())
    }

    fn forget(&mut self, session: u64, now: Instant) {
        let Some(peer) = self.peers.remove(session) else {
            return;
        };
        if let Some((receiver, _)) = peer.receiver {
            self.records.add(HistoryEventKind::Disconnected {
                session,
                receiver,
                reason: end_of(&peer.link.conn),
            });
        }
        match self.core.receiver(session) {
            Some((_, name)) => {
                let reason = end_of(&peer.link.conn);
                info!(receiver = name, from = %peer.address(), reason, "disconnected");
            }
            // One that was served is known no more where another has taken its place.
            None => self.counters.handshakes_abandoned += u64::from(!peer.served),
        }
        self.timers.set(session, None);
        self.core.closed(session, now);
    }

    async fn close_gracefully(mut self, buffer: &mut [u8]) -> Result<(), Error> {
        let now = Instant::now();
        let sessions: Vec<_> = self.peers.sessions().collect();
        info!(receivers = sessions.len(), "shutting down");
        for session in sessions {
            if let Some(peer) = self.peers.get_mut(session) {
                peer.close(close::GOING_AWAY, "the source shuts down");
            }
            self.flush(session, buffer, now).await?;
        }
        self.peers.clear();
        if let Some(mut qlog) = self.qlog.take() {
            qlog.packets(self.core.take_trace());
            qlog.finish().await;
        }
        Ok(())
    }
}
