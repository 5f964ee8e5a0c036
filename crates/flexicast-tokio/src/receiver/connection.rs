//! One connection of a receiver: from the first packet to its end.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use flexicast::receiver::Receiver as Core;
use flexicast::source::close;
use flexicast::{Ecn, Rung};
use netio::{Datagram, UdpSocket};
use tracing::debug;
use zeroize::Zeroize;

use super::batch::with_batch;
use super::{ReceiverConfig, Verify};
use crate::Error;
use crate::config::{ACTIVE_IDS, CID_LEN, CONTROL_STREAM, random, spki_pin};
use crate::ids::replenish;
use crate::link::Link;
use crate::qlog::Qlog;
use crate::tls::{self, CertificateObjection};

/// Batches of datagrams that are read before anything else is done.
const BATCHES: usize = 16;
/// The handshake has to be done by then.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// The HELLO has to be answered by then.
const WELCOME_WITHIN: Duration = Duration::from_secs(25);
/// Receivers send little: acknowledgements and control frames.
const RATE: u64 = 10_000_000;
/// After the network has changed, the source has to be heard again within this time.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);
/// Silent heartbeats after which the source is given up.
const SILENT_HEARTBEATS: u32 = 3;
/// The source's notices of another address are answered no more often than this.
const ANSWER_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) socket: UdpSocket,
    pub(super) peer: SocketAddr,
    local: SocketAddr,
    started: Instant,
    /// Something arrived from the source.
    answered: bool,
    last_heard: Instant,
    last_asked: Instant,
    /// The source does not know this end's address.
    moved: bool,
    /// The network has changed: the source has to be heard by then.
    answer_by: Option<Instant>,
    /// When this end was found to have been away itself. It counts until the source is heard, and
    /// once until then.
    back: Option<Instant>,
    complaint: CertificateObjection,
    buffer: Vec<u8>,
}

/// Why a connection is over.
#[derive(Debug, Clone)]
pub(super) struct CloseReason {
    pub(super) reason: String,
    /// The source closed with this code of protocol.md section 2.
    pub(super) code: Option<u64>,
    /// Where the source was reached.
    pub(super) peer: Option<SocketAddr>,
    /// Close code for the source, if it still listens.
    pub(super) say: u64,
}

impl CloseReason {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        CloseReason {
            reason: reason.into(),
            code: None,
            peer: None,
            say: close::DONE,
        }
    }
}

impl Connection {
    /// Begins a handshake with `peer`.
    pub(super) fn open(
        config: &ReceiverConfig,
        peer: SocketAddr,
        qlog: Option<&Qlog>,
        now: Instant,
    ) -> Result<Self, Error> {
        let any: SocketAddr = if peer.is_ipv4() {
            ([0, 0, 0, 0], 0).into()
        } else {
            ([0u16; 8], 0).into()
        };
        let socket = UdpSocket::bind(any).map_err(Error::io("cannot open a UDP socket"))?;
        let local = socket.local_addr();
        // With pins, the certificate is checked when it is there and before anything is said; see
        // `verify`.
        let (mut quic, complaint) = match &config.verify {
            Verify::Roots => tls::trusting(None)?,
            Verify::CaFile(path) => tls::trusting(Some(path))?,
            Verify::Pins(_) | Verify::Insecure => {
                (tls::unverified()?, CertificateObjection::default())
            }
        };
        // Random, so it does not begin with the ID of a flow (protocol.md section 5): 1 in 2^64
        // otherwise.
        let id: [u8; CID_LEN] = random()?;
        let host = host(&config.server);
        // Names are sent to the source (SNI), and checked by quiche; addresses are not to be sent
        // (RFC 6066 section 3), and are checked in `verify`.
        let name = host.parse::<IpAddr>().is_err().then_some(host);
        let mut conn = quiche::connect(
            name,
            &quiche::ConnectionId::from_ref(&id),
            local,
            peer,
            &mut quic,
        )
        .map_err(Error::quic)?;
        if let Some(qlog) = qlog {
            qlog.connections().attach(&mut conn, &id, &peer.to_string());
        }
        Ok(Connection {
            link: Link::new(conn, RATE),
            socket,
            peer,
            local,
            started: now,
            answered: false,
            last_heard: now,
            last_asked: now,
            moved: false,
            answer_by: None,
            back: None,
            complaint,
            buffer: vec![0; 65_536.max(Link::BUFFER)],
        })
    }

