//! One receiver's connection at the source.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::source::{ChannelIndex, Source, Unicast, close};
use uuid::Uuid;
use zeroize::Zeroize;

use crate::config::CID_LEN;
use crate::ids::replenish;
use crate::link::{Link, Path};
use crate::reset::Resets;
use crate::source::wall_clock::unix_ms_at;

/// Handshake and HELLO have to be done by then.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Connection IDs that a receiver is given: receivers here use a second one only when they move on
/// purpose.
const KEEP_IDS: usize = 3;

pub(super) struct Peer {
    pub(super) link: Link,
    /// Where its first packet came from.
    pub(super) ip: IpAddr,
    /// The connection IDs that lead here.
    pub(super) ids: Vec<Vec<u8>>,
    pub(super) accepted_at: Instant,
    /// The state machine knows it.
    pub(super) known: bool,
    /// Its receiver was welcomed.
    pub(super) served: bool,
    /// To be forgotten without waiting for the end of its connection.
    pub(super) abandoned: bool,
    /// To be closed once its control frames are out.
    pub(super) closing: Option<(u64, String)>,
    /// The 4-tuple in use; copies go there.
    pub(super) path: Option<Path>,
    /// Which receiver was welcomed, and when, in Unix milliseconds.
    pub(super) receiver: Option<(Uuid, u64)>,
    /// Times of the last moves, by channel: for the state machine, and in Unix milliseconds.
    since: BTreeMap<ChannelIndex, (Instant, u64)>,
    next_stream: u64,
    catch_up: BTreeMap<ChannelIndex, u64>,
}

/// Items of a catch-up stream are handed to quiche in pieces of so many bytes: updates are small,
/// and each piece costs.
const PIECE: usize = 16 << 10;

/// Requests of a peer to the engine.
pub(super) struct PeerRequest {
    pub(super) channel: ChannelIndex,
    pub(super) from: u64,
    pub(super) limit: usize,
}

/// Changes of a connection's paths.
#[derive(Default)]
pub(super) struct PathChanges {
    pub(super) migrations: u64,
    pub(super) failed: u64,
    /// Whether another path is in use, or the same one was validated.
    pub(super) switched: bool,
}

/// Connection IDs that lead to a peer from now on, and those that do not any more.
#[derive(Default)]
pub(super) struct IdChanges {
    pub(super) added: Vec<Vec<u8>>,
    pub(super) gone: Vec<Vec<u8>>,
}

/// Items of one catch-up stream, put together.
#[derive(Default)]
struct Piece {
    channel: ChannelIndex,
    bytes: Vec<u8>,
}

impl Piece {
    /// Whether more of this channel fits after what is there.
    fn takes(&self, channel: ChannelIndex) -> bool {
        self.bytes.is_empty() || self.channel == channel && self.bytes.len() < PIECE
    }
}

impl Peer {
    pub(super) fn new(
        link: Link,
        ip: IpAddr,
        id: [u8; CID_LEN],
        original: Vec<u8>,
        now: Instant,
    ) -> Self {
        Peer {
            link,
            ip,
            ids: vec![id.to_vec(), original],
            accepted_at: now,
            known: false,
            served: false,
            abandoned: false,
            closing: None,
            path: None,
            receiver: None,
            since: BTreeMap::new(),
            next_stream: 3,
            catch_up: BTreeMap::new(),
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
        if !self.link.conn.is_established() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.known, true) {
            core.accept(session, now);
        }
        while let Some(n) = self.link.read_control(buffer)? {
            let taken = core.on_control(session, &buffer[..n], now);
            // There may be a token in it.
            buffer[..n].zeroize();
            taken?;
        }
        let conn = &mut self.link.conn;
        while let Ok(n) = conn.dgram_recv(buffer) {
            core.on_datagram(session, &buffer[..n], now)?;
        }
        if let Some(path) = conn.path_stats().find(|p| p.active) {
            core.set_rtt(session, path.rtt);
        }
        Ok(())
    }

    /// Follows the receiver to another address: until it has proved that it receives there, no
    /// copies go to it.
    pub(super) fn follow(&mut self, session: u64, core: &mut Source, now: Instant) -> PathChanges {
        let mut changes = PathChanges::default();
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
        if self.known && path != self.path {
            core.set_validated(session, path.is_some_and(|p| p.validated), now);
            self.path = path;
            changes.switched = true;
        }
        changes
    }

