//! A shard of a source: a socket and the QUIC connections of a part of the sessions. It knows
//! nothing of channels and flows: it executes the engine's work and reports events.

mod arrivals;
mod gate;
mod messages;
mod passage;
mod peer;
mod peers;
mod thread;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flexicast::feedback::{FeedbackIds, is_feedback};
use flexicast::source::close;
use netio::{RecvBatch, UdpSocket};
use tracing::debug;

use crate::amplification::Amplification;
use crate::config::CID_LEN;
use crate::link::Link;
use crate::qlog::ConnectionLogs;
use crate::reset::ConnectionIds;
use crate::timers::Timers;
use arrivals::Arrivals;
pub(super) use gate::Gate;
use gate::{Newcomer, Stranger, Verdict};
pub(super) use messages::{Batch, PathReport, SessionWork, ShardEvent, StreamPiece, Work};
pub(super) use passage::Passage;
pub(super) use passage::Passed;
use peer::Peer;
use peers::Peers;
pub(super) use thread::ShardThread;

/// Batches of datagrams that are read before anything is sent.
const BATCHES: usize = 8;
/// Pause of reading after feedback packets and nothing else: what arrives meanwhile is read
/// together, because waking a thread costs as much as several of them. Round trips seem as much
/// longer, which is little beside the acknowledgement delay; other packets pause it no more.
const FEEDBACK_PAUSE: Duration = Duration::from_millis(2);

/// State and settings that the shards of a source share.
#[derive(Clone)]
pub(super) struct ShardContext {
    pub(super) gate: Arc<Gate>,
    pub(super) passage: Arc<Passage>,
    pub(super) reset_key: [u8; 32],
    /// IDs of the feedback packets that the engine takes.
    pub(super) feedback: Option<FeedbackIds>,
    /// Pacing of a connection at first, in bit/s.
    pub(super) rate_bps: u64,
    pub(super) qlog: Option<ConnectionLogs>,
}

/// A shard.
pub(super) struct Shard {
    ids: ConnectionIds,
    socket: UdpSocket,
    context: ShardContext,
    peers: Peers,
    /// Connections that were read from or got work since they were flushed.
    touched: BTreeSet<u64>,
    timers: Timers,
    report: Batch,
    /// The last [`Work::Sync`], to be answered when what has arrived is read.
    sync: Option<u64>,
    /// Whether delivered sessions are reported.
    draining: bool,
    intake: RecvBatch,
    arrivals: Arrivals,
    buffer: Vec<u8>,
    /// Whether the engine has given the shard up: its successor reads the same socket.
    is_retired: Arc<AtomicBool>,
}

impl Shard {
    pub(super) fn new(
        number: u8,
        socket: UdpSocket,
        context: ShardContext,
        is_retired: Arc<AtomicBool>,
    ) -> Self {
        Shard {
            ids: ConnectionIds::new(&context.reset_key, number),
            arrivals: Arrivals::new(socket.dropped(), Instant::now()),
            socket,
            context,
            peers: Peers::default(),
            touched: BTreeSet::new(),
            timers: Timers::default(),
            report: Batch::default(),
            sync: None,
            draining: false,
            intake: RecvBatch::new(),
            buffer: vec![0; 65_536.max(Link::BUFFER)],
            is_retired,
        }
    }

    /// Waits until something has arrived. Cancel safe.
    pub(super) async fn readable(&self) -> std::io::Result<()> {
        self.socket.readable().await
    }

    /// Waits until tokio knows that the socket can be written to: answers without a connection do
    /// not wait for it.
    pub(super) async fn writable(&self) -> std::io::Result<()> {
        self.socket.writable().await
    }

    /// Returns when [`Shard::expire`] is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether there is something to report.
    pub(super) fn has_report(&self) -> bool {
        !self.report.is_empty()
    }

    /// Takes the report.
    pub(super) fn take_report(&mut self) -> Batch {
        std::mem::take(&mut self.report)
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// The socket is unusable.
    pub(super) fn receive(&mut self) -> std::io::Result<()> {
        let known = self.report.feedback.len();
        let (datagrams, is_drained) = self.read_socket()?;
        let feedback = self.report.feedback.len() - known;
        if is_drained && feedback > 0 && feedback == datagrams {
            self.socket.pause_reading(Instant::now() + FEEDBACK_PAUSE);
        }
        self.report.synced = self.sync.take().or(self.report.synced);
        let now = Instant::now();
        let report = &mut self.report;
        report.unread_since = report
            .unread_since
            .or(self.arrivals.note_read(is_drained, now));
        if let Some(drop) = self.arrivals.look(now, || self.socket.dropped()) {
            report.counts.datagrams_dropped += drop.datagrams;
            report.dropped_since = report.dropped_since.or(Some(drop.since));
        }
        Ok(())
    }

    /// Reads datagrams. Returns their number, and whether none is left.
    fn read_socket(&mut self) -> std::io::Result<(usize, bool)> {
        let mut read = 0;
        // Answers to a datagram are sent after the loop: the socket is borrowed while it is read.
        for _ in 0..BATCHES {
            if self.is_retired.load(Ordering::Relaxed) {
                return Ok((read, true));
            }
            let mut datagrams = Vec::new();
            match self.socket.try_recv(&mut self.intake, |d| {
                datagrams.push((d.from, d.to, d.data.to_vec()));
            }) {
                Ok(datagrams) => read += datagrams,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Ok((read, true));
                }
                Err(error) => return Err(error),
            }
            let now = Instant::now();
            for (from, to, data) in datagrams {
                // It may have been given up while it took the last one.
                if self.is_retired.load(Ordering::Relaxed) {
                    return Ok((read, true));
                }
                let to = self.address_of(to);
                self.datagram(Passed { from, to, data }, false, now);
            }
            if !self.intake.was_full() {
                return Ok((read, true));
            }
        }
        Ok((read, false))
    }

