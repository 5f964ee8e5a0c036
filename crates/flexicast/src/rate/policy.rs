//! The policies: what reports mean for the windows, and how the rate follows from them.

use super::*;
use crate::rate::friendly::{Congestion, response};
use crate::rate::marks::Marks;
use crate::rate::member::sum;
use crate::rate::sent::SentPacket;

/// Share above the flow's rate from which on a member with a controller of its own limits nothing.
const RECOVERED: f64 = 1.2;

impl RateController {
    fn usage(&self, rtt: f64) -> Usage {
        Usage {
            used: self.target() * rtt / self.payload(),
            idle: self.clock.is_idle(),
            next_pn: self.sent.next_pn(),
        }
    }

    /// The rate of the shared controller.
    pub(super) fn shared_rate(&self) -> f64 {
        match self.config.policy {
            RatePolicy::TcpFriendly => self.shared.cubic.window() * self.payload() / self.rtt,
            _ => f64::INFINITY,
        }
    }

    /// The rate without the members' own limits.
    pub(super) fn unlimited_rate(&self) -> f64 {
        self.bound(self.shared_rate())
    }

    /// The rate that the windows allow.
    fn target(&self) -> f64 {
        let slowest = self.slowest.rate();
        if slowest.is_infinite() && self.config.policy == RatePolicy::CubicMin {
            // No member counts yet.
            return self.rate;
        }
        self.bound(slowest.min(self.shared_rate()))
    }

    /// Moves the rate towards its target: down at once, up at most by doubling per round trip.
    pub(super) fn update_rate(&mut self, now: Instant) {
        let last = self.updated.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(last).as_secs_f64();
        let target = self.target();
        let most = self.rate * (elapsed / self.rtt).min(64.0).exp2();
        self.rate = if target > self.rate {
            target.min(most)
        } else {
            target
        };
    }

    /// Policy `CubicMin`: the usage of a member's window.
    fn cubic_usage(&self, id: MemberId) -> Option<Usage> {
        let usage = self.usage(self.members.get(&id)?.rtt.as_secs_f64());
        Some(Usage {
            // A larger window was not validated (RFC 7661 section 4.3).
            used: usage.used * VALIDATED,
            ..usage
        })
    }

    /// Policy `CubicMin`.
    pub(super) fn on_cubic_report(
        &mut self,
        id: MemberId,
        acked: &[Range<u64>],
        lost: &[Range<u64>],
        now: Instant,
    ) {
        let (payload, busy, target) = (self.payload(), self.clock.seconds(now), self.target());
        let Some(usage) = self.cubic_usage(id) else {
            return;
        };
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let Estimator::Cubic(controller) = &mut member.estimator else {
            return;
        };
        let rtt = member.rtt.as_secs_f64();
        let own = |range: &Range<u64>| range.start.max(member.cut)..range.end;
        let lost = lost.iter().flat_map(|range| self.sent.numbers(own(range)));
        controller.on_signal(Signal::Lost(&lost.collect::<Vec<_>>()), usage);
        let cubic = &mut controller.cubic;
        let rate = |cubic: &Cubic| cubic.window() * payload / rtt;
        if usage.idle || rate(cubic) > target * VALIDATED {
            cubic.on_unused(busy);
        } else {
            let grown = sum(acked, cubic.recovery(), &self.sent).bytes;
            cubic.on_acked(grown as f64 / payload, rtt, busy);
        }
        member.rate = rate(cubic);
        if member.counts {
            self.slowest.update(id, member.rate);
        }
        let rtt = member.rtt;
        if self.members.len() == 1 {
            self.set_rtt(id, rtt, false);
        }
    }

