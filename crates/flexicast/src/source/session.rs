//! One receiver's unicast session as the source sees it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::LIVE_WITHIN;
use super::backlog::Backlog;
use super::recent::Recent;
use crate::control::{ControlReader, Hello};
use crate::flow::ledger::StreamRange;
use crate::unicast::{RangeHeader, put_catch_up, put_catch_up_item};
use crate::{Cause, Cursor, PathId, Rung};

/// How many updates are asked of the store at once.
const FETCH: usize = 64;
/// A store that did not answer is asked again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// What to send on a session's unicast path next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unicast {
    /// A new server-initiated stream: the head, then the body, then FIN. Streams are not interleaved: the one that was opened first goes first.
    Stream {
        /// The header's bytes.
        head: Vec<u8>,
        /// The range's bytes.
        body: Bytes,
    },
    /// More for the catch-up stream, which is opened if there is none.
    CatchUp {
        /// Goes before the body.
        head: Vec<u8>,
        /// An encoded update.
        body: Bytes,
    },
    /// The end of the catch-up stream.
    CatchUpEnd,
    /// Ask the store for updates from `from` on, at most `limit`, and call [`super::Source::provide`]. Nothing else comes until then.
    Fetch {
        /// First `seq`.
        from: u64,
        /// Most updates to be returned.
        limit: usize,
    },
    /// Nothing to send now.
    Idle,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) hello: Option<Hello>,
    pub(super) served: bool,
    pub(super) control: ControlReader,
    pub(super) control_out: Vec<u8>,
    pub(super) backlog: Backlog,
    pub(super) cursor: Option<Cursor>,
    pub(super) rtt: Duration,
    /// It asked to join and listens.
    pub(super) joined: bool,
    /// The path that it proved, until it is promoted.
    pub(super) ready: Option<PathId>,
    pub(super) member: Option<PathId>,
    /// The head when it became a member: everything up to there is its unicast path's.
    pub(super) cut_head: u64,
    /// Since when it stands where it stands.
    pub(super) since: Instant,
    pub(super) state_sequence: Option<u64>,
    pub(super) notice_sequence: u64,
    /// It fell back before, on this connection.
    pub(super) returned: bool,
    pub(super) flaps: u32,
    pub(super) backoff_until: Option<Instant>,
    pub(super) last_cause: Cause,
    pub(super) retry_at: Option<Instant>,
    fetched: BTreeMap<u64, Bytes>,
    fetching: bool,
    catching_up: bool,
}

impl Session {
    pub(super) fn new(now: Instant) -> Self {
        Session {
            hello: None,
            served: false,
            control: ControlReader::new(),
            control_out: Vec::new(),
            backlog: Backlog::default(),
            cursor: None,
            rtt: Duration::from_millis(100),
            joined: false,
            ready: None,
            member: None,
            cut_head: 0,
            since: now,
            state_sequence: None,
            notice_sequence: 0,
            returned: false,
            flaps: 0,
            backoff_until: None,
            last_cause: Cause::Left,
            retry_at: None,
            fetched: BTreeMap::new(),
            fetching: false,
            catching_up: false,
        }
    }

    pub(super) fn is(&self, receiver: Uuid) -> bool {
        self.served && self.hello.as_ref().is_some_and(|h| h.receiver == receiver)
    }

    pub(super) fn rung(&self) -> Rung {
        self.member.and_then(PathId::rung).unwrap_or(Rung::Unicast)
    }

    /// The flow that it was on, or on the way to, is gone.
    pub(super) fn forget_flow(&mut self) {
        self.joined = false;
        self.ready = None;
        self.state_sequence = None;
        self.notice_sequence = 0;
        self.backoff_until = None;
    }

    /// The bytes of an update, or what to do to get them.
    fn bytes(&mut self, seq: u64, recent: &Recent, limit: usize) -> Result<Bytes, Unicast> {
        if let Some(bytes) = recent.get(seq).or_else(|| self.fetched.get(&seq)) {
            return Ok(bytes.clone());
        }
        if self.fetching || self.retry_at.is_some() {
            return Err(Unicast::Idle);
        }
        self.fetching = true;
        Err(Unicast::Fetch { from: seq, limit })
    }

    pub(super) fn poll_unicast(&mut self, channel: u64, recent: &Recent) -> Unicast {
        while let Some(StreamRange { seq, range }) = self.backlog.next_repair().cloned() {
            let bytes = match self.bytes(seq, recent, 1) {
                Ok(bytes) => bytes,
                Err(wait) => return wait,
            };
            self.backlog.repaired();
            self.fetched.remove(&seq);
            let range = range.start.min(bytes.len() as u64) as usize
                ..range.end.min(bytes.len() as u64) as usize;
            if range.is_empty() && !bytes.is_empty() {
                continue;
            }
            return stream(channel, seq, &bytes, range);
        }
        let Some(seq) = self.backlog.next_update() else {
            return if std::mem::take(&mut self.catching_up) {
                Unicast::CatchUpEnd
            } else {
                Unicast::Idle
            };
        };
        let many = self.backlog.len() > LIVE_WITHIN;
        if self.catching_up && !many {
            self.catching_up = false;
            return Unicast::CatchUpEnd;
        }
        let bytes = match self.bytes(seq, recent, FETCH) {
            Ok(bytes) => bytes,
            Err(wait) => return wait,
        };
        self.fetched = self.fetched.split_off(&(seq + 1));
        self.backlog.done_below(seq + 1);
        if !many {
            return stream(channel, seq, &bytes, 0..bytes.len());
        }
        let mut head = Vec::new();
        if !std::mem::replace(&mut self.catching_up, true) {
            put_catch_up(&mut head, channel);
        }
        put_catch_up_item(&mut head, seq, bytes.len());
        Unicast::CatchUp { head, body: bytes }
    }

    pub(super) fn provide(&mut self, from: u64, updates: Option<Vec<(u64, Bytes)>>, now: Instant) {
        self.fetching = false;
        let first = updates
            .as_ref()
            .and_then(|u| u.iter().map(|(seq, _)| *seq).min());
        let (Some(updates), Some(first)) = (updates, first) else {
            // Nothing at all where something was stored: the store is out of order, and asking again is all that can be done.
            self.retry_at = Some(now + RETRY);
            return;
        };
        if first > from {
            // The retention has overtaken this receiver.
            if self.backlog.next_repair().is_some_and(|r| r.seq < first) {
                self.backlog.repaired();
            } else {
                self.backlog.done_below(first);
            }
        }
        self.fetched.extend(updates.into_iter().take(FETCH));
    }
}

/// A range of an update on a stream of its own.
fn stream(channel: u64, seq: u64, bytes: &Bytes, range: std::ops::Range<usize>) -> Unicast {
    let header = RangeHeader {
        channel,
        seq,
        encoding: bytes.first().copied().unwrap_or(0),
        total: bytes.len() as u64,
        offset: range.start as u64,
    };
    let mut head = Vec::new();
    header.encode(&mut head);
    Unicast::Stream {
        head,
        body: bytes.slice(range),
    }
}
