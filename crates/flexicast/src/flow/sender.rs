//! [`FlowSender`]: one flow's packets, and what its members' acknowledgements mean for them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::checks::{MemberChecks, MemberTimer};
use super::epoch::Epochs;
use super::grants::Window;
use super::ledger::{Ledger, StreamRange};
use super::member::{Delays, Member, collect};
use super::pacer::{BreakerState, FlowRate, Pacer, RateControl};
use super::pings::Pings;
use super::pmtu::Pmtu;
use super::queue::SendQueue;
use super::shared_repairs::SharedRepairs;
use crate::authentication::{
    AuthenticationConfig, FlowAuthentication, PacketAuthentication, Sealer,
};
use crate::fec::{FecConfig, Scheduler};
use crate::protect::{Algorithm, FlowSecret, KeyError, MAX_PACKETS};
use crate::trace::TracedFrame;
use crate::{Cause, DEFAULT_UDP_PAYLOAD, FlowId, PathId};

/// The caller's number for a member: unique among the members of a flow.
pub type MemberId = u64;

/// An epoch asks for its successor when so many packets are left to it, or an eighth of all if that
/// is less.
const EPOCH_RESERVE: u64 = 1 << 16;

/// Constant parameters of a flow.
#[derive(Debug, Clone)]
pub struct FlowConfig {
    /// Fresh random for every flow.
    pub flow: FlowId,
    /// Of the first key epoch; fresh random for every flow.
    pub secret: FlowSecret,
    /// The AEAD.
    pub algorithm: Algorithm,
    /// UDP payload of a full packet in bytes, at most: its frames end on a multiple of
    /// [`crate::protect::BLOCK_LEN`]. All paths have to take it.
    pub udp_payload: usize,
    /// Larger UDP payload that is used if all members take it; no more than `udp_payload` for none.
    pub max_udp_payload: usize,
    /// Highest rate in bit/s of UDP payload; `None` for no limit of its own.
    pub rate: Option<u64>,
    /// Rate control within that.
    pub control: RateControl,
    /// Maximum acknowledgement delay of members.
    pub ack_delay: Duration,
    /// `D_fb`: data unacknowledged for so long moves a member to unicast.
    pub fall_back: Duration,
    /// Interval of PINGs on an idle flow.
    pub heartbeat: Duration,
    /// Packets that one key epoch protects at most (RFC 9001 section 6.6).
    pub epoch_packets: u64,
    /// Authentication of packets or streams; `None` for those that any holder of the flow's key can
    /// make.
    pub authentication: Option<AuthenticationConfig>,
    /// Erasure coding; `None` for a flow that sends no repair symbols.
    pub fec: Option<FecConfig>,
}

impl FlowConfig {
    /// The design's defaults for a new flow.
    pub fn new(flow: FlowId, secret: FlowSecret) -> Self {
        FlowConfig {
            flow,
            secret,
            algorithm: Algorithm::default(),
            udp_payload: DEFAULT_UDP_PAYLOAD,
            max_udp_payload: DEFAULT_UDP_PAYLOAD,
            rate: Some(10_000_000),
            control: RateControl::default(),
            ack_delay: Duration::from_millis(25),
            fall_back: Duration::from_millis(150),
            heartbeat: Duration::from_secs(1),
            epoch_packets: MAX_PACKETS,
            authentication: None,
            fec: None,
        }
    }
}

/// Requests of the flow to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEvent {
    /// These bytes did not reach the member: send them on its unicast path.
    Repair {
        /// Member that misses the bytes.
        member: MemberId,
        /// Missing bytes.
        range: StreamRange,
    },
    /// Many members miss these bytes: call [`FlowSender::provide`] with the updates that they
    /// belong to.
    Wanted {
        /// Packet that carried them.
        packet: u64,
        /// Missing bytes.
        ranges: Vec<StreamRange>,
    },
    /// A repair symbol: send it on the connections of these members.
    Symbol {
        /// Members that are to get it.
        members: Vec<MemberId>,
        /// Payload of a DATAGRAM.
        symbol: Bytes,
    },
    /// The member is off the flow.
    FellBack {
        /// The member.
        member: MemberId,
        /// Why.
        cause: Cause,
        /// Data that must now reach it on its unicast path.
        departure: Departure,
    },
    /// Another key epoch is in use.
    Switched {
        /// Its sequence.
        sequence: u64,
    },
    /// The circuit breaker changed its state (RFC 8084).
    Breaker(BreakerState),
}

