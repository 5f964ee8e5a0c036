//! The rate of all unicast paths together: receivers that lose the flow at the same time take turns (design section 2).

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::SessionId;
use crate::pace::TokenBucket;

/// What may go out at once after a pause, in bytes.
const BURST: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Pacing {
    bucket: Option<TokenBucket>,
    /// Who waits, in the order in which they came, each once.
    queue: VecDeque<SessionId>,
    waiting: BTreeSet<SessionId>,
    /// Whose turn it is.
    turn: Option<SessionId>,
}

impl Pacing {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Pacing {
            bucket: rate.map(|rate| TokenBucket::new(rate, BURST)),
            queue: VecDeque::new(),
            waiting: BTreeSet::new(),
            turn: None,
        }
    }

    /// Whether this session may take an update to send now. If not, it waits for its turn.
    pub(super) fn may_send(&mut self, id: SessionId, now: Instant) -> bool {
        let Some(bucket) = &mut self.bucket else {
            return true;
        };
        let ready = bucket.ready_at(now) <= now;
        // Nobody overtakes those who wait.
        if ready && (self.waiting.is_empty() || self.turn == Some(id)) {
            return true;
        }
        if self.turn == Some(id) {
            self.turn = None;
        }
        if self.waiting.insert(id) {
            self.queue.push_back(id);
        }
        false
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(bytes);
        }
    }

    /// It is gone, or has nothing to send.
    pub(super) fn forget(&mut self, id: SessionId) {
        if self.turn == Some(id) {
            self.turn = None;
        }
        // Its place in the queue is passed over when it comes up.
        self.waiting.remove(&id);
    }

    /// When the next in the queue has its turn.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        while self
            .queue
            .front()
            .is_some_and(|id| !self.waiting.contains(id))
        {
            self.queue.pop_front();
        }
        if self.queue.is_empty() {
            return None;
        }
        self.bucket.as_mut().map(|b| b.ready_at(now))
    }

    /// Gives the next in the queue its turn, if the rate allows it.
    pub(super) fn release(&mut self, now: Instant) -> Option<SessionId> {
        if self.next(now)? > now {
            return None;
        }
        let id = self.queue.pop_front()?;
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
                while pacing.may_send(id, now) {
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
}
