//! The rate of a flow: as much as every member's path takes, found out from the members'
//! acknowledgements alone (RFC 8085 section 4).
//!
//! [`RateController`] gets what is sent and what each member reports about it; it returns the rate
//! for pacing, names the member that limits it, and reports members that are too slow or lose too
//! much. A clock it has none: `now` comes with every call.
//!
//! # Policies
//!
//! - [`RatePolicy::Fixed`]: the ceiling, whatever happens. For networks whose operator has set the
//!   bandwidth aside.
//! - [`RatePolicy::CubicMin`]: a CUBIC controller (RFC 9438) per member; the flow has the rate of
//!   the slowest, as in the Flexicast QUIC paper. Many independent losses make the slowest slower
//!   than each path alone would be.
//! - [`RatePolicy::TcpFriendly`]: losses that most members share drive one CUBIC controller. The
//!   other losses of a member limit the flow to the average rate that CUBIC would have with them
//!   (RFC 5348), over so many loss intervals that the slowest of a thousand equal members is no
//!   slower than the others. Sudden losses of a member give it a CUBIC controller of its own. With
//!   one member all of this is unicast CUBIC, but that an event in which more than 30 % of a round
//!   trip's packets are lost reduces the window to what arrived, at least to half.
//!
//! # Application-limited flows
//!
//! A window grows only while it is used ([`RateController::on_app_limited`]), stays for five idle
//! minutes, and is halved once after that (RFC 7661).
//!
//! # Cost
//!
//! A report costs O(its ranges and lost packets). All members are scanned at most once per round
//! trip, per acknowledgement delay (up to half a second of them) and per 50 ms. A member takes less
//! than a kilobyte, and the record of sent packets is bounded.

mod breaker;
mod busy;
mod controller;
mod cubic;
mod friendly;
mod loss_intervals;
mod loss_window;
mod marks;
mod member;
mod policy;
mod sent;
mod slowest;
#[cfg(test)]
mod tests;
mod used;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use breaker::{Breaker, Measurement};
use busy::BusyClock;
use controller::{Controller, Signal, Usage};
use cubic::{Cubic, INITIAL_WINDOW, MIN_WINDOW};
use friendly::Population;
use marks::MarkRound;
use member::{Estimator, Member};
use sent::SentLog;
use slowest::Slowest;
use used::UsedRate;

use crate::DEFAULT_UDP_PAYLOAD;
use crate::flow::MemberId;
use crate::rtt::MAX_RTT;

/// Shortest round trip that is believed: below it, timers and not the network count.
const MIN_RTT: Duration = Duration::from_micros(100);
/// Longest acknowledgement delay that is reckoned with.
const MAX_ACK_DELAY: Duration = Duration::from_secs(10);
/// Round trip of a flow without members.
const UNKNOWN_RTT: Duration = Duration::from_millis(100);
/// Time between two scans of all members, unless a round trip takes longer.
const TICK: Duration = Duration::from_millis(50);
/// Longest time between two scans.
const MAX_TICK: Duration = Duration::from_millis(500);
/// Round trips after which a newcomer counts.
const NEWCOMER_ROUNDS: u32 = 3;
/// Time that a window is kept while nothing validates it (RFC 7661 section 4.4.2).
const NON_VALIDATED: Duration = Duration::from_secs(300);
/// A window of so many times what the flow uses does not grow (RFC 7661 section 4.3).
const VALIDATED: f64 = 2.0;
/// Packets a second that a tripped breaker allows at least, unless it has stopped the flow.
const PROBE_PACKETS: f64 = 10.0;

/// Choice of the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RatePolicy {
    /// Always the ceiling.
    Fixed,
    /// Slowest of one CUBIC controller per member.
    CubicMin,
    /// Shared CUBIC controller, limited by the members' average TCP-friendly rates.
    #[default]
    TcpFriendly,
}

/// Parameters of a [`RateController`].
#[derive(Debug, Clone)]
pub struct RateConfig {
    /// Choice of the rate.
    pub policy: RatePolicy,
    /// Ceiling in bit/s; `None` for none.
    pub max: Option<u64>,
    /// Rate in bit/s below which no member may hold the flow; `None` for half of the members'
    /// median.
    pub min: Option<u64>,
    /// Share of packets that a member may lose.
    pub max_loss: f64,
    /// Maximum acknowledgement delay of members.
    pub ack_delay: Duration,
    /// UDP payload of a full packet in bytes.
    pub udp_payload: usize,
}

