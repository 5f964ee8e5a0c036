//! Pacing of a flow: a token bucket, at the rate of the flow's controller.

use std::time::{Duration, Instant};

use super::member::Resolution;
use super::sender::{FlowConfig, MemberId};
use crate::pace::TokenBucket;
use crate::rate::{RateConfig, RateController, RateEvent, RatePolicy};

/// Bound on the burst, in bytes.
const MAX_BURST: u64 = 1 << 20;
/// Burst in full packets, at least: enough for the timers' grain, little enough for the smallest
/// router.
const BURST_PACKETS: usize = 8;

/// Time for which a probe of a packet size holds up data, at most.
const PROBE_DEBT: Duration = Duration::from_millis(100);

/// Share of packets that a member may lose, by default.
const MAX_LOSS: f64 = 0.1;

/// Rate control of a flow, as configured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateControl {
    /// Policy by which the members' reports make the rate.
    pub policy: RatePolicy,
    /// Rate in bit/s below which no member may hold the flow for long; `None` for half the median
    /// of what the members could get.
    pub min_rate: Option<u64>,
    /// Share of packets that a member may lose, from 0 to 1.
    pub max_loss: f64,
}

impl RateControl {
    /// Returns a control that always sends at the highest rate, for networks with reserved capacity
    /// (RFC 8085 section 4).
    #[must_use]
    pub fn fixed() -> Self {
        RateControl {
            policy: RatePolicy::Fixed,
            ..RateControl::default()
        }
    }
}

impl Default for RateControl {
    fn default() -> Self {
        RateControl {
            policy: RatePolicy::default(),
            min_rate: None,
            max_loss: MAX_LOSS,
        }
    }
}

/// State of a flow's circuit breaker (RFC 8084).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum BreakerState {
    /// The flow sends at its controller's rate.
    #[default]
    Closed,
    /// The flow sends at half its rate, because most members lose most packets, or tries whether
    /// they still do.
    Halved,
    /// The flow sends nothing: receivers get everything on their unicast paths.
    Open,
}

/// Rate of a flow at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowRate {
    /// Rate in bit/s; `None` for no limit.
    pub bits_per_s: Option<u64>,
    /// Member that limits the rate, if one alone does.
    pub limited_by: Option<MemberId>,
    /// State of the circuit breaker.
    pub breaker: BreakerState,
}

/// Pacing of a flow.
#[derive(Debug)]
pub(super) struct Pacer {
    bucket: TokenBucket,
    controller: RateController,
    /// Rate of the bucket in bit/s; `None` for no limit.
    rate: Option<u64>,
    /// Whether slow and lossy members stay members.
    #[cfg(feature = "fault-injection")]
    pub(super) eviction_off: bool,
}

impl Pacer {
    pub(super) fn new(config: &FlowConfig) -> Self {
        let controller = RateController::new(RateConfig {
            policy: config.control.policy,
            max: config.rate,
            min: config.control.min_rate,
            max_loss: config.control.max_loss,
            ack_delay: config.ack_delay,
            udp_payload: config.udp_payload,
        });
        let rate = controller.rate();
        let bits_per_s = rate.unwrap_or(u64::MAX);
        let per_ms = (config.rate.unwrap_or(u64::MAX) / 8 / 1000).min(MAX_BURST);
        let burst = (config.udp_payload * BURST_PACKETS).max(per_ms as usize);
        Pacer {
            bucket: TokenBucket::new(bits_per_s, burst),
            controller,
            rate,
            #[cfg(feature = "fault-injection")]
            eviction_off: false,
        }
    }

    pub(super) fn status(&self) -> FlowRate {
        FlowRate {
            bits_per_s: self.rate,
            limited_by: self.controller.limiting(),
            breaker: self.breaker(),
        }
    }

    pub(super) fn breaker(&self) -> BreakerState {
        match (self.controller.is_stopped(), self.controller.is_tripped()) {
            (true, _) => BreakerState::Open,
            (false, true) => BreakerState::Halved,
            (false, false) => BreakerState::Closed,
        }
    }

    /// Returns when the next packet may go: `now` or earlier means at once.
    pub(super) fn ready_at(&mut self, now: Instant) -> Instant {
        self.bucket.ready_at(now)
    }

