//! Signs of forgery that receivers report: somebody else sends packets under a flow's key.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::scope::ChannelScope;
use super::timer::ReceiverTimer;
use super::types::{SessionId, SourceEvent};
use crate::pace::TokenBucket;
use crate::{Cause, Rung};

/// Forged updates that a member may report at once, and per second: one that reports more is moved
/// to unicast, since each of them comes late by the flow.
const NEEDS_AT_ONCE: usize = 16;
const NEEDS_PER_S: u64 = 1;
/// Minimum interval between events about one receiver: all of them may report the same packets.
const EVENT_EVERY: Duration = Duration::from_secs(300);

/// The part of a heartbeat after which a receiver may prove the flow again, if what it proved was
/// never sent.
const DOUBTED: u32 = 2;

/// Signs of forgery that one receiver has reported about one channel.
#[derive(Debug)]
pub(super) struct Forgery {
    needs: TokenBucket,
    /// Last event or move because of them.
    reported: Option<Instant>,
    /// Signs since then.
    signs: u64,
}

impl Default for Forgery {
    fn default() -> Self {
        Forgery {
            needs: TokenBucket::new(NEEDS_PER_S * 8, NEEDS_AT_ONCE),
            reported: None,
            signs: 0,
        }
    }
}

impl Forgery {
    /// Counts a sign. Returns how many there are since the last event, if another one is due.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.signs += 1;
        let is_due = |at: Instant| at + EVENT_EVERY <= now;
        self.reported.is_none_or(is_due).then(|| self.report(now))
    }

    /// Resets the count, because of an event. Returns the number of signs before it.
    fn report(&mut self, now: Instant) -> u64 {
        self.reported = Some(now);
        std::mem::take(&mut self.signs)
    }

    /// Counts a forged update. Returns whether there are too many.
    fn count_need(&mut self, now: Instant) -> bool {
        if self.needs.ready_at(now) > now {
            return true;
        }
        self.needs.take(1);
        false
    }
}

impl ChannelScope<'_> {
    /// Takes note of a request for an update that was forged: a member that loses many updates of
    /// the flow to forgeries is moved to unicast. What is not the flow's, or not published yet,
    /// comes by unicast anyway: a receiver that has left and returns still asks for some of those.
    pub(super) fn on_forged_need(&mut self, id: SessionId, seq: u64, now: Instant) {
        let head = self.channel.head;
        let Some(subscription) = self.subscription(id) else {
            return;
        };
        let membership = subscription.ladder.membership();
        let is_lost = membership.is_some_and(|m| m.cut_head < seq && seq <= head);
        match is_lost && subscription.forgery.count_need(now) {
            true => self.fall_back_from_forgery(id, now),
            false => self.note_forgery(id, false, now),
        }
    }

    /// Moves a member to unicast because packets of the flow are forged; a receiver that is no
    /// member stays where it is.
    pub(super) fn fall_back_from_forgery(&mut self, id: SessionId, now: Instant) {
        let flow = self.channel.flow.as_mut();
        let Some(departure) = flow.and_then(|flow| flow.dismiss(id)) else {
            return self.note_forgery(id, false, now);
        };
        self.note_forgery(id, true, now);
        // One forged packet does this to all members at once.
        self.count_fall_back(Cause::Forged, now);
        self.end_membership(id, Cause::Forged, departure, now);
    }

    /// Takes a proof with packets that were never sent for a sign of forgery, and puts the next one
    /// off: a member would be moved to unicast at once.
    pub(super) fn doubt_proof(&mut self, id: SessionId, rung: Rung, now: Instant) {
        self.note_forgery(id, false, now);
        let flow = self.channel.flow.as_ref();
        let Some(heartbeat) = flow.map(|flow| flow.config().heartbeat) else {
            return;
        };
        let jitter = self.rng.random_range(0.75..1.25);
        let until = now + (heartbeat / DOUBTED).mul_f64(jitter);
        let Some(subscription) = self.subscription(id) else {
            return;
        };
        if subscription.ladder.put_off(rung, until, now) {
            let timer = ReceiverTimer::Backoff(rung);
            self.timers.add(id, self.index, timer, until);
        }
    }

    /// Counts a sign of forgery. One that `moves` the receiver is reported by that; others are
    /// reported now and then.
    pub(super) fn note_forgery(&mut self, id: SessionId, moves: bool, now: Instant) {
        self.out.counters.forged_reports += 1;
        let Some(subscription) = self.subscription(id) else {
            return;
        };
        let on = subscription.ladder.rung();
        if moves {
            subscription.forgery.report(now);
        } else if let Some(signs) = subscription.forgery.count(now) {
            self.out.push(SourceEvent::Forged {
                session: id,
                channel: self.index,
                on,
                signs,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_reported_once_in_five_minutes() {
        let start = Instant::now();
        let mut forgery = Forgery::default();
        let mut reported = Vec::new();
        for second in 0..700 {
            let now = start + Duration::from_secs(second);
            reported.extend(forgery.count(now).map(|signs| (second, signs)));
        }
        assert_eq!(reported, [(0, 1), (300, 300), (600, 300)]);
    }

    #[test]
    fn a_few_forged_updates_are_tolerated() {
        let start = Instant::now();
        let mut forgery = Forgery::default();
        let tolerated = (0..1000).filter(|_| !forgery.count_need(start)).count();
        assert_eq!(tolerated, NEEDS_AT_ONCE);
        let mut now = start;
        for _ in 0..100 {
            now += Duration::from_secs(2);
            assert!(!forgery.count_need(now));
        }
    }
}
