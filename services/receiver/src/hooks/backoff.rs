//! Delays between attempts.

use std::time::Duration;

use rand::RngExt;
use service::backoff::Backoff;

/// Longest delay that a server can ask for.
const MAX_AFTER: Duration = Duration::from_secs(3600);

/// Growing delays, from the first to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// Largest delay after the first failure.
    pub first: Duration,
    /// Longest delay, unless the server asks for more.
    pub max: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            max: Duration::from_secs(300),
        }
    }
}

impl Pauses {
    /// Returns the delay after the given number of failures, which doubles with each, minus a
    /// random part of up to a half, so that many hooks do not retry at the same moment. Not shorter
    /// than
    /// `after`, which the server asked for.
    #[must_use]
    pub fn after(self, failures: u32, after: Option<Duration>) -> Duration {
        let most = Backoff::new(self.first, self.max).after(failures);
        let pause = most.mul_f64(rand::rng().random_range(0.5..=1.0));
        after.map_or(pause, |after| pause.max(after.min(MAX_AFTER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_differ() {
        let pauses = Pauses::default();
        let mut seen = Vec::new();
        for failures in 1..100 {
            let pause = pauses.after(failures, None);
            let most = Duration::from_secs(1 << (failures - 1).min(20)).min(pauses.max);
            assert!(pause <= most && pause >= most / 2, "{failures}: {pause:?}");
            seen.push(pause);
        }
        seen.sort();
        seen.dedup();
        assert!(seen.len() > 50);
    }

    #[test]
    fn retry_after_is_honoured_within_bounds() {
        let pauses = Pauses::default();
        let asked = Duration::from_secs(900);
        assert_eq!(pauses.after(1, Some(asked)), asked);
        assert_eq!(pauses.after(1, Some(Duration::MAX)), MAX_AFTER);
        assert!(pauses.after(5, Some(Duration::ZERO)) >= Duration::from_secs(8));
    }
}