    /// Returns the address that the connection comes from.
    pub(super) fn address(&self) -> SocketAddr {
        let path = self.path.or_else(|| self.link.path());
        path.map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |p| p.peer)
    }

    /// Whether these remote and local addresses are the validated path of the connection.
    pub(super) fn is_on(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let on = |path: Path| path.validated && path.peer == from && path.local == to;
        self.path.is_some_and(on)
    }

    /// Whether the receiver is, or may be, at this address.
    pub(super) fn is_at(&self, from: SocketAddr) -> bool {
        let conn = &self.link.conn;
        self.path.is_some_and(|path| path.peer == from)
            || conn.path_stats().any(|path| path.peer_addr == from)
    }

    /// Gives the receiver spare connection IDs, and forgets those that it has retired.
    pub(super) fn renew_ids(&mut self, resets: &Resets) -> IdChanges {
        let conn = &mut self.link.conn;
        let mut changes = IdChanges::default();
        while let Some(id) = conn.retired_scid_next() {
            self.ids.retain(|known| known[..] != id[..]);
            changes.gone.push(id.to_vec());
        }
        let issued = replenish(conn, KEEP_IDS, || {
            let id = resets.connection_id().ok()?;
            Some((id, resets.token(&id)))
        });
        for id in issued {
            self.ids.push(id.to_vec());
            changes.added.push(id.to_vec());
        }
        changes
    }

    /// Takes work from the state machine while there is room; returns the bytes of updates that
    /// were taken and what it cannot do itself.
    pub(super) fn fill(
        &mut self,
        session: u64,
        core: &mut Source,
        now: Instant,
    ) -> (u64, Vec<PeerRequest>) {
        self.link.control(core.take_control(session));
        let (mut taken, mut requests) = (0, Vec::new());
        let mut piece = Piece::default();
        while self.link.has_room() {
            let next = core.poll_unicast(session, now);
            if !matches!(&next, Unicast::CatchUp { channel, .. } if piece.takes(*channel)) {
                self.hand_over(&mut piece);
            }
            match next {
                Unicast::Stream { head, body } => {
                    taken += body.len() as u64;
                    let stream = self.open();
                    self.link.stream(stream, [Bytes::from(head), body], true);
                }
                Unicast::CatchUp {
                    channel,
                    head,
                    body,
                } => {
                    taken += body.len() as u64;
                    piece.channel = channel;
                    piece.bytes.extend_from_slice(&head);
                    if body.len() < PIECE {
                        piece.bytes.extend_from_slice(&body);
                    } else {
                        self.hand_over(&mut piece);
                        let stream = self.catch_up_stream(channel);
                        self.link.stream(stream, [body], false);
                    }
                }
                Unicast::CatchUpEnd { channel } => {
                    if let Some(stream) = self.catch_up.remove(&channel) {
                        self.link.stream(stream, [], true);
                    }
                }
                Unicast::Fetch {
                    channel,
                    from,
                    limit,
                } => requests.push(PeerRequest {
                    channel,
                    from,
                    limit,
                }),
                Unicast::Idle => break,
            }
        }
        self.hand_over(&mut piece);
        (taken, requests)
    }

    /// Whether it is sent updates on a catch-up stream.
    pub(super) fn is_catching_up(&self) -> bool {
        !self.catch_up.is_empty()
    }

    fn catch_up_stream(&mut self, channel: ChannelIndex) -> u64 {
        match self.catch_up.get(&channel) {
            Some(stream) => *stream,
            None => {
                let stream = self.open();
                self.catch_up.insert(channel, stream);
                stream
            }
        }
    }

    /// Queues the items that were put together.
    fn hand_over(&mut self, piece: &mut Piece) {
        if !piece.bytes.is_empty() {
            let stream = self.catch_up_stream(piece.channel);
            let bytes = std::mem::take(&mut piece.bytes);
            self.link.stream(stream, [Bytes::from(bytes)], false);
        }
    }

    fn open(&mut self) -> u64 {
        let stream = self.next_stream;
        self.next_stream += 4;
        stream
    }

    /// Returns the time of the last move in Unix milliseconds: always the same for the same moment,
    /// whatever happens to the host's clock.
    pub(super) fn since_ms(&mut self, channel: ChannelIndex, at: Instant) -> u64 {
        let (known, ms) = self
            .since
            .entry(channel)
            .or_insert_with(|| (at, unix_ms_at(at)));
        if *known != at {
            (*known, *ms) = (at, unix_ms_at(at));
        }
        *ms
    }

    /// Closes with an application error code of protocol.md section 2.
    pub(super) fn close(&mut self, code: u64, reason: &str) {
        let _ = self.link.conn.close(true, code, reason.as_bytes());
    }

    /// Handshake or HELLO took too long.
    pub(super) fn is_overdue(&self, core: &Source, session: u64, now: Instant) -> bool {
        now >= self.accepted_at + HELLO_WITHIN && core.receiver(session).is_none()
    }

    /// Ends a connection without a HELLO. Before the handshake is complete nothing may be left to
    /// send (RFC 9000 section 8.1): it is dropped at once.
    pub(super) fn close_overdue(&mut self) {
        self.abandoned = !self.link.conn.is_established();
        self.close(close::PROTOCOL_VIOLATION, "no HELLO within 10 s");
    }
}
