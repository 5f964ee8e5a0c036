//! Grants of members, and the smallest of them (protocol.md section 4.8).

use std::cmp::Ordering;
use std::time::Instant;

/// Minimum of a new member's grant before its first FC_WINDOW, in bytes (protocol.md section 4.8).
pub const INITIAL_WINDOW: u64 = 1 << 20;

/// Bytes of a window below which it is nearly used up: its owner should have granted more.
const LOW: u64 = INITIAL_WINDOW / 2;

/// Grant of one member.
#[derive(Debug)]
pub(crate) struct Grant {
    /// Channel offset up to which the member lets the flow send.
    limit: u64,
    /// Time since which the flow waits for the member to grant more.
    blocking_since: Option<Instant>,
}

impl Grant {
    pub(super) fn new(limit: u64) -> Self {
        Grant {
            limit,
            blocking_since: None,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Raises the grant, which then blocks nothing; returns whether it grew. Grants only grow.
    pub(super) fn raise(&mut self, limit: u64) -> bool {
        let grows = limit > self.limit;
        if grows {
            *self = Grant::new(limit);
        }
        grows
    }

    /// Returns since when the flow waits for this grant.
    pub(super) fn blocking_since(&self) -> Option<Instant> {
        self.blocking_since
    }

    /// Notes that the flow waits for this grant since `since`.
    pub(super) fn block(&mut self, since: Instant) {
        self.blocking_since = Some(since);
    }

    /// Notes that the flow waits for this grant since `now`, unless it did before.
    pub(super) fn block_from(&mut self, now: Instant) {
        self.blocking_since.get_or_insert(now);
    }
}

/// Smallest grant of all members.
#[derive(Debug)]
pub(super) struct Window {
    limit: u64,
    /// Members that have granted no more than that.
    lowest: usize,
    /// Time since which the window is nearly used up.
    low_since: Option<Instant>,
    /// Whether the next byte of the flow is beyond the window.
    blocked: bool,
}

impl Window {
    /// The window of a flow without members.
    pub(super) fn unlimited() -> Self {
        Window {
            limit: u64::MAX,
            lowest: 0,
            low_since: None,
            blocked: false,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether a grant is among the smallest.
    pub(super) fn is_lowest(&self, grant: &Grant) -> bool {
        grant.limit <= self.limit
    }

    /// Counts the grant of a new member; returns whether it is smaller than all others.
    pub(super) fn add(&mut self, grant: u64) -> bool {
        self.lowest += usize::from(grant == self.limit);
        grant < self.limit
    }

    /// Counts that one of the smallest grants has grown or is gone; returns whether it was the last
    /// of them. All others are looked at only then: members grant by turns, and each costs nothing
    /// for the others.
    pub(super) fn remove_lowest(&mut self) -> bool {
        self.lowest = self.lowest.saturating_sub(1);
        self.lowest == 0
    }

    /// Replaces the grants by those of all members. `position` is the channel offset of the next
    /// byte, if there is one: the flow resumes if that is within the window.
    pub(super) fn set(&mut self, grants: impl Iterator<Item = u64>, position: Option<u64>) {
        let (mut limit, mut lowest) = (u64::MAX, 0);
        for grant in grants {
            match grant.cmp(&limit) {
                Ordering::Less => (limit, lowest) = (grant, 1),
                Ordering::Equal => lowest += 1,
                Ordering::Greater => {}
            }
        }
        self.lowest = lowest;
        if limit > self.limit {
            self.low_since = None;
        }
        self.limit = limit;
        self.blocked &= position.is_some_and(|at| at >= limit);
    }

    /// Notes how far the flow was sent: a member whose window gets low has to grant more from now
    /// on.
    pub(super) fn sent_up_to(&mut self, offset: u64, now: Instant) {
        if self.low_since.is_none() && self.limit.saturating_sub(offset) < LOW {
            self.low_since = Some(now);
        }
    }

    /// Blocks the flow, if it is not blocked yet; returns since when its members had to grant
    /// more.
    pub(super) fn block(&mut self, now: Instant) -> Option<Instant> {
        let is_new = !std::mem::replace(&mut self.blocked, true);
        is_new.then(|| self.low_since.unwrap_or(now))
    }

    /// Ends the waiting for grants: nothing is to be sent.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn members_have_to_grant_more_from_the_low_mark_on() {
        let now = Instant::now();
        let mut window = Window::unlimited();
        window.set([2 * LOW].into_iter(), Some(0));
        window.sent_up_to(LOW, now);
        let low = now + Duration::from_secs(1);
        window.sent_up_to(LOW + 1, low);
        let later = low + Duration::from_secs(1);
        assert_eq!(window.block(later), Some(low));
        assert_eq!(window.block(later), None, "already blocked");
        window.set([2 * LOW].into_iter(), Some(2 * LOW));
        assert!(window.is_blocked());
        window.set([4 * LOW].into_iter(), Some(2 * LOW));
        assert!(!window.is_blocked());
        assert_eq!(
            window.block(later),
            Some(later),
            "the new window was not low"
        );
    }

    #[test]
    fn all_grants_count_again_when_the_last_of_the_smallest_grows() {
        let mut window = Window::unlimited();
        window.set([7, 5, 5].into_iter(), None);
        assert_eq!(window.limit(), 5);
        assert!(!window.add(9) && !window.add(5) && window.add(4));
        let last: Vec<_> = (0..3).map(|_| window.remove_lowest()).collect();
        assert_eq!(last, [false, false, true]);
        window.set([].into_iter(), None);
        assert_eq!(window.limit(), u64::MAX);
    }

    #[test]
    fn a_larger_grant_blocks_nothing() {
        let now = Instant::now();
        let mut grant = Grant::new(10);
        grant.block_from(now);
        grant.block_from(now + Duration::from_secs(1));
        assert!(!grant.raise(10));
        assert_eq!(grant.blocking_since(), Some(now));
        assert!(grant.raise(11));
        assert_eq!((grant.limit(), grant.blocking_since()), (11, None));
    }
}
