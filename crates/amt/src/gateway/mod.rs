//! The gateway: finds a relay, asks it for groups and takes what it sends (RFC 7450, section 5.2).
//!
//! One [`Gateway`] serves one program: it needs no network interface of its own, for packets of a
//! flow come out of [`Gateway::handle`] as what the application wants, the payload of a UDP
//! datagram. Groups of both address families may be subscribed, through relays of either.
//!
//! - Candidates are asked one after the other without waiting for answers for long; the first that
//!   answers with a valid query becomes the relay. Those that fail are held down; the relay that
//!   was in use and stopped answering is probed about once a second for a while.
//! - For IPv4 and IPv6 groups there is a separate cycle of Request, Query and Update (IGMPv3,
//!   MLDv2) with that relay; it runs as often as the relay's query says.
//! - What changes is told at once, and again as the relay's robustness says.
//! - A relay that does not answer, or is full, is left when another one answered, or when nothing
//!   comes from it any more; one that answers and brings no packets, when the application suspects
//!   it and another one answered.
//!
//! Everything here is bounded, and runs in the caller's time.

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
use std::net::SocketAddr;
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
use traffic::Retiring;
pub use types::*;

/// Messages that wait to be sent; a driver takes them after every call.
const MAX_UNSENT: usize = 128;
/// Events that wait to be taken; older ones go first.
const MAX_EVENTS: usize = 64;
/// Longest packet with a report, in bytes: with the headers of AMT, UDP and IPv6 it fits a path of
/// 1,280 bytes.
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
    /// Where relays read P of a Request.
    p_flags: PFlags,
    membership: Membership,
    race: Option<Race>,
    current: Option<Association>,
    /// The tunnel of an earlier run from the same local port.
    past: Option<TunnelProof>,
    retiring: Option<Retiring>,
    /// For how long the relay has to bring nothing before others are tried.
    patience: Duration,
    /// When the next race begins, while all candidates are held down.
    retry: Option<Instant>,
    /// Whether [`Event::NoRelay`] was told since the last race began.
    told_none: bool,
    unsent: VecDeque<(SocketAddr, Vec<u8>)>,
    events: VecDeque<Event>,
    counters: Counters,
    /// Of packets that were too large for the way from the relay.
    fragments: Reassembly,
}

impl Gateway {
    /// A gateway without subscriptions and candidates. `seed` has to be random: whoever knows it
    /// could answer in a relay's place.
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
            told_none: false,
            unsent: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            fragments: Reassembly::default(),
        }
    }

    /// The relays that may be used, the preferred ones first; replaces those before. A relay that
    /// is in use stays so while it works. Of more than [`MAX_CANDIDATES`], the first ones count.
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
        self.look_for_relay(now);
    }

    /// Takes down a tunnel of an earlier run, which this run cannot go on with: its packets would go
    /// to a closed port, and its place at the relay is lost to others.
    pub fn take_down(&mut self, tunnel: TunnelProof) {
        self.teardown(tunnel);
    }

    /// Goes on with the tunnel of an earlier run, from the same local port. Should its relay see
    /// this gateway at another address now, or another relay be chosen, it is taken down.
    pub fn resume(&mut self, tunnel: TunnelProof) {
        self.past = Some(tunnel);
    }

    /// The tunnel in use, if the relay says where it sees this gateway; before there is one, that
    /// of [`resume`](Self::resume).
    pub fn tunnel(&self) -> Option<TunnelProof> {
        let Some(association) = &self.current else {
            return self.past;
        };
        association.proof.map(|proof| proof.of(association.relay))
    }

    /// Subscribes. An equal subscription gives the same id, and counts.
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

    /// Takes one subscription back.
    pub fn unsubscribe(&mut self, id: SubscriptionId, now: Instant) {
        let mld = self.membership.is_mld(id);
        let repeats = self.robustness(mld);
        self.membership.remove(id, repeats);
        if self.membership.subscription(id).is_none() {
            self.expects_no_more(id);
        }
        self.membership_changed(now);
    }

    /// Leaves everything at once: the messages to send are the last ones.
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

    /// A subscription that was not taken back as often as it was made.
    pub fn subscription(&self, id: SubscriptionId) -> Option<Subscription> {
        self.membership.subscription(id)
    }

    /// The application misses packets: the relay is asked whether it is there. If it has brought
    /// nothing for [`Timing::silence`], others are asked as well, and the first that answers
    /// becomes the relay, though this one may be there; with each time in a row that it comes to
    /// that, it takes twice as long. May be called as often as one likes.
    pub fn suspect(&mut self, now: Instant) {
        if let Some(association) = &mut self.current {
            association.ask(&self.timing, now);
        }
        self.distrust(now);
        self.handle_timeout(now);
    }

    /// Packets leave by another network than before: what failed may work now, and the relay sees
    /// another address.
    pub fn network_changed(&mut self, now: Instant) {
        self.candidates.release();
        self.retry = None;
        self.race = None;
        if let Some(association) = &mut self.current {
            association.ask_anew(&self.timing, now);
        }
        self.look_for_relay(now);
        self.handle_timeout(now);
    }

    /// A message to this address could not be sent, because there is no way there.
    pub fn unreachable(&mut self, to: SocketAddr, now: Instant) {
        let Some(race) = &mut self.race else {
            return;
        };
        for addr in race.asked_at(to) {
            race.give_up(addr, now);
            self.candidates.failed(
                addr,
                Lost::Unreachable,
                &self.timing,
                &mut self.entropy,
                now,
            );
        }
        self.handle_timeout(now);
    }

    /// The next message to send: fills `out` and gives its destination.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let (to, bytes) = self.unsent.pop_front()?;
        *out = bytes;
        Some(to)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
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

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.retiring.as_ref().is_some_and(|r| r.until <= now) {
            self.end_overlap(now);
        }
        self.drive_current(now);
        self.probe_missed(now);
        self.drive_race(now);
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
            self.look_for_relay(now);
            // Candidates of the new race may be due for a probe already.
            self.probe_missed(now);
            self.drive_race(now);
        }
    }

    /// Whether something is subscribed, and there is no relay for it.
    pub fn is_looking(&self) -> bool {
        self.current.is_none() && self.membership.len() > 0
    }

    /// How things stand.
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

    /// The numbers of [`status`](Self::status) alone.
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

    fn tell(&mut self, event: Event) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn send(&mut self, to: SocketAddr, message: Message<'_>) {
        let (unsent, counters) = (&mut self.unsent, &mut self.counters);
        send(unsent, counters, to, message, PFlag::Rfc);
    }

    /// Tells the relay in use, with its newest grant.
    fn tell_relay(&mut self, mld: bool, records: &[Record], now: Instant) {
        let Some(association) = &mut self.current else {
            return;
        };
        let (relay, Some(grant)) = (association.relay, association.grant) else {
            return;
        };
        if let Some(cycle) = association.cycle(mld)
            && !records.is_empty()
        {
            cycle.told = Some((now, grant.nonce));
        }
        self.report(relay, grant, mld, records);
    }

    /// Sends an Update, or several if it is long.
    fn report(&mut self, relay: SocketAddr, grant: Grant, mld: bool, records: &[Record]) {
        let Grant { mac, nonce, .. } = grant;
        // GrumpyOldTroll's amtrelayd takes no MLD message that is shorter than an IPv6 header: one
        // record without sources is told twice, which means the same.
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

    /// Tells a relay that nothing is wanted of it, and that the tunnel is over.
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

/// An IPv4 address that was written as an IPv6 one, as people write it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Puts a message into the queue, P of a Request at `p`, and counts it.
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