    /// Advances the handshake; nothing is sent on streams before it is complete and the source is
    /// authenticated. Returns whether that is so.
    pub(super) async fn handshake(
        &mut self,
        config: &ReceiverConfig,
        now: Instant,
    ) -> Result<bool, CloseReason> {
        self.on_timeout();
        self.receive_datagrams(None, now)?;
        if self.link.conn.is_established() {
            self.verify(config)?;
            return Ok(true);
        }
        self.check_end()?;
        if now >= self.started + HANDSHAKE_WITHIN {
            let within = HANDSHAKE_WITHIN.as_secs();
            return Err(CloseReason::new(format!(
                "no answer from {} within {within} s",
                self.peer
            )));
        }
        self.transmit(now).await?;
        if self.link.refused > 0 && !self.answered {
            return Err(CloseReason::new(format!(
                "this machine has no way to {}",
                self.peer
            )));
        }
        Ok(false)
    }

    /// When the handshake has to be looked at again.
    pub(super) fn handshake_deadline(&self) -> Instant {
        let last = self.started + HANDSHAKE_WITHIN;
        self.link.deadline().map_or(last, |at| at.min(last))
    }

    /// Reads the socket, then quiche, into the state machine. An error ends the connection.
    pub(super) fn receive(&mut self, core: &mut Core, now: Instant) -> Result<bool, CloseReason> {
        self.receive_datagrams(Some(core), now)?;
        self.read(core, now)
    }

