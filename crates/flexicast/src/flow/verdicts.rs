//! Verdicts on members from acknowledgements and timers: losses to repair, members that leave.

use std::time::Instant;

use super::checks::MemberTimer;
use super::member::Resolution;
use super::pacer::BreakerState;
use super::sender::{AckError, FlowEvent, FlowSender, MemberId};
use crate::Cause;
use crate::ack::PathAck;
use crate::ecn::Acknowledged;
use crate::rate::RateEvent;

impl FlowSender {
    /// Whether no packet had this number, so that one that did arrive was forged.
    pub(crate) fn was_never_sent(&self, pn: u64) -> bool {
        pn >= self.next_pn() || self.ledger.was_skipped(pn)
    }

    /// Takes an acknowledgement. One from a receiver that is no member, or for a path by which it
    /// is none, is ignored: it was under way at the cut.
    pub fn on_ack(&mut self, id: MemberId, ack: &PathAck, now: Instant) -> Result<(), AckError> {
        let next = self.next_pn();
        let was_never_sent = self.was_never_sent(ack.largest());
        self.expect_symbols(now);
        let Some(member) = self
            .members
            .get_mut(&id)
            .filter(|m| m.acknowledges(ack.path))
        else {
            return Ok(());
        };
        if was_never_sent {
            return Err(AckError::Unsent {
                pn: ack.largest(),
                next,
            });
        }
        let mut settled = Resolution::default();
        let is_newest = member.on_ack(ack, &self.delays, &mut self.ledger, now, &mut settled);
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
        self.pings.note_member(&member.rtt, self.delays.ack, now);
        let checked = member.check(&self.delays, &mut self.ledger, now, &mut settled);
        let next = match checked.fall_back {
            // Members are judged when everything that has come is read.
            Some(_) => MemberTimer {
                at: Some(now),
                ..checked.next
            },
            None => checked.next,
        };
        self.checks.replace(id, &mut member.timer, next);
        self.resolve(id, settled, now);
        self.note_missing(id, ack.largest(), now);
        if marked > 0 {
            self.stats.ce += marked;
            self.pacer.on_marked(id, marked, ack.largest(), now);
        }
        self.follow_rate_control();
        self.follow_sizes(now);
        Ok(())
    }

    /// Checks the members whose timers are due.
    pub(super) fn check_members(&mut self, now: Instant) {
        self.expect_symbols(now);
        for id in self.checks.take_due(now) {
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            let mut settled = Resolution::default();
            let checked = member.check(&self.delays, &mut self.ledger, now, &mut settled);
            self.checks.replace(id, &mut member.timer, checked.next);
            let fall_back = checked.fall_back;
            #[cfg(feature = "fault-injection")]
            let fall_back = fall_back.filter(|_| !self.fall_back_off);
            self.resolve(id, settled, now);
            if let Some(cause) = fall_back {
                self.drop_member(id, cause);
            }
        }
    }

