//! Path MTU discovery of a flow (RFC 8899, protocol.md section 8.9): full packets are as large as
//! all members take.
//!
//! A probe is a packet of PING and PADDING in the size that is tried. Its loss needs no repair and
//! is no sign of congestion. A size is taken once every member has acknowledged a packet of it; one
//! that a member does not take is tried again when that member has left, or after
//! [`RAISE_TIMER`]. A member that loses full packets only, and a newcomer that does not take them,
//! bring the flow back to its base size, from which the search starts again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::ledger::{Fill, Ledger};
use super::member::{Member, Resolution};
use super::sender::{FlowSender, MemberId};
use crate::frame;
use crate::protect::{BLOCK_LEN, HEADER_LEN, OVERHEAD};
use crate::range::append;

/// Probes that a member leaves unacknowledged before it is taken not to get the size; full packets
/// that it loses in a row before its path is taken to have become narrower (RFC 8899 section
/// 5.1.2). The RFC's 3 is for one receiver: of many, one loses three by accident.
const MAX_PROBES: u8 = 5;
/// Time for acknowledgements of a probe before the next one (RFC 8899 section 5.1.1).
const PROBE_TIMER: Duration = Duration::from_secs(1);
/// Time between a probe and the next one that need not wait for acknowledgements, for another size
/// or a newcomer.
const PROBE_GAP: Duration = Duration::from_millis(100);
/// Time after which a size that failed is tried again (RFC 8899 section 5.1.1).
const RAISE_TIMER: Duration = Duration::from_secs(600);
/// UDP payloads that are tried, besides the largest: IPv6 at its minimum MTU; Ethernet in an AMT
/// tunnel, IPv6 in IPv6 and IPv4 in IPv4; Ethernet without a tunnel; the same with jumbo frames.
const CANDIDATES: [usize; 6] = [1_232, 1_402, 1_442, 1_472, 8_902, 8_952];

/// Size of a flow's packets at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketSize {
    /// UDP payload of a full packet in bytes, at most.
    pub bytes: usize,
    /// Members that did not take the next larger size.
    pub narrow: usize,
}

/// A member's path, as far as sizes are concerned.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MemberSize {
    /// Largest size of which it acknowledged a packet, where that is more than the base.
    confirmed: usize,
    /// End of the newest range with a full packet that it acknowledged: what it lost before is no
    /// sign of a narrow path.
    acked: u64,
    /// Full packets that it lost behind that.
    lost: u64,
    /// The same of packets that are not reduced: only these show that the path takes the size.
    proved: u64,
    /// Packets that are not reduced that it lost behind those.
    unproved: u64,
}

/// Probing of one size.
#[derive(Debug)]
struct Probing {
    size: usize,
    /// Members that have not acknowledged the size, with the number of probes that they missed or
    /// may yet acknowledge.
    waiting: BTreeMap<MemberId, u8>,
    /// Numbers of the probes.
    sent: BTreeSet<u64>,
    /// When the next probe goes, or the size fails.
    at: Instant,
}

/// A size that failed.
#[derive(Debug)]
struct Ceiling {
    size: usize,
    /// Members that did not take it.
    narrow: BTreeSet<MemberId>,
    /// When it is tried again.
    until: Instant,
}

/// Path MTU discovery of a flow. In the words of RFC 8899: `BASE` without members, `SEARCHING` with
/// `probing`, and otherwise `SEARCH_COMPLETE`. There is no `ERROR`: a member that does not take the
/// base size is repaired by unicast, or evicted for its losses.
#[derive(Debug)]
pub(super) struct Pmtu {
    base: usize,
    max: usize,
    /// Bytes behind each packet that are not its own.
    trailer: usize,
    /// UDP payload of full packets.
    size: usize,
    /// Size that [`Pmtu::apply`] returned last, and the first packet number with it.
    applied: (usize, u64),
    probing: Option<Probing>,
    ceiling: Option<Ceiling>,
    /// When the last probe was sent.
    probed: Option<Instant>,
    /// Whether something has changed that decides what is to be tried.
    changed: bool,
    /// Whether sizes are taken without an acknowledgement.
    #[cfg(feature = "fault-injection")]
    unconfirmed: bool,
}

