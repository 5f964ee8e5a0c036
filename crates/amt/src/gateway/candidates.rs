//! Candidates and their hold-downs.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::entropy::Entropy;
use super::types::{Candidate, MAX_CANDIDATES, RelayFailure, Timing};

/// Doublings after which a hold-down is at its longest.
const MOST_DOUBLINGS: u32 = 16;

/// A candidate with its history.
#[derive(Clone, Copy, Debug)]
pub(super) struct CandidateHistory {
    pub(super) candidate: Candidate,
    /// End of its hold-down.
    pub(super) held: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    pub(super) failed: Option<RelayFailure>,
    /// Time at which it was left for bringing nothing, unless it has brought something since.
    silent: Option<Instant>,
    /// Time at which it stopped answering while in use, unless it has answered since.
    missed: Option<Instant>,
}

impl CandidateHistory {
    /// Whether it is likely to be back soon: programs that end are mostly restarted.
    fn is_missed(&self, timing: &Timing, now: Instant) -> bool {
        let until = self.missed.map(|since| since + timing.probe_for);
        until.is_some_and(|until| now < until)
    }
}

/// All candidates, in the order of preference.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    list: Vec<CandidateHistory>,
    /// Addresses of relays that are not to be tried.
    excluded: BTreeSet<IpAddr>,
}

impl Candidates {
    /// Replaces the list; the history of candidates that stay is kept.
    pub(super) fn set(&mut self, list: impl IntoIterator<Item = Candidate>) {
        let mut new: Vec<CandidateHistory> = Vec::new();
        for candidate in list {
            if new.len() >= MAX_CANDIDATES {
                break;
            }
            if new.iter().any(|k| k.candidate.addr == candidate.addr) {
                continue;
            }
            let before = self
                .list
                .iter()
                .find(|k| k.candidate.addr == candidate.addr);
            let fresh = CandidateHistory {
                candidate,
                held: None,
                failures: 0,
                failed: None,
                silent: None,
                missed: None,
            };
            new.push(CandidateHistory {
                candidate,
                ..before.copied().unwrap_or(fresh)
            });
        }
        self.list = new;
    }

    /// Replaces the excluded relays. Returns whether they are others than before.
    pub(super) fn exclude(&mut self, relays: BTreeSet<IpAddr>) -> bool {
        let differs = self.excluded != relays;
        self.excluded = relays;
        differs
    }

    /// Whether the relay at this address is excluded.
    pub(super) fn is_excluded(&self, relay: SocketAddr) -> bool {
        self.excluded.contains(&relay.ip().to_canonical())
    }

    pub(super) fn all(&self) -> &[CandidateHistory] {
        &self.list
    }

    fn allowed(&self) -> impl Iterator<Item = &CandidateHistory> {
        let all = self.list.iter();
        all.filter(|known| !self.is_excluded(known.candidate.addr))
    }

    /// Returns the candidates that may be tried now.
    pub(super) fn ready(&self, now: Instant) -> impl Iterator<Item = Candidate> {
        let ready = self.allowed();
        let ready = ready.filter(move |k| k.held.is_none_or(|at| at <= now));
        ready.map(|k| k.candidate)
    }

    /// Returns the same in the order of attempts: candidates that brought nothing come last, the
    /// most recently left one at the very end.
    pub(super) fn in_order_of_attempts(&self, now: Instant) -> Vec<Candidate> {
        let mut ready: Vec<(Option<Instant>, Candidate)> = self
            .ready(now)
            .map(|candidate| (self.silent(candidate.addr), candidate))
            .collect();
        ready.sort_by_key(|(silent, _)| *silent);
        ready.into_iter().map(|(_, candidate)| candidate).collect()
    }

    fn silent(&self, addr: SocketAddr) -> Option<Instant> {
        let known = self.list.iter().find(|k| k.candidate.addr == addr);
        known.and_then(|k| k.silent)
    }

    /// Returns the end of the first hold-down.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.allowed().filter_map(|k| k.held).min()
    }

    /// Notes an answer; only packets show that the relay works.
    pub(super) fn answers(&mut self, addr: SocketAddr) {
        if let Some(known) = self.find(addr) {
            (known.held, known.failed, known.missed) = (None, None, None);
        }
    }

    /// Notes that it brings packets: its next failure is the first in a row.
    pub(super) fn works(&mut self, addr: SocketAddr) {
        if let Some(known) = self.find(addr) {
            (known.held, known.failures, known.failed) = (None, 0, None);
            known.silent = None;
        }
    }

    /// Notes that the relay in use stopped answering: for a while it is probed instead of held
    /// down.
    pub(super) fn missed(
        &mut self,
        addr: SocketAddr,
        why: RelayFailure,
        timing: &Timing,
        entropy: &mut Entropy,
        now: Instant,
    ) {
        if let Some(known) = self.find(addr) {
            known.missed = Some(now);
        }
        self.failed(addr, why, timing, entropy, now);
    }

    /// Whether it is being probed.
    pub(super) fn is_missed(&self, addr: SocketAddr, timing: &Timing, now: Instant) -> bool {
        let known = self.list.iter().find(|k| k.candidate.addr == addr);
        known.is_some_and(|known| known.is_missed(timing, now))
    }

    /// Returns the time of the next probe.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        let missed = self.allowed().filter(|k| k.missed.is_some());
        missed.filter_map(|k| k.held).min()
    }

    /// Takes the missed relays that are due for a probe out of their hold-down.
    pub(super) fn probes(&mut self, now: Instant) -> Vec<Candidate> {
        let excluded = &self.excluded;
        let missed = self.list.iter_mut().filter(|k| {
            let relay = k.candidate.addr.ip().to_canonical();
            k.missed.is_some() && !excluded.contains(&relay)
        });
        let due = missed.filter_map(|k| k.held.take_if(|at| *at <= now).map(|_| k.candidate));
        due.collect()
    }

    pub(super) fn failed(
        &mut self,
        addr: SocketAddr,
        why: RelayFailure,
        timing: &Timing,
        entropy: &mut Entropy,
        now: Instant,
    ) {
        let Some(known) = self.find(addr) else {
            return;
        };
        let unanswered = matches!(why, RelayFailure::Timeout | RelayFailure::Unreachable);
        if unanswered && known.is_missed(timing, now) {
            known.failed = Some(why);
            // A Request that timed out has waited for its answer already; one that could not even
            // be sent has not.
            let pause = match why {
                RelayFailure::Timeout => entropy.around(timing.probe, 0.02, 0.25),
                _ => entropy.around(timing.probe, 0.75, 1.25),
            };
            known.held = Some(now + pause);
            return;
        }
        known.missed = None;
        let doublings = known.failures.min(MOST_DOUBLINGS);
        let hold = timing.hold_down.saturating_mul(1 << doublings);
        let hold = entropy.around(hold.min(timing.longest_hold_down), 0.75, 1.0);
        known.failures = known.failures.saturating_add(1);
        known.failed = Some(why);
        if why == RelayFailure::NoTraffic {
            known.silent = Some(now);
        }
        known.held = Some(now + hold);
    }

    /// Ends all hold-downs.
    pub(super) fn release(&mut self) {
        for known in &mut self.list {
            (known.held, known.failures) = (None, 0);
            known.silent = None;
        }
    }

    fn find(&mut self, addr: SocketAddr) -> Option<&mut CandidateHistory> {
        self.list.iter_mut().find(|k| k.candidate.addr == addr)
    }
}
