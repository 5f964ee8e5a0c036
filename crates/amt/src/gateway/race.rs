//! Race of several candidates; the first that answers wins.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::entropy::Entropy;
use super::question::Question;
use super::types::{Candidate, DropReason, RelayFailure, Timing};
use crate::{Message, PFlag};

/// A candidate that was asked.
#[derive(Debug)]
struct Attempt {
    candidate: Candidate,
    /// Destination of the Request; unknown during Relay Discovery.
    relay: Option<SocketAddr>,
    question: Question,
}

/// The candidate that answered first.
#[derive(Debug)]
pub(super) struct Winner {
    pub(super) candidate: Candidate,
    pub(super) relay: SocketAddr,
    /// Whether IPv6 (MLD) was requested.
    pub(super) mld: bool,
    /// All Requests sent to it.
    pub(super) question: Question,
    /// Send time of the answered Request.
    pub(super) asked: Instant,
    pub(super) rtt: Duration,
}

/// An attempt to find a relay.
#[derive(Debug)]
pub(super) struct Race {
    /// Whether IPv6 (MLD) is requested, else IPv4 (IGMP).
    pub(super) mld: bool,
    /// Deficiency of the relay in use, if there is one.
    pub(super) why: RelayFailure,
    waiting: VecDeque<Candidate>,
    attempts: Vec<Attempt>,
    next: Instant,
}

impl Race {
    pub(super) fn new(
        mld: bool,
        why: RelayFailure,
        candidates: VecDeque<Candidate>,
        now: Instant,
    ) -> Self {
        Self {
            mld,
            why,
            waiting: candidates,
            attempts: Vec::new(),
            next: now,
        }
    }

    /// Appends a candidate that became known during the race.
    pub(super) fn add(&mut self, candidate: Candidate) {
        if !self.has(candidate.addr) {
            self.waiting.push_back(candidate);
        }
    }

    /// Asks a missed relay before the waiting candidates.
    pub(super) fn probe(&mut self, candidate: Candidate, now: Instant) {
        if !self.has(candidate.addr) {
            self.waiting.push_front(candidate);
            self.next = now;
        }
    }

    /// Drops waiting candidates that are no longer known.
    pub(super) fn keep(&mut self, known: impl Fn(SocketAddr) -> bool) {
        self.waiting.retain(|candidate| known(candidate.addr));
    }

    /// Drops relays that are not to be chosen any more. Returns the anycast addresses that led to
    /// one of them.
    pub(super) fn exclude(&mut self, is_excluded: impl Fn(SocketAddr) -> bool) -> Vec<SocketAddr> {
        self.waiting
            .retain(|candidate| !is_excluded(candidate.addr));
        // The address that led to a relay counts, too.
        let dropped = self.attempts.extract_if(.., |attempt| {
            is_excluded(attempt.candidate.addr) || attempt.relay.is_some_and(&is_excluded)
        });
        let dropped = dropped.map(|attempt| attempt.candidate);
        dropped.filter(|c| c.discover).map(|c| c.addr).collect()
    }

    fn has(&self, addr: SocketAddr) -> bool {
        self.waiting.iter().any(|c| c.addr == addr) || self.is_asked(addr)
    }

    /// Whether this candidate has been asked and may still answer.
    pub(super) fn is_asked(&self, addr: SocketAddr) -> bool {
        self.attempts.iter().any(|a| a.candidate.addr == addr)
    }

    /// Whether no candidate is left that could win.
    pub(super) fn is_over(&self) -> bool {
        self.attempts.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let begin = (!self.waiting.is_empty()).then_some(self.next);
        let due = self.attempts.iter().map(|a| a.question.due);
        due.chain(begin).min()
    }

