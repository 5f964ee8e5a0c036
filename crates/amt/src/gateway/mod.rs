//! The gateway: finds a relay, requests groups from it and receives their packets (RFC 7450,
//! section 5.2).
//!
//! One [`Gateway`] serves one program. It needs no network interface of its own: packets of a flow
//! come out of [`Gateway::handle`] as the payload of a UDP datagram. Groups of both address
//! families may be subscribed, through relays of either.
//!
//! - **Race**: candidates are asked one after the other, without waiting long for each answer. The
//!   first that answers with a valid query becomes the relay. Candidates that fail are held down; a
//!   relay in use that stops answering is probed about once a second for a while.
//! - **Cycle**: IPv4 and IPv6 groups have separate cycles of Request, Query and Update (IGMPv3,
//!   MLDv2) with that relay, at the interval that the relay's query gives.
//! - **Changes** of the subscriptions are reported at once, and repeated as often as the relay's
//!   robustness variable says.
//! - **Failover**: a relay that does not answer, or is full, is left when another one has answered
//!   or when its packets stop. A relay that answers but brings no packets is left when the
//!   application suspects it and another one has answered.
//!
//! All state is bounded, and all work is done in the caller's time.

mod association;
mod candidates;
mod changes;
mod entropy;
mod incoming;
mod membership;
mod p_flags;
mod question;
mod race;
mod traffic;
mod types;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::ip::Reassembly;
use crate::report::{Record, write_report};
use crate::{Message, PFlag};
use association::{Association, Cycle, DEFAULT_ROBUSTNESS, Grant};
use candidates::Candidates;
use entropy::Entropy;
use membership::Membership;
use p_flags::PFlags;
use race::Race;
use traffic::RetiringRelay;
pub use types::*;

/// Most messages waiting to be sent; a driver takes them after every call.
const MAX_UNSENT: usize = 128;
/// Most events waiting for the caller; older ones are dropped first.
const MAX_EVENTS: usize = 64;
/// Longest packet with a report, in bytes: with the headers of AMT, UDP and IPv6 it fits a path
/// MTU of 1,280 bytes.
const MAX_REPORT: usize = 1200;

/// The state machine.
///
/// After every call, take what [`poll_transmit`](Self::poll_transmit) and
/// [`poll_event`](Self::poll_event) have, and call [`handle_timeout`](Self::handle_timeout) at the
/// time that [`poll_timeout`](Self::poll_timeout) says.
#[derive(Debug)]
pub struct Gateway {
    timing: Timing,
    entropy: Entropy,
    candidates: Candidates,
    /// Position of the P flag that each relay reads in a Request.
    p_flags: PFlags,
    membership: Membership,
    race: Option<Race>,
    current: Option<Association>,
    /// Tunnel of an earlier run from the same local port.
    past: Option<TunnelProof>,
    retiring: Option<RetiringRelay>,
    /// Time without packets after which other relays are tried.
    patience: Duration,
    /// Start of the next race, while all candidates are held down.
    retry: Option<Instant>,
    /// Whether [`Event::NoRelay`] was reported since the last race began.
    reported_none: bool,
    unsent: VecDeque<(SocketAddr, Vec<u8>)>,
    events: VecDeque<Event>,
    counters: Counters,
    /// Fragments of packets that were too large for the path from the relay.
    fragments: Reassembly,
}

impl Gateway {
    /// Creates a gateway without subscriptions and candidates. `seed` must be random and secret:
    /// with it, an attacker could answer in place of a relay.
    pub fn new(timing: Timing, seed: [u8; 32]) -> Self {
        Self {
            patience: timing.silence,
            timing,
            entropy: Entropy::new(seed),
            candidates: Candidates::default(),
            p_flags: PFlags::default(),
            membership: Membership::default(),
            race: None,
            current: None,
            past: None,
            retiring: None,
            retry: None,
            reported_none: false,
            unsent: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            fragments: Reassembly::default(),
        }
    }

