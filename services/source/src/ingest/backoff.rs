//! Waits between attempts after failures.

use std::time::Duration;

/// Doublings of the wait after consecutive failures: 32 times the first wait.
const DOUBLINGS: u32 = 5;

/// Longest wait, unless the first one is longer: a store that has recovered should not have to
/// wait.
const LONGEST: Duration = Duration::from_secs(30);

/// Waits that grow during failures.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    first: Duration,
    failures: u32,
}

impl Backoff {
    /// Returns a backoff that waits `first` without failures, and after the first one.
    pub(super) fn new(first: Duration) -> Self {
        Self { first, failures: 0 }
    }

    /// Records a success, which resets the wait. Returns the number of consecutive failures before
    /// it.
    pub(super) fn succeeded(&mut self) -> u32 {
        std::mem::take(&mut self.failures)
    }

    /// Records another failure.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether the last attempt failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Returns the next wait, with a jitter of a tenth, so that feeds which wait for one store do
    /// not all return at once.
    pub(super) fn next(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(DOUBLINGS);
        let longest = LONGEST.max(self.first);
        let wait = self.first.saturating_mul(1 << doublings).min(longest);
        wait.mul_f64(rand::random_range(0.9..=1.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(wait: Duration, seconds: f64) -> bool {
        let is = wait.as_secs_f64();
        is >= seconds * 0.89 && is <= seconds * 1.11
    }

    #[test]
    fn waits_grow_with_failures_and_reset_on_success() {
        let mut pause = Backoff::new(Duration::from_secs(1));
        assert!(near(pause.next(), 1.0));
        for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            pause.failed();
            let wait = pause.next();
            assert!(near(wait, expected), "{wait:?} {expected}");
        }
        assert_eq!(pause.succeeded(), 7);
        assert_eq!(pause.succeeded(), 0);
        assert!(near(pause.next(), 1.0));
    }

    #[test]
    fn a_long_wait_does_not_become_longer() {
        let mut pause = Backoff::new(Duration::from_secs(3600));
        for _ in 0..100 {
            pause.failed();
        }
        assert!(near(pause.next(), 3600.0));
    }

    #[test]
    fn waits_vary() {
        let pause = Backoff::new(Duration::from_secs(1));
        let first = pause.next();
        assert!((0..100).any(|_| pause.next() != first));
    }
}
