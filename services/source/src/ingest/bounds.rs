//! Bounds on retained data: fetched entries in memory until they are stored, and known entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Memory limit of all feeds together, in bytes.
const MEMORY: usize = 256 << 20;

/// Smallest number of known entries of a feed, in addition to those that are in it.
const KNOWN: usize = 10_000;

/// Interval between removals of known entries that are no longer needed.
const TIDY: Duration = Duration::from_secs(6 * 3600);

/// Bounds on the data that an ingest retains.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Memory shared by all ingests of a process.
    pub memory: Arc<Memory>,
    /// Number of the feed's newest entries that stay known, in addition to those that are in it or
    /// of which the channel keeps an update.
    pub known: usize,
    /// Interval between removals of the others; also the delay of the first one after the start.
    pub tidy: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            memory: Arc::default(),
            known: KNOWN,
            tidy: TIDY,
        }
    }
}

/// Memory of everything that is fetched and not stored yet. While the store fails, feeds are not
/// polled once it is used up; earlier fetches are kept.
#[derive(Debug)]
pub struct Memory {
    bytes: usize,
    used: AtomicUsize,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(MEMORY)
    }
}

impl Memory {
    /// Returns a budget of `bytes`. Fetching is allowed while any byte is left.
    pub fn of(bytes: usize) -> Self {
        Self {
            bytes,
            used: AtomicUsize::new(0),
        }
    }

    /// Whether more may be fetched.
    pub fn has_room(&self) -> bool {
        self.used() < self.bytes
    }

    /// Returns the approximate number of bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Part of one holder, released when dropped.
#[derive(Debug)]
pub(super) struct Share {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Share {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, bytes: 0 }
    }

    /// Sets the bytes that the holder uses.
    pub(super) fn set(&mut self, bytes: usize) {
        let used = &self.memory.used;
        used.fetch_add(bytes, Ordering::Relaxed);
        used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// Whether more may be fetched.
    pub(super) fn has_room(&self) -> bool {
        self.memory.has_room()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_released() {
        let memory = Arc::new(Memory::of(100));
        let mut one = Share::new(Arc::clone(&memory));
        let mut two = Share::new(Arc::clone(&memory));
        one.set(60);
        assert!(two.has_room());
        two.set(70);
        assert!(!one.has_room() && memory.used() == 130);
        one.set(20);
        assert!(memory.has_room() && memory.used() == 90);
        drop((one, two));
        assert_eq!(memory.used(), 0);
    }
}
