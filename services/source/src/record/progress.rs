//! Delivery times of updates: for each, the times until half, 99 of 100, and all receivers
//! connected at its publication hold it. Receivers are sampled once a second.

use std::collections::VecDeque;

use store::ProgressRow;

/// Number of the newest updates that are followed.
const FOLLOWED: usize = 4_096;
/// Largest age of followed updates, in milliseconds.
const AGE_MS: i64 = 3_600_000;

/// The updates of one channel.
#[derive(Debug)]
pub struct Progress {
    channel: String,
    head: u64,
    /// Head at the start of following, and that time. Earlier updates are at least as old.
    begun: (u64, i64),
    /// Updates up to the head, without a gap.
    open: VecDeque<OpenUpdate>,
}

#[derive(Debug)]
struct OpenUpdate {
    row: ProgressRow,
    /// Whether the change is not written yet.
    is_changed: bool,
}

impl OpenUpdate {
    fn settle(&mut self, now_ms: i64) {
        let row = &mut self.row;
        let after = u64::try_from(now_ms - row.published_ms).unwrap_or(0);
        let reached = |part: u64| row.expected > 0 && row.delivered * 100 >= row.expected * part;
        let (half, most, all) = (reached(50), reached(99), reached(100));
        for (time, is) in [
            (&mut row.half_ms, half),
            (&mut row.p99_ms, most),
            (&mut row.all_ms, all),
        ] {
            if is && time.is_none() {
                *time = Some(after);
            }
        }
    }
}

impl Progress {
    /// Returns the progress of a channel whose last published seq is `head` at `now_ms`: earlier
    /// updates are not followed.
    pub fn new(channel: &str, head: u64, now_ms: i64) -> Self {
        Self {
            channel: channel.to_owned(),
            head,
            begun: (head, now_ms),
            open: VecDeque::new(),
        }
    }

    /// Returns the last known published seq.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Records that the channel has reached `head`, while `expected` receivers were connected.
    pub fn published(&mut self, head: u64, expected: u64, now_ms: i64) {
        if head < self.head {
            // The database was set back; the numbers mean other updates.
            *self = Self::new(&self.channel, head, now_ms);
            return;
        }
        // Updates beyond the limit are skipped.
        let first = (self.head + 1).max(head.saturating_sub(FOLLOWED as u64 - 1));
        if first > self.head + 1 {
            self.open.clear();
        }
        for seq in first..=head {
            self.open.push_back(OpenUpdate {
                row: ProgressRow {
                    channel: self.channel.clone(),
                    seq,
                    published_ms: now_ms,
                    expected,
                    ..ProgressRow::default()
                },
                is_changed: true,
            });
        }
        self.head = head;
        while self.open.len() > FOLLOWED {
            self.open.pop_front();
        }
    }

    /// Records that another receiver holds these updates.
    pub fn delivered(&mut self, spans: &[(u64, u64)], now_ms: i64) {
        let Some(first) = self.open.front().map(|open| open.row.seq) else {
            return;
        };
        for (from, to) in spans {
            let from = (*from).max(first);
            if from > *to {
                continue;
            }
            let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
            let count = usize::try_from(to - from + 1).unwrap_or(usize::MAX);
            for open in self.open.iter_mut().skip(skipped).take(count) {
                if now_ms - open.row.published_ms <= AGE_MS {
                    open.row.delivered = (open.row.delivered + 1).min(open.row.expected);
                    open.is_changed = true;
                    open.settle(now_ms);
                }
            }
        }
    }

    /// Emits changed rows.
    pub fn changed(&mut self, mut add: impl FnMut(ProgressRow)) {
        for open in self.open.iter_mut().filter(|open| open.is_changed) {
            open.is_changed = false;
            add(open.row.clone());
        }
    }

