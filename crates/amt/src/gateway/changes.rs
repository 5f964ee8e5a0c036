//! What the gateway does by itself: looking for a relay, asking it again, telling it changes.

use std::collections::VecDeque;
use std::time::Instant;

use super::association::{Association, Cycle, Grant, Proof};
use super::race::{Race, Winner};
use super::traffic::Retiring;
use super::types::{Candidate, Event, Lost};
use super::{Gateway, send};
use crate::Message;

impl Gateway {
    /// Tells the relay what changed, begins and ends cycles, and looks for a relay where one is
    /// needed.
    pub(super) fn membership_changed(&mut self, now: Instant) {
        for mld in [false, true] {
            self.tell_changes(mld, now);
        }
        self.reconcile(now);
        self.look_for_relay(now);
    }

    pub(super) fn tell_changes(&mut self, mld: bool, now: Instant) {
        let Some(association) = &mut self.current else {
            self.membership.forget_changes(mld);
            return;
        };
        let Some(cycle) = association.cycle(mld) else {
            return;
        };
        // Before its first query the answer to that tells everything.
        if !cycle.granted {
            self.membership.forget_changes(mld);
            return;
        }
        if !self.membership.has_changes(mld) {
            return;
        }
        let records = self.membership.take_changes(mld);
        if self.membership.has_changes(mld) {
            cycle.repeat_soon(&mut self.entropy, now);
        }
        self.tell_relay(mld, &records, now);
    }

    /// A cycle for each family that is wanted, and none for the others once the relay was told.
    fn reconcile(&mut self, now: Instant) {
        let Some(association) = &mut self.current else {
            return;
        };
        let wait = association.wait(&self.timing);
        let families = [false, true];
        let wanted = families.map(|mld| self.membership.wants(mld));
        let pending = families.map(|mld| self.membership.has_changes(mld));
        if wanted == [false, false] {
            if pending == [false, false] {
                self.become_idle();
            }
            return;
        }
        for ((wanted, pending), cycle) in
            wanted.into_iter().zip(pending).zip(&mut association.cycles)
        {
            match cycle {
                None if wanted => *cycle = Some(Cycle::new(wait, now)),
                Some(_) if !wanted && !pending => *cycle = None,
                _ => {}
            }
        }
    }

    /// The relay knows that nothing is wanted any more.
    fn become_idle(&mut self) {
        self.race = None;
        self.retry = None;
        self.finish_retiring();
        if let Some(association) = self.current.take() {
            self.leave(&association);
            let relay = association.relay;
            self.tell(Event::Idle { relay });
        }
    }

    /// Begins a race if there is no relay and something is wanted.
    pub(super) fn look_for_relay(&mut self, now: Instant) {
        let wanted = [false, true].map(|mld| self.membership.wants(mld));
        if wanted == [false, false] {
            self.race = None;
            self.retry = None;
            self.told_none = false;
            return;
        }
        if let Some(race) = &self.race {
            if self.membership.wants(race.mld) {
                return;
            }
            self.race = None;
        }
        if self.current.is_none() && self.retry.is_none_or(|at| at <= now) {
            self.begin_race(Lost::Timeout, now);
        }
    }

    /// Asks the candidates that are not held down, except the relay in use.
    pub(super) fn begin_race(&mut self, why: Lost, now: Instant) {
        let ready = self.candidates.in_turn(now).into_iter();
        let ready: VecDeque<_> = ready.filter(|c| !self.is_in_use(c)).collect();
        if ready.is_empty() {
            self.no_relay();
            return;
        }
        self.retry = None;
        // Probes of a relay that is missed are one search, until another candidate is asked.
        let missed = |c: &Candidate| self.candidates.is_missed(c.addr, &self.timing, now);
        self.told_none &= ready.iter().all(missed);
        let mld = !self.membership.wants(false);
        self.race = Some(Race::new(mld, why, ready, now));
    }

    /// Whether a candidate is the relay in use, or led to it.
    pub(super) fn is_in_use(&self, candidate: &Candidate) -> bool {
        self.current.as_ref().is_some_and(|current| {
            candidate.addr == current.candidate.addr || candidate.addr == current.relay
        })
    }

    /// There is nobody to ask, or nobody answered.
    fn no_relay(&mut self) {
        if self.current.is_some() {
            // The one in use is what there is.
            return;
        }
        self.retry = self.candidates.next_release();
        if !self.told_none {
            self.told_none = true;
            self.tell(Event::NoRelay {
                candidates: self.candidates.all().len(),
                retry: self.retry,
            });
        }
    }

    /// Asks a relay that is missed beside the candidates of a race.
    pub(super) fn probe_missed(&mut self, now: Instant) {
        if self.current.is_none()
            && let Some(race) = &mut self.race
        {
            for candidate in self.candidates.probes(now) {
                race.probe(candidate, now);
            }
        }
    }

    pub(super) fn drive_race(&mut self, now: Instant) {
        let Some(race) = &mut self.race else {
            return;
        };
        let (unsent, counters) = (&mut self.unsent, &mut self.counters);
        let failed = race.handle_timeout(
            &self.timing,
            &mut self.entropy,
            now,
            |relay| self.p_flags.get(relay),
            |addr| self.candidates.is_missed(addr, &self.timing, now),
            |to, message, p| send(unsent, counters, to, message, p),
        );
        for candidate in failed {
            self.candidates.failed(
                candidate.addr,
                Lost::Timeout,
                &self.timing,
                &mut self.entropy,
                now,
            );
        }
        if self.race.as_ref().is_some_and(Race::is_over) {
            self.race = None;
            self.no_relay();
        }
    }

