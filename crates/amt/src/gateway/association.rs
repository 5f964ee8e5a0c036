//! Association with one relay: a cycle of Request, Query and Update for each inner address family
//! (RFC 7450, section 4.2.1.2).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::entropy::Entropy;
use super::question::Question;
use super::race::Winner;
use super::types::{Candidate, SubscriptionId, Timing, TunnelProof};
use crate::report::GeneralQuery;
use crate::{Mac, PFlag};

/// Unanswered Requests after which others are asked, while this relay may still answer.
const DOUBT_AFTER: u32 = 2;
/// Query interval if the query gives none (RFC 3376, section 8.2).
const DEFAULT_INTERVAL: Duration = Duration::from_secs(125);
/// Robustness variable if the relay gives none (RFC 3376, section 8.1).
pub(super) const DEFAULT_ROBUSTNESS: u8 = 2;
/// Longest delay before a report is repeated (RFC 3376, section 8.11).
const REPEAT_WITHIN: Duration = Duration::from_secs(1);
/// Shortest wait for an answer, however fast the relay is.
const SHORTEST_WAIT: Duration = Duration::from_millis(200);
/// Age of the last packet below which a relay is not in doubt.
const RECENTLY: Duration = Duration::from_millis(500);
/// Age of the last packet below which a relay is alive although it does not answer.
const SILENCE: Duration = Duration::from_secs(2);
/// Shortest pause between Requests out of turn.
const ASK_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Permission from a Query: Updates with its MAC and nonce, of both address families, since the MAC
/// covers only the gateway's address and port and the nonce (RFC 7450, section 5.3.5).
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) mac: Mac,
    pub(super) nonce: u32,
    /// Send time of the Request.
    pub(super) asked: Instant,
}

/// A grant with the address that it was given to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proof {
    pub(super) grant: Grant,
    pub(super) gateway: SocketAddr,
}

impl Proof {
    /// Returns the tunnel to this relay.
    pub(super) fn of(self, relay: SocketAddr) -> TunnelProof {
        TunnelProof {
            relay,
            nonce: self.grant.nonce,
            mac: self.grant.mac,
            gateway: self.gateway,
        }
    }
}

/// Flows that one relay brought.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Arrival of the last packet; before the first one, start of expecting some.
    pub(super) since: Instant,
    /// Subscription of the last packet.
    newest: Option<SubscriptionId>,
    /// Subscriptions with packets, of those that still exist.
    pub(super) brought: BTreeSet<SubscriptionId>,
}

impl Traffic {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            newest: None,
            brought: BTreeSet::new(),
        }
    }

    /// Notes a packet; returns whether it is the first one of its subscription.
    pub(super) fn came(&mut self, id: SubscriptionId, now: Instant) -> bool {
        self.since = now;
        if self.newest == Some(id) {
            return false;
        }
        self.newest = Some(id);
        self.brought.insert(id)
    }

    pub(super) fn forget(&mut self, id: SubscriptionId) {
        self.newest = None;
        self.brought.remove(&id);
    }
}

/// Requests, Queries and Updates for one inner address family.
#[derive(Debug)]
pub(super) struct Cycle {
    /// Unanswered Request.
    pub(super) question: Option<Question>,
    /// Previous Request, which was answered; answers to later repetitions may follow.
    answered: Option<Question>,
    /// Whether the relay has answered for this family.
    pub(super) granted: bool,
    /// Time and nonce of the last report to the relay.
    pub(super) reported: Option<(Instant, u32)>,
    /// Time of the next Request.
    requery: Instant,
    pub(super) robustness: u8,
    /// Remaining repetitions of the whole state, for a relay that is new to it.
    pub(super) repeats: u8,
    /// Time of the next repetition of the state or its changes.
    pub(super) repeat_at: Option<Instant>,
    /// Whether [`super::Event::Unanswered`] was reported.
    pub(super) complaint_reported: bool,
}

impl Cycle {
    pub(super) fn new(wait: Duration, now: Instant) -> Self {
        Self {
            question: Some(Question::new(wait, now)),
            answered: None,
            granted: false,
            reported: None,
            requery: now,
            robustness: DEFAULT_ROBUSTNESS,
            repeats: 0,
            repeat_at: None,
            complaint_reported: false,
        }
    }

