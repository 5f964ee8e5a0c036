//! Attempts to store after failures.

use std::time::{Duration, Instant};

use service::backoff::Backoff;

/// Longest wait as a multiple of the first one.
const GROWTH: u32 = 32;

/// Longest wait, unless the first one is longer: a store that has recovered should not have to
/// wait.
const LONGEST: Duration = Duration::from_secs(30);

/// Attempts to store, with waits that grow during failures.
#[derive(Debug)]
pub(super) struct StoreRetries {
    waits: Backoff,
    failures: u32,
    /// Time of the next attempt.
    pub(super) due: Instant,
}

impl StoreRetries {
    /// Returns attempts that wait `first` after the first failure.
    pub(super) fn new(first: Duration) -> Self {
        let longest = first.saturating_mul(GROWTH).min(LONGEST.max(first));
        Self {
            waits: Backoff::new(first, longest),
            failures: 0,
            due: Instant::now(),
        }
    }

    /// Records a success, which resets the wait. Returns the number of consecutive failures before
    /// it.
    pub(super) fn succeeded(&mut self) -> u32 {
        std::mem::take(&mut self.failures)
    }

    /// Records another failure. Returns the wait, with a jitter of a tenth, so that feeds which
    /// wait for one store do not all return at once.
    pub(super) fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = self.waits.after(self.failures);
        let wait = wait.mul_f64(rand::random_range(0.9..=1.1));
        self.due = Instant::now() + wait;
        wait
    }

    /// Whether the last attempt failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
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
        let mut retries = StoreRetries::new(Duration::from_secs(1));
        assert!(!retries.is_failing() && retries.due <= Instant::now());
        for expected in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            let wait = retries.failed();
            assert!(near(wait, expected), "{wait:?} {expected}");
            assert!(retries.is_failing() && retries.due > Instant::now());
        }
        assert_eq!(retries.succeeded(), 7);
        assert_eq!(retries.succeeded(), 0);
        assert!(near(retries.failed(), 1.0));
    }

    #[test]
    fn waits_grow_up_to_a_multiple_of_a_short_first_one() {
        let mut retries = StoreRetries::new(Duration::from_millis(10));
        let last = (0..10).map(|_| retries.failed()).last();
        assert!(last.is_some_and(|wait| near(wait, 0.32)), "{last:?}");
    }

    #[test]
    fn a_long_wait_does_not_become_longer() {
        let mut retries = StoreRetries::new(Duration::from_secs(3600));
        for _ in 0..100 {
            assert!(near(retries.failed(), 3600.0));
        }
    }

    #[test]
    fn waits_vary() {
        let wait = || StoreRetries::new(Duration::from_secs(1)).failed();
        let first = wait();
        assert!((0..100).any(|_| wait() != first));
    }
}