    /// Policy `TcpFriendly`.
    pub(super) fn on_friendly_report(
        &mut self,
        id: MemberId,
        acked: &[Range<u64>],
        lost: &[Range<u64>],
        now: Instant,
    ) {
        let count = self.members.len();
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let rtt = member.rtt;
        let Estimator::History(history) = &mut member.estimator else {
            return;
        };
        // Losses: each packet is the member's own or shared by most.
        let (mut shared, mut own) = (Vec::new(), Vec::new());
        let (mut shared_at, mut unanswered, mut events) = (None, 0, 0u8);
        let mut fresh = Vec::new();
        let answered = self.answered;
        for range in lost {
            let mut ordinal = self.sent.ordinal(range.start);
            self.sent.lose(range.clone(), |packet| {
                if packet.is_lost_by_most(count) {
                    // Once, however many members report it.
                    if packet.has_just_become_shared(count) {
                        shared.push(packet.pn);
                        shared_at.get_or_insert(packet.at);
                    }
                } else {
                    own.push(packet.pn);
                    unanswered += u64::from(packet.pn >= answered);
                }
                fresh.push((packet.pn, ordinal, packet.at));
                ordinal += 1;
            });
        }
        let sent = &self.sent;
        let is_shared = |pn| sent.get(pn).is_some_and(|p| p.is_lost_by_most(count));
        let is_congested = history.congestion.is_some();
        for (pn, ordinal, at) in fresh {
            let begins = !is_congested
                && !is_shared(pn)
                && history.intervals.on_lost(pn, ordinal, at, rtt, is_shared);
            events = events.saturating_add(u8::from(begins));
        }
        let round = rtt.max(self.config.ack_delay);
        let sample = history.intervals.sample(sent.ordinal(member.reported_to));
        let usual = self.population.estimate(sample).max(self.population.loss());
        // Packets from before the last reduction of the flow ask for no other one.
        let reported = sum(acked, answered, sent).packets + unanswered;
        let report_since = (reported, unanswered, events);
        let sudden = history.on_report(report_since, usual, round, now, is_shared);
        if count > 1 && (sudden || is_congested) {
            self.on_congestion(id, acked, Signal::Lost(&own), sudden, now);
        }
        if count == 1 {
            self.set_rtt(id, rtt, false);
        }
        self.on_shared(Signal::Lost(&shared), shared_at, now);
        self.grow_shared(acked, shared.len() as u64, now);
    }

    /// Policy `CubicMin`: takes marks of a member as a congestion event.
    pub(super) fn on_cubic_marked(&mut self, id: MemberId, largest: u64) {
        let payload = self.payload();
        let Some(usage) = self.cubic_usage(id) else {
            return;
        };
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let Estimator::Cubic(controller) = &mut member.estimator else {
            return;
        };
        controller.on_signal(Signal::Marked(largest), usage);
        member.rate = controller.cubic.window() * payload / member.rtt.as_secs_f64();
        self.slowest.update(id, member.rate);
    }

    /// Policy `TcpFriendly`: takes marks as a congestion event of the flow if most members report
    /// some, and as a loss event of the member until then.
    pub(super) fn on_friendly_marked(
        &mut self,
        id: MemberId,
        marked: u64,
        newest: SentPacket,
        now: Instant,
    ) {
        let (largest, sent) = (newest.pn, newest.at);
        let count = self.members.len();
        let (ordinal, answered) = (self.sent.ordinal(largest), self.answered);
        let all = Duration::from_secs_f64(self.rtt) + self.config.ack_delay * 2;
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let last = &mut member.marked_in;
        match self.marks.on_marked(last, sent, count, all, now) {
            Marks::Own => {}
            Marks::Shared(from) => {
                return self.on_shared(Signal::Marked(largest), Some(from), now);
            }
            Marks::Known => return,
        }
        let (rtt, reported_to) = (member.rtt, member.reported_to);
        let Estimator::History(history) = &mut member.estimator else {
            return;
        };
        let log = &self.sent;
        let is_shared = |pn| log.get(pn).is_some_and(|p| p.is_lost_by_most(count));
        let is_congested = history.congestion.is_some();
        let intervals = &mut history.intervals;
        let begins = !is_congested && intervals.on_lost(largest, ordinal, sent, rtt, is_shared);
        let sample = intervals.sample(log.ordinal(reported_to));
        let usual = self.population.estimate(sample).max(self.population.loss());
        let marked = if largest < answered { 0 } else { marked };
        let report = (marked, marked, begins.into());
        let round = rtt.max(self.config.ack_delay);
        let sudden = history.on_report(report, usual, round, now, is_shared);
        if sudden || is_congested {
            self.on_congestion(id, &[], Signal::Marked(largest), sudden, now);
        }
    }