impl Default for RateConfig {
    fn default() -> Self {
        RateConfig {
            policy: RatePolicy::default(),
            max: Some(10_000_000),
            min: None,
            max_loss: 0.1,
            ack_delay: Duration::from_millis(25),
            udp_payload: DEFAULT_UDP_PAYLOAD,
        }
    }
}

/// Requests of the controller to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateEvent {
    /// The member has held the flow below the minimum rate for two seconds: it should leave.
    TooSlow(MemberId),
    /// The member loses more than the limit: it should leave.
    LossTooHigh(MemberId),
    /// Most members lose most packets: the rate is halved.
    BreakerHalved,
    /// Most members still lose most packets: the flow stops.
    BreakerOpen,
    /// The members receive again.
    BreakerClosed,
}

/// The rate of one flow.
#[derive(Debug)]
pub struct RateController {
    config: RateConfig,
    members: BTreeMap<MemberId, Member>,
    sent: SentLog,
    used: UsedRate,
    clock: BusyClock,
    /// Of losses that most members share (policy `TcpFriendly`).
    shared: Controller,
    /// Packets below this number have been reported by some member.
    progress: u64,
    /// Packets below this number were sent before the last reduction of the flow.
    answered: u64,
    /// Round trip of the shared controller, in seconds: the longest one.
    rtt: f64,
    /// The member that has it.
    rtt_of: Option<MemberId>,
    population: Population,
    marks: MarkRound,
    slowest: Slowest,
    breaker: Breaker,
    /// Bytes a second.
    rate: f64,
    updated: Option<Instant>,
    tick: Option<Instant>,
    events: VecDeque<RateEvent>,
    /// The members' rates while their median is taken.
    scratch: Vec<f64>,
}

/// Returns the time between two scans: between their acknowledgements, nothing changes for members.
fn interval(rtt: f64, ack_delay: Duration) -> Duration {
    let round = Duration::from_secs_f64(rtt).max(ack_delay);
    round.clamp(TICK, MAX_TICK)
}

impl RateController {
    /// A controller of a flow without members.
    pub fn new(mut config: RateConfig) -> Self {
        config.ack_delay = config.ack_delay.min(MAX_ACK_DELAY);
        let mut controller = RateController {
            members: BTreeMap::new(),
            sent: SentLog::default(),
            used: UsedRate::default(),
            clock: BusyClock::default(),
            shared: Controller::new(Cubic::new()),
            progress: 0,
            answered: 0,
            rtt: UNKNOWN_RTT.as_secs_f64(),
            rtt_of: None,
            population: Population::default(),
            marks: MarkRound::default(),
            slowest: Slowest::default(),
            breaker: Breaker::new(),
            rate: 0.0,
            updated: None,
            tick: None,
            events: VecDeque::new(),
            scratch: Vec::new(),
            config,
        };
        controller.rate = controller.bound(controller.initial_rate());
        controller
    }

    /// Sets the maximum acknowledgement delay of members.
    pub fn set_ack_delay(&mut self, delay: Duration) {
        self.config.ack_delay = delay.min(MAX_ACK_DELAY);
    }

    /// Sets the UDP payload of a full packet. Windows count packets: they change, the rate stays.
    pub fn set_udp_payload(&mut self, bytes: usize) {
        let factor = self.payload() / bytes.max(1) as f64;
        self.config.udp_payload = bytes;
        self.shared.rescale(factor);
        for member in self.members.values_mut() {
            member.rescale(factor);
        }
        self.rate = self.bound(self.rate);
    }

    fn payload(&self) -> f64 {
        self.config.udp_payload.max(1) as f64
    }

    /// The initial window (RFC 9002 section 7.2) per round trip.
    fn initial_rate(&self) -> f64 {
        INITIAL_WINDOW * self.payload() / self.rtt
    }

    /// The ceiling in bytes a second.
    fn ceiling(&self) -> f64 {
        self.config
            .max
            .map_or(f64::INFINITY, |max| max as f64 / 8.0)
    }

    /// Applies floor and ceiling: two packets in the longest round trip are always allowed.
    fn bound(&self, rate: f64) -> f64 {
        if self.config.policy == RatePolicy::Fixed {
            return self.ceiling();
        }
        let floor = MIN_WINDOW * self.payload() / MAX_RTT.as_secs_f64();
        rate.max(floor).min(self.ceiling())
    }

