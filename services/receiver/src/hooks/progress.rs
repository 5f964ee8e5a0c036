//! Updates that are delivered, and updates in progress.

use super::offset::HookOffset;

/// A hook's position in a channel's journal.
pub(super) struct Progress {
    /// The part that is persisted.
    pub(super) offset: HookOffset,
    /// The next position to take in hand.
    pub(super) next: u64,
}

impl Progress {
    /// Whether this position is done, be it by somebody else.
    pub(super) fn is_done(&self, position: u64) -> bool {
        position < self.offset.position || self.offset.done.contains(position)
    }

    /// This position is done.
    pub(super) fn done(&mut self, position: u64) {
        if position >= self.offset.position {
            self.offset.done.insert(position);
        }
        self.go_on();
    }

    /// Deliveries from here on count as past the persisted offset.
    fn go_on(&mut self) {
        if let Some(end) = self.offset.done.take_from(self.offset.position) {
            self.offset.position = end;
        }
    }

    /// Everything before `end` is done.
    pub(super) fn skip_to(&mut self, end: u64) {
        if self.offset.position < end {
            self.offset.position = end;
            self.offset.done.forget_before(end);
            self.go_on();
        }
        self.next = self.next.max(self.offset.position);
    }
}
