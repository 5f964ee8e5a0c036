//! One connection of a receiver: from the first packet to its end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use flexicast::Rung;
use flexicast::receiver::Receiver as Core;
use flexicast::source::close;
use netio::{RecvBatch, UdpSocket};
use tracing::debug;

use super::{ReceiverConfig, Verify};
use crate::Error;
use crate::config::{CID_LEN, CONTROL_STREAM, quic_client, random, spki_pin};
use crate::link::Link;

/// The handshake has to be done by then.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// The HELLO has to be answered by then.
const WELCOME_WITHIN: Duration = Duration::from_secs(25);
/// Receivers send little: acknowledgements and control frames.
const RATE: u64 = 10_000_000;
/// Silent heartbeats after which the source is given up.
const SILENT_HEARTBEATS: u32 = 3;

pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) socket: UdpSocket,
    pub(super) peer: SocketAddr,
    local: SocketAddr,
    started: Instant,
    /// Handshake done, source verified, HELLO said.
    verified: bool,
    last_heard: Instant,
    last_asked: Instant,
    buffer: Vec<u8>,
}

/// Why a connection is over.
pub(super) struct End {
    pub(super) reason: String,
    /// The source closed with this code of protocol.md section 2.
    pub(super) code: Option<u64>,
    /// What the source is told, if it still listens.
    pub(super) say: u64,
}

impl End {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        End {
            reason: reason.into(),
            code: None,
            say: close::DONE,
        }
    }
}

