//! How much is kept of what was fetched: in memory until it is stored, and of what is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What all feeds together may hold in memory, in bytes.
const MEMORY: usize = 256 << 20;

/// So many entries of a feed are known at least, beside those that are in it.
const KNOWN: usize = 10_000;

/// How often it is looked for entries that need not be known any more.
const TIDY: Duration = Duration::from_secs(6 * 3600);

/// Bounds on what an ingest keeps.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Shared by all ingests of a process.
    pub memory: Arc<Memory>,
    /// So many of the feed's newest entries stay known, beside those that are in it or of which the
    /// channel keeps an update.
    pub known: usize,
    /// How often the others are forgotten; the first time is so long after the start.
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

/// The memory of all that is fetched and not stored yet. While the store is away, feeds are not
/// polled once it is used up; what was fetched by then is kept.
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
    /// So many bytes, and what is fetched while there is still one left.
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

    /// About how many bytes are held.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// One holder's part of it; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Share {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Self { memory, bytes: 0 }
    }

    /// So much is held from now on.
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
    fn shares_are_given_back() {
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
