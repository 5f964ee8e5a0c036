//! Copies to single receivers (rung 3): when they end, and when they pause (protocol.md section
//! 8.4).

use std::time::Instant;

use super::{ChannelIndex, SessionId, Source};
use crate::Cause;

impl Source {
    /// Nothing shows that the copies arrive: they end.
    pub(super) fn end_unproved_replication(
        &mut self,
        id: SessionId,
        c: ChannelIndex,
        now: Instant,
    ) {
        let Some(subscription) = self.sessions.get_mut(&id).and_then(|s| s.subscription(c)) else {
            return;
        };
        if subscription.ladder.expire_replication(now) {
            self.counters.copies_unproved += 1;
            self.recount(id, c);
        }
    }

    /// Sets whether the session's current address is validated. Replication is paused while it is
    /// not: the packets could hit a third party.
    pub fn set_validated(&mut self, id: SessionId, validated: bool, now: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut session.validated, validated) == validated {
            return;
        }
        for c in session.channels() {
            self.recount(id, c);
            self.flow_events(c, now);
        }
    }

    /// A copy could not be sent to its receiver: it gets no more of them. Others are not affected.
    pub fn replica_failed(&mut self, id: SessionId, c: ChannelIndex, now: Instant) {
        let Some(subscription) = self.sessions.get_mut(&id).and_then(|s| s.subscription(c)) else {
            return;
        };
        if !subscription.ladder.is_replicated() {
            return;
        }
        self.counters.copies_failed += 1;
        match subscription.ladder.is_member() {
            true => self.take_off_flow(id, c, Cause::NetworkChanged, now),
            false => subscription.ladder.cancel_replication(),
        }
        self.recount(id, c);
    }
}
