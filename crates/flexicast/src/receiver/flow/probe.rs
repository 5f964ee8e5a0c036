//! Probes of the better rungs that a receiver has begun to listen on (protocol.md section 8.1).

use std::time::{Duration, Instant};

use super::FlowDriver;
use super::backoff::REJOIN_FIRST;
use crate::control::{Action, Leg};
use crate::receiver::ReceiverEvent;
use crate::{Cause, Rung};

/// Without the key for at least this long, no packet could have been read, and a probe proves
/// nothing.
const READABLE: Duration = Duration::from_secs(1);

/// Whether a rung that the receiver listens on delivers.
#[derive(Debug)]
pub(super) enum Probe {
    /// Nothing has arrived.
    Running {
        /// When the receiver began to listen.
        since: Instant,
    },
    /// A packet has arrived, or the failure was reported.
    Settled,
}

impl Probe {
    pub(super) fn begin(now: Instant) -> Self {
        Probe::Running { since: now }
    }

    /// Settles a probe that has failed by now. Returns whether it has.
    fn settle_failed(&mut self, heartbeat: Duration, keyed: Option<Instant>, now: Instant) -> bool {
        let Probe::Running { since } = *self else {
            return false;
        };
        // The flow sends something within a heartbeat.
        let patience = REJOIN_FIRST.max(heartbeat * 2);
        let readable = keyed.is_some_and(|at| at + READABLE <= now);
        let failed = since + patience <= now && readable;
        if failed {
            *self = Probe::Settled;
        }
        failed
    }
}

impl FlowDriver<'_> {
    /// Reports a better rung that has brought nothing for long enough. The receiver goes on
    /// listening there.
    pub(super) fn judge_probe(&mut self, rung: Rung, now: Instant) {
        let flow = &mut *self.flow;
        let (heartbeat, keyed, on) = (flow.announce.heartbeat, flow.keys.since(), flow.rung());
        let merges = flow.merged.is_some();
        let probe = match rung {
            Rung::Amt => flow.tunnels.probe(),
            _ => flow.native.probe(),
        };
        let failed = |probe: &mut Probe| probe.settle_failed(heartbeat, keyed, now);
        let is_judged = rung < on || (rung != on && merges);
        let has_failed = is_judged && probe.is_some_and(failed);
        if has_failed {
            self.lose_leg(Leg { rung, number: 0 }, now);
        }
        if rung < on && has_failed {
            let cause = Cause::ProbeTimeout;
            self.report(Action::Leave, self.flow.path(rung), Some(cause));
            self.events.push_back(ReceiverEvent::Explained {
                channel: self.channel.name.clone(),
                rung,
                on,
                cause,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(1);

    #[test]
    fn a_probe_fails_once_after_time_in_which_packets_were_readable() {
        let start = Instant::now();
        let mut probe = Probe::begin(start);
        let end = start + REJOIN_FIRST;
        let keyed = |ago: Duration| Some(end - ago);
        assert!(!probe.settle_failed(HEARTBEAT, None, end), "no key");
        assert!(!probe.settle_failed(HEARTBEAT, keyed(READABLE / 2), end));
        assert!(
            !probe.settle_failed(HEARTBEAT * 2, keyed(READABLE), end),
            "slow heartbeat"
        );
        assert!(probe.settle_failed(HEARTBEAT, keyed(READABLE), end));
        assert!(
            !probe.settle_failed(HEARTBEAT, keyed(READABLE), end),
            "reported"
        );
    }
}