    /// Returns for how long, in milliseconds, a receiver whose outputs hold everything up to
    /// `cursor` has been late: since the publication of the first update that it lacks. If that one
    /// is not followed, the result is a lower bound.
    pub fn behind_ms(&self, cursor: u64, now_ms: i64) -> u64 {
        if cursor >= self.head {
            return 0;
        }
        let (begun, begun_ms) = self.begun;
        let since_ms = if cursor < begun {
            begun_ms
        } else {
            let first = self.open.front().map_or(u64::MAX, |open| open.row.seq);
            // An update that is not followed any more is older than all that are.
            let at = usize::try_from((cursor + 1).saturating_sub(first)).unwrap_or(usize::MAX);
            let open = self.open.get(at);
            open.map_or(begun_ms, |open| open.row.published_ms)
        };
        u64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(progress: &mut Progress) -> Vec<ProgressRow> {
        let mut rows = Vec::new();
        progress.changed(|row| rows.push(row));
        rows
    }

    #[test]
    fn half_most_and_all_have_their_times() {
        let mut progress = Progress::new("lore", 10, 500);
        progress.published(12, 200, 1_000);
        assert_eq!(rows(&mut progress).len(), 2);
        assert_eq!(rows(&mut progress), [], "no change");
        let hold = |progress: &mut Progress, count: usize, spans: &[(u64, u64)], at| {
            (0..count).for_each(|_| progress.delivered(spans, at));
        };
        hold(&mut progress, 99, &[(11, 12)], 2_000);
        assert_eq!(rows(&mut progress)[0].half_ms, None);
        hold(&mut progress, 1, &[(11, 11)], 3_000);
        hold(&mut progress, 98, &[(11, 11)], 4_000);
        let seen = rows(&mut progress);
        let only = &seen[0];
        assert_eq!((seen.len(), only.seq, only.delivered), (1, 11, 198));
        assert_eq!(
            (only.half_ms, only.p99_ms, only.all_ms),
            (Some(2_000), Some(3_000), None)
        );
        hold(&mut progress, 2, &[(11, 11)], 9_000);
        assert_eq!(rows(&mut progress)[0].all_ms, Some(8_000));
        // Unexpected updates change nothing.
        hold(&mut progress, 5, &[(11, 11)], 20_000);
        let last = rows(&mut progress).remove(0);
        assert_eq!((last.delivered, last.all_ms), (200, Some(8_000)));
        assert_eq!(progress.behind_ms(11, 5_000), 4_000);
        assert_eq!(progress.behind_ms(12, 5_000), 0);
    }

    /// After a restart, the updates before it are only known to be older.
    #[test]
    fn lag_from_before_the_start_counts_from_the_start() {
        let mut progress = Progress::new("lore", 5_000, 1_000);
        assert_eq!(progress.behind_ms(5_000, 61_000), 0, "it holds everything");
        assert_eq!(progress.behind_ms(4_999, 61_000), 60_000);
        assert_eq!(progress.behind_ms(0, 61_000), 60_000);
        progress.published(5_001, 1, 62_000);
        assert_eq!(progress.behind_ms(10, 63_000), 62_000);
        assert_eq!(progress.behind_ms(5_000, 63_000), 1_000);
        // More at once than are followed: the others were published before those.
        progress.published(50_000, 1, 70_000);
        assert_eq!(progress.behind_ms(6_000, 71_000), 1_000);
        assert_eq!(progress.behind_ms(10, 71_000), 70_000);
        // The clock was set back.
        assert_eq!(progress.behind_ms(10, 0), 0);
    }

    #[test]
    fn memory_is_bounded_and_a_restored_database_is_survived() {
        let mut progress = Progress::new("lore", 0, 4);
        progress.published(1_000_000, 3, 5);
        assert_eq!(rows(&mut progress).len(), FOLLOWED);
        progress.published(1_000_010, 3, 6);
        assert_eq!(progress.open.len(), FOLLOWED);
        progress.delivered(&[(1, 1_000_010)], 7);
        assert_eq!(rows(&mut progress).len(), FOLLOWED);
        progress.published(20, 3, 8);
        assert_eq!((progress.head(), rows(&mut progress).len()), (20, 0));
        progress.published(21, 0, 9);
        progress.delivered(&[(21, 21)], 10);
        let only = rows(&mut progress).remove(0);
        assert_eq!(
            (only.delivered, only.half_ms),
            (0, None),
            "no receiver was connected"
        );
    }
}
