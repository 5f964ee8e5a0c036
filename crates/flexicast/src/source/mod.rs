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
mod channels;
mod control;
mod delivery;
mod disputes;
mod expiry;
mod explained;
mod feedback;
mod forgery;
mod held;
mod keys;
mod ladder;
mod lateness;
mod legs;
mod mass;
mod membership;
mod messages;
mod offer;
mod operate;
mod outbox;
mod outputs;
mod overdue;
mod pacing;
mod recent;
mod rekeying;
mod replication;
mod scope;
mod session;
mod sessions;
mod subscription;
mod timer;
mod types;
mod unicast;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use signing::Endorsement;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::control::{Control, Hello, RelayHint, SourceAddress};
use crate::deadline::UnixClock;
use crate::flow::FlowSender;
use crate::protect::KeyError;
use crate::trace::{Outcome, PacketTrace, Tracer};
use crate::{Cause, PathId, Rung};
use audience::Reception;
use channel::Channel;
use channels::Channels;
use disputes::Disputes;
use feedback::Feedback;
pub use messages::{Datagram, MessageError};
use outbox::Outbox;
use scope::ChannelScope;
use session::Session;
use sessions::Sessions;
use timer::{ReceiverTimer, TimerTable};
#[cfg(feature = "fault-injection")]
pub use types::Faults;
use types::channel_number;
pub use types::{
    Absence, ChannelConfig, ChannelIndex, DeadlineCounters, FIRST_UPDATES, FeedbackCounters,
    LIVE_WITHIN, Limits, MessageCounters, ReplicationCounters, SessionId, SessionStatus,
    SourceConfig, SourceCounters, SourceEvent, SubscriptionStatus, Traffic, Unicast, close,
};
use unicast::UnicastSchedule;

/// Bytes that a flow's queue holds before its owner should wait.
const FLOW_ROOM: usize = 8 << 20;

