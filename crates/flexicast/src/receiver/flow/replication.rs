//! Requests for replicated packets on the connection's own path (rung 3).

use std::time::{Duration, Instant};

use super::FlowDriver;
use super::backoff::Backoff;
use crate::Rung;
use crate::control::Action;
use crate::receiver::timer::{FlowTimer, Timer};

/// Delay of the first request after the native join, so that nothing is replicated where that
/// works.
pub(super) const STAGGER: Duration = Duration::from_secs(1);
/// Delay of the request after a fall-back: the flow may come back by itself.
pub(super) const AFTER_FALL_BACK: Duration = Duration::from_secs(3);
/// Delay after which a request without effect is repeated; it doubles.
const REPEAT: Duration = Duration::from_secs(5);

/// Replication of a flow for this receiver.
#[derive(Debug)]
pub(super) struct Replication {
    /// Whether it was requested since the last fall-back.
    pub(super) requested: bool,
    pub(super) backoff: Backoff,
}

impl Default for Replication {
    fn default() -> Self {
        Replication {
            requested: false,
            backoff: Backoff::new(REPEAT),
        }
    }
}

impl FlowDriver<'_> {
    /// Whether the source offers replication and the receiver wants it.
    pub(super) fn can_replicate(&self) -> bool {
        self.flow.announce.copies && self.rungs.replicated
    }

    /// Requests replication at `at`, if nothing better comes before.
    pub(super) fn want_replication(&mut self, at: Instant) {
        if self.can_replicate() && self.flow.participation.is_active() {
            self.set(FlowTimer::Replication, at);
        }
    }

    /// Whether the first request is still to be made.
    pub(super) fn awaits_replication(&self) -> bool {
        self.is_set(FlowTimer::Replication) && !self.flow.replication.requested
    }

    /// Requests replication by `at` where it was put off for longer.
    pub(super) fn hasten_replication(&mut self, at: Instant) {
        let timer = Timer::Flow(self.id, FlowTimer::Replication);
        if let Some(known) = self.timers.get(timer) {
            self.timers.set(timer, known.min(at));
        }
    }

    /// Requests replication, and again after longer and longer.
    pub(super) fn request_replication(&mut self, now: Instant) {
        let delay = self.flow.replication.backoff.next_delay();
        let delay = delay.mul_f64(self.jitter());
        self.set(FlowTimer::Replication, now + delay);
        self.flow.replication.requested = true;
        let path = self.flow.path(Rung::Replicated);
        self.report(Action::Join, path, None);
    }
}
