//! Windows: the flow sends no further than the smallest grant of its members; a member that stops
//! granting falls back (protocol.md section 4.8).

use std::time::{Duration, Instant};

use super::grants::INITIAL_WINDOW;
use super::member::Member;
use super::sender::{FlowSender, MemberId};
use crate::Cause;
use crate::control::Anchor;

/// A member that the flow waits for is given at least so long to grant more.
const MIN_PATIENCE: Duration = Duration::from_millis(100);
/// Maximum of the grant that a new member is assumed to have given.
const MAX_INITIAL: u64 = 8 << 20;

impl FlowSender {
    /// Returns the offset from which a new member's grants count the channel's bytes.
    pub fn anchor(&self) -> Anchor {
        Anchor {
            seq: self.queue.next_seq(),
            offset: self.queue.pushed(),
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
        let lowest = self.window.is_lowest(&member.grant);
        if member.grant.raise(granted) && lowest && self.window.remove_lowest() {
            self.regrant();
        }
    }

    /// Recomputes the smallest grant; a flow blocked by it resumes.
    pub(super) fn regrant(&mut self) {
        let grants = self.members.values().map(|m| m.grant.limit());
        self.window.set(grants, self.queue.position());
    }

    /// Handles a next byte beyond some member's grant. Members that had time enough to grant more
    /// leave at once, so that the others do not wait.
    pub(super) fn block(&mut self, now: Instant) {
        let Some(since) = self.window.block(now) else {
            return;
        };
        self.stats.blocked += 1;
        for member in self.members.values_mut() {
            if self.window.is_lowest(&member.grant) {
                member.grant.block(since);
            }
        }
        self.drop_blocking(now);
    }

    /// Returns how long a member may hold up the flow that it blocks since `since`.
    fn patience(&self, member: &Member, since: Instant, now: Instant) -> Duration {
        let round_trips = member.rtt.smoothed() * 2;
        let patience = self.config.fall_back.max(MIN_PATIENCE).max(round_trips);
        patience + self.delays.lag.within(since, now)
    }

    /// When the first member that holds the flow up has to leave it.
    pub(super) fn blocked_until(&self, now: Instant) -> Option<Instant> {
        if !self.window.is_blocked() {
            return None;
        }
        let blocking = self.members.values();
        let blocking = blocking.filter(|m| self.window.is_lowest(&m.grant));
        let until = |m: &Member| {
            let since = m.grant.blocking_since().or(self.pings.last_sent())?;
            Some(since + self.patience(m, since, now))
        };
        blocking.filter_map(until).min()
    }

    /// Drops members that hold the flow up for too long.
    pub(super) fn drop_blocking(&mut self, now: Instant) {
        if !self.window.is_blocked() {
            return;
        }
        for member in self.members.values_mut() {
            if self.window.is_lowest(&member.grant) {
                member.grant.block_from(now);
            }
        }
        let late = |m: &Member| {
            let since = m.grant.blocking_since();
            let since = since.filter(|_| self.window.is_lowest(&m.grant));
            since.is_some_and(|since| since + self.patience(m, since, now) <= now)
        };
        let slow = self.members.iter().filter(|(_, m)| late(m));
        let slow: Vec<_> = slow.map(|(id, _)| *id).collect();
        for member in slow {
            self.drop_member(member, Cause::TooSlow);
        }
    }
}
