//! The rate of all unicast paths together: receivers that lose the flow at the same time take
//! turns.

use std::collections::BTreeMap;
use std::time::Instant;

use super::types::SessionId;
use crate::pace::TokenBucket;

/// Burst after a pause, in bytes.
const BURST: usize = 256 << 10;
/// One of this many turns is for catch-up, while others wait too.
const LATE_EVERY: u32 = 4;
/// One of this many turns, another one, is for whichever session has waited longest.
const LONGEST_EVERY: u32 = 4;

/// Urgency of what waits for a unicast path: the earliest deadline comes first, and then who is
/// least behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Urgency {
    /// Earliest deadline in Unix ms; the maximum for none.
    pub(super) deadline_ms: u64,
    /// Updates that wait.
    pub(super) behind: u64,
}

/// Sessions that wait for a turn.
#[derive(Debug, Default)]
struct WaitingSessions {
    /// By urgency and place in the order of arrival.
    by_urgency: BTreeMap<(Urgency, u64), SessionId>,
    /// The urgency of each place.
    by_arrival: BTreeMap<u64, Urgency>,
}

impl WaitingSessions {
    fn insert(&mut self, place: u64, urgency: Urgency, id: SessionId) {
        self.by_urgency.insert((urgency, place), id);
        self.by_arrival.insert(place, urgency);
    }

    fn remove(&mut self, place: u64) -> Option<SessionId> {
        let urgency = self.by_arrival.remove(&place)?;
        self.by_urgency.remove(&(urgency, place))
    }

    fn is_empty(&self) -> bool {
        self.by_arrival.is_empty()
    }

    /// Takes the session that has waited longest.
    fn pop_longest(&mut self) -> Option<SessionId> {
        let place = *self.by_arrival.first_key_value()?.0;
        self.remove(place)
    }

    /// Takes the most urgent session; of those that are alike, the one that has waited longest.
    fn pop_urgent(&mut self) -> Option<SessionId> {
        let ((_, place), id) = self.by_urgency.pop_first()?;
        self.by_arrival.remove(&place);
        Some(id)
    }
}

#[derive(Debug)]
pub(super) struct Pacing {
    bucket: Option<TokenBucket>,
    queue: WaitingSessions,
    /// Waiting sessions that catch up: new updates do not wait for old ones.
    late: WaitingSessions,
    turns: u32,
    /// The place of each waiting session in the order of arrival.
    waiting: BTreeMap<SessionId, u64>,
    arrivals: u64,
    /// Session whose turn it is.
    turn: Option<SessionId>,
}

impl Pacing {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Pacing {
            bucket: rate.map(|rate| TokenBucket::new(rate, BURST)),
            queue: WaitingSessions::default(),
            late: WaitingSessions::default(),
            turns: 0,
            waiting: BTreeMap::new(),
            arrivals: 0,
            turn: None,
        }
    }

    /// Whether this session may take an update to send now. If not, it waits for its turn; `late`
    /// says that it catches up.
    pub(super) fn may_send(
        &mut self,
        id: SessionId,
        late: bool,
        urgency: impl FnOnce() -> Urgency,
        now: Instant,
    ) -> bool {
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
        if !self.waiting.contains_key(&id) {
            self.arrivals += 1;
            self.waiting.insert(id, self.arrivals);
            let queue = match late {
                true => &mut self.late,
                false => &mut self.queue,
            };
            queue.insert(self.arrivals, urgency(), id);
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
        if let Some(place) = self.waiting.remove(&id) {
            self.queue.remove(place);
            self.late.remove(place);
        }
    }

    /// When the next one that waits has its turn.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        let is_idle = self.waiting.is_empty();
        let bucket = self.bucket.as_mut().filter(|_| !is_idle);
        bucket.map(|bucket| bucket.ready_at(now))
    }

    /// Gives the next one that waits its turn, if the rate allows it.
    pub(super) fn release(&mut self, now: Instant) -> Option<SessionId> {
        if self.next(now)? > now {
            return None;
        }
        self.turns = self.turns.wrapping_add(1);
        let for_late = self.turns.is_multiple_of(LATE_EVERY) || self.queue.is_empty();
        let id = if for_late && !self.late.is_empty() {
            self.late.pop_longest()
        } else if self.turns % LONGEST_EVERY == 2 {
            self.queue.pop_longest()
        } else {
            self.queue.pop_urgent()
        }?;
        self.waiting.remove(&id);
        self.turn = Some(id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;

    /// The urgency of updates without a deadline.
    fn some() -> Urgency {
        urgent(u64::MAX, 1)
    }

    fn urgent(deadline_ms: u64, behind: u64) -> Urgency {
        Urgency {
            deadline_ms,
            behind,
        }
    }

    #[test]
    fn the_rate_holds_and_all_get_their_turn() {
        let start = Instant::now();
        let mut pacing = Pacing::new(Some(8_000_000));
        let mut got = [0usize; 20];
        let mut now = start;
        let mut wants: VecDeque<SessionId> = (0..20).collect();
        while now < start + Duration::from_secs(2) {
            while let Some(id) = wants.pop_front() {
                while pacing.may_send(id, false, some, now) {
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
            assert!(!pacing.may_send(*id, true, some, now));
        }
        assert!(!pacing.may_send(1, false, some, now));
        let mut order = Vec::new();
        for _ in 0..20 {
            now = pacing.next(now).unwrap();
            let id = pacing.release(now).unwrap();
            order.push(id);
            assert!(pacing.may_send(id, id >= 100, some, now));
            pacing.sent(1000);
            assert!(!pacing.may_send(id, id >= 100, some, now), "one each");
        }
        assert_eq!(order[0], 1, "{order:?}");
        let new = order.iter().filter(|id| **id == 1).count();
        assert_eq!(new, 15, "three of four turns: {order:?}");
        assert_eq!(order[3], 100, "{order:?}");
    }

    /// The earliest deadline goes first, then who is least behind, and none starves.
    #[test]
    fn turns_follow_deadlines_and_none_starves() {
        let mut now = Instant::now();
        let mut pacing = Pacing::new(Some(8_000_000));
        pacing.sent(BURST + 1000);
        let waiting = [
            (1, urgent(u64::MAX, 9)),
            (2, urgent(u64::MAX, 3)),
            (3, urgent(900, 5)),
            (4, urgent(500, 200)),
        ];
        for (id, urgency) in waiting {
            assert!(!pacing.may_send(id, false, || urgency, now));
        }
        let mut order = Vec::new();
        for turn in 0..12 {
            now = pacing.next(now).unwrap();
            let id = pacing.release(now).unwrap();
            order.push(id);
            assert!(pacing.may_send(id, false, some, now));
            pacing.sent(1000);
            // One whose updates keep expiring soon comes back each time.
            let again = |id| {
                if id == 4 {
                    urgent(500 + turn, 200)
                } else {
                    urgent(u64::MAX, 9)
                }
            };
            assert!(!pacing.may_send(id, false, || again(id), now));
        }
        assert_eq!(order[..4], [4, 1, 4, 4], "the second turn is the longest's");
        assert!((1..=4).all(|id| order.contains(&id)), "{order:?}");
        // The one that is gone gets no turn.
        pacing.forget(4);
        now = pacing.next(now).unwrap();
        assert_ne!(pacing.release(now), Some(4));
    }
}
