//! Causes found out late, or for rungs that were only tried (protocol.md sections 8.1 and 8.5).
//! They move no receiver.

use super::{ChannelIndex, SessionId, Source, SourceEvent};
use crate::{Cause, PathId, Rung};

impl Source {
    /// A receiver listens by a better rung than the one on which it stands, and nothing comes. It goes on listening.
    pub(super) fn record_failed_attempt(&mut self, id: SessionId, c: ChannelIndex, path: PathId) {
        let ours = path.flow_index() == self.channels[c].flow_index;
        let session = self.sessions.get_mut(&id);
        let subscription = session.and_then(|s| s.subscription(c));
        let (Some(rung), Some(subscription)) = (path.rung().filter(|_| ours), subscription) else {
            return;
        };
        let on = subscription.rung();
        if rung >= on || !subscription.listens_by(rung) {
            return;
        }
        // Repetitions are ignored.
        let known = subscription.tried.get_mut(rung as usize);
        if known.is_none_or(|known| std::mem::replace(known, true)) {
            return;
        }
        let cause = Cause::ProbeTimeout;
        subscription.cause.get_or_insert(cause);
        self.events.push_back(SourceEvent::Explained {
            session: id,
            channel: c,
            rung,
            on,
            cause,
        });
    }

    /// A receiver that is no member by its relay has lost it. Most likely its acknowledgements were missed before it could know.
    pub(super) fn relay_was_lost(&mut self, id: SessionId, c: ChannelIndex, path: PathId) {
        let tunnel = PathId::new(self.channels[c].flow_index, Rung::Amt);
        let session = self.sessions.get_mut(&id);
        let subscription = session.and_then(|s| s.subscription(c));
        let Some(subscription) = subscription.filter(|_| path == tunnel) else {
            return;
        };
        if subscription.ready.is_some_and(|(proved, _)| proved == path) {
            // By what is not there any more.
            subscription.ready = None;
        }
        let on = subscription.rung();
        let missed = matches!(
            subscription.last_cause,
            Cause::AckTimeout | Cause::HeartbeatLost
        );
        if !missed || subscription.fell_from != Some(Rung::Amt) || on <= Rung::Amt {
            return;
        }
        let cause = Cause::RelayLost;
        subscription.last_cause = cause;
        if subscription.member.is_none() {
            subscription.cause = Some(cause);
        }
        self.events.push_back(SourceEvent::Explained {
            session: id,
            channel: c,
            rung: Rung::Amt,
            on,
            cause,
        });
    }
}
