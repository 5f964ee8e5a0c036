//! A receiver of a crowd: its acknowledgements are the real receiver's, its updates are counted.

use std::ops::Range;
use std::time::Instant;

use flexicast::ack::AckTracker;
use flexicast::range::RangeSet;

use super::UPDATE;

/// Bytes that a receiver grants the flow ahead of what it has handed out, in quarters of which the
/// grant grows.
const WINDOW: u64 = 16 << 20;

/// A part of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) seq: u64,
    pub(super) range: Range<u64>,
}

impl Piece {
    fn is_whole(&self) -> bool {
        self.range == (0..UPDATE as u64)
    }
}

/// One receiver.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) tracker: AckTracker,
    /// Whether multicast reaches it.
    pub(super) reached: bool,
    /// Whether the source counts on its acknowledgements.
    pub(super) is_member: bool,
    /// Tick for which its next acknowledgement is planned; 0 for none.
    pub(super) planned: u64,
    /// Last cursor that it sent.
    pub(super) confirmed: u64,
    /// Largest window that it granted.
    granted: u64,
    pub(super) windows: u64,
    /// Next update of which nothing has come.
    next: u64,
    /// Earlier updates of which something is missing, with what has come.
    partial: Vec<(u64, RangeSet)>,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver {
            tracker: AckTracker::new(),
            reached: true,
            is_member: true,
            planned: 0,
            confirmed: 0,
            granted: 0,
            windows: 0,
            next: 1,
            partial: Vec::new(),
        }
    }

    /// Last update up to which it has everything.
    pub(super) fn cursor(&self) -> u64 {
        let next = self.partial.first().map_or(self.next, |(seq, _)| *seq);
        next - 1
    }

    /// Takes a part of an update, by whichever path.
    pub(super) fn take(&mut self, piece: &Piece) {
        if piece.seq == self.next && piece.is_whole() {
            self.next += 1;
            return;
        }
        while self.next <= piece.seq {
            self.partial.push((self.next, RangeSet::new()));
            self.next += 1;
        }
        let found = self
            .partial
            .binary_search_by_key(&piece.seq, |(seq, _)| *seq);
        let Some((at, (_, got))) = found
            .ok()
            .and_then(|at| Some((at, self.partial.get_mut(at)?)))
        else {
            // It has the whole update.
            return;
        };
        got.insert(piece.range.clone());
        if got.contains_range(0..UPDATE as u64) {
            self.partial.remove(at);
        }
    }

    /// Returns the deadline of its acknowledgement.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.tracker.deadline().filter(|_| self.is_member)
    }

    /// Returns the window to grant, if it is time for a larger one.
    pub(super) fn extend_window(&mut self) -> Option<u64> {
        let offset = self.cursor() * UPDATE as u64 + WINDOW;
        let grows = offset >= self.granted + WINDOW / 4;
        if grows {
            self.granted = offset;
            self.windows += 1;
        }
        grows.then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(seq: u64, range: Range<u64>) -> Piece {
        Piece { seq, range }
    }

    #[test]
    fn updates_count_once_they_are_whole() {
        let (len, mut receiver) = (UPDATE as u64, Receiver::new());
        receiver.take(&piece(1, 0..len));
        assert_eq!(receiver.cursor(), 1);
        receiver.take(&piece(3, 0..10));
        receiver.take(&piece(4, 0..len));
        assert_eq!(receiver.cursor(), 1);
        receiver.take(&piece(2, 0..len));
        assert_eq!(receiver.cursor(), 2);
        receiver.take(&piece(2, 0..len));
        receiver.take(&piece(3, 5..len));
        assert_eq!(receiver.cursor(), 4);
    }
}
