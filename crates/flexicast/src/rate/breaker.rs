//! The circuit breaker (RFC 8084): when most members lose most packets, the flow slows down, then
//! stops.

use std::time::{Duration, Instant};

use super::RateEvent;

/// Packets of a measurement, at least (RFC 8084 section 4, point 4).
pub(super) const MIN_PACKETS: u32 = 30;
/// Measurements in a row that trip the breaker, or reset it.
const MEASUREMENTS: u32 = 3;
/// Time until the flow is tried again, at first and at most.
const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
const LAST_BACK_OFF: Duration = Duration::from_secs(320);

/// Position of the breaker.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Closed,
    /// The flow has at most this many bytes a second.
    Halved(f64),
    /// The flow is stopped, and is tried again with at most `cap` bytes a second.
    Open {
        until: Instant,
        cap: f64,
    },
    /// Whether the network has recovered is found out with at most this many bytes a second.
    Probing(f64),
}

/// Outcome of a measurement over all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measurement {
    /// Members that reported enough packets.
    pub(super) judged: usize,
    /// Those among them that lost more than half of these packets.
    pub(super) failing: usize,
}

/// The circuit breaker of a flow.
#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    /// Begin of the current measurement, and bytes sent before it.
    since: Option<(Instant, u64)>,
    /// Measurements in a row with the same outcome.
    bad: u32,
    good: u32,
    back_off: Duration,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Breaker {
            state: State::Closed,
            since: None,
            bad: 0,
            good: 0,
            back_off: FIRST_BACK_OFF,
        }
    }

    /// Bytes a second that the flow may send at most; `least` where it sends at all.
    pub(super) fn cap(&self, least: f64) -> f64 {
        match self.state {
            State::Closed => f64::INFINITY,
            State::Halved(cap) | State::Probing(cap) => cap.max(least),
            State::Open { .. } => 0.0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// When the flow is tried again.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Open { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Starts to probe when the back-off is over.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let State::Open { until, cap } = self.state
            && until <= now
        {
            self.state = State::Probing(cap);
            self.begin();
        }
    }

    fn begin(&mut self) {
        (self.since, self.bad, self.good) = (None, 0, 0);
    }

    /// Whether the current measurement has lasted at least `least`; the first call begins it.
    pub(super) fn is_due(&mut self, sent: u64, least: Duration, now: Instant) -> bool {
        let (since, _) = *self.since.get_or_insert((now, sent));
        !self.is_open() && now.saturating_duration_since(since) >= least
    }

    /// Takes the measurement, if enough members had enough packets; `sent` are the bytes sent since
    /// the beginning. Returns whether the next measurement begins.
    pub(super) fn measure(
        &mut self,
        measured: Measurement,
        members: usize,
        sent: u64,
        now: Instant,
        events: &mut impl Extend<RateEvent>,
    ) -> bool {
        let Some((since, before)) = self.since else {
            return false;
        };
        if measured.judged == 0 || measured.judged * 2 < members {
            return false;
        }
        let elapsed = now.saturating_duration_since(since).as_secs_f64();
        let rate = sent.saturating_sub(before) as f64 / elapsed.max(0.001);
        self.since = Some((now, sent));
        if measured.failing * 2 > measured.judged {
            (self.bad, self.good) = (self.bad + 1, 0);
        } else {
            (self.bad, self.good) = (0, self.good + 1);
        }
        let event = match self.state {
            State::Closed if self.bad >= MEASUREMENTS => {
                self.state = State::Halved(rate / 2.0);
                RateEvent::BreakerHalved
            }
            State::Halved(cap) if self.bad >= MEASUREMENTS => self.open(cap / 2.0, now),
            State::Probing(cap) if self.bad > 0 => self.open(cap / 2.0, now),
            State::Halved(_) | State::Probing(_) if self.good >= MEASUREMENTS => {
                self.state = State::Closed;
                self.back_off = FIRST_BACK_OFF;
                RateEvent::BreakerClosed
            }
            _ => return true,
        };
        self.begin();
        events.extend([event]);
        true
    }

    fn open(&mut self, cap: f64, now: Instant) -> RateEvent {
        let until = now + self.back_off;
        self.back_off = (self.back_off * 2).min(LAST_BACK_OFF);
        self.state = State::Open { until, cap };
        RateEvent::BreakerOpen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Measurement = Measurement {
        judged: 10,
        failing: 6,
    };
    const GOOD: Measurement = Measurement {
        judged: 10,
        failing: 5,
    };

    struct Bench {
        breaker: Breaker,
        now: Instant,
        sent: u64,
        events: Vec<RateEvent>,
    }

    impl Bench {
        /// Measurements of a second each, at 1,000 bytes a second.
        fn measure(&mut self, outcomes: &[Measurement]) -> Vec<RateEvent> {
            for outcome in outcomes {
                self.breaker.is_due(self.sent, Duration::ZERO, self.now);
                self.now += Duration::from_secs(1);
                self.sent += 1000;
                self.breaker
                    .measure(*outcome, 10, self.sent, self.now, &mut self.events);
            }
            std::mem::take(&mut self.events)
        }
    }

    fn bench() -> Bench {
        Bench {
            breaker: Breaker::new(),
            now: Instant::now(),
            sent: 0,
            events: Vec::new(),
        }
    }

    #[test]
    fn three_bad_measurements_in_a_row_halve_and_three_more_stop() {
        let mut bench = bench();
        assert_eq!(bench.measure(&[BAD, BAD, GOOD, BAD, BAD]), []);
        assert_eq!(bench.measure(&[BAD]), [RateEvent::BreakerHalved]);
        assert_eq!(bench.breaker.cap(1.0), 500.0);
        assert_eq!(bench.measure(&[BAD, BAD]), []);
        assert_eq!(bench.measure(&[BAD]), [RateEvent::BreakerOpen]);
        assert!(bench.breaker.is_open() && bench.breaker.cap(1.0) == 0.0);
    }

    #[test]
    fn a_healthy_network_closes_a_halved_breaker() {
        let mut bench = bench();
        bench.measure(&[BAD; 3]);
        assert_eq!(bench.measure(&[GOOD; 2]), []);
        assert_eq!(bench.measure(&[GOOD]), [RateEvent::BreakerClosed]);
        assert_eq!(bench.breaker.cap(1.0), f64::INFINITY);
    }

    #[test]
    fn probes_come_after_a_back_off_that_doubles() {
        let mut bench = bench();
        bench.measure(&[BAD; 6]);
        let mut cap = 250.0;
        for expected in [10, 20, 40, 80, 160, 320, 320] {
            let until = bench.breaker.next_timeout().unwrap();
            assert_eq!(until - bench.now, Duration::from_secs(expected));
            bench.breaker.handle_timeout(bench.now);
            assert!(bench.breaker.is_open(), "not before");
            bench.now = until;
            bench.breaker.handle_timeout(bench.now);
            assert_eq!(bench.breaker.cap(7.0), f64::max(cap, 7.0));
            assert_eq!(bench.measure(&[BAD]), [RateEvent::BreakerOpen]);
            cap /= 2.0;
        }
        bench.now = bench.breaker.next_timeout().unwrap();
        bench.breaker.handle_timeout(bench.now);
        assert_eq!(bench.measure(&[GOOD; 3]), [RateEvent::BreakerClosed]);
    }

    #[test]
    fn few_reports_are_no_measurement() {
        let mut bench = bench();
        let few = Measurement {
            judged: 4,
            failing: 4,
        };
        assert_eq!(bench.measure(&[few; 20]), []);
    }
}
