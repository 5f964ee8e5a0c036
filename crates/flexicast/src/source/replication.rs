//! Copies to single receivers (rung 3): when they end, and when they pause (protocol.md section 8.4).

use std::time::Instant;

use super::membership::backoff;
use super::{ChannelIndex, SessionId, Source};
use crate::{Cause, Rung};

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
        if subscription.copies_until.is_some_and(|until| until <= now) {
            subscription.copies_until = None;
            subscription.replicated = false;
            let flaps = &mut subscription.flaps[Rung::Replicated as usize];
            flaps.count = flaps.count.saturating_add(1);
            flaps.until = Some(now + backoff(flaps.count));
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
        let channels: Vec<_> = session.subscriptions.iter().map(|s| s.channel).collect();
        for c in channels {
            self.recount(id, c);
            self.flow_events(c, now);
        }
    }

    /// A copy could not be sent to its receiver: it gets no more of them. Others are not affected.
    pub fn replica_failed(&mut self, id: SessionId, c: ChannelIndex, now: Instant) {
        let Some(subscription) = self.sessions.get_mut(&id).and_then(|s| s.subscription(c)) else {
            return;
        };
        if !std::mem::replace(&mut subscription.replicated, false) {
            return;
        }
        subscription.copies_until = None;
        self.counters.copies_failed += 1;
        let by_copies = subscription.rung() == Rung::Replicated;
        if by_copies
            && let Some(flow) = &mut self.channels[c].flow
            && let Some(departure) = flow.dismiss(id)
        {
            self.fell_back(id, c, Cause::NetworkChanged, departure, now);
        }
        self.recount(id, c);
    }
}
