//! Verdicts on members from acknowledgements and timers: losses to repair, members that leave.

use std::time::Instant;

use super::member::Resolution;
use super::pacer::BreakerState;
use super::pings::MIN_TAIL_PROBE;
use super::sender::{AckError, FlowEvent, FlowSender, MemberId};
use crate::Cause;
use crate::ack::PathAck;
use crate::ecn::Acknowledged;
use crate::rate::RateEvent;

impl FlowSender {
    /// Takes an acknowledgement. One from a receiver that is no member, or for a path by which it
    /// is none, is ignored: it was under way at the cut.
    pub fn on_ack(&mut self, id: MemberId, ack: &PathAck, now: Instant) -> Result<(), AckError> {
        let next = self.next_pn();
        let Some(member) = self.members.get_mut(&id).filter(|m| m.path == ack.path) else {
            return Ok(());
        };
        if ack.largest() >= next || self.ledger.was_skipped(ack.largest()) {
            return Err(AckError::Unsent {
                pn: ack.largest(),
                next,
            });
        }
        let mut settled = Resolution::default();
        let is_newest = member.largest_acked().is_none_or(|l| ack.largest() > l);
        let loss_at = member.loss_at();
        member.on_ack(ack, &self.delays, &mut self.ledger, now, &mut settled);
        // Counts of older acknowledgements are overtaken (RFC 9000 section 13.4.2.1).
        let marked = if is_newest {
            let acked = Acknowledged {
                packets: settled
                    .acked
                    .iter()
                    .map(|range| range.end - range.start)
                    .sum(),
                sent: self.stats.packets,
                sent_before: member.sent_before,
            };
            member.ecn.on_ack(ack.ecn, acked)
        } else {
            0
        };
        self.pings.raise_tail_delay(member.rtt.pto(self.delays.ack));
        let next = member
            .check(&self.delays, &mut self.ledger, now, &mut settled)
            .next;
        self.checks.plan_loss(id, loss_at, member.loss_at());
        let rtt = member.rtt.smoothed();
        let size = &mut member.size;
        self.pmtu
            .on_resolution(id, size, &mut settled, &self.ledger);
        self.repair(id, &settled);
        self.ledger.sweep();
        self.pacer.on_resolution(id, &settled, rtt, now);
        if marked > 0 {
            self.stats.ce += marked;
            self.pacer.on_marked(id, marked, ack.largest(), now);
        }
        self.checks.plan(next);
        self.follow_rate_control();
        self.follow_sizes(now);
        Ok(())
    }

    /// Looks for the losses of members of which one may be due.
    pub(super) fn check_losses(&mut self, now: Instant) {
        while let Some(id) = self.checks.take_due_loss(now) {
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            let mut settled = Resolution::default();
            member.detect_loss(&mut self.ledger, now, &mut settled);
            self.checks.plan_loss(id, None, member.loss_at());
            let size = &mut member.size;
            self.pmtu
                .on_resolution(id, size, &mut settled, &self.ledger);
            let rtt = member.rtt.smoothed();
            self.repair(id, &settled);
            self.ledger.sweep();
            self.pacer.on_resolution(id, &settled, rtt, now);
        }
    }

    /// Checks the members' timers.
    pub(super) fn check_members(&mut self, now: Instant) {
        self.waiting = false;
        let (mut next, mut pto) = (None, MIN_TAIL_PROBE);
        let (mut gone, mut losses) = (Vec::new(), Vec::new());
        for (id, member) in &mut self.members {
            let (loss_at, mut settled) = (member.loss_at(), Resolution::default());
            let checked = member.check(&self.delays, &mut self.ledger, now, &mut settled);
            self.checks.plan_loss(*id, loss_at, member.loss_at());
            let rtt = member.rtt.smoothed();
            let size = &mut member.size;
            self.pmtu
                .on_resolution(*id, size, &mut settled, &self.ledger);
            self.pacer.on_resolution(*id, &settled, rtt, now);
            let fall_back = checked.fall_back;
            #[cfg(feature = "fault-injection")]
            let fall_back = fall_back.filter(|_| !self.fall_back_off);
            losses.push((*id, settled));
            self.waiting |= checked.waiting;
            pto = pto.max(member.rtt.pto(self.delays.ack));
            match fall_back {
                Some(cause) => gone.push((*id, cause)),
                None => next = [next, checked.next].into_iter().flatten().min(),
            }
        }
        self.pings.set_tail_delay(pto);
        for (member, settled) in losses {
            self.repair(member, &settled);
        }
        for (member, cause) in gone {
            self.drop_member(member, cause);
        }
        self.ledger.sweep();
        self.checks.plan(next);
    }

    /// Does what the rate controller has decided: members that are too slow or lose too much leave,
    /// and a flow whose circuit breaker is open has no members.
    pub(super) fn follow_rate_control(&mut self) {
        while let Some(event) = self.pacer.poll_event() {
            match event {
                RateEvent::TooSlow(member) => self.drop_member(member, Cause::TooSlow),
                RateEvent::LossTooHigh(member) => self.drop_member(member, Cause::LossTooHigh),
                RateEvent::BreakerHalved => self.on_breaker(BreakerState::Halved),
                RateEvent::BreakerOpen => {
                    let members: Vec<_> = self.members.keys().copied().collect();
                    for member in members {
                        self.drop_member(member, Cause::LossTooHigh);
                    }
                    self.silence();
                    self.on_breaker(BreakerState::Open);
                }
                RateEvent::BreakerClosed => self.on_breaker(BreakerState::Closed),
            }
        }
    }

    pub(super) fn on_breaker(&mut self, state: BreakerState) {
        self.events.push_back(FlowEvent::Breaker(state));
    }

    /// Drops everything that waits to be sent: all receivers get it on their unicast paths.
    pub(super) fn silence(&mut self) {
        self.queue.clear();
        self.shared.clear();
        self.window.unblock();
        self.pings.stop();
    }

    /// Takes a member off the flow and reports it.
    pub(super) fn drop_member(&mut self, member: MemberId, cause: Cause) {
        if let Some(departure) = self.dismiss(member) {
            self.events.push_back(FlowEvent::FellBack {
                member,
                cause,
                departure,
            });
        }
    }
}
