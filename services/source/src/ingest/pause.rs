//! How long to wait between attempts at something that failed.

use std::time::Duration;

/// Doublings of the wait after failures in a row: 32 times the first wait.
const DOUBLINGS: u32 = 5;

/// The longest wait, unless the first one is longer: a store that is back should not have to wait.
const LONGEST: Duration = Duration::from_secs(30);

/// Waits that grow while something fails.
#[derive(Debug, Clone)]
pub(super) struct Pause {
    first: Duration,
    failures: u32,
}

impl Pause {
    /// Without failures, and after the first one, `first` is waited.
    pub(super) fn new(first: Duration) -> Self {
        Self { first, failures: 0 }
    }

    /// Things work: the waits are short again. Returns how many failures in a row that ends.
    pub(super) fn succeeded(&mut self) -> u32 {
        std::mem::take(&mut self.failures)
    }

    /// Things failed, once more.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether the last attempt failed.
    pub(super) fn fails(&self) -> bool {
        self.failures > 0
    }

    /// The wait from now, give or take a tenth, so that feeds which wait for one store do not all
    /// come at once.
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
    fn waits_grow_with_failures_up_to_a_limit_and_shrink_with_success() {
        let mut pause = Pause::new(Duration::from_secs(1));
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
        let mut pause = Pause::new(Duration::from_secs(3600));
        for _ in 0..100 {
            pause.failed();
        }
        assert!(near(pause.next(), 3600.0));
    }

    #[test]
    fn waits_vary() {
        let pause = Pause::new(Duration::from_secs(1));
        let first = pause.next();
        assert!((0..100).any(|_| pause.next() != first));
    }
}
