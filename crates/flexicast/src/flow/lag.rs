//! Time in which the source itself was late: silence of its members then is no evidence.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Part of one silence that does not count, at most: a member that has gone leaves the flow within
/// this, also where the source is always late.
pub(crate) const MAX_LAG: Duration = Duration::from_secs(2);
/// Spans that are kept apart: of more, those nearest to each other are joined.
const KEPT: usize = 64;
/// Spans so close to each other are one.
const JOINED: Duration = Duration::from_millis(1);

/// Time in which the source was late.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: Instant,
    end: Instant,
    /// Part of it that counts, where it was joined from others.
    late: Duration,
}

impl Span {
    /// Returns how much of it counts from `since` until `now`.
    fn within(&self, since: Instant, now: Instant) -> Duration {
        let (start, end) = (self.start.max(since), self.end.min(now));
        let (part, whole) = (
            end.saturating_duration_since(start),
            self.end.saturating_duration_since(self.start),
        );
        match part.is_zero() || self.late >= whole {
            true => part,
            false => self.late.mul_f64(part.as_secs_f64() / whole.as_secs_f64()),
        }
    }
}

/// The last spans of time in which the source was late, in order and apart from each other.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    spans: VecDeque<Span>,
}

impl Lag {
    /// Notes that the source was late from `since` until `now`, which only grows.
    pub(crate) fn note(&mut self, since: Instant, now: Instant) {
        if since >= now {
            return;
        }
        let mut span = Span {
            start: since,
            end: now,
            late: now - since,
        };
        while let Some(last) = self.spans.pop_back_if(|last| last.end + JOINED >= since) {
            let before = since.saturating_duration_since(last.start);
            span.late += before.min(last.late);
            span.start = span.start.min(last.start);
        }
        self.spans.push_back(span);
        if self.spans.len() > KEPT {
            self.join_nearest();
        }
    }

    /// Joins the two spans that are nearest to each other, the oldest of several.
    fn join_nearest(&mut self) {
        let next = self.spans.iter().skip(1);
        let apart = self.spans.iter().zip(next);
        let apart = apart.map(|(span, next)| next.start.saturating_duration_since(span.end));
        let nearest = apart.enumerate().min_by_key(|(_, apart)| *apart);
        if let Some((at, _)) = nearest
            && let Some(next) = self.spans.remove(at + 1)
            && let Some(span) = self.spans.get_mut(at)
        {
            (span.end, span.late) = (next.end, span.late + next.late);
        }
    }

    /// Returns how much of the silence from `since` until `now` does not count, at most
    /// [`MAX_LAG`].
    pub(crate) fn within(&self, since: Instant, now: Instant) -> Duration {
        let later = self.spans.iter().rev().take_while(|span| span.end > since);
        let late: Duration = later.map(|span| span.within(since, now)).sum();
        late.min(MAX_LAG)
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
        assert_eq!(lag.within(t, now), MAX_LAG);
        lag.note(t, now);
        assert_eq!((lag.within(t, now), lag.spans.len()), (MAX_LAG, 1));
    }

    /// Many short spans are as much as one long one: a second of a source that is late for 10 ms,
    /// in time for 5 ms, and so on.
    #[test]
    fn short_spans_push_out_no_older_ones() {
        let t = Instant::now();
        let mut lag = Lag::default();
        lag.note(t, t + 300 * MS);
        for n in 0..80 {
            let at = t + MS * (310 + 15 * n);
            lag.note(at, at + 10 * MS);
        }
        let now = t + MS * (310 + 15 * 80);
        assert_eq!(lag.within(t, now), 1100 * MS);
        assert_eq!(lag.within(t + 305 * MS, now), 800 * MS);
        assert_eq!(lag.within(now - 150 * MS, now), 100 * MS);
        let part = lag.within(t + 310 * MS, t + 610 * MS);
        assert!(part >= 195 * MS && part <= 205 * MS, "{part:?}");
    }
}
