//! Sets of packet numbers or byte offsets as sorted, disjoint, half-open ranges.

use std::ops::Range;

/// Adds a value above all others to ascending ranges.
pub(crate) fn append(ranges: &mut Vec<Range<u64>>, value: u64) {
    match ranges.last_mut().filter(|last| last.end == value) {
        Some(last) => last.end += 1,
        None => ranges.push(value..value.saturating_add(1)),
    }
}

/// A set of `u64` kept as ranges. Insertions near the end, the usual case for packet numbers, are
/// cheap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<u64>>,
}

impl RangeSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The number of ranges (not of members).
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Range<u64>> + ExactSizeIterator {
        self.ranges.iter()
    }

    /// The largest member.
    pub fn max(&self) -> Option<u64> {
        self.ranges.last().map(|r| r.end - 1)
    }

    /// Whether `value` is in the set.
    pub fn contains(&self, value: u64) -> bool {
        let at = self.ranges.partition_point(|r| r.end <= value);
        self.ranges.get(at).is_some_and(|r| r.start <= value)
    }

    /// Whether all of `range` is in the set; an empty range always is.
    pub fn contains_range(&self, range: Range<u64>) -> bool {
        let at = self.ranges.partition_point(|r| r.end <= range.start);
        range.is_empty()
            || self
                .ranges
                .get(at)
                .is_some_and(|r| r.start <= range.start && range.end <= r.end)
    }

    /// Adds `range` and calls `added` with each sub-range that was not in the set before. Returns
    /// whether there was any.
    pub fn insert_with(&mut self, range: Range<u64>, mut added: impl FnMut(Range<u64>)) -> bool {
        if range.is_empty() {
            return false;
        }
        // Mostly values come in order.
        if let Some(last) = self.ranges.last_mut()
            && last.end == range.start
        {
            last.end = range.end;
            added(range);
            return true;
        }
        // Everything from `first` up to `last` touches or overlaps the new range and melts into it.
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let last = first + self.ranges[first..].partition_point(|r| r.start <= range.end);
        let mut next = range.start;
        let mut any = false;
        for known in &self.ranges[first..last] {
            if next < known.start {
                added(next..known.start);
                any = true;
            }
            next = next.max(known.end);
        }
        if next < range.end {
            added(next..range.end);
            any = true;
        }
        if first == last {
            self.ranges.insert(first, range);
        } else {
            let start = range.start.min(self.ranges[first].start);
            let end = range.end.max(self.ranges[last - 1].end);
            self.ranges[first] = start..end;
            self.ranges.drain(first + 1..last);
        }
        any
    }

    /// Adds `range`; returns whether anything of it was new.
    pub fn insert(&mut self, range: Range<u64>) -> bool {
        self.insert_with(range, |_| {})
    }

    /// Adds one value; returns whether it was new.
    pub fn insert_one(&mut self, value: u64) -> bool {
        self.insert(value..value.saturating_add(1))
    }

    /// Returns the parts of `within` that are not in the set, ascending.
    pub fn gaps(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut next = within.start;
        let from = self.ranges.partition_point(|r| r.end <= within.start);
        let mut known = self.ranges[from..].iter();
        let mut done = false;
        std::iter::from_fn(move || {
            while !done {
                match known.next() {
                    Some(r) if r.start < within.end => {
                        let gap = next..r.start;
                        next = r.end;
                        if !gap.is_empty() {
                            return Some(gap);
                        }
                    }
                    _ => {
                        done = true;
                        if next < within.end {
                            return Some(next..within.end);
                        }
                    }
                }
            }
            None
        })
    }

    /// Forgets every member below `floor`.
    pub fn remove_below(&mut self, floor: u64) {
        let whole = self.ranges.partition_point(|r| r.end <= floor);
        self.ranges.drain(..whole);
        if let Some(first) = self.ranges.first_mut() {
            first.start = first.start.max(floor);
        }
    }

    /// Forgets every member from `ceiling` on.
    pub fn remove_from(&mut self, ceiling: u64) {
        let whole = self.ranges.partition_point(|r| r.start < ceiling);
        self.ranges.truncate(whole);
        if let Some(last) = self.ranges.last_mut() {
            last.end = last.end.min(ceiling);
        }
    }

    /// Forgets the lowest ranges until at most `most` are left; returns the lowest value that is
    /// still remembered as a border, if any were dropped.
    pub fn truncate_low(&mut self, most: usize) -> Option<u64> {
        if self.ranges.len() <= most {
            return None;
        }
        let cut = self.ranges.len() - most;
        self.ranges.drain(..cut);
        self.ranges.first().map(|r| r.start)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The set behaves like a plain set of numbers, whatever is inserted.
        #[test]
        fn agrees_with_a_plain_set(
            ops in prop::collection::vec((0u64..80, 0u64..12, 0u8..8), 1..60),
        ) {
            let mut set = RangeSet::new();
            let mut model = BTreeSet::new();
            for (start, len, op) in ops {
                if op == 0 {
                    set.remove_below(start);
                    model = model.split_off(&start);
                } else {
                    let mut added = BTreeSet::new();
                    let any = set.insert_with(start..start + len, |r| added.extend(r));
                    let missing = (start..start + len).filter(|v| !model.contains(v));
                    let expected: BTreeSet<u64> = missing.collect();
                    prop_assert_eq!(any, !expected.is_empty());
                    prop_assert_eq!(&added, &expected);
                    model.extend(expected);
                }
                let flat: BTreeSet<u64> = set.iter().cloned().flatten().collect();
                prop_assert_eq!(&flat, &model);
                let mut pairs = set.iter().zip(set.iter().skip(1));
                prop_assert!(pairs.all(|(a, b)| a.end < b.start), "ranges must stay apart");
                let gaps: BTreeSet<u64> = set.gaps(10..70).flatten().collect();
                let missing: BTreeSet<u64> = (10..70).filter(|v| !model.contains(v)).collect();
                prop_assert_eq!(gaps, missing);
                prop_assert_eq!(set.max(), model.iter().next_back().copied());
            }
        }
    }

    #[test]
    fn truncating_keeps_the_newest() {
        let mut set = RangeSet::new();
        for i in 0..10 {
            set.insert_one(i * 2);
        }
        assert_eq!(set.truncate_low(3), Some(14));
        assert_eq!(
            set.iter().cloned().collect::<Vec<_>>(),
            [14..15, 16..17, 18..19]
        );
        assert_eq!(set.truncate_low(3), None);
    }
}
