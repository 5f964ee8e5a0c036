//! Delays that double.

use std::time::Duration;

/// Delay after which a join that brings nothing is repeated for the first time.
pub(super) const REJOIN_FIRST: Duration = Duration::from_secs(3);
/// Maximum delay.
const MAX: Duration = Duration::from_secs(300);

/// A delay that doubles with each use, up to five minutes.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    /// Returns a backoff that begins with `first`.
    pub(super) fn new(first: Duration) -> Self {
        Backoff { first, next: first }
    }

    /// Begins with the first delay again.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the next delay.
    pub(super) fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(MAX);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_begin_again() {
        let mut backoff = Backoff::new(REJOIN_FIRST);
        let delays: Vec<_> = (0..9).map(|_| backoff.next_delay().as_secs()).collect();
        assert_eq!(delays, [3, 6, 12, 24, 48, 96, 192, 300, 300]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), REJOIN_FIRST);
    }
}
