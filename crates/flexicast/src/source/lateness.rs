//! Lateness of the caller: members are not blamed for it, and acknowledge less often.

use std::time::{Duration, Instant};

use super::Source;

impl Source {
    /// Blames no receiver for its silence for about as long as the caller itself was `away`, so
    /// that what receivers have sent meanwhile is still to be read or under way. A second call
    /// counts only after the receivers have been looked at again, or for twice the time.
    pub fn grant_grace(&mut self, away: Duration, now: Instant) {
        #[cfg(feature = "fault-injection")]
        if self.faults.lag_grace_off {
            return;
        }
        self.flows_mut().for_each(|f| f.grant_grace(away, now));
        self.disputes.extend(away, now, &mut self.timers);
    }

    /// Has the members of each channel acknowledge so often together, at most: fewer while the
    /// caller cannot keep up.
    pub fn set_ack_budget(&mut self, acks_per_s: u64, now: Instant) {
        self.limits.channel_acks_per_s = acks_per_s;
        for c in 0..self.channels.len() {
            if let Some(mut scope) = self.scope(c) {
                scope.retune(now);
            }
        }
    }

    /// Notes that the caller was late from `since` until `now`: it did not send what was due, left
    /// datagrams unread, or the system dropped some. The silence of members in this time does not
    /// count, up to two seconds of each silence.
    pub fn note_lag(&mut self, since: Instant, now: Instant) {
        #[cfg(feature = "fault-injection")]
        if self.faults.lag_grace_off {
            return;
        }
        self.flows_mut().for_each(|flow| flow.note_lag(since, now));
    }
}
