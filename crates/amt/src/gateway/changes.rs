//! The gateway's own actions: relay search, Requests and reports of changes.

use std::collections::VecDeque;
use std::time::Instant;

use super::association::{Association, Cycle, Grant, Proof};
use super::race::{Race, Winner};
use super::traffic::RetiringRelay;
use super::types::{Candidate, Event, RelayFailure};
use super::{Gateway, send};
use crate::Message;

impl Gateway {
    /// Reports changes to the relay, starts and stops cycles, and looks for a relay where one is
    /// needed.
    pub(super) fn membership_changed(&mut self, now: Instant) {
        for mld in [false, true] {
            self.report_changes(mld, now);
        }
        self.reconcile(now);
        self.start_discovery(now);
    }

    pub(super) fn report_changes(&mut self, mld: bool, now: Instant) {
        let Some(association) = &mut self.current else {
            self.membership.forget_changes(mld);
            return;
        };
        let Some(cycle) = association.cycle(mld) else {
            return;
        };
        // Before the first query, the answer to it reports everything.
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
        self.report_to_relay(mld, &records, now);
    }

    /// Starts a cycle for each wanted family, and stops the others once the relay was notified.
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

    /// Leaves the relay, which has been notified that no group is wanted.
    fn become_idle(&mut self) {
        self.race = None;
        self.retry = None;
        self.finish_retiring();
        if let Some(association) = self.current.take() {
            self.leave(&association);
            let relay = association.relay;
            self.emit(Event::Idle { relay });
        }
    }

    /// Starts a race if groups are wanted and there is no relay.
    pub(super) fn start_discovery(&mut self, now: Instant) {
        let wanted = [false, true].map(|mld| self.membership.wants(mld));
        if wanted == [false, false] {
            self.race = None;
            self.retry = None;
            self.reported_none = false;
            return;
        }
        if let Some(race) = &self.race {
            if self.membership.wants(race.mld) {
                return;
            }
            self.race = None;
        }
        if self.current.is_none() && self.retry.is_none_or(|at| at <= now) {
            self.begin_race(RelayFailure::Timeout, now);
        }
    }

    /// Asks all candidates that are not held down, except the relay in use.
    pub(super) fn begin_race(&mut self, why: RelayFailure, now: Instant) {
        let ready = self.candidates.in_order_of_attempts(now).into_iter();
        let ready: VecDeque<_> = ready.filter(|c| !self.is_in_use(c)).collect();
        if ready.is_empty() {
            self.no_relay();
            return;
        }
        self.retry = None;
        // Probes of a missed relay are one search, until another candidate is asked.
        let missed = |c: &Candidate| self.candidates.is_missed(c.addr, &self.timing, now);
        self.reported_none &= ready.iter().all(missed);
        let mld = !self.membership.wants(false);
        self.race = Some(Race::new(mld, why, ready, now));
    }

    /// Whether a candidate is the relay in use, or led to it.
    pub(super) fn is_in_use(&self, candidate: &Candidate) -> bool {
        self.current.as_ref().is_some_and(|current| {
            candidate.addr == current.candidate.addr || candidate.addr == current.relay
        })
    }

    /// Reports that there is no candidate to ask, or none answered.
    fn no_relay(&mut self) {
        if self.current.is_some() {
            // The relay in use is the best there is.
            return;
        }
        self.retry = self.candidates.next_release();
        if !self.reported_none {
            self.reported_none = true;
            self.emit(Event::NoRelay {
                candidates: self.candidates.all().len(),
                retry: self.retry,
            });
        }
    }

    /// Asks missed relays alongside the candidates of a race.
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
                RelayFailure::Timeout,
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

    /// Makes the winner of a race the relay in use.
    pub(super) fn select(&mut self, winner: &Winner, now: Instant) {
        let why = self.race.take().map(|race| race.why);
        self.retry = None;
        self.reported_none = false;
        self.candidates.answers(winner.candidate.addr);
        if let Some(before) = self.current.take() {
            let why = match why {
                Some(RelayFailure::NoTraffic) => RelayFailure::NoTraffic,
                _ if before.limited => RelayFailure::Limited,
                _ => RelayFailure::Timeout,
            };
            self.lose(&before, why, now);
            // Two moves in a row: the first relay no longer counts, unless it is the winner.
            let again = |r: &RetiringRelay| r.association.relay == winner.relay;
            if self.retiring.as_ref().is_some_and(again) {
                self.retiring = None;
            }
            self.finish_retiring();
            let until = now + self.overlap(why);
            self.retiring = Some(RetiringRelay::new(before, why, until));
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
        self.emit(Event::Connected {
            relay: winner.relay,
            origin: winner.candidate.origin,
            rtt: winner.rtt,
        });
    }

    pub(super) fn lose(&mut self, association: &Association, why: RelayFailure, now: Instant) {
        let addr = association.candidate.addr;
        let (timing, entropy) = (&self.timing, &mut self.entropy);
        match why {
            RelayFailure::Timeout => self.candidates.missed(addr, why, timing, entropy, now),
            _ => self.candidates.failed(addr, why, timing, entropy, now),
        }
        let relay = association.relay;
        self.emit(Event::Lost { relay, why });
    }

    pub(super) fn drive_current(&mut self, now: Instant) {
        let Some(association) = &mut self.current else {
            return;
        };
        association.requery(&self.timing, now);
        if association.is_dead(&self.timing, now) {
            if self.retiring.is_some() {
                self.reinstate(RelayFailure::Timeout, now);
                // Timers of the reinstated relay may have expired while it was retiring.
                return self.drive_current(now);
            }
            if let Some(dead) = self.current.take() {
                self.lose(&dead, RelayFailure::Timeout, now);
                // The relay may only be slow: it should free the tunnel.
                self.leave(&dead);
                self.start_discovery(now);
            }
            return;
        }
        let doubt = association.is_in_doubt(&self.timing, now);
        if let Some(mld) = association.complaint(&self.timing, now) {
            let relay = association.relay;
            self.emit(Event::Unanswered { relay, mld });
        }
        // In this order: a relay may accept Updates with the nonce of the last Request alone.
        self.repeat(now);
        self.ask(now);
        if doubt && self.race.is_none() {
            self.begin_race(RelayFailure::Timeout, now);
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

    /// Repeats reports, for the case that an Update was lost.
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
                self.report_to_relay(mld, &records, now);
            }
            self.report_changes(mld, now);
        }
        self.reconcile(now);
    }

    /// Looks for another relay while a full one continues to serve.
    pub(super) fn limited(&mut self, now: Instant) {
        if self.race.is_none() {
            self.begin_race(RelayFailure::Limited, now);
        }
        self.drive_race(now);
    }
}
