//! Count of a channel's updates within the last hour.

use std::collections::BTreeMap;

use store::{SampleRow, Store, StoreError};

/// Step of the counts, which is also that of the records.
const STEP_MS: i64 = SampleRow::STEPS[0];
const HOUR_MS: i64 = 3_600_000;

/// Updates by the step of time in which they were published: at most an hour's steps.
#[derive(Debug, Default)]
pub struct LastHour(BTreeMap<i64, u64>);

impl LastHour {
    /// Reads a channel's records, including those of another source or an earlier run of this one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn read(store: &Store, channel: &str, now_ms: i64) -> Result<Self, StoreError> {
        let asked = store
            .records()
            .samples(channel, STEP_MS, now_ms - HOUR_MS, now_ms);
        let mut hour = Self::default();
        for row in asked.await? {
            hour.add(row.updates, row.at_ms);
        }
        Ok(hour)
    }

    /// Adds published updates.
    pub fn add(&mut self, count: u64, at_ms: i64) {
        let step = at_ms.div_euclid(STEP_MS);
        let sum = self.0.entry(step).or_default();
        *sum = sum.saturating_add(count);
        self.trim(step);
    }

    /// Merges counts from another source. Of shared steps, neither has more than there was.
    pub fn merge(&mut self, other: Self) {
        for (step, count) in other.0 {
            let known = self.0.entry(step).or_default();
            *known = count.max(*known);
        }
        if let Some((last, _)) = self.0.last_key_value() {
            self.trim(*last);
        }
    }

    /// Returns the number in the hour before `now_ms`.
    pub fn count(&self, now_ms: i64) -> u64 {
        let now = now_ms.div_euclid(STEP_MS);
        let steps = self.0.range(Self::first(now)..=now);
        steps.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    fn first(now: i64) -> i64 {
        now - HOUR_MS / STEP_MS + 1
    }

    /// Drops steps that are older than an hour, or come from a clock that was ahead.
    fn trim(&mut self, now: i64) {
        self.0
            .retain(|step, _| (Self::first(now)..=now).contains(step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_counted_however_much_is_published() {
        let mut hour = LastHour::default();
        let begin = 1_800_000_000_000;
        assert_eq!(hour.count(begin), 0);
        // Ten in a second, for two hours.
        for second in 0..7_200 {
            hour.add(10, begin + second * 1_000);
        }
        let now = begin + 7_199_999;
        assert_eq!(hour.count(now), 36_000);
        assert!(hour.0.len() <= 360);
        assert_eq!(hour.count(now + HOUR_MS / 2), 18_000);
        assert_eq!(hour.count(now + HOUR_MS), 0);
        // The clock was set back: what it says now counts, and nothing piles up.
        hour.add(1, begin - HOUR_MS);
        assert_eq!((hour.count(begin - HOUR_MS), hour.0.len()), (1, 1));
    }

    #[test]
    fn shared_entries_are_counted_once() {
        let at = |step: i64| step * STEP_MS;
        let mut own = LastHour::default();
        own.add(3, at(1_000));
        let mut recorded = LastHour::default();
        recorded.add(9, at(640));
        recorded.add(40, at(641));
        recorded.add(2, at(999));
        recorded.add(2, at(1_000));
        own.merge(recorded);
        assert_eq!(own.count(at(1_000)), 45, "the oldest is older than an hour");
        own.merge(LastHour::default());
        assert_eq!(own.count(at(1_000)), 45);
    }
}
