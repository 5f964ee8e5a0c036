//! Updates that a receiver's outputs lack although the flow's ledger counts all of them as
//! received: a forged packet number acknowledges the lost real one. They are sent again, once each
//! (protocol.md section 7.3).

use std::time::{Duration, Instant};

use super::channel::Channel;
use super::{SessionId, Source};
use crate::flow::ledger::StreamRange;

/// Time between two looks at the cursors. An update is overdue if the cursor is before it, and the
/// same, at two of them.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Updates sent again at once; more when the cursor has come to their end.
const AT_ONCE: u64 = 64;

/// Progress of a receiver's cursor since it became a member of the flow.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Head at the first promotion on this connection; updates up to there came by unicast alone.
    entrusted_after: Option<u64>,
    /// Cursor at the last look, if it was before the head.
    seen: Option<u64>,
    /// Last update that was sent again.
    resent: u64,
}

impl Progress {
    /// The receiver became a member of the flow.
    pub(super) fn promoted(&mut self, head: u64) {
        self.entrusted_after.get_or_insert(head);
    }

    /// Whether updates came by the flow on this connection.
    pub(super) fn is_watched(&self) -> bool {
        self.entrusted_after.is_some()
    }
}

/// A look at one subscription.
enum Finding {
    /// The cursor is at the head, or only another cursor changes anything.
    Settled,
    /// Another look is due.
    Open,
    /// Updates are overdue.
    Overdue(std::ops::RangeInclusive<u64>),
}

impl Source {
    /// When to call [`Source::resend_overdue`], if any cursor may be before the head.
    pub(super) fn overdue_at(&mut self, now: Instant) -> Option<Instant> {
        if std::mem::take(&mut self.cursors_open) {
            self.look_at.get_or_insert(now + LOOK_EVERY);
        }
        self.look_at
    }

    /// Sends again what is overdue, if it is time to look at the cursors.
    pub(super) fn resend_overdue(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        self.look_at = None;
        let repairs = self.repairs();
        for (id, session) in &mut self.sessions {
            if !session.served || session.closing {
                continue;
            }
            for subscription in &mut session.subscriptions {
                let Some(channel) = self.channels.get(subscription.channel) else {
                    continue;
                };
                match subscription.find_overdue(*id, channel) {
                    Finding::Settled => {}
                    Finding::Open => self.cursors_open = true,
                    Finding::Overdue(_) if !repairs => {}
                    Finding::Overdue(seqs) => {
                        self.counters.resent_updates += seqs.end() - seqs.start() + 1;
                        let range = 0..u64::MAX;
                        let whole = |seq| StreamRange {
                            seq,
                            range: range.clone(),
                        };
                        subscription.backlog.repair(seqs.map(whole));
                        self.dirty.insert(*id);
                    }
                }
            }
        }
        for channel in &mut self.channels {
            channel.head_at_look = channel.head;
        }
    }
}

impl super::subscription::Subscription {
    fn find_overdue(&mut self, id: SessionId, channel: &Channel) -> Finding {
        let at = self
            .cursor
            .map_or(0, |c| c.seq)
            .max(self.first.saturating_sub(1));
        let Some(entrusted_after) = self.progress.entrusted_after else {
            return Finding::Settled;
        };
        if at >= channel.head {
            self.progress.seen = None;
            return Finding::Settled;
        }
        if self.progress.seen.replace(at) != Some(at) {
            return Finding::Open;
        }
        // Sent by unicast alone so far, or sent again already: only the receiver is slow.
        if at < entrusted_after.max(self.progress.resent) {
            return Finding::Settled;
        }
        let settled = channel.flow.as_ref().and_then(|f| f.unsettled(id));
        let last = channel.head_at_look.min(at + AT_ONCE);
        let last = last.min(settled.map_or(u64::MAX, |seq| seq.saturating_sub(1)));
        let first = channel.first.max(at + 1);
        if !self.backlog.is_empty() || last < first {
            return Finding::Open;
        }
        self.progress.resent = last;
        Finding::Overdue(first..=last)
    }
}
