//! The source's state machine for one channel: its flow, the rung of each receiver, and what each receiver still has to get on its unicast path.
//!
//! The owner moves bytes: control streams and datagrams of the unicast paths in and out, flow packets out, updates in from the store. One [`Source`] never
//! blocks and keeps no more of the backlog than the recent updates; older ones it asks for ([`Unicast::Fetch`]).

mod backlog;
mod membership;
mod recent;
mod session;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use uuid::Uuid;

use crate::ack::{PATH_ACK, PathAck};
use crate::control::{Control, Refusal, WelcomeChannel};
use crate::flow::{FlowConfig, FlowSender};
use crate::protect::KeyError;
use crate::wire::Reader;
use crate::{Cause, Cursor, WireError};
use recent::Recent;
use session::Session;
pub use session::Unicast;
pub use types::{SessionStatus, SourceConfig, SourceEvent, close};

/// The caller's number for a unicast session.
pub type SessionId = u64;

/// A receiver with more updates than this before it gets them on a catch-up stream and is not promoted (design section 5).
pub const LIVE_WITHIN: u64 = 256;
/// Without a cursor a receiver gets this many of the last updates (design section 5).
pub const FIRST_UPDATES: u64 = 100;
/// The number of the one channel, on every connection.
const CHANNEL: u64 = 1;

/// The state machine.
#[derive(Debug)]
pub struct Source {
    config: SourceConfig,
    head: u64,
    flow: Option<FlowSender>,
    announce_sequence: u64,
    /// The flow's part of its path ids; each flow has another one.
    flow_index: u64,
    /// Acknowledgements of packets that were never sent.
    invalid_acks: u64,
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
            flow_index: 1,
            invalid_acks: 0,
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

    /// Acknowledgements of packets that were never sent, since the beginning.
    pub fn invalid_acks(&self) -> u64 {
        self.invalid_acks
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
                    let ours = &self.config.channel;
                    match hello.channels.iter().find(|(name, _)| name != ours) {
                        None if !hello.channels.is_empty() => self
                            .events
                            .push_back(SourceEvent::Authorise { session: id, hello }),
                        None => {
                            self.refuse(id, Refusal::BadHello, "no channel is asked for".into())
                        }
                        Some((name, _)) => {
                            let reason =
                                format!("there is no channel \"{name}\" here, only \"{ours}\"");
                            self.refuse(id, Refusal::UnknownChannel, reason);
                        }
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
            // A cursor beyond the head is from a history that this store does not have: the receiver sees that by the head, and starts over.
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
        let known = |c: &Cursor| c.incarnation == self.config.incarnation && c.seq <= self.head;
        session.cursor = cursor.filter(known);
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
        if ack.path.flow_index() != self.flow_index {
            return Ok(());
        }
        if flow.on_ack(id, &ack, now).is_err() {
            // Perhaps not its own fault: whoever holds the flow's key can forge packets, and nothing that arrives on the flow may close a connection.
            self.invalid_acks += 1;
            if let Some(departure) = flow.dismiss(id) {
                self.fell_back(id, Cause::FlowInvalid, departure, now);
            }
        }
        self.flow_events(now);
        Ok(())
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
}
