//! Graceful shutdown: no new receivers, and published updates are delivered before the goodbye.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::Engine;

/// An end that is under way.
pub(super) struct Draining {
    /// Time limit.
    pub(super) until: Instant,
    /// Dropped when the source has stopped: callers wait for it.
    pub(super) _done: Vec<oneshot::Sender<()>>,
}

impl Engine {
    /// Begins the end, or hastens the one that is under way.
    pub(super) fn drain(&mut self, within: Duration, done: oneshot::Sender<()>, now: Instant) {
        // A time that does not fit an Instant is as good as this one.
        let far = Duration::from_secs(24 * 3600);
        let until = now + within.min(far);
        let draining = self.draining.get_or_insert_with(|| {
            info!("no receivers are taken any more; what is published is delivered first");
            self.shards.drain(now);
            Draining {
                until,
                _done: Vec::new(),
            }
        });
        draining.until = draining.until.min(until);
        draining._done.push(done);
    }

    /// Whether the end under way has come.
    pub(super) fn has_drained(&self, now: Instant) -> bool {
        let Some(draining) = &self.draining else {
            return false;
        };
        if now >= draining.until {
            warn!(
                "not everything was delivered within the time; receivers get the rest when they \
                 come back"
            );
            return true;
        }
        self.is_all_delivered()
    }

    /// Whether all that was published is acknowledged, by the members of flows and on each
    /// receiver's own connection.
    fn is_all_delivered(&self) -> bool {
        if self.channels.have_updates() {
            return false;
        }
        let flows = (0..self.core.channels()).filter_map(|c| self.core.flow(c));
        if flows
            .into_iter()
            .any(|flow| flow.queued_bytes() > 0 || flow.outstanding() > 0)
        {
            return false;
        }
        let mut served = self.sessions.iter().filter(|(_, known)| known.served);
        self.touched.is_empty()
            && !self.sessions.is_any_deferred()
            && served.all(|(session, known)| !self.core.owes(session) && known.is_delivered())
    }
}
