//! PINGs of a flow: heartbeats, probes for a newcomer's proof, probes for acknowledgements.

use std::time::{Duration, Instant};

/// Interval of PINGs that help a newcomer's proof, and their time after its request to join.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const PROBE_FOR: Duration = Duration::from_secs(1);
/// After data, probes for acknowledgements come no faster than this.
pub(super) const MIN_TAIL_PROBE: Duration = Duration::from_millis(5);

/// When a flow sends PINGs.
#[derive(Debug)]
pub(super) struct Pings {
    last_sent: Option<Instant>,
    /// End of the probes for proofs.
    probe_until: Option<Instant>,
    /// Time of the next probe for acknowledgements.
    tail_at: Option<Instant>,
    /// Time from a packet to the probe for its acknowledgements: the longest probe timeout of all
    /// members.
    tail_delay: Duration,
}

impl Pings {
    pub(super) fn new(tail_delay: Duration) -> Self {
        Pings {
            last_sent: None,
            probe_until: None,
            tail_at: None,
            tail_delay,
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

    /// Stops all PINGs but heartbeats.
    pub(super) fn stop(&mut self) {
        (self.tail_at, self.probe_until) = (None, None);
    }

    /// Sets the longest probe timeout of all members.
    pub(super) fn set_tail_delay(&mut self, pto: Duration) {
        self.tail_delay = pto;
    }

    /// Raises the longest probe timeout of all members to that of one of them.
    pub(super) fn raise_tail_delay(&mut self, pto: Duration) {
        self.tail_delay = self.tail_delay.max(pto);
    }

    /// Notes that a packet was sent. `probe` says that its acknowledgements are probed for, which
    /// is restarted by each packet: one PING follows the last of them. The probe comes at the
    /// latest after a third of the `fall_back` delay.
    pub(super) fn note_sent(&mut self, now: Instant, probe: bool, fall_back: Duration) {
        self.last_sent = Some(now);
        let longest = (fall_back / 3).max(MIN_TAIL_PROBE);
        let delay = self.tail_delay.clamp(MIN_TAIL_PROBE, longest);
        self.tail_at = probe.then(|| now + delay);
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
    const FALL_BACK: Duration = Duration::from_millis(150);
    const PTO: Duration = Duration::from_millis(20);

    #[test]
    fn probes_for_proofs_come_for_a_second() {
        let mut now = Instant::now();
        let mut pings = Pings::new(PTO);
        assert_eq!(pings.next_timeout(HEARTBEAT), None, "no predecessor");
        pings.note_sent(now, false, FALL_BACK);
        pings.probe_from(now);
        let mut probes = 0;
        while pings.next_timeout(HEARTBEAT) == Some(now + PROBE_EVERY) {
            now += PROBE_EVERY;
            pings.note_sent(now, false, FALL_BACK);
            probes += 1;
        }
        assert_eq!(probes, 10);
        assert_eq!(pings.next_timeout(HEARTBEAT), Some(now + HEARTBEAT));
    }

    #[test]
    fn one_probe_follows_the_last_packet_within_bounds() {
        let now = Instant::now();
        let mut pings = Pings::new(PTO);
        let mut tail = |pto| {
            pings.set_tail_delay(pto);
            pings.note_sent(now, true, FALL_BACK);
            pings.next_timeout(HEARTBEAT).unwrap() - now
        };
        assert_eq!(tail(PTO), PTO);
        assert_eq!(tail(Duration::ZERO), MIN_TAIL_PROBE);
        assert_eq!(tail(HEARTBEAT), FALL_BACK / 3);
        pings.stop();
        assert_eq!(pings.next_timeout(HEARTBEAT), Some(now + HEARTBEAT));
    }
}
