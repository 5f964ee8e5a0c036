//! Times without the flow, after what it brought has ended connections or costs more than it is
//! worth (protocol.md sections 7.4 and 8.3).

use std::time::{Duration, Instant};

use rand::RngExt;

use super::Receiver;
use crate::pace::TokenBucket;

/// Connections that may be ended for an update that a source cannot be asked for.
pub(super) const TOLERATED: u32 = 3;
/// Checks of signatures and hashes that may fail per second before a receiver drops what the flow
/// brings: about 3 % of one processor. Nearly all are of signatures, at some 30 µs each; for those
/// of hashes, a forger needs the header of an update that the source published, once or twice each.
const FAILED_CHECKS_PER_S: u64 = 1000;
/// Checks that may fail at once.
const FAILED_CHECKS_AT_ONCE: usize = 512;
/// Tags of packets that may fail in the place of one other check: they take 1 µs each at most.
const TAGS_PER_CHECK: u64 = 30;

/// Kind of a check that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedCheck {
    /// Signature of an update or a packet, or hashes of an update.
    Signature,
    /// Tag of a packet.
    Tag,
}

/// Budget of a channel for checks that fail, in tags.
#[derive(Debug)]
pub(super) struct CheckBudget(TokenBucket);

impl Default for CheckBudget {
    fn default() -> Self {
        let at_once = FAILED_CHECKS_AT_ONCE * TAGS_PER_CHECK as usize;
        CheckBudget(TokenBucket::new(
            FAILED_CHECKS_PER_S * TAGS_PER_CHECK * 8,
            at_once,
        ))
    }
}

impl CheckBudget {
    /// Takes checks that failed.
    pub(super) fn take(&mut self, failed: u64, check: FailedCheck) {
        let tags = match check {
            FailedCheck::Signature => failed * TAGS_PER_CHECK,
            FailedCheck::Tag => failed,
        };
        self.0.take(tags as usize);
    }

    /// Whether another one may fail.
    pub(super) fn affords(&mut self, now: Instant) -> bool {
        self.0.ready_at(now) <= now
    }
}

/// The first time without the flow; it doubles with each further loss.
const FIRST: Duration = Duration::from_secs(60);
const MAX: Duration = Duration::from_secs(3600);
/// After so long without another loss, the times begin again with the first.
const FORGIVEN: Duration = Duration::from_secs(24 * 3600);

/// Trust in a channel's flow, across connections.
#[derive(Debug, Default)]
pub(super) struct Trust {
    losses: u32,
    last: Option<Instant>,
    until: Option<Instant>,
}

impl Trust {
    /// Loses trust: with more than `tolerated` losses the receiver does without the flow for a
    /// time, to which `jitter` is a factor: all receivers have got the same packets.
    pub(super) fn lose(&mut self, tolerated: u32, jitter: f64, now: Instant) {
        if self.last.is_some_and(|last| last + FORGIVEN <= now) {
            self.losses = 0;
        }
        self.last = Some(now);
        self.losses += 1;
        if let Some(times) = self.losses.checked_sub(tolerated + 1) {
            let off = (FIRST * (1 << times.min(10))).min(MAX);
            self.until = self.until.max(Some(now + off.mul_f64(jitter)));
        }
    }

    /// Until when the receiver does without the flow.
    pub(super) fn off_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

impl Receiver {
    /// Notes that a channel's flow has cost a connection, of which `tolerated` ones have no
    /// consequence.
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
