//! Loss intervals of a member (RFC 5348 section 5), many more of them than TFRC keeps.
//!
//! A sender that follows the slowest of many estimates needs exact ones: the least of a thousand
//! averages over 8 intervals is a third of each. All intervals weigh the same, which of all
//! weightings has the least variance; among [`INTERVALS`] none moves the average by much when it
//! leaves. In exchange, changes have to be found out ([`LossIntervals::adapt`]).

use std::time::{Duration, Instant};

/// Intervals that are kept.
pub(super) const INTERVALS: usize = 128;
/// Length of the newest intervals that are compared with the rest.
const RECENT: [usize; 3] = [8, 16, 32];
/// Standard deviations beyond which the newest intervals are taken for a change: by chance once in
/// a million losses.
const CHANGE: f64 = 4.5;
/// An open interval of so many averages leaves 8 of the closed ones, one of twice that leaves 4.
const DISCOUNT: f64 = 96.0;

/// A loss event that may still turn out to be shared by most members, and not this member's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LossEvent {
    pub(super) pn: u64,
    /// Packets sent before it.
    ordinal: u64,
    at: Instant,
    /// Lost packets that belong to it.
    packets: u32,
}

/// Numbers of packets between the loss events of a member.
#[derive(Debug, Clone)]
pub(super) struct LossIntervals {
    /// A ring.
    closed: [u32; INTERVALS],
    len: u16,
    next: u16,
    /// Sum of all closed intervals.
    sum: u64,
    /// Ordinal of the packet at which the open interval began.
    start: u64,
    /// The newest event, while it is not known to be this member's own.
    pending: Option<LossEvent>,
    /// Packets sent before this moment belong to the last event.
    event_until: Option<Instant>,
}

impl LossIntervals {
    /// No losses before the packet with this ordinal.
    pub(super) fn new(start: u64) -> Self {
        LossIntervals {
            closed: [0; INTERVALS],
            len: 0,
            next: 0,
            sum: 0,
            start,
            pending: None,
            event_until: None,
        }
    }

    /// Takes a lost packet: losses within one round trip are one event (RFC 5348 section 5.2).
    /// Returns whether it begins another one.
    pub(super) fn on_lost(
        &mut self,
        pn: u64,
        ordinal: u64,
        at: Instant,
        rtt: Duration,
        is_shared: impl Fn(u64) -> bool,
    ) -> bool {
        if self.event_until.is_some_and(|until| at < until) || ordinal < self.start {
            if let Some(event) = self.pending.as_mut().filter(|event| event.at <= at) {
                event.packets = event.packets.saturating_add(1);
            }
            return false;
        }
        self.settle(is_shared);
        self.pending = Some(LossEvent {
            pn,
            ordinal,
            at,
            packets: 1,
        });
        self.event_until = Some(at + rtt);
        true
    }

    /// The event that is not settled yet, if it is older than `age`.
    pub(super) fn unsettled(&self, age: Duration, now: Instant) -> bool {
        let is_old = |event: LossEvent| now.saturating_duration_since(event.at) > age;
        self.pending.is_some_and(is_old)
    }

    /// Closes an interval with the pending event, unless most members share its loss.
    pub(super) fn settle(&mut self, is_shared: impl Fn(u64) -> bool) {
        if let Some(event) = self.pending.take()
            && !is_shared(event.pn)
        {
            self.push(event.ordinal.saturating_sub(self.start));
            self.start = event.ordinal;
            self.adapt();
        }
    }

    /// Takes a loss back that was none: its event ends when no other packet of it was lost. Of
    /// events that are settled, only the first packet is known.
    pub(super) fn take_back(&mut self, ordinal: u64, at: Instant) {
        let is_pending = |event: &LossEvent| event.at <= at;
        if let Some(event) = self.pending.as_mut().filter(|event| is_pending(event)) {
            event.packets = event.packets.saturating_sub(1);
            if event.packets == 0 {
                (self.pending, self.event_until) = (None, None);
            }
            return;
        }
        let mut first = self.start;
        for newer in 0..usize::from(self.len) {
            if first <= ordinal {
                if first == ordinal {
                    self.remove_event(newer);
                }
                return;
            }
            let at = (usize::from(self.next) + 2 * INTERVALS - 1 - newer) % INTERVALS;
            first = first.saturating_sub(u64::from(self.closed[at]));
        }
    }

