//! Packets of a member whose data was repaired before anything showed whether they arrived.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::range::append;

/// Newest packets that are remembered: more than that, and the member is about to fall back.
const REMEMBERED: usize = 256;

/// The repaired tail: what has become of its packets is still to be found out, because rate control
/// has to know about all packets. Otherwise it would learn nothing of a member whose packets arrive
/// late, as in a queue that grows, until that member is silent.
#[derive(Debug, Default)]
pub(super) struct RepairedTail {
    /// Packet numbers, ascending, and when they were sent.
    packets: VecDeque<(u64, Instant)>,
}

impl RepairedTail {
    /// Adds a packet above all before it.
    pub(super) fn push(&mut self, pn: u64, sent: Instant) {
        if self.packets.len() == REMEMBERED {
            self.packets.pop_front();
        }
        self.packets.push_back((pn, sent));
    }

    fn index(&self, pn: u64) -> usize {
        self.packets.partition_point(|(known, _)| *known < pn)
    }

    /// Returns when a packet was sent.
    pub(super) fn sent_at(&self, pn: u64) -> Option<Instant> {
        let (known, sent) = self.packets.get(self.index(pn))?;
        (*known == pn).then_some(*sent)
    }

    /// Takes the packets of an acknowledged range; adds them to `acked`.
    pub(super) fn on_acked(&mut self, range: &Range<u64>, acked: &mut Vec<Range<u64>>) {
        let (from, to) = (self.index(range.start), self.index(range.end));
        let packets = self.packets.drain(from..to.max(from));
        packets.for_each(|(pn, _)| append(acked, pn));
    }

    /// Returns when the first packet was sent, if it is below the largest acknowledged one.
    pub(super) fn first_overtaken(&self, largest: u64) -> Option<Instant> {
        let (pn, sent) = *self.packets.front()?;
        (pn < largest).then_some(sent)
    }

    /// Takes the first packet, which is lost.
    pub(super) fn take_first(&mut self) -> Option<(u64, Instant)> {
        self.packets.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn packets_are_acknowledged_or_lost_once() {
        let start = Instant::now();
        let mut tail = RepairedTail::default();
        for pn in [3, 4, 6, 9] {
            tail.push(pn.into(), start + MS * pn);
        }
        assert_eq!(tail.sent_at(6), Some(start + MS * 6));
        assert_eq!(tail.sent_at(5), None);
        let mut acked = Vec::new();
        tail.on_acked(&(4..7), &mut acked);
        tail.on_acked(&(4..7), &mut acked);
        assert_eq!(acked, [4..5, 6..7]);
        assert_eq!(tail.first_overtaken(3), None);
        assert_eq!(tail.first_overtaken(9), Some(start + MS * 3));
        assert_eq!(tail.take_first(), Some((3, start + MS * 3)));
        assert_eq!(tail.first_overtaken(9), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut tail = RepairedTail::default();
        (0..1000).for_each(|pn| tail.push(pn, Instant::now()));
        assert_eq!(tail.packets.len(), REMEMBERED);
        assert!(tail.sent_at(999).is_some());
    }
}
