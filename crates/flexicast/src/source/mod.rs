//! The source's state machine for one channel: its flow, the rung of each receiver, and what each receiver still has to get on its unicast path.
//!
//! The owner moves bytes: control streams and datagrams of the unicast paths in and out, flow packets out, updates in from the store. One [`Source`] never
//! blocks and keeps no more of the backlog than the recent updates; older ones it asks for ([`Unicast::Fetch`]).

mod backlog;
mod recent;
mod session;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::ack::{PATH_ACK, PathAck};
use crate::control::{
    Action, Announce, Control, Endpoint, Hello, Key, Refusal, RungNotice, State, WelcomeChannel,
};
use crate::flow::{Departure, FlowConfig, FlowEvent, FlowSender};
use crate::protect::KeyError;
use crate::wire::Reader;
use crate::{Cause, Cursor, PathId, Rung, WireError};
use recent::Recent;
use session::Session;
pub use session::Unicast;

/// The caller's number for a unicast session.
pub type SessionId = u64;

/// A receiver with more updates than this before it gets them on a catch-up stream and is not promoted (design section 5).
pub const LIVE_WITHIN: u64 = 256;
/// Without a cursor a receiver gets this many of the last updates (design section 5).
pub const FIRST_UPDATES: u64 = 100;
/// A membership shorter than this counts as flapping.
const FLAP: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// The number of the one channel, on every connection.
const CHANNEL: u64 = 1;
/// The index of its flow in path ids.
const FLOW_INDEX: u64 = 1;
/// FC_KEY sequence of the one epoch.
const KEY_SEQUENCE: u64 = 0;

/// What a source is made with.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// The channel's name.
    pub channel: String,
    /// The channel's incarnation.
    pub incarnation: Uuid,
    /// The last stored `seq`; 0 for none.
    pub head: u64,
    /// The oldest stored `seq`; 1 if there is none.
    pub first: u64,
    /// Where the flow can be had; empty for a source without a flow.
    pub endpoints: Vec<Endpoint>,
    /// For jitter.
    pub seed: u64,
    /// Test-only: lost packets of members are not repaired.
    pub repair_off: bool,
}

/// What the owner of a source should do or know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// Decide about this HELLO and call [`Source::authorised`].
    Authorise {
        /// The session.
        session: SessionId,
        /// What it said.
        hello: Hello,
    },
    /// A receiver stands on another rung.
    Moved {
        /// The session.
        session: SessionId,
        /// From where.
        from: Rung,
        /// To where.
        to: Rung,
        /// Why.
        cause: Cause,
    },
    /// Close this session's connection once its control bytes are out.
    Close {
        /// The session.
        session: SessionId,
        /// An application error code of protocol.md section 2.
        code: u64,
        /// For people.
        reason: String,
    },
    /// The flow's key has protected nearly as many packets as it may: call [`Source::replace_flow`].
    FlowWornOut,
}

/// Application error codes (protocol.md section 2).
pub mod close {
    /// The end of a connection that did what it should.
    pub const DONE: u64 = 0;
    /// The peer violated the protocol.
    pub const PROTOCOL_VIOLATION: u64 = 1;
    /// The HELLO was refused; REFUSED says why.
    pub const REFUSED: u64 = 2;
    /// The same receiver has connected anew.
    pub const SUPERSEDED: u64 = 3;
    /// The source shuts down; come back soon.
    pub const GOING_AWAY: u64 = 4;
}

/// What a session looks like from outside.
#[derive(Debug, Clone)]
pub struct SessionStatus {
    /// The session.
    pub session: SessionId,
    /// The receiver's id.
    pub receiver: Uuid,
    /// The receiver's name.
    pub name: String,
    /// Where it stands.
    pub rung: Rung,
    /// Since when.
    pub since: Instant,
    /// What its outputs hold.
    pub cursor: Option<Cursor>,
    /// Updates that it still has to get on its unicast path.
    pub backlog: u64,
    /// Round-trip time: of the flow as a member, else of the unicast path.
    pub rtt: Duration,
}

/// The state machine.
#[derive(Debug)]
pub struct Source {
    config: SourceConfig,
    head: u64,
    flow: Option<FlowSender>,
    announce_sequence: u64,
    sessions: BTreeMap<SessionId, Session>,
    recent: Recent,
    dirty: BTreeSet<SessionId>,
    events: VecDeque<SourceEvent>,
    /// When receivers that were moved down for flapping are asked for a new proof.
    proofs: BTreeSet<(Instant, SessionId)>,
    worn_out: bool,
    rng: SmallRng,
}