    /// Adds a member that owes packets from `cut` on. It inherits the flow's rate, and limits it
    /// from its first loss or third round trip on.
    pub fn admit(&mut self, member: MemberId, rtt: Duration, cut: u64, now: Instant) {
        let rtt = rtt.clamp(MIN_RTT, MAX_RTT);
        let first = self.members.is_empty();
        self.updated.get_or_insert(now);
        if first {
            self.set_rtt(member, rtt, false);
            if self.sent.total().packets == 0 {
                self.rate = self.bound(self.initial_rate());
            }
        }
        let estimator = match self.config.policy {
            RatePolicy::Fixed => Estimator::None,
            RatePolicy::CubicMin => {
                let window = self.rate * rtt.as_secs_f64() / self.payload();
                Estimator::cubic(window, self.is_in_slow_start())
            }
            RatePolicy::TcpFriendly => Estimator::history(self.sent.ordinal(cut)),
        };
        self.remove(member);
        let mut new = Member::new(rtt, cut, now, estimator);
        new.counts = self.members.is_empty();
        self.members.insert(member, new);
        self.plan_tick(now);
    }

    /// Sets the longest round trip. When it changes because a member has come or gone, the rate
    /// stays and the window changes; when queues change it, the window stays.
    fn set_rtt(&mut self, member: MemberId, rtt: Duration, is_new: bool) {
        let rtt = rtt.as_secs_f64();
        let before = self.rtt_of.replace(member);
        let is_gone = |before| before != member && !self.members.contains_key(&before);
        if before.is_some_and(|before| is_new || is_gone(before)) {
            self.shared.rescale(rtt / self.rtt);
        }
        self.rtt = rtt;
    }

    /// Whether the rate has never met a limit.
    fn is_in_slow_start(&self) -> bool {
        let cubics = || self.members.values().filter_map(Member::cubic);
        cubics().all(Cubic::is_in_slow_start)
    }

    /// Removes a member. If it was the slowest, the flow returns to the rate of the others within
    /// some round trips: their windows were kept.
    pub fn remove(&mut self, member: MemberId) {
        if self.members.remove(&member).is_some() && self.slowest.remove(member) {
            self.tick = self.updated.or(self.tick);
        }
    }

    /// Takes note of a sent packet with data, which ends an idle period.
    pub fn on_sent(&mut self, pn: u64, bytes: usize, now: Instant) {
        if self.clock.resume(now) >= NON_VALIDATED {
            self.shared.cubic.on_idle();
            self.members.values_mut().for_each(Member::on_idle);
        }
        self.on_ping_sent(pn, bytes, now);
    }

    /// Takes note of a sent packet that only elicits acknowledgements, and validates no window.
    pub fn on_ping_sent(&mut self, pn: u64, bytes: usize, now: Instant) {
        let (rtt, ack_delay) = (self.rtt, self.config.ack_delay);
        self.used.on_sent(bytes, || interval(rtt, ack_delay), now);
        self.sent.push(pn, bytes, self.members.len(), now);
        self.plan_tick(now);
    }

    /// Takes note that the queue ran empty: what is not used does not grow, until the next packet.
    pub fn on_app_limited(&mut self, now: Instant) {
        self.clock.pause(now);
    }

    /// Takes what a member reports for the first time: packets that it acknowledged, and those that
    /// it has lost. `rtt` is its smoothed round-trip time without acknowledgement delays.
    pub fn on_ack(
        &mut self,
        member: MemberId,
        acked: &[Range<u64>],
        lost: &[Range<u64>],
        rtt: Duration,
        now: Instant,
    ) {
        let elapsed = self.clock.elapsed(now);
        let Some(reporter) = self.members.get_mut(&member) else {
            return;
        };
        let report = reporter.take_report(acked, lost, rtt, &self.sent);
        let packets = (report.acked.packets, report.lost.packets);
        if packets == (0, 0) {
            return;
        }
        let reported = packets.0 + packets.1;
        reporter.loss.add(reported, packets.1, elapsed);
        reporter.measured.add(reported, packets.1);
        reporter.counts |= packets.1 > 0 || reporter.is_old(now);
        match self.config.policy {
            RatePolicy::Fixed => {}
            RatePolicy::CubicMin => self.on_cubic_report(member, acked, lost, now),
            RatePolicy::TcpFriendly => self.on_friendly_report(member, acked, lost, now),
        }
        self.update_rate(now);
        self.plan_tick(now);
    }

