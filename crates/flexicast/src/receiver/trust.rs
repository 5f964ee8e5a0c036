//! Times without the flow, after what it brought has ended connections or costs more than it is
//! worth (protocol.md sections 7.4 and 8.3).

use std::time::{Duration, Instant};

use rand::RngExt;

use super::Receiver;
use crate::pace::TokenBucket;

/// Connections that may be ended for an update that a source cannot be asked for.
pub(super) const TOLERATED: u32 = 3;
/// Checks of signatures and hashes that may fail per second before a receiver does without the
/// flow: about 3 % of one processor. Nearly all are of signatures, at some 30 µs each; for those of
/// hashes, a forger needs the header of an update that the source published, once or twice each.
const FAILED_CHECKS_PER_S: u64 = 1000;
/// Checks that may fail at once.
const FAILED_CHECKS_AT_ONCE: usize = 512;

/// The limit on failed checks of signed updates.
pub(super) fn failed_check_limit() -> TokenBucket {
    TokenBucket::new(FAILED_CHECKS_PER_S * 8, FAILED_CHECKS_AT_ONCE)
}

/// Reason to do without the flow.
#[derive(Debug, Clone, Copy)]
pub(super) enum Loss {
    /// The flow has cost a connection. The first `tolerated` ones have no consequence.
    Connection { tolerated: u32 },
    /// The flow brings too much that is invalid or forged, of which nothing was handed on.
    Flood,
}

/// Growth of the times without the flow.
struct Growth {
    /// The first time; it doubles with each one.
    first: Duration,
    max: Duration,
    /// After so long without another loss, the times begin again with the first.
    forgiven: Duration,
}

const AFTER_CONNECTIONS: Growth = Growth {
    first: Duration::from_secs(60),
    max: Duration::from_secs(3600),
    forgiven: Duration::from_secs(24 * 3600),
};
/// Nothing is at stake but the cost of another attempt.
const AFTER_FLOODS: Growth = Growth {
    first: Duration::from_secs(1),
    max: Duration::from_secs(30),
    forgiven: Duration::from_secs(300),
};

/// Losses of one kind.
#[derive(Debug, Default)]
struct Losses {
    count: u32,
    last: Option<Instant>,
}

impl Losses {
    /// Counts one. Returns the time without the flow, if there are more than `tolerated`.
    fn count(&mut self, growth: &Growth, tolerated: u32, now: Instant) -> Option<Duration> {
        if self.last.is_some_and(|last| last + growth.forgiven <= now) {
            self.count = 0;
        }
        self.last = Some(now);
        self.count += 1;
        let times = self.count.checked_sub(tolerated + 1)?;
        Some((growth.first * (1 << times.min(10))).min(growth.max))
    }
}

/// Trust in a channel's flow, across connections.
#[derive(Debug, Default)]
pub(super) struct Trust {
    connections: Losses,
    floods: Losses,
    until: Option<Instant>,
}

impl Trust {
    /// Loses trust: the receiver does without the flow for a time, to which `jitter` is a factor:
    /// all receivers have got the same packets.
    pub(super) fn lose(&mut self, loss: Loss, jitter: f64, now: Instant) {
        let off = match loss {
            Loss::Connection { tolerated } => {
                self.connections.count(&AFTER_CONNECTIONS, tolerated, now)
            }
            Loss::Flood => self.floods.count(&AFTER_FLOODS, 0, now),
        };
        if let Some(off) = off {
            self.until = self.until.max(Some(now + off.mul_f64(jitter)));
        }
    }

    /// Until when the receiver does without the flow.
    pub(super) fn off_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

impl Receiver {
    /// Notes that a channel's flow has cost a connection.
    pub(super) fn lose_trust(&mut self, channel: usize, loss: Loss, now: Instant) {
        let jitter = self.rng.random_range(0.75..1.25);
        self.channels[channel].trust.lose(loss, jitter, now);
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
        let Growth {
            first,
            max,
            forgiven,
        } = AFTER_CONNECTIONS;
        let mut trust = Trust::default();
        let mut off = |lost, tolerated, at: Duration| {
            let now = start + at;
            (0..lost).for_each(|_| trust.lose(Loss::Connection { tolerated }, 1.0, now));
            trust.off_until(now).map(|until| until - now)
        };
        assert_eq!(off(TOLERATED, TOLERATED, Duration::ZERO), None);
        assert_eq!(off(1, TOLERATED, Duration::ZERO), Some(first));
        assert_eq!(off(1, TOLERATED, first), Some(first * 2));
        assert_eq!(off(0, 0, first * 3), None);
        assert_eq!(off(90, 0, max), Some(max));
        assert_eq!(off(1, 0, max + forgiven), Some(first));
    }

    #[test]
    fn floods_cost_seconds_and_do_not_shorten_other_times() {
        let now = Instant::now();
        let mut trust = Trust::default();
        let off = |trust: &Trust| trust.off_until(now).map(|until| (until - now).as_secs());
        let times: Vec<_> = (0..7)
            .map(|_| {
                trust.lose(Loss::Flood, 1.0, now);
                off(&trust)
            })
            .collect();
        let seconds = [1, 2, 4, 8, 16, 30, 30];
        assert_eq!(times, seconds.map(Some));
        trust.lose(Loss::Connection { tolerated: 0 }, 1.0, now);
        trust.lose(Loss::Flood, 1.0, now);
        assert_eq!(off(&trust), Some(60));
    }
}