impl Source {
    /// A source without sessions; `flow` is fresh random at every start.
    pub fn new(config: SourceConfig, flow: Option<FlowConfig>) -> Result<Self, KeyError> {
        Ok(Source {
            head: config.head,
            flow: flow.map(FlowSender::new).transpose()?,
            announce_sequence: 1,
            sessions: BTreeMap::new(),
            recent: Recent::new(config.head + 1),
            dirty: BTreeSet::new(),
            events: VecDeque::new(),
            proofs: BTreeSet::new(),
            worn_out: false,
            rng: SmallRng::seed_from_u64(config.seed),
            config,
        })
    }

    /// The last published or stored `seq`.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The flow, for its numbers.
    pub fn flow(&self) -> Option<&FlowSender> {
        self.flow.as_ref()
    }

    /// Whether the flow's queue has room for another update. The owner publishes slower than this allows only by waiting; nothing is lost by it.
    pub fn has_room(&self) -> bool {
        self.flow
            .as_ref()
            .is_none_or(|f| f.queued_bytes() < 8 << 20)
    }

    /// A new connection whose handshake is complete.
    pub fn accept(&mut self, session: SessionId, now: Instant) {
        self.sessions.insert(session, Session::new(now));
    }

    /// The connection is gone.
    pub fn closed(&mut self, session: SessionId, now: Instant) {
        self.dirty.remove(&session);
        if self.sessions.remove(&session).is_some() {
            if let Some(flow) = &mut self.flow {
                flow.dismiss(session);
            }
            self.count_listeners(now);
        }
    }