    /// Replaces the candidates, the preferred ones first. A relay in use stays in use while it
    /// works. Candidates after the first [`MAX_CANDIDATES`] are ignored.
    pub fn set_candidates(
        &mut self,
        candidates: impl IntoIterator<Item = Candidate>,
        now: Instant,
    ) {
        self.candidates.set(candidates);
        let ready: Vec<Candidate> = self.candidates.ready(now).collect();
        let others: Vec<Candidate> = ready.into_iter().filter(|c| !self.is_in_use(c)).collect();
        if let Some(race) = &mut self.race {
            let known = self.candidates.all();
            race.keep(|addr| known.iter().any(|k| k.candidate.addr == addr));
            for candidate in others {
                race.add(candidate);
            }
        }
        self.retry = None;
        self.start_discovery(now);
    }

    /// Replaces the relays that must not be used, because other gateways have them, by their IP
    /// addresses and those that lead to them. A relay in use that is among them is left.
    pub fn exclude(&mut self, relays: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let relays = relays.into_iter().map(|relay| relay.to_canonical());
        if !self.candidates.exclude(relays.collect()) {
            return;
        }
        let candidates = &self.candidates;
        let race = self.race.as_mut();
        let led = race.map(|race| race.exclude(|relay| candidates.is_excluded(relay)));
        for addr in led.unwrap_or_default() {
            let why = RelayFailure::Excluded;
            self.candidates
                .failed(addr, why, &self.timing, &mut self.entropy, now);
        }
        let candidates = &self.candidates;
        let is_excluded = |a: &Association| {
            let addresses = [a.relay, a.candidate.addr];
            addresses.iter().any(|a| candidates.is_excluded(*a))
        };
        let is_left = self.current.as_ref().is_some_and(is_excluded);
        let is_over = |retiring: &RetiringRelay| {
            is_excluded(&retiring.association) || (is_left && !retiring.may_serve())
        };
        if self.retiring.as_ref().is_some_and(is_over) {
            self.finish_retiring();
        }
        if is_left {
            if self.retiring.is_some() {
                // Nothing else brings packets until another relay is found.
                self.reinstate(RelayFailure::Excluded, now);
            } else if let Some(association) = self.current.take() {
                self.lose(&association, RelayFailure::Excluded, now);
                self.leave(&association);
            }
        }
        self.retry = None;
        self.start_discovery(now);
        self.handle_timeout(now);
    }

    /// Returns the addresses of the relay in use.
    pub fn relay(&self) -> Option<UsedRelay> {
        self.current.as_ref().map(|association| UsedRelay {
            relay: association.relay.ip().to_canonical(),
            found_at: association.candidate.addr.ip().to_canonical(),
        })
    }

    /// Tears down a tunnel of an earlier run that this run cannot continue. Otherwise its packets
    /// would go to a closed port, and it would occupy a place at the relay.
    pub fn take_down(&mut self, tunnel: TunnelProof) {
        self.teardown(tunnel);
    }

    /// Continues the tunnel of an earlier run, from the same local port. It is torn down if its
    /// relay sees this gateway at another address now, or another relay is chosen.
    pub fn resume(&mut self, tunnel: TunnelProof) {
        self.past = Some(tunnel);
    }

    /// Returns the tunnel in use, if the relay reports the address at which it sees this gateway;
    /// before there is one, the tunnel of [`resume`](Self::resume).
    pub fn tunnel(&self) -> Option<TunnelProof> {
        let Some(association) = &self.current else {
            return self.past;
        };
        association.proof.map(|proof| proof.of(association.relay))
    }

    /// Adds a subscription. Equal subscriptions share an id and are counted.
    ///
    /// # Errors
    /// No relay could serve it, or there are too many; see [`SubscribeError`].
    pub fn subscribe(
        &mut self,
        subscription: Subscription,
        now: Instant,
    ) -> Result<SubscriptionId, SubscribeError> {
        let repeats = self.robustness(subscription.group.to_canonical().is_ipv6());
        let known = self.membership.len();
        let id = self.membership.add(subscription, repeats)?;
        if self.membership.len() > known {
            self.expects_more(now);
        }
        self.membership_changed(now);
        Ok(id)
    }