    /// Takes a datagram that another shard received.
    pub(super) fn take_passed(&mut self, datagram: Passed, now: Instant) {
        self.datagram(datagram, true, now);
    }

    /// The local end of the path that a datagram came by: on a socket that is bound to all
    /// addresses, the one that the receiver wrote to.
    fn address_of(&self, to: Option<IpAddr>) -> SocketAddr {
        let local = self.socket.local_addr();
        let written = to.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
        match written {
            Some(ip) if local.ip().is_unspecified() => SocketAddr::new(ip, local.port()),
            _ => local,
        }
    }

    fn datagram(&mut self, mut datagram: Passed, was_passed: bool, now: Instant) {
        if is_feedback(&datagram.data) {
            // Nothing of it concerns quiche, and noise does not concern the engine.
            let ids = self.context.feedback.as_ref();
            match ids.is_some_and(|ids| ids.is_own(&datagram.data)) {
                true => self.report.feedback.push(datagram),
                false => self.report.counts.stray_datagrams += 1,
            }
            return;
        }
        let Ok(header) = quiche::Header::from_slice(&mut datagram.data, CID_LEN) else {
            #[cfg(feature = "fault-injection")]
            self.fail_by_poison(&datagram);
            self.report.counts.stray_datagrams += 1;
            return;
        };
        let session = match self.peers.session_of(&header.dcid) {
            Some(session) => session,
            None => match self.stranger(&header, &datagram, was_passed, now) {
                Verdict::Accept(newcomer) => self.accept(*newcomer, &header, &datagram, now),
                Verdict::Answer(answer) => return self.reply(&datagram, &answer),
                Verdict::Elsewhere(shard) if was_passed => {
                    debug!(shard, "a datagram was passed on twice");
                    return;
                }
                Verdict::Elsewhere(shard) => {
                    let passed = self.context.passage.pass(shard, datagram);
                    self.report.counts.misdelivered += 1;
                    self.report.counts.misdelivered_dropped += u64::from(!passed);
                    return;
                }
                Verdict::Drop => return,
            },
        };
        let Some(peer) = self.peers.get_mut(session) else {
            return;
        };
        let Passed {
            from, to, mut data, ..
        } = datagram;
        let events = &mut self.report.events;
        let mut report = |event| events.push((session, event));
        let info = quiche::RecvInfo { from, to };
        if let Err(error) = peer.receive(&mut data, info, &mut report) {
            debug!(%from, %error, "a packet was not taken");
        }
        peer.read(&mut self.buffer, now, &mut report);
        self.report.counts.unknown_paths += u64::from(!peer.is_at(from));
        self.follow(session, now);
        self.touched.insert(session);
    }

    /// Fails as if this datagram had hit a bug.
    #[cfg(feature = "fault-injection")]
    fn fail_by_poison(&self, datagram: &Passed) {
        if !self.context.passage.has(1) {
            return;
        }
        if datagram.data == super::POISON {
            // Without the panic's message, which tests look for.
            std::panic::resume_unwind(Box::new("a fault was injected"));
        }
        if datagram.data == super::STUPOR {
            #[allow(clippy::disallowed_methods)]
            std::thread::sleep(super::STUPOR_LASTS);
        }
    }

    /// Decides about a packet of a connection that is not here.
    fn stranger(
        &mut self,
        header: &quiche::Header<'_>,
        datagram: &Passed,
        was_passed: bool,
        now: Instant,
    ) -> Verdict {
        // All IDs but those that receivers make up for their first packets begin with the shard.
        let owner = header.dcid.first().copied().filter(|owner| {
            header.ty != quiche::Type::Initial
                && *owner != self.ids.shard()
                && self.context.passage.has(*owner)
        });
        match owner {
            Some(owner) if !was_passed => Verdict::Elsewhere(owner),
            _ => {
                let stranger = Stranger {
                    from: datagram.from,
                    to: datagram.to,
                    header,
                    data: &datagram.data,
                };
                let counts = &mut self.report.counts;
                self.context.gate.judge(&self.ids, &stranger, counts, now)
            }
        }
    }

