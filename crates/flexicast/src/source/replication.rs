//! Replicated packets to single receivers (rung 3): when they end (protocol.md section 8.4).

use std::time::Instant;

use super::scope::ChannelScope;
use super::types::SessionId;
use crate::Cause;

impl ChannelScope<'_> {
    /// Ends replication to a receiver whose time to prove its arrival is over.
    pub(super) fn end_unproved_replication(&mut self, id: SessionId, now: Instant) {
        let subscription = self.subscription(id);
        if subscription.is_some_and(|s| s.ladder.expire_replication(now)) {
            self.out.counters.replication.unproved += 1;
            self.recount(id);
        }
    }

    /// Ends replication to a receiver to which a packet could not be sent. Others are not
    /// affected.
    pub(super) fn end_failed_replication(&mut self, id: SessionId, now: Instant) {
        let Some(subscription) = self.subscription(id) else {
            return;
        };
        if !subscription.ladder.is_replicated() {
            return;
        }
        match subscription.ladder.is_member() {
            true => self.take_off_flow(id, Cause::NetworkChanged, now),
            false => subscription.ladder.cancel_replication(),
        }
        self.out.counters.replication.failed += 1;
        self.recount(id);
    }
}
