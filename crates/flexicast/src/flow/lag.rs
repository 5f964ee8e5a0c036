//! Time in which the source itself was late: silence of its members then is no evidence.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Part of one silence that does not count, at most: a member that has gone leaves the flow within
/// this, also where the source is always late.
pub(crate) const MAX_LAG: Duration = Duration::from_secs(2);
/// Spans that are kept: silence is judged within seconds.
const KEPT: usize = 32;
/// Spans so close to each other are one.
const JOINED: Duration = Duration::from_millis(1);

/// The last spans of time in which the source was late, in order and apart from each other.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    spans: VecDeque<Range<Instant>>,
}

impl Lag {
    /// Notes that the source was late from `since` until `now`, which only grows.
    pub(crate) fn note(&mut self, since: Instant, now: Instant) {
        if since >= now {
            return;
        }
        let mut start = since;
        while let Some(last) = self.spans.back().filter(|last| last.end + JOINED >= since) {
            start = start.min(last.start);
            self.spans.pop_back();
        }
        if self.spans.len() >= KEPT {
            self.spans.pop_front();
        }
        self.spans.push_back(start..now);
    }

    /// Returns how much of the silence from `since` until `now` does not count, at most
    /// [`MAX_LAG`].
    pub(crate) fn within(&self, since: Instant, now: Instant) -> Duration {
        let later = self.spans.iter().rev().take_while(|span| span.end > since);
        let overlap = |span: &Range<Instant>| {
            let end = span.end.min(now);
            end.saturating_duration_since(span.start.max(since))
        };
        later.map(overlap).sum::<Duration>().min(MAX_LAG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn overlapping_spans_count_once() {
        let t = Instant::now();
        let mut lag = Lag::default();
        lag.note(t + 10 * MS, t + 20 * MS);
        lag.note(t + 15 * MS, t + 30 * MS);
        lag.note(t + 50 * MS, t + 60 * MS);
        lag.note(t + 60 * MS, t + 60 * MS);
        assert_eq!(lag.within(t, t + 100 * MS), 30 * MS);
        assert_eq!(lag.within(t + 25 * MS, t + 55 * MS), 10 * MS);
        assert_eq!(lag.within(t + 60 * MS, t + 100 * MS), Duration::ZERO);
        // One that is noted late takes in those before.
        lag.note(t + 5 * MS, t + 70 * MS);
        assert_eq!(lag.within(t, t + 100 * MS), 65 * MS);
    }

    #[test]
    fn the_sum_and_the_spans_are_bounded() {
        let t = Instant::now();
        let mut lag = Lag::default();
        for n in 0..1000 {
            let at = t + MS * 10 * n;
            lag.note(at, at + 5 * MS);
        }
        assert_eq!(lag.spans.len(), KEPT);
        let now = t + Duration::from_secs(10);
        assert_eq!(lag.within(t, now), 5 * MS * KEPT as u32);
        lag.note(t, now);
        assert_eq!((lag.within(t, now), lag.spans.len()), (MAX_LAG, 1));
    }
}
