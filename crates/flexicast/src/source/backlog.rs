//! Pending unicast data of one receiver: ranges of updates in order, and repairs.

use std::collections::VecDeque;

use crate::flow::ledger::StreamRange;
use crate::range::RangeSet;

/// With more repairs than this the updates are sent whole, as ranges of `seq`: the memory that a
/// receiver costs stays bounded.
const MAX_REPAIRS: usize = 512;

/// The work list of a session.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Updates to be sent whole.
    updates: RangeSet,
    /// Pieces of updates, which go first: the receiver waits for them to deliver the rest in order.
    /// Those of older updates, whose deadlines come earlier, go before others.
    repairs: VecDeque<StreamRange>,
    /// New updates belong here, too: the receiver is not on the flow.
    live: bool,
}

impl Backlog {
    /// Begins delivery at `first` with everything up to `head`, and then live.
    pub(super) fn start(&mut self, first: u64, head: u64) {
        *self = Backlog {
            live: true,
            ..Backlog::default()
        };
        self.insert(first, head);
    }

    /// Adds the updates `first` to `last`, if that is not an empty range.
    pub(super) fn insert(&mut self, first: u64, last: u64) {
        self.updates
            .insert(first..last.saturating_add(1).max(first));
    }

    /// Sets whether new updates are added.
    pub(super) fn set_live(&mut self, live: bool) {
        self.live = live;
    }

    /// Whether new updates are added.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// Takes note of a new update; returns whether it belongs here.
    pub(super) fn publish(&mut self, seq: u64) -> bool {
        if self.live {
            self.insert(seq, seq);
        }
        self.live
    }

    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.repairs.is_empty()
    }

    /// Separate ranges of updates, and separate repairs.
    pub(super) fn pieces(&self) -> usize {
        self.updates.len() + self.repairs.len()
    }

    /// Returns the number of whole updates to send.
    pub(super) fn len(&self) -> u64 {
        self.updates.iter().map(|r| r.end - r.start).sum()
    }

    pub(super) fn repair(&mut self, ranges: impl IntoIterator<Item = StreamRange>) {
        for range in ranges {
            let at = self.repairs.partition_point(|r| r.seq <= range.seq);
            self.repairs.insert(at, range);
        }
        if self.repairs.len() > MAX_REPAIRS {
            let seqs = self.repairs.drain(..).map(|r| r.seq);
            seqs.for_each(|seq| {
                self.updates.insert_one(seq);
            });
        }
    }

    /// Whether these bytes are to be sent already.
    pub(super) fn owes(&self, asked: &StreamRange) -> bool {
        let covers = |r: &StreamRange| {
            let (own, asked) = (&r.range, &asked.range);
            own.start <= asked.start && asked.end <= own.end
        };
        let mut repairs = self.repairs.iter().filter(|r| r.seq == asked.seq);
        self.updates.contains(asked.seq) || repairs.any(covers)
    }

    pub(super) fn next_repair(&self) -> Option<&StreamRange> {
        self.repairs.front()
    }

    pub(super) fn repaired(&mut self) {
        self.repairs.pop_front();
    }

    /// Drops all pieces of an update.
    pub(super) fn drop_repairs(&mut self, seq: u64) {
        self.repairs.retain(|repair| repair.seq != seq);
    }

    pub(super) fn next_update(&self) -> Option<u64> {
        self.updates.iter().next().map(|r| r.start)
    }

    /// Returns the first update after `seq` that is to be sent whole.
    pub(super) fn next_update_after(&self, seq: u64) -> Option<u64> {
        let mut ranges = self.updates.iter();
        let range = ranges.find(|r| r.end > seq + 1)?;
        Some(range.start.max(seq + 1))
    }

    /// Everything below `seq` is gone for good; returns the lowest that was owed.
    pub(super) fn drop_below(&mut self, seq: u64) -> Option<u64> {
        let repairs = self.repairs.iter().map(|r| r.seq).filter(|s| *s < seq);
        let lowest = repairs.chain(self.next_update()).min();
        self.repairs.retain(|r| r.seq >= seq);
        self.updates.remove_below(seq);
        lowest.filter(|lowest| *lowest < seq)
    }

    /// The updates below `seq` are sent or gone.
    pub(super) fn done_below(&mut self, seq: u64) {
        self.updates.remove_below(seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_update_after_a_seq() {
        let mut backlog = Backlog::default();
        backlog.start(5, 9);
        backlog.insert(20, 20);
        let after = |seq| backlog.next_update_after(seq);
        assert_eq!((after(0), after(5), after(8)), (Some(5), Some(6), Some(9)));
        assert_eq!((after(9), after(19), after(20)), (Some(20), Some(20), None));
    }

    #[test]
    fn too_many_repairs_become_whole_updates() {
        let mut backlog = Backlog::default();
        for seq in 0..10_000 {
            backlog.repair([StreamRange {
                seq: seq % 700,
                range: 5..6,
            }]);
            assert!(backlog.repairs.len() <= MAX_REPAIRS);
        }
        let mut owed: Vec<u64> = backlog
            .updates
            .iter()
            .cloned()
            .flatten()
            .chain(backlog.repairs.iter().map(|r| r.seq))
            .collect();
        owed.sort_unstable();
        owed.dedup();
        assert_eq!(owed, (0..700).collect::<Vec<_>>());
    }
}