/// The cut at the end of a membership: what the receiver did not get from the flow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Departure {
    /// Ranges that it did not acknowledge, and the rest of an update that was only partly sent; all
    /// of an update whose signature it lacks.
    pub owed: Vec<StreamRange>,
    /// The first `seq` of which nothing was sent on the flow; everything from here on is owed too.
    pub resume: u64,
}

/// Counters of a flow, since its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Packets made.
    pub packets: u64,
    /// Bytes of UDP payload made.
    pub bytes: u64,
    /// PINGs among the packets, without probes.
    pub pings: u64,
    /// Probes of larger packets among the packets.
    pub probes: u64,
    /// Packets of tags, which are not among the packets.
    pub tag_packets: u64,
    /// Packets that were signed, among the packets.
    pub signed: u64,
    /// Repair symbols sent: each in a packet of its own, which is among the packets, or on the
    /// connections of members, counted for each.
    pub repair_symbols: u64,
    /// Lost packets that members rebuilt from repair symbols, counted for each member: each of them
    /// saved a repair.
    pub rebuilt: u64,
    /// DATAGRAM frames sent.
    pub datagrams: u64,
    /// Fragments of messages that were dropped because their deadline passed before they could be
    /// sent.
    pub late_datagrams: u64,
    /// Updates that were taken off the flow before all of them was sent.
    pub abandoned: u64,
    /// Times that the flow had to wait for a member's window.
    pub blocked: u64,
    /// Key epochs that were begun, the first included.
    pub epochs: u64,
    /// Packets that members reported as marked with CE, counted for each member.
    pub ce: u64,
}

/// An acknowledgement that cannot be right: the member made it up, or a holder of the flow's key
/// forged a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// Acknowledgement of a packet that was never sent.
    #[error("acknowledges packet {pn}, but the next one to be sent is {next}")]
    Unsent {
        /// The largest packet number that it acknowledges.
        pn: u64,
        /// The flow's next packet number.
        next: u64,
    },
}

/// The sending end of one flow.
#[derive(Debug)]
pub struct FlowSender {
    pub(super) config: FlowConfig,
    pub(super) epochs: Epochs,
    pub(super) delays: Delays,
    /// A member that has not confirmed the announced epoch, to begin looking from.
    pub(super) unconfirmed: MemberId,
    pub(super) queue: SendQueue,
    pub(super) ledger: Ledger,
    pub(super) shared: SharedRepairs,
    pub(super) members: BTreeMap<MemberId, Member>,
    pub(super) window: Window,
    /// Receivers that listen, members or not: while there is none, nothing is sent.
    listeners: usize,
    pub(super) pacer: Pacer,
    pub(super) pings: Pings,
    pub(super) pmtu: Pmtu,
    pub(super) sealer: Option<Sealer>,
    pub(super) fec: Option<Scheduler>,
    pub(super) checks: MemberChecks,
    /// Newest packet with data.
    pub(super) last_data: Option<u64>,
    /// Whether a PING is owed behind repair symbols on connections: an acknowledgement reports what
    /// was rebuilt below its largest packet alone.
    pub(super) owes_ping: bool,
    pub(super) events: VecDeque<FlowEvent>,
    pub(super) stats: FlowStats,
    /// The last packet's frames, while they are traced.
    pub(super) traced: Option<Vec<TracedFrame>>,
    /// Whether silent members stay members.
    #[cfg(feature = "fault-injection")]
    pub(super) fall_back_off: bool,
}

