//! Membership of flows: promotion on proof, fall-back, back-off, replication (protocol.md section
//! 8).

use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::RngExt;

use super::ladder::{BackoffEnd, KeyState, Membership, ProofOutcome};
use super::scope::ChannelScope;
use super::timer::ReceiverTimer;
use super::types::{LIVE_WITHIN, SessionId, SourceEvent};
use crate::ack::PathAck;
use crate::control::{
    Action, Anchor, CAPABILITY_APART_SYMBOLS, CAPABILITY_FEC, CAPABILITY_HITLESS, Control, State,
};
use crate::fec::{FecConfig, SymbolPath};
use crate::flow::ledger::StreamRange;
use crate::flow::{BreakerState, Departure, FlowEvent, FlowSender};
use crate::{Cause, PathId, Rung};

/// Bound on the pieces that a member may owe on its unicast path; beyond it, the receiver is no
/// member.
const MAX_OWED: usize = 512;

impl ChannelScope<'_> {
    /// Takes the sequence and the confirmed key of a frame about the flow; returns whether the
    /// frame is not stale.
    pub(super) fn accept_state(&mut self, id: SessionId, state: &State, now: Instant) -> bool {
        let Some(subscription) = self.subscription(id) else {
            return false;
        };
        if !subscription.ladder.states.advance(state.sequence) {
            return false;
        }
        let confirmed = subscription.ladder.key.confirm(state.key_sequence);
        if let Some(flow) = &mut self.channel.flow {
            flow.confirm(id, confirmed, now);
        }
        true
    }

    /// Does what an accepted frame about the flow asks for.
    pub(super) fn on_state(&mut self, id: SessionId, state: &State, now: Instant) {
        match state.action {
            Action::Join => self.on_join(id, state, now),
            Action::Ready => self.on_ready(id, state, now),
            Action::Leave => self.on_leave(id, state, now),
        }
        self.flow_events(now);
    }

    fn on_join(&mut self, id: SessionId, state: &State, now: Instant) {
        let (channel, path) = (&self.channel, state.path);
        let copies = path == PathId::new(channel.flow_index, Rung::Replicated);
        let tunnel = PathId::new(channel.flow_index, Rung::Amt);
        let full = channel.audience.replicas().len() >= self.limits.replicas;
        let offered = channel.replicate;
        // Nothing would prove a trial while the circuit breaker has stopped the flow.
        let rate = channel.flow.as_ref().map(FlowSender::rate);
        let stopped = rate.is_some_and(|rate| rate.breaker == BreakerState::Open);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let (validated, held) = (session.validated, session.is_held());
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let ladder = &mut subscription.ladder;
        let new = if copies {
            // Replication that is on already stays on.
            let refused = !offered || !validated || (full && !ladder.is_replicated());
            let needless = held || stopped || ladder.rung() < Rung::Replicated;
            if refused || needless || ladder.is_backing_off(Rung::Replicated, now) {
                self.out.counters.replication.refused += u64::from(refused && !held);
                return;
            }
            let deadline = ladder.start_replication(now);
            if let Some(until) = deadline {
                self.timers
                    .add(id, self.index, ReceiverTimer::Replication, until);
            }
            deadline.is_some()
        } else if path == tunnel {
            ladder.listen_by_relay()
        } else {
            ladder.listen_natively()
        };
        // Answered once: the answer is larger than the question.
        if ladder.key == KeyState::None {
            self.give_key(id, now);
        } else if self
            .channel
            .flow
            .as_ref()
            .is_some_and(|flow| flow.lacks_tags(id))
        {
            self.give_tag_key(id);
        }
        if new {
            self.recount(id);
        }
        self.out.mark_dirty(id);
    }

    fn on_ready(&mut self, id: SessionId, state: &State, now: Instant) {
        let channel = &self.channel;
        let ours = state.path.flow_index() == channel.flow_index;
        let Some(rung) = state.path.rung().filter(|_| ours) else {
            self.out.counters.proofs_ignored += 1;
            return;
        };
        let flow = channel.flow.as_ref();
        let in_use = flow.map_or(0, |flow| flow.epoch().sequence);
        let is_forged = flow
            .zip(state.largest)
            .is_some_and(|(flow, largest)| flow.was_never_sent(largest));
        // A proof of a held receiver has no effect.
        let session = self.sessions.get_mut(id).filter(|s| !s.is_held());
        let Some(subscription) = session.and_then(|s| s.subscription(self.index)) else {
            return;
        };
        if is_forged && subscription.ladder.listens_by(rung) {
            return self.doubt_proof(id, rung, now);
        }
        match subscription.ladder.prove(state.path, rung, in_use, now) {
            // Only says which key it holds.
            ProofOutcome::Member => return,
            ProofOutcome::Ignored => {
                self.out.counters.proofs_ignored += 1;
                return;
            }
            ProofOutcome::Accepted { trial_until: None } => {}
            ProofOutcome::Accepted {
                trial_until: Some(until),
            } => {
                self.timers
                    .add(id, self.index, ReceiverTimer::Replication, until);
            }
        }
        self.try_promote(id, now);
    }

    fn on_leave(&mut self, id: SessionId, state: &State, now: Instant) {
        // Some causes are the source's to state.
        let cause = match state.cause.unwrap_or(Cause::Left) {
            Cause::Joined
            | Cause::AckTimeout
            | Cause::RekeyMissed
            | Cause::Ejected
            | Cause::Held
            | Cause::LegLost => Cause::Left,
            // This leaves no rung.
            Cause::ProbeTimeout => return self.record_failed_attempt(id, state.path),
            cause => cause,
        };
        // By these two paths one leaves that path alone.
        let one = state.path.rung();
        let one = one.filter(|rung| matches!(rung, Rung::Amt | Rung::Replicated));
        // A receiver that misses heartbeats, has lost its relay, or gets forged packets, keeps
        // listening for the flow's return; with any other cause it is off the flow.
        let listens_on = match cause {
            Cause::HeartbeatLost | Cause::RelayLost => true,
            Cause::Forged => state.path != PathId::UNICAST,
            _ => false,
        };
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let merges = session.can(CAPABILITY_HITLESS);
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let membership = subscription.ladder.membership();
        // A LEAVE of rung 3 ends replication, whichever flow its path names.
        let leaves = |m: Membership| {
            m.path == state.path
                || one.is_none()
                || (one == Some(Rung::Replicated) && m.rung == Rung::Replicated)
                // All legs of a member are silent, whichever its rung was named after.
                || (cause == Cause::HeartbeatLost && m.rung == Rung::Multicast && merges)
        };
        let ends = membership.is_some_and(leaves);
        if cause == Cause::Forged {
            self.note_forgery(id, ends, now);
        }
        if ends && let Some(flow) = &mut self.channel.flow {
            #[cfg(feature = "fault-injection")]
            if self.faults.fall_back_off && listens_on {
                return;
            }
            match flow.dismiss(id) {
                Some(departure) => {
                    if listens_on || cause == Cause::Forged {
                        self.count_fall_back(cause, now);
                    }
                    self.end_membership(id, cause, departure, now);
                }
                // The flow has dropped the member by itself, and its paths end only afterwards.
                None if !listens_on => self.flow_events(now),
                None => {}
            }
        }
        if listens_on {
            if cause == Cause::RelayLost {
                self.record_lost_relay(id, state.path);
            }
            return;
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let receiver = session.receiver();
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let ladder = &mut subscription.ladder;
        ladder.stop_listening(one);
        ladder.discard_stale_proof();
        // Off all paths, the receiver has to ask for a key again, and gets the current one then.
        if !ladder.listens() {
            let held_key = ladder.key.revoke();
            if let Some(flow) = &mut self.channel.flow {
                flow.remove_from_tags(id);
            }
            if held_key {
                self.note_leaver(receiver, now);
            }
        }
        self.recount(id);
    }

    /// Takes an acknowledgement of flow packets.
    pub(super) fn on_ack(&mut self, id: SessionId, ack: &PathAck, now: Instant) {
        let Some(flow) = &mut self.channel.flow else {
            return;
        };
        if flow.on_ack(id, ack, now).is_err() {
            // Possibly not the receiver's fault: any holder of the flow's key can forge packets,
            // and nothing that arrives on the flow may close a connection.
            self.out.counters.invalid_acks += 1;
            self.fall_back_from_forgery(id, now);
        }
        self.flow_events(now);
    }

    /// Takes a member off the flow for `cause`, unless the flow has dropped it already for a cause
    /// of its own.
    pub(super) fn take_off_flow(&mut self, id: SessionId, cause: Cause, now: Instant) {
        let flow = self.channel.flow.as_mut();
        if let Some(departure) = flow.and_then(|f| f.dismiss(id)) {
            return self.end_membership(id, cause, departure, now);
        }
        let session = self.sessions.get_mut(id);
        let subscription = session.and_then(|s| s.subscription(self.index));
        if subscription.is_some_and(|s| s.ladder.is_member()) {
            self.flow_events(now);
        }
    }

    /// Makes a receiver a member by the path that it proved, if that is better than its rung
    /// and it is near enough to the head.
    pub(super) fn try_promote(&mut self, id: SessionId, now: Instant) {
        let channel = &mut self.channel;
        let (Some(flow), Some(session)) = (&mut channel.flow, self.sessions.get_mut(id)) else {
            return;
        };
        let (rtt, held) = (session.rtt, session.is_held());
        let is_apart = |fec: FecConfig| fec.path == SymbolPath::Unicast;
        let takes_symbols = match flow.config().fec.is_some_and(is_apart) {
            true => CAPABILITY_APART_SYMBOLS,
            false => CAPABILITY_FEC,
        };
        let rebuilds = session.can(takes_symbols);
        let merges = session.can(CAPABILITY_HITLESS);
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let (ladder, delivery) = (&mut subscription.ladder, &mut subscription.delivery);
        // The proved path may have ended since.
        ladder.discard_stale_proof();
        let Some(proof) = ladder.valid_proof(now) else {
            return;
        };
        let (from, to) = (ladder.rung(), proof.rung);
        let confirmed = ladder.key.confirmed();
        let holds_key = confirmed >= flow.epoch().sequence;
        let far = delivery.backlog.len() > LIVE_WITHIN;
        if held || to >= from || far || !holds_key || ladder.is_backing_off(to, now) {
            return;
        }
        if from == Rung::Amt && merges {
            // The receiver acknowledges what either of them brings.
            return self.move_to_leg(id, to, Duration::ZERO, now);
        }
        if ladder.is_member() {
            // From one rung to a better one: what is under way on the old one is sent again on the
            // unicast path, which costs less than keeping count of two.
            if let Some(departure) = flow.dismiss(id) {
                delivery.backlog.repair(departure.owed);
            }
        } else {
            subscription.outputs.entrust(channel.head);
        }
        let anchor = Anchor {
            seq: channel.head + 1,
            offset: flow.anchor().offset,
        };
        let cut = flow.admit(id, proof.path, rtt, confirmed, now);
        if rebuilds {
            flow.set_rebuilding(id);
        }
        ladder.promote(proof, channel.head, now);
        delivery.backlog.set_live(false);
        let (flow, anchor) = (flow.config().flow, Some(anchor));
        let notice = ladder.notice(flow, proof.path, cut, Cause::Joined, anchor);
        session.say(&Control::Rung(notice));
        self.out.counters.promotions += 1;
        self.out.mark_dirty(id);
        self.out.push(SourceEvent::Moved {
            session: id,
            channel: self.index,
            from,
            to,
            cause: Cause::Joined,
            at: now,
        });
        self.recount(id);
    }

    /// Ends a membership: everything that the flow did not bring goes to the unicast path.
    pub(super) fn end_membership(
        &mut self,
        id: SessionId,
        cause: Cause,
        departure: Departure,
        now: Instant,
    ) {
        let repairs = self.repairs();
        let channel = &mut self.channel;
        let (Some(flow), Some(session)) = (&mut channel.flow, self.sessions.get_mut(id)) else {
            return;
        };
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let (ladder, delivery) = (&mut subscription.ladder, &mut subscription.delivery);
        let jitter = || self.rng.random_range(0.75..1.25);
        let Some(fall_back) = ladder.fall_back(cause, now, jitter) else {
            return;
        };
        let Membership { rung, cut_head, .. } = fall_back.from;
        if repairs {
            delivery.backlog.repair(departure.owed);
        }
        let resume = departure.resume.max(cut_head + 1);
        delivery.backlog.insert(resume, channel.head);
        delivery.backlog.set_live(true);
        channel.direct.insert(id);
        if let Some(until) = fall_back.backoff_until {
            self.timers
                .add(id, self.index, ReceiverTimer::Backoff(rung), until);
        }
        let next = flow.next_pn();
        let notice = ladder.notice(flow.config().flow, PathId::UNICAST, next, cause, None);
        session.say(&Control::Rung(notice));
        self.doubt_feedback(id);
        self.out.counters.fall_backs += 1;
        self.out.counters.rekeys_missed += u64::from(cause == Cause::RekeyMissed);
        self.out.counters.evicted_too_slow += u64::from(cause == Cause::TooSlow);
        self.out.counters.evicted_lossy += u64::from(cause == Cause::LossTooHigh);
        self.out.mark_dirty(id);
        self.out.push(SourceEvent::Moved {
            session: id,
            channel: self.index,
            from: rung,
            to: Rung::Unicast,
            cause,
            at: now,
        });
        self.recount(id);
    }

    pub(super) fn flow_events(&mut self, now: Instant) {
        while let Some(event) = self.channel.flow.as_mut().and_then(FlowSender::poll_event) {
            match event {
                FlowEvent::Repair { member, range } => {
                    if !self.repairs() {
                        continue;
                    }
                    self.out.counters.repairs += 1;
                    let session = self.sessions.get_mut(member);
                    let Some(subscription) = session.and_then(|s| s.subscription(self.index))
                    else {
                        continue;
                    };
                    let backlog = &mut subscription.delivery.backlog;
                    backlog.repair([range]);
                    self.out.mark_dirty(member);
                    let flow = self.channel.flow.as_mut();
                    if backlog.pieces() > MAX_OWED
                        && let Some(departure) = flow.and_then(|f| f.dismiss(member))
                    {
                        self.end_membership(member, Cause::TooSlow, departure, now);
                    }
                }
                FlowEvent::Symbol { members, symbol } => {
                    let Some(flow) = &self.channel.flow else {
                        continue;
                    };
                    // By then, what it would bring has been repaired.
                    let until = now + flow.config().fall_back;
                    for id in members {
                        if let Some(session) = self.sessions.get_mut(id) {
                            session.datagrams.push_symbol(symbol.clone(), until);
                            self.out.mark_dirty(id);
                        }
                    }
                }
                FlowEvent::Wanted { packet, ranges } => self.send_again(packet, &ranges, now),
                FlowEvent::FellBack {
                    member,
                    cause,
                    departure,
                } => {
                    self.count_fall_back(cause, now);
                    self.end_membership(member, cause, departure, now);
                }
                FlowEvent::Breaker(state) => {
                    self.out.counters.breaker_trips += u64::from(state == BreakerState::Open);
                    self.out.push(SourceEvent::Breaker {
                        channel: self.index,
                        state,
                    });
                }
                FlowEvent::Switched { .. } => {
                    if self.channel.rekeying.switched() {
                        self.want_secret();
                    }
                }
            }
        }
    }

    /// Sends ranges that many members miss again on the flow, if their updates are at hand and
    /// still wanted.
    fn send_again(&mut self, packet: u64, ranges: &[StreamRange], now: Instant) {
        let recent = &self.channel.recent;
        let wanted = |update: &&Bytes| !self.is_expired(update, now);
        let updates = ranges.iter().map(|range| {
            let update = recent.get(range.seq).filter(wanted);
            update.cloned()
        });
        let updates = updates.collect();
        if let Some(flow) = &mut self.channel.flow
            && flow.provide(packet, updates)
        {
            self.out.counters.shared_repairs += 1;
        }
    }

    /// The back-off of a receiver that flapped is over: packets from now on prove that the flow
    /// reaches it.
    pub(super) fn ask_for_proof(&mut self, id: SessionId, rung: Rung, now: Instant) {
        let (Some(flow), Some(session)) = (self.channel.flow.as_ref(), self.sessions.get_mut(id))
        else {
            return;
        };
        let held = session.is_held();
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let keeps_up = subscription.keeps_up(self.channel.sight());
        let ladder = &mut subscription.ladder;
        match ladder.end_backoff(rung, keeps_up, now) {
            BackoffEnd::Running => return,
            BackoffEnd::Extended(until) => {
                let timer = ReceiverTimer::Backoff(rung);
                return self.timers.add(id, self.index, timer, until);
            }
            BackoffEnd::Over => {}
        }
        // A member by another rung says by itself, now and then, that a better one works.
        if !ladder.is_member() && !held {
            let cause = ladder.last_cause();
            let (flow, next) = (flow.config().flow, flow.next_pn());
            let notice = ladder.notice(flow, PathId::UNICAST, next, cause, None);
            session.say(&Control::Rung(notice));
            self.out.mark_dirty(id);
            self.recount(id);
        }
    }
}
