//! Causes that became known late, or for rungs that were only tried (protocol.md sections 8.1 and
//! 8.5). They move no receiver.

use super::scope::ChannelScope;
use super::types::{SessionId, SourceEvent};
use crate::{Cause, PathId, Rung};

impl ChannelScope<'_> {
    /// Records that a receiver listens by a better rung than its own and nothing comes. It goes on
    /// listening.
    pub(super) fn record_failed_attempt(&mut self, id: SessionId, path: PathId) {
        let ours = path.flow_index() == self.channel.flow_index;
        let Some(rung) = path.rung().filter(|_| ours) else {
            return;
        };
        let Some(subscription) = self.subscription(id) else {
            return;
        };
        if subscription.ladder.record_failed_attempt(rung) {
            let on = subscription.ladder.rung();
            self.explain(id, rung, on, Cause::ProbeTimeout);
        }
    }

    /// Records that a receiver that is no member by its relay has lost it. Most likely its
    /// acknowledgements were missed before it could know.
    pub(super) fn record_lost_relay(&mut self, id: SessionId, path: PathId) {
        let tunnel = PathId::new(self.channel.flow_index, Rung::Amt);
        let subscription = self.subscription(id).filter(|_| path == tunnel);
        let Some(subscription) = subscription else {
            return;
        };
        if subscription.ladder.lose_relay(path) {
            let on = subscription.ladder.rung();
            self.explain(id, Rung::Amt, on, Cause::RelayLost);
        }
    }

    fn explain(&mut self, session: SessionId, rung: Rung, on: Rung, cause: Cause) {
        self.out.push(SourceEvent::Explained {
            session,
            channel: self.index,
            rung,
            on,
            cause,
        });
    }
}
