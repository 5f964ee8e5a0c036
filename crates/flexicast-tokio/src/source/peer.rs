//! One receiver's connection at the source.

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::source::{Source, Unicast, close};

use crate::config::{CID_LEN, CONTROL_STREAM};
use crate::link::Link;

/// Handshake and HELLO have to be done by then.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Peer {
    pub(super) link: Link,
    /// The connection IDs that lead here.
    pub(super) ids: [Vec<u8>; 2],
    pub(super) accepted_at: Instant,
    /// The state machine knows it.
    pub(super) known: bool,
    /// Its receiver was welcomed.
    pub(super) served: bool,
    /// To be closed once its control frames are out.
    pub(super) closing: Option<(u64, String)>,
    next_stream: u64,
    catch_up: Option<u64>,
}

/// What a peer asks the engine to do.
pub(super) enum Wish {
    Fetch { from: u64, limit: usize },
}

impl Peer {
    pub(super) fn new(link: Link, id: [u8; CID_LEN], original: Vec<u8>, now: Instant) -> Self {
        Peer {
            link,
            ids: [id.to_vec(), original],
            accepted_at: now,
            known: false,
            served: false,
            closing: None,
            next_stream: 3,
            catch_up: None,
        }
    }

    /// Reads what arrived into the state machine. An error is the receiver's violation.
    pub(super) fn read(
        &mut self,
        session: u64,
        core: &mut Source,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<(), flexicast::WireError> {
        let conn = &mut self.link.conn;
        if !conn.is_established() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.known, true) {
            core.accept(session, now);
        }
        while let Ok((n, _)) = conn.stream_recv(CONTROL_STREAM, buffer) {
            core.on_control(session, &buffer[..n], now)?;
        }
        while let Ok(n) = conn.dgram_recv(buffer) {
            core.on_datagram(session, &buffer[..n], now)?;
        }
        if let Some(path) = conn.path_stats().find(|p| p.active) {
            core.set_rtt(session, path.rtt);
        }
        Ok(())
    }

    /// Takes work from the state machine while there is room; returns the bytes of updates that were taken and what it cannot do itself.
    pub(super) fn fill(
        &mut self,
        session: u64,
        core: &mut Source,
        now: Instant,
    ) -> (u64, Option<Wish>) {
        let control = core.take_control(session);
        if !control.is_empty() {
            self.link.control(&control);
        }
        let mut taken = 0;
        while self.link.has_room() {
            match core.poll_unicast(session, now) {
                Unicast::Stream { head, body } => {
                    taken += body.len() as u64;
                    let stream = self.open();
                    self.link.stream(stream, [Bytes::from(head), body], true);
                }
                Unicast::CatchUp { head, body } => {
                    taken += body.len() as u64;
                    let stream = match self.catch_up {
                        Some(stream) => stream,
                        None => self.open(),
                    };
                    self.catch_up = Some(stream);
                    self.link.stream(stream, [Bytes::from(head), body], false);
                }
                Unicast::CatchUpEnd => {
                    if let Some(stream) = self.catch_up.take() {
                        self.link.stream(stream, [], true);
                    }
                }
                Unicast::Fetch { from, limit } => {
                    return (taken, Some(Wish::Fetch { from, limit }));
                }
                Unicast::Idle => break,
            }
        }
        (taken, None)
    }

    fn open(&mut self) -> u64 {
        let stream = self.next_stream;
        self.next_stream += 4;
        stream
    }

    /// Closes with an application error code of protocol.md section 2.
    pub(super) fn close(&mut self, code: u64, reason: &str) {
        let _ = self.link.conn.close(true, code, reason.as_bytes());
    }

    /// Handshake or HELLO took too long.
    pub(super) fn is_overdue(&self, core: &Source, session: u64, now: Instant) -> bool {
        now >= self.accepted_at + HELLO_WITHIN && core.receiver(session).is_none()
    }

    /// Ends a connection that never said who it is.
    pub(super) fn close_overdue(&mut self) {
        self.close(close::PROTOCOL_VIOLATION, "no HELLO within 10 s");
    }
}
