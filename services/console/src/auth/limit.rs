//! How often somebody may try: a bucket for each, which fills up with time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many are kept apart.
const MOST: usize = 20_000;

/// Buckets of tries, one for each key.
#[derive(Debug)]
pub struct Buckets<K> {
    size: u32,
    refill: Duration,
    /// When each is full again.
    full_at: Mutex<HashMap<K, Instant>>,
}

impl<K: Hash + Eq> Buckets<K> {
    /// `size` tries at once, and one more each `refill`.
    #[must_use]
    pub fn new(size: u32, refill: Duration) -> Self {
        Self {
            size,
            refill,
            full_at: Mutex::default(),
        }
    }

    /// Takes a try.
    ///
    /// # Errors
    /// There is none left: the wait until there is.
    pub fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        let mut all = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST && !all.contains_key(&key) {
            all.retain(|_, full_at| *full_at > now);
            if all.len() >= MOST {
                // So many at once are no people. What each password costs bounds them, too.
                all.clear();
            }
        }
        let full_at = all.entry(key).or_insert(now);
        let after = (*full_at).max(now) + self.refill;
        let room = self.refill * self.size;
        let missing = after.saturating_duration_since(now).saturating_sub(room);
        if missing.is_zero() {
            *full_at = after;
            Ok(())
        } else {
            Err(missing)
        }
    }

    /// Gives tries back: it was no guess.
    pub fn forgive(&self, key: &K) {
        let mut all = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(key);
    }
}

/// Whole seconds to wait, at least one.
#[must_use]
pub fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tries_run_out_and_come_back() {
        let buckets = Buckets::new(3, Duration::from_secs(10));
        let start = Instant::now();
        for _ in 0..3 {
            buckets.take("a", start).unwrap();
        }
        let wait = buckets.take("a", start).unwrap_err();
        assert_eq!(wait, Duration::from_secs(10));
        assert_eq!(seconds(Duration::from_millis(9_001)), 10);
        buckets.take("b", start).unwrap();
        let later = start + Duration::from_secs(10);
        buckets.take("a", later).unwrap();
        buckets.take("a", later).unwrap_err();
        buckets.forgive(&"a");
        buckets.take("a", later).unwrap();
    }

    #[test]
    fn there_are_not_too_many() {
        let buckets = Buckets::new(1, Duration::from_secs(10));
        let now = Instant::now();
        for key in 0..MOST * 2 {
            buckets.take(key, now).unwrap();
        }
        assert!(buckets.full_at.lock().unwrap().len() <= MOST);
    }
}