    /// Takes that a member reports `marked` more packets with the ECN mark of congestion; the
    /// newest packet that it acknowledges is `largest`, which may be a probe of a size. They act as
    /// a loss event, at most once per round trip, and are no losses (RFC 3168 section 6.1.2, RFC
    /// 9002 section 7.1).
    pub fn on_marked(&mut self, member: MemberId, marked: u64, largest: u64, now: Instant) {
        let Some(reporter) = self.members.get_mut(&member).filter(|_| marked > 0) else {
            return;
        };
        let Some(newest) = self.sent.newest_up_to(largest).copied() else {
            return;
        };
        reporter.counts = true;
        match self.config.policy {
            RatePolicy::Fixed => {}
            RatePolicy::CubicMin => self.on_cubic_marked(member, newest.pn),
            RatePolicy::TcpFriendly => self.on_friendly_marked(member, marked, newest, now),
        }
        self.update_rate(now);
        self.plan_tick(now);
    }

    /// Takes back what the loss of these packets meant for a member, if it was reported here: they
    /// arrived after all, later than others.
    pub fn on_spurious_loss(&mut self, member: MemberId, packets: &[u64], now: Instant) {
        let Some(reporter) = self.members.get_mut(&member) else {
            return;
        };
        let is_own = |pn: &u64| *pn >= reporter.cut && self.sent.get(*pn).is_some();
        let mut own: Vec<u64> = packets.iter().copied().filter(is_own).collect();
        own.sort_unstable();
        reporter.loss.take_back(own.len() as u64);
        reporter.measured.take_back(own.len() as u64);
        match self.config.policy {
            RatePolicy::Fixed => {}
            RatePolicy::CubicMin => {
                if let Estimator::Cubic(controller) = &mut reporter.estimator {
                    controller.on_spurious(&own);
                }
            }
            RatePolicy::TcpFriendly => self.on_friendly_spurious(member, &own),
        }
        // What is undone counts from the next scan on.
        self.plan_tick(now);
    }

