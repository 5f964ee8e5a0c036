//! A bound on what others' servers are asked for on behalf of a feed.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

/// So many things in an hour.
#[derive(Debug)]
pub(super) struct Hourly {
    most: usize,
    /// When the present hour began, and how many there were in it.
    spent: Mutex<(Instant, usize)>,
}

impl Hourly {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            spent: Mutex::new((Instant::now(), 0)),
        }
    }

    /// Most of them.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Counts one, if there may be one more.
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
    fn so_many_in_an_hour() {
        let (hourly, now) = (Hourly::new(3), Instant::now());
        let taken = |at: Duration| (0..5).filter(|_| hourly.take_at(now + at)).count();
        assert_eq!(taken(Duration::ZERO), 3);
        assert_eq!(taken(HOUR / 2), 0);
        assert_eq!(taken(HOUR + Duration::from_secs(1)), 3);
        assert_eq!(taken(HOUR + Duration::from_secs(2)), 0);
    }
}
