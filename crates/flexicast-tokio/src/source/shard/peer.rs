//! One receiver's connection in its shard.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::messages::{PathReport, SessionWork, ShardEvent};
use crate::config::CID_LEN;
use crate::ids::replenish;
use crate::link::{Link, Path};
use crate::reset::ConnectionIds;

/// Handshake and HELLO have to be done by then.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Connection IDs that a receiver is given: receivers here use a second one only when they move on
/// purpose.
const KEEP_IDS: usize = 3;

pub(super) struct Peer {
    pub(super) link: Link,
    /// The connection IDs that lead here.
    pub(super) ids: Vec<Vec<u8>>,
    accepted_at: Instant,
    /// Whether the engine knows it.
    pub(super) known: bool,
    /// Whether its receiver has said HELLO.
    greeted: bool,
    /// Whether its next packet is reported as a sign of life.
    probed: bool,
    /// To be forgotten without waiting for the end of its connection.
    pub(super) abandoned: bool,
    /// Whether nothing more is read from it: it has violated the protocol, or is being closed.
    deaf: bool,
    /// To be closed once its control frames are out.
    pub(super) closing: Option<(u64, String)>,
    /// The 4-tuple in use, and the round-trip time, as last reported.
    path: Option<Path>,
    rtt: Option<Duration>,
    backlog: BacklogReport,
}

/// Work of a connection, and what was reported about it.
#[derive(Default)]
struct BacklogReport {
    works: u64,
    pieces: u64,
    bytes: u64,
    /// Pieces and bytes that were reported as written.
    written: (u64, u64),
    /// Works that were reported as delivered.
    delivered: Option<u64>,
}

/// Connection IDs that lead to a peer from now on, and those that do not any more.
#[derive(Default)]
pub(super) struct IdChanges {
    pub(super) added: Vec<Vec<u8>>,
    pub(super) gone: Vec<Vec<u8>>,
}

impl Peer {
    pub(super) fn new(link: Link, id: [u8; CID_LEN], original: Vec<u8>, now: Instant) -> Self {
        Peer {
            link,
            ids: vec![id.to_vec(), original],
            accepted_at: now,
            known: false,
            greeted: false,
            probed: false,
            abandoned: false,
            deaf: false,
            closing: None,
            path: None,
            rtt: None,
            backlog: BacklogReport::default(),
        }
    }

    /// Hands a datagram to the connection, and reports what it brought.
    ///
    /// # Errors
    /// quiche's.
    pub(super) fn receive(
        &mut self,
        data: &mut [u8],
        info: quiche::RecvInfo,
        mut report: impl FnMut(ShardEvent),
    ) -> quiche::Result<()> {
        let before = self
            .probed
            .then(|| (self.link.conn.stats().recv, self.address()));
        let received = self.link.receive(data, info);
        let conn = &self.link.conn;
        match before {
            Some(_) if conn.is_draining() => report(ShardEvent::Leaving),
            // Only what could be decrypted counts.
            Some((count, at)) if conn.stats().recv > count => {
                self.probed = false;
                report(ShardEvent::Heard(at));
            }
            _ => {}
        }
        received.map(drop)
    }

