//! One member of a flow: its round-trip time, its losses (RFC 9002 section 6.1), and how long it
//! has been silent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::checks::MemberTimer;
use super::grants::Grant;
use super::lag::Lag;
use super::ledger::{Ledger, StreamRange};
use super::pmtu::MemberSize;
use super::reordering::Reordering;
use super::tail::{RepairedPacket, RepairedTail};
use crate::ack::PathAck;
use crate::ecn::EcnValidation;
use crate::fec::{Expected, Served};
use crate::range::{RangeSet, append};
use crate::rtt::RttEstimator;
use crate::{Cause, PathId, Rung};

/// RFC 9002 section 6.1.1.
const PACKET_THRESHOLD: u64 = 3;
/// Missed heartbeats that mean the flow is gone.
const HEARTBEATS: u32 = 3;
/// Acknowledgements that may be lost one after the other, with the one that comes at last, where
/// their delay is longer than was asked for because there are many members. With the default delay,
/// the default of `D_fb` has as much room.
const GROWN_ACKS: u32 = 3;

/// The most time that a leg is waited for, however far behind it is said to be.
const MAX_LEG_LAG: Duration = Duration::from_millis(500);

/// By then members know an announced change, and acknowledgements delayed before have arrived.
const HEARD_BY: Duration = Duration::from_secs(3);

/// The delays that are the same for all members of a flow.
#[derive(Debug)]
pub(crate) struct Delays {
    pub(crate) ack: Duration,
    /// The one that was asked for: more members make it longer.
    base_ack: Duration,
    /// A shorter acknowledgement delay, and when it counts.
    lower_ack: Option<(Instant, Duration)>,
    pub(crate) fall_back: Duration,
    pub(crate) heartbeat: Duration,
    /// Whether reordering counts as loss.
    #[cfg(feature = "fault-injection")]
    pub(crate) reordering_off: bool,
    /// When the source itself was late.
    pub(crate) lag: Lag,
    /// Packets that repair symbols may still bring to members that rebuild.
    pub(crate) expected: Expected,
}

impl Delays {
    pub(crate) fn new(ack: Duration, fall_back: Duration, heartbeat: Duration) -> Self {
        Delays {
            ack,
            base_ack: ack,
            lower_ack: None,
            fall_back,
            heartbeat,
            #[cfg(feature = "fault-injection")]
            reordering_off: false,
            lag: Lag::default(),
            expected: Expected::default(),
        }
    }

    /// Returns the time since `sent`, without that in which the source was late.
    fn age(&self, sent: Instant, now: Instant) -> Duration {
        let age = now.saturating_duration_since(sent);
        age.saturating_sub(self.lag.within(sent, now))
    }

    /// Whether late packets are no lost ones, as they always are but for an injected fault.
    fn tolerates_reordering(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.reordering_off;
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    /// Sets the maximum acknowledgement delay.
    ///
    /// A longer delay counts at once, a shorter one only when the members know it: until then they
    /// delay as before.
    pub(crate) fn set_ack(&mut self, delay: Duration, now: Instant) {
        self.lower_ack = (delay < self.ack).then(|| (now + HEARD_BY, delay));
        self.ack = self.ack.max(delay);
    }

    /// Applies a shorter acknowledgement delay when it counts. Returns whether it does from now on.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        let lower = self.lower_ack.take_if(|(at, _)| *at <= now);
        if let Some((_, delay)) = lower {
            self.ack = delay;
        }
        lower.is_some()
    }
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) path: PathId,
    /// Time by which its legs differ, if it merges several.
    lag: Option<Duration>,
    pub(crate) rtt: RttEstimator,
    /// First packet number that it was to get.
    cut: u64,
    /// Everything below is acknowledged, settled, or from before the cut.
    low: u64,
    /// Packets above `low` that are acknowledged or settled.
    resolved: RangeSet,
    repaired: RepairedTail,
    /// Whether it rebuilds packets from repair symbols.
    pub(crate) rebuilds: bool,
    /// Which of the newest repair symbols it was sent.
    pub(super) served: Served,
    /// Lost packets that it still owes, because a repair symbol may bring them, and until when.
    awaited: BTreeMap<u64, Instant>,
    largest: Option<u64>,
    /// When the first data packet was sent that this member did not acknowledge although it was
    /// repaired meanwhile.
    silent_since: Option<Instant>,
    /// When it may find out about a loss.
    loss_at: Option<Instant>,
    /// Its next check.
    pub(crate) timer: MemberTimer,
    reordering: Reordering,
    pub(crate) ecn: EcnValidation,
    /// Packets of the flow sent before it became a member.
    pub(crate) sent_before: u64,
    /// Newest key epoch that the member confirmed.
    pub(crate) confirmed: u64,
    pub(crate) grant: Grant,
    pub(crate) size: MemberSize,
}

