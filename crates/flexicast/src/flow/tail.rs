//! Packets of a member whose data was repaired before anything showed whether they arrived.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Newest packets that are remembered: more than that, and the member is about to fall back.
const REMEMBERED: usize = 256;

/// Packet of a repaired tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RepairedPacket {
    pub(super) pn: u64,
    pub(super) sent: Instant,
    /// Whether it had the flow's full size.
    pub(super) is_full: bool,
}

/// The repaired tail: what has become of its packets is still to be found out, because rate control
/// has to know about all packets. Otherwise it would learn nothing of a member whose packets arrive
/// late, as in a queue that grows, until that member is silent.
#[derive(Debug, Default)]
pub(super) struct RepairedTail {
    /// Packets, ascending.
    packets: VecDeque<RepairedPacket>,
}

impl RepairedTail {
    /// Adds a packet above all before it.
    pub(super) fn push(&mut self, packet: RepairedPacket) {
        if self.packets.len() == REMEMBERED {
            self.packets.pop_front();
        }
        self.packets.push_back(packet);
    }

    fn index(&self, pn: u64) -> usize {
        self.packets.partition_point(|known| known.pn < pn)
    }

    /// Returns when a packet was sent.
    pub(super) fn sent_at(&self, pn: u64) -> Option<Instant> {
        let known = self.packets.get(self.index(pn))?;
        (known.pn == pn).then_some(known.sent)
    }

    /// Takes the packets of an acknowledged range.
    pub(super) fn on_acked(&mut self, range: &Range<u64>) -> impl Iterator<Item = RepairedPacket> {
        let (from, to) = (self.index(range.start), self.index(range.end));
        self.packets.drain(from..to.max(from))
    }

    /// Returns when the first packet was sent, if it is below the largest acknowledged one.
    pub(super) fn first_overtaken(&self, largest: u64) -> Option<Instant> {
        let first = self.packets.front()?;
        (first.pn < largest).then_some(first.sent)
    }

    /// Takes the first packet, which is lost.
    pub(super) fn take_first(&mut self) -> Option<RepairedPacket> {
        self.packets.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn packet(pn: u32, start: Instant) -> RepairedPacket {
        RepairedPacket {
            pn: pn.into(),
            sent: start + MS * pn,
            is_full: false,
        }
    }

    #[test]
    fn packets_are_acknowledged_or_lost_once() {
        let start = Instant::now();
        let mut tail = RepairedTail::default();
        for pn in [3, 4, 6, 9] {
            tail.push(packet(pn, start));
        }
        assert_eq!(tail.sent_at(6), Some(start + MS * 6));
        assert_eq!(tail.sent_at(5), None);
        let acked: Vec<_> = tail.on_acked(&(4..7)).map(|packet| packet.pn).collect();
        assert_eq!(acked, [4, 6]);
        assert_eq!(tail.on_acked(&(4..7)).count(), 0);
        assert_eq!(tail.first_overtaken(3), None);
        assert_eq!(tail.first_overtaken(9), Some(start + MS * 3));
        assert_eq!(tail.take_first(), Some(packet(3, start)));
        assert_eq!(tail.first_overtaken(9), None);
    }

    #[test]
    fn memory_is_bounded() {
        let (start, mut tail) = (Instant::now(), RepairedTail::default());
        (0..1000).for_each(|pn| tail.push(packet(pn, start)));
        assert_eq!(tail.packets.len(), REMEMBERED);
        assert!(tail.sent_at(999).is_some());
    }
}