    /// When to call [`RateController::handle_timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        [self.tick, self.breaker.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Scans all members if that is due: at most once per round trip, per acknowledgement delay and
    /// per 50 ms.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.breaker.handle_timeout(now);
        if self.tick.is_none_or(|at| at > now) {
            self.update_rate(now);
            return;
        }
        self.tick = None;
        self.sent.prune(now);
        self.scan(now);
        self.measure(now);
        self.update_rate(now);
        self.evict(now);
        if !self.clock.is_idle() && !self.members.is_empty() {
            self.plan_tick(now);
        }
    }

    fn interval(&self) -> Duration {
        interval(self.rtt, self.config.ack_delay)
    }

    fn plan_tick(&mut self, now: Instant) {
        if self.tick.is_none() {
            self.tick = Some(now + self.interval());
        }
    }

    /// Measures for the circuit breaker.
    fn measure(&mut self, now: Instant) {
        let least = Duration::from_secs_f64(self.rtt) * 4 + self.config.ack_delay;
        let sent = self.sent.total().bytes;
        if !self.breaker.is_due(sent, least, now) {
            return;
        }
        let members = self.members.values();
        let judged = members.filter(|m| m.measured.reported >= breaker::MIN_PACKETS);
        let mut measurement = Measurement {
            judged: 0,
            failing: 0,
        };
        for member in judged {
            measurement.judged += 1;
            measurement.failing += usize::from(member.measured.share() > 0.5);
        }
        let count = self.members.len();
        let events = &mut self.events;
        if self.breaker.measure(measurement, count, sent, now, events) {
            self.members
                .values_mut()
                .for_each(|member| member.measured = Default::default());
        }
    }

    /// Reports members that hold the flow below the minimum rate or lose too much, unless most do:
    /// then it is the flow that is too fast.
    fn evict(&mut self, now: Instant) {
        let (elapsed, busy) = (self.clock.elapsed(now), self.clock.seconds(now));
        let minimum = self.minimum_rate();
        let holds = self.rate < minimum;
        let is_broken = self.breaker.cap(0.0).is_finite();
        let (limit, count) = (self.config.max_loss, self.members.len());
        // A sole member limits the flow, whatever its estimate, once the rate has met a limit:
        // before, a feed of short bursts does not raise it.
        let sole = count == 1 && !self.shared.cubic.is_in_slow_start();
        let (mut slow, mut lossy) = (0, 0);
        for member in self.members.values_mut() {
            member.loss.expire(elapsed);
            let is_slow = holds && member.counts && (member.rate < minimum || sole);
            let is_lossy = member.loss.is_above(limit);
            slow += usize::from(member.slow.observe(is_slow, busy));
            lossy += usize::from(member.lossy.observe(is_lossy, elapsed.as_secs_f64()));
        }
        let most = |few: usize| is_broken || (count > 1 && few * 2 > count);
        // A configured minimum holds for every member.
        let spare_slow = is_broken || (self.config.min.is_none() && most(slow));
        let spare_lossy = most(lossy);
        for (id, member) in &mut self.members {
            let event = if member.lossy.is_due() && !spare_lossy {
                RateEvent::LossTooHigh(*id)
            } else if member.slow.is_due() && !spare_slow {
                RateEvent::TooSlow(*id)
            } else {
                continue;
            };
            if !std::mem::replace(&mut member.evicted, true) {
                self.events.push_back(event);
            }
        }
    }

    /// The rate in bytes a second below which no member may hold the flow: half the median of what
    /// the members could get, as far as that is proven. Windows grow beyond.
    fn minimum_rate(&mut self) -> f64 {
        if let Some(min) = self.config.min {
            return min as f64 / 8.0;
        }
        let most = self.unlimited_rate();
        let rates = self.members.values().filter(|member| member.counts);
        self.scratch.clear();
        self.scratch
            .extend(rates.map(|member| member.rate.min(most).min(member.proven)));
        let middle = self.scratch.len() / 2;
        if self.scratch.is_empty() {
            return 0.0;
        }
        let (_, median, _) = self.scratch.select_nth_unstable_by(middle, f64::total_cmp);
        *median / 2.0
    }

    /// The rate for pacing, in bit/s: the window per round trip, where the round trip is without
    /// acknowledgement delays. `None` is without limit; 0 means that the circuit breaker has
    /// stopped the flow.
    pub fn rate(&self) -> Option<u64> {
        let rate = self.rate.min(self.breaker.cap(self.probe_rate()));
        rate.is_finite().then_some((rate * 8.0) as u64)
    }

    fn probe_rate(&self) -> f64 {
        (PROBE_PACKETS * self.payload()).min(self.ceiling())
    }

    /// Whether the circuit breaker has stopped the flow.
    pub fn is_stopped(&self) -> bool {
        self.breaker.is_open()
    }

    /// Whether the circuit breaker limits the flow, or has stopped it.
    pub fn is_tripped(&self) -> bool {
        !self.breaker.is_closed()
    }

    /// Bytes that may be in flight: the window, and what is sent while an acknowledgement is
    /// delayed, with its jitter.
    pub fn window(&self) -> usize {
        let delayed = self.config.ack_delay.as_secs_f64() * 1.25;
        let rate = self.rate.min(self.breaker.cap(self.probe_rate()));
        (rate * (self.rtt + delayed)).max(MIN_WINDOW * self.payload()) as usize
    }

    /// The member that limits the rate, if one alone does.
    pub fn limiting(&self) -> Option<MemberId> {
        let least = self.slowest.rate();
        let limits = least < self.ceiling() && least <= self.shared_rate();
        self.slowest.member().filter(|_| limits)
    }

    /// The rate in bit/s that a member's path takes; `None` while nothing limits it.
    pub fn member_rate(&self, member: MemberId) -> Option<u64> {
        let rate = self.members.get(&member)?.rate;
        rate.is_finite().then_some((rate * 8.0) as u64)
    }

    /// The share of packets that a member lost in the last five seconds.
    pub fn member_loss(&self, member: MemberId) -> f64 {
        self.members.get(&member).map_or(0.0, |m| m.loss.share())
    }

    /// The share of packets that a member probably loses, by the last five seconds: lower than
    /// [`RateController::member_loss`], the fewer packets it reported.
    pub fn estimated_loss(&self, member: MemberId) -> f64 {
        let member = self.members.get(&member);
        member.map_or(0.0, |member| member.loss.estimate())
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<RateEvent> {
        self.events.pop_front()
    }
}
