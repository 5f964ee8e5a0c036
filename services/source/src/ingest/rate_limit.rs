//! Limit of requests to foreign servers on behalf of a feed.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

/// Number of requests per hour.
#[derive(Debug)]
pub(super) struct HourlyLimit {
    most: usize,
    /// Start of the current hour, and the number of requests in it.
    spent: Mutex<(Instant, usize)>,
}

impl HourlyLimit {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            spent: Mutex::new((Instant::now(), 0)),
        }
    }

    /// Returns the largest number per hour.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Counts one request, if another one is allowed.
    pub(super) fn take(&self) -> bool {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> bool {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(spent.0) >= HOUR {
            *spent = (now, 0);
        }
        let may = spent.1 < self.most;
        if may {
            spent.1 += 1;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_per_hour_are_limited() {
        let (hourly, now) = (HourlyLimit::new(3), Instant::now());
        let taken = |at: Duration| (0..5).filter(|_| hourly.take_at(now + at)).count();
        assert_eq!(taken(Duration::ZERO), 3);
        assert_eq!(taken(HOUR / 2), 0);
        assert_eq!(taken(HOUR + Duration::from_secs(1)), 3);
        assert_eq!(taken(HOUR + Duration::from_secs(2)), 0);
    }
}