/// Result of checking a member's timers.
#[derive(Debug, Default)]
pub(crate) struct TimerCheck {
    /// Its next check, if it stays.
    pub(crate) next: MemberTimer,
    /// Cause for which it has to leave the flow.
    pub(crate) fall_back: Option<Cause>,
}

/// Outcome of an acknowledgement or a check for a member's packets.
#[derive(Debug, Default)]
pub(crate) struct Resolution {
    /// Packets newly acknowledged, in no particular order.
    pub(crate) acked: Vec<Range<u64>>,
    /// Packets newly found to be lost, ascending.
    pub(crate) lost: Vec<Range<u64>>,
    /// Full packets among these of which the ledger knows nothing any more, ascending.
    pub(crate) full: Vec<Range<u64>>,
    /// Lost packets that the member's path does not take, which is no sign of congestion: these are
    /// not among `lost`.
    pub(crate) oversized: Vec<Range<u64>>,
    /// Packets found to be lost earlier that arrived after all.
    pub(crate) spurious: Vec<u64>,
    /// Those of the lost packets that carried data.
    pub(crate) gaps: Vec<u64>,
    /// Data packets after which nothing was acknowledged in time, ascending.
    pub(crate) tail: Vec<u64>,
    /// Number of lost packets that it rebuilt.
    pub(crate) rebuilt: u64,
}

impl Resolution {
    /// Notes a packet of a repaired tail that is acknowledged or lost.
    fn note_full(&mut self, packet: RepairedPacket, ledger: &Ledger) {
        if packet.is_full && packet.pn < ledger.base() {
            append(&mut self.full, packet.pn);
        }
    }
}

/// Appends the stream ranges of a lost packet, joined with the last ones where they continue them,
/// or are part of the same update.
pub(crate) fn collect(lost: &mut Vec<StreamRange>, ranges: &[StreamRange]) {
    for range in ranges {
        while range.is_whole() && lost.last().is_some_and(|last| last.seq == range.seq) {
            lost.pop();
        }
        match lost.last_mut() {
            Some(last) if last.seq == range.seq && last.is_whole() => {}
            Some(last) if last.seq == range.seq && last.range.end == range.range.start => {
                last.range.end = range.range.end
            }
            _ => lost.push(range.clone()),
        }
    }
}

impl Member {
    /// A member from packet number `cut` on.
    pub(crate) fn new(
        path: PathId,
        cut: u64,
        initial_rtt: Duration,
        confirmed: u64,
        granted: u64,
    ) -> Self {
        Member {
            path,
            lag: None,
            rtt: RttEstimator::new(initial_rtt),
            cut,
            low: cut,
            resolved: RangeSet::new(),
            repaired: RepairedTail::default(),
            rebuilds: false,
            served: Served::default(),
            awaited: BTreeMap::new(),
            largest: None,
            silent_since: None,
            loss_at: None,
            timer: MemberTimer::default(),
            reordering: Reordering::default(),
            ecn: EcnValidation::default(),
            sent_before: 0,
            confirmed,
            grant: Grant::new(granted),
            size: MemberSize::default(),
        }
    }

