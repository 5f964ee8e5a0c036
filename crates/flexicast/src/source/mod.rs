//! The source's state machine: its channels with their flows, the rung of each receiver on each of
//! them, and what each receiver still has to get on its unicast path.
//!
//! The owner moves bytes: control streams and datagrams of the unicast paths in and out, flow
//! packets out, updates in from the store. A [`Source`] never blocks and keeps no more of the
//! backlog than the recent updates; older ones it asks for ([`Unicast::Fetch`]).

mod admission;
mod audience;
mod backlog;
mod channel;
mod control;
mod delivery;
mod explained;
mod held;
mod ladder;
mod membership;
mod offer;
mod operate;
mod overdue;
mod pacing;
mod recent;
mod rekey;
mod replication;
mod session;
mod subscription;
mod types;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::control::{Hello, RelayHint};
use crate::flow::FlowSender;
use crate::protect::KeyError;
use crate::trace::{Outcome, PacketTrace, Tracer};
use crate::{Cause, PathId, Rung};
use admission::IdDispute;
use audience::Reception;
use channel::Channel;
use overdue::CursorWatch;
use pacing::Pacing;
use session::Session;
#[cfg(feature = "fault-injection")]
pub use types::Faults;
use types::channel_number;
pub use types::{
    Absence, ChannelConfig, ChannelIndex, Limits, SessionId, SessionStatus, SourceConfig,
    SourceCounters, SourceEvent, SubscriptionStatus, Traffic, Unicast, close,
};

/// A receiver with more updates than this before it gets them on a catch-up stream and is not
/// promoted (design section 5).
pub const LIVE_WITHIN: u64 = 256;
/// Without a cursor a receiver gets this many of the last updates, unless it asks for another
/// number (design section 5).
pub const FIRST_UPDATES: u64 = 100;
/// While no more than so many catch up, the store is read ahead for each of them: what that holds
/// stays bounded.
const READ_AHEAD: usize = 64;
/// Bytes that a flow's queue holds before its owner should wait.
const FLOW_ROOM: usize = 8 << 20;

/// Timer of one receiver on one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// End of a back-off: the receiver may prove the rung again.
    Proof(Rung),
    /// Copies that were not proved to arrive end.
    Copies,
    /// A store that did not answer is asked again.
    Retry,
}

/// The state machine.
#[derive(Debug)]
pub struct Source {
    channels: Vec<Channel>,
    /// Names of channels that another source publishes.
    elsewhere: BTreeSet<String>,
    sessions: BTreeMap<SessionId, Session>,
    /// The session of each receiver that is served.
    by_receiver: HashMap<Uuid, SessionId>,
    /// Receivers that the operator keeps on their unicast paths, connected or not.
    held: BTreeSet<Uuid>,
    limits: Limits,
    /// AMT relays announced to receivers.
    relays: Vec<RelayHint>,
    /// Newcomers whose id is taken.
    disputes: BTreeMap<SessionId, IdDispute>,
    /// Sessions with a catch-up stream, by channel.
    catching_up: BTreeSet<(SessionId, ChannelIndex)>,
    dirty: BTreeSet<SessionId>,
    events: VecDeque<SourceEvent>,
    counters: SourceCounters,
    alarms: BTreeSet<(Instant, SessionId, ChannelIndex, Alarm)>,
    pacing: Pacing,
    next_flow_index: u64,
    /// Which channel's flow is asked first for a packet.
    turn: usize,
    served: usize,
    cursors: CursorWatch,
    #[cfg(feature = "fault-injection")]
    faults: Faults,
    tracer: Tracer,
    rng: SmallRng,
}

impl Source {
    /// A source without sessions.
    ///
    /// # Errors
    /// The cryptographic library refuses a flow's key.
    pub fn new(mut config: SourceConfig) -> Result<Self, KeyError> {
        let mut channels = Vec::with_capacity(config.channels.len());
        for (channel, index) in config.channels.iter_mut().zip(1..) {
            // Moved one by one, so that the list keeps no copies of the secrets when it is dropped.
            let mut flow = channel.flow.as_mut();
            let secret = flow.as_mut().map(|f| std::mem::take(&mut f.secret));
            let mut own = channel.clone();
            if let (Some(flow), Some(secret)) = (&mut own.flow, secret) {
                flow.secret = secret;
            }
            channels.push(Channel::new(own, index)?);
        }
        Ok(Source {
            next_flow_index: channels.len() as u64 + 1,
            channels,
            elsewhere: BTreeSet::new(),
            sessions: BTreeMap::new(),
            by_receiver: HashMap::new(),
            held: BTreeSet::new(),
            limits: config.limits,
            relays: Vec::new(),
            disputes: BTreeMap::new(),
            catching_up: BTreeSet::new(),
            dirty: BTreeSet::new(),
            events: VecDeque::new(),
            counters: SourceCounters::default(),
            alarms: BTreeSet::new(),
            pacing: Pacing::new(config.unicast_rate),
            turn: 0,
            served: 0,
            cursors: CursorWatch::default(),
            #[cfg(feature = "fault-injection")]
            faults: Faults::default(),
            tracer: Tracer::default(),
            rng: SmallRng::seed_from_u64(config.seed),
        })
    }

