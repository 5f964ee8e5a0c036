//! Times without the flow, after what it brought has ended connections (protocol.md section 7.4).

use std::time::{Duration, Instant};

use rand::RngExt;

use super::Receiver;

/// The first time without the flow; it doubles with each one.
const FIRST: Duration = Duration::from_secs(60);
const MAX: Duration = Duration::from_secs(3600);
/// After so long without another loss, the times begin again with the first.
const FORGIVEN: Duration = Duration::from_secs(24 * 3600);
/// Connections that may be ended for an update that a source cannot be asked for.
pub(super) const TOLERATED: u32 = 3;

/// Trust in a channel's flow, across connections.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Connections that it has cost.
    lost: u32,
    last: Option<Instant>,
    until: Option<Instant>,
}

impl Trust {
    /// The flow has cost a connection. Beyond `tolerated` ones, the receiver does without it for
    /// a time, to which `jitter` is a factor: all receivers have got the same packets.
    pub(super) fn lose(&mut self, tolerated: u32, jitter: f64, now: Instant) {
        if self.last.is_some_and(|last| last + FORGIVEN <= now) {
            self.lost = 0;
        }
        self.last = Some(now);
        self.lost += 1;
        if let Some(times) = self.lost.checked_sub(tolerated + 1) {
            let off = (FIRST * (1 << times.min(10))).min(MAX);
            self.until = Some(now + off.mul_f64(jitter));
        }
    }

    /// Until when the receiver does without the flow.
    pub(super) fn off_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

impl Receiver {
    /// Notes that a channel's flow has cost a connection.
    pub(super) fn lose_trust(&mut self, channel: usize, tolerated: u32, now: Instant) {
        let jitter = self.rng.random_range(0.75..1.25);
        self.channels[channel].trust.lose(tolerated, jitter, now);
        let flows = self.flows.iter().filter(|(_, f)| f.channel() == channel);
        let ids: Vec<_> = flows.map(|(id, _)| *id).collect();
        for id in ids {
            self.drive(id, |flow| flow.stay_off(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_the_flow_grow_within_bounds_and_are_forgiven() {
        let start = Instant::now();
        let mut trust = Trust::default();
        let mut off = |lost, tolerated, at: Duration| {
            let now = start + at;
            (0..lost).for_each(|_| trust.lose(tolerated, 1.0, now));
            trust.off_until(now).map(|until| until - now)
        };
        assert_eq!(off(TOLERATED, TOLERATED, Duration::ZERO), None);
        assert_eq!(off(1, TOLERATED, Duration::ZERO), Some(FIRST));
        assert_eq!(off(1, TOLERATED, FIRST), Some(FIRST * 2));
        assert_eq!(off(0, 0, FIRST * 3), None);
        assert_eq!(off(90, 0, MAX), Some(MAX));
        assert_eq!(off(1, 0, MAX + FORGIVEN), Some(FIRST));
    }
}