    /// Sends due messages and returns the candidates that have failed. `known` returns the position
    /// of the P flag that a relay reads, and `missed` whether a candidate is being probed.
    pub(super) fn handle_timeout(
        &mut self,
        timing: &Timing,
        entropy: &mut Entropy,
        now: Instant,
        known: impl Fn(SocketAddr) -> Option<PFlag>,
        missed: impl Fn(SocketAddr) -> bool,
        mut send: impl FnMut(SocketAddr, Message<'_>, PFlag),
    ) -> Vec<Candidate> {
        let mut failed = Vec::new();
        self.attempts.retain(|attempt| {
            let over = attempt.question.due <= now && attempt.question.sent >= timing.attempts;
            if over {
                failed.push(attempt.candidate);
            }
            !over
        });
        // Without pending candidates, there is nothing to wait for.
        if self.next <= now || self.attempts.is_empty() {
            if let Some(candidate) = self.waiting.pop_front() {
                self.attempts.push(Attempt {
                    candidate,
                    relay: (!candidate.discover).then_some(candidate.addr),
                    question: Question::new(timing.first_wait, now),
                });
            }
            self.next = now + timing.stagger;
        }
        for attempt in &mut self.attempts {
            if attempt.question.due > now {
                continue;
            }
            let nonce = attempt.question.nonce(entropy);
            let p = attempt.question.p(attempt.relay.and_then(&known));
            attempt.question.send(nonce, p, timing, entropy, now);
            if missed(attempt.candidate.addr) {
                let probe = entropy.around(timing.probe, 0.75, 1.25);
                attempt.question.hurry(probe, now);
            }
            let (to, message) = match attempt.relay {
                None => (attempt.candidate.addr, Message::Discovery { nonce }),
                Some(relay) => (
                    relay,
                    Message::Request {
                        nonce,
                        mld: self.mld,
                    },
                ),
            };
            send(to, message, p);
        }
        failed
    }

    /// Handles an Advertisement and returns the address of the relay, which is asked next.
    pub(super) fn advertised(
        &mut self,
        from: SocketAddr,
        nonce: u32,
        relay: IpAddr,
        timing: &Timing,
        now: Instant,
    ) -> Result<SocketAddr, DropReason> {
        let mut discovering = self
            .attempts
            .iter_mut()
            .filter(|a| a.relay.is_none() && a.candidate.addr == from);
        let Some(attempt) = discovering.next() else {
            return Err(DropReason::NotTheRelay);
        };
        if attempt.question.sent_at(nonce).is_none() {
            return Err(DropReason::UnknownNonce);
        }
        let relay = relay.to_canonical();
        let is_no_host = relay.is_unspecified() || relay == IpAddr::V4(Ipv4Addr::BROADCAST);
        if is_no_host || relay.is_multicast() {
            return Err(DropReason::BadAddress);
        }
        // An Advertisement has no port: the relay's is that of the discovery address.
        let relay = SocketAddr::new(relay, attempt.candidate.addr.port());
        attempt.relay = Some(relay);
        attempt.question = Question::new(timing.first_wait, now);
        Ok(relay)
    }

    /// Returns the winner if a query answers one of the Requests.
    pub(super) fn answered(
        &mut self,
        from: SocketAddr,
        nonce: u32,
        now: Instant,
    ) -> Result<Winner, DropReason> {
        let mut unknown = DropReason::NotTheRelay;
        for attempt in &self.attempts {
            if attempt.relay != Some(from) {
                continue;
            }
            match attempt.question.sent_at(nonce) {
                Some(at) => {
                    return Ok(Winner {
                        candidate: attempt.candidate,
                        relay: from,
                        mld: self.mld,
                        question: attempt.question.clone(),
                        asked: at,
                        rtt: now.saturating_duration_since(at),
                    });
                }
                None => unknown = DropReason::UnknownNonce,
            }
        }
        Err(unknown)
    }

    /// Removes this candidate; the next one is asked at once.
    pub(super) fn give_up(&mut self, addr: SocketAddr, now: Instant) {
        self.attempts.retain(|a| a.candidate.addr != addr);
        self.next = now;
    }

    /// Returns the candidates that messages to this address are for.
    pub(super) fn asked_at(&self, to: SocketAddr) -> Vec<SocketAddr> {
        let there = |a: &&Attempt| a.relay.unwrap_or(a.candidate.addr) == to;
        let asked = self.attempts.iter().filter(there);
        asked.map(|a| a.candidate.addr).collect()
    }
}
