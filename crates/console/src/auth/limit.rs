//! Rate limits of attempts: a token bucket each.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of keys with a bucket of their own.
const MOST: usize = 20_000;

/// Number of buckets dropped at once when there is no room: finding them takes a moment.
const GO: usize = MOST / 8;

/// Rate limits of attempts.
#[derive(Debug)]
pub struct Limits {
    /// To sign in, from an address, with any name.
    pub by_address: Buckets<IpAddr>,
    /// To sign in with a name, from an address.
    by_place: Buckets<(String, IpAddr)>,
    /// Sign-ins by name, from any address. High enough that locking a user out takes a hundred
    /// addresses; low enough that 10 characters are not guessed.
    by_name: Buckets<String>,
    /// To have it noted that an address tried too often.
    pub notes: Buckets<IpAddr>,
    /// Audit lines for refused attempts.
    pub refusals: Buckets<i64>,
    /// To have the console fetch something.
    pub fetches: Buckets<i64>,
    /// To publish messages and entries, by the hash of a token or session.
    pub messages: Buckets<store::Hash>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            by_address: Buckets::new(10, Duration::from_secs(30)),
            by_place: Buckets::new(10, Duration::from_secs(30)),
            by_name: Buckets::new(1_000, Duration::from_secs(3)),
            notes: Buckets::new(1, Duration::from_secs(60)),
            refusals: Buckets::new(30, Duration::from_secs(10)),
            fetches: Buckets::new(20, Duration::from_secs(3)),
            messages: Buckets::new(500, Duration::from_millis(10)),
        }
    }
}

impl Limits {
    /// Takes an attempt at a name's password. `address` stands for all that one client can have.
    ///
    /// # Errors
    /// There is none left: the wait until there is.
    pub fn sign_in(&self, name: &str, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let name = known_as(name);
        self.by_address.take(address, now)?;
        self.by_place.take((name.clone(), address), now)?;
        self.by_name.take(name, now)
    }

    /// Notes a right password: the name has all its attempts from this address again.
    /// The address only gets back the one that was no guess, since the others may have been guesses
    /// at other names; so may those with this name from elsewhere.
    pub fn signed_in(&self, name: &str, address: IpAddr) {
        self.by_address.give_back(&address);
        self.by_place.forgive(&(known_as(name), address));
    }
}

/// Returns a name as the database finds it: with other letters or spaces around it, it has no tries
/// of its own.
fn known_as(name: &str) -> String {
    name.trim().to_lowercase().chars().take(255).collect()
}

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
            make_room(&mut all, now);
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

    /// Gives the last attempt back.
    fn give_back(&self, key: &K) {
        let mut all = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(full_at) = all.get_mut(key)
            && let Some(before) = full_at.checked_sub(self.refill)
        {
            *full_at = before;
        }
    }

    /// Gives all attempts back.
    pub fn forgive(&self, key: &K) {
        let mut all = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(key);
    }
}

/// Drops full buckets, or else those that are full first: an exhausted bucket does not refill
/// because strangers come in crowds.
fn make_room<K: Hash + Eq>(all: &mut HashMap<K, Instant>, now: Instant) {
    all.retain(|_, full_at| *full_at > now);
    if all.len() < MOST {
        return;
    }
    let mut times: Vec<Instant> = all.values().copied().collect();
    let (_, last, _) = times.select_nth_unstable(GO - 1);
    let last = *last;
    // Many may be full at the same time.
    let mut left = GO;
    all.retain(|_, full_at| {
        let goes = left > 0 && *full_at <= last;
        left -= usize::from(goes);
        !goes
    });
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

    #[test]
    fn crowds_do_not_refill_an_exhausted_bucket() {
        let buckets = Buckets::new(3, Duration::from_secs(10));
        let now = Instant::now();
        for _ in 0..3 {
            buckets.take(usize::MAX, now).unwrap();
        }
        for key in 0..MOST * 2 {
            buckets.take(key, now).unwrap();
        }
        buckets.take(usize::MAX, now).unwrap_err();
        assert!(buckets.full_at.lock().unwrap().len() > MOST / 2);
    }

    fn address(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn strangers_cannot_lock_a_user_out() {
        let limits = Limits::default();
        let now = Instant::now();
        for stranger in 1..=90 {
            for _ in 0..10 {
                limits.sign_in("ann", address(stranger), now).unwrap();
            }
            limits.sign_in("ann", address(stranger), now).unwrap_err();
        }
        limits.sign_in("ann", address(200), now).unwrap();
        // The limit holds in whatever letters, and after a sign-in, too.
        limits.signed_in("ann", address(200));
        for stranger in 91..=100 {
            for _ in 0..10 {
                let _ = limits.sign_in(" ANN ", address(stranger), now);
            }
        }
        limits.sign_in("ann", address(201), now).unwrap_err();
        limits.sign_in("bob", address(202), now).unwrap();
    }

    #[test]
    fn ones_own_name_gives_no_tries_with_anothers() {
        let limits = Limits::default();
        let now = Instant::now();
        for guess in 0..20 {
            let tried = limits.sign_in("ann", address(1), now);
            assert_eq!(tried.is_ok(), guess < 10, "{guess}");
            if limits.sign_in("me", address(1), now).is_ok() {
                limits.signed_in("me", address(1));
            }
        }
    }

    #[test]
    fn ones_own_name_gives_no_tries_with_many_others() {
        let limits = Limits::default();
        let now = Instant::now();
        let mut guesses = 0;
        for name in 0..105 {
            let tried = limits.sign_in(&format!("name-{name}"), address(1), now);
            guesses += u32::from(tried.is_ok());
            if limits.sign_in("me", address(1), now).is_ok() {
                limits.signed_in("me", address(1));
            }
        }
        assert!(guesses <= 10, "{guesses}");
    }

    /// An office behind one address signs in as often as it wants.
    #[test]
    fn right_passwords_use_up_nothing() {
        let limits = Limits::default();
        let now = Instant::now();
        for name in 0..1_000 {
            let name = format!("name-{name}");
            limits.sign_in(&name, address(1), now).unwrap();
            limits.signed_in(&name, address(1));
        }
        // Nor do they pile up.
        for guess in 0..12 {
            let tried = limits.sign_in("ann", address(1), now);
            assert_eq!(tried.is_ok(), guess < 10, "{guess}");
        }
        for _ in 0..9 {
            limits.sign_in("bob", address(2), now).unwrap();
        }
        limits.sign_in("bob", address(2), now).unwrap();
        limits.signed_in("bob", address(2));
        limits.sign_in("bob", address(2), now).unwrap();
        limits.sign_in("bob", address(2), now).unwrap_err();
    }
}