    /// Joins the interval that ends with an event to the one after it; `newer` events are newer.
    fn remove_event(&mut self, newer: usize) {
        let place = |age: usize| (usize::from(self.next) + 2 * INTERVALS - 1 - age) % INTERVALS;
        let interval = u64::from(self.closed[place(newer)]);
        let places: Vec<usize> = (0..=newer).rev().map(place).collect();
        if newer == 0 {
            self.start = self.start.saturating_sub(interval);
            self.sum -= interval;
        } else {
            for pair in places.windows(2) {
                self.closed[pair[0]] = self.closed[pair[1]];
            }
            let joined = &mut self.closed[places[0]];
            *joined = joined.saturating_add(interval as u32);
        }
        self.next = ((usize::from(self.next) + INTERVALS - 1) % INTERVALS) as u16;
        self.len -= 1;
    }

    /// Drops the pending event if it began at `at` or later, when most members lost packets.
    pub(super) fn share_losses(&mut self, at: Instant) {
        self.pending.take_if(|event| event.at >= at);
    }

    fn push(&mut self, interval: u64) {
        let interval = interval.clamp(1, u64::from(u32::MAX)) as u32;
        let next = usize::from(self.next);
        if usize::from(self.len) == INTERVALS {
            self.sum -= u64::from(self.closed[next]);
        } else {
            self.len += 1;
        }
        self.closed[next] = interval;
        self.sum += u64::from(interval);
        self.next = ((next + 1) % INTERVALS) as u16;
    }

    /// The closed intervals, newest first.
    fn newest(&self) -> impl Iterator<Item = u64> + '_ {
        let (next, len) = (usize::from(self.next), usize::from(self.len));
        (1..=len).map(move |i| u64::from(self.closed[(next + INTERVALS - i) % INTERVALS]))
    }

    /// Forgets all but the newest intervals.
    fn truncate(&mut self, len: usize) {
        if len < usize::from(self.len) {
            self.sum = self.newest().take(len).sum();
            self.len = len as u16;
        }
    }

    /// Forgets older intervals that the newest are too different from, whether longer or shorter.
    fn adapt(&mut self) {
        let len = usize::from(self.len);
        for recent in RECENT {
            if len < recent * 2 {
                return;
            }
            let sum: u64 = self.newest().take(recent).sum();
            let older = (self.sum - sum) as f64 / (len - recent) as f64;
            let expected = sum as f64 / older.max(1.0);
            if deviation(recent as f64, expected).abs() > CHANGE {
                return self.truncate(recent);
            }
        }
    }

    /// Discounts the history while a long interval without loss goes on (RFC 5348 section 5.5).
    /// `ordinal` is that of the newest packet about which the member reported.
    pub(super) fn discount(&mut self, ordinal: u64) {
        let open = ordinal.saturating_sub(self.start) as f64;
        let len = f64::from(self.len);
        if len > 0.0 && open * len > 12.0 * self.sum as f64 {
            let averages = open * len / self.sum.max(1) as f64;
            self.truncate(((DISCOUNT / averages) as usize).max(1));
        }
    }

    /// Joins the newest `events` events to one: a single congestion, which the member alone could
    /// not end because the flow went on.
    pub(super) fn join(&mut self, events: usize, is_shared: impl Fn(u64) -> bool) {
        self.settle(is_shared);
        for _ in 1..events.min(usize::from(self.len)) {
            let next = (usize::from(self.next) + INTERVALS - 1) % INTERVALS;
            let interval = u64::from(self.closed[next]);
            self.next = next as u16;
            self.len -= 1;
            self.sum -= interval;
            self.start = self.start.saturating_sub(interval);
        }
    }

    /// Loss events, and packets in which these happened; `ordinal` as in [`Self::discount`]. An
    /// event that is not settled counts.
    pub(super) fn sample(&self, ordinal: u64) -> (f64, f64) {
        let open = ordinal.saturating_sub(self.start);
        let events = u64::from(self.len) + u64::from(self.pending.is_some());
        (events as f64, (self.sum + open) as f64)
    }
}