    /// Removes one use of a subscription.
    pub fn unsubscribe(&mut self, id: SubscriptionId, now: Instant) {
        let mld = self.membership.is_mld(id);
        let repeats = self.robustness(mld);
        self.membership.remove(id, repeats);
        if self.membership.subscription(id).is_none() {
            self.expects_no_more(id);
        }
        self.membership_changed(now);
    }

    /// Leaves all groups and the relay at once. The messages then queued are the last ones.
    pub fn stop(&mut self) {
        self.race = None;
        self.retry = None;
        self.past = None;
        self.finish_retiring();
        if let Some(association) = self.current.take() {
            self.leave(&association);
        }
        self.membership.clear();
    }

    /// Returns a subscription that is still in use.
    pub fn subscription(&self, id: SubscriptionId) -> Option<Subscription> {
        self.membership.subscription(id)
    }

    /// Reports that the application misses packets. The relay is asked whether it is alive. If it
    /// has brought nothing for [`Timing::silence`], other candidates are asked as well, and the
    /// first that answers becomes the relay even if the old one is alive; each time in a row, that
    /// period doubles. May be called at any rate.
    pub fn suspect(&mut self, now: Instant) {
        if let Some(association) = &mut self.current {
            association.ask(&self.timing, now);
        }
        self.distrust(now);
        self.handle_timeout(now);
    }

    /// Reports that packets leave by another network than before: failed candidates may work now,
    /// and the relay sees another address.
    pub fn network_changed(&mut self, now: Instant) {
        self.candidates.release();
        self.retry = None;
        self.race = None;
        if let Some(association) = &mut self.current {
            association.restart_requests(&self.timing, now);
        }
        self.start_discovery(now);
        self.handle_timeout(now);
    }

    /// Reports that a message to this address could not be sent because there is no route.
    pub fn unreachable(&mut self, to: SocketAddr, now: Instant) {
        let Some(race) = &mut self.race else {
            return;
        };
        for addr in race.asked_at(to) {
            race.give_up(addr, now);
            self.candidates.failed(
                addr,
                RelayFailure::Unreachable,
                &self.timing,
                &mut self.entropy,
                now,
            );
        }
        self.handle_timeout(now);
    }

