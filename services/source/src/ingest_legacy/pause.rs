//! How long to wait: between polls, and between attempts at something that failed.

use std::time::Duration;

/// Doublings of the wait after failures in a row: 32 times the first wait.
const DOUBLINGS: u32 = 5;

/// The longest wait after failures, unless polls are rarer than that by themselves.
const LONGEST: Duration = Duration::from_secs(15 * 60);

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

    /// The wait from now, give or take a tenth, so that sources that were started together do not
    /// ask together. Never less than what a server `asked` for.
    pub(super) fn next(&self, asked: Option<Duration>) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(DOUBLINGS);
        let longest = LONGEST.max(self.first);
        let wait = self.first.saturating_mul(1 << doublings).min(longest);
        let wait = wait.mul_f64(rand::random_range(0.9..=1.1));
        // A little later than asked for is fine, a little earlier is not.
        let asked = asked.map(|asked| asked.mul_f64(rand::random_range(1.0..=1.1)));
        wait.max(asked.unwrap_or_default())
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
        let mut pause = Pause::new(Duration::from_secs(20));
        assert!(near(pause.next(None), 20.0));
        for expected in [20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 640.0] {
            pause.failed();
            let wait = pause.next(None);
            assert!(near(wait, expected), "{wait:?} {expected}");
        }
        assert_eq!(pause.succeeded(), 7);
        assert_eq!(pause.succeeded(), 0);
        assert!(near(pause.next(None), 20.0));
    }

    #[test]
    fn rare_polls_do_not_become_rarer_than_they_are() {
        let mut pause = Pause::new(Duration::from_secs(3600));
        for _ in 0..100 {
            pause.failed();
        }
        assert!(near(pause.next(None), 3600.0));
    }

    #[test]
    fn a_server_gets_the_time_that_it_asks_for() {
        let pause = Pause::new(Duration::from_secs(1));
        let asked = Duration::from_secs(100);
        for _ in 0..100 {
            let wait = pause.next(Some(asked));
            assert!(wait >= asked && wait < asked * 2, "{wait:?}");
        }
    }

    #[test]
    fn waits_vary() {
        let pause = Pause::new(Duration::from_secs(1));
        let first = pause.next(None);
        assert!((0..100).any(|_| pause.next(None) != first));
    }
}
