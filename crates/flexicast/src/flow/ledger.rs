//! Ack aggregation: for each sent packet, how many members still owe an acknowledgement.
//!
//! **Architecture invariant:** settling a range costs O(1) whatever its length and however many
//! members there are, and leaving removes what one member owes without counting as an
//! acknowledgement for another. The counts are kept as differences between neighbours: a range that
//! is settled changes the difference at its first packet and after its last one, and only the
//! sweep that releases packets from the front sums them up, once per packet.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Bytes `range` of the encoded update `seq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRange {
    /// The update.
    pub seq: u64,
    /// Offsets in its encoded bytes.
    pub range: Range<u64>,
}

impl StreamRange {
    /// All of an update, whatever its length.
    pub fn whole(seq: u64) -> Self {
        StreamRange {
            seq,
            range: 0..u64::MAX,
        }
    }

    /// Whether this is all of an update.
    pub(crate) fn is_whole(&self) -> bool {
        self.range == (0..u64::MAX)
    }
}

/// Content of a packet, as needed for a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PacketContents {
    Ping,
    One(StreamRange),
    Many(Vec<StreamRange>),
}

impl PacketContents {
    pub(crate) fn ranges(&self) -> &[StreamRange] {
        match self {
            PacketContents::Ping => &[],
            PacketContents::One(range) => std::slice::from_ref(range),
            PacketContents::Many(ranges) => ranges,
        }
    }

    /// Adds a stream range. A whole update stands for its signature: without that nothing of it is
    /// worth anything, so that all of it is the repair.
    pub(crate) fn push(&mut self, range: StreamRange) {
        *self = match std::mem::replace(self, PacketContents::Ping) {
            PacketContents::Ping => PacketContents::One(range),
            PacketContents::One(first) => PacketContents::Many(vec![first, range]),
            PacketContents::Many(mut ranges) => {
                ranges.push(range);
                PacketContents::Many(ranges)
            }
        };
    }

    pub(crate) fn is_data(&self) -> bool {
        !matches!(self, PacketContents::Ping)
    }
}

/// Length of a packet, beside that which the flow's packets can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Shorter, because nothing else was to be sent.
    Short,
    /// Shorter by the room that a repair symbol of it needs: its loss may be one of a path that is
    /// too narrow, and its arrival proves nothing.
    Reduced,
    /// As long.
    Full,
}

#[derive(Debug)]
pub(crate) struct SentPacket {
    pub(crate) at: Instant,
    pub(crate) contents: PacketContents,
    /// Full packets that were sent before this one, those that are reduced included.
    full_before: u64,
    /// The same without those.
    proving_before: u64,
    /// Members that owe this packet, less those that owe the previous one (for the front: the
    /// former alone).
    delta: i64,
}

/// The packets that some member still owes, in order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The packet number of the front.
    base: u64,
    packets: VecDeque<SentPacket>,
    /// Packet numbers at or above `base` that were never used, ascending: each new key epoch leaves
    /// some out.
    skipped: VecDeque<Range<u64>>,
    /// Members that owe the last packet: the sum of all deltas.
    last_owed: i64,
    /// Full packets that were sent, those that are reduced included.
    full: u64,
    /// The same without those.
    proving: u64,
}

impl Ledger {
    pub(crate) fn new(first_pn: u64) -> Self {
        Ledger {
            base: first_pn,
            packets: VecDeque::new(),
            skipped: VecDeque::new(),
            last_owed: 0,
            full: 0,
            proving: 0,
        }
    }

