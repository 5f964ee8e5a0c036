//! The source's loop: one task owns the sockets, all connections and the state machine.

mod door;
mod report;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use flexicast::control::{Credential, Hello, Refusal};
use flexicast::source::{Source as Core, SourceEvent, close};
use netio::{MulticastSender, RecvBatch, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use super::peer::{Peer, Wish};
use super::{Backlog, Counters, Denied, Move, SourceConfig, SourceStatus, fresh_flow};
use report::{address, end_of, unix_ms};

use crate::Error;
use crate::config::CID_LEN;
use crate::link::Link;
use crate::reset::Resets;
use crate::timers::Timers;

/// Bytes of one read of the store for one session.
const FETCH_BYTES: usize = 1 << 20;
/// Answers of the store that wait for the engine.
const ANSWERS: usize = 256;
/// The store has to answer by then.
const STORE_WITHIN: Duration = Duration::from_secs(10);
/// Moves that are kept for the status.
const MOVES: usize = 256;
/// Batches of datagrams that are read before anything is sent.
const BATCHES: usize = 8;

pub(super) enum Command {
    Status(oneshot::Sender<SourceStatus>),
    Shutdown,
}

/// What the store answered.
pub(super) enum Answer {
    Authorised {
        session: u64,
        verdict: Result<(), Denied>,
    },
    Fetched {
        session: u64,
        from: u64,
        updates: Option<Vec<(u64, Bytes)>>,
    },
}

pub(super) struct Engine {
    config: SourceConfig,
    quic: quiche::Config,
    socket: UdpSocket,
    multicast: Option<MulticastSender>,
    core: Core,
    resets: Resets,
    backlog: Arc<dyn Backlog>,
    /// Taken only while the flow's queue has room.
    updates: mpsc::Receiver<(u64, Bytes)>,
    inbox: mpsc::Receiver<Command>,
    /// Answers of the store come by a way of their own: they are taken even while no further update is.
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    peers: HashMap<u64, Peer>,
    by_id: HashMap<Vec<u8>, u64>,
    next_session: u64,
    /// Connections whose receiver is not served yet.
    unserved: usize,
    /// Connections that were read from or written to in this round.
    touched: BTreeSet<u64>,
    timers: Timers,
    moves: VecDeque<Move>,
    counters: Counters,
    local: SocketAddr,
}

impl Engine {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one engine, assembled in one place"
    )]
    pub(super) fn new(
        config: SourceConfig,
        quic: quiche::Config,
        socket: UdpSocket,
        multicast: Option<MulticastSender>,
        core: Core,
        resets: Resets,
        backlog: Arc<dyn Backlog>,
        updates: mpsc::Receiver<(u64, Bytes)>,
        inbox: mpsc::Receiver<Command>,
    ) -> Self {
        let local = socket.local_addr();
        Engine {
            config,
            quic,
            socket,
            multicast,
            core,
            resets,
            backlog,
            updates,
            inbox,
            answers: mpsc::channel(ANSWERS),
            unserved: 0,
            peers: HashMap::new(),
            by_id: HashMap::new(),
            next_session: 1,
            touched: BTreeSet::new(),
            timers: Timers::default(),
            moves: VecDeque::new(),
            counters: Counters::default(),
            local,
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Error> {
        let mut batch = RecvBatch::new();
        let mut buffer = vec![0; 65_536.max(Link::BUFFER)];
        let mut packet = Vec::with_capacity(2048);
        // tokio learns only by this that the socket can be written to, and resets do not wait for it.
        self.socket
            .writable()
            .await
            .map_err(Error::io("the QUIC socket failed"))?;
        loop {
            let now = Instant::now();
            let wake = [self.timers.next(), self.core.poll_timeout(now)]
                .into_iter()
                .flatten()
                .min();
            let wake = wake.unwrap_or(now + Duration::from_secs(60));
            tokio::select! {
                ready = self.socket.readable() => {
                    ready.map_err(Error::io("the QUIC socket failed"))?;
                    self.receive(&mut batch, &mut buffer)?;
                }
                Some((seq, encoded)) = self.updates.recv(), if self.core.has_room() => self.publish(seq, encoded),
                command = self.inbox.recv() => match command {
                    Some(Command::Status(answer)) => {
                        let _ = answer.send(self.status(Instant::now()));
                    }
                    Some(Command::Shutdown) | None => return self.say_goodbye(&mut buffer).await,
                },
                Some(answer) = self.answers.1.recv() => self.answer(answer),
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            self.drive(&mut buffer, &mut packet).await?;
        }
    }

    fn receive(&mut self, batch: &mut RecvBatch, buffer: &mut [u8]) -> Result<(), Error> {
        // What a datagram answers is sent behind the loop: the socket is borrowed while it is read.
        for _ in 0..BATCHES {
            let mut datagrams = Vec::new();
            match self
                .socket
                .try_recv(batch, |d| datagrams.push((d.from, d.data.to_vec())))
            {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Error::io("the QUIC socket failed")(error)),
            }
            let now = Instant::now();
            for (from, mut data) in datagrams {
                self.datagram(from, &mut data, buffer, now);
            }
        }
        Ok(())
    }

    fn datagram(&mut self, from: SocketAddr, data: &mut [u8], buffer: &mut [u8], now: Instant) {
        let Ok(header) = quiche::Header::from_slice(data, CID_LEN) else {
            self.counters.stray_datagrams += 1;
            return;
        };
        let session = match self.by_id.get(header.dcid.as_ref()) {
            Some(session) => *session,
            None => match self.stranger(from, &header, data, now) {
                Some(session) => session,
                None => return,
            },
        };
        let Some(peer) = self.peers.get_mut(&session) else {
            return;
        };
        let info = quiche::RecvInfo {
            from,
            to: self.local,
        };
        if let Err(error) = peer.link.conn.recv(data, info) {
            debug!(%from, %error, "a packet was not taken");
        }
        if let Err(violation) = peer.read(session, &mut self.core, buffer, now) {
            self.counters.violations += 1;
            warn!(%from, %violation, "closing a connection: the receiver violates the protocol");
            peer.close(close::PROTOCOL_VIOLATION, &violation.to_string());
        }
        self.touched.insert(session);
    }

    fn publish(&mut self, seq: u64, encoded: Bytes) {
        if seq == self.core.head() + 1 {
            self.core.publish(seq, encoded);
        } else {
            warn!(
                seq,
                head = self.core.head(),
                "an update that does not follow the head was not published"
            );
        }
    }

    fn answer(&mut self, answer: Answer) {
        let now = Instant::now();
        match answer {
            Answer::Authorised { session, verdict } => self.authorised(session, verdict, now),
            Answer::Fetched {
                session,
                from,
                updates,
            } => {
                self.core.provide(session, from, updates, now);
                self.touched.insert(session);
            }
        }
    }

    fn authorised(&mut self, session: u64, verdict: Result<(), Denied>, now: Instant) {
        let Some(peer) = self.peers.get_mut(&session) else {
            return;
        };
        if verdict.is_ok() && !std::mem::replace(&mut peer.served, true) {
            self.unserved -= 1;
        }
        let from = address(peer);
        let name = self
            .core
            .receiver(session)
            .map(|(_, name)| name.to_owned())
            .unwrap_or_default();
        let verdict = match verdict {
            Ok(()) => {
                self.counters.connections += 1;
                info!(receiver = name, %from, "connected");
                Ok(())
            }
            Err(denied) => {
                self.counters.refused += 1;
                let (refusal, reason) = match denied {
                    Denied::Token(reason) => (Refusal::BadCredential, reason),
                    Denied::Unavailable(reason) => (Refusal::Unavailable, reason),
                };
                warn!(receiver = name, %from, reason, "refused");
                Err((refusal, reason))
            }
        };
        self.core.authorised(session, verdict, now);
        self.touched.insert(session);
    }

    /// Does everything that can be done now, for all connections that something happened to.
    async fn drive(&mut self, buffer: &mut [u8], packet: &mut Vec<u8>) -> Result<(), Error> {
        let now = Instant::now();
        while let Some(session) = self.timers.pop_due(now) {
            if let Some(peer) = self.peers.get_mut(&session) {
                peer.link.conn.on_timeout();
                if peer.is_overdue(&self.core, session, now) {
                    peer.close_overdue();
                }
                self.touched.insert(session);
            }
        }
        self.core.handle_timeout(now);
        self.flow(packet, now).await?;
        self.events(now)?;
        while let Some(session) = self.core.poll_dirty() {
            self.touched.insert(session);
        }
        while let Some(session) = self.touched.pop_first() {
            self.flush(session, buffer, now).await?;
        }
        // Filling a session can promote it.
        self.events(now)?;
        while let Some(session) = self.core.poll_dirty() {
            self.flush(session, buffer, now).await?;
        }
        Ok(())
    }

    async fn flow(&mut self, packet: &mut Vec<u8>, now: Instant) -> Result<(), Error> {
        let (Some(multicast), Some(endpoint)) = (&self.multicast, &self.config.flow) else {
            return Ok(());
        };
        while self.core.poll_transmit(now, packet) {
            multicast
                .send(endpoint.group.into(), packet, None)
                .await
                .map_err(Error::io("the flow's socket failed"))?;
        }
        Ok(())
    }

    fn events(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(event) = self.core.poll_event() {
            match event {
                SourceEvent::Authorise { session, hello } => self.ask(session, hello),
                SourceEvent::Moved {
                    session,
                    from,
                    to,
                    cause,
                } => {
                    if let Some((receiver, name)) = self.core.receiver(session) {
                        info!(receiver = name, %from, %to, %cause, "moved");
                        if self.moves.len() >= MOVES {
                            self.moves.pop_front();
                        }
                        self.moves.push_back(Move {
                            at_ms: unix_ms(SystemTime::now()),
                            receiver: receiver.to_string(),
                            name: name.to_owned(),
                            from: from.to_string(),
                            to: to.to_string(),
                            cause: cause.to_string(),
                        });
                    }
                }
                SourceEvent::Close {
                    session,
                    code,
                    reason,
                } => {
                    if let Some(peer) = self.peers.get_mut(&session) {
                        peer.closing = Some((code, reason));
                        self.touched.insert(session);
                    }
                }
                SourceEvent::FlowWornOut => {
                    info!("the flow's key is worn out: beginning another flow");
                    self.core.replace_flow(fresh_flow(&self.config)?, now)?;
                }
            }
        }
        Ok(())
    }

    /// Asks the store about a HELLO, without waiting for it here.
    fn ask(&self, session: u64, hello: Hello) {
        let (backlog, answers) = (self.backlog.clone(), self.answers.0.clone());
        tokio::spawn(async move {
            let token = match &hello.credential {
                Credential::Token(token) => token.as_slice(),
                Credential::None => &[],
            };
            let asked = backlog.authorise(token, hello.receiver, &hello.name);
            let late = || {
                Err(Denied::Unavailable(
                    "the source's store does not answer".into(),
                ))
            };
            let answer = tokio::time::timeout(STORE_WITHIN, asked).await;
            let verdict = answer.unwrap_or_else(|_| late());
            let _ = answers.send(Answer::Authorised { session, verdict }).await;
        });
    }

    fn fetch(&self, session: u64, from: u64, limit: usize) {
        let (backlog, answers) = (self.backlog.clone(), self.answers.0.clone());
        tokio::spawn(async move {
            let asked = backlog.updates(from, limit, FETCH_BYTES);
            let late = || Err("no answer in time".into());
            let answer = tokio::time::timeout(STORE_WITHIN, asked)
                .await
                .unwrap_or_else(|_| late());
            let updates = match answer {
                Ok(updates) => Some(updates),
                Err(error) => {
                    warn!(from, error = %error, "the store does not answer; trying again");
                    None
                }
            };
            let _ = answers
                .send(Answer::Fetched {
                    session,
                    from,
                    updates,
                })
                .await;
        });
    }

    /// Moves a session's work to its connection and its packets to the socket.
    async fn flush(&mut self, session: u64, buffer: &mut [u8], now: Instant) -> Result<(), Error> {
        let Some(peer) = self.peers.get_mut(&session) else {
            return Ok(());
        };
        let mut wish = None;
        if peer.known {
            let (taken, wanted) = peer.fill(session, &mut self.core, now);
            self.counters.unicast_bytes += taken;
            wish = wanted;
        }
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
            // Behind the control frames, so that a REFUSED is not overtaken: quiche sends nothing else once it closes.
            peer.close(code, &reason);
            peer.link
                .transmit(&self.socket, buffer, now)
                .await
                .map_err(failed())?;
        }
        let deadline = peer.link.deadline();
        let overdue = (!peer.known || self.core.receiver(session).is_none())
            .then_some(peer.accepted_at + super::peer::HELLO_WITHIN);
        if peer.link.conn.is_closed() {
            self.forget(session, now);
        } else {
            // An overdue time that has passed was acted upon: the connection is closing.
            let overdue = overdue.filter(|at| *at > now);
            self.timers
                .set(session, [deadline, overdue].into_iter().flatten().min());
        }
        if let Some(Wish::Fetch { from, limit }) = wish {
            self.fetch(session, from, limit);
        }
        Ok(())
    }

    fn forget(&mut self, session: u64, now: Instant) {
        let Some(peer) = self.peers.remove(&session) else {
            return;
        };
        if let Some((_, name)) = self.core.receiver(session) {
            let reason = end_of(&peer.link.conn);
            info!(receiver = name, from = %address(&peer), reason, "disconnected");
        }
        self.unserved -= usize::from(!peer.served);
        for id in &peer.ids {
            self.by_id.remove(id);
        }
        self.timers.set(session, None);
        self.core.closed(session, now);
    }

    async fn say_goodbye(mut self, buffer: &mut [u8]) -> Result<(), Error> {
        let now = Instant::now();
        let sessions: Vec<_> = self.peers.keys().copied().collect();
        info!(receivers = sessions.len(), "shutting down");
        for session in sessions {
            if let Some(peer) = self.peers.get_mut(&session) {
                peer.close(close::GOING_AWAY, "the source shuts down");
            }
            self.flush(session, buffer, now).await?;
        }
        Ok(())
    }
}