    /// Handles a valid Query.
    pub(super) fn granted(
        &mut self,
        query: &GeneralQuery,
        timing: &Timing,
        entropy: &mut Entropy,
        now: Instant,
    ) {
        if let Some(question) = self.question.take() {
            self.answered = Some(question);
        }
        self.complaint_reported = false;
        self.robustness = match query.qrv {
            0 => DEFAULT_ROBUSTNESS,
            given => given.min(7),
        };
        if !self.granted {
            self.repeats = self.robustness - 1;
        }
        self.granted = true;
        let interval = match query.qqic {
            Duration::ZERO => DEFAULT_INTERVAL,
            given => given.max(Duration::from_secs(1)),
        };
        let interval = interval.min(timing.longest_query_interval);
        // Never later than the relay expects, and not all gateways of one relay at once.
        self.requery = now + entropy.around(interval, 0.9, 1.0);
    }

    /// Schedules a repetition of the report.
    pub(super) fn repeat_soon(&mut self, entropy: &mut Entropy, now: Instant) {
        let at = now + entropy.around(REPEAT_WITHIN, 0.1, 1.0);
        self.repeat_at = Some(self.repeat_at.map_or(at, |before| before.min(at)));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ask = self.question.as_ref().map_or(self.requery, |q| q.due);
        Some(self.repeat_at.map_or(ask, |at| at.min(ask)))
    }

    /// Whether the Request went unanswered this often, and the last wait for an answer is over.
    fn unanswered(&self, times: u32, now: Instant) -> bool {
        let over = |q: &Question| q.sent > times || (q.sent == times && q.due <= now);
        self.question.as_ref().is_some_and(over)
    }
}

/// State of the relay in use, or of the previous one.
#[derive(Debug)]
pub(super) struct Association {
    pub(super) relay: SocketAddr,
    pub(super) candidate: Candidate,
    pub(super) since: Instant,
    pub(super) rtt: Duration,
    /// Arrival of the last datagram.
    pub(super) heard: Instant,
    pub(super) limited: bool,
    /// Grant of the newest Request: Linux keeps only the last nonce of each gateway.
    pub(super) grant: Option<Grant>,
    /// Last grant that came with an address.
    pub(super) proof: Option<Proof>,
    /// Flows that the relay brings.
    pub(super) traffic: Traffic,
    /// Time of the next check for doubt.
    look_again: Option<Instant>,
    /// IGMP, then MLD.
    pub(super) cycles: [Option<Cycle>; 2],
}

impl Association {
    /// Creates the association with a relay that has just answered.
    pub(super) fn new(winner: &Winner, now: Instant) -> Self {
        Self {
            relay: winner.relay,
            candidate: winner.candidate,
            since: now,
            rtt: winner.rtt,
            heard: now,
            limited: false,
            grant: None,
            proof: None,
            traffic: Traffic::new(now),
            look_again: None,
            cycles: [None, None],
        }
    }