/// Standard deviations between a number of events and the expected one: the square root of a
/// Poisson number has the same variance of a quarter whatever its mean.
pub(super) fn deviation(events: f64, expected: f64) -> f64 {
    2.0 * (events.sqrt() - expected.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// Losses with these distances, a packet per millisecond.
    fn intervals(start: Instant, distances: &[u64]) -> (LossIntervals, u64) {
        let (mut intervals, mut pn) = (LossIntervals::new(0), 0);
        for distance in distances {
            pn += distance;
            let at = start + Duration::from_millis(pn);
            intervals.on_lost(pn, pn, at, RTT, |_| false);
        }
        intervals.settle(|_| false);
        (intervals, pn)
    }

    #[test]
    fn losses_of_one_round_trip_are_one_event() {
        let (all, pn) = intervals(Instant::now(), &[500, 50, 49, 1, 400]);
        assert_eq!(all.sample(pn), (3.0, 1000.0));
    }

    #[test]
    fn the_newest_intervals_are_kept() {
        let distances: Vec<u64> = (0..300).map(|i| 1000 + i).collect();
        let (all, pn) = intervals(Instant::now(), &distances);
        let expected: u64 = (172..300).map(|i| 1000 + i).sum();
        assert_eq!(all.sample(pn + 7), (128.0, (expected + 7) as f64));
    }

    #[test]
    fn an_event_without_a_lost_packet_is_none() {
        let start = Instant::now();
        let at = |pn| start + Duration::from_millis(pn);
        let (mut all, pn) = intervals(start, &[1000, 500, 700, 900]);
        assert_eq!(all.sample(pn), (4.0, 3100.0));
        let newest_first = |all: &LossIntervals| all.newest().collect::<Vec<_>>();
        all.take_back(2200, at(2200));
        assert_eq!(newest_first(&all), [1600, 500, 1000]);
        all.take_back(1501, at(1501));
        assert_eq!(
            newest_first(&all),
            [1600, 500, 1000],
            "not the first of its event"
        );
        all.take_back(1000, at(1000));
        assert_eq!(newest_first(&all), [1600, 1500]);
        all.take_back(3100, at(3100));
        assert_eq!(newest_first(&all), [1500]);
        assert_eq!(all.sample(4000), (1.0, 4000.0));
        // An event that is not settled ends with the last of its packets.
        for lost in [4000, 4010, 4020] {
            all.on_lost(lost, lost, at(lost), RTT, |_| false);
        }
        assert_eq!(all.sample(4100), (2.0, 4100.0));
        all.take_back(4000, at(4000));
        all.take_back(4020, at(4020));
        assert_eq!(all.sample(4100).0, 2.0);
        all.take_back(4010, at(4010));
        assert_eq!(all.sample(4100).0, 1.0);
        assert!(all.on_lost(4030, 4030, at(4030), RTT, |_| false));
    }

    #[test]
    fn shared_losses_close_no_interval() {
        let start = Instant::now();
        let at = |pn| start + Duration::from_millis(pn);
        let mut all = LossIntervals::new(0);
        all.on_lost(1000, 1000, at(1000), RTT, |_| false);
        assert_eq!(all.sample(1000).0, 1.0, "until that is known");
        assert!(!all.unsettled(RTT, at(1050)) && all.unsettled(RTT, at(1200)));
        all.settle(|pn| pn == 1000);
        assert_eq!(all.sample(2000), (0.0, 2000.0));
        all.on_lost(3000, 3000, at(3000), RTT, |_| false);
        all.share_losses(at(3001));
        assert_eq!(all.sample(3000).0, 1.0, "before the others' losses");
        all.share_losses(at(2900));
        assert_eq!(all.sample(4000), (0.0, 4000.0));
    }

    #[test]
    fn a_change_for_worse_or_better_forgets_what_was() {
        let mut distances = vec![10_000; 60];
        distances.extend([200; 8]);
        let (all, pn) = intervals(Instant::now(), &distances);
        assert_eq!(all.sample(pn), (8.0, 1600.0));
        let mut distances = vec![200; 60];
        distances.extend([2_000; 8]);
        let (all, pn) = intervals(Instant::now(), &distances);
        assert_eq!(all.sample(pn), (14.0, 17_200.0), "already before the last");
        let mut distances = vec![200; 60];
        distances.extend([300; 8]);
        let (all, pn) = intervals(Instant::now(), &distances);
        assert_eq!(all.sample(pn).0, 68.0, "chance");
    }

    #[test]
    fn a_long_interval_discounts_the_history() {
        let (mut all, pn) = intervals(Instant::now(), &[200; 100]);
        all.discount(pn + 2_000);
        assert_eq!(all.sample(pn).0, 100.0);
        all.discount(pn + 200 * 24);
        assert_eq!(all.sample(pn).0, 4.0);
        all.discount(pn + 200 * 1000);
        assert_eq!(all.sample(pn).0, 1.0);
    }

    #[test]
    fn the_events_of_one_congestion_are_joined() {
        let (mut all, pn) = intervals(Instant::now(), &[5000, 150, 150, 150]);
        all.join(4, |_| false);
        assert_eq!(all.sample(pn + 100), (1.0, 5550.0));
        let (mut none, _) = intervals(Instant::now(), &[]);
        none.join(9, |_| false);
        assert_eq!(none.sample(10), (0.0, 10.0));
    }
}
