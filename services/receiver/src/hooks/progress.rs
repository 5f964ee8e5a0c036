//! What is done, and what is in hand.

use super::place::Place;

/// How far a hook is in a channel's journal.
pub(super) struct Progress {
    /// What is written down of it.
    pub(super) place: Place,
    /// The next position to take in hand.
    pub(super) next: u64,
}

impl Progress {
    /// Whether this position is done, be it by somebody else.
    pub(super) fn is_done(&self, position: u64) -> bool {
        position < self.place.position || self.place.done.contains(position)
    }

    /// This position is done.
    pub(super) fn done(&mut self, position: u64) {
        if position >= self.place.position {
            self.place.done.insert(position);
        }
        self.go_on();
    }

    /// What is done from here on is behind.
    fn go_on(&mut self) {
        if let Some(end) = self.place.done.take_from(self.place.position) {
            self.place.position = end;
        }
    }

    /// Everything before `end` is done.
    pub(super) fn skip_to(&mut self, end: u64) {
        if self.place.position < end {
            self.place.position = end;
            self.place.done.forget_before(end);
            self.go_on();
        }
        self.next = self.next.max(self.place.position);
    }
}
