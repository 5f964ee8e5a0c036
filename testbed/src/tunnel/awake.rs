//! Time as a program has it that is not always let run.

use std::time::{Duration, Instant};

/// The most that counts between two turns: a longer pause is time in which this process did not
/// run.
const STEP: Duration = Duration::from_millis(50);

/// Time during which a program that polls its sockets every few milliseconds has really run. A
/// stall of the machine or the program adds next to nothing, so that packets due meanwhile still
/// have their time.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunTime {
    last: Instant,
    time: Duration,
}

impl RunTime {
    /// Begins.
    pub(super) fn since(now: Instant) -> RunTime {
        RunTime {
            last: now,
            time: Duration::ZERO,
        }
    }

    /// Adds the time since the turn before.
    pub(super) fn turn(&mut self, now: Instant) {
        self.time += now.saturating_duration_since(self.last).min(STEP);
        self.last = now;
    }

    /// Returns the time up to the last turn.
    pub(super) fn time(self) -> Duration {
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_no_time() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        let mut awake = RunTime::since(begun);
        for (at, time) in [(2, 2), (10, 10), (3_010, 60), (3_012, 62)] {
            awake.turn(begun + ms(at));
            assert_eq!(awake.time(), ms(time));
        }
    }
}
