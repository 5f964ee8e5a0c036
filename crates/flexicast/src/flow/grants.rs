//! Windows: the flow sends no further than the smallest grant of its members; a member that stops
//! granting falls back (protocol.md section 4.8).

use std::time::{Duration, Instant};

use super::member::Member;
use super::sender::{FlowSender, INITIAL_WINDOW, MemberId};
use crate::Cause;
use crate::control::Anchor;

/// A member that the flow waits for is given at least so long to grant more.
const MIN_PATIENCE: Duration = Duration::from_millis(100);
/// A window that has less than this left is nearly used up, and its owner should have granted more.
const LOW: u64 = INITIAL_WINDOW / 2;
/// The most that a new member is taken to grant before it says so.
const MAX_INITIAL: u64 = 8 << 20;

impl FlowSender {
    /// Returns the offset from which a new member's grants count the channel's bytes.
    pub fn anchor(&self) -> Anchor {
        Anchor {
            seq: self.next_seq(),
            offset: self.pushed,
        }
    }

    /// Returns the initial grant of a new member: half a second of the flow's rate, so that its
    /// first FC_WINDOW comes in time.
    pub(super) fn initial_window(&self) -> u64 {
        let half_second = self.config.rate.map_or(MAX_INITIAL, |rate| rate / 16);
        half_second.clamp(INITIAL_WINDOW, MAX_INITIAL)
    }

    /// A member lets the flow send up to the channel offset `granted`. Grants only grow.
    pub fn on_window(&mut self, member: MemberId, granted: u64) {
        let Some(member) = self.members.get_mut(&member) else {
            return;
        };
        if granted <= member.granted {
            return;
        }
        let lowest = member.granted <= self.granted;
        member.granted = granted;
        member.blocking_since = None;
        if lowest {
            self.regrant();
        }
    }

    /// Recomputes the smallest grant; a flow blocked by it resumes.
    pub(super) fn regrant(&mut self) {
        let granted = self.members.values().map(|m| m.granted).min();
        let granted = granted.unwrap_or(u64::MAX);
        if granted > self.granted {
            self.low_since = None;
        }
        self.granted = granted;
        let front = self.queue.front().map(|o| o.start + o.offset as u64);
        self.blocked &= front.is_some_and(|at| at >= self.granted);
    }

    /// Notes how far the flow was sent: a member whose window gets low has to grant more from now
    /// on.
    pub(super) fn sent_up_to(&mut self, offset: u64, now: Instant) {
        if self.low_since.is_none() && self.granted.saturating_sub(offset) < LOW {
            self.low_since = Some(now);
        }
    }

    /// Handles a next byte beyond some member's grant. Members that had time enough to grant more
    /// leave at once, so that the others do not wait.
    pub(super) fn block(&mut self, now: Instant) {
        if std::mem::replace(&mut self.blocked, true) {
            return;
        }
        self.stats.blocked += 1;
        let (granted, since) = (self.granted, self.low_since.unwrap_or(now));
        let blocking = self.members.values_mut().filter(|m| m.granted <= granted);
        blocking.for_each(|m| m.blocking_since = Some(since));
        self.drop_blocking(now);
    }

    fn patience(&self, member: &Member) -> Duration {
        let round_trips = member.rtt.smoothed() * 2;
        self.config.fall_back.max(MIN_PATIENCE).max(round_trips)
    }

    /// When the first member that holds the flow up has to leave it.
    pub(super) fn blocked_until(&self) -> Option<Instant> {
        if !self.blocked {
            return None;
        }
        let blocking = self.members.values().filter(|m| m.granted <= self.granted);
        let until = |m: &Member| {
            m.blocking_since
                .or(self.last_sent)
                .map(|at| at + self.patience(m))
        };
        blocking.filter_map(until).min()
    }

    /// Drops members that hold the flow up for too long.
    pub(super) fn drop_blocking(&mut self, now: Instant) {
        if !self.blocked {
            return;
        }
        let granted = self.granted;
        let blocking = self.members.values_mut().filter(|m| m.granted <= granted);
        blocking.for_each(|m| {
            m.blocking_since.get_or_insert(now);
        });
        let late = |m: &Member| {
            let since = m.blocking_since.filter(|_| m.granted <= granted);
            since.is_some_and(|since| since + self.patience(m) <= now)
        };
        let slow = self.members.iter().filter(|(_, m)| late(m));
        let slow: Vec<_> = slow.map(|(id, _)| *id).collect();
        for member in slow {
            self.drop_member(member, Cause::TooSlow);
        }
    }
}
