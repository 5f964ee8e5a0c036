//! Updates delivered to a hook out of order, as ranges of positions.
//!
//! Behind an update that waits long, all later ones are a single range, however many they are:
//! there are never more ranges than updates in progress.

use std::collections::BTreeMap;

/// Positions, as ranges that do not touch: from each key up to, but without, its value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DeliveredSet(BTreeMap<u64, u64>);

impl DeliveredSet {
    /// Adds a position.
    pub(super) fn insert(&mut self, position: u64) {
        let Some(mut end) = position.checked_add(1) else {
            return;
        };
        let mut start = position;
        if let Some((before, its_end)) = self.0.range(..=position).next_back() {
            if position < *its_end {
                return;
            }
            if *its_end == position {
                start = *before;
            }
        }
        if let Some(further) = self.0.remove(&end) {
            end = further;
        }
        self.0.insert(start, end);
    }

    /// Whether the set contains a position.
    pub(super) fn contains(&self, position: u64) -> bool {
        let before = self.0.range(..=position).next_back();
        before.is_some_and(|(_, end)| position < *end)
    }

    /// Returns the number of positions.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Removes all positions before this one, and returns their number.
    pub(super) fn forget_before(&mut self, position: u64) -> u64 {
        let mut count = 0;
        while let Some(entry) = self.0.first_entry()
            && *entry.key() < position
        {
            let (start, end) = entry.remove_entry();
            count += end.min(position) - start;
            if end > position {
                self.0.insert(position, end);
            }
        }
        count
    }

    /// Removes the range that begins at a position, and returns its end.
    pub(super) fn take_from(&mut self, position: u64) -> Option<u64> {
        self.0.remove(&position)
    }

    /// Returns the ranges: the first of each, and the end.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(start, end)| (*start, *end))
    }

    /// Adds a range; an empty one is ignored.
    pub(super) fn insert_range(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut from, mut to) = (start, end);
        // All ranges that it touches are merged into it.
        while let Some((&before, &its_end)) = self.0.range(..=to).next_back()
            && its_end >= from
        {
            self.0.remove(&before);
            from = from.min(before);
            to = to.max(its_end);
        }
        self.0.insert(from, to);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Compares with a set of positions.
    #[test]
    fn ranges_merge_like_a_set() {
        for seed in 0..50 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let (mut done, mut set) = (DeliveredSet::default(), BTreeSet::new());
            for _ in 0..200 {
                let position = rng.random_range(0..60);
                match rng.random_range(0..12) {
                    0 => {
                        let rest = set.split_off(&position);
                        assert_eq!(done.forget_before(position), set.len() as u64);
                        set = rest;
                    }
                    1 => {
                        let end = rng.random_range(0..60);
                        done.insert_range(position, end);
                        set.extend(position..end);
                    }
                    2 => {
                        if let Some(end) = done.take_from(position) {
                            assert!((position..end).all(|at| set.remove(&at)));
                            assert!(!set.contains(&end));
                        }
                    }
                    _ => {
                        done.insert(position);
                        set.insert(position);
                    }
                }
                let mut ends = done.ranges().collect::<Vec<_>>().into_iter().peekable();
                while let Some((start, end)) = ends.next() {
                    assert!(start < end && ends.peek().is_none_or(|next| end < next.0));
                }
                assert_eq!(done.count(), set.len() as u64);
                assert!((0..60).all(|at| done.contains(at) == set.contains(&at)));
            }
        }
    }
}
