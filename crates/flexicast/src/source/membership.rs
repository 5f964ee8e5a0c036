//! Membership of flows: promotion on proof, fall-back, back-off, replication (protocol.md section
//! 8).

use std::time::{Duration, Instant};

use rand::RngExt;

use super::{Alarm, ChannelIndex, LIVE_WITHIN, SessionId, Source, SourceEvent};
use crate::control::{Action, Anchor, Control, State};
use crate::flow::{Departure, FlowEvent, FlowSender};
use crate::{Cause, FlowId, PathId, Rung};

/// A membership shorter than this counts as flapping.
const FLAP: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Time limit for a receiver to prove that replicated packets arrive: the source reflects nothing
/// at third parties.
const COPIES_UNPROVED: Duration = Duration::from_secs(2);
/// Copies to a receiver that proved that they arrive, and is no member yet, end after this time unless it proves it again.
const COPIES_PROVED: Duration = Duration::from_secs(12);
/// Bound on the pieces that a member may owe on its unicast path; beyond it, the receiver is no
/// member.
const MAX_OWED: usize = 512;

/// Returns the back-off, without jitter, of a rung after its `count`th consecutive failure.
pub(super) fn backoff(count: u32) -> Duration {
    let doubled = 1 << count.saturating_sub(1).min(16);
    BACKOFF_FIRST.saturating_mul(doubled).min(BACKOFF_MAX)
}

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
        if subscription
            .state_sequence
            .is_some_and(|known| state.sequence <= known)
        {
            return;
        }
        subscription.state_sequence = Some(state.sequence);
        // Only a key that was sent can be held.
        let confirmed = state.key_sequence.min(subscription.key_sent);
        subscription.confirmed = subscription.confirmed.max(confirmed);
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
        let full = channel.replicas.len() >= self.limits.replicas;
        let offered = channel.replicate;
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (validated, held) = (session.validated, session.held);
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        let new = if copies {
            // Copies that are on already stay on; the time that is left to prove them does not grow by asking again.
            let refused = !offered || !validated || (full && !subscription.replicated);
            let needless = held || subscription.rung() < Rung::Replicated;
            let backing_off = subscription.is_backing_off(Rung::Replicated, now);
            if refused || needless || backing_off {
                self.counters.copies_refused += u64::from(refused && !held);
                return;
            }
            let new = !std::mem::replace(&mut subscription.replicated, true);
            if new {
                let until = now + COPIES_UNPROVED;
                subscription.copies_until = Some(until);
                self.alarms.insert((until, id, c, Alarm::Copies));
            }
            new
        } else if path == tunnel {
            !std::mem::replace(&mut subscription.tunnelled, true)
        } else {
            !std::mem::replace(&mut subscription.joined, true)
        };
        // Answered once: the answer is larger than the question.
        let keyless = subscription.key_sent == 0 && !subscription.awaits_key;
        if keyless {
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
        // One that is held may prove what it likes.
        let session = self.sessions.get_mut(&id).filter(|s| !s.held);
        let Some(subscription) = session.and_then(|s| s.subscription(c)) else {
            return;
        };
        if subscription.member == Some(state.path) {
            // Only says which key it holds.
            return;
        }
        let listens = subscription.listens_by(rung);
        let better = rung < subscription.rung();
        if listens && rung == Rung::Amt {
            // Its relay is there: should it be lost later, that is no reason for what was before.
            subscription.fell_from = None;
        }
        let holds_key = subscription.confirmed >= in_use;
        if !listens || !better || !holds_key || subscription.is_backing_off(rung, now) {
            self.counters.proofs_ignored += 1;
            return;
        }
        let known = subscription.proved(now).and_then(PathId::rung);
        if known.is_none_or(|known| rung <= known) {
            subscription.ready = Some((state.path, now));
        }
        if rung == Rung::Replicated {
            // Packets arrive, even if the receiver takes a while to come near the head. It repeats
            // its READY now and then; one that does not is gone.
            let until = now + COPIES_PROVED;
            subscription.copies_until = Some(until);
            self.alarms.insert((until, id, c, Alarm::Copies));
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
        let off_member = subscription.member.is_some()
            && (subscription.member == Some(state.path) || one.is_none());
        if off_member && let Some(flow) = &mut self.channels[c].flow {
            #[cfg(feature = "fault-injection")]
            if self.faults.fall_back_off && listens_on {
                return;
            }
            if let Some(departure) = flow.dismiss(id) {
                if listens_on {
                    self.channels[c].count_fall_back(cause, now);
                }
                self.fell_back(id, c, cause, departure, now);
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
        match one {
            Some(Rung::Amt) => subscription.tunnelled = false,
            Some(_) => subscription.replicated = false,
            None => subscription.leave_all_paths(),
        }
        let proved = subscription.ready.and_then(|(path, _)| path.rung());
        if proved.is_some_and(|rung| !subscription.listens_by(rung)) {
            subscription.ready = None;
        }
        if !subscription.listens() {
            // The receiver has to ask for a key again, and gets the current one then.
            let keyed = subscription.key_sent > 0;
            (subscription.key_sent, subscription.confirmed) = (0, 0);
            subscription.awaits_key = false;
            if keyed {
                self.note_leaver(c, receiver, now);
            }
        }
        self.recount(id, c);
    }

    /// Whether a session listens to a channel's flow or gets copies may have changed: it is counted before anything else is sent, once for all changes of an
    /// instant.
    pub(super) fn recount(&mut self, id: SessionId, c: ChannelIndex) {
        if let Some(channel) = self.channels.get_mut(c) {
            channel.stale.insert(id);
        }
    }

    /// Counts what may have changed.
    pub(super) fn settle(&mut self, now: Instant) {
        for c in 0..self.channels.len() {
            let stale = std::mem::take(&mut self.channels[c].stale);
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
        let held = session.held;
        let reachable = session.validated && !session.closing;
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        // Nothing is sent for the sake of one that takes nothing from the flow.
        let is = match held {
            true => (false, false),
            false => (subscription.listens(), subscription.replicated && reachable),
        };
        let was = std::mem::replace(&mut subscription.counted, is);
        channel.adjust(id, was, is);
    }

    fn announce_flow(&mut self, c: ChannelIndex, now: Instant) {
        let channel = &mut self.channels[c];
        if let Some(flow) = &mut channel.flow {
            flow.set_listeners(channel.listeners, now);
        }
        if channel.retune(now) {
            self.announce(c);
        }
    }

    pub(super) fn try_promote_at(&mut self, id: SessionId, at: usize, now: Instant) {
        let subscription = self.sessions.get(&id).and_then(|s| s.subscriptions.get(at));
        if let Some(subscription) = subscription.filter(|s| s.ready.is_some()) {
            self.try_promote(id, subscription.channel, now);
        }
    }

    /// Makes a receiver a member by the path that it proved, if that is better than where it stands and it is near enough to the head.
    pub(super) fn try_promote(&mut self, id: SessionId, c: ChannelIndex, now: Instant) {
        let channel = &mut self.channels[c];
        let (Some(flow), Some(session)) = (&mut channel.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let (rtt, held) = (session.rtt, session.held);
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        let Some(path) = subscription.proved(now) else {
            return;
        };
        let Some(to) = path.rung() else { return };
        if !subscription.listens_by(to) {
            // The proved path has ended since.
            subscription.ready = None;
            return;
        }
        let from = subscription.rung();
        let holds_key = subscription.confirmed >= flow.epoch().sequence;
        let far = subscription.backlog.len() > LIVE_WITHIN;
        if held || to >= from || far || !holds_key || subscription.is_backing_off(to, now) {
            return;
        }
        if subscription.member.is_some() {
            // From one rung to a better one: what is under way on the old one is sent again on the unicast path, which costs less than keeping count of two.
            if let Some(departure) = flow.dismiss(id) {
                subscription.backlog.repair(departure.owed);
            }
        } else {
            subscription.cut_head = channel.head;
            subscription.progress.promoted(channel.head);
        }
        let anchor = Anchor {
            seq: channel.head + 1,
            offset: flow.anchor().offset,
        };
        let cut = flow.admit(id, path, rtt, subscription.confirmed);
        subscription.ready = None;
        subscription.tried[to as usize] = false;
        subscription.member = Some(path);
        subscription.since = now;
        subscription.cause = Some(Cause::Joined);
        subscription.backlog.set_live(false);
        if to != Rung::Replicated {
            subscription.replicated = false;
        }
        subscription.copies_until = None;
        let notice =
            subscription.notice(flow.config().flow, path, cut, Cause::Joined, Some(anchor));
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
        let Some(path) = subscription.member.take() else {
            return;
        };
        let from = path.rung().unwrap_or(Rung::Multicast);
        if repairs {
            subscription.backlog.repair(departure.owed);
        }
        let resume = departure.resume.max(subscription.cut_head + 1);
        subscription.backlog.insert(resume, channel.head);
        subscription.ready = None;
        subscription.backlog.set_live(true);
        if from == Rung::Replicated {
            // No acknowledgement, no copies: it asks for them again.
            subscription.replicated = false;
        }
        let lasted = now.saturating_duration_since(subscription.since);
        if let Some(flaps) = subscription.flaps.get_mut(from as usize) {
            // A first membership that ends soon is a failure, only one after a return is flapping.
            let own = !matches!(cause, Cause::RekeyMissed | Cause::Held);
            let again = flaps.returned && lasted < FLAP && own;
            // A member that blocks the flow for all is kept off it for a while even the first time.
            let flapped = again || cause == Cause::TooSlow;
            flaps.returned = true;
            flaps.count = if flapped {
                flaps.count.saturating_add(1)
            } else {
                0
            };
            flaps.until = None;
            if flapped {
                let until = now + backoff(flaps.count).mul_f64(self.rng.random_range(0.75..1.25));
                flaps.until = Some(until);
                self.alarms.insert((until, id, c, Alarm::Proof(from)));
            }
        }
        subscription.since = now;
        subscription.last_cause = cause;
        subscription.cause = Some(cause);
        subscription.fell_from = Some(from);
        let next = flow.next_pn();
        let notice = subscription.notice(flow.config().flow, PathId::UNICAST, next, cause, None);
        session.say(&Control::Rung(notice));
        self.counters.fall_backs += 1;
        self.counters.rekeys_missed += u64::from(cause == Cause::RekeyMissed);
        self.dirty.insert(id);
        self.events.push_back(SourceEvent::Moved {
            session: id,
            channel: c,
            from,
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
                    subscription.backlog.repair([range]);
                    self.dirty.insert(member);
                    let flow = self.channels[c].flow.as_mut();
                    if subscription.backlog.pieces() > MAX_OWED
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

    /// The back-off of a receiver that flapped is over: packets from now on prove that the flow reaches it.
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
        let held = session.held;
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        let flaps = &mut subscription.flaps[rung as usize];
        if flaps.until.is_none_or(|until| until > now) {
            return;
        }
        flaps.until = None;
        // A member by another rung says by itself, now and then, that a better one works.
        if subscription.member.is_none() && !held {
            let cause = subscription.last_cause;
            let (flow, next) = (flow.config().flow, flow.next_pn());
            let notice = subscription.notice(flow, PathId::UNICAST, next, cause, None);
            session.say(&Control::Rung(notice));
            self.dirty.insert(id);
        }
    }
}
