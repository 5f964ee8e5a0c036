//! Looks at the cursors: what the receivers' outputs lack is sent again (protocol.md section 7.3).

use std::time::{Duration, Instant};

use super::Source;
use super::outputs::Finding;
use super::timer::Timer;
use crate::flow::ledger::StreamRange;

/// Time between two looks at the cursors.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Source {
    /// Plans a look at the cursors, if any of them may be before the head.
    pub(super) fn plan_look(&mut self, now: Instant) {
        if std::mem::take(&mut self.cursors_open) {
            self.timers.set_once(Timer::Cursors, now + LOOK_EVERY);
        }
    }

    /// Sends again what is overdue, if it is time to look at the cursors.
    pub(super) fn resend_overdue(&mut self, now: Instant) {
        if !self.timers.take_expired(Timer::Cursors, now) {
            return;
        }
        let repairs = self.repairs();
        for (id, session) in self.sessions.iter_mut() {
            if session.is_closing() {
                continue;
            }
            for subscription in session.subscriptions_mut() {
                let Some(channel) = self.channels.get(subscription.channel) else {
                    continue;
                };
                let unsettled = || channel.flow.as_ref()?.unsettled(*id);
                let backlog = &mut subscription.delivery.backlog;
                let backlogged = !backlog.is_empty();
                match subscription
                    .outputs
                    .look(channel.sight(), backlogged, unsettled)
                {
                    Finding::Settled => {}
                    Finding::Open => self.cursors_open = true,
                    Finding::Overdue(_) if !repairs => {}
                    Finding::Overdue(seqs) => {
                        self.out.counters.resent_updates += seqs.end() - seqs.start() + 1;
                        backlog.repair(seqs.map(StreamRange::whole));
                        self.out.mark_dirty(*id);
                    }
                }
            }
        }
        for (_, channel) in self.channels.iter_mut() {
            channel.head_at_look = channel.head;
        }
    }
}