impl Pmtu {
    /// Discovery of sizes above `base` up to `max`; `max` of no more than `base` switches it off.
    /// `trailer` bytes of each size are left free.
    pub(super) fn new(base: usize, max: usize, trailer: usize) -> Self {
        Pmtu {
            base,
            max: max.max(base),
            trailer,
            size: base,
            applied: (base, 0),
            probing: None,
            ceiling: None,
            probed: None,
            changed: false,
            #[cfg(feature = "fault-injection")]
            unconfirmed: false,
        }
    }

    fn is_enabled(&self) -> bool {
        self.max > self.base
    }

    /// Returns where the frames of a full packet end.
    pub(super) fn frame_limit(&self) -> usize {
        self.limit_of(self.size)
    }

    /// Returns where the frames of a packet of this size end.
    pub(super) fn limit_of(&self, size: usize) -> usize {
        let frames = size.saturating_sub(self.trailer + OVERHEAD);
        HEADER_LEN + frames / BLOCK_LEN * BLOCK_LEN
    }

    /// Returns how full a packet is whose frames end at `end`, and at `limit` at most.
    pub(super) fn fill(&self, end: usize, limit: usize) -> Fill {
        let is_at = |limit: usize| end + 2 * BLOCK_LEN > limit;
        match (is_at(self.frame_limit()), is_at(limit)) {
            (true, _) => Fill::Full,
            (false, true) => Fill::Reduced,
            (false, false) => Fill::Short,
        }
    }

    /// Returns the next size to try after `size` that makes packets longer.
    fn candidate(&self, size: usize) -> Option<usize> {
        let mut all = CANDIDATES.into_iter().chain([self.max]);
        all.find(|next| *next <= self.max && self.limit_of(*next) > self.limit_of(size))
    }

    fn status(&self) -> PacketSize {
        PacketSize {
            bytes: self.size,
            narrow: self.ceiling.as_ref().map_or(0, |c| c.narrow.len()),
        }
    }

    /// Adds a member that has not acknowledged any size.
    fn admit(&mut self, member: MemberId) {
        if let Some(probing) = &mut self.probing {
            probing.waiting.insert(member, 0);
        }
        self.changed = self.is_enabled();
    }

    fn remove(&mut self, member: MemberId) {
        if let Some(probing) = &mut self.probing {
            probing.waiting.remove(&member);
        }
        let is_last =
            |ceiling: &mut Ceiling| ceiling.narrow.remove(&member) && ceiling.narrow.is_empty();
        if self.ceiling.as_mut().is_some_and(is_last) {
            self.ceiling = None;
        }
        self.changed = self.is_enabled();
    }