    /// The lowest packet number that is still held; the next one to be sent if none is.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn next_pn(&self) -> u64 {
        let skipped: u64 = self.skipped.iter().map(|s| s.end - s.start).sum();
        self.base + self.packets.len() as u64 + skipped
    }

    /// The next packet gets the number `pn`, which is not below the one that it would have had. The
    /// numbers between are never sent and so never lost.
    pub(crate) fn skip_to(&mut self, pn: u64) {
        let next = self.next_pn();
        if pn <= next {
            return;
        }
        if self.packets.is_empty() {
            self.skipped.clear();
            self.base = pn;
        } else if let Some(last) = self.skipped.back_mut().filter(|s| s.end == next) {
            last.end = pn;
        } else {
            self.skipped.push_back(next..pn);
        }
    }

    /// Whether this number was left out, as far as that is still known.
    pub(crate) fn was_skipped(&self, pn: u64) -> bool {
        self.skipped.iter().any(|s| s.contains(&pn))
    }

    /// Returns the number of packets sent in `base..pn`.
    fn index(&self, pn: u64) -> usize {
        let mut index = pn.saturating_sub(self.base);
        for gap in &self.skipped {
            if pn <= gap.start {
                break;
            }
            index -= pn.min(gap.end) - gap.start;
        }
        index as usize
    }

    /// Returns the number of packets sent in `from..to`.
    pub(crate) fn sent_between(&self, from: u64, to: u64) -> u64 {
        self.index(to.max(self.base))
            .saturating_sub(self.index(from.max(self.base))) as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn get(&self, pn: u64) -> Option<&SentPacket> {
        if pn < self.base || self.was_skipped(pn) {
            return None;
        }
        self.packets.get(self.index(pn))
    }

    /// Returns the number of packets in `range` as long as the flow's packets can be, as far as they
    /// are held.
    pub(crate) fn proving_in(&self, range: Range<u64>) -> u64 {
        let before = |pn: u64| {
            let packet = self.packets.get(self.index(pn));
            packet.map_or(self.proving, |packet| packet.proving_before)
        };
        before(range.end).saturating_sub(before(range.start))
    }

    /// Returns the number of full packets in `range`, those that are reduced included, as far as
    /// they are held.
    pub(crate) fn full_in(&self, range: Range<u64>) -> u64 {
        let before = |pn: u64| {
            let packet = self.packets.get(self.index(pn));
            packet.map_or(self.full, |packet| packet.full_before)
        };
        before(range.end).saturating_sub(before(range.start))
    }

    /// Notes the next packet, which `members` members owe from now on.
    pub(crate) fn push(
        &mut self,
        at: Instant,
        contents: PacketContents,
        members: usize,
        fill: Fill,
    ) {
        let members = members as i64;
        let (full_before, proving_before) = (self.full, self.proving);
        self.full += u64::from(fill != Fill::Short);
        self.proving += u64::from(fill == Fill::Full);
        self.packets.push_back(SentPacket {
            at,
            contents,
            full_before,
            proving_before,
            delta: members - self.last_owed,
        });
        self.last_owed = members;
        self.sweep();
    }

    /// One member does not owe the packets of `range` any more. It must have owed each of them.
    pub(crate) fn settle(&mut self, range: Range<u64>) {
        let range = range.start.max(self.base)..range.end.min(self.next_pn());
        if range.is_empty() {
            return;
        }
        let (first, after) = (self.index(range.start), self.index(range.end));
        if first == after {
            // Only numbers that were skipped.
            return;
        }
        self.packets[first].delta -= 1;
        match self.packets.get_mut(after) {
            Some(packet) => packet.delta += 1,
            None => self.last_owed -= 1,
        }
    }

    /// Releases packets owed by no member, from the front. Settling does not release by itself, so
    /// that times and contents can be read while a range is settled.
    pub(crate) fn sweep(&mut self) {
        while let Some(front) = self.packets.front() {
            debug_assert!(front.delta >= 0, "more settled than owed");
            if front.delta > 0 {
                break;
            }
            self.packets.pop_front();
            self.base += 1;
            if let Some(gap) = self.skipped.front().filter(|s| s.start == self.base) {
                self.base = gap.end;
                self.skipped.pop_front();
            }
        }
        if self.packets.is_empty() {
            self.last_owed = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain set of (member, packet) debts: released exactly from the front up to the
        /// first packet that is owed.
        #[test]
        fn agrees_with_a_plain_set_of_debts(
            ops in prop::collection::vec((0u8..5, 0usize..6, 0u64..20, 1u64..8), 1..120)
        ) {
            let now = Instant::now();
            let mut ledger = Ledger::new(5);
            let mut next = 5;
            let mut members = BTreeSet::new();
            let mut owed: BTreeSet<(usize, u64)> = BTreeSet::new();
            let (mut full, mut proving) = (BTreeSet::new(), BTreeSet::new());
            let mut skipped: BTreeSet<u64> = BTreeSet::new();
            for (op, member, start, len) in ops {
                match op {
                    0 | 1 => {
                        let fill = match (op, start % 2) {
                            (0, 0) => Fill::Full,
                            (0, _) => Fill::Reduced,
                            _ => Fill::Short,
                        };
                        ledger.push(now, PacketContents::Ping, members.len(), fill);
                        full.extend((fill != Fill::Short).then_some(next));
                        proving.extend((fill == Fill::Full).then_some(next));
                        owed.extend(members.iter().map(|m| (*m, next)));
                        next += 1;
                    }
                    2 => {
                        // A range that the member owes in one piece.
                        let start = ledger.base() + start;
                        let owes = |pn: &u64| owed.contains(&(member, *pn)) || skipped.contains(pn);
                        let end = (start..start + len).find(|pn| !owes(pn)).unwrap_or(start + len);
                        ledger.settle(start..end);
                        (start..end).for_each(|pn| { owed.remove(&(member, pn)); });
                    }
                    3 => {
                        skipped.extend(next..next + start);
                        next += start;
                        ledger.skip_to(next);
                    }
                    _ => if !members.insert(member) {
                        members.remove(&member);
                        for pn in ledger.base()..next {
                            if owed.remove(&(member, pn)) { ledger.settle(pn..pn + 1); }
                        }
                    },
                }
                ledger.sweep();
                let oldest = owed.iter().map(|(_, pn)| *pn).min().unwrap_or(next);
                prop_assert_eq!((ledger.base(), ledger.next_pn()), (oldest, next));
                prop_assert_eq!(ledger.get(oldest).is_some(), oldest < next);
                let is_held = |pn| ledger.get(pn).is_some() != skipped.contains(&pn);
                prop_assert!((oldest..next).all(is_held));
                let sent = (oldest..next).filter(|pn| !skipped.contains(pn)).count() as u64;
                prop_assert_eq!(ledger.sent_between(oldest, next), sent);
                let part = oldest + start.min(next - oldest)..next.min(oldest + start + len);
                let of = |set: &BTreeSet<u64>| {
                    set.range(part.start..part.end.max(part.start)).count() as u64
                };
                prop_assert_eq!(ledger.full_in(part.clone()), of(&full));
                prop_assert_eq!(ledger.proving_in(part.clone()), of(&proving));
            }
        }
    }
}