    /// Reads the socket: packets of flows into the state machine, all others into quiche.
    fn receive_datagrams(
        &mut self,
        mut core: Option<&mut Core>,
        now: Instant,
    ) -> Result<(), CloseReason> {
        let (conn, peer, local) = (&mut self.link.conn, self.peer, self.local);
        let (mut heard, mut moved, before) = (false, false, conn.stats().recv);
        let mut take = |datagram: Datagram<'_>| {
            if datagram.from != peer {
                return;
            }
            if let Some(core) = &mut core
                && core.knows_flow(datagram.data)
            {
                let mark = Ecn::from_tos(datagram.ecn);
                core.on_marked_flow_datagram(Rung::Replicated, mark, datagram.data, now);
                return;
            }
            heard = true;
            if core
                .as_ref()
                .is_some_and(|core| core.is_feedback_returned(datagram.data))
            {
                moved = true;
                return;
            }
            let info = quiche::RecvInfo {
                from: peer,
                to: local,
            };
            if let Err(error) = conn.recv(datagram.data, info) {
                debug!(%error, "a packet was not taken");
            }
        };
        // The rest is read in the next round: a flood does not delay acknowledgements and timers.
        for _ in 0..BATCHES {
            let read = with_batch(|batch| self.socket.try_recv(batch, &mut take));
            match read {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    return Err(CloseReason::new(format!("the UDP socket failed: {error}")));
                }
            }
        }
        self.answered |= heard;
        self.moved |= moved;
        // Only a packet of the source itself is a sign of life: if its address has become another
        // source's, that one answers with resets that mean nothing here, and so may anyone who
        // forges the address.
        if conn.stats().recv > before {
            self.last_heard = now;
            self.answer_by = None;
        }
        Ok(())
    }

    /// Moves what quiche has into the state machine. Returns whether bytes of updates arrived.
    pub(super) fn read(&mut self, core: &mut Core, now: Instant) -> Result<bool, CloseReason> {
        let violation = |e: flexicast::WireError| CloseReason {
            reason: format!("the source violates the protocol: {e}"),
            code: None,
            peer: None,
            say: close::PROTOCOL_VIOLATION,
        };
        let mut arrived = false;
        while let Some(n) = self
            .link
            .read_control(&mut self.buffer)
            .map_err(violation)?
        {
            let taken = core.on_control(&self.buffer[..n], now);
            // There may be a flow's key in it.
            self.buffer[..n].zeroize();
            taken.map_err(violation)?;
        }
        let conn = &mut self.link.conn;
        while core.wants_unicast() {
            let Some(stream) = conn.stream_readable_next() else {
                break;
            };
            if stream == CONTROL_STREAM {
                continue;
            }
            while core.wants_unicast() {
                let (n, fin) = match conn.stream_recv(stream, &mut self.buffer) {
                    Ok(received) => received,
                    Err(quiche::Error::StreamReset(_)) => {
                        core.on_unicast_reset(stream);
                        break;
                    }
                    Err(_) => break,
                };
                arrived = true;
                core.on_unicast(stream, &self.buffer[..n], fin)
                    .map_err(violation)?;
            }
        }
        while let Ok(n) = conn.dgram_recv(&mut self.buffer) {
            core.on_datagram(&self.buffer[..n], now);
        }
        self.renew_ids(core);
        self.check_end().map(|()| arrived)
    }

    /// Gives the source spare connection IDs: it needs one when this end's address changes. None
    /// begins with the ID of a flow, whose packets arrive here too.
    fn renew_ids(&mut self, core: &Core) {
        let conn = &mut self.link.conn;
        while conn.retired_scid_next().is_some() {}
        replenish(conn, ACTIVE_IDS as usize, || {
            let id: [u8; CID_LEN] = random().ok()?;
            let mut packet = [0x40; 1 + CID_LEN];
            packet[1..].copy_from_slice(&id);
            // The token is never used: a receiver that restarts has another port.
            (!core.knows_flow(&packet)).then_some((id, random().ok()?))
        });
    }

    /// This end's network has changed: the source learns of it by the next packet from here, and
    /// has to answer it.
    pub(super) fn network_changed(&mut self, now: Instant) {
        let _ = self.link.conn.send_ack_eliciting();
        self.answer_by = Some(now + ANSWER_WITHIN);
    }

    fn verify(&self, config: &ReceiverConfig) -> Result<(), CloseReason> {
        let certificate = self.link.conn.peer_cert();
        let pins = match &config.verify {
            Verify::Pins(pins) => pins,
            Verify::Insecure => return Ok(()),
            Verify::Roots | Verify::CaFile(_) => {
                return match host(&config.server).parse() {
                    Ok(ip) if !certificate.is_some_and(|c| tls::is_for_address(c, ip)) => Err(
                        CloseReason::new(not_accepted(&format!("it is not for {ip}"))),
                    ),
                    _ => Ok(()),
                };
            }
        };
        let pin = certificate.and_then(spki_pin).ok_or_else(|| {
            CloseReason::new("the source presented no certificate that can be read")
        })?;
        if pins.contains(&pin) {
            return Ok(());
        }
        let text = |pin: &[u8; 32]| format!("sha256:{}", BASE64URL_NOPAD.encode(pin));
        let expected: Vec<_> = pins.iter().map(text).collect();
        Err(CloseReason::new(format!(
            "wrong pin: the source at {} presented the key {}, but the enrolment link pins {}. Either \
             the link is out of date (ask the operator for a new one) or the connection was \
             intercepted; nothing was sent to it",
            config.server,
            text(&pin),
            expected.join(" or "),
        )))
    }

    fn check_end(&self) -> Result<(), CloseReason> {
        let conn = &self.link.conn;
        if !conn.is_closed() && !conn.is_draining() {
            return Ok(());
        }
        if let Some(complaint) = self.complaint.text() {
            return Err(CloseReason::new(not_accepted(&complaint)));
        }
        let text = |e: &quiche::ConnectionError| String::from_utf8_lossy(&e.reason).into_owned();
        Err(match (conn.peer_error(), conn.local_error()) {
            (Some(error), _) => {
                let reason = match (error.is_app, text(error)) {
                    (true, said) if !said.is_empty() => {
                        format!("the source closed the connection: {said}")
                    }
                    (_, said) => format!(
                        "the source closed the connection with QUIC error {:#x} {said}",
                        error.error_code
                    ),
                };
                CloseReason {
                    reason,
                    code: error.is_app.then_some(error.error_code),
                    peer: Some(self.peer),
                    say: close::DONE,
                }
            }
            (None, Some(error)) => CloseReason::new(format!(
                "the connection failed with QUIC error {:#x} {}",
                error.error_code,
                text(error)
            )),
            (None, None) if conn.is_timed_out() => {
                CloseReason::new("the source does not answer any more")
            }
            (None, None) => CloseReason::new(
                "the source has restarted and does not know this connection (stateless reset)",
            ),
        })
    }

    /// Moves the state machine's words to the wire.
    pub(super) async fn flush(&mut self, core: &mut Core, now: Instant) -> Result<(), CloseReason> {
        self.link.control(core.take_control());
        while let Some((_, ack)) = core.poll_datagram(now) {
            // An older acknowledgement of the same path that did not leave yet is covered by this
            // one: the bytes of type and path id are the same.
            let head = ack_head(&ack);
            self.link
                .conn
                .dgram_purge_outgoing(|queued: &[u8]| queued.starts_with(&ack[..head]));
            let _ = self.link.conn.dgram_send(&ack);
        }
        while let Some(packet) = core.poll_feedback() {
            // One that the socket does not take is lost like any other: the next acknowledgement
            // says the same and more.
            let _ = self.socket.try_send(self.peer, &packet, None);
        }
        if !core.is_welcomed() && now >= self.started + WELCOME_WITHIN {
            return Err(CloseReason::new(format!(
                "the source at {} does not answer the HELLO",
                self.peer
            )));
        }
        self.keep_alive(core, now)?;
        self.transmit(now).await
    }

    async fn transmit(&mut self, now: Instant) -> Result<(), CloseReason> {
        let (socket, buffer) = (&self.socket, &mut self.buffer);
        let sent = self.link.transmit(socket, buffer, now).await;
        sent.map_err(|error| CloseReason::new(format!("cannot send to {}: {error}", self.peer)))
    }

    /// When this end was found to have been away since the source was last heard.
    fn back(&self) -> Option<Instant> {
        self.back.filter(|back| *back > self.last_heard)
    }

    /// When a source that is not heard again is given up: three heartbeats and a half after its
    /// last sign of life, but no sooner than one and a half after this end's own absence.
    fn silent_at(&self, heartbeat: Duration) -> Instant {
        let at = self.last_heard + heartbeat * SILENT_HEARTBEATS + heartbeat / 2;
        let back = self.back().map(|at| at + heartbeat + heartbeat / 2);
        back.map_or(at, |back| back.max(at))
    }

    /// Grants the source time to be heard again after an absence of this end itself; the source may
    /// have paused as well. Counts once until then: a receiver that is always late gives up in the
    /// end.
    pub(super) fn grant_grace(&mut self, core: &Core, now: Instant) {
        let heartbeat = core.heartbeat();
        let silent = self.silent_at(heartbeat) < now + heartbeat + heartbeat / 2;
        let soon = now + ANSWER_WITHIN / 2;
        let unanswered = self.answer_by.is_some_and(|at| at < soon);
        if self.back().is_some() || !(silent || unanswered) {
            return;
        }
        self.back = Some(now);
        self.answer_by = self.answer_by.map(|at| at.max(soon));
    }

    /// A source that is silent is asked each heartbeat for a sign of life, and given up after
    /// three.
    fn keep_alive(&mut self, core: &Core, now: Instant) -> Result<(), CloseReason> {
        if self.answer_by.is_some_and(|at| at <= now) {
            return Err(CloseReason::new(
                "this machine's network has changed, and the source does not answer from there",
            ));
        }
        let heartbeat = core.heartbeat();
        if now >= self.silent_at(heartbeat) {
            return Err(CloseReason::new(format!(
                "nothing was heard from the source for {SILENT_HEARTBEATS} heartbeats"
            )));
        }
        // A packet of the connection shows the source where this end is now.
        let moved = self.moved && now >= self.last_asked + ANSWER_EVERY;
        if moved || now >= self.last_heard.max(self.last_asked) + heartbeat {
            self.moved = false;
            self.last_asked = now;
            let _ = self.link.conn.send_ack_eliciting();
        }
        Ok(())
    }

    /// When to look at the connection again.
    pub(super) fn deadline(&self, core: &Core) -> Option<Instant> {
        let heartbeat = core.heartbeat();
        let ask = self.last_heard.max(self.last_asked) + heartbeat;
        [
            self.link.deadline(),
            self.answer_by,
            self.moved.then(|| self.last_asked + ANSWER_EVERY),
            Some(ask),
            Some(self.silent_at(heartbeat)),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Closes the connection with a code and a reason.
    pub(super) async fn close(&mut self, code: u64, reason: &str) {
        let _ = self.link.conn.close(true, code, reason.as_bytes());
        let _ = self.transmit(Instant::now()).await;
    }

    /// The link's timers.
    pub(super) fn on_timeout(&mut self) {
        if self
            .link
            .conn
            .timeout_instant()
            .is_some_and(|at| at <= Instant::now())
        {
            self.link.conn.on_timeout();
        }
    }
}

/// The host of `host:port`.
fn host(server: &str) -> &str {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn not_accepted(why: &str) -> String {
    format!(
        "the source's certificate is not accepted: {why}. Either the source's certificate or what \
         this receiver trusts has to be changed, or the connection was intercepted; nothing was \
         sent to it"
    )
}

/// Length of what PATH_ACKs of one path have in common: type and path id.
fn ack_head(ack: &[u8]) -> usize {
    let varint = |at: usize| ack.get(at).map_or(0, |b| 1usize << (b >> 6));
    let kind = varint(0);
    (kind + varint(kind)).min(ack.len())
}
