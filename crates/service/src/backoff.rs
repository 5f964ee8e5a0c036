//! Delays between attempts.

use std::time::Duration;

/// Delays that double from a first one up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Returns delays that begin with `first` and never exceed `max`, unless the first one does.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            next: first,
        }
    }

    /// Returns the delay before the next attempt; the one after that is twice as long.
    pub fn delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.max);
        delay
    }

    /// Returns to the first delay, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the delay after so many failures in a row, whatever was taken before.
    #[must_use]
    pub fn after(self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1));
        let delay = self.first.saturating_mul(doubled.unwrap_or(u32::MAX));
        delay.min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(2), seconds(11));
        let mut delays = || [backoff.delay(), backoff.delay(), backoff.delay()];
        assert_eq!(delays(), [2, 4, 8].map(seconds));
        assert_eq!(delays(), [11, 11, 11].map(seconds));
        backoff.reset();
        assert_eq!(backoff.delay(), seconds(2));
        let after = [0, 1, 2, 3, 4, 32, 33, u32::MAX].map(|failures| backoff.after(failures));
        assert_eq!(after, [2, 2, 4, 8, 11, 11, 11, 11].map(seconds));
    }
}
