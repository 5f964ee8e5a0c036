//! Record of sent packets: what a range of packet numbers amounts to, and which packets were lost
//! by a majority of the members.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// No acknowledgement is waited for longer: by then a silent member has left the flow.
const KEPT: Duration = Duration::from_secs(10);
/// Bound of the record in packets: at 1 Gbit/s more than a second.
const MAX_PACKETS: usize = 1 << 17;

/// A packet of the flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentPacket {
    pub(super) pn: u64,
    pub(super) at: Instant,
    /// Bytes sent before it.
    before: u64,
    /// Members when it was sent: all of them owe an acknowledgement.
    members: u32,
    /// Members that lost it.
    lost: u32,
}

/// Packets and bytes of a range of packet numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// The packets of the last seconds, in order. Packet numbers may be left out.
#[derive(Debug, Default)]
pub(super) struct SentLog {
    packets: VecDeque<SentPacket>,
    /// Packets that are no longer in the record.
    pruned: u64,
    bytes: u64,
}

impl SentLog {
    /// Adds a packet; one that is not above all before it is ignored.
    pub(super) fn push(&mut self, pn: u64, bytes: usize, members: usize, now: Instant) {
        if self.packets.back().is_some_and(|last| last.pn >= pn) {
            return;
        }
        if self.packets.len() == MAX_PACKETS {
            self.packets.pop_front();
            self.pruned += 1;
        }
        self.packets.push_back(SentPacket {
            pn,
            at: now,
            before: self.bytes,
            members: members.min(u32::MAX as usize) as u32,
            lost: 0,
        });
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Forgets packets whose acknowledgements are no longer waited for.
    pub(super) fn prune(&mut self, now: Instant) {
        while let Some(front) = self.packets.front()
            && now.saturating_duration_since(front.at) > KEPT
        {
            self.packets.pop_front();
            self.pruned += 1;
        }
    }

    /// Returns the number of recorded packets below `pn`.
    fn index(&self, pn: u64) -> usize {
        let Some(first) = self.packets.front() else {
            return 0;
        };
        // Mostly no number is left out.
        let guess = pn.saturating_sub(first.pn) as usize;
        match self.packets.get(guess) {
            Some(packet) if packet.pn == pn => guess,
            _ => self.packets.partition_point(|packet| packet.pn < pn),
        }
    }

    fn bytes_before(&self, index: usize) -> u64 {
        self.packets.get(index).map_or(self.bytes, |p| p.before)
    }

    /// Returns what was sent with these numbers, as far as it is recorded.
    pub(super) fn amount(&self, range: Range<u64>) -> Amount {
        if range.is_empty() {
            return Amount::default();
        }
        let (from, to) = (self.index(range.start), self.index(range.end));
        Amount {
            packets: (to - from) as u64,
            bytes: self.bytes_before(to) - self.bytes_before(from),
        }
    }

    /// Returns how many packets were sent before `pn`, ever.
    pub(super) fn ordinal(&self, pn: u64) -> u64 {
        self.pruned + self.index(pn) as u64
    }

    /// The first number that is larger than all that were sent.
    pub(super) fn next_pn(&self) -> u64 {
        self.packets.back().map_or(0, |last| last.pn + 1)
    }

    /// Packets sent since the beginning.
    pub(super) fn total(&self) -> Amount {
        Amount {
            packets: self.pruned + self.packets.len() as u64,
            bytes: self.bytes,
        }
    }

    /// The packet with this number.
    pub(super) fn get(&self, pn: u64) -> Option<&SentPacket> {
        let packet = self.packets.get(self.index(pn))?;
        (packet.pn == pn).then_some(packet)
    }

    /// The numbers of the recorded packets of a range, ascending.
    pub(super) fn numbers(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let (from, to) = (self.index(range.start), self.index(range.end));
        let packets = self.packets.range(from..to.max(from));
        packets.map(|packet| packet.pn)
    }

    /// The newest recorded packet up to this number.
    pub(super) fn newest_up_to(&self, pn: u64) -> Option<&SentPacket> {
        let index = self.index(pn.saturating_add(1)).checked_sub(1)?;
        self.packets.get(index)
    }

    /// Calls `lost` with each recorded packet of `range` after counting it as lost by one more
    /// member.
    pub(super) fn lose(&mut self, range: Range<u64>, mut lost: impl FnMut(&SentPacket)) {
        let (from, to) = (self.index(range.start), self.index(range.end));
        for packet in self.packets.range_mut(from..to.max(from)) {
            packet.lost = packet.lost.saturating_add(1);
            lost(packet);
        }
    }

    /// Takes back that a member lost a recorded packet; returns the packet as it was before.
    pub(super) fn take_back(&mut self, pn: u64) -> Option<SentPacket> {
        let index = self.index(pn);
        let packet = self.packets.get_mut(index).filter(|p| p.pn == pn)?;
        let before = *packet;
        packet.lost = packet.lost.saturating_sub(1);
        Some(before)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }
}

impl SentPacket {
    /// Whether more than half of its members, as far as they are still among the `members` of now,
    /// lost it.
    pub(super) fn is_lost_by_most(&self, members: usize) -> bool {
        self.lost as usize * 2 > members.min(self.members as usize)
    }

    /// Whether the last report made the packet one that most members lost.
    pub(super) fn has_just_become_shared(&self, members: usize) -> bool {
        let before = self.lost.saturating_sub(1) as usize * 2;
        self.is_lost_by_most(members) && before <= members.min(self.members as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_left_out_are_no_packets() {
        let now = Instant::now();
        let mut log = SentLog::default();
        (0..10).for_each(|pn| log.push(pn, 100, 1, now));
        (1000..1010).for_each(|pn| log.push(pn, 50, 1, now));
        log.push(1005, 50, 1, now);
        assert_eq!(
            log.amount(5..1005),
            Amount {
                packets: 10,
                bytes: 750
            }
        );
        assert_eq!((log.ordinal(1000), log.ordinal(500)), (10, 10));
        assert!(log.get(500).is_none() && log.get(1003).is_some());
        let newest = |pn| log.newest_up_to(pn).map(|packet| packet.pn);
        assert_eq!([3, 500, 1003].map(newest), [3, 9, 1003].map(Some));
        assert!(log.numbers(8..1002).eq([8, 9, 1000, 1001]));
        assert_eq!(log.amount(7..7), Amount::default());
        assert_eq!(log.amount(2000..3000), Amount::default());
    }

    #[test]
    fn the_record_is_bounded_in_time_and_in_size() {
        let start = Instant::now();
        let mut log = SentLog::default();
        let most = MAX_PACKETS as u64;
        (0..most + 5).for_each(|pn| log.push(pn, 1, 1, start));
        assert_eq!(log.len(), MAX_PACKETS);
        assert_eq!(log.ordinal(most), most, "ordinals do not move");
        log.push(most + 5, 1, 1, start + KEPT);
        log.prune(start + KEPT + Duration::from_millis(1));
        assert_eq!((log.len(), log.total().packets), (1, most + 6));
    }

    #[test]
    fn most_is_more_than_half_of_those_that_are_left() {
        let now = Instant::now();
        let mut log = SentLog::default();
        log.push(0, 1, 4, now);
        let mut shared = Vec::new();
        (0..3).for_each(|_| log.lose(0..5, |p| shared.push(p.is_lost_by_most(9))));
        assert_eq!(shared, [false, false, true]);
        assert!(log.get(0).is_some_and(|p| p.is_lost_by_most(5)));
    }
}
