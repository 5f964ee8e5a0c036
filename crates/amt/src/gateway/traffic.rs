//! Which packets a relay brings: one that answers and brings none is no use (RFC 8777, section
//! 2.5.4), and one that is left goes on to be heard until the next one brings what it brought.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Gateway;
use super::association::Association;
use super::types::{Dropped, Event, Lost, SubscriptionId};

/// What one relay brought.
#[derive(Debug)]
pub(super) struct Traffic {
    /// When the last packet came; before the first one, since when some are expected.
    since: Instant,
    /// The last packet's.
    newest: Option<SubscriptionId>,
    /// Whatever of it is still wanted.
    brought: BTreeSet<SubscriptionId>,
}

impl Traffic {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            newest: None,
            brought: BTreeSet::new(),
        }
    }

    /// A packet came; true if it is the first one of its subscription.
    fn came(&mut self, id: SubscriptionId, now: Instant) -> bool {
        self.since = now;
        if self.newest == Some(id) {
            return false;
        }
        self.newest = Some(id);
        self.brought.insert(id)
    }

    fn forget(&mut self, id: SubscriptionId) {
        self.newest = None;
        self.brought.remove(&id);
    }
}

/// The relay before.
#[derive(Debug)]
pub(super) struct Retiring {
    pub(super) association: Association,
    why: Lost,
    pub(super) until: Instant,
    /// What it brought and the new one has not brought yet.
    missing: BTreeSet<SubscriptionId>,
    /// What it still brings, and the new one does not.
    alone: BTreeSet<SubscriptionId>,
}

impl Retiring {
    pub(super) fn new(association: Association, why: Lost, until: Instant) -> Self {
        Self {
            missing: association.traffic.brought.clone(),
            association,
            why,
            until,
            alone: BTreeSet::new(),
        }
    }
}

impl Gateway {
    /// A packet of a flow came, from the relay in use or from the one before it.
    ///
    /// # Errors
    /// It came from the one before, and the one in use brings this flow by now.
    pub(super) fn brought(
        &mut self,
        of_current: bool,
        id: SubscriptionId,
        now: Instant,
    ) -> Result<(), Dropped> {
        let Some(current) = &mut self.current else {
            return Err(Dropped::NotTheRelay);
        };
        if !of_current {
            if current.traffic.brought.contains(&id) {
                return Err(Dropped::NotTheRelay);
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
            .is_some_and(|race| race.why == Lost::NoTraffic)
        {
            // It does bring packets.
            self.race = None;
        }
        if first {
            self.takes_over(id);
        }
        Ok(())
    }

    /// The relay in use brings a flow for the first time.
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

    /// A new subscription: its packets take a while.
    pub(super) fn expects_more(&mut self, now: Instant) {
        if let Some(current) = &mut self.current {
            current.traffic.since = now;
        }
    }

    /// A subscription is over.
    pub(super) fn expects_no_more(&mut self, id: SubscriptionId) {
        if let Some(current) = &mut self.current {
            current.traffic.forget(id);
        }
        if let Some(retiring) = &mut self.retiring {
            retiring.missing.remove(&id);
            retiring.alone.remove(&id);
        }
    }

    /// Looks for another relay if this one has brought nothing for so long that it may be its
    /// fault. Each time that it does, it takes twice as long until the next: the source may be at
    /// rest.
    pub(super) fn distrust(&mut self, now: Instant) {
        let Some(current) = &self.current else {
            return;
        };
        let silent = now.saturating_duration_since(current.traffic.since);
        if silent < self.patience || self.race.is_some() {
            return;
        }
        self.begin_race(Lost::NoTraffic, now);
        if self.race.is_some() {
            let longer = (self.patience * 2).min(self.timing.longest_silence);
            self.patience = self
                .entropy
                .around(longer, 0.75, 1.0)
                .max(self.timing.silence);
        }
    }

    /// How long the relay before is still heard after it was left.
    pub(super) fn overlap(&self, why: Lost) -> Duration {
        match why {
            Lost::Limited | Lost::NoTraffic => self.timing.longest_overlap,
            Lost::Timeout | Lost::Unreachable => self.timing.overlap,
        }
    }

    /// The time of the relay before is over. If it works, and brings what the new one does not, it
    /// is used again.
    pub(super) fn end_overlap(&mut self, now: Instant) {
        let works =
            |r: &Retiring| !r.alone.is_empty() && matches!(r.why, Lost::Limited | Lost::NoTraffic);
        if self.retiring.as_ref().is_some_and(works) {
            self.take_back(Lost::NoTraffic, now);
        } else {
            self.finish_retiring();
        }
    }

    /// The relay before is used again, if there is one; `why` is what is wrong with the new one.
    pub(super) fn take_back(&mut self, why: Lost, now: Instant) {
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
        // What has changed meanwhile was told to the other one.
        association.ask_anew(&self.timing, now);
        association.traffic.since = now;
        association.heard = now;
        for mld in [false, true] {
            self.membership.forget_changes(mld);
        }
        self.tell(Event::Connected {
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
