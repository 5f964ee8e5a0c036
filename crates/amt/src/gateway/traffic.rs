//! Traffic of relays: a relay that answers and brings no packets is useless (RFC 8777, section
//! 2.5.4), and a relay that was left is heard until the next one brings its flows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Gateway;
use super::association::Association;
use super::types::{DropReason, Event, RelayFailure, SubscriptionId};

/// The previous relay.
#[derive(Debug)]
pub(super) struct RetiringRelay {
    pub(super) association: Association,
    why: RelayFailure,
    pub(super) until: Instant,
    /// Subscriptions that it brought and the new relay has not brought yet.
    missing: BTreeSet<SubscriptionId>,
    /// Subscriptions that it still brings and the new relay does not.
    alone: BTreeSet<SubscriptionId>,
}

impl RetiringRelay {
    pub(super) fn new(association: Association, why: RelayFailure, until: Instant) -> Self {
        Self {
            missing: association.traffic.brought.clone(),
            association,
            why,
            until,
            alone: BTreeSet::new(),
        }
    }

    /// Whether it was left while it answered.
    pub(super) fn may_serve(&self) -> bool {
        matches!(self.why, RelayFailure::Limited | RelayFailure::NoTraffic)
    }
}

impl Gateway {
    /// Notes a packet of a flow, from the relay in use or the previous one.
    ///
    /// # Errors
    /// The packet is from the previous relay, and the one in use brings this flow.
    pub(super) fn brought(
        &mut self,
        of_current: bool,
        id: SubscriptionId,
        now: Instant,
    ) -> Result<(), DropReason> {
        let Some(current) = &mut self.current else {
            return Err(DropReason::NotTheRelay);
        };
        if !of_current {
            if current.traffic.brought.contains(&id) {
                return Err(DropReason::NotTheRelay);
            }
            if let Some(retiring) = &mut self.retiring {
                retiring.missing.insert(id);
                retiring.alone.insert(id);
            }
            return Ok(());
        }
        current.heard = now;
        self.patience = self.timing.silence;
        let first = current.traffic.came(id, now);
        if self
            .race
            .as_ref()
            .is_some_and(|race| race.why == RelayFailure::NoTraffic)
        {
            // The relay does bring packets.
            self.race = None;
        }
        if first {
            self.takes_over(id);
        }
        Ok(())
    }

    /// Notes that the relay in use brings a flow for the first time.
    fn takes_over(&mut self, id: SubscriptionId) {
        if let Some(retiring) = &mut self.retiring {
            retiring.missing.remove(&id);
            retiring.alone.remove(&id);
            if !retiring.missing.is_empty() {
                return;
            }
            self.finish_retiring();
        }
        if let Some(current) = &self.current {
            self.candidates.works(current.candidate.addr);
        }
    }

    /// Allows time for the first packets of a new subscription.
    pub(super) fn expects_more(&mut self, now: Instant) {
        if let Some(current) = &mut self.current {
            current.traffic.since = now;
        }
    }

    /// Forgets a subscription that ended.
    pub(super) fn expects_no_more(&mut self, id: SubscriptionId) {
        if let Some(current) = &mut self.current {
            current.traffic.forget(id);
        }
        if let Some(retiring) = &mut self.retiring {
            retiring.missing.remove(&id);
            retiring.alone.remove(&id);
        }
    }

    /// Looks for another relay if this one has brought nothing for long enough that it may be at
    /// fault. The period doubles each time, since the source may be idle.
    pub(super) fn distrust(&mut self, now: Instant) {
        let Some(current) = &self.current else {
            return;
        };
        let silent = now.saturating_duration_since(current.traffic.since);
        if silent < self.patience || self.race.is_some() {
            return;
        }
        self.begin_race(RelayFailure::NoTraffic, now);
        if self.race.is_some() {
            let longer = (self.patience * 2).min(self.timing.longest_silence);
            self.patience = self
                .entropy
                .around(longer, 0.75, 1.0)
                .max(self.timing.silence);
        }
    }

    /// Returns the time for which the previous relay is still heard.
    pub(super) fn overlap(&self, why: RelayFailure) -> Duration {
        match why {
            RelayFailure::Limited | RelayFailure::NoTraffic => self.timing.longest_overlap,
            RelayFailure::Timeout | RelayFailure::Unreachable | RelayFailure::Excluded => {
                self.timing.overlap
            }
        }
    }

    /// Ends the time of the previous relay. If it answers and brings flows that the new one does
    /// not, it is used again.
    pub(super) fn end_overlap(&mut self, now: Instant) {
        let works = |r: &RetiringRelay| !r.alone.is_empty() && r.may_serve();
        if self.retiring.as_ref().is_some_and(works) {
            self.reinstate(RelayFailure::NoTraffic, now);
        } else {
            self.finish_retiring();
        }
    }

    /// Reinstates the previous relay, if there is one; `why` is the failure of the new one.
    pub(super) fn reinstate(&mut self, why: RelayFailure, now: Instant) {
        let Some(retiring) = self.retiring.take() else {
            return;
        };
        if let Some(new) = self.current.take() {
            self.lose(&new, why, now);
            self.leave(&new);
        }
        self.race = None;
        let mut association = retiring.association;
        self.candidates.answers(association.candidate.addr);
        // Changes since the move were reported to the other relay.
        association.restart_requests(&self.timing, now);
        association.traffic.since = now;
        association.heard = now;
        for mld in [false, true] {
            self.membership.forget_changes(mld);
        }
        self.emit(Event::Connected {
            relay: association.relay,
            origin: association.candidate.origin,
            rtt: association.rtt,
        });
        self.current = Some(association);
        self.membership_changed(now);
    }

    pub(super) fn finish_retiring(&mut self) {
        if let Some(retiring) = self.retiring.take() {
            self.leave(&retiring.association);
        }
    }
}