    /// Follows the legs of a member that merges them: what one of them lacks, another may bring
    /// `lag` later.
    pub(super) fn set_legs(&mut self, path: PathId, lag: Duration) {
        self.path = path;
        self.lag = Some(lag.min(MAX_LEG_LAG));
    }

    /// Whether acknowledgements for this path are the member's.
    pub(super) fn acknowledges(&self, path: PathId) -> bool {
        let is_leg = |path: PathId| matches!(path.rung(), Some(Rung::Multicast | Rung::Amt));
        let same_flow = self.path.flow_index() == path.flow_index();
        let merges = self.lag.is_some() && same_flow && is_leg(self.path) && is_leg(path);
        self.path == path || merges
    }

    /// Returns the time for which what one leg lacks is waited for.
    fn leg_lag(&self) -> Duration {
        self.lag.unwrap_or_default()
    }

    /// Ignores the losses of packets that its path does not take.
    pub(super) fn ignore_losses(&mut self, ranges: &[Range<u64>]) {
        ranges
            .iter()
            .for_each(|range| self.reordering.ignore(range));
    }

    /// Marks packet numbers that are never sent: no member owes them.
    pub(crate) fn skip(&mut self, range: Range<u64>, ledger: &mut Ledger) {
        self.resolve(range, ledger);
    }

    /// The largest packet number that it acknowledged.
    pub(crate) fn largest_acked(&self) -> Option<u64> {
        self.largest
    }

    /// Owes nothing of `range` any more. Calls `settled` with each part of it that was owed.
    fn resolve_with(
        &mut self,
        range: Range<u64>,
        ledger: &mut Ledger,
        mut settled: impl FnMut(Range<u64>),
    ) {
        let range = range.start.max(self.low)..range.end;
        self.resolved.insert_with(range, |new| {
            ledger.settle(new.clone());
            settled(new);
        });
        let contiguous = self
            .resolved
            .iter()
            .next()
            .filter(|first| first.start <= self.low)
            .map(|first| first.end);
        if let Some(end) = contiguous {
            self.low = end;
            self.resolved.remove_below(end);
        }
    }

    /// Owes nothing of `range` any more.
    fn resolve(&mut self, range: Range<u64>, ledger: &mut Ledger) {
        self.resolve_with(range, ledger, |_| {});
    }

    /// Takes an acknowledgement whose largest packet number was really sent. Adds what it settles
    /// to `out`. Returns whether it is newer than all before.
    pub(crate) fn on_ack(
        &mut self,
        ack: &PathAck,
        delays: &Delays,
        ledger: &mut Ledger,
        now: Instant,
        out: &mut Resolution,
    ) -> bool {
        let largest = ack.largest();
        let is_newest = largest >= self.cut && self.largest.is_none_or(|known| largest > known);
        let sent_at = || {
            let sent = ledger.get(largest).map(|sent| sent.at);
            sent.or_else(|| self.repaired.sent_at(largest))
        };
        if is_newest && let Some(sent) = sent_at() {
            // A claimed delay beyond what was asked for is not believed (RFC 9002 section 5.3).
            self.rtt.update(
                now.saturating_duration_since(sent),
                ack.delay.min(delays.ack * 2),
            );
        }
        let patience = self.rtt.smoothed() * 2 + delays.ack * 2;
        for range in ack.ranges.iter().rev() {
            self.forget_awaited(range, ledger);
            if delays.tolerates_reordering() {
                let late = &mut out.spurious;
                let took = |sent| delays.age(sent, now).min(patience);
                self.reordering.on_acked(range, took, |pn| late.push(pn));
            }
            self.resolve_with(range.clone(), ledger, |new| out.acked.push(new));
            for late in self.repaired.on_acked(range) {
                append(&mut out.acked, late.pn);
                out.note_full(late, ledger);
            }
        }
        if is_newest {
            self.largest = Some(largest);
            self.silent_since = None;
        }
        self.take_rebuilt(&ack.rebuilt, ledger, out);
        self.detect_loss(delays, ledger, now, out);
        is_newest
    }

