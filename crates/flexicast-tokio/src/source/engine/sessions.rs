//! Receivers' connections as the engine sees them: their shards have the connections themselves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use flexicast::source::{ChannelIndex, Source, Unicast};
use uuid::Uuid;

use crate::link::{Link, Path};
use crate::source::shard::{PathReport, SessionWork, StreamPiece};
use crate::source::wall_clock::unix_ms_at;

/// Items of a catch-up stream are handed to quiche in pieces of so many bytes: updates are small,
/// and each piece costs.
const PIECE: usize = 16 << 10;

/// A receiver's connection.
pub(super) struct Session {
    /// Number of its shard.
    pub(super) shard: usize,
    /// Whether its receiver was welcomed.
    pub(super) served: bool,
    /// The 4-tuple in use; copies go there.
    pub(super) path: Option<Path>,
    /// Which receiver was welcomed, and when, in Unix milliseconds.
    pub(super) receiver: Option<(Uuid, u64)>,
    /// To be closed with this code and reason.
    closing: Option<(u64, String)>,
    /// Whether nothing more is taken from it: it was, or is to be, closed.
    pub(super) is_closing: bool,
    greeted: bool,
    /// Pacing that the shard knows of, in bit/s.
    rate: Option<u64>,
    /// Times of the last moves, by channel: for the state machine, and in Unix milliseconds.
    since: BTreeMap<ChannelIndex, (Instant, u64)>,
    next_stream: u64,
    catch_up: BTreeMap<ChannelIndex, u64>,
    /// Works that the shard got, and those that the receiver has acknowledged.
    works: u64,
    delivered: u64,
    /// Pieces, and bytes in them, that the shard got, and those that quiche has taken.
    queued: (u64, u64),
    written: (u64, u64),
}

/// Request of a session to the store.
pub(super) struct FetchRequest {
    pub(super) channel: ChannelIndex,
    pub(super) from: u64,
    pub(super) limit: usize,
}

/// Work of a session for its shard, and for the store.
#[derive(Default)]
pub(super) struct Load {
    pub(super) work: SessionWork,
    /// Bytes of updates in it.
    pub(super) bytes: u64,
    pub(super) fetches: Vec<FetchRequest>,
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

impl Session {
    pub(super) fn new(shard: usize) -> Self {
        Session {
            shard,
            served: false,
            path: None,
            receiver: None,
            closing: None,
            is_closing: false,
            greeted: false,
            rate: None,
            since: BTreeMap::new(),
            next_stream: 3,
            catch_up: BTreeMap::new(),
            works: 0,
            delivered: 0,
            queued: (0, 0),
            written: (0, 0),
        }
    }

    /// Returns the address that the connection comes from.
    pub(super) fn address(&self) -> SocketAddr {
        self.path
            .map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |p| p.peer)
    }

    /// Whether these remote and local addresses are the validated path of the connection.
    pub(super) fn is_on(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let on = |path: Path| path.validated && path.peer == from && path.local == to;
        self.path.is_some_and(on)
    }

    /// Whether the shard may get more updates.
    fn has_room(&self) -> bool {
        let pieces = self.queued.0.saturating_sub(self.written.0);
        let bytes = self.queued.1.saturating_sub(self.written.1);
        pieces < Link::MAX_WAITING as u64 && bytes < Link::MAX_WAITING_BYTES as u64
    }

    /// Notes what quiche has taken.
    pub(super) fn note_written(&mut self, pieces: u64, bytes: u64) {
        self.written = (pieces, bytes);
    }

    /// Notes that the receiver has acknowledged so many works.
    pub(super) fn note_delivered(&mut self, works: u64) {
        self.delivered = works;
    }

    /// Whether the receiver has acknowledged all that its shard got.
    pub(super) fn is_delivered(&self) -> bool {
        self.delivered == self.works
    }

    /// Takes work from the state machine while there is room.
    pub(super) fn fill(&mut self, session: u64, core: &mut Source, now: Instant) -> Load {
        let mut load = Load::default();
        load.work.control = core.take_control(session);
        load.work.datagrams = core.take_datagrams(session);
        let mut piece = Piece::default();
        while self.has_room() {
            let next = core.poll_unicast(session, now);
            if !matches!(&next, Unicast::CatchUp { channel, .. } if piece.takes(*channel)) {
                self.hand_over(&mut piece, &mut load.work);
            }
            match next {
                Unicast::Stream {
                    head,
                    body,
                    is_repair,
                } => {
                    load.bytes += body.len() as u64;
                    load.work.repairs |= is_repair;
                    let stream = self.open();
                    self.queue(stream, [Bytes::from(head), body], true, &mut load.work);
                }
                Unicast::CatchUp {
                    channel,
                    head,
                    body,
                } => {
                    load.bytes += body.len() as u64;
                    piece.channel = channel;
                    piece.bytes.extend_from_slice(&head);
                    if body.len() < PIECE {
                        piece.bytes.extend_from_slice(&body);
                    } else {
                        self.hand_over(&mut piece, &mut load.work);
                        let stream = self.catch_up_stream(channel);
                        self.queue(stream, [body], false, &mut load.work);
                    }
                }
                Unicast::CatchUpEnd { channel } => {
                    if let Some(stream) = self.catch_up.remove(&channel) {
                        self.queue(stream, [], true, &mut load.work);
                    }
                }
                Unicast::Fetch {
                    channel,
                    from,
                    limit,
                } => load.fetches.push(FetchRequest {
                    channel,
                    from,
                    limit,
                }),
                Unicast::Idle => break,
            }
        }
        self.hand_over(&mut piece, &mut load.work);
        load
    }