impl FlowSender {
    /// A flow without members whose first packet number is 0.
    pub fn new(mut config: FlowConfig) -> Result<Self, KeyError> {
        // The secret's only home is its epoch, which erases it at its end.
        let secret = std::mem::take(&mut config.secret);
        let epochs = Epochs::new(config.algorithm, secret)?;
        let authentication = config.authentication.take();
        let signs_streams =
            |config: &&AuthenticationConfig| config.packets == PacketAuthentication::Stream;
        let streams = authentication.as_ref().filter(signs_streams);
        let signer = streams.map(AuthenticationConfig::signer).transpose()?;
        let packets = authentication.as_ref().filter(|it| !signs_streams(it));
        let sealer = packets.map(Sealer::new).transpose()?;
        let trailer = sealer.as_ref().map_or(0, |_| Sealer::TRAILER);
        let delays = Delays::new(config.ack_delay, config.fall_back, config.heartbeat);
        Ok(FlowSender {
            pings: Pings::new(config.ack_delay),
            epochs,
            delays,
            unconfirmed: 0,
            queue: SendQueue::new(signer),
            ledger: Ledger::new(0),
            shared: SharedRepairs::default(),
            members: BTreeMap::new(),
            window: Window::unlimited(),
            listeners: 0,
            pacer: Pacer::new(&config),
            pmtu: Pmtu::new(config.udp_payload, config.max_udp_payload, trailer),
            sealer,
            fec: config.fec.map(|fec| Scheduler::new(fec, config.ack_delay)),
            checks: MemberChecks::default(),
            last_data: None,
            owes_ping: false,
            events: VecDeque::new(),
            stats: FlowStats {
                epochs: 1,
                ..FlowStats::default()
            },
            traced: None,
            #[cfg(feature = "fault-injection")]
            fall_back_off: false,
            config,
        })
    }

    /// Returns its parameters; the secret is blanked out, and the authentication left out.
    pub fn config(&self) -> &FlowConfig {
        &self.config
    }

    /// Returns what the source authenticates, if anything, as receivers need to know it.
    pub fn authentication(&self) -> Option<FlowAuthentication> {
        let signer = self.queue.signer();
        let streams = signer.map(|signer| FlowAuthentication::Streams(signer.key()));
        let sealer = self.sealer.as_ref().map(Sealer::parameters);
        streams.or(sealer.map(FlowAuthentication::Packets))
    }

    /// Whether receivers have tags, and this one has none.
    pub fn lacks_tags(&self, receiver: MemberId) -> bool {
        let sealer = self.sealer.as_ref();
        sealer.is_some_and(|sealer| sealer.lacks(receiver))
    }

    /// Makes a key for a receiver's tags, which replaces an earlier one. Returns its number and
    /// secret; `None` where packets have no tags, or no key can be made: the receiver is left with
    /// signatures then.
    pub fn admit_to_tags(&mut self, receiver: MemberId) -> Option<(u32, FlowSecret)> {
        self.sealer.as_mut()?.admit(receiver).ok().flatten()
    }

    /// Makes no more tags for a receiver, which has left the flow.
    pub fn remove_from_tags(&mut self, receiver: MemberId) {
        if let Some(sealer) = &mut self.sealer {
            sealer.remove(receiver);
        }
    }