    /// Lost packets that repair symbols may still bring.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = u64> {
        self.awaited.keys().copied()
    }

    /// Owes no packet of `range` that counted as lost and arrived after all.
    fn forget_awaited(&mut self, range: &Range<u64>, ledger: &mut Ledger) {
        while let Some((pn, _)) = self.awaited.range(range.clone()).next() {
            let pn = *pn;
            self.awaited.remove(&pn);
            self.resolve(pn..pn + 1, ledger);
        }
    }

    /// Takes packets that were rebuilt: they are owed no more, and lost to rate control all the
    /// same (RFC 9265 section 3).
    fn take_rebuilt(&mut self, ranges: &[Range<u64>], ledger: &mut Ledger, out: &mut Resolution) {
        let first = out.lost.len();
        let ranges = if self.rebuilds { ranges } else { &[] };
        for range in ranges.iter().rev() {
            let mut new = Vec::new();
            self.resolve_with(range.clone(), ledger, |range| new.push(range));
            for pn in new.into_iter().flatten() {
                let Some(sent) = ledger.get(pn) else { continue };
                out.rebuilt += 1;
                if self.awaited.remove(&pn).is_none() {
                    self.reordering.on_lost(pn, sent.at);
                    append(&mut out.lost, pn);
                }
            }
        }
        out.lost[first..].sort_unstable_by_key(|range| range.start);
    }

    /// Returns until when a lost packet waits for a repair symbol: the time in which one comes,
    /// on request or by itself, but never so long that a repair would be late, and then comes to
    /// show.
    fn awaits(&self, pn: u64, delays: &Delays, now: Instant) -> Option<Instant> {
        let is_expected = self.rebuilds && delays.expected.brings(pn, self.largest?, self.served);
        let comes_within = self.rtt.smoothed().max(delays.ack * 2);
        let comes_within = comes_within.min(delays.fall_back / 3);
        let patience = delays.ack * 5 / 4 + comes_within;
        is_expected.then(|| now + patience)
    }

    /// RFC 9002 section 6.1: what lies below the largest acknowledged packet and is late by three
    /// packets or by the time threshold is lost; by time alone where the path reorders.
    fn detect_loss(
        &mut self,
        delays: &Delays,
        ledger: &mut Ledger,
        now: Instant,
        out: &mut Resolution,
    ) {
        self.loss_at = None;
        let Some(largest) = self.largest else { return };
        let delay = self.reordering.loss_delay(self.rtt.loss_delay());
        // The slower leg's packet is acknowledged as late as any.
        let slower = self.lag.map(|lag| lag + delays.ack * 5 / 4);
        let delay = delay + slower.unwrap_or_default();
        let by_order = !self.reordering.is_usual() && self.lag.is_none();
        let due = |sent: Instant| sent + delay + delays.lag.within(sent, now);
        let mut settled = Vec::new();
        let gaps: Vec<_> = self.resolved.gaps(self.low..largest).collect();
        'gaps: for gap in gaps {
            // From here on all packets up to the present one are lost and settled.
            let mut from = gap.start;
            for pn in gap.clone() {
                let Some(sent) = ledger.get(pn) else { continue };
                if let Some(until) = self.awaited.get(&pn).copied() {
                    out.lost.extend((from < pn).then_some(from..pn));
                    settled.extend((from < pn).then_some(from..pn));
                    from = pn + 1;
                    if until > now && delays.expected.brings(pn, largest, self.served) {
                        self.note_loss_timer(until);
                        continue;
                    }
                    self.awaited.remove(&pn);
                    settled.push(pn..from);
                    out.gaps.push(pn);
                    continue;
                }
                let is_overtaken = by_order && ledger.sent_between(pn, largest) >= PACKET_THRESHOLD;
                let later = (!is_overtaken).then(|| due(sent.at)).filter(|at| *at > now);
                if let Some(later) = later {
                    self.note_loss_timer(later);
                    out.lost.extend((from < pn).then_some(from..pn));
                    settled.extend((from < pn).then_some(from..pn));
                    // Later packets were sent later and are nearer to the largest: none of them is
                    // lost either.
                    break 'gaps;
                }
                self.reordering.on_lost(pn, sent.at);
                if !sent.contents.is_data() {
                    continue;
                }
                let Some(until) = self.awaits(pn, delays, now) else {
                    out.gaps.push(pn);
                    continue;
                };
                self.awaited.insert(pn, until);
                self.note_loss_timer(until);
                out.lost.push(from..pn + 1);
                settled.extend((from < pn).then_some(from..pn));
                from = pn + 1;
            }
            if from < gap.end {
                out.lost.push(from..gap.end);
                settled.push(from..gap.end);
            }
        }
        for range in settled {
            self.resolve(range, ledger);
        }
        while let Some(at) = self.repaired.first_overtaken(largest).map(due) {
            if at > now {
                self.note_loss_timer(at);
                break;
            }
            if let Some(packet) = self.repaired.take_first() {
                self.reordering.on_lost(packet.pn, packet.sent);
                append(&mut out.lost, packet.pn);
                out.note_full(packet, ledger);
            }
        }
        out.lost.sort_unstable_by_key(|range| range.start);
    }

    fn note_loss_timer(&mut self, at: Instant) {
        self.loss_at = Some(self.loss_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Looks at the timers. `settled` gets what is lost, and what is repaired because it stayed
    /// unacknowledged.
    pub(crate) fn check(
        &mut self,
        delays: &Delays,
        ledger: &mut Ledger,
        now: Instant,
        settled: &mut Resolution,
    ) -> TimerCheck {
        if self.loss_at.is_some_and(|at| at <= now) {
            self.detect_loss(delays, ledger, now, settled);
        }
        let mut out = TimerCheck::default();
        out.next.at = self.loss_at;
        out.next.is_idle = true;
        let due = |next: &mut MemberTimer, at: Instant| {
            next.at = Some(next.at.map_or(at, |earlier| earlier.min(at)));
        };
        // With the jitter of the delay: one lost acknowledgement is no lost tail.
        let tail_delay = self.rtt.pto(delays.ack * 5 / 4) * 2 + self.leg_lag();
        let fall_back = self.fall_back_delay(delays);
        // Behind the largest acknowledged packet: nothing shows whether these are lost or the
        // acknowledgement is.
        let tail = self.largest.map_or(self.low, |l| (l + 1).max(self.low))..ledger.next_pn();
        let mut first_data = None;
        let mut first_any = None;
        let mut repaired: Vec<Range<u64>> = Vec::new();
        'tail: for gap in self.resolved.gaps(tail) {
            for pn in gap {
                let Some(sent) = ledger.get(pn) else { continue };
                first_any.get_or_insert(sent.at);
                if !sent.contents.is_data() {
                    continue;
                }
                first_data.get_or_insert(sent.at);
                let repair_at = sent.at + tail_delay + delays.lag.within(sent.at, now);
                if repair_at > now {
                    due(&mut out.next, repair_at);
                    out.next.is_idle = false;
                    break 'tail;
                }
                settled.tail.push(pn);
                self.repaired.push(RepairedPacket {
                    pn,
                    sent: sent.at,
                    is_full: ledger.proving_in(pn..pn + 1) > 0,
                });
                repaired.push(pn..pn + 1);
            }
        }
        let silent_since = [self.silent_since, first_data].into_iter().flatten().min();
        if let Some(since) = silent_since {
            let since = since + delays.lag.within(since, now);
            if since + fall_back <= now {
                out.fall_back = Some(Cause::AckTimeout);
            } else {
                due(&mut out.next, since + fall_back);
            }
        }
        if let Some(since) = first_any {
            let since = since + delays.lag.within(since, now);
            let silence = fall_back.max(delays.heartbeat * HEARTBEATS);
            if since + silence <= now {
                out.fall_back = out.fall_back.or(Some(Cause::HeartbeatLost));
            } else {
                due(&mut out.next, since + silence);
            }
        }
        if !repaired.is_empty() {
            self.silent_since = silent_since;
        }
        out.next.is_silent = self.silent_since.is_some();
        for range in repaired {
            self.resolve(range, ledger);
        }
        out
    }

    /// The lowest update of which it owes a packet.
    pub(crate) fn lowest_owed(&self, ledger: &Ledger) -> Option<u64> {
        let gaps = self.resolved.gaps(self.low..ledger.next_pn());
        let owed = gaps.flatten().filter_map(|pn| ledger.get(pn));
        // Updates are sent in order, but what many members missed is sent again later.
        owed.filter_map(|sent| Some(sent.contents.ranges().first()?.seq))
            .min()
    }

    /// `D_fb`: never below the acknowledgement delay (with its jitter) plus two round trips, or one
    /// and four times its variation; three such delays where many members have made it longer, or
    /// one lost acknowledgement would be taken for a lost flow.
    pub(crate) fn fall_back_delay(&self, delays: &Delays) -> Duration {
        let is_grown = delays.ack > delays.base_ack;
        let acks = if is_grown { GROWN_ACKS } else { 1 };
        let round_trips = (self.rtt.smoothed() * 2).max(self.rtt.pto(Duration::ZERO));
        let patience = delays.ack * acks * 5 / 4 + round_trips;
        delays.fall_back.max(patience) + self.leg_lag()
    }

    /// Everything that it still owes, as stream ranges; it owes nothing afterwards.
    pub(crate) fn leave(mut self, ledger: &mut Ledger) -> Vec<StreamRange> {
        let mut lost = Vec::new();
        let gaps: Vec<_> = self.resolved.gaps(self.low..ledger.next_pn()).collect();
        for gap in gaps {
            gap.clone()
                .filter_map(|pn| ledger.get(pn))
                .for_each(|sent| collect(&mut lost, sent.contents.ranges()));
            self.resolve(gap, ledger);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]
    use super::*;
    use crate::flow::ledger::{Fill, PacketContents};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn round_trips_that_vary_earn_patience() {
        let delays = Delays::new(24 * MS, 150 * MS, 1000 * MS);
        let mut member = Member::new(PathId::UNICAST, 0, 10 * MS, 0, 0);
        assert_eq!(member.fall_back_delay(&delays), 150 * MS);
        (0..100).for_each(|_| member.rtt.update(100 * MS, Duration::ZERO));
        let steady = member.fall_back_delay(&delays);
        assert!(steady >= 229 * MS && steady <= 231 * MS, "{steady:?}");
        for sample in [20, 180].into_iter().cycle().take(100) {
            member.rtt.update(sample * MS, Duration::ZERO);
        }
        let varied = member.fall_back_delay(&delays);
        assert!(varied >= 400 * MS && varied <= 500 * MS, "{varied:?}");
    }

    /// A member with a round trip of 20 ms, to which three packets are sent within 2 ms.
    fn with_three_packets(start: Instant) -> (Member, Ledger) {
        let mut member = Member::new(path(), 0, 20 * MS, 0, 0);
        (0..50).for_each(|_| member.rtt.update(20 * MS, Duration::ZERO));
        let mut ledger = Ledger::new(0);
        for at in 0..3 {
            ledger.push(start + MS * at, PacketContents::Ping, 1, Fill::Short);
        }
        (member, ledger)
    }

    fn path() -> PathId {
        PathId::new(1, Rung::Multicast)
    }

    fn ack(range: Range<u64>) -> PathAck {
        PathAck {
            path: path(),
            delay: Duration::ZERO,
            ranges: vec![range],
            ecn: None,
            rebuilt: Vec::new(),
        }
    }

    #[test]
    fn time_in_which_the_source_was_late_loses_no_packet() {
        for is_late in [true, false] {
            let start = Instant::now();
            let mut delays = Delays::new(24 * MS, 150 * MS, 1000 * MS);
            let (mut member, mut ledger) = with_three_packets(start);
            let mut out = Resolution::default();
            member.on_ack(&ack(1..3), &delays, &mut ledger, start + 22 * MS, &mut out);
            assert_eq!(out.lost, [], "the first packet may be late");
            let now = start + 60 * MS;
            if is_late {
                delays.lag.note(start + 22 * MS, now);
            }
            member.check(&delays, &mut ledger, now, &mut out);
            member.on_ack(&ack(0..3), &delays, &mut ledger, now + MS, &mut out);
            let lost = if is_late { vec![] } else { vec![0..1] };
            assert_eq!(out.lost, lost, "late {is_late}");
        }
    }

    #[test]
    fn time_in_which_the_source_was_late_teaches_no_patience() {
        let start = Instant::now();
        let mut delays = Delays::new(24 * MS, 150 * MS, 1000 * MS);
        let (mut member, mut ledger) = with_three_packets(start);
        let mut out = Resolution::default();
        member.on_ack(&ack(1..3), &delays, &mut ledger, start + 22 * MS, &mut out);
        member.check(&delays, &mut ledger, start + 30 * MS, &mut out);
        assert_eq!(out.lost, [0..1]);
        delays.lag.note(start + 31 * MS, start + 71 * MS);
        let now = start + 75 * MS;
        member.on_ack(&ack(0..3), &delays, &mut ledger, now, &mut out);
        assert_eq!(out.spurious, [0]);
        let patience = member.reordering.loss_delay(Duration::ZERO);
        assert_eq!(patience, 35 * MS);
    }

    #[test]
    fn what_becomes_of_a_repaired_tail_is_found_out() {
        let start = Instant::now();
        let delays = Delays::new(24 * MS, 1500 * MS, 1000 * MS);
        let (mut member, mut ledger) = with_three_packets(start);
        let mut out = Resolution::default();
        member.on_ack(&ack(0..3), &delays, &mut ledger, start + 22 * MS, &mut out);
        let update = |seq| StreamRange { seq, range: 0..9 };
        for seq in 3..7 {
            let contents = PacketContents::One(update(seq));
            let fill = if seq < 6 { Fill::Full } else { Fill::Short };
            ledger.push(start + 100 * MS, contents, 1, fill);
        }
        // The queue has grown so fast that all are repaired before they arrive.
        let mut out = Resolution::default();
        member.check(&delays, &mut ledger, start + 250 * MS, &mut out);
        ledger.sweep();
        assert_eq!((out.tail, ledger.len()), (vec![3, 4, 5, 6], 0));
        let (mut out, now) = (Resolution::default(), start + 500 * MS);
        assert!(member.on_ack(&ack(5..6), &delays, &mut ledger, now, &mut out));
        assert_eq!((out.acked, out.lost), (vec![5..6], vec![]), "a long way");
        assert_eq!(out.full, [5..6], "the ledger has forgotten it");
        assert!(member.rtt.smoothed() > 60 * MS);
        let (mut out, now) = (Resolution::default(), start + 600 * MS);
        assert!(!member.on_ack(&ack(4..5), &delays, &mut ledger, now, &mut out));
        assert_eq!((&out.acked[..], &out.lost[..]), (&[4..5][..], &[3..4][..]));
        assert!(out.gaps.is_empty(), "repaired already");
        let full: u64 = out.full.iter().map(|range| range.end - range.start).sum();
        assert_eq!(full, 2);
        assert_eq!(member.largest_acked(), Some(5));
    }
}