    /// Follows what was found out about a member's packets.
    fn resolve(&mut self, id: MemberId, mut settled: Resolution, now: Instant) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        self.stats.rebuilt += settled.rebuilt;
        let rebuilds = member.rebuilds;
        let (rtt, size) = (member.rtt.smoothed(), &mut member.size);
        self.pmtu
            .on_resolution(id, size, &mut settled, &self.ledger);
        member.ignore_losses(&settled.oversized);
        self.repair(id, &settled);
        self.ledger.sweep();
        if self.ledger.len() == 0 {
            self.checks.note_settled();
        }
        self.pacer.on_resolution(id, &settled, rtt, now);
        let loses = rebuilds && !settled.lost.is_empty();
        if let Some(fec) = self.fec.as_mut().filter(|_| loses) {
            fec.demand().on_loss(now);
        }
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
        if let Some(fec) = &mut self.fec {
            fec.clear();
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::flow::{FlowConfig, RateControl};
    use crate::protect::FlowSecret;
    use crate::range::RangeSet;
    use crate::{EcnCounts, FlowId, PathId, Rung};

    const MS: Duration = Duration::from_millis(1);
    const MEMBERS: u64 = 300;
    const RTT: u32 = 20;

    fn path() -> PathId {
        PathId::new(1, Rung::Multicast)
    }

    fn config() -> FlowConfig {
        FlowConfig::new(FlowId([1; 8]), FlowSecret::from([1; 32]))
    }

    fn ack(received: &RangeSet, delay: Duration) -> PathAck {
        PathAck {
            path: path(),
            delay,
            ranges: received.iter().rev().cloned().collect(),
            ecn: None,
            rebuilt: Vec::new(),
        }
    }

    /// The work of many members is that of their acknowledgements: no timer of theirs is due while
    /// each acknowledges once in 30 ms, whatever the others do.
    #[test]
    fn members_that_acknowledge_in_time_are_not_looked_at() {
        let start = Instant::now();
        let mut flow = FlowSender::new(config()).unwrap();
        flow.set_listeners(MEMBERS as usize, start);
        for id in 0..MEMBERS {
            flow.admit(id, path(), MS * RTT, 1, start);
        }
        let (mut packet, mut sent, mut looks) = (Vec::new(), Vec::new(), 0);
        for tick in 0..2000 {
            let now = start + MS * tick;
            if tick % 10 == 0 {
                flow.push(u64::from(tick / 10) + 1, Bytes::from_static(&[7; 900]));
            }
            looks += u32::from(flow.checks.next_timeout().is_some_and(|at| at <= now));
            flow.handle_timeout(now);
            while flow.poll_transmit(now, &mut packet) {
                sent.push(tick);
            }
            let mut received = RangeSet::new();
            received.insert(0..sent.partition_point(|at| at + RTT <= tick) as u64);
            let Some(last) = received.max() else {
                continue;
            };
            let ack = ack(&received, MS * (tick - RTT - sent[last as usize]));
            for id in (0..MEMBERS).filter(|id| (u64::from(tick) + id).is_multiple_of(30)) {
                flow.on_ack(id, &ack, now).unwrap();
            }
        }
        assert!(sent.len() >= 200 && flow.members() == MEMBERS as usize);
        assert!(looks <= 2, "{looks} checks");
    }

    /// Full packets of which rate control did not learn that a newcomer lost them take none of its
    /// losses back when they arrive after all.
    #[test]
    fn losses_that_rate_control_does_not_know_are_not_taken_back() {
        let mut now = Instant::now();
        let config = FlowConfig {
            max_udp_payload: 1_472,
            control: RateControl::fixed(),
            ..config()
        };
        let mut flow = FlowSender::new(config).unwrap();
        flow.set_listeners(2, now);
        flow.admit(1, path(), MS * RTT, 1, now);
        let (mut seq, mut packet) = (0, Vec::new());
        let (mut all, mut small, mut late) = (RangeSet::new(), RangeSet::new(), RangeSet::new());
        let mut large = 0;
        for step in 0..150 {
            if step == 100 {
                assert_eq!(flow.packet_size().bytes, 1_472);
                flow.admit(2, path(), MS * RTT, 1, now);
            }
            seq += 1;
            let len = if step == 110 { 6_000 } else { 100 };
            flow.push(seq, Bytes::from(vec![7; len]));
            flow.handle_timeout(now);
            while flow.poll_transmit(now, &mut packet) {
                let pn = flow.next_pn() - 1;
                all.insert_one(pn);
                let is_large = packet.len() > 1_400;
                large += u32::from(is_large && step == 110);
                if is_large {
                    late.insert_one(pn);
                } else if ![120, 122, 124].contains(&step) {
                    small.insert_one(pn);
                }
            }
            now += MS * RTT;
            flow.on_ack(1, &ack(&all, Duration::ZERO), now).unwrap();
            if step >= 100 {
                flow.on_ack(2, &ack(&small, Duration::ZERO), now).unwrap();
            }
        }
        let loss = flow.pacer.member_loss(2);
        assert!(large == 4 && loss > 0.0 && flow.packet_size().bytes == 1_472);
        flow.on_ack(2, &ack(&late, Duration::ZERO), now).unwrap();
        assert_eq!(flow.pacer.member_loss(2), loss);
    }

    /// Packets that end earlier for a symbol on connections say nothing about the size of packets;
    /// those that leave a little room for one on the flow may be lost by it.
    #[test]
    fn packets_cut_for_symbols_on_connections_are_short() {
        for (policy, full) in [("tail", 3..=5), ("tail,unicast", 0..=0)] {
            let mut now = Instant::now();
            let config = FlowConfig {
                udp_payload: 1_472,
                max_udp_payload: 1_472,
                control: RateControl::fixed(),
                fec: Some(policy.parse().unwrap()),
                ..config()
            };
            let mut flow = FlowSender::new(config).unwrap();
            flow.set_listeners(1, now);
            flow.admit(1, path(), MS * RTT, 1, now);
            flow.set_rebuilding(1);
            let (mut packet, mut all) = (Vec::new(), RangeSet::new());
            for (seq, len) in [(1, 100), (2, 6_000)] {
                let begin = flow.next_pn();
                flow.push(seq, Bytes::from(vec![7; len]));
                while flow.poll_transmit(now, &mut packet) {
                    all.insert_one(flow.next_pn() - 1);
                }
                let sent = begin..flow.next_pn();
                let is_full = flow.ledger.full_in(sent.clone());
                assert_eq!(flow.ledger.proving_in(sent), 0, "{policy}");
                assert!(seq == 1 || full.contains(&is_full), "{policy}: {is_full}");
                now += MS * RTT;
                flow.on_ack(1, &ack(&all, Duration::ZERO), now).unwrap();
            }
        }
    }

    /// A flow with a member that has acknowledged 20 packets, each after 1 ms; returns the time.
    fn with_quick_member() -> (FlowSender, Instant) {
        let mut now = Instant::now();
        let config = FlowConfig {
            fall_back: MS * 1500,
            ..config()
        };
        let mut flow = FlowSender::new(config).unwrap();
        flow.set_listeners(1, now);
        flow.admit(1, path(), MS, 1, now);
        for seq in 1..=20 {
            send(&mut flow, seq, now);
            now += MS;
            flow.on_ack(1, &acked(seq, 0), now).unwrap();
        }
        (flow, now)
    }

    /// Sends an update in a packet of its own.
    fn send(flow: &mut FlowSender, seq: u64, now: Instant) {
        flow.push(seq, Bytes::from_static(b"update"));
        assert!(flow.poll_transmit(now, &mut Vec::new()));
    }

    /// An acknowledgement of the first packets, which came with ECT(0) but for some with CE.
    fn acked(packets: u64, ce: u64) -> PathAck {
        PathAck {
            path: path(),
            delay: Duration::ZERO,
            ranges: std::iter::once(0..packets).collect(),
            ecn: Some(EcnCounts {
                ect0: packets - ce,
                ect1: 0,
                ce,
            }),
            rebuilt: Vec::new(),
        }
    }

    /// Whether the flow has something repaired by `now`.
    fn repairs(flow: &mut FlowSender, now: Instant) -> bool {
        flow.handle_timeout(now);
        let mut events = std::iter::from_fn(|| flow.poll_event());
        events.any(|event| matches!(event, FlowEvent::Repair { .. }))
    }

    /// The longest time that a member may take: two delays of 25 ms with their jitter, the first of
    /// an acknowledgement that is lost, and a round trip.
    #[test]
    fn one_lost_acknowledgement_repairs_nothing() {
        let (mut flow, now) = with_quick_member();
        send(&mut flow, 21, now);
        let second_ack = MS * 64;
        assert!(!repairs(&mut flow, now + second_ack));
        assert!(repairs(&mut flow, now + second_ack + MS * 10), "two are");
    }

    #[test]
    fn late_acknowledgements_of_a_repaired_tail_count_in_their_order() {
        let (mut flow, now) = with_quick_member();
        (21..=30).for_each(|seq| send(&mut flow, seq, now));
        assert!(repairs(&mut flow, now + MS * 100));
        for packets in [30, 25] {
            let ack = acked(packets, 0);
            flow.on_ack(1, &ack, now + MS * 110).unwrap();
        }
        assert_eq!(flow.member(1).and_then(|(_, largest)| largest), Some(29));
        send(&mut flow, 31, now + MS * 120);
        flow.on_ack(1, &acked(31, 1), now + MS * 130).unwrap();
        assert_eq!(flow.stats().ce, 1, "the member is still believed");
    }

    /// The PING after a train comes as after one packet, and after one that the first member of the
    /// flow joins between two packets.
    #[test]
    fn a_train_is_probed_once_and_for_all_its_members() {
        let (mut flow, now) = with_quick_member();
        send(&mut flow, 21, now);
        let after_one = flow.ping_at();
        (22..=30).for_each(|seq| send(&mut flow, seq, now));
        assert!(after_one.is_some_and(|at| at < now + MS * 100));
        assert_eq!(flow.ping_at(), after_one);
        send(&mut flow, 31, now + MS);
        assert!(flow.ping_at() > after_one, "restarted by each packet");

        let now = now + MS * 2;
        flow.dismiss(1);
        send(&mut flow, 32, now);
        let unheard = flow.ping_at();
        flow.admit(2, path(), MS, 1, now);
        send(&mut flow, 33, now);
        assert!(flow.ping_at() < unheard, "for the newcomer");
    }
}
