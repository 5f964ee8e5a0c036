//! Updates that are delivered, and updates in progress.

use super::offset::HookOffset;

/// A hook's position in a channel's journal.
pub(super) struct Progress {
    /// Persisted part.
    pub(super) offset: HookOffset,
    /// Next position to deliver.
    pub(super) next: u64,
}

impl Progress {
    /// Whether this position is delivered.
    pub(super) fn is_done(&self, position: u64) -> bool {
        position < self.offset.position || self.offset.done.contains(position)
    }

    /// Marks this position as delivered.
    pub(super) fn done(&mut self, position: u64) {
        if position >= self.offset.position {
            self.offset.done.insert(position);
        }
        self.go_on();
    }

    /// Advances the persisted offset.
    fn go_on(&mut self) {
        if let Some(end) = self.offset.done.take_from(self.offset.position) {
            self.offset.position = end;
        }
    }

    /// Marks everything before `end` as delivered.
    pub(super) fn skip_to(&mut self, end: u64) {
        if self.offset.position < end {
            self.offset.position = end;
            self.offset.done.forget_before(end);
            self.go_on();
        }
        self.next = self.next.max(self.offset.position);
    }
}
