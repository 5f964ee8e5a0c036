//! Deadlines of many connections, so that a wake-up costs what is due and not what exists; and
//! those that were slept through.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Lateness of a wake-up beyond which the process itself was away: suspended, or starved.
pub(crate) const LATE: Duration = Duration::from_millis(50);

/// Returns the absence of a process that is back at `now` and meant to wake at `wake`; `None` if it
/// is negligible.
pub(crate) fn away(wake: Instant, now: Instant) -> Option<Duration> {
    Some(now.saturating_duration_since(wake)).filter(|late| *late > LATE)
}

/// At most one deadline for each number.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Instant, u64)>,
    by_id: HashMap<u64, Instant>,
}

impl Timers {
    /// Sets, moves or removes the deadline of `id`.
    pub(crate) fn set(&mut self, id: u64, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.by_id.insert(id, at),
            None => self.by_id.remove(&id),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.queue.remove(&(before, id));
        }
        if let Some(at) = at {
            self.queue.insert((at, id));
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes one number whose deadline has passed.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u64> {
        let (at, id) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.remove(&(at, id));
        self.by_id.remove(&id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_lateness_is_no_absence() {
        let wake = Instant::now();
        for (late, is_away) in [(0, false), (50, false), (51, true), (5000, true)] {
            let late = Duration::from_millis(late);
            assert_eq!(away(wake, wake + late), is_away.then_some(late));
        }
        assert_eq!(
            away(wake + LATE * 3, wake),
            None,
            "something else came first"
        );
    }

    #[test]
    fn one_deadline_each_in_order() {
        let start = Instant::now();
        let at = |s| Some(start + Duration::from_secs(s));
        let mut timers = Timers::default();
        timers.set(1, at(5));
        timers.set(2, at(3));
        timers.set(1, at(1));
        timers.set(3, at(2));
        timers.set(3, None);
        assert_eq!(timers.next(), at(1));
        let due: Vec<_> =
            std::iter::from_fn(|| timers.pop_due(start + Duration::from_secs(9))).collect();
        assert_eq!(due, [1, 2]);
        assert_eq!(timers.next(), None);
    }
}