impl Connection {
    /// Begins a handshake with `peer`.
    pub(super) fn open(
        config: &ReceiverConfig,
        peer: SocketAddr,
        now: Instant,
    ) -> Result<Self, Error> {
        let any: SocketAddr = if peer.is_ipv4() {
            ([0, 0, 0, 0], 0).into()
        } else {
            ([0u16; 8], 0).into()
        };
        let socket = UdpSocket::bind(any).map_err(Error::io("cannot open a UDP socket"))?;
        let local = socket.local_addr();
        let mut quic = quic_client()?;
        // With pins, the certificate is checked when it is there and before anything is said; see `verify`.
        quic.verify_peer(config.verify == Verify::Roots);
        // Random, so it does not begin with the ID of a flow (protocol.md section 5): 1 in 2^64 otherwise.
        let id: [u8; CID_LEN] = random()?;
        let host = config
            .server
            .rsplit_once(':')
            .map_or(config.server.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let conn = quiche::connect(
            Some(host),
            &quiche::ConnectionId::from_ref(&id),
            local,
            peer,
            &mut quic,
        )?;
        Ok(Connection {
            link: Link::new(conn, RATE),
            socket,
            peer,
            local,
            started: now,
            verified: false,
            last_heard: now,
            last_asked: now,
            buffer: vec![0; 65_536.max(Link::BUFFER)],
        })
    }

    /// Reads the socket, then quiche, into the state machine. An error ends the connection.
    pub(super) fn receive(
        &mut self,
        batch: &mut RecvBatch,
        config: &ReceiverConfig,
        core: &mut Core,
        now: Instant,
    ) -> Result<bool, End> {
        let (conn, peer, local) = (&mut self.link.conn, self.peer, self.local);
        let mut heard = false;
        loop {
            let read = self.socket.try_recv(batch, |datagram| {
                if datagram.from != peer {
                    return;
                }
                if core.knows_flow(datagram.data) {
                    core.on_flow_datagram(Rung::Replicated, datagram.data, now);
                    return;
                }
                heard = true;
                let info = quiche::RecvInfo {
                    from: peer,
                    to: local,
                };
                if let Err(error) = conn.recv(datagram.data, info) {
                    debug!(%error, "a packet was not taken");
                }
            });
            match read {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(End::new(format!("the UDP socket failed: {error}"))),
            }
        }
        if heard {
            self.last_heard = now;
        }
        self.read(config, core, now)
    }

    /// Moves what quiche has into the state machine. Returns whether the source was verified just now.
    pub(super) fn read(
        &mut self,
        config: &ReceiverConfig,
        core: &mut Core,
        now: Instant,
    ) -> Result<bool, End> {
        let mut fresh = false;
        if self.link.conn.is_established() && !self.verified {
            self.verify(config)?;
            self.verified = true;
            fresh = true;
            core.connected();
        }
        if self.verified {
            let violation = |e: flexicast::WireError| End {
                reason: format!("the source violates the protocol: {e}"),
                code: None,
                say: close::PROTOCOL_VIOLATION,
            };
            let conn = &mut self.link.conn;
            while let Ok((n, _)) = conn.stream_recv(CONTROL_STREAM, &mut self.buffer) {
                core.on_control(&self.buffer[..n], now).map_err(violation)?;
            }
            while core.wants_unicast() {
                let Some(stream) = conn.stream_readable_next() else {
                    break;
                };
                if stream == CONTROL_STREAM {
                    continue;
                }
                while core.wants_unicast() {
                    let Ok((n, fin)) = conn.stream_recv(stream, &mut self.buffer) else {
                        break;
                    };
                    core.on_unicast(stream, &self.buffer[..n], fin)
                        .map_err(violation)?;
                }
            }
            // This version has no use for datagrams from the source.
            while conn.dgram_recv(&mut self.buffer).is_ok() {}
        }
        self.check_end().map(|()| fresh)
    }

    fn verify(&self, config: &ReceiverConfig) -> Result<(), End> {
        let Verify::Pins(pins) = &config.verify else {
            return Ok(());
        };
        let certificate = self.link.conn.peer_cert();
        let pin = certificate
            .and_then(spki_pin)
            .ok_or_else(|| End::new("the source presented no certificate that can be read"))?;
        if pins.contains(&pin) {
            return Ok(());
        }
        let text = |pin: &[u8; 32]| format!("sha256:{}", BASE64URL_NOPAD.encode(pin));
        let expected: Vec<_> = pins.iter().map(text).collect();
        Err(End::new(format!(
            "wrong pin: the source at {} presented the key {}, but the enrolment link pins {}. Either the link is out of date (ask the operator for a new one) or \
             somebody is in between; nothing was sent to it",
            config.server,
            text(&pin),
            expected.join(" or "),
        )))
    }

    fn check_end(&self) -> Result<(), End> {
        let conn = &self.link.conn;
        if !conn.is_closed() && !conn.is_draining() {
            return Ok(());
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
                End {
                    reason,
                    code: error.is_app.then_some(error.error_code),
                    say: close::DONE,
                }
            }
            (None, Some(error)) => End::new(format!(
                "the connection failed with QUIC error {:#x} {}",
                error.error_code,
                text(error)
            )),
            (None, None) if conn.is_timed_out() => End::new("the source does not answer any more"),
            (None, None) => End::new(
                "the source has restarted and does not know this connection (stateless reset)",
            ),
        })
    }

    /// Moves the state machine's words to the wire.
    pub(super) async fn flush(&mut self, core: &mut Core, now: Instant) -> Result<(), End> {
        if self.verified {
            let control = core.take_control();
            if !control.is_empty() {
                self.link.control(&control);
            }
            while let Some((_, ack)) = core.poll_datagram(now) {
                // An older acknowledgement of the same path that did not leave yet is covered by this one: the bytes of type and path id are the same.
                let head = ack_head(&ack);
                self.link
                    .conn
                    .dgram_purge_outgoing(|queued: &[u8]| queued.starts_with(&ack[..head]));
                let _ = self.link.conn.dgram_send(&ack);
            }
            if !core.is_welcomed() && now >= self.started + WELCOME_WITHIN {
                return Err(End::new(format!(
                    "the source at {} does not answer the HELLO",
                    self.peer
                )));
            }
            self.keep_alive(core, now)?;
        } else if now >= self.started + HANDSHAKE_WITHIN {
            return Err(End::new(format!(
                "no answer from {} within {} s",
                self.peer,
                HANDSHAKE_WITHIN.as_secs()
            )));
        }
        let sent = self
            .link
            .transmit(&self.socket, &mut self.buffer, now)
            .await;
        sent.map_err(|error| End::new(format!("cannot send to {}: {error}", self.peer)))
    }

    /// A source that is silent is asked each heartbeat for a sign of life, and given up after three.
    fn keep_alive(&mut self, core: &Core, now: Instant) -> Result<(), End> {
        let heartbeat = core.heartbeat();
        if now >= self.last_heard + heartbeat * SILENT_HEARTBEATS + heartbeat / 2 {
            return Err(End::new(format!(
                "nothing was heard from the source for {SILENT_HEARTBEATS} heartbeats"
            )));
        }
        if now >= self.last_heard.max(self.last_asked) + heartbeat {
            self.last_asked = now;
            let _ = self.link.conn.send_ack_eliciting();
        }
        Ok(())
    }

    /// When to look at the connection again.
    pub(super) fn deadline(&self, core: &Core) -> Option<Instant> {
        let own = if self.verified {
            let heartbeat = core.heartbeat();
            let ask = self.last_heard.max(self.last_asked) + heartbeat;
            ask.min(self.last_heard + heartbeat * SILENT_HEARTBEATS + heartbeat / 2)
        } else {
            self.started + HANDSHAKE_WITHIN
        };
        Some(self.link.deadline().map_or(own, |at| at.min(own)))
    }

    /// Tells the source that this is the end, and why.
    pub(super) async fn close(&mut self, code: u64, reason: &str) {
        let _ = self.link.conn.close(true, code, reason.as_bytes());
        let _ = self
            .link
            .transmit(&self.socket, &mut self.buffer, Instant::now())
            .await;
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

/// Length of what PATH_ACKs of one path have in common: type and path id.
fn ack_head(ack: &[u8]) -> usize {
    let varint = |at: usize| ack.get(at).map_or(0, |b| 1usize << (b >> 6));
    let kind = varint(0);
    (kind + varint(kind)).min(ack.len())
}