    pub(super) fn cycle(&mut self, mld: bool) -> &mut Option<Cycle> {
        let [igmp, of_mld] = &mut self.cycles;
        if mld { of_mld } else { igmp }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Cycle> {
        self.cycles.iter().flatten()
    }

    /// Returns the first wait for an answer.
    pub(super) fn wait(&self, timing: &Timing) -> Duration {
        (self.rtt * 3).max(SHORTEST_WAIT).min(timing.first_wait)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let cycles = self.all().filter_map(Cycle::poll_timeout);
        cycles.chain(self.look_again).min()
    }

    /// Returns the send time of the Request that a Query for this family answers: an unanswered
    /// one, or a later repetition of the answered one.
    pub(super) fn asked(&self, mld: bool, nonce: u32) -> Option<Instant> {
        let cycle = self.cycles.get(usize::from(mld))?.as_ref()?;
        let sent_at = |question: &Question| question.sent_at(nonce);
        let later = |at: &Instant| self.grant.is_some_and(|grant| grant.asked < *at);
        let pending = cycle.question.as_ref().and_then(sent_at);
        pending.or_else(|| cycle.answered.as_ref().and_then(sent_at).filter(later))
    }

    /// Returns the P flag's position in the Request that an MLD Query with this nonce answers.
    pub(super) fn p_of(&self, nonce: u32) -> Option<PFlag> {
        let [_, mld] = &self.cycles;
        let cycle = mld.as_ref()?;
        let questions = [&cycle.question, &cycle.answered];
        let mut questions = questions.into_iter().flatten();
        questions.find_map(|question| question.p_of(nonce))
    }

    /// Starts a Request for both families, if one is due.
    pub(super) fn requery(&mut self, timing: &Timing, now: Instant) {
        let is_due = |cycle: &Cycle| cycle.question.is_none() && cycle.requery <= now;
        if !self.all().any(is_due) {
            return;
        }
        let wait = self.wait(timing);
        for cycle in self.cycles.iter_mut().flatten() {
            cycle
                .question
                .get_or_insert_with(|| Question::new(wait, now));
        }
    }

    /// Takes the Requests that are due: returns their nonce and, for each family, the position of
    /// the P flag. Requests that go out together share a nonce, since a relay may remember only the
    /// last. `known` is the position that the relay reads.
    pub(super) fn due(
        &mut self,
        known: Option<PFlag>,
        timing: &Timing,
        entropy: &mut Entropy,
        now: Instant,
    ) -> Option<(u32, [Option<PFlag>; 2])> {
        let questions = || self.all().filter_map(|cycle| cycle.question.as_ref());
        if !questions().any(|question| question.due <= now) {
            return None;
        }
        let mut nonce = entropy.number();
        while nonce == 0 || questions().any(|question| question.sent_at(nonce).is_some()) {
            nonce = entropy.number();
        }
        let mut due = [None; 2];
        let mut first: Option<(u32, Instant)> = None;
        for (due, cycle) in due.iter_mut().zip(&mut self.cycles) {
            let question = cycle.as_mut().and_then(|cycle| cycle.question.as_mut());
            let Some(question) = question.filter(|question| question.due <= now) else {
                continue;
            };
            let p = question.p(known);
            *due = Some(p);
            question.send(nonce, p, timing, entropy, now);
            match first {
                // Both are repeated together, too.
                Some((sent, at)) if sent == question.sent => question.due = at,
                _ => first = Some((question.sent, question.due)),
            }
        }
        Some((nonce, due))
    }

    /// Asks out of turn, at a bounded rate.
    pub(super) fn ask(&mut self, timing: &Timing, now: Instant) {
        let wait = self.wait(timing);
        for cycle in self.cycles.iter_mut().flatten() {
            match &mut cycle.question {
                // A Request with a long wait is repeated.
                Some(question) => question.hurry(ASK_AT_MOST_EVERY, now),
                None => cycle.question = Some(Question::new(wait, now)),
            }
        }
    }

    /// Restarts the Requests at once: pending ones went out by another network.
    pub(super) fn restart_requests(&mut self, timing: &Timing, now: Instant) {
        for cycle in self.cycles.iter_mut().flatten() {
            cycle.question = Some(Question::new(timing.first_wait, now));
        }
    }

    fn none_answered(&self, times: u32, now: Instant) -> bool {
        self.all().next().is_some() && self.all().all(|c| c.unanswered(times, now))
    }

    /// Whether several Requests of every family are unanswered, so that others are asked. A relay
    /// whose packets still arrive has more time, since it may just be busy.
    pub(super) fn is_in_doubt(&mut self, timing: &Timing, now: Instant) -> bool {
        let in_doubt = self.none_answered(DOUBT_AFTER, now);
        let spared =
            in_doubt && self.heard + RECENTLY > now && !self.none_answered(timing.attempts, now);
        self.look_again = spared.then(|| self.heard + RECENTLY);
        in_doubt && !spared
    }

    /// Whether no Request of any family is answered and no packets arrive: the relay is given up.
    pub(super) fn is_dead(&self, timing: &Timing, now: Instant) -> bool {
        self.heard + SILENCE <= now && self.none_answered(timing.attempts, now)
    }

    /// Returns, once, the family that is not answered while the rest of the relay works.
    pub(super) fn complaint(&mut self, timing: &Timing, now: Instant) -> Option<bool> {
        for (mld, cycle) in [false, true].into_iter().zip(&mut self.cycles) {
            if let Some(cycle) = cycle
                && !cycle.complaint_reported
                && cycle.unanswered(timing.attempts, now)
            {
                cycle.complaint_reported = true;
                return Some(mld);
            }
        }
        None
    }
}
