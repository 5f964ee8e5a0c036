//! Timers of the receiving end, all in one table.

use std::collections::BTreeMap;
use std::time::Instant;

use super::flow::RelayLeg;
use crate::FlowId;

/// A deadline of the receiver.
///
/// Timers that have expired together are handled in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// When to report the confirmed cursors.
    Cursors,
    /// When the rate limit admits the next NEED.
    Need,
    /// When to request the update that later updates of this channel wait for.
    Blocked(usize),
    /// When an update of this channel expires that is not whole.
    Deadline(usize),
    /// When to ask the source for its time.
    Clock,
    /// When to rejoin a flow that was not trusted.
    Trust(FlowId),
    /// A timer of a flow itself.
    Flow(FlowId, FlowTimer),
    /// A timer of one of a flow's tunnels.
    Tunnel(FlowId, RelayLeg, TunnelTimer),
}

/// A deadline of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FlowTimer {
    /// When to discard the older of two keys.
    KeyDiscard,
    /// When a member that has heard nothing falls back.
    Silence,
    /// When to request replicated packets, or to repeat the request.
    Replication,
    /// When to repeat a native join that brings nothing.
    Rejoin,
    /// The legs are judged, or reported to the source.
    Legs,
    /// When to send a PATH_ACK.
    Ack,
}

/// A deadline of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TunnelTimer {
    /// When to close a tunnel that native multicast has replaced.
    Close,
    /// When to open a tunnel, or to report that an open one brings nothing.
    Retry,
}

/// The timers that are set.
#[derive(Debug, Default)]
pub(super) struct TimerTable {
    deadlines: BTreeMap<Timer, Instant>,
}

impl TimerTable {
    /// Sets a timer, in place of an earlier setting.
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.deadlines.insert(timer, at);
    }

    /// Sets a timer, or stops it where there is no deadline.
    pub(super) fn put(&mut self, timer: Timer, at: Option<Instant>) {
        match at {
            Some(at) => self.set(timer, at),
            None => self.stop(timer),
        }
    }

    /// Stops a timer.
    pub(super) fn stop(&mut self, timer: Timer) {
        self.deadlines.remove(&timer);
    }

    /// Stops all timers but those to `keep`.
    pub(super) fn retain(&mut self, keep: impl Fn(Timer) -> bool) {
        self.deadlines.retain(|timer, _| keep(*timer));
    }

    /// Returns the deadline of a timer that is set.
    pub(super) fn get(&self, timer: Timer) -> Option<Instant> {
        self.deadlines.get(&timer).copied()
    }

    /// Whether a timer is set.
    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.deadlines.contains_key(&timer)
    }

    /// Whether a timer has expired.
    pub(super) fn is_expired(&self, timer: Timer, now: Instant) -> bool {
        self.get(timer).is_some_and(|at| at <= now)
    }

    /// Returns the timers that have expired, in their order.
    pub(super) fn expired(&self, now: Instant) -> impl Iterator<Item = Timer> {
        let expired = self.deadlines.iter().filter(move |(_, at)| **at <= now);
        expired.map(|(timer, _)| *timer)
    }

    /// Returns the earliest deadline of the timers that `counts`.
    pub(super) fn next_timeout(&self, counts: impl Fn(Timer) -> bool) -> Option<Instant> {
        let deadlines = self.deadlines.iter().filter(|(timer, _)| counts(**timer));
        deadlines.map(|(_, at)| *at).min()
    }

    /// Stops and returns the first expired timer that `counts`.
    pub(super) fn pop_expired(
        &mut self,
        now: Instant,
        counts: impl Fn(Timer) -> bool,
    ) -> Option<Timer> {
        let timer = self.expired(now).find(|timer| counts(*timer))?;
        self.stop(timer);
        Some(timer)
    }
}

impl Timer {
    /// Returns the flow that the timer belongs to.
    pub(super) fn flow(self) -> Option<FlowId> {
        match self {
            Timer::Trust(flow) | Timer::Flow(flow, _) | Timer::Tunnel(flow, ..) => Some(flow),
            Timer::Cursors | Timer::Need | Timer::Blocked(_) => None,
            Timer::Deadline(_) | Timer::Clock => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: FlowId = FlowId([1; 8]);
    const TWO: FlowId = FlowId([2; 8]);

    #[test]
    fn expired_timers_come_in_their_order_and_once() {
        let (now, later) = (Instant::now(), Duration::from_secs(1));
        let mut timers = TimerTable::default();
        let rejoin = Timer::Flow(ONE, FlowTimer::Rejoin);
        let order = [
            Timer::Cursors,
            Timer::Trust(TWO),
            Timer::Flow(ONE, FlowTimer::Silence),
            rejoin,
            Timer::Flow(TWO, FlowTimer::KeyDiscard),
            Timer::Tunnel(ONE, RelayLeg::First, TunnelTimer::Retry),
            Timer::Tunnel(ONE, RelayLeg::Second, TunnelTimer::Close),
        ];
        for timer in order.into_iter().rev() {
            timers.set(timer, now);
        }
        timers.set(Timer::Need, now + later);
        let popped: Vec<_> = std::iter::from_fn(|| timers.pop_expired(now, |_| true)).collect();
        assert_eq!(popped, order);
        assert_eq!(timers.next_timeout(|_| true), Some(now + later));
    }

    #[test]
    fn timers_that_do_not_count_stay_set() {
        let now = Instant::now();
        let mut timers = TimerTable::default();
        timers.set(Timer::Cursors, now);
        let others = |timer| timer != Timer::Cursors;
        assert_eq!(timers.next_timeout(others), None);
        assert_eq!(timers.pop_expired(now, others), None);
        assert!(timers.is_expired(Timer::Cursors, now));
    }

    #[test]
    fn a_flow_takes_its_timers_with_it() {
        let now = Instant::now();
        let mut timers = TimerTable::default();
        for flow in [ONE, TWO] {
            timers.set(Timer::Trust(flow), now);
            timers.set(Timer::Flow(flow, FlowTimer::Ack), now);
            timers.set(
                Timer::Tunnel(flow, RelayLeg::Second, TunnelTimer::Retry),
                now,
            );
        }
        timers.retain(|timer| timer.flow() != Some(ONE));
        let left: Vec<_> = timers.expired(now).collect();
        assert_eq!(left.len(), 3);
        assert!(left.iter().all(|timer| timer.flow() == Some(TWO)));
    }
}