    /// Leaves protections out from now on, in the flows of all channels.
    #[cfg(feature = "fault-injection")]
    pub fn inject_faults(&mut self, faults: Faults) {
        self.faults = faults;
        for flow in self.channels.iter_mut().filter_map(|c| c.flow.as_mut()) {
            flow.set_fall_back_off(faults.fall_back_off);
        }
    }

    /// Whether members get what they lost, as they always do but for an injected fault.
    fn repairs(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.faults.repair_off;
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    /// The number of places of channels; that of a removed one is empty until another channel takes
    /// it.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Whether there is a channel in this place.
    pub fn has_channel(&self, channel: ChannelIndex) -> bool {
        self.channels.get(channel).is_some_and(|c| !c.vacant)
    }

    /// A channel's name; empty if there is no such channel.
    pub fn channel_name(&self, channel: ChannelIndex) -> &str {
        self.channels.get(channel).map_or("", |c| &c.name)
    }

    /// The last published or stored `seq` of a channel; 0 if there is no such channel.
    pub fn head(&self, channel: ChannelIndex) -> u64 {
        self.channels.get(channel).map_or(0, |c| c.head)
    }

    /// A channel's flow, for its numbers.
    pub fn flow(&self, channel: ChannelIndex) -> Option<&FlowSender> {
        self.channels.get(channel)?.flow.as_ref()
    }

    /// Whether the queue of a channel's flow has room for another update. The owner publishes
    /// slower than this allows only by waiting; nothing is lost by it.
    pub fn has_room(&self, channel: ChannelIndex) -> bool {
        self.flow(channel)
            .is_none_or(|f| f.queued_bytes() < FLOW_ROOM)
    }

    /// Counters since the beginning.
    pub fn counters(&self) -> SourceCounters {
        self.counters
    }

    /// A new connection whose handshake is complete, which validates its address.
    pub fn accept(&mut self, session: SessionId, _now: Instant) {
        self.sessions.insert(session, Session::new(&self.limits));
    }

    /// The connection is gone.
    pub fn closed(&mut self, id: SessionId, now: Instant) {
        self.dirty.remove(&id);
        self.pacing.forget(id);
        self.catching_up.retain(|(session, _)| *session != id);
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        self.served -= usize::from(session.is_served());
        let receiver = session.receiver();
        if let Some(receiver) = receiver
            && self.by_receiver.get(&receiver) == Some(&id)
        {
            self.by_receiver.remove(&receiver);
        }
        for subscription in session.subscriptions() {
            let c = subscription.channel;
            if let Some(flow) = self.channels.get_mut(c).and_then(|c| c.flow.as_mut()) {
                flow.dismiss(id);
            }
            if subscription.ladder.key.is_sent() {
                self.note_leaver(c, receiver, now);
            }
            if let Some(channel) = self.channels.get_mut(c) {
                let audience = &mut channel.audience;
                audience.count(id, subscription.counted, Reception::default());
                audience.mark_stale(id);
            }
            self.flow_events(c, now);
        }
        self.end_disputes(id, now);
    }

    /// Whether the receiver of a session is served.
    pub fn is_served(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(Session::is_served)
    }

    /// Sets the RTT measured on the unicast path, from which the flow's estimate starts.
    pub fn set_rtt(&mut self, session: SessionId, rtt: Duration) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.rtt = rtt;
        }
    }

    /// The next session that has something to send on its unicast path: call
    /// [`Source::take_control`] and [`Source::poll_unicast`].
    pub fn poll_dirty(&mut self) -> Option<SessionId> {
        self.dirty.pop_first()
    }

    /// Bytes for a session's control stream; keys are among them.
    pub fn take_control(&mut self, session: SessionId) -> Zeroizing<Vec<u8>> {
        let session = self.sessions.get_mut(&session);
        session.map(Session::take_control).unwrap_or_default()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SourceEvent> {
        self.events.pop_front()
    }

    /// All sessions whose receivers are served, but for those that are being closed.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> + '_ {
        let served = self.sessions.iter();
        let served = served.filter(|(_, s)| s.is_served() && !s.is_closing());
        served.filter_map(|(id, s)| {
            let hello = s.hello()?;
            let held = s.is_held().then_some(Cause::Held);
            let channels = s.subscriptions().iter().map(|sub| SubscriptionStatus {
                channel: sub.channel,
                rung: sub.ladder.rung(),
                since: sub.ladder.since(),
                cause: held.or(sub.ladder.cause()),
                cursor: sub.outputs.cursor(),
                backlog: sub.delivery.backlog.len(),
                rtt: self
                    .flow(sub.channel)
                    .and_then(|f| f.member(*id))
                    .map_or(s.rtt, |(rtt, _)| rtt),
                key_sequence: Some(sub.ladder.key.confirmed()).filter(|sequence| *sequence > 0),
            });
            Some(SessionStatus {
                session: *id,
                receiver: hello.receiver,
                name: hello.name.clone(),
                software: hello.software.clone(),
                channels: channels.collect(),
            })
        })
    }

    /// Returns the bytes sent for a channel; zero if there is no such channel.
    pub fn traffic(&self, channel: ChannelIndex) -> Traffic {
        let channel = self.channels.get(channel);
        channel.map(Channel::traffic).unwrap_or_default()
    }

    /// Returns the number of open catch-up streams, on all sessions.
    pub fn catching_up(&self) -> usize {
        self.catching_up.len()
    }

    /// Whether updates of a session wait to be sent on its unicast path.
    pub fn owes(&self, session: SessionId) -> bool {
        let session = self.sessions.get(&session);
        let mut all = session.into_iter().flat_map(Session::subscriptions);
        all.any(|s| !s.delivery.backlog.is_empty())
    }

    /// Returns the HELLO of a session, without its credential.
    pub fn hello(&self, session: SessionId) -> Option<&Hello> {
        self.sessions.get(&session)?.hello()
    }

    /// The receiver's id and name, once it said HELLO.
    pub fn receiver(&self, session: SessionId) -> Option<(Uuid, &str)> {
        let hello = self.hello(session)?;
        Some((hello.receiver, hello.name.as_str()))
    }

    /// A new update of a channel, stored before: sends it to everybody. `seq` must follow the head;
    /// another one is not published, and a bug of the caller.
    pub fn publish(&mut self, channel: ChannelIndex, seq: u64, encoded: Bytes) {
        let Some(c) = self.channels.get_mut(channel).filter(|c| !c.vacant) else {
            return;
        };
        debug_assert_eq!(seq, c.head + 1, "updates are published in order");
        if seq != c.head + 1 {
            return;
        }
        c.head = seq;
        c.recent.push(seq, encoded.clone());
        if let Some(flow) = &mut c.flow {
            c.by_unicast_alone += encoded.len() as u64 * flow.members() as u64;
            flow.push(seq, encoded);
        }
        for (id, session) in &mut self.sessions {
            if let Some(subscription) = session.subscription(channel) {
                self.cursors.note(subscription.outputs.is_watched());
                if subscription.delivery.publish(seq) {
                    self.dirty.insert(*id);
                }
            }
        }
    }

    /// The next thing to send on a session's unicast path. Ask only while the connection has room
    /// for it.
    pub fn poll_unicast(&mut self, id: SessionId, now: Instant) -> Unicast {
        let Some(session) = self.sessions.get_mut(&id).filter(|s| s.is_served()) else {
            return Unicast::Idle;
        };
        // Only sessions with data to send wait for a turn.
        let mut all = session.subscriptions().iter();
        let idle = all.all(|s| s.delivery.backlog.is_empty());
        let mut its = self.catching_up.range((id, 0)..(id + 1, 0));
        if !idle && !self.pacing.may_send(id, its.next().is_some(), now) {
            self.counters.unicast_held += 1;
            return Unicast::Idle;
        }
        let channels = &self.channels;
        let recent = |c: ChannelIndex| Some(&channels.get(c)?.recent);
        let ahead = self.catching_up.len() <= READ_AHEAD;
        let Some((out, kind, c)) = session.poll_unicast(recent, ahead) else {
            let all = session.subscriptions().len();
            (0..all).for_each(|at| self.try_promote_at(id, at, now));
            return Unicast::Idle;
        };
        match &out {
            Unicast::Stream { head, body } => {
                self.pacing.sent(head.len() + body.len());
                self.channels[c].count_unicast(kind, body.len());
            }
            Unicast::CatchUp { head, body, .. } => {
                self.pacing.sent(head.len() + body.len());
                self.channels[c].count_unicast(kind, body.len());
                self.catching_up.insert((id, c));
            }
            Unicast::CatchUpEnd { .. } => {
                self.catching_up.remove(&(id, c));
            }
            Unicast::Fetch { .. } | Unicast::Idle => {}
        }
        self.try_promote(id, c, now);
        out
    }

    /// The store's answer to a [`Unicast::Fetch`]: updates in order from the one asked for. `None`
    /// says that the store did not answer; it is asked again later.
    pub fn provide(
        &mut self,
        id: SessionId,
        channel: ChannelIndex,
        from: u64,
        updates: Option<Vec<(u64, Bytes)>>,
        now: Instant,
    ) {
        let Some(first) = self.channels.get(channel).map(|c| c.first) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(subscription) = session.subscription(channel) else {
            return;
        };
        let gap = subscription.delivery.provide(from, updates, first, now);
        if let Some(at) = subscription.delivery.retry_at() {
            self.alarms.insert((at, id, channel, Alarm::Retry));
        }
        if let Some((first, last)) = gap {
            self.counters.gaps += 1;
            session.say(&crate::control::Control::Gap {
                channel: channel_number(channel),
                first,
                last,
            });
        }
        self.dirty.insert(id);
    }

    /// Makes the next flow packet in `out`, if one is due, and returns its channel: send it to the
    /// channel's multicast endpoints and to all of [`Source::replicas`].
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<ChannelIndex> {
        self.settle(now);
        let count = self.channels.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let Some(flow) = &mut self.channels[at].flow else {
                continue;
            };
            if !flow.poll_transmit(now, out) {
                continue;
            }
            self.turn = at + 1;
            let (flow_id, key_sequence) = (flow.config().flow, flow.epoch().sequence);
            if self.tracer.is_on() {
                let frames = flow.take_last_frames();
                let pn = flow.next_pn().saturating_sub(1);
                self.tracer.note(|| PacketTrace {
                    at: now,
                    flow: flow_id,
                    path: PathId::UNICAST,
                    outcome: Outcome::Sent,
                    pn: Some(pn),
                    key_sequence,
                    len: out.len(),
                    frames,
                });
            }
            self.check_worn_out(at);
            // The switch to another epoch can happen here, and moves members that missed it.
            self.flow_events(at, now);
            return Some(at);
        }
        None
    }

    /// The sessions that get copies of a channel's flow packets, at their validated addresses.
    pub fn replicas(&self, channel: ChannelIndex) -> &[SessionId] {
        self.channels
            .get(channel)
            .map_or(&[], |c| c.audience.replicas())
    }

    /// When to call [`Source::handle_timeout`] and [`Source::poll_transmit`] next.
    pub fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.settle(now);
        let overdue = self.cursors.next_look(now);
        let channels = self.channels.iter_mut().filter_map(|c| {
            let flow = c.flow.as_mut().and_then(|f| f.poll_timeout(now));
            let own = [c.leave_rekey_at, c.join_rekey_at, c.mass_due(), flow];
            own.into_iter().flatten().min()
        });
        let alarm = self.alarms.first().map(|(at, ..)| *at);
        let pacing = self.pacing.next(now);
        let doubt = self.disputes.values().map(|doubt| doubt.until).min();
        let others = [alarm, pacing, doubt].into_iter().flatten();
        channels.chain(others).chain(overdue).min()
    }

    /// Blames no receiver for its silence for about as long as the caller itself was `away`, so
    /// that what receivers have sent meanwhile is still to be read or under way. A second call
    /// counts only after the receivers have been looked at again, or for twice the time.
    pub fn grant_grace(&mut self, away: Duration, now: Instant) {
        for flow in self.channels.iter_mut().filter_map(|c| c.flow.as_mut()) {
            flow.grant_grace(away, now);
        }
        self.extend_id_disputes(away, now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        for c in 0..self.channels.len() {
            if let Some(flow) = &mut self.channels[c].flow {
                flow.handle_timeout(now);
            }
            self.flow_events(c, now);
            self.rekey_if_due(c, now);
            if let Some(event) = self.channels[c].mass_event(c, now) {
                self.counters.mass_fall_backs += 1;
                self.events.push_back(event);
            }
        }
        while let Some(alarm) = self.alarms.first().copied().filter(|a| a.0 <= now) {
            self.alarms.remove(&alarm);
            let (_, id, channel, what) = alarm;
            match what {
                Alarm::Proof(rung) => self.ask_for_proof(id, channel, rung, now),
                Alarm::Copies => self.end_unproved_replication(id, channel, now),
                Alarm::Retry => {
                    let session = self.sessions.get_mut(&id);
                    if let Some(subscription) = session.and_then(|s| s.subscription(channel)) {
                        subscription.delivery.retry();
                        self.dirty.insert(id);
                    }
                }
            }
        }
        self.settle_disputes(now);
        self.resend_overdue(now);
        if let Some(id) = self.pacing.release(now) {
            self.dirty.insert(id);
        }
    }

    /// Whether to collect what happens to flow packets.
    pub fn set_tracing(&mut self, on: bool) {
        self.tracer.set(on);
        let flows = self.channels.iter_mut().filter_map(|c| c.flow.as_mut());
        flows.for_each(|f| f.set_tracing(on));
    }

    /// Returns the traces of flow packets since the last call, oldest first; the newest few
    /// thousand if there were more.
    pub fn take_trace(&mut self) -> Vec<PacketTrace> {
        self.tracer.take()
    }
}