    /// Completes work for the shard, and notes that it gets it; `None` if there is nothing to do.
    pub(super) fn finish(
        &mut self,
        mut work: SessionWork,
        rate: u64,
        greeted: bool,
    ) -> Option<SessionWork> {
        work.rate = Some(rate).filter(|_| self.rate != Some(rate));
        work.greeted = greeted;
        work.close = self.closing.take();
        let is_idle = work.control.is_empty()
            && work.pieces.is_empty()
            && work.datagrams.is_empty()
            && work.rate.is_none()
            && self.greeted == greeted
            && work.close.is_none();
        if is_idle {
            return None;
        }
        self.rate = Some(rate);
        self.greeted = greeted;
        self.works += 1;
        Some(work)
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
    fn hand_over(&mut self, piece: &mut Piece, work: &mut SessionWork) {
        if !piece.bytes.is_empty() {
            let stream = self.catch_up_stream(piece.channel);
            let bytes = std::mem::take(&mut piece.bytes);
            self.queue(stream, [Bytes::from(bytes)], false, work);
        }
    }

    fn queue<const N: usize>(
        &mut self,
        stream: u64,
        parts: [Bytes; N],
        fin: bool,
        work: &mut SessionWork,
    ) {
        let (pieces, bytes) = &mut self.queued;
        *pieces += 1;
        *bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let parts = parts.into();
        work.pieces.push(StreamPiece { stream, parts, fin });
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

    /// Closes with an application error code of protocol.md section 2, once the control frames
    /// are out.
    pub(super) fn close(&mut self, code: u64, reason: String) {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.closing = Some((code, reason));
        }
    }
}

/// Sessions of a shard.
#[derive(Default, Clone)]
struct ShardSessions {
    count: usize,
    /// Sessions that wait for room in the shard's queue.
    deferred: BTreeSet<u64>,
}

/// All connections whose handshake is complete.
#[derive(Default)]
pub(super) struct Sessions {
    by_number: HashMap<u64, Session>,
    shards: Vec<ShardSessions>,
    /// Changes of the paths that connections use.
    switches: u64,
}

impl Sessions {
    pub(super) fn new(shards: usize) -> Self {
        Sessions {
            shards: vec![ShardSessions::default(); shards],
            ..Sessions::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns the numbers of connections of the shards.
    pub(super) fn by_shard(&self) -> Vec<usize> {
        self.shards.iter().map(|its| its.count).collect()
    }

    /// Has a session wait until its shard has room.
    pub(super) fn defer(&mut self, shard: usize, session: u64) {
        if let Some(its) = self.shards.get_mut(shard) {
            its.deferred.insert(session);
        }
    }

    /// Moves the sessions that wait for a shard to `touched`.
    pub(super) fn resume(&mut self, shard: usize, touched: &mut BTreeSet<u64>) {
        if let Some(its) = self.shards.get_mut(shard) {
            touched.append(&mut its.deferred);
        }
    }

    /// Whether a session waits for its shard.
    pub(super) fn is_any_deferred(&self) -> bool {
        self.shards.iter().any(|its| !its.deferred.is_empty())
    }

    /// Returns a number that grows whenever a connection uses another path.
    pub(super) fn switches(&self) -> u64 {
        self.switches
    }

    /// Notes the path that a connection uses now; whether it differs from the last one.
    pub(super) fn switch(&mut self, session: u64, report: &PathReport) -> bool {
        let Some(known) = self.by_number.get_mut(&session) else {
            return false;
        };
        let is_other = known.path != report.path;
        known.path = report.path;
        self.switches += u64::from(is_other);
        is_other
    }

    pub(super) fn get(&self, session: u64) -> Option<&Session> {
        self.by_number.get(&session)
    }

    pub(super) fn get_mut(&mut self, session: u64) -> Option<&mut Session> {
        self.by_number.get_mut(&session)
    }

    /// Returns the sessions of a shard.
    pub(super) fn of_shard(&self, shard: usize) -> Vec<u64> {
        let its = self.by_number.iter().filter(|(_, s)| s.shard == shard);
        its.map(|(session, _)| *session).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Session)> {
        let all = self.by_number.iter();
        all.map(|(session, known)| (*session, known))
    }

    pub(super) fn add(&mut self, session: u64, shard: usize) {
        if let Some(its) = self.shards.get_mut(shard) {
            its.count += 1;
        }
        self.by_number.insert(session, Session::new(shard));
    }

    pub(super) fn remove(&mut self, session: u64) -> Option<Session> {
        let known = self.by_number.remove(&session)?;
        if let Some(its) = self.shards.get_mut(known.shard) {
            its.count -= 1;
            its.deferred.remove(&session);
        }
        Some(known)
    }
}
