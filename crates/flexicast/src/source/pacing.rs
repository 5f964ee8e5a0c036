//! The rate of all unicast paths together: receivers that lose the flow at the same time take
//! turns.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::types::SessionId;
use crate::pace::TokenBucket;

/// Burst after a pause, in bytes.
const BURST: usize = 256 << 10;
/// One of this many turns is for catch-up, while others wait too.
const LATE_EVERY: u32 = 4;

#[derive(Debug)]
pub(super) struct Pacing {
    bucket: Option<TokenBucket>,
    /// Waiting sessions, in order of arrival, each once.
    queue: VecDeque<SessionId>,
    /// Waiting sessions that catch up: new updates do not wait for old ones.
    late: VecDeque<SessionId>,
    turns: u32,
    waiting: BTreeSet<SessionId>,
    /// Session whose turn it is.
    turn: Option<SessionId>,
}

impl Pacing {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Pacing {
            bucket: rate.map(|rate| TokenBucket::new(rate, BURST)),
            queue: VecDeque::new(),
            late: VecDeque::new(),
            turns: 0,
            waiting: BTreeSet::new(),
            turn: None,
        }
    }

    /// Whether this session may take an update to send now. If not, it waits for its turn; `late`
    /// says that it catches up.
    pub(super) fn may_send(&mut self, id: SessionId, late: bool, now: Instant) -> bool {
        let Some(bucket) = &mut self.bucket else {
            return true;
        };
        let ready = bucket.ready_at(now) <= now;
        // Waiting sessions are not overtaken.
        if ready && (self.waiting.is_empty() || self.turn == Some(id)) {
            return true;
        }
        if self.turn == Some(id) {
            self.turn = None;
        }
        if self.waiting.insert(id) {
            let queue = if late {
                &mut self.late
            } else {
                &mut self.queue
            };
            queue.push_back(id);
        }
        false
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(bytes);
        }
    }

    /// Removes a session that is gone or has nothing to send.
    pub(super) fn forget(&mut self, id: SessionId) {
        if self.turn == Some(id) {
            self.turn = None;
        }
        // Its place in the queue is passed over when it comes up.
        self.waiting.remove(&id);
    }

    /// When the next in the queue has its turn.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        for queue in [&mut self.queue, &mut self.late] {
            while queue.front().is_some_and(|id| !self.waiting.contains(id)) {
                queue.pop_front();
            }
        }
        if self.queue.is_empty() && self.late.is_empty() {
            return None;
        }
        self.bucket.as_mut().map(|b| b.ready_at(now))
    }

    /// Gives the next in the queue its turn, if the rate allows it.
    pub(super) fn release(&mut self, now: Instant) -> Option<SessionId> {
        if self.next(now)? > now {
            return None;
        }
        self.turns = self.turns.wrapping_add(1);
        let id = if self.turns.is_multiple_of(LATE_EVERY) {
            self.late.pop_front().or_else(|| self.queue.pop_front())
        } else {
            self.queue.pop_front().or_else(|| self.late.pop_front())
        }?;
        self.waiting.remove(&id);
        self.turn = Some(id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_rate_holds_and_all_get_their_turn() {
        let start = Instant::now();
        let mut pacing = Pacing::new(Some(8_000_000));
        let mut got = [0usize; 20];
        let mut now = start;
        let mut wants: VecDeque<SessionId> = (0..20).collect();
        while now < start + Duration::from_secs(2) {
            while let Some(id) = wants.pop_front() {
                while pacing.may_send(id, false, now) {
                    pacing.sent(1000);
                    got[id as usize] += 1000;
                }
            }
            match pacing.release(now) {
                Some(id) => wants.push_back(id),
                None => now = pacing.next(now).unwrap(),
            }
        }
        let total: usize = got.iter().sum();
        assert!((2_000_000..2_300_000).contains(&total), "{total}");
        let (least, most) = (
            got[1..].iter().min().unwrap(),
            got[1..].iter().max().unwrap(),
        );
        assert!(
            most - least <= 4000,
            "the first had the burst, the others share: {got:?}"
        );
    }

    /// Many catching-up sessions leave room for those that want new updates, and are not starved by
    /// them.
    #[test]
    fn new_updates_do_not_wait_for_old_ones() {
        let mut now = Instant::now();
        let mut pacing = Pacing::new(Some(8_000_000));
        pacing.sent(BURST + 1000);
        let late: Vec<SessionId> = (100..200).collect();
        for id in &late {
            assert!(!pacing.may_send(*id, true, now));
        }
        assert!(!pacing.may_send(1, false, now));
        let mut order = Vec::new();
        for _ in 0..20 {
            now = pacing.next(now).unwrap();
            let id = pacing.release(now).unwrap();
            order.push(id);
            assert!(pacing.may_send(id, id >= 100, now));
            pacing.sent(1000);
            assert!(!pacing.may_send(id, id >= 100, now), "one each");
        }
        assert_eq!(order[0], 1, "{order:?}");
        let new = order.iter().filter(|id| **id == 1).count();
        assert_eq!(new, 15, "three of four turns: {order:?}");
        assert_eq!(order[3], 100, "{order:?}");
    }
}
