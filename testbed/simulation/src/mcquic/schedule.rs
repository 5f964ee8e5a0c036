//! Events of a run, by time.

use std::collections::BTreeMap;
use std::time::Instant;

/// Events in the order of their times, and of their scheduling where these are the same.
#[derive(Debug)]
pub(super) struct Schedule<E> {
    events: BTreeMap<(Instant, u64), E>,
    serial: u64,
}

impl<E> Schedule<E> {
    pub(super) fn new() -> Self {
        Schedule {
            events: BTreeMap::new(),
            serial: 0,
        }
    }

    pub(super) fn push(&mut self, at: Instant, event: E) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    /// Takes the next event that is not after `end`.
    pub(super) fn pop(&mut self, end: Instant) -> Option<(Instant, E)> {
        let (at, _) = self.events.first_key_value()?.0;
        if *at > end {
            return None;
        }
        let ((at, _), event) = self.events.pop_first()?;
        Some((at, event))
    }
}
