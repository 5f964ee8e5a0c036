//! Causes found out late, or for rungs that were only tried (protocol.md sections 8.1 and 8.5).
//! They move no receiver.

use super::{ChannelIndex, SessionId, Source, SourceEvent};
use crate::{Cause, PathId, Rung};

impl Source {
    /// A receiver listens by a better rung than the one on which it stands, and nothing comes. It
    /// goes on listening.
    pub(super) fn record_failed_attempt(&mut self, id: SessionId, c: ChannelIndex, path: PathId) {
        let ours = path.flow_index() == self.channels[c].flow_index;
        let session = self.sessions.get_mut(&id);
        let subscription = session.and_then(|s| s.subscription(c));
        let (Some(rung), Some(subscription)) = (path.rung().filter(|_| ours), subscription) else {
            return;
        };
        if !subscription.ladder.record_failed_attempt(rung) {
            return;
        }
        self.events.push_back(SourceEvent::Explained {
            session: id,
            channel: c,
            rung,
            on: subscription.ladder.rung(),
            cause: Cause::ProbeTimeout,
        });
    }

    /// A receiver that is no member by its relay has lost it. Most likely its acknowledgements were
    /// missed before it could know.
    pub(super) fn relay_was_lost(&mut self, id: SessionId, c: ChannelIndex, path: PathId) {
        let tunnel = PathId::new(self.channels[c].flow_index, Rung::Amt);
        let session = self.sessions.get_mut(&id);
        let subscription = session.and_then(|s| s.subscription(c));
        let Some(subscription) = subscription.filter(|_| path == tunnel) else {
            return;
        };
        if !subscription.ladder.lose_relay(path) {
            return;
        }
        self.events.push_back(SourceEvent::Explained {
            session: id,
            channel: c,
            rung: Rung::Amt,
            on: subscription.ladder.rung(),
            cause: Cause::RelayLost,
        });
    }
}