    /// Keeps silent members on the flow, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_fall_back_off(&mut self, off: bool) {
        self.fall_back_off = off;
    }

    /// Keeps slow and lossy members on the flow, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_eviction_off(&mut self, off: bool) {
        self.pacer.eviction_off = off;
    }

    /// Takes late packets for lost ones, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_reordering_off(&mut self, off: bool) {
        self.delays.reordering_off = off;
    }

    /// The next packet number.
    pub fn next_pn(&self) -> u64 {
        self.ledger.next_pn()
    }

    /// Packets that some member still owes an acknowledgement for.
    pub fn outstanding(&self) -> usize {
        self.ledger.len()
    }

    /// Bytes that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.queue.bytes() + self.shared.queued_bytes()
    }

    /// Counters since the beginning.
    pub fn stats(&self) -> FlowStats {
        self.stats
    }

    /// Returns its rate, and what limits it.
    pub fn rate(&self) -> FlowRate {
        self.pacer.status()
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Whether the current key epoch has protected nearly as many packets as it may (RFC 9001
    /// section 6.6) and another one has to be announced.
    pub fn is_worn_out(&self) -> bool {
        let most = self.config.epoch_packets;
        self.epoch_used() >= most - EPOCH_RESERVE.min(most / 8)
    }

    /// Packets of the current epoch: of either kind, which have keys of their own.
    fn epoch_used(&self) -> u64 {
        let epoch = &self.epochs.current;
        let packets = self.next_pn().saturating_sub(epoch.first_pn);
        packets.max(epoch.next_tag_packet)
    }

    /// Whether the current key has protected all the packets that it may.
    pub(super) fn is_spent(&self) -> bool {
        self.epoch_used() >= self.config.epoch_packets
    }

    /// Sets the number of listeners. Without any, the flow is silent and updates are not queued:
    /// all receivers get them on their unicast paths. Members count as listeners in any case:
    /// losses by silence would not be repaired.
    pub fn set_listeners(&mut self, listeners: usize, now: Instant) {
        let listeners = listeners.max(self.members.len());
        if listeners > self.listeners {
            self.pings.probe_from(now);
        }
        self.listeners = listeners;
        if listeners == 0 {
            self.silence();
        }
    }

    /// Queues an encoded update, whose `seq` must be larger than all before it.
    pub fn push(&mut self, seq: u64, bytes: Bytes) {
        let listens = self.is_heard() || !self.members.is_empty();
        self.queue.push(seq, bytes, listens);
    }

    /// Whether to keep the frames of the last packet.
    pub fn set_tracing(&mut self, on: bool) {
        self.traced = on.then(Vec::new);
    }

    /// The frames of the last packet, if they are kept.
    pub(crate) fn take_last_frames(&mut self) -> Vec<TracedFrame> {
        self.traced.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether any receiver listens, and the circuit breaker lets the flow send.
    pub(crate) fn is_heard(&self) -> bool {
        self.listeners > 0 && self.pacer.breaker() != BreakerState::Open
    }

    /// PINGs come quickly for a while.
    pub(super) fn probe_from(&mut self, now: Instant) {
        if self.is_heard() {
            self.pings.probe_from(now);
        }
    }

    /// Sets the maximum acknowledgement delay of members; a shorter one counts when they know it.
    pub fn set_ack_delay(&mut self, delay: Duration, now: Instant) {
        self.config.ack_delay = delay;
        self.delays.set_ack(delay, now);
        self.pacer.set_ack_delay(self.delays.ack);
        if let Some(fec) = &mut self.fec {
            fec.set_hold(delay);
        }
    }

    /// Makes a receiver that has confirmed key epoch `confirmed` a member from the next packet on
    /// (the cut), which is returned.
    pub fn admit(
        &mut self,
        member: MemberId,
        path: PathId,
        rtt: Duration,
        confirmed: u64,
        now: Instant,
    ) -> u64 {
        let cut = self.next_pn();
        let granted = self.queue.pushed() + self.initial_window();
        let mut new = Member::new(path, cut, rtt, confirmed, granted);
        new.sent_before = self.stats.packets;
        let former = self.members.remove(&member);
        if let Some(former) = &former {
            self.checks.remove(member, former.timer);
        }
        let idle = MemberTimer {
            is_idle: true,
            ..MemberTimer::default()
        };
        self.checks.replace(member, &mut new.timer, idle);
        self.members.insert(member, new);
        if let Some(before) = former {
            before.leave(&mut self.ledger);
            self.pacer.remove(member);
            if let Some(fec) = &mut self.fec {
                fec.remove(member);
            }
            self.ledger.sweep();
            self.regrant();
        } else if self.window.add(granted) || self.members.len() == 1 {
            self.regrant();
        }
        self.pacer.admit(member, rtt, cut, now);
        self.admit_to_sizes(member, now);
        cut
    }

    /// Takes a member off the flow. What it did not get is returned and must reach it on its
    /// unicast path, if it still has one.
    pub fn dismiss(&mut self, member: MemberId) -> Option<Departure> {
        let gone = self.members.remove(&member)?;
        self.pacer.remove(member);
        if let Some(fec) = &mut self.fec {
            fec.remove(member);
        }
        if self.members.is_empty() {
            self.expire_demand();
        }
        self.remove_from_sizes(member);
        self.checks.remove(member, gone.timer);
        let lowest = self.window.is_lowest(&gone.grant);
        let mut owed = gone.leave(&mut self.ledger);
        self.ledger.sweep();
        if lowest && self.window.remove_lowest() {
            self.regrant();
        }
        let (rest, resume) = self.queue.cut();
        collect(&mut owed, rest.as_slice());
        owed.extend(self.queue.unsigned());
        owed.extend(self.shared.leave(member));
        Some(Departure { owed, resume })
    }

    /// Follows a member that merges several legs of the flow to one of them: what it owes stays,
    /// and what one leg lacks, another may bring `lag` later.
    pub fn set_legs(&mut self, member: MemberId, path: PathId, lag: Duration) {
        if let Some(member) = self.members.get_mut(&member) {
            member.set_legs(path, lag);
        }
    }

    /// The member's smoothed round-trip time and the largest packet number that it acknowledged.
    pub fn member(&self, member: MemberId) -> Option<(Duration, Option<u64>)> {
        self.members
            .get(&member)
            .map(|m| (m.rtt.smoothed(), m.largest_acked()))
    }

    /// The lowest update not sent to the end, or of which the member owes a packet.
    pub fn unsettled(&self, member: MemberId) -> Option<u64> {
        let owed = self.members.get(&member)?.lowest_owed(&self.ledger);
        let queued = self.queue.updates.front().map(|outgoing| outgoing.seq);
        let unsigned = self.queue.unsigned().next().map(|range| range.seq);
        let again = self.shared.lowest_unsent(member);
        [queued, unsigned, owed, again].into_iter().flatten().min()
    }

    /// Grants all members a grace period after the source itself was away for `away`:
    /// acknowledgements sent meanwhile are still to be read or in flight. A grace period that has
    /// postponed the check is followed by another before that check only for an absence of twice
    /// the length: a source that is always late does fall members back in the end.
    pub fn grant_grace(&mut self, away: Duration, now: Instant) {
        self.checks.grant_grace(away, self.config.heartbeat, now);
    }

    /// Notes that the source was late from `since` until `now`: what it sent left later, and what
    /// members sent may lie unread or be lost. Their silence meanwhile does not count, for a while:
    /// a source that is always late does fall members back in the end.
    pub fn note_lag(&mut self, since: Instant, now: Instant) {
        self.delays.lag.note(since, now);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<FlowEvent> {
        self.events.pop_front()
    }

    /// Whether there is something to send apart from pacing.
    pub(super) fn wants_to_send(&self, now: Instant) -> bool {
        let first = self.pings.last_sent().is_none();
        self.is_heard()
            && (first
                || self.owes_ping
                || self.has_frames()
                || self.ping_at().is_some_and(|at| at <= now))
    }

    /// Whether there is more to send than a PING.
    pub(super) fn has_frames(&self) -> bool {
        !self.is_idle() || self.fec.as_ref().is_some_and(Scheduler::is_pending)
    }

    /// When a PING is due: a heartbeat, a newcomer's proof, or a probe after data or of a size; or
    /// a repair symbol behind a burst, which is as good.
    pub(super) fn ping_at(&self) -> Option<Instant> {
        let pings = self.pings.next_timeout(self.config.heartbeat);
        let others = [self.pmtu.probe_at(), self.tail_symbol_at()];
        let next = others.into_iter().chain([pings]).flatten().min();
        next.filter(|_| self.is_heard())
    }

    /// When to call [`FlowSender::handle_timeout`] and then [`FlowSender::poll_transmit`] again.
    pub fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        let send_at = if !self.is_heard() || (self.is_spent() && self.epochs.next.is_none()) {
            None
        } else if self.owes_ping || self.has_frames() {
            Some(self.pacer.ready_at(now))
        } else {
            // The very first packet of a flow has no predecessor to be timed from.
            self.ping_at()
                .or(Some(now))
                .map(|at| at.max(self.pacer.ready_at(now)))
        };
        let switch = self.epochs.next.as_ref().map(|(_, by)| *by);
        let tags = self.sealer.as_ref().filter(|sealer| sealer.has_tags());
        [
            send_at,
            tags.map(|_| now),
            self.checks.next_timeout(),
            self.pacer.next_timeout(),
            self.sizes_timeout(now),
            switch,
            self.blocked_until(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Checks the members' timers if they are due: losses, tails, fall-backs.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.delays.handle_timeout(now) {
            let members = self.members.keys().copied();
            self.checks.check_all(members, now);
        }
        self.pacer.set_ack_delay(self.delays.ack);
        self.switch_if_due(now);
        self.drop_blocking(now);
        self.check_members(now);
        let stopped = self.pacer.breaker() == BreakerState::Open;
        self.pacer.handle_timeout(now);
        if stopped && self.pacer.breaker() != BreakerState::Open {
            // The breaker lets the flow try again: receivers prove that it reaches them.
            self.probe_from(now);
            self.on_breaker(BreakerState::Halved);
        }
        self.follow_rate_control();
        self.check_sizes(now);
    }
}