    /// Reports what arrived on the control stream and in datagrams.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        now: Instant,
        mut report: impl FnMut(ShardEvent),
    ) {
        if !self.link.conn.is_established() {
            return;
        }
        if !std::mem::replace(&mut self.known, true) {
            report(ShardEvent::Accepted);
            self.follow(now, &mut report);
        }
        while !self.deaf {
            match self.link.read_control(buffer) {
                Ok(Some(n)) => {
                    let bytes = buffer.get_mut(..n).unwrap_or_default();
                    report(ShardEvent::Control(Zeroizing::new(bytes.to_vec())));
                    // There may be a token in it.
                    zeroize::Zeroize::zeroize(bytes);
                }
                Ok(None) => break,
                Err(violation) => {
                    self.deaf = true;
                    report(ShardEvent::Violation(violation));
                }
            }
        }
        let conn = &mut self.link.conn;
        while let Ok(n) = conn.dgram_recv(buffer) {
            if let Some(datagram) = buffer.get(..n).filter(|_| !self.deaf) {
                report(ShardEvent::Datagram(datagram.to_vec()));
            }
        }
        let rtt = conn.path_stats().find(|p| p.active).map(|path| path.rtt);
        if let Some(rtt) = rtt.filter(|_| rtt != self.rtt) {
            self.rtt = Some(rtt);
            report(ShardEvent::Rtt(rtt));
        }
    }

    /// Follows the receiver to another address, and reports it.
    pub(super) fn follow(&mut self, now: Instant, mut report: impl FnMut(ShardEvent)) {
        let mut changes = PathReport::default();
        while let Some(event) = self.link.conn.path_event_next() {
            match event {
                quiche::PathEvent::PeerMigrated(..) => changes.migrations += 1,
                quiche::PathEvent::FailedValidation(..) => changes.failed += 1,
                _ => {}
            }
        }
        if changes.migrations > 0 {
            self.link.moved(now);
        }
        let path = self.link.path();
        let is_news = path != self.path || changes.migrations + changes.failed > 0;
        if self.known && is_news {
            self.path = path;
            report(ShardEvent::Path(PathReport { path, ..changes }));
        }
    }

    /// Returns the address that the connection comes from.
    fn address(&self) -> SocketAddr {
        let path = self.path.or_else(|| self.link.path());
        path.map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |p| p.peer)
    }

    /// Whether the receiver is, or may be, at this address.
    pub(super) fn is_at(&self, from: SocketAddr) -> bool {
        let conn = &self.link.conn;
        self.path.is_some_and(|path| path.peer == from)
            || conn.path_stats().any(|path| path.peer_addr == from)
    }

    /// Gives the receiver spare connection IDs, and forgets those that it has retired.
    pub(super) fn renew_ids(&mut self, ids: &ConnectionIds) -> IdChanges {
        let conn = &mut self.link.conn;
        let mut changes = IdChanges::default();
        while let Some(id) = conn.retired_scid_next() {
            self.ids.retain(|known| known[..] != id[..]);
            changes.gone.push(id.to_vec());
        }
        let issued = replenish(conn, KEEP_IDS, || {
            let id = ids.make().ok()?;
            Some((id, ids.token(&id)))
        });
        for id in issued {
            self.ids.push(id.to_vec());
            changes.added.push(id.to_vec());
        }
        changes
    }

    /// Takes over work of the engine.
    pub(super) fn take(&mut self, work: SessionWork, now: Instant) {
        self.greeted |= work.greeted;
        self.link.control(work.control);
        self.backlog.works += 1;
        for piece in work.pieces {
            self.backlog.pieces += 1;
            self.backlog.bytes += piece.parts.iter().map(|p| p.len() as u64).sum::<u64>();
            self.link.stream(piece.stream, piece.parts, piece.fin);
        }
        if work.repairs {
            self.link.follow_repairs();
        }
        self.link.datagrams(work.datagrams);
        if let Some(rate) = work.rate {
            self.link.set_rate(rate, now);
        }
        if work.close.is_some() {
            self.deaf = true;
            self.closing = work.close;
        }
    }

    /// Provokes an answer of the receiver, and reports the next packet from it as a sign of life.
    pub(super) fn probe(&mut self, mut report: impl FnMut(ShardEvent)) {
        self.probed = true;
        let conn = &mut self.link.conn;
        if conn.is_draining() || conn.is_closed() {
            // The receiver has said goodbye.
            report(ShardEvent::Leaving);
        } else {
            let _ = conn.send_ack_eliciting();
        }
    }

    /// Reports what quiche has taken, once there is less than half of what may wait.
    pub(super) fn report_written(&mut self, mut report: impl FnMut(ShardEvent)) {
        let (pieces, bytes) = self.link.waiting();
        let backlog = &mut self.backlog;
        let written = (backlog.pieces - pieces as u64, backlog.bytes - bytes as u64);
        let is_low = pieces < Link::MAX_WAITING / 2 && bytes < Link::MAX_WAITING_BYTES / 2;
        if is_low && written != backlog.written {
            backlog.written = written;
            let (pieces, bytes) = written;
            report(ShardEvent::Written { pieces, bytes });
        }
    }

    /// Reports that the receiver has acknowledged everything so far.
    pub(super) fn report_delivered(&mut self, mut report: impl FnMut(ShardEvent)) {
        let works = self.backlog.works;
        if self.backlog.delivered != Some(works) && self.link.is_delivered() {
            self.backlog.delivered = Some(works);
            report(ShardEvent::Delivered { works });
        }
    }

    /// Closes with an application error code of protocol.md section 2.
    pub(super) fn close(&mut self, code: u64, reason: &str) {
        let _ = self.link.conn.close(true, code, reason.as_bytes());
    }

    /// Returns the time by which the receiver has to say HELLO, if it has not.
    pub(super) fn hello_until(&self) -> Option<Instant> {
        (!self.greeted).then_some(self.accepted_at + HELLO_WITHIN)
    }

    /// Ends a connection without a HELLO. Before the handshake is complete nothing may be left to
    /// send (RFC 9000 section 8.1): it is dropped at once.
    pub(super) fn close_overdue(&mut self) {
        self.abandoned = !self.link.conn.is_established();
        self.close(
            flexicast::source::close::PROTOCOL_VIOLATION,
            "no HELLO within 10 s",
        );
    }

    /// Returns the reason for which the connection ended, for people.
    pub(super) fn end(&self) -> String {
        let conn = &self.link.conn;
        let said = |e: &quiche::ConnectionError| String::from_utf8_lossy(&e.reason).into_owned();
        if conn.is_timed_out() {
            return "nothing was heard from it any more".into();
        }
        match (conn.peer_error(), conn.local_error()) {
            (Some(error), _) => format!(
                "closed by the receiver: {} (code {})",
                said(error),
                error.error_code
            ),
            (None, Some(error)) => format!("closed: {} (code {})", said(error), error.error_code),
            (None, None) => "closed".into(),
        }
    }
}
