//! Updates that a receiver's outputs lack although the flow's ledger counts all of them as
//! received: a forged packet number acknowledges the lost real one. They are sent again, once each
//! (protocol.md section 7.3). An update is overdue if the cursor is before it, and the same, at two
//! looks.

use std::ops::RangeInclusive;

use crate::Cursor;

/// Updates sent again at once; more when the cursor has come to their end.
const AT_ONCE: u64 = 64;

/// Cursor beyond the head of its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CursorAhead;

/// Channel and flow at a look.
#[derive(Debug, Clone, Copy)]
pub(super) struct CursorBounds {
    pub(super) head: u64,
    /// Head at the look before.
    pub(super) last_head: u64,
    /// Oldest stored update.
    pub(super) first: u64,
}

/// Result of a look at one receiver's cursor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The cursor is at the head, or only another cursor changes anything.
    Settled,
    /// Another look is due.
    Open,
    /// Updates are overdue.
    Overdue(RangeInclusive<u64>),
}

/// Progress of a receiver's outputs in a channel, by its cursors.
#[derive(Debug)]
pub(super) struct Outputs {
    /// First update that WELCOME promised.
    first: u64,
    /// Newest cursor of the present history.
    cursor: Option<Cursor>,
    /// `seq` of the cursor in HELLO, of whichever history; 0 for none.
    hello_cursor: u64,
    /// Head at the first promotion on this connection; updates up to there came by unicast alone.
    entrusted_after: Option<u64>,
    /// Cursor at the last look, if it was before the head.
    seen: Option<u64>,
    /// Last update that was sent again.
    resent: u64,
}

impl Outputs {
    /// Outputs of a receiver that gets the updates from `first` on. `known` is the cursor of its
    /// HELLO, if it belongs to the present history, and `hello_cursor` the number that it said.
    pub(super) fn new(first: u64, known: Option<Cursor>, hello_cursor: u64) -> Self {
        Outputs {
            first,
            // A cursor at the beginning says that the outputs hold nothing.
            cursor: known.filter(|c| c.seq > 0),
            hello_cursor,
            entrusted_after: None,
            seen: None,
            resent: 0,
        }
    }

    pub(super) fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// Returns the last update that the outputs hold, or that was before the first one for them.
    pub(super) fn at(&self) -> u64 {
        let at = self.cursor.map_or(0, |cursor| cursor.seq);
        at.max(self.first.saturating_sub(1))
    }

    /// Notes that the receiver became a member of the flow.
    pub(super) fn entrust(&mut self, head: u64) {
        self.entrusted_after.get_or_insert(head);
    }

    /// Whether updates came by the flow on this connection.
    pub(super) fn is_watched(&self) -> bool {
        self.entrusted_after.is_some()
    }

    /// Takes a cursor; returns whether it is open: watched, and before the head.
    ///
    /// # Errors
    /// The cursor is beyond the head, and not of the history that WELCOME has ended.
    pub(super) fn update(&mut self, cursor: Cursor, head: u64) -> Result<bool, CursorAhead> {
        if cursor.seq <= head {
            self.cursor = Some(cursor);
            return Ok(cursor.seq < head && self.is_watched());
        }
        if cursor.seq > self.hello_cursor {
            return Err(CursorAhead);
        }
        Ok(false)
    }

    /// Looks at the cursor. `backlogged` says that the unicast path still has updates for the
    /// receiver, and `unsettled` returns the lowest update that the flow still owes it.
    pub(super) fn look(
        &mut self,
        sight: CursorBounds,
        backlogged: bool,
        unsettled: impl FnOnce() -> Option<u64>,
    ) -> Finding {
        let at = self.at();
        let Some(entrusted_after) = self.entrusted_after else {
            return Finding::Settled;
        };
        if at >= sight.head {
            self.seen = None;
            return Finding::Settled;
        }
        if self.seen.replace(at) != Some(at) {
            return Finding::Open;
        }
        // Sent by unicast alone so far, or sent again already: only the receiver is slow.
        if at < entrusted_after.max(self.resent) {
            return Finding::Settled;
        }
        let settled = unsettled().map_or(u64::MAX, |seq| seq.saturating_sub(1));
        let last = sight.last_head.min(at + AT_ONCE).min(settled);
        let first = sight.first.max(at + 1);
        if backlogged || last < first {
            return Finding::Open;
        }
        self.resent = last;
        Finding::Overdue(first..=last)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const SIGHT: CursorBounds = CursorBounds {
        head: 200,
        last_head: 150,
        first: 1,
    };

    fn cursor(seq: u64) -> Cursor {
        let incarnation = Uuid::nil();
        Cursor { incarnation, seq }
    }

    fn entrusted(at: u64) -> Outputs {
        let mut outputs = Outputs::new(1, None, 0);
        outputs.entrust(0);
        assert_eq!(outputs.update(cursor(at), SIGHT.head), Ok(true));
        outputs
    }

    #[test]
    fn updates_are_overdue_at_the_second_look_and_sent_again_once() {
        let mut outputs = entrusted(100);
        assert_eq!(outputs.look(SIGHT, false, || None), Finding::Open);
        let overdue = Finding::Overdue(101..=150);
        assert_eq!(outputs.look(SIGHT, false, || None), overdue);
        assert_eq!(outputs.look(SIGHT, false, || None), Finding::Settled);
    }

    #[test]
    fn whatever_is_on_its_way_is_not_overdue() {
        let mut outputs = entrusted(100);
        outputs.look(SIGHT, false, || None);
        assert_eq!(outputs.look(SIGHT, true, || None), Finding::Open);
        assert_eq!(outputs.look(SIGHT, false, || Some(101)), Finding::Open);
        let overdue = Finding::Overdue(101..=109);
        assert_eq!(outputs.look(SIGHT, false, || Some(110)), overdue);
    }

    #[test]
    fn at_most_so_many_updates_are_sent_again_at_once() {
        let mut outputs = entrusted(10);
        outputs.look(SIGHT, false, || None);
        let overdue = Finding::Overdue(11..=10 + AT_ONCE);
        assert_eq!(outputs.look(SIGHT, false, || None), overdue);
    }

    #[test]
    fn a_cursor_beyond_the_head_counts_only_in_the_present_history() {
        let mut outputs = Outputs::new(1, None, 500);
        assert_eq!(outputs.update(cursor(400), SIGHT.head), Ok(false));
        assert_eq!(outputs.cursor(), None);
        assert_eq!(outputs.update(cursor(501), SIGHT.head), Err(CursorAhead));
    }
}
