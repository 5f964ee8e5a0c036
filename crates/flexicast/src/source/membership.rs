//! Membership of flows: promotion on proof, fall-back, back-off, replication (protocol.md section
//! 8).

use std::time::Instant;

use rand::RngExt;

use super::audience::Reception;
use super::ladder::{KeyState, Membership, ProofOutcome};
use super::{Alarm, ChannelIndex, LIVE_WITHIN, SessionId, Source, SourceEvent};
use crate::control::{Action, Anchor, Control, State};
use crate::flow::{Departure, FlowEvent, FlowSender};
use crate::{Cause, FlowId, PathId, Rung};

/// Bound on the pieces that a member may owe on its unicast path; beyond it, the receiver is no
/// member.
const MAX_OWED: usize = 512;

impl Source {
    pub(super) fn channel_of_flow(&self, flow: FlowId) -> Option<ChannelIndex> {
        let is = |f: &FlowSender| f.config().flow == flow;
        self.channels
            .iter()
            .position(|c| c.flow.as_ref().is_some_and(is))
    }

    pub(super) fn on_state(&mut self, id: SessionId, state: &State, now: Instant) {
        let Some(c) = self.channel_of_flow(state.flow) else {
            // About a flow that was replaced meanwhile.
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        if !subscription.ladder.states.advance(state.sequence) {
            return;
        }
        let confirmed = subscription.ladder.key.confirm(state.key_sequence);
        if let Some(flow) = &mut self.channels[c].flow {
            flow.confirm(id, confirmed, now);
        }
        match state.action {
            Action::Join => self.on_join(id, c, state.path, now),
            Action::Ready => self.on_ready(id, c, state, now),
            Action::Leave => self.on_leave(id, c, state, now),
        }
        self.flow_events(c, now);
    }

    fn on_join(&mut self, id: SessionId, c: ChannelIndex, path: PathId, now: Instant) {
        // The limit counts those of this instant, too.
        self.settle(now);
        let channel = &self.channels[c];
        let copies = path == PathId::new(channel.flow_index, Rung::Replicated);
        let tunnel = PathId::new(channel.flow_index, Rung::Amt);
        let full = channel.audience.replicas().len() >= self.limits.replicas;
        let offered = channel.replicate;
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (validated, held) = (session.validated, session.is_held());
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        let ladder = &mut subscription.ladder;
        let new = if copies {
            // Replication that is on already stays on.
            let refused = !offered || !validated || (full && !ladder.is_replicated());
            let needless = held || ladder.rung() < Rung::Replicated;
            if refused || needless || ladder.is_backing_off(Rung::Replicated, now) {
                self.counters.copies_refused += u64::from(refused && !held);
                return;
            }
            let deadline = ladder.start_replication(now);
            if let Some(until) = deadline {
                self.alarms.insert((until, id, c, Alarm::Copies));
            }
            deadline.is_some()
        } else if path == tunnel {
            ladder.listen_by_relay()
        } else {
            ladder.listen_natively()
        };
        // Answered once: the answer is larger than the question.
        if ladder.key == KeyState::None {
            self.give_key(id, c, now);
        }
        if new {
            self.recount(id, c);
        }
        self.dirty.insert(id);
    }

    fn on_ready(&mut self, id: SessionId, c: ChannelIndex, state: &State, now: Instant) {
        let channel = &self.channels[c];
        let ours = state.path.flow_index() == channel.flow_index;
        let Some(rung) = state.path.rung().filter(|_| ours) else {
            self.counters.proofs_ignored += 1;
            return;
        };
        let in_use = channel.flow.as_ref().map_or(0, |f| f.epoch().sequence);
        // A proof of a held receiver has no effect.
        let session = self.sessions.get_mut(&id).filter(|s| !s.is_held());
        let Some(subscription) = session.and_then(|s| s.subscription(c)) else {
            return;
        };
        match subscription.ladder.prove(state.path, rung, in_use, now) {
            // Only says which key it holds.
            ProofOutcome::Member => return,
            ProofOutcome::Ignored => {
                self.counters.proofs_ignored += 1;
                return;
            }
            ProofOutcome::Accepted { trial_until: None } => {}
            ProofOutcome::Accepted {
                trial_until: Some(until),
            } => {
                self.alarms.insert((until, id, c, Alarm::Copies));
            }
        }
        self.try_promote(id, c, now);
    }

    fn on_leave(&mut self, id: SessionId, c: ChannelIndex, state: &State, now: Instant) {
        // Some causes are the source's to state.
        let cause = match state.cause.unwrap_or(Cause::Left) {
            Cause::Joined
            | Cause::AckTimeout
            | Cause::RekeyMissed
            | Cause::Ejected
            | Cause::Held => Cause::Left,
            // This leaves no rung.
            Cause::ProbeTimeout => return self.record_failed_attempt(id, c, state.path),
            cause => cause,
        };
        // By these two paths one leaves that path alone.
        let one = state.path.rung();
        let one = one.filter(|rung| matches!(rung, Rung::Amt | Rung::Replicated));
        // A receiver that misses heartbeats, or has lost its relay, keeps listening for the flow's
        // return; with any other cause it is off the flow.
        let listens_on = matches!(cause, Cause::HeartbeatLost | Cause::RelayLost);
        let Some(subscription) = self.sessions.get_mut(&id).and_then(|s| s.subscription(c)) else {
            return;
        };
        let membership = subscription.ladder.membership();
        if membership.is_some_and(|m| m.path == state.path || one.is_none())
            && let Some(flow) = &mut self.channels[c].flow
        {
            #[cfg(feature = "fault-injection")]
            if self.faults.fall_back_off && listens_on {
                return;
            }
            match flow.dismiss(id) {
                Some(departure) => {
                    if listens_on {
                        self.channels[c].count_fall_back(cause, now);
                    }
                    self.fell_back(id, c, cause, departure, now);
                }
                // The flow has dropped the member by itself, and its paths end only afterwards.
                None if !listens_on => self.flow_events(c, now),
                None => {}
            }
        }
        if listens_on {
            if cause == Cause::RelayLost {
                self.relay_was_lost(id, c, state.path);
            }
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let receiver = session.receiver();
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        let ladder = &mut subscription.ladder;
        ladder.stop_listening(one);
        ladder.discard_stale_proof();
        // Off all paths, the receiver has to ask for a key again, and gets the current one then.
        if !ladder.listens() && ladder.key.revoke() {
            self.note_leaver(c, receiver, now);
        }
        self.recount(id, c);
    }

    /// Takes a member off the flow for `cause`, unless the flow has dropped it already for a cause
    /// of its own.
    pub(super) fn take_off_flow(
        &mut self,
        id: SessionId,
        c: ChannelIndex,
        cause: Cause,
        now: Instant,
    ) {
        let flow = self.channels[c].flow.as_mut();
        if let Some(departure) = flow.and_then(|f| f.dismiss(id)) {
            return self.fell_back(id, c, cause, departure, now);
        }
        let session = self.sessions.get_mut(&id);
        let subscription = session.and_then(|s| s.subscription(c));
        if subscription.is_some_and(|s| s.ladder.is_member()) {
            self.flow_events(c, now);
        }
    }

    /// Whether a session listens to a channel's flow or gets copies may have changed: it is counted
    /// before anything else is sent, once for all changes of an instant.
    pub(super) fn recount(&mut self, id: SessionId, c: ChannelIndex) {
        if let Some(channel) = self.channels.get_mut(c) {
            channel.audience.mark_stale(id);
        }
    }

    /// Counts what may have changed.
    pub(super) fn settle(&mut self, now: Instant) {
        for c in 0..self.channels.len() {
            let stale = self.channels[c].audience.take_stale();
            if !stale.is_empty() {
                stale.into_iter().for_each(|id| self.count(id, c));
                self.announce_flow(c, now);
            }
        }
    }

    /// Brings the counts of a channel up to date with one session, which may be gone.
    fn count(&mut self, id: SessionId, c: ChannelIndex) {
        let channel = &mut self.channels[c];
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let held = session.is_held();
        let reachable = session.validated && !session.is_closing();
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        // Nothing is sent for the sake of a receiver that takes nothing from the flow.
        let is = Reception {
            listens: !held && subscription.ladder.listens(),
            replicated: !held && reachable && subscription.ladder.is_replicated(),
        };
        let was = std::mem::replace(&mut subscription.counted, is);
        channel.audience.count(id, was, is);
    }

    fn announce_flow(&mut self, c: ChannelIndex, now: Instant) {
        let channel = &mut self.channels[c];
        if let Some(flow) = &mut channel.flow {
            flow.set_listeners(channel.audience.listeners(), now);
        }
        if channel.retune(now) {
            self.announce(c);
        }
    }

    pub(super) fn try_promote_at(&mut self, id: SessionId, at: usize, now: Instant) {
        let session = self.sessions.get(&id);
        let subscription = session.and_then(|s| s.subscriptions().get(at));
        if let Some(subscription) = subscription.filter(|s| s.ladder.has_proof()) {
            self.try_promote(id, subscription.channel, now);
        }
    }

    /// Makes a receiver a member by the path that it proved, if that is better than where it stands
    /// and it is near enough to the head.
    pub(super) fn try_promote(&mut self, id: SessionId, c: ChannelIndex, now: Instant) {
        let channel = &mut self.channels[c];
        let (Some(flow), Some(session)) = (&mut channel.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let (rtt, held) = (session.rtt, session.is_held());
        let Some(subscription) = session.subscription(c) else {
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
        let cut = flow.admit(id, proof.path, rtt, confirmed);
        ladder.promote(proof, channel.head, now);
        delivery.backlog.set_live(false);
        let (flow, anchor) = (flow.config().flow, Some(anchor));
        let notice = ladder.notice(flow, proof.path, cut, Cause::Joined, anchor);
        session.say(&Control::Rung(notice));
        self.counters.promotions += 1;
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Moved {
            session: id,
            channel: c,
            from,
            to,
            cause: Cause::Joined,
            at: now,
        });
        self.recount(id, c);
    }

    /// The end of a membership: everything that the flow did not bring goes to the unicast path.
    pub(super) fn fell_back(
        &mut self,
        id: SessionId,
        c: ChannelIndex,
        cause: Cause,
        departure: Departure,
        now: Instant,
    ) {
        let repairs = self.repairs();
        let channel = &mut self.channels[c];
        let (Some(flow), Some(session)) = (&mut channel.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let Some(subscription) = session.subscription(c) else {
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
        if let Some(until) = fall_back.backoff_until {
            self.alarms.insert((until, id, c, Alarm::Proof(rung)));
        }
        let next = flow.next_pn();
        let notice = ladder.notice(flow.config().flow, PathId::UNICAST, next, cause, None);
        session.say(&Control::Rung(notice));
        self.counters.fall_backs += 1;
        self.counters.rekeys_missed += u64::from(cause == Cause::RekeyMissed);
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Moved {
            session: id,
            channel: c,
            from: rung,
            to: Rung::Unicast,
            cause,
            at: now,
        });
        self.recount(id, c);
    }

    pub(super) fn flow_events(&mut self, c: ChannelIndex, now: Instant) {
        while let Some(event) = self
            .channels
            .get_mut(c)
            .and_then(|c| c.flow.as_mut())
            .and_then(FlowSender::poll_event)
        {
            match event {
                FlowEvent::Repair { member, range } => {
                    if !self.repairs() {
                        continue;
                    }
                    self.counters.repairs += 1;
                    let session = self.sessions.get_mut(&member);
                    let Some(subscription) = session.and_then(|s| s.subscription(c)) else {
                        continue;
                    };
                    let backlog = &mut subscription.delivery.backlog;
                    backlog.repair([range]);
                    self.dirty.insert(member);
                    let flow = self.channels[c].flow.as_mut();
                    if backlog.pieces() > MAX_OWED
                        && let Some(departure) = flow.and_then(|f| f.dismiss(member))
                    {
                        self.fell_back(member, c, Cause::TooSlow, departure, now);
                    }
                }
                FlowEvent::FellBack {
                    member,
                    cause,
                    departure,
                } => {
                    self.channels[c].count_fall_back(cause, now);
                    self.fell_back(member, c, cause, departure, now);
                }
                FlowEvent::Switched { .. } => {
                    if std::mem::take(&mut self.channels[c].rekey_again) {
                        self.want_secret(c);
                    }
                }
            }
        }
    }

    /// The back-off of a receiver that flapped is over: packets from now on prove that the flow
    /// reaches it.
    pub(super) fn ask_for_proof(
        &mut self,
        id: SessionId,
        c: ChannelIndex,
        rung: Rung,
        now: Instant,
    ) {
        let (Some(flow), Some(session)) = (
            self.channels.get(c).and_then(|c| c.flow.as_ref()),
            self.sessions.get_mut(&id),
        ) else {
            return;
        };
        let held = session.is_held();
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        let ladder = &mut subscription.ladder;
        if !ladder.end_backoff(rung, now) {
            return;
        }
        // A member by another rung says by itself, now and then, that a better one works.
        if !ladder.is_member() && !held {
            let cause = ladder.last_cause();
            let (flow, next) = (flow.config().flow, flow.next_pn());
            let notice = ladder.notice(flow, PathId::UNICAST, next, cause, None);
            session.say(&Control::Rung(notice));
            self.dirty.insert(id);
        }
    }
}