    /// Policy `TcpFriendly`: takes losses back that were none.
    pub(super) fn on_friendly_spurious(&mut self, id: MemberId, packets: &[u64]) {
        let count = self.members.len();
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let Estimator::History(history) = &mut member.estimator else {
            return;
        };
        let (mut shared, mut own) = (Vec::new(), Vec::new());
        for pn in packets {
            let ordinal = self.sent.ordinal(*pn);
            let Some(packet) = self.sent.take_back(*pn) else {
                continue;
            };
            if !packet.is_lost_by_most(count) {
                own.push(*pn);
                history.take_back(ordinal, packet.at);
            } else if packet.has_just_become_shared(count) {
                // Without this member, most have it.
                shared.push(*pn);
            }
        }
        // Without the event that it began with, there is no congestion of the member's own.
        history.congestion.take_if(|congestion| {
            congestion.controller.on_spurious(&own)
                && congestion.controller.cubic.recovery() == congestion.answered
        });
        self.shared.on_spurious(&shared);
    }

    /// Drives a member's own controller, which begins with a sudden change.
    fn on_congestion(
        &mut self,
        id: MemberId,
        acked: &[Range<u64>],
        signal: Signal<'_>,
        sudden: bool,
        now: Instant,
    ) {
        let (payload, busy, target) = (self.payload(), self.clock.seconds(now), self.target());
        let Some(rtt) = self.members.get(&id).map(|member| member.rtt.as_secs_f64()) else {
            return;
        };
        let usage = self.usage(rtt);
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let Estimator::History(history) = &mut member.estimator else {
            return;
        };
        if sudden && history.congestion.is_none() {
            let cubic = Cubic::with_window(usage.used, false);
            self.answered = usage.next_pn;
            history.congestion = Some(Box::new(Congestion {
                controller: Controller::new(cubic),
                began: now,
                answered: usage.next_pn,
            }));
        }
        let Some(congestion) = &mut history.congestion else {
            return;
        };
        let controller = &mut congestion.controller;
        controller.on_signal(signal, usage);
        let lost = signal.lost().len() as u64;
        let after = sum(acked, controller.cubic.recovery(), &self.sent);
        let acked = sum(acked, member.cut, &self.sent).packets;
        let before = acked.saturating_sub(after.packets);
        controller.on_reported(before + lost, lost);
        let cubic = &mut controller.cubic;
        let rate = |cubic: &Cubic| cubic.window() * payload / rtt;
        if usage.idle || rate(cubic) > target * VALIDATED {
            cubic.on_unused(busy);
        } else {
            cubic.on_acked(after.bytes as f64 / payload, rtt, busy);
        }
        member.rate = rate(cubic);
        self.slowest.update(id, member.rate);
    }

    /// Reduces the flow for congestion that most members share, in packets sent from `at` on.
    fn on_shared(&mut self, signal: Signal<'_>, at: Option<Instant>, now: Instant) {
        let Some(at) = at.filter(|_| self.shared.is_event(signal)) else {
            self.shared.on_signal(signal, self.usage(self.rtt));
            return;
        };
        // The first members that reported these losses could not know that others share them.
        let mut any = false;
        for member in self.members.values_mut() {
            if let Estimator::History(history) = &mut member.estimator {
                any |= history.share_losses(at);
            }
        }
        if any {
            self.scan(now);
        }
        let usage = self.usage(self.rtt);
        self.shared.on_signal(signal, usage);
        self.answered = usage.next_pn;
        let proven = self.shared_rate();
        for member in self.members.values_mut() {
            member.proven = member.proven.min(proven);
        }
    }

