//! The legs of members that take a flow by several ways at once (protocol.md section 8.10).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Source;
use super::scope::ChannelScope;
use super::types::{SessionId, SourceEvent};
use crate::control::{CAPABILITY_HITLESS, Control, LegReport, LegState, Legs};
use crate::{Cause, PathId, Rung};

impl Source {
    /// Takes a receiver's report about its legs.
    pub(super) fn on_legs(&mut self, id: SessionId, legs: Legs, now: Instant) {
        let index = self.channels.of_flow(legs.flow);
        let merges = self.sessions.get(id);
        let merges = merges.is_some_and(|session| session.can(CAPABILITY_HITLESS));
        if let Some(mut scope) = index.filter(|_| merges).and_then(|index| self.scope(index)) {
            scope.on_legs(id, legs, now);
        }
    }
}

impl ChannelScope<'_> {
    fn on_legs(&mut self, id: SessionId, mut legs: Legs, now: Instant) {
        let (index, epoch) = match &self.channel.flow {
            Some(flow) => (self.channel.flow_index, flow.epoch().sequence),
            None => return,
        };
        let flow = self.channel.flow.as_ref();
        let never_sent = |leg: &LegReport| {
            let largest = flow.zip(leg.largest);
            largest.is_some_and(|(flow, largest)| flow.was_never_sent(largest))
        };
        let is_forged = legs.legs.iter().any(never_sent);
        let Some(session) = self.sessions.get_mut(id).filter(|s| !s.is_held()) else {
            return;
        };
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let ladder = &mut subscription.ladder;
        // One that crossed the end of the membership says nothing of the next.
        let is_member = matches!(ladder.rung(), Rung::Multicast | Rung::Amt);
        if !ladder.leg_reports.advance(legs.sequence) || !is_member {
            return;
        }
        if is_forged {
            // The receiver was shown packets that the source did not send.
            return self.note_forgery(id, false, now);
        }
        // One that never brought a packet, and is no failure either, says nothing.
        let mut named = BTreeSet::new();
        legs.legs.retain(|leg| {
            let is_own = leg.path.flow_index() == index && leg.leg().is_some();
            let says = leg.largest.is_some() || leg.state == LegState::Lost;
            is_own && says && named.insert((leg.path, leg.number))
        });
        for leg in &mut legs.legs {
            let listens = leg.leg().is_some_and(|leg| ladder.listens_by(leg.rung));
            let counts = leg.largest.is_some() && listens && ladder.key.confirmed() >= epoch;
            if leg.state == LegState::Working && !counts {
                leg.state = LegState::Trying;
            }
        }
        let was = ladder.set_legs(legs.legs);
        let changes: Vec<_> = ladder
            .legs()
            .iter()
            .filter_map(|leg| {
                let same = |old: &&LegReport| (old.path, old.number) == (leg.path, leg.number);
                let old = was.iter().find(same).map(|old| old.state);
                let old = old.unwrap_or(LegState::Trying);
                let worked = old == LegState::Working;
                (old != leg.state).then_some((leg.leg()?, leg.state, worked))
            })
            .collect();
        if !changes.is_empty() && !self.affords_change(id, now) {
            return;
        }
        for (leg, state, worked) in changes {
            self.out.counters.legs_lost += u64::from(worked && state == LegState::Lost);
            self.out.push(SourceEvent::Leg {
                session: id,
                channel: self.index,
                leg,
                state,
                worked,
                at: now,
            });
        }
        self.follow_legs(id, now);
    }

    /// Whether a receiver's legs have not changed more often than is recorded and followed.
    fn affords_change(&mut self, id: SessionId, now: Instant) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let budget = &mut session.budgets.legs;
        let affords = budget.ready_at(now) <= now;
        if affords {
            budget.take(1);
        }
        affords
    }

    /// Names a member after the best of its legs that work. What it owes stays, and it does not
    /// fall back.
    fn follow_legs(&mut self, id: SessionId, now: Instant) {
        let Some(subscription) = self.subscription(id) else {
            return;
        };
        let ladder = &subscription.ladder;
        let (rung, legs) = (ladder.rung(), ladder.legs());
        if !matches!(rung, Rung::Multicast | Rung::Amt) || legs.is_empty() {
            return;
        }
        let working = legs.iter().filter(|leg| leg.state == LegState::Working);
        let best = working.filter_map(|leg| Some(leg.leg()?.rung)).min();
        // A lost one is not waited for.
        let waited = legs.iter().filter(|leg| leg.state == LegState::Working);
        let lag = waited.map(|leg| leg.lag).max().unwrap_or_default();
        self.move_to_leg(id, best.unwrap_or(rung), lag, now);
    }

    /// Names a member after the leg by rung `to`. What one of its legs lacks, another may bring
    /// `lag` later.
    pub(super) fn move_to_leg(&mut self, id: SessionId, to: Rung, lag: Duration, now: Instant) {
        let path = PathId::new(self.channel.flow_index, to);
        let (Some(flow), Some(session)) = (&mut self.channel.flow, self.sessions.get_mut(id))
        else {
            return;
        };
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        flow.set_legs(id, path, lag);
        let from = subscription.ladder.rung();
        if to == from {
            return;
        }
        let cause = match to < from {
            true => Cause::Joined,
            false => Cause::LegLost,
        };
        let ladder = &mut subscription.ladder;
        ladder.follow_leg(path, to, cause, now);
        let notice = ladder.notice(flow.config().flow, path, flow.next_pn(), cause, None);
        session.say(&Control::Rung(notice));
        self.out.mark_dirty(id);
        self.out.push(SourceEvent::Moved {
            session: id,
            channel: self.index,
            from,
            to,
            cause,
            at: now,
        });
        self.recount(id);
    }
}