    /// What the unicast path measures; the flow starts from it.
    pub fn set_rtt(&mut self, session: SessionId, rtt: Duration) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.rtt = rtt;
        }
    }

    /// The next session that has something to send on its unicast path: call [`Source::take_control`] and [`Source::poll_unicast`].
    pub fn poll_dirty(&mut self) -> Option<SessionId> {
        self.dirty.pop_first()
    }

    /// Bytes for a session's control stream.
    pub fn take_control(&mut self, session: SessionId) -> Vec<u8> {
        self.sessions
            .get_mut(&session)
            .map(|s| std::mem::take(&mut s.control_out))
            .unwrap_or_default()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SourceEvent> {
        self.events.pop_front()
    }

    /// All sessions whose receivers are served.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        self.sessions
            .iter()
            .filter(|(_, s)| s.served)
            .filter_map(|(id, s)| {
                let hello = s.hello.as_ref()?;
                let member = self.flow.as_ref().and_then(|f| f.member(*id));
                Some(SessionStatus {
                    session: *id,
                    receiver: hello.receiver,
                    name: hello.name.clone(),
                    rung: s.rung(),
                    since: s.since,
                    cursor: s.cursor,
                    backlog: s.backlog.len(),
                    rtt: member.map_or(s.rtt, |(rtt, _)| rtt),
                })
            })
    }

    /// The receiver's id and name, once it said HELLO.
    pub fn receiver(&self, session: SessionId) -> Option<(Uuid, &str)> {
        self.sessions
            .get(&session)?
            .hello
            .as_ref()
            .map(|h| (h.receiver, h.name.as_str()))
    }

    /// Bytes of a session's control stream. An error is a violation by the receiver: close the connection with it.
    pub fn on_control(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), WireError> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Ok(());
        };
        session.control.push(bytes);
        loop {
            let Some(session) = self.sessions.get_mut(&id) else {
                return Ok(());
            };
            let Some(frame) = session.control.next_frame()? else {
                return Ok(());
            };
            match frame {
                Control::Hello(_) if session.hello.is_some() => {
                    return Err(WireError::invalid("HELLO", "a second one"));
                }
                Control::Hello(hello) => {
                    session.hello = Some(hello.clone());
                    if hello
                        .channels
                        .iter()
                        .any(|(name, _)| *name == self.config.channel)
                    {
                        self.events
                            .push_back(SourceEvent::Authorise { session: id, hello });
                    } else {
                        let reason = format!(
                            "this source has only the channel \"{}\"",
                            self.config.channel
                        );
                        self.refuse(id, Refusal::UnknownChannel, reason);
                    }
                }
                _ if !session.served => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame before WELCOME",
                    ));
                }
                Control::Cursors(cursors) => {
                    let ours = cursors
                        .into_iter()
                        .rfind(|c| c.incarnation == self.config.incarnation);
                    session.cursor = ours.or(session.cursor);
                }
                Control::State(state) => self.on_state(id, &state, now),
                Control::Welcome(_)
                | Control::Refused { .. }
                | Control::Announce(_)
                | Control::Key(_)
                | Control::Rung(_) => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame that only sources send",
                    ));
                }
            }
        }
    }

    fn refuse(&mut self, id: SessionId, refusal: Refusal, reason: String) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        Control::Refused {
            code: refusal as u64,
            reason: reason.clone(),
        }
        .encode(&mut session.control_out);
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Close {
            session: id,
            code: close::REFUSED,
            reason,
        });
    }

    /// The decision about a HELLO: serves the receiver or turns it away.
    pub fn authorised(
        &mut self,
        id: SessionId,
        verdict: Result<(), (Refusal, String)>,
        now: Instant,
    ) {
        if let Err((refusal, reason)) = verdict {
            return self.refuse(id, refusal, reason);
        }
        let Some(hello) = self.sessions.get(&id).and_then(|s| s.hello.clone()) else {
            return;
        };
        self.supersede(id, hello.receiver, now);
        let cursor = hello
            .channels
            .iter()
            .find(|(name, _)| *name == self.config.channel)
            .and_then(|(_, cursor)| *cursor);
        let first = match cursor {
            // A cursor beyond the head is from a history that this store does not have; the incarnation should have changed, so it starts over as well.
            Some(c) if c.incarnation == self.config.incarnation && c.seq <= self.head => {
                (c.seq + 1).max(self.config.first)
            }
            _ => (self.head + 1)
                .saturating_sub(FIRST_UPDATES)
                .max(self.config.first),
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.served = true;
        session.since = now;
        session.cursor = cursor.filter(|c| c.incarnation == self.config.incarnation);
        session.backlog.start(first, self.head);
        let welcome = WelcomeChannel {
            channel: CHANNEL,
            name: self.config.channel.clone(),
            incarnation: self.config.incarnation,
            head: self.head,
            first,
        };
        Control::Welcome(vec![welcome]).encode(&mut session.control_out);
        if let Some(announce) = self.announcement()
            && let Some(session) = self.sessions.get_mut(&id)
        {
            Control::Announce(announce).encode(&mut session.control_out);
        }
        self.dirty.insert(id);
    }

    /// A receiver that connects anew has given up its older connection.
    fn supersede(&mut self, id: SessionId, receiver: Uuid, now: Instant) {
        let older =
            |(other, s): (&SessionId, &Session)| (*other != id && s.is(receiver)).then_some(*other);
        let old: Vec<_> = self.sessions.iter().filter_map(older).collect();
        for session in old {
            self.closed(session, now);
            let reason = "the same receiver has connected anew".to_owned();
            self.events.push_back(SourceEvent::Close {
                session,
                code: close::SUPERSEDED,
                reason,
            });
        }
    }

    fn announcement(&self) -> Option<Announce> {
        let config = self.flow.as_ref()?.config();
        Some(Announce {
            flow: config.flow,
            sequence: self.announce_sequence,
            endpoints: self.config.endpoints.clone(),
            ack_delay: config.ack_delay,
            flow_index: FLOW_INDEX,
            channel: CHANNEL,
            heartbeat: config.heartbeat,
        })
    }

    fn on_state(&mut self, id: SessionId, state: &State, now: Instant) {
        let (Some(flow), Some(session)) = (&mut self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let config = flow.config();
        if state.flow != config.flow
            || session
                .state_sequence
                .is_some_and(|known| state.sequence <= known)
        {
            // About a flow that was replaced meanwhile, or overtaken.
            return;
        }
        session.state_sequence = Some(state.sequence);
        match state.action {
            Action::Join => {
                session.joined = true;
                let key = Key {
                    flow: config.flow,
                    sequence: KEY_SEQUENCE,
                    first_pn: 0,
                    secret: config.secret.clone(),
                    algorithm: config.algorithm as u64,
                };
                Control::Key(key).encode(&mut session.control_out);
                self.dirty.insert(id);
                self.count_listeners(now);
            }
            Action::Ready => {
                let known_path = state.path.rung() == Some(Rung::Multicast)
                    && state.path.flow_index() == FLOW_INDEX;
                let backing_off = session.backoff_until.is_some_and(|until| now < until);
                if session.joined
                    && known_path
                    && state.key_sequence == KEY_SEQUENCE
                    && !backing_off
                {
                    session.ready = Some(state.path);
                    self.try_promote(id, now);
                }
            }
            Action::Leave => {
                let cause = state.cause.unwrap_or(Cause::Left);
                if config.fall_back_off && cause == Cause::HeartbeatLost {
                    return;
                }
                if let Some(departure) = flow.dismiss(id) {
                    self.fell_back(id, cause, departure, now);
                }
                // Who misses heartbeats goes on listening for the flow's return; anybody else is off it.
                if cause != Cause::HeartbeatLost {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.joined = false;
                        session.ready = None;
                    }
                    self.count_listeners(now);
                }
            }
        }
    }

    fn count_listeners(&mut self, now: Instant) {
        let listeners = self.sessions.values().filter(|s| s.joined).count();
        if let Some(flow) = &mut self.flow {
            flow.set_listeners(listeners, now);
        }
    }

    /// Makes a receiver a member if it has proved that packets arrive and is near enough to the head.
    fn try_promote(&mut self, id: SessionId, now: Instant) {
        let (Some(flow), Some(session)) = (&mut self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let Some(path) = session.ready else { return };
        if session.member.is_some() || session.backlog.len() > LIVE_WITHIN {
            return;
        }
        let cut = flow.admit(id, path, session.rtt);
        session.ready = None;
        session.member = Some(path);
        session.since = now;
        session.backlog.set_live(false);
        let notice = session.notice(flow.config().flow, path, cut, Cause::Joined);
        Control::Rung(notice).encode(&mut session.control_out);
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Moved {
            session: id,
            from: Rung::Unicast,
            to: Rung::Multicast,
            cause: Cause::Joined,
        });
    }

    /// The other end of a membership: everything that the flow did not bring goes to the unicast path.
    fn fell_back(&mut self, id: SessionId, cause: Cause, departure: Departure, now: Instant) {
        let (Some(flow), Some(session)) = (&mut self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let Some(path) = session.member.take() else {
            return;
        };
        session.backlog.repair(departure.owed);
        session.backlog.insert(departure.resume, self.head);
        session.backlog.set_live(true);
        // A first membership that ends soon is a failure, only one after a return is flapping.
        let flapped = session.returned && now.saturating_duration_since(session.since) < FLAP;
        session.returned = true;
        session.flaps = if flapped {
            session.flaps.saturating_add(1)
        } else {
            0
        };
        session.backoff_until = None;
        if session.flaps > 0 {
            let wait = BACKOFF_FIRST
                .saturating_mul(1 << (session.flaps - 1).min(16))
                .min(BACKOFF_MAX);
            let until = now + wait.mul_f64(self.rng.random_range(0.75..1.25));
            session.backoff_until = Some(until);
            self.proofs.insert((until, id));
        }
        session.since = now;
        session.last_cause = cause;
        let notice = session.notice(flow.config().flow, PathId::UNICAST, flow.next_pn(), cause);
        Control::Rung(notice).encode(&mut session.control_out);
        self.dirty.insert(id);
        let from = path.rung().unwrap_or(Rung::Multicast);
        self.events.push_back(SourceEvent::Moved {
            session: id,
            from,
            to: Rung::Unicast,
            cause,
        });
    }

    /// A DATAGRAM of a session. An error is a violation by the receiver: close the connection with it.
    pub fn on_datagram(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), WireError> {
        let mut r = Reader::new("DATAGRAM", bytes);
        if r.varint()? != PATH_ACK {
            return Ok(());
        }
        let ack = PathAck::decode(bytes)?;
        let Some(flow) = self
            .flow
            .as_mut()
            .filter(|_| self.sessions.contains_key(&id))
        else {
            return Ok(());
        };
        if ack.path.flow_index() != FLOW_INDEX {
            return Ok(());
        }
        if flow.on_ack(id, &ack, now).is_err() {
            return Err(WireError::invalid(
                "PATH_ACK",
                "acknowledges a packet that was never sent",
            ));
        }
        self.flow_events(now);
        Ok(())
    }

    fn flow_events(&mut self, now: Instant) {
        while let Some(event) = self.flow.as_mut().and_then(FlowSender::poll_event) {
            match event {
                FlowEvent::Repair { member, range } => {
                    if self.config.repair_off {
                        continue;
                    }
                    if let Some(session) = self.sessions.get_mut(&member) {
                        session.backlog.repair([range]);
                        self.dirty.insert(member);
                    }
                }
                FlowEvent::FellBack {
                    member,
                    cause,
                    mut departure,
                } => {
                    if self.config.repair_off {
                        departure.owed.clear();
                    }
                    self.fell_back(member, cause, departure, now);
                }
            }
        }
    }

    /// A new update, stored before: sends it to everybody. `seq` must follow the head.
    pub fn publish(&mut self, seq: u64, encoded: Bytes) {
        debug_assert_eq!(seq, self.head + 1, "updates are published in order");
        self.head = seq;
        self.recent.push(seq, encoded.clone());
        for (id, session) in &mut self.sessions {
            if session.served && session.backlog.publish(seq) {
                self.dirty.insert(*id);
            }
        }
        if let Some(flow) = &mut self.flow {
            flow.push(seq, encoded);
        }
    }

    /// The next thing to send on a session's unicast path. Ask only while the connection has room for it.
    pub fn poll_unicast(&mut self, id: SessionId, now: Instant) -> Unicast {
        let Some(session) = self.sessions.get_mut(&id).filter(|s| s.served) else {
            return Unicast::Idle;
        };
        let out = session.poll_unicast(CHANNEL, &self.recent);
        if session.ready.is_some() {
            self.try_promote(id, now);
        }
        out
    }

    /// The store's answer to a [`Unicast::Fetch`]: updates in order from the one asked for. `None` says that the store did not answer; it is asked again later.
    pub fn provide(
        &mut self,
        id: SessionId,
        from: u64,
        updates: Option<Vec<(u64, Bytes)>>,
        now: Instant,
    ) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.provide(from, updates, now);
            self.dirty.insert(id);
        }
    }

    /// Makes the next flow packet in `out`, if one is due. Returns whether it did.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let Some(flow) = &mut self.flow else {
            return false;
        };
        let sent = flow.poll_transmit(now, out);
        if flow.is_worn_out() && !self.worn_out {
            self.worn_out = true;
            self.events.push_back(SourceEvent::FlowWornOut);
        }
        sent
    }

    /// When to call [`Source::handle_timeout`] and [`Source::poll_transmit`] next.
    pub fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        let flow = self.flow.as_mut().and_then(|f| f.poll_timeout(now));
        let proof = self.proofs.first().map(|(at, _)| *at);
        let retry = self.sessions.values().filter_map(|s| s.retry_at).min();
        [flow, proof, retry].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(flow) = &mut self.flow {
            flow.handle_timeout(now);
        }
        self.flow_events(now);
        while let Some((at, id)) = self.proofs.first().copied().filter(|(at, _)| *at <= now) {
            self.proofs.remove(&(at, id));
            self.ask_for_proof(id, now);
        }
        for (id, session) in &mut self.sessions {
            if session.retry_at.is_some_and(|at| at <= now) {
                session.retry_at = None;
                self.dirty.insert(*id);
            }
        }
    }

    /// The back-off of a receiver that flapped is over: packets from now on prove that the flow reaches it.
    fn ask_for_proof(&mut self, id: SessionId, now: Instant) {
        let (Some(flow), Some(session)) = (&self.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        if session.member.is_some() || session.backoff_until.is_none_or(|until| until > now) {
            return;
        }
        session.backoff_until = None;
        let notice = session.notice(
            flow.config().flow,
            PathId::UNICAST,
            flow.next_pn(),
            session.last_cause,
        );
        Control::Rung(notice).encode(&mut session.control_out);
        self.dirty.insert(id);
    }

    /// Withdraws the flow and begins another one with a fresh Flow ID and secret: members go to unicast and prove themselves anew.
    pub fn replace_flow(&mut self, config: FlowConfig, now: Instant) -> Result<(), KeyError> {
        let fresh = FlowSender::new(config)?;
        let Some(mut withdrawn) = self.announcement() else {
            return Ok(());
        };
        withdrawn.endpoints.clear();
        self.announce_sequence += 1;
        withdrawn.sequence = self.announce_sequence;
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in &ids {
            if let Some(departure) = self.flow.as_mut().and_then(|f| f.dismiss(*id)) {
                self.fell_back(*id, Cause::FlowInvalid, departure, now);
            }
        }
        self.flow = Some(fresh);
        self.worn_out = false;
        let announce = self.announcement();
        for (id, session) in self.sessions.iter_mut().filter(|(_, s)| s.served) {
            session.forget_flow();
            Control::Announce(withdrawn.clone()).encode(&mut session.control_out);
            if let Some(announce) = &announce {
                Control::Announce(announce.clone()).encode(&mut session.control_out);
            }
            self.dirty.insert(*id);
        }
        Ok(())
    }
}

impl Session {
    fn notice(
        &mut self,
        flow: crate::FlowId,
        path: PathId,
        first_pn: u64,
        cause: Cause,
    ) -> RungNotice {
        self.notice_sequence += 1;
        RungNotice {
            flow,
            sequence: self.notice_sequence,
            path,
            first_pn,
            cause,
        }
    }
}