    /// Takes what a member acknowledged and lost. Moves from `settled.lost` to `settled.oversized`
    /// what a newcomer lost because it does not take the flow's size: no sign of congestion.
    pub(super) fn on_resolution(
        &mut self,
        id: MemberId,
        member: &mut MemberSize,
        settled: &mut Resolution,
        ledger: &Ledger,
    ) {
        if let Some(probing) = &mut self.probing
            && member.confirmed < probing.size
            && probing.is_confirmed_by(&settled.acked)
        {
            (member.confirmed, member.lost) = (probing.size, 0);
            probing.waiting.remove(&id);
            self.changed = true;
        }
        if self.size <= self.base {
            return;
        }
        let from = self.applied.1;
        let full = |range: &Range<u64>, from: u64| {
            let range = range.start.max(from)..range.end;
            let repaired = settled.full.iter().map(|full| {
                let end = full.end.min(range.end);
                end.saturating_sub(full.start.max(range.start))
            });
            ledger.full_in(range.clone()) + repaired.sum::<u64>()
        };
        // Only one as long as the path is to take shows that it does.
        let proves = |range: &&Range<u64>| {
            let range = range.start.max(from)..range.end;
            let is_in = |full: &Range<u64>| full.start < range.end && range.start < full.end;
            ledger.proving_in(range.clone()) > 0 || settled.full.iter().any(is_in)
        };
        let proved = settled.acked.iter().filter(proves);
        let proved = proved.map(|range| range.end).max();
        member.proved = member.proved.max(proved.unwrap_or(0));
        let acked = settled.acked.iter().filter(|range| full(range, from) > 0);
        let acked = acked.map(|range| range.end).max();
        member.acked = member.acked.max(acked.unwrap_or(0));
        let is_settled = settled.lost.is_empty() && (member.lost, member.unproved) == (0, 0);
        if is_settled && member.confirmed >= self.size {
            return;
        }
        if proved.is_some() {
            member.unproved = 0;
            if member.confirmed < self.size {
                member.confirmed = self.size;
                let probing = self.probing.as_mut().filter(|p| p.size == self.size);
                self.changed |= probing.is_some_and(|p| p.waiting.remove(&id).is_some());
            }
        } else {
            let behind = from.max(member.proved);
            let after = |range: &Range<u64>| range.start.max(behind)..range.end;
            let lost = settled
                .lost
                .iter()
                .map(|range| ledger.proving_in(after(range)));
            member.unproved += lost.sum::<u64>();
        }
        if acked.is_some() {
            member.lost = 0;
            if member.unproved < u64::from(MAX_PROBES) {
                return;
            }
        }
        let behind = from.max(member.acked);
        let lost: u64 = settled.lost.iter().map(|range| full(range, behind)).sum();
        member.lost += lost;
        if member.confirmed < self.size && lost > 0 {
            let is_full = |pn| full(&(pn..pn + 1), from) > 0;
            let all = std::mem::take(&mut settled.lost);
            for pn in all.into_iter().flatten() {
                match is_full(pn) {
                    true => append(&mut settled.oversized, pn),
                    false => append(&mut settled.lost, pn),
                }
            }
        }
        if member.lost.max(member.unproved) >= u64::from(MAX_PROBES) {
            *member = MemberSize::default();
            self.return_to_base();
        }
    }

    /// Goes on with packets that every path takes, and searches again from there.
    fn return_to_base(&mut self) {
        self.size = self.base;
        (self.probing, self.ceiling) = (None, None);
        self.changed = true;
    }