    /// Grows the shared window by what is reported for the first time, if it is what limits the
    /// flow.
    fn grow_shared(&mut self, acked: &[Range<u64>], lost: u64, now: Instant) {
        let (payload, busy) = (self.payload(), self.clock.seconds(now));
        let recovery = self.shared.cubic.recovery();
        let fresh = sum(acked, self.progress, &self.sent);
        let after = sum(acked, self.progress.max(recovery), &self.sent);
        let before = fresh.packets - after.packets;
        self.shared.on_reported(before + lost, lost);
        let end = acked.iter().map(|range| range.end).max().unwrap_or(0);
        self.progress = self.progress.max(end.min(self.sent.next_pn()));
        let others = self.bound(self.slowest.rate());
        if self.clock.is_idle() || self.shared_rate() > others * VALIDATED {
            if !self.clock.is_idle() {
                self.shared.cubic.end_slow_start();
            }
            self.shared.cubic.on_unused(busy);
        } else {
            let grown = after.bytes as f64 / payload;
            self.shared.cubic.on_acked(grown, self.rtt, busy);
        }
    }

    /// Scans all members: who counts, what is typical, who is slowest.
    pub(super) fn scan(&mut self, now: Instant) {
        let any = self.members.values().any(|member| member.counts);
        let count = self.members.len();
        let age = Duration::from_secs_f64(self.rtt * 1.5) + self.config.ack_delay * 2;
        let (mut longest, mut population) = (None, Population::default());
        let used = self.used.take_peak(self.interval(), now);
        for (id, member) in &mut self.members {
            member.proven = member.proven.max(used);
            member.counts |= !any || member.is_old(now);
            if member.counts {
                // Among equals the one that has it keeps it.
                let is_new = !std::mem::replace(&mut member.was_scanned, true);
                let keeps = self.rtt_of == Some(*id);
                longest = longest.max(Some((member.rtt, keeps, *id, is_new)));
            }
            if let Estimator::History(history) = &mut member.estimator {
                let intervals = &mut history.intervals;
                let sent = &self.sent;
                if intervals.unsettled(age, now) {
                    let most = |pn| sent.get(pn).is_some_and(|p| p.is_lost_by_most(count));
                    intervals.settle(most);
                }
                let ordinal = sent.ordinal(member.reported_to);
                intervals.discount(ordinal);
                population.add(intervals.sample(ordinal));
            }
        }
        if let Some((rtt, keeps, member, is_new)) = longest {
            self.set_rtt(member, rtt, is_new && !keeps);
        }
        let window = self.rate * self.rtt / self.payload();
        population.complete(&self.population, window);
        self.population = population;
        self.rescan_rates();
    }

    fn rescan_rates(&mut self) {
        let (payload, count) = (self.payload(), self.members.len());
        let mut slowest = Slowest::default();
        for (id, member) in &mut self.members {
            let rtt = member.rtt.as_secs_f64();
            match &mut member.estimator {
                Estimator::None => continue,
                Estimator::Cubic(controller) => {
                    member.rate = controller.cubic.window() * payload / rtt;
                }
                // All losses of a single member are shared ones.
                Estimator::History(history) if count == 1 => {
                    history.congestion = None;
                    member.rate = f64::INFINITY;
                }
                Estimator::History(history) => {
                    let sample = history
                        .intervals
                        .sample(self.sent.ordinal(member.reported_to));
                    let loss = self.population.estimate(sample);
                    let mut rate = response(loss, rtt) * payload;
                    if let Some(own) = &history.congestion {
                        let own = own.controller.cubic.window() * payload / rtt;
                        if own > self.rate * RECOVERED {
                            history.congestion = None;
                        } else {
                            rate = rate.min(own);
                        }
                    }
                    member.rate = rate;
                }
            }
            if member.counts {
                slowest.update(*id, member.rate);
            }
        }
        self.slowest = slowest;
    }
}
