//! Grants of members, and the smallest of them (protocol.md section 4.8).

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

    /// Replaces the smallest grant; `None` without members. `position` is the channel offset of
    /// the next byte, if there is one: the flow resumes if that is within the window.
    pub(super) fn set(&mut self, limit: Option<u64>, position: Option<u64>) {
        let limit = limit.unwrap_or(u64::MAX);
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
        window.set(Some(2 * LOW), Some(0));
        window.sent_up_to(LOW, now);
        let low = now + Duration::from_secs(1);
        window.sent_up_to(LOW + 1, low);
        let later = low + Duration::from_secs(1);
        assert_eq!(window.block(later), Some(low));
        assert_eq!(window.block(later), None, "already blocked");
        window.set(Some(2 * LOW), Some(2 * LOW));
        assert!(window.is_blocked());
        window.set(Some(4 * LOW), Some(2 * LOW));
        assert!(!window.is_blocked());
        assert_eq!(
            window.block(later),
            Some(later),
            "the new window was not low"
        );
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