    /// Decides what is tried next, if something has changed.
    fn step(&mut self, members: &BTreeMap<MemberId, Member>, now: Instant) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        if members.is_empty() {
            self.return_to_base();
            self.changed = false;
            return;
        }
        while self.probing.as_ref().is_none_or(|p| p.waiting.is_empty()) {
            if let Some(done) = self.probing.take() {
                self.size = self.size.max(done.size);
            }
            let without = |size: usize| -> BTreeMap<MemberId, u8> {
                let missing = members.iter().filter(|(_, m)| m.size.confirmed < size);
                missing.map(|(id, _)| (*id, 0)).collect()
            };
            let newcomers = match self.size > self.base {
                true => without(self.size),
                false => BTreeMap::new(),
            };
            let failed = self.ceiling.as_ref().map_or(usize::MAX, |c| c.size);
            let next = self.candidate(self.size).filter(|next| *next < failed);
            let (size, waiting) = match next {
                _ if !newcomers.is_empty() => (self.size, newcomers),
                Some(next) => (next, without(next)),
                None => return,
            };
            self.probing = Some(Probing {
                size,
                waiting,
                sent: BTreeSet::new(),
                at: self.probed.map_or(now, |at| (at + PROBE_GAP).max(now)),
            });
        }
    }

    /// Returns the size if it has changed; `next_pn` is the first packet number with it.
    fn apply(&mut self, next_pn: u64) -> Option<usize> {
        if self.size == self.applied.0 {
            return None;
        }
        self.applied = (self.size, next_pn);
        Some(self.size)
    }

    /// Returns the size of the probe that is due.
    pub(super) fn due_probe(&self, now: Instant) -> Option<usize> {
        let at = self.probe_at()?;
        let size = self.probing.as_ref()?.size;
        (at <= now).then_some(size)
    }

    /// Returns when a probe is due.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        let probing = self.probing.as_ref()?;
        (!probing.waiting.is_empty() && !probing.has_failed()).then_some(probing.at)
    }

    /// Postpones the next probe.
    fn postpone(&mut self, at: Instant) {
        if let Some(probing) = &mut self.probing {
            probing.at = at;
        }
    }

    /// Notes a probe that was sent.
    pub(super) fn note_probe(&mut self, pn: u64, now: Instant) {
        self.probed = Some(now);
        let Some(probing) = &mut self.probing else {
            return;
        };
        probing.sent.insert(pn);
        probing.at = now + PROBE_TIMER;
        for probes in probing.waiting.values_mut() {
            *probes += 1;
        }
        // Older ones were acknowledged long ago, or never will be.
        if probing.sent.len() > usize::from(MAX_PROBES) * 2 {
            probing.sent.pop_first();
        }
        #[cfg(feature = "fault-injection")]
        if self.unconfirmed {
            probing.waiting.clear();
            self.changed = true;
        }
    }

    /// Returns when [`Pmtu::handle_timeout`] has something to do.
    fn next_timeout(&self, now: Instant) -> Option<Instant> {
        if self.changed {
            return Some(now);
        }
        let failing = self.probing.as_ref().filter(|p| p.has_failed());
        let raise = self.ceiling.as_ref().map(|ceiling| ceiling.until);
        [failing.map(|p| p.at), raise].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.ceiling.as_ref().is_some_and(|c| c.until <= now) {
            self.ceiling = None;
            self.changed = true;
        }
        let failed = |probing: &mut Probing| probing.at <= now && probing.has_failed();
        let Some(probing) = self.probing.take_if(failed) else {
            return;
        };
        self.changed = true;
        if probing.size > self.size {
            self.ceiling = Some(Ceiling {
                size: probing.size,
                narrow: probing
                    .waiting
                    .into_iter()
                    .filter(|(_, probes)| *probes >= MAX_PROBES)
                    .map(|(id, _)| id)
                    .collect(),
                until: now + RAISE_TIMER,
            });
        } else {
            // A newcomer does not take the present size.
            self.return_to_base();
        }
    }
}

impl Probing {
    fn is_confirmed_by(&self, acked: &[Range<u64>]) -> bool {
        let mut ranges = acked.iter();
        ranges.any(|range| self.sent.range(range.clone()).next().is_some())
    }

    /// Whether a member has missed all the probes that it gets, once the last one's time is over.
    fn has_failed(&self) -> bool {
        self.waiting.values().any(|probes| *probes >= MAX_PROBES)
    }
}

impl FlowSender {
    /// Returns the size of its packets.
    pub fn packet_size(&self) -> PacketSize {
        self.pmtu.status()
    }

