//! PINGs of a flow: heartbeats, probes for a newcomer's proof, probes for acknowledgements.

use std::time::{Duration, Instant};

use crate::rtt::RttEstimator;

/// Interval of PINGs that help a newcomer's proof, and their time after its request to join.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const PROBE_FOR: Duration = Duration::from_secs(1);
/// After data, probes for acknowledgements come no faster than this.
pub(super) const MIN_TAIL_PROBE: Duration = Duration::from_millis(5);

/// Acknowledgement delays within which each member is heard, and the same time at least.
const HEARD_WITHIN: (u32, Duration) = (4, Duration::from_millis(250));

/// Longest of the members' probe timeouts without acknowledgement delay, as far as they were heard
/// lately.
#[derive(Debug)]
struct LongestTimeout {
    /// Begin of the present span of time; `None` before the first member was heard.
    began: Option<Instant>,
    present: Duration,
    /// The longest one of the span before.
    previous: Duration,
}

impl LongestTimeout {
    /// Notes the timeout of a member that is heard, as each is within a span of time.
    fn add(&mut self, timeout: Duration, span: Duration, now: Instant) {
        let is_over = |began| now.saturating_duration_since(began) >= span;
        if self.began.is_none_or(is_over) {
            let before = self
                .began
                .replace(now)
                .map_or(Duration::ZERO, |_| self.present);
            (self.previous, self.present) = (before, Duration::ZERO);
        }
        self.present = self.present.max(timeout);
    }

    fn get(&self) -> Duration {
        self.present.max(self.previous)
    }
}

/// When a flow sends PINGs.
#[derive(Debug)]
pub(super) struct Pings {
    last_sent: Option<Instant>,
    /// End of the probes for proofs.
    probe_until: Option<Instant>,
    /// Time of the next probe for acknowledgements.
    tail_at: Option<Instant>,
    longest: LongestTimeout,
}

impl Pings {
    pub(super) fn new(ack_delay: Duration) -> Self {
        Pings {
            last_sent: None,
            probe_until: None,
            tail_at: None,
            longest: LongestTimeout {
                began: None,
                present: ack_delay,
                previous: Duration::ZERO,
            },
        }
    }

    /// Returns when the last packet was sent.
    pub(super) fn last_sent(&self) -> Option<Instant> {
        self.last_sent
    }

    /// Sends PINGs quickly for a while, so that newcomers can prove that they arrive.
    pub(super) fn probe_from(&mut self, now: Instant) {
        self.probe_until = Some(now + PROBE_FOR);
    }

    /// Whether a packet of this instant is probed for already.
    pub(super) fn is_probing(&self, now: Instant) -> bool {
        self.tail_at.is_some() && self.last_sent == Some(now)
    }

    /// Stops all PINGs but heartbeats.
    pub(super) fn stop(&mut self) {
        (self.tail_at, self.probe_until) = (None, None);
    }

    /// Notes the round trips of a member that is heard.
    pub(super) fn note_member(&mut self, rtt: &RttEstimator, ack_delay: Duration, now: Instant) {
        let (acks, least) = HEARD_WITHIN;
        let span = (ack_delay * acks).max(least);
        self.longest.add(rtt.pto(Duration::ZERO), span, now);
    }

    /// Notes that a packet was sent. With `probe` its acknowledgements, which are delayed by
    /// `ack_delay`, are probed for after the longest probe timeout of all members, but no later
    /// than `probe`. That is restarted by each packet: one PING follows the last of them.
    pub(super) fn note_sent(&mut self, now: Instant, ack_delay: Duration, probe: Option<Duration>) {
        self.last_sent = Some(now);
        let timeout = self.longest.get() + ack_delay;
        self.tail_at = probe.map(|latest| now + timeout.min(latest).max(MIN_TAIL_PROBE));
    }

    /// Returns when a PING is due.
    pub(super) fn next_timeout(&self, heartbeat: Duration) -> Option<Instant> {
        let probe = self.last_sent.and_then(|at| {
            let until = self.probe_until.filter(|until| at < *until);
            until.map(|_| at + PROBE_EVERY)
        });
        let heartbeat = self.last_sent.map(|at| at + heartbeat);
        [probe, heartbeat, self.tail_at].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(1);
    const LATEST: Duration = Duration::from_millis(50);
    const PTO: Duration = Duration::from_millis(20);

    #[test]
    fn probes_for_proofs_come_for_a_second() {
        let mut now = Instant::now();
        let mut pings = Pings::new(PTO);
        assert_eq!(pings.next_timeout(HEARTBEAT), None, "no predecessor");
        pings.note_sent(now, PTO, None);
        pings.probe_from(now);
        let mut probes = 0;
        while pings.next_timeout(HEARTBEAT) == Some(now + PROBE_EVERY) {
            now += PROBE_EVERY;
            pings.note_sent(now, PTO, None);
            probes += 1;
        }
        assert_eq!(probes, 10);
        assert_eq!(pings.next_timeout(HEARTBEAT), Some(now + HEARTBEAT));
    }

    #[test]
    fn one_probe_follows_the_last_packet_within_bounds() {
        let now = Instant::now();
        let tail = |pto: Duration| {
            let mut pings = Pings::new(pto / 2);
            pings.note_sent(now, pto / 2, Some(LATEST));
            let at = pings.next_timeout(HEARTBEAT).unwrap();
            pings.stop();
            assert_eq!(pings.next_timeout(HEARTBEAT), Some(now + HEARTBEAT));
            at - now
        };
        assert_eq!(tail(PTO), PTO);
        assert_eq!(tail(Duration::ZERO), MIN_TAIL_PROBE);
        assert_eq!(tail(HEARTBEAT), LATEST);
    }

    #[test]
    fn the_slowest_member_counts_for_as_long_as_it_is_heard() {
        let (start, (_, span)) = (Instant::now(), HEARD_WITHIN);
        let member = |rtt| RttEstimator::new(Duration::from_millis(rtt));
        let mut pings = Pings::new(PTO);
        pings.note_member(&member(10), PTO, start);
        assert_eq!(pings.longest.get(), Duration::from_millis(10 + 20));
        pings.note_member(&member(40), PTO, start);
        let slow = Duration::from_millis(40 + 80);
        for (spans, expected) in [(1, true), (2, false)] {
            // An hour without packets is no absence.
            let now = start + span * spans + 3600 * HEARTBEAT;
            pings.note_member(&member(10), PTO, now);
            assert_eq!(pings.longest.get() == slow, expected);
        }
    }
}
