//! Whether a better rung that a receiver has begun to listen by brings anything (protocol.md section 8.1).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::ReceiverEvent;
use super::flow::{Flow, REJOIN_FIRST, send_state};
use crate::control::Action;
use crate::{Cause, PathId, Rung};

/// Without the key for at least this long, nothing could have been read, and so nothing is known.
const READABLE: Duration = Duration::from_secs(1);

/// A way that was begun and has brought nothing yet.
#[derive(Debug, Default)]
pub(super) struct Probe {
    since: Option<Instant>,
}

impl Probe {
    /// The receiver begins to listen.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Ends the probe: a packet has arrived, or the path is not used any more.
    pub(super) fn end(&mut self) {
        self.since = None;
    }

    /// Whether it is to be said now that nothing comes; once.
    fn has_failed(&mut self, heartbeat: Duration, keyed: Option<Instant>, now: Instant) -> bool {
        // The flow speaks up within a heartbeat.
        let patience = REJOIN_FIRST.max(heartbeat * 2);
        let long = self.since.is_some_and(|since| since + patience <= now);
        let failed = long && keyed.is_some_and(|at| at + READABLE <= now);
        if failed {
            self.end();
        }
        failed
    }
}

/// Says so if a rung that was tried has brought nothing for long enough. The receiver goes on listening there.
pub(super) fn judge(
    flow: &mut Flow,
    rung: Rung,
    channel: &str,
    out: &mut Zeroizing<Vec<u8>>,
    events: &mut VecDeque<ReceiverEvent>,
    now: Instant,
) {
    let (heartbeat, keyed, on) = (flow.announce.heartbeat, flow.keyed, flow.rung());
    let probe = match rung {
        Rung::Amt => &mut flow.tunnel.probe,
        _ => &mut flow.native,
    };
    if rung < on && probe.has_failed(heartbeat, keyed, now) {
        let cause = Cause::ProbeTimeout;
        let path = PathId::new(flow.announce.flow_index, rung);
        send_state(flow, out, Action::Leave, path, Some(cause));
        events.push_back(ReceiverEvent::Explained {
            channel: channel.to_owned(),
            rung,
            on,
            cause,
        });
    }
}
