//! Clock of the time in which the flow used its rate.

use std::time::{Duration, Instant};

/// Time since the first event, and that part of it in which there was always something to send.
/// Growth of windows and evictions go by the latter: what is not used proves nothing (RFC 7661,
/// RFC 9438 section 5.8).
#[derive(Debug, Default)]
pub(super) struct BusyClock {
    origin: Option<Instant>,
    /// Sum of the periods in which the queue was empty.
    idle: Duration,
    /// Begin of the current such period.
    idle_since: Option<Instant>,
}

impl BusyClock {
    /// Time since the first call.
    pub(super) fn elapsed(&mut self, now: Instant) -> Duration {
        let origin = *self.origin.get_or_insert(now);
        now.saturating_duration_since(origin)
    }

    /// Busy seconds since the first call.
    pub(super) fn seconds(&mut self, now: Instant) -> f64 {
        let until = self.idle_since.map_or(now, |since| since.min(now));
        self.elapsed(until).saturating_sub(self.idle).as_secs_f64()
    }

    /// Whether there is nothing to send.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    /// Begins an idle period.
    pub(super) fn pause(&mut self, now: Instant) {
        self.elapsed(now);
        self.idle_since.get_or_insert(now);
    }

    /// Ends an idle period; returns its length.
    pub(super) fn resume(&mut self, now: Instant) -> Duration {
        self.elapsed(now);
        let Some(since) = self.idle_since.take() else {
            return Duration::ZERO;
        };
        let paused = now.saturating_duration_since(since);
        self.idle += paused;
        paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_periods_do_not_count() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut clock = BusyClock::default();
        assert_eq!(clock.seconds(start), 0.0);
        clock.pause(start + second);
        clock.pause(start + second * 2);
        assert!(clock.is_idle());
        assert_eq!(clock.seconds(start + second * 5), 1.0);
        assert_eq!(clock.resume(start + second * 5), second * 4);
        assert_eq!(clock.resume(start + second * 6), Duration::ZERO);
        assert_eq!(clock.seconds(start + second * 7), 3.0);
        assert_eq!(clock.elapsed(start + second * 7), second * 7);
    }
}