/// The state machine.
#[derive(Debug)]
pub struct Source {
    channels: Channels,
    sessions: Sessions,
    disputes: Disputes,
    feedback: Feedback,
    /// Receivers that the operator keeps on their unicast paths, connected or not.
    held: BTreeSet<Uuid>,
    limits: Limits,
    /// AMT relays announced to receivers.
    relays: Vec<RelayHint>,
    /// Where receivers reach the source, announced to them.
    addresses: Vec<SourceAddress>,
    /// Signing keys that vouch for each other.
    endorsements: Vec<Endorsement>,
    unicast: UnicastSchedule,
    out: Outbox,
    timers: TimerTable,
    /// Clock by which deadlines run.
    clock: Option<UnixClock>,
    /// Whether cursors may be before the head, without a look planned for them.
    cursors_open: bool,
    /// Channel whose flow is asked first for a packet.
    turn: usize,
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
        let mut channels = Channels::new();
        for channel in &mut config.channels {
            channels.add(channel)?;
        }
        Ok(Source {
            channels,
            sessions: Sessions::default(),
            disputes: Disputes::default(),
            feedback: Feedback::default(),
            held: BTreeSet::new(),
            limits: config.limits,
            relays: Vec::new(),
            addresses: Vec::new(),
            endorsements: Vec::new(),
            unicast: UnicastSchedule::new(config.unicast_rate),
            out: Outbox::default(),
            timers: TimerTable::default(),
            clock: None,
            cursors_open: false,
            turn: 0,
            #[cfg(feature = "fault-injection")]
            faults: Faults::default(),
            tracer: Tracer::default(),
            rng: SmallRng::seed_from_u64(config.seed),
        })
    }

    /// Returns a channel with everything that a change of its receivers touches.
    fn scope(&mut self, index: ChannelIndex) -> Option<ChannelScope<'_>> {
        let clock = self.deadline_clock();
        Some(ChannelScope {
            index,
            channel: self.channels.get_mut(index)?,
            sessions: &mut self.sessions,
            feedback: &mut self.feedback,
            out: &mut self.out,
            timers: &mut self.timers,
            rng: &mut self.rng,
            limits: &self.limits,
            clock,
            #[cfg(feature = "fault-injection")]
            faults: self.faults,
        })
    }

    /// Counts the receptions that may have changed.
    fn settle(&mut self, now: Instant) {
        for c in 0..self.channels.len() {
            if let Some(mut scope) = self.scope(c) {
                scope.settle(now);
            }
        }
    }

    /// Leaves protections out from now on, in the flows of all channels.
    #[cfg(feature = "fault-injection")]
    pub fn inject_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.flows_mut().for_each(|flow| {
            flow.set_fall_back_off(faults.fall_back_off);
            flow.set_eviction_off(faults.eviction_off);
            flow.set_reordering_off(faults.reordering_off);
            flow.set_sizes_unconfirmed(faults.sizes_unconfirmed);
            flow.set_window_across_epochs(faults.window_across_epochs);
        });
    }

    fn flows_mut(&mut self) -> impl Iterator<Item = &mut FlowSender> {
        let channels = self.channels.iter_mut();
        channels.filter_map(|(_, channel)| channel.flow.as_mut())
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
        self.channels.get(channel).is_some()
    }

    /// A channel's name; empty if there is no such channel.
    pub fn channel_name(&self, channel: ChannelIndex) -> &str {
        self.channels.get(channel).map_or("", |c| &c.name)
    }

    /// The last published or stored `seq` of a channel; 0 if there is no such channel.
    pub fn head(&self, channel: ChannelIndex) -> u64 {
        self.channels.head(channel)
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
        self.out.counters
    }

    /// A new connection whose handshake is complete, which validates its address.
    pub fn accept(&mut self, session: SessionId, _now: Instant) {
        self.sessions.insert(session, Session::new(&self.limits));
    }

    /// The connection is gone.
    pub fn closed(&mut self, id: SessionId, now: Instant) {
        self.out.forget(id);
        self.unicast.forget(id);
        self.feedback.forget_session(id);
        let Some(session) = self.sessions.remove(id) else {
            return;
        };
        let receiver = session.receiver();
        for subscription in session.subscriptions() {
            let Some(mut scope) = self.scope(subscription.channel) else {
                continue;
            };
            if let Some(flow) = &mut scope.channel.flow {
                flow.dismiss(id);
                flow.remove_from_tags(id);
            }
            if subscription.ladder.key.is_sent() {
                scope.note_leaver(receiver, now);
            }
            scope.channel.direct.remove(&id);
            let audience = &mut scope.channel.audience;
            audience.count(id, subscription.counted, Reception::default());
            audience.mark_stale(id);
            scope.flow_events(now);
        }
        self.end_disputes(id, now);
    }

    /// Whether the receiver of a session is served.
    pub fn is_served(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(Session::is_served)
    }

    /// Sets the RTT measured on the unicast path, from which the flow's estimate starts.
    pub fn set_rtt(&mut self, session: SessionId, rtt: Duration) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.rtt = rtt;
        }
    }

    /// The next session that has something to send on its unicast path: call
    /// [`Source::take_control`] and [`Source::poll_unicast`].
    pub fn poll_dirty(&mut self) -> Option<SessionId> {
        self.out.pop_dirty()
    }

    /// Bytes for a session's control stream; keys are among them.
    pub fn take_control(&mut self, session: SessionId) -> Zeroizing<Vec<u8>> {
        let session = self.sessions.get_mut(session);
        session.map(Session::take_control).unwrap_or_default()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SourceEvent> {
        self.out.pop()
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
                unverified: self.channels.get(sub.channel).is_some_and(|c| !c.is_for(s)),
                legs: sub.ladder.legs().to_vec(),
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
        self.unicast.catching_up()
    }

    /// Whether updates of a session wait to be sent on its unicast path.
    pub fn owes(&self, session: SessionId) -> bool {
        let session = self.sessions.get(session);
        let mut all = session.into_iter().flat_map(Session::subscriptions);
        all.any(|s| !s.delivery.backlog.is_empty())
    }

    /// Returns the HELLO of a session, without its credential.
    pub fn hello(&self, session: SessionId) -> Option<&Hello> {
        self.sessions.get(session)?.hello()
    }

    /// The receiver's id and name, once it said HELLO.
    pub fn receiver(&self, session: SessionId) -> Option<(Uuid, &str)> {
        let hello = self.hello(session)?;
        Some((hello.receiver, hello.name.as_str()))
    }

    /// Returns a session's rung in a channel.
    pub fn rung(&self, session: SessionId, channel: ChannelIndex) -> Option<Rung> {
        let session = self.sessions.get(session)?;
        let mut subscriptions = session.subscriptions().iter();
        let subscription = subscriptions.find(|s| s.channel == channel)?;
        Some(subscription.ladder.rung())
    }

    /// A new update of a channel, stored before: sends it to everybody. `seq` must follow the head;
    /// another one is not published, and a bug of the caller.
    pub fn publish(&mut self, channel: ChannelIndex, seq: u64, encoded: Bytes) {
        let Some(c) = self.channels.get_mut(channel) else {
            return;
        };
        debug_assert_eq!(seq, c.head + 1, "updates are published in order");
        if seq != c.head + 1 {
            return;
        }
        c.publish(seq, encoded);
        let members = c.flow.as_ref().map_or(0, FlowSender::members);
        self.cursors_open |= members > 0;
        let (sessions, out) = (&mut self.sessions, &mut self.out);
        c.direct.retain(|id| {
            let Some(subscription) = sessions.subscription(*id, channel) else {
                return false;
            };
            self.cursors_open |= subscription.outputs.is_watched();
            if subscription.delivery.publish(seq) {
                out.mark_dirty(*id);
            }
            subscription.delivery.is_direct()
        });
    }

    /// The next thing to send on a session's unicast path. Ask only while the connection has room
    /// for it.
    pub fn poll_unicast(&mut self, id: SessionId, now: Instant) -> Unicast {
        self.drop_expired(id, now);
        let keeps_deadlines = self.deadline_clock().is_some();
        let Some(session) = self.sessions.get_mut(id).filter(|s| s.is_served()) else {
            return Unicast::Idle;
        };
        // Only sessions with data to send wait for a turn.
        let mut all = session.subscriptions().iter();
        let idle = all.all(|s| s.delivery.backlog.is_empty());
        let channels = &self.channels;
        let recent = |c: ChannelIndex| Some(&channels.get(c)?.recent);
        let urgency = || session.urgency(keeps_deadlines, recent);
        if !idle && !self.unicast.may_send(id, urgency, now) {
            self.out.counters.unicast_held += 1;
            return Unicast::Idle;
        }
        let ahead = self.unicast.may_read_ahead();
        let Some((item, kind, c)) = session.poll_unicast(recent, ahead) else {
            self.try_promote_everywhere(id, now);
            return Unicast::Idle;
        };
        let bytes = self.unicast.note(id, c, &item);
        if let Some(mut scope) = self.scope(c) {
            scope.channel.count_unicast(kind, bytes);
            scope.try_promote(id, now);
        }
        item
    }

    /// Promotes a receiver on the channels of which it has proved a path.
    fn try_promote_everywhere(&mut self, id: SessionId, now: Instant) {
        let count = self.sessions.get(id).map(|s| s.subscriptions().len());
        for at in 0..count.unwrap_or(0) {
            let session = self.sessions.get(id);
            let subscription = session.and_then(|s| s.subscriptions().get(at));
            if let Some(subscription) = subscription.filter(|s| s.ladder.has_proof())
                && let Some(mut scope) = self.scope(subscription.channel)
            {
                scope.try_promote(id, now);
            }
        }
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
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(subscription) = session.subscription(channel) else {
            return;
        };
        let gap = subscription.delivery.provide(from, updates, first, now);
        if let Some(at) = subscription.delivery.retry_at() {
            let timer = ReceiverTimer::StoreRetry;
            self.timers.add(id, channel, timer, at);
        }
        if let Some((first, last)) = gap {
            self.out.counters.gaps += 1;
            session.say(&Control::Gap {
                channel: channel_number(channel),
                first,
                last,
            });
        }
        self.out.mark_dirty(id);
    }

    /// Makes the next flow packet in `out`, if one is due, and returns its channel: send it to the
    /// channel's multicast endpoints and to all of [`Source::replicas`]. Channels take turns.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<ChannelIndex> {
        out.clear();
        let (count, turn) = (self.channels.len(), self.turn);
        let mut turns = (0..count).map(|step| (turn + step) % count);
        let at = turns.find(|at| self.append_packet(*at, now, out))?;
        self.turn = at + 1;
        Some(at)
    }

    /// Makes the next packet of a channel's flow like [`Source::poll_transmit`], after the bytes
    /// that `out` holds. Returns whether one was due.
    pub fn append_packet(
        &mut self,
        channel: ChannelIndex,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> bool {
        if let Some(mut scope) = self.scope(channel) {
            scope.settle(now);
            scope.expire(now);
        }
        let start = out.len();
        let its = self.channels.get_mut(channel);
        let Some(flow) = its.and_then(|c| c.flow.as_mut()) else {
            return false;
        };
        let tag_packets = flow.stats().tag_packets;
        if !flow.append_packet(now, out) {
            // Repair symbols may have been made for connections all the same.
            if let Some(mut scope) = self.scope(channel) {
                scope.flow_events(now);
            }
            return false;
        }
        if self.tracer.is_on() {
            let frames = flow.take_last_frames();
            let packet = PacketTrace {
                at: now,
                flow: flow.config().flow,
                path: PathId::UNICAST,
                outcome: Outcome::Sent,
                // Packets of tags are numbered apart.
                pn: (flow.stats().tag_packets == tag_packets)
                    .then(|| flow.next_pn().saturating_sub(1)),
                key_sequence: flow.epoch().sequence,
                len: out.len() - start,
                frames,
            };
            self.tracer.note(|| packet);
        }
        if let Some(mut scope) = self.scope(channel) {
            scope.check_worn_out();
            // The switch to another epoch can happen here, and moves members that missed it.
            scope.flow_events(now);
        }
        true
    }

    /// The sessions that get copies of a channel's flow packets, at their validated addresses.
    pub fn replicas(&self, channel: ChannelIndex) -> &[SessionId] {
        self.channels
            .get(channel)
            .map_or(&[], |c| c.audience.replicas())
    }

    /// Returns a number that grows whenever [`Source::replicas`] of the channel change.
    pub fn replicas_generation(&self, channel: ChannelIndex) -> u64 {
        self.channels
            .get(channel)
            .map_or(0, |c| c.audience.generation())
    }

    /// When to call [`Source::handle_timeout`] and [`Source::poll_transmit`] next.
    pub fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.settle(now);
        self.plan_look(now);
        let flows = self.flows_mut().filter_map(|f| f.poll_timeout(now)).min();
        let unicast = self.unicast.next_timeout(now);
        let all = [
            self.timers.next_timeout(),
            flows,
            unicast,
            self.next_expiry(),
        ];
        all.into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        for c in 0..self.channels.len() {
            let Some(mut scope) = self.scope(c) else {
                continue;
            };
            if let Some(flow) = &mut scope.channel.flow {
                flow.handle_timeout(now);
            }
            scope.expire(now);
            scope.flow_events(now);
            scope.rekey_if_due(now);
            scope.report_mass_fall_back(now);
        }
        while let Some((id, c, timer)) = self.timers.pop_expired_receiver(now) {
            let Some(mut scope) = self.scope(c) else {
                continue;
            };
            match timer {
                ReceiverTimer::Backoff(rung) => scope.ask_for_proof(id, rung, now),
                ReceiverTimer::Replication => scope.end_unproved_replication(id, now),
                ReceiverTimer::StoreRetry => {
                    if let Some(subscription) = scope.subscription(id) {
                        subscription.delivery.retry();
                        self.out.mark_dirty(id);
                    }
                }
            }
        }
        self.settle_disputes(now);
        self.resend_overdue(now);
        if let Some(id) = self.unicast.release(now) {
            self.out.mark_dirty(id);
        }
    }

    /// Sets whether the session's current address is validated. Replication is paused while it is
    /// not: the packets could hit a third party.
    pub fn set_validated(&mut self, id: SessionId, validated: bool, now: Instant) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut session.validated, validated) == validated {
            return;
        }
        for c in session.channels() {
            if let Some(mut scope) = self.scope(c) {
                scope.recount(id);
                scope.flow_events(now);
            }
        }
    }

    /// A copy could not be sent to its receiver: it gets no more of them. Others are not affected.
    pub fn replica_failed(&mut self, id: SessionId, c: ChannelIndex, now: Instant) {
        if let Some(mut scope) = self.scope(c) {
            scope.end_failed_replication(id, now);
        }
    }

    /// Whether to collect what happens to flow packets.
    pub fn set_tracing(&mut self, on: bool) {
        self.tracer.set(on);
        self.flows_mut().for_each(|f| f.set_tracing(on));
    }

    /// Returns the traces of flow packets since the last call, oldest first; the newest few
    /// thousand if there were more.
    pub fn take_trace(&mut self) -> Vec<PacketTrace> {
        self.tracer.take()
    }
}