    /// The winner of a race becomes the relay.
    pub(super) fn select(&mut self, winner: &Winner, now: Instant) {
        let why = self.race.take().map(|race| race.why);
        self.retry = None;
        self.told_none = false;
        self.candidates.answers(winner.candidate.addr);
        if let Some(before) = self.current.take() {
            let why = match why {
                Some(Lost::NoTraffic) => Lost::NoTraffic,
                _ if before.limited => Lost::Limited,
                _ => Lost::Timeout,
            };
            self.lose(&before, why, now);
            // Two moves in a row: the first relay has nothing to say any more, unless it is this.
            let again = |r: &Retiring| r.association.relay == winner.relay;
            if self.retiring.as_ref().is_some_and(again) {
                self.retiring = None;
            }
            self.finish_retiring();
            let until = now + self.overlap(why);
            self.retiring = Some(Retiring::new(before, why, until));
        }
        let mut association = Association::new(winner, now);
        match self.past.take() {
            Some(past) if past.relay == winner.relay => {
                association.proof = Some(Proof {
                    grant: Grant {
                        mac: past.mac,
                        nonce: past.nonce,
                        asked: winner.asked,
                    },
                    gateway: past.gateway,
                });
            }
            // That relay still sends here, and its packets are dropped.
            Some(past) => self.teardown(past),
            None => {}
        }
        for mld in [false, true] {
            self.membership.forget_changes(mld);
            if self.membership.wants(mld) {
                let cycle = association.cycle(mld);
                let cycle = cycle.insert(Cycle::new(self.timing.first_wait, now));
                if mld == winner.mld {
                    cycle.question = Some(winner.question.clone());
                }
            }
        }
        self.current = Some(association);
        self.tell(Event::Connected {
            relay: winner.relay,
            origin: winner.candidate.origin,
            rtt: winner.rtt,
        });
    }

    pub(super) fn lose(&mut self, association: &Association, why: Lost, now: Instant) {
        let addr = association.candidate.addr;
        let (timing, entropy) = (&self.timing, &mut self.entropy);
        match why {
            Lost::Timeout => self.candidates.missed(addr, why, timing, entropy, now),
            _ => self.candidates.failed(addr, why, timing, entropy, now),
        }
        let relay = association.relay;
        self.tell(Event::Lost { relay, why });
    }

    pub(super) fn drive_current(&mut self, now: Instant) {
        let Some(association) = &mut self.current else {
            return;
        };
        association.requery(&self.timing, now);
        if association.is_dead(&self.timing, now) {
            if self.retiring.is_some() {
                self.take_back(Lost::Timeout, now);
                // Its timers may have come due while it was retiring.
                return self.drive_current(now);
            }
            if let Some(dead) = self.current.take() {
                self.lose(&dead, Lost::Timeout, now);
                // It may only be slow.
                self.leave(&dead);
                self.look_for_relay(now);
            }
            return;
        }
        let doubt = association.is_in_doubt(&self.timing, now);
        if let Some(mld) = association.complaint(&self.timing, now) {
            let relay = association.relay;
            self.tell(Event::Unanswered { relay, mld });
        }
        // In this order: a relay may take Updates with the nonce of the last Request alone.
        self.repeat(now);
        self.ask(now);
        if doubt && self.race.is_none() {
            self.begin_race(Lost::Timeout, now);
        }
    }

    /// Sends the Requests that are due.
    fn ask(&mut self, now: Instant) {
        let Some(association) = &mut self.current else {
            return;
        };
        let relay = association.relay;
        let known = self.p_flags.get(relay);
        let Some((nonce, due)) = association.due(known, &self.timing, &mut self.entropy, now)
        else {
            return;
        };
        for (mld, p) in [false, true].into_iter().zip(due) {
            if let Some(p) = p {
                let message = Message::Request { nonce, mld };
                send(&mut self.unsent, &mut self.counters, relay, message, p);
            }
        }
    }

    /// Tells once more what a lost Update would have left untold.
    fn repeat(&mut self, now: Instant) {
        for mld in [false, true] {
            let Some(association) = &mut self.current else {
                return;
            };
            let Some(cycle) = association.cycle(mld) else {
                continue;
            };
            if cycle.repeat_at.is_none_or(|at| at > now) {
                continue;
            }
            cycle.repeat_at = None;
            if !cycle.granted {
                continue;
            }
            let whole = cycle.repeats > 0;
            if whole {
                cycle.repeats -= 1;
                if cycle.repeats > 0 {
                    cycle.repeat_soon(&mut self.entropy, now);
                }
                let records = self.membership.current(mld);
                self.tell_relay(mld, &records, now);
            }
            self.tell_changes(mld, now);
        }
        self.reconcile(now);
    }

    /// The relay is full: others are asked, while it goes on.
    pub(super) fn limited(&mut self, now: Instant) {
        if self.race.is_none() {
            self.begin_race(Lost::Limited, now);
        }
        self.drive_race(now);
    }
}