    /// Takes sizes without an acknowledgement, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_sizes_unconfirmed(&mut self, unconfirmed: bool) {
        self.pmtu.unconfirmed = unconfirmed;
    }

    /// Starts a member with packets that it has to prove.
    pub(super) fn admit_to_sizes(&mut self, member: MemberId, now: Instant) {
        self.pmtu.remove(member);
        self.pmtu.admit(member);
        self.follow_sizes(now);
    }

    /// Forgets a member that may have held the size down.
    pub(super) fn remove_from_sizes(&mut self, member: MemberId) {
        self.pmtu.remove(member);
    }

    /// Sends packets of the size that all members take from now on.
    pub(super) fn follow_sizes(&mut self, now: Instant) {
        self.pmtu.step(&self.members, now);
        if let Some(bytes) = self.pmtu.apply(self.ledger.next_pn()) {
            self.pacer.set_udp_payload(bytes, now);
        }
    }

    /// Returns when the search goes on.
    pub(super) fn sizes_timeout(&self, now: Instant) -> Option<Instant> {
        self.pmtu.next_timeout(now)
    }

    /// Ends attempts that failed, and begins again what is worth another one.
    pub(super) fn check_sizes(&mut self, now: Instant) {
        self.pmtu.handle_timeout(now);
        self.follow_sizes(now);
    }

    /// Postpones a probe that is due and that the flow's rate does not allow now.
    pub(super) fn postpone_probe(&mut self, now: Instant) {
        if let Some(size) = self.pmtu.due_probe(now) {
            self.pmtu.postpone(self.pacer.probe_at(size, now));
        }
    }

    /// Fills a packet with a probe of this size.
    pub(super) fn put_probe(&self, out: &mut Vec<u8>, start: usize, size: usize) {
        frame::put_ping(out);
        out.resize(start + self.pmtu.limit_of(size), 0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]
    use super::*;
    use crate::flow::ledger::PacketContents;
    use crate::{PathId, Rung};

    const MS: Duration = Duration::from_millis(1);
    const LARGE: usize = 1_472;

    /// The members of a flow that has found [`LARGE`] to be what they take, except for the last
    /// one, and has sent ten full packets since.
    struct Bench {
        pmtu: Pmtu,
        members: BTreeMap<MemberId, Member>,
        ledger: Ledger,
        now: Instant,
    }

    impl Bench {
        fn new(members: u64) -> Self {
            let now = Instant::now();
            let mut bench = Bench {
                pmtu: Pmtu::new(1_180, LARGE, 0),
                members: BTreeMap::new(),
                ledger: Ledger::new(0),
                now,
            };
            (0..members - 1).for_each(|id| bench.admit(id));
            while bench.pmtu.due_probe(bench.now).is_some() {
                let pn = bench.probe();
                for id in 0..members - 1 {
                    bench.resolve(id, &[pn..pn + 1], &[]);
                }
                bench.now += PROBE_GAP;
            }
            assert_eq!(bench.pmtu.size, LARGE);
            bench.admit(members - 1);
            (0..10).for_each(|_| bench.push(true));
            bench
        }

        fn admit(&mut self, id: MemberId) {
            let path = PathId::new(1, Rung::Multicast);
            let new = Member::new(path, self.ledger.next_pn(), MS, 1, 0);
            self.members.insert(id, new);
            self.pmtu.admit(id);
            self.step();
        }

        fn push(&mut self, full: bool) {
            let fill = if full { Fill::Full } else { Fill::Short };
            self.push_filled(fill);
        }

        fn push_filled(&mut self, fill: Fill) {
            let members = self.members.len();
            self.ledger
                .push(self.now, PacketContents::Ping, members, fill);
        }

        fn probe(&mut self) -> u64 {
            let pn = self.ledger.next_pn();
            self.push(false);
            self.pmtu.note_probe(pn, self.now);
            pn
        }

        fn step(&mut self) {
            self.pmtu.step(&self.members, self.now);
            self.pmtu.apply(self.ledger.next_pn());
        }

        /// Returns what the member lost, without what it does not take.
        fn resolve(&mut self, id: MemberId, acked: &[Range<u64>], lost: &[Range<u64>]) -> u64 {
            let mut settled = Resolution {
                acked: acked.to_vec(),
                lost: lost.to_vec(),
                ..Resolution::default()
            };
            let member = self.members.get_mut(&id).unwrap();
            self.pmtu
                .on_resolution(id, &mut member.size, &mut settled, &self.ledger);
            self.step();
            settled
                .lost
                .iter()
                .map(|range| range.end - range.start)
                .sum()
        }
    }

    #[test]
    fn what_a_newcomer_does_not_take_is_no_congestion() {
        let mut bench = Bench::new(3);
        let next = bench.ledger.next_pn();
        let first = next - 10;
        bench.push(false);
        // A member that has proved the size loses as much: that may be congestion.
        assert_eq!(bench.resolve(0, &[], &[first..first + 4]), 4);
        assert_eq!(
            bench.resolve(2, &[], &[first..first + 4, next..next + 1]),
            1
        );
        assert_eq!(bench.pmtu.size, LARGE, "four may be lost by accident");
        assert_eq!(bench.resolve(2, &[], &[first + 4..first + 5]), 0);
        assert_eq!(bench.pmtu.size, 1_180);
        assert_eq!(bench.resolve(2, &[], &[first + 5..first + 6]), 1);
    }

    #[test]
    fn a_full_packet_that_arrived_ends_a_row_of_losses_and_proves_the_size() {
        let mut bench = Bench::new(3);
        let first = bench.ledger.next_pn() - 10;
        assert_eq!(bench.resolve(2, &[], &[first..first + 4]), 0);
        bench.resolve(2, &[first + 4..first + 5], &[]);
        assert!(bench.pmtu.probing.is_none(), "no probe is needed any more");
        assert_eq!(bench.resolve(2, &[], &[first + 5..first + 9]), 4);
        assert_eq!(bench.pmtu.size, LARGE);
    }

    /// Packets that leave room for a repair symbol arrive where full ones do not.
    #[test]
    fn reduced_packets_prove_no_size() {
        let mut bench = Bench::new(3);
        let mut first = bench.ledger.next_pn();
        for _ in 0..MAX_PROBES {
            bench.push_filled(Fill::Reduced);
            bench.push_filled(Fill::Full);
        }
        for lost in 1..=MAX_PROBES {
            let confirmed = bench.members[&2].size.confirmed;
            assert_eq!((bench.pmtu.size, confirmed), (LARGE, 0), "{lost} lost");
            bench.resolve(2, &[first..first + 1], &[first + 1..first + 2]);
            first += 2;
        }
        assert_eq!(bench.pmtu.size, 1_180);
    }

    #[test]
    fn sizes_that_make_no_longer_packets_are_left_out() {
        let next = |max, size| Pmtu::new(1_180, max, 0).candidate(size);
        assert_eq!(next(1_452, 1_402), Some(1_442));
        assert_eq!(next(1_452, 1_442), None, "the same whole blocks");
        assert_eq!(next(1_300, 1_232), Some(1_300));
        assert_eq!(next(8_972, 1_472), Some(8_902));
        assert_eq!(next(1_180, 1_180), None);
    }

    #[test]
    fn a_member_that_answers_no_probe_stops_the_search_and_frees_it_by_leaving() {
        let mut bench = Bench::new(3);
        for size in [LARGE, 1_232] {
            assert_eq!(bench.pmtu.size, if size == LARGE { LARGE } else { 1_180 });
            for _ in 0..MAX_PROBES {
                assert_eq!(bench.pmtu.due_probe(bench.now), Some(size));
                bench.probe();
                assert_eq!(bench.pmtu.due_probe(bench.now), None);
                bench.now += PROBE_TIMER;
            }
            assert_eq!(
                bench.pmtu.due_probe(bench.now),
                None,
                "time for the last one"
            );
            bench.pmtu.handle_timeout(bench.now);
            bench.step();
        }
        let status = |bench: &Bench| (bench.pmtu.status().bytes, bench.pmtu.status().narrow);
        assert_eq!(status(&bench), (1_180, 1));
        let raise = bench.pmtu.next_timeout(bench.now).unwrap();
        assert_eq!(raise, bench.now + RAISE_TIMER);
        bench.members.remove(&2);
        bench.pmtu.remove(2);
        bench.step();
        assert_eq!(status(&bench), (LARGE, 0), "the others have proved it");
    }
}