    /// Fills `out` with the next message to send and returns its destination.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let (to, bytes) = self.unsent.pop_front()?;
        *out = bytes;
        Some(to)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let race = self.race.as_ref().and_then(Race::poll_timeout);
        let current = self.current.as_ref().and_then(Association::poll_timeout);
        let retiring = self.retiring.as_ref().map(|r| r.until);
        let probes = self.race.is_some() && self.current.is_none();
        let probe = self.candidates.next_probe().filter(|_| probes);
        [race, current, retiring, self.retry, probe]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.retiring.as_ref().is_some_and(|r| r.until <= now) {
            self.end_overlap(now);
        }
        self.drive_current(now);
        self.probe_missed(now);
        self.drive_race(now);
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
            self.start_discovery(now);
            // Candidates of the new race may be due for a probe already.
            self.probe_missed(now);
            self.drive_race(now);
        }
    }

    /// Whether there are subscriptions, but no relay for them.
    pub fn is_looking(&self) -> bool {
        self.current.is_none() && self.membership.len() > 0
    }

    /// Returns a snapshot of relay, candidates and counters.
    pub fn status(&self) -> Status {
        let relay = self.current.as_ref().map(|association| {
            let [igmp, mld] = &association.cycles;
            let granted = |c: &Option<Cycle>| c.as_ref().is_some_and(|c| c.granted);
            RelayStatus {
                addr: association.relay,
                origin: association.candidate.origin,
                since: association.since,
                rtt: association.rtt,
                gateway: association.proof.map(|p| canonical(p.gateway)),
                limited: association.limited,
                igmp: granted(igmp),
                mld: granted(mld),
                heard: association.heard,
            }
        });
        let using = self.current.as_ref().map(|a| a.candidate.addr);
        let candidates = self.candidates.all().iter().map(|known| {
            let addr = known.candidate.addr;
            let asked = self.race.as_ref().is_some_and(|race| race.is_asked(addr));
            CandidateStatus {
                candidate: known.candidate,
                state: match known.held {
                    _ if using == Some(addr) => CandidateState::Selected,
                    _ if asked => CandidateState::Asked,
                    Some(until) => CandidateState::HeldDown { until },
                    None => CandidateState::Waiting,
                },
                failed: known.failed,
            }
        });
        Status {
            relay,
            candidates: candidates.collect(),
            subscriptions: self.membership.len(),
            counters: self.counters,
        }
    }

    /// Returns the counters of [`status`](Self::status) alone.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn robustness(&self, mld: bool) -> u8 {
        let [igmp, of_mld] = match &self.current {
            Some(association) => &association.cycles,
            None => return DEFAULT_ROBUSTNESS,
        };
        let cycle = if mld { of_mld } else { igmp };
        cycle.as_ref().map_or(DEFAULT_ROBUSTNESS, |c| c.robustness)
    }

    fn emit(&mut self, event: Event) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn send(&mut self, to: SocketAddr, message: Message<'_>) {
        let (unsent, counters) = (&mut self.unsent, &mut self.counters);
        send(unsent, counters, to, message, PFlag::Rfc);
    }

    /// Reports records to the relay in use, with its newest grant.
    fn report_to_relay(&mut self, mld: bool, records: &[Record], now: Instant) {
        let Some(association) = &mut self.current else {
            return;
        };
        let (relay, Some(grant)) = (association.relay, association.grant) else {
            return;
        };
        if let Some(cycle) = association.cycle(mld)
            && !records.is_empty()
        {
            cycle.reported = Some((now, grant.nonce));
        }
        self.report(relay, grant, mld, records);
    }

    /// Queues an Update, or several if the report is long.
    fn report(&mut self, relay: SocketAddr, grant: Grant, mld: bool, records: &[Record]) {
        let Grant { mac, nonce, .. } = grant;
        // GrumpyOldTroll's amtrelayd rejects MLD messages that are shorter than an IPv6 header: a
        // single record without sources is repeated, which means the same.
        let twice;
        let records = match records {
            [one] if mld && one.sources.is_empty() => {
                twice = [one.clone(), one.clone()];
                &twice[..]
            }
            records => records,
        };
        write_report(mld, records, MAX_REPORT, |packet| {
            let message = Message::Update { mac, nonce, packet };
            let (unsent, counters) = (&mut self.unsent, &mut self.counters);
            send(unsent, counters, relay, message, PFlag::Rfc);
        });
    }

    /// Reports to a relay that no group is wanted, and tears the tunnel down.
    fn leave(&mut self, association: &Association) {
        let granted = [false, true].into_iter().zip(&association.cycles);
        let granted = granted.filter(|(_, cycle)| cycle.as_ref().is_some_and(|c| c.granted));
        for (mld, grant) in granted.filter_map(|(mld, _)| Some((mld, association.grant?))) {
            let records = self.membership.leave_all(mld);
            if !records.is_empty() {
                self.report(association.relay, grant, mld, &records);
            }
        }
        if let Some(proof) = association.proof {
            self.teardown(proof.of(association.relay));
        }
    }

    fn teardown(&mut self, tunnel: TunnelProof) {
        let message = Message::Teardown {
            mac: tunnel.mac,
            nonce: tunnel.nonce,
            gateway: tunnel.gateway,
        };
        self.send(tunnel.relay, message);
    }
}

/// Unmaps an IPv4-mapped IPv6 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Queues and counts a message, with the P flag of a Request at `p`.
fn send(
    unsent: &mut VecDeque<(SocketAddr, Vec<u8>)>,
    counters: &mut Counters,
    to: SocketAddr,
    message: Message<'_>,
    p: PFlag,
) {
    if unsent.len() >= MAX_UNSENT {
        counters.unsent += 1;
        return;
    }
    match message {
        Message::Discovery { .. } => counters.discoveries += 1,
        Message::Request { .. } => counters.requests += 1,
        Message::Update { .. } => counters.updates += 1,
        Message::Teardown { .. } => counters.teardowns += 1,
        Message::Advertisement { .. } | Message::Query { .. } | Message::Data { .. } => {}
    }
    let mut bytes = Vec::with_capacity(message.len());
    message.encode_with(p, &mut bytes);
    unsent.push_back((to, bytes));
}
