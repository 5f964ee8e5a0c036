//! The unicast paths of all receivers together: their turns, and the open catch-up streams.

use std::collections::BTreeSet;
use std::time::Instant;

use super::pacing::{Pacing, Urgency};
use super::types::{ChannelIndex, SessionId, Unicast};

/// While no more than so many catch up, the store is read ahead for each of them: what that holds
/// stays bounded.
const READ_AHEAD: usize = 64;

/// Order of the unicast paths.
#[derive(Debug)]
pub(super) struct UnicastSchedule {
    pacing: Pacing,
    /// Sessions with a catch-up stream, by channel.
    catching_up: BTreeSet<(SessionId, ChannelIndex)>,
}

impl UnicastSchedule {
    /// A schedule for `rate` bit/s on all paths together.
    pub(super) fn new(rate: Option<u64>) -> Self {
        UnicastSchedule {
            pacing: Pacing::new(rate),
            catching_up: BTreeSet::new(),
        }
    }

    /// Returns the number of open catch-up streams.
    pub(super) fn catching_up(&self) -> usize {
        self.catching_up.len()
    }

    /// Whether the store may be read ahead for receivers that catch up.
    pub(super) fn may_read_ahead(&self) -> bool {
        self.catching_up.len() <= READ_AHEAD
    }

    /// Whether a session with something to send may do so now. If not, it waits for its turn, with
    /// the urgency of what it has.
    pub(super) fn may_send(
        &mut self,
        id: SessionId,
        urgency: impl FnOnce() -> Urgency,
        now: Instant,
    ) -> bool {
        let mut its = self.catching_up.range((id, 0)..(id + 1, 0));
        let is_late = its.next().is_some();
        self.pacing.may_send(id, is_late, urgency, now)
    }

    /// Notes what was handed to a session's unicast path; returns the bytes of updates in it.
    pub(super) fn note(&mut self, id: SessionId, channel: ChannelIndex, item: &Unicast) -> usize {
        let (head, body) = match item {
            Unicast::Stream { head, body, .. } => (head, body),
            Unicast::CatchUp { head, body, .. } => {
                self.catching_up.insert((id, channel));
                (head, body)
            }
            Unicast::CatchUpEnd { .. } => {
                self.catching_up.remove(&(id, channel));
                return 0;
            }
            Unicast::Fetch { .. } | Unicast::Idle => return 0,
        };
        self.pacing.sent(head.len() + body.len());
        body.len()
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&mut self, id: SessionId) {
        self.pacing.forget(id);
        self.catching_up.retain(|(session, _)| *session != id);
    }

    /// Returns when the next session has its turn.
    pub(super) fn next_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.pacing.next(now)
    }

    /// Gives the next session its turn, if the rate allows it.
    pub(super) fn release(&mut self, now: Instant) -> Option<SessionId> {
        self.pacing.release(now)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_few_that_catch_up_are_read_ahead_for() {
        let mut schedule = UnicastSchedule::new(None);
        let more = Unicast::CatchUp {
            channel: 0,
            head: vec![0; 3],
            body: Bytes::from_static(b"update"),
        };
        for id in 0..READ_AHEAD as u64 {
            assert_eq!(schedule.note(id, 0, &more), 6);
        }
        assert_eq!(schedule.note(0, 0, &more), 6);
        assert!(schedule.may_read_ahead());
        schedule.note(100, 0, &more);
        assert!(!schedule.may_read_ahead());
        schedule.note(100, 0, &Unicast::CatchUpEnd { channel: 0 });
        schedule.forget(0);
        assert_eq!(schedule.catching_up(), READ_AHEAD - 1);
    }
}
