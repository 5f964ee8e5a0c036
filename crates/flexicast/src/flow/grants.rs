//! Windows: the flow sends no further than the smallest grant of its members, and who stops granting falls back (protocol.md section 4.8).

use std::time::{Duration, Instant};

use super::sender::{FlowSender, MemberId};
use crate::Cause;
use crate::control::Anchor;

/// A member that the flow waits for is given at least so long to grant more.
const MIN_PATIENCE: Duration = Duration::from_millis(100);

impl FlowSender {
    /// Where the channel's bytes are counted from for whoever becomes a member now.
    pub fn anchor(&self) -> Anchor {
        Anchor {
            seq: self.next_seq(),
            offset: self.pushed,
        }
    }

    /// A member lets the flow send up to the channel offset `granted`. Grants only grow.
    pub fn on_window(&mut self, member: MemberId, granted: u64) {
        let Some(member) = self.members.get_mut(&member) else {
            return;
        };
        if granted > member.granted {
            member.granted = granted;
            member.blocking_since = None;
            self.regrant();
        }
    }

    /// Takes the smallest grant anew; the flow goes on if it was waiting for it.
    pub(super) fn regrant(&mut self) {
        let granted = self.members.values().map(|m| m.granted).min();
        self.granted = granted.unwrap_or(u64::MAX);
        let front = self.queue.front().map(|o| o.start + o.offset as u64);
        self.blocked &= front.is_some_and(|at| at >= self.granted);
    }

    /// The next byte is beyond somebody's grant.
    pub(super) fn block(&mut self, now: Instant) {
        if std::mem::replace(&mut self.blocked, true) {
            return;
        }
        self.stats.blocked += 1;
        let granted = self.granted;
        let blocking = self.members.values_mut().filter(|m| m.granted <= granted);
        blocking.for_each(|m| m.blocking_since = Some(now));
    }

    fn patience(&self) -> Duration {
        self.config.fall_back.max(MIN_PATIENCE)
    }

    /// When the first member that holds the flow up has to leave it.
    pub(super) fn blocked_until(&self) -> Option<Instant> {
        if !self.blocked {
            return None;
        }
        let since = self.members.values().filter(|m| m.granted <= self.granted);
        since
            .filter_map(|m| m.blocking_since)
            .min()
            .or(self.last_sent)
            .map(|at| at + self.patience())
    }

    /// Drops members that hold the flow up for too long.
    pub(super) fn drop_blocking(&mut self, now: Instant) {
        if !self.blocked {
            return;
        }
        let (granted, patience) = (self.granted, self.patience());
        let mut slow = Vec::new();
        for (id, member) in &mut self.members {
            if member.granted <= granted {
                let since = *member.blocking_since.get_or_insert(now);
                if since + patience <= now {
                    slow.push(*id);
                }
            }
        }
        for member in slow {
            self.drop_member(member, Cause::TooSlow);
        }
    }
}