    /// Notes a packet that was sent.
    pub(super) fn on_sent(&mut self, pn: u64, bytes: usize, now: Instant) {
        self.bucket.take(bytes);
        self.controller.on_sent(pn, bytes, now);
    }

    /// Notes a packet that was sent with nothing but a PING.
    pub(super) fn on_ping_sent(&mut self, pn: u64, bytes: usize, now: Instant) {
        self.bucket.take(bytes);
        self.controller.on_ping_sent(pn, bytes, now);
    }

    /// Notes a packet of tags, of `bytes` without the tags: they belong to the packets that they
    /// prove.
    pub(super) fn on_tags(&mut self, bytes: usize) {
        self.bucket.take(bytes);
    }

    /// Returns when a probe of a packet size may go. It can be as large as many packets of data,
    /// and must not hold them up.
    pub(super) fn probe_at(&mut self, bytes: usize, now: Instant) -> Instant {
        self.bucket.affords_at(bytes, PROBE_DEBT, now)
    }

    /// Notes a probe of a packet size. Rate control knows nothing of it, because its loss is no
    /// sign of congestion (RFC 8899 section 3).
    pub(super) fn on_probe(&mut self, bytes: usize) {
        self.bucket.take(bytes);
    }

    /// Sets the UDP payload of full packets; the rate stays.
    pub(super) fn set_udp_payload(&mut self, bytes: usize, now: Instant) {
        self.bucket.raise_burst(bytes * BURST_PACKETS);
        self.controller.set_udp_payload(bytes);
        self.follow(now);
    }

    /// Notes that nothing waits to be sent: the rate that is not used does not grow (RFC 7661).
    pub(super) fn on_app_limited(&mut self, now: Instant) {
        self.controller.on_app_limited(now);
    }

    /// Takes a new member, which owes packets from `cut` on.
    pub(super) fn admit(&mut self, member: MemberId, rtt: Duration, cut: u64, now: Instant) {
        self.controller.admit(member, rtt, cut, now);
        self.follow(now);
    }

    /// Forgets a member. The rate that only this member had limited rises at the next check.
    pub(super) fn remove(&mut self, member: MemberId) {
        self.controller.remove(member);
    }

    /// Takes what a member acknowledged and lost; `rtt` is its smoothed round-trip time.
    pub(super) fn on_resolution(
        &mut self,
        member: MemberId,
        settled: &Resolution,
        rtt: Duration,
        now: Instant,
    ) {
        if !settled.spurious.is_empty() {
            self.controller
                .on_spurious_loss(member, &settled.spurious, now);
        }
        if !settled.acked.is_empty() || !settled.lost.is_empty() {
            self.controller
                .on_ack(member, &settled.acked, &settled.lost, rtt, now);
        }
        self.follow(now);
    }

    /// Takes that `marked` packets of a member met congestion; the newest one that it acknowledges
    /// is `largest`.
    pub(super) fn on_marked(&mut self, member: MemberId, marked: u64, largest: u64, now: Instant) {
        self.controller.on_marked(member, marked, largest, now);
        self.follow(now);
    }

    pub(super) fn set_ack_delay(&mut self, delay: Duration) {
        self.controller.set_ack_delay(delay);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.controller.next_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            self.controller.handle_timeout(now);
            self.follow(now);
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<RateEvent> {
        #[cfg(feature = "fault-injection")]
        if self.eviction_off {
            while let Some(event) = self.controller.poll_event() {
                if !matches!(event, RateEvent::TooSlow(_) | RateEvent::LossTooHigh(_)) {
                    return Some(event);
                }
            }
        }
        self.controller.poll_event()
    }

    /// The share of packets that a member probably loses: few packets say little.
    pub(super) fn estimated_loss(&self, member: MemberId) -> f64 {
        self.controller.estimated_loss(member)
    }

    /// The share of packets that a member lost lately.
    #[cfg(test)]
    pub(super) fn member_loss(&self, member: MemberId) -> f64 {
        self.controller.member_loss(member)
    }

    /// Sends at the controller's rate from now on.
    fn follow(&mut self, now: Instant) {
        let rate = self.controller.rate();
        if self.rate != rate {
            self.rate = rate;
            self.bucket.set_rate(rate.unwrap_or(u64::MAX), now);
        }
    }
}