    fn accept(
        &mut self,
        newcomer: Newcomer,
        header: &quiche::Header<'_>,
        datagram: &Passed,
        now: Instant,
    ) -> u64 {
        let Newcomer {
            session,
            mut conn,
            id,
            proved,
        } = newcomer;
        if let Some(qlog) = &self.context.qlog {
            qlog.attach(&mut conn, &id, &datagram.from.to_string());
        }
        let mut link = Link::new(conn, self.context.rate_bps);
        if !proved {
            link = link.limited(Amplification::new(datagram.from));
        }
        let peer = Peer::new(link, id, header.dcid.to_vec(), now);
        self.peers.add(session, peer);
        session
    }

    /// Answers without a connection. A full socket buffer is no reason to keep the answer: the next
    /// packet provokes another.
    fn reply(&self, datagram: &Passed, answer: &[u8]) {
        let local = crate::train::source_ip(self.socket.local_addr(), datagram.to);
        let _ = self
            .socket
            .try_send_some(datagram.from, local, answer, None);
    }

    /// Reports where a receiver is now, and renews the connection IDs that lead to it.
    fn follow(&mut self, session: u64, now: Instant) {
        if let Some(peer) = self.peers.get_mut(session) {
            let events = &mut self.report.events;
            peer.follow(now, |event| events.push((session, event)));
            self.peers.renew_ids(session, &self.ids);
        }
    }

    /// Executes work of the engine.
    pub(super) fn execute(&mut self, work: Work, now: Instant) {
        match work {
            Work::Session(session, work) => {
                if let Some(peer) = self.peers.get_mut(session) {
                    peer.take(work, now);
                    self.touched.insert(session);
                }
            }
            Work::Probe(session) => {
                if let Some(peer) = self.peers.get_mut(session) {
                    let events = &mut self.report.events;
                    peer.probe(|event| events.push((session, event)));
                    self.touched.insert(session);
                }
            }
            Work::Drain => {
                self.draining = true;
                self.touched.extend(self.peers.sessions());
            }
            Work::Sync(number) => self.sync = Some(number),
            Work::Answer(datagram, answer) => self.reply(&datagram, &answer),
            Work::Shutdown => {
                let sessions: Vec<_> = self.peers.sessions().collect();
                for session in sessions {
                    if let Some(peer) = self.peers.get_mut(session) {
                        peer.close(close::GOING_AWAY, "the source shuts down");
                        self.touched.insert(session);
                    }
                }
            }
        }
    }

    /// Does what is due.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(session) = self.timers.pop_due(now) {
            if let Some(peer) = self.peers.get_mut(session) {
                peer.link.conn.on_timeout();
                if peer.hello_until().is_some_and(|until| now >= until) {
                    peer.close_overdue();
                }
                self.follow(session, now);
                self.touched.insert(session);
            }
        }
    }

    /// Sends what a connection has to send that something happened to, and returns whether there
    /// was one.
    ///
    /// # Errors
    /// The socket is unusable.
    pub(super) async fn flush_next(&mut self, now: Instant) -> std::io::Result<bool> {
        let Some(session) = self.touched.pop_first() else {
            return Ok(false);
        };
        let Some(peer) = self.peers.get_mut(session) else {
            return Ok(true);
        };
        if peer.link.is_choked() {
            self.report.counts.violations += 1;
            peer.close(close::PROTOCOL_VIOLATION, "the control stream is not read");
        }
        peer.link
            .transmit(&self.socket, &mut self.buffer, now)
            .await?;
        if let Some((code, reason)) = peer.closing.take() {
            // Behind the control frames, so that a REFUSED is not overtaken: quiche sends nothing
            // else once it closes.
            peer.close(code, &reason);
            peer.link
                .transmit(&self.socket, &mut self.buffer, now)
                .await?;
        }
        let counts = &mut self.report.counts;
        counts.send_errors += std::mem::take(&mut peer.link.refused);
        counts.fragments_dropped += std::mem::take(&mut peer.link.dropped_fragments);
        if peer.link.conn.is_closed() || peer.abandoned {
            self.forget(session);
            return Ok(true);
        }
        let events = &mut self.report.events;
        let mut report = |event| events.push((session, event));
        peer.report_written(&mut report);
        if self.draining {
            peer.report_delivered(&mut report);
        }
        // An overdue time that has passed was acted upon: the connection is closing.
        let overdue = peer.hello_until().filter(|at| *at > now);
        let next = [peer.link.deadline(), overdue].into_iter().flatten().min();
        self.timers.set(session, next);
        Ok(true)
    }

    fn forget(&mut self, session: u64) {
        self.timers.set(session, None);
        self.context.gate.leave(session);
        let Some(peer) = self.peers.remove(session) else {
            return;
        };
        if peer.known {
            let reason = peer.end();
            let closed = ShardEvent::Closed { reason };
            self.report.events.push((session, closed));
        } else {
            self.report.counts.handshakes_abandoned += 1;
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // The engine has removed the sessions of one that hung, but not what it accepted since.
        for session in self.peers.sessions() {
            self.context.gate.leave(session);
        }
    }
}
