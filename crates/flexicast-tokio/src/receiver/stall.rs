//! Noticing that nothing comes although the source has more: whatever the reason, another
//! connection begins at the cursor again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// With updates missing, something has to arrive within this time. A source whose store is away for
/// a while is not worth a reconnection.
const WITHIN: Duration = Duration::from_secs(60);
/// However much else arrives, a channel that is behind has to move within this time. The largest
/// update needs less by the slowest path worth the name.
const MOVES_WITHIN: Duration = Duration::from_secs(300);

/// Progress of each channel with its time, and the time of the last event.
pub(super) struct Stall {
    delivered: BTreeMap<String, (u64, Instant)>,
    last: Instant,
}

impl Stall {
    pub(super) fn new(now: Instant) -> Self {
        Stall {
            delivered: BTreeMap::new(),
            last: now,
        }
    }

    /// The channel was handed out up to `seq`.
    pub(super) fn delivered(&mut self, channel: &str, seq: u64, now: Instant) {
        self.last = now;
        match self.delivered.get_mut(channel) {
            Some(delivered) => *delivered = (seq, now),
            None => drop(self.delivered.insert(channel.to_owned(), (seq, now))),
        }
    }

    /// Something arrived.
    pub(super) fn reset(&mut self, now: Instant) {
        self.last = now;
    }

    /// There is a reason why nothing moves: a new connection, or an application that takes nothing.
    pub(super) fn grant_grace(&mut self, now: Instant) {
        self.last = now;
        self.delivered.values_mut().for_each(|(_, at)| *at = now);
    }

    /// Whether a channel that the source has up to `head` is stuck.
    pub(super) fn is_stuck(&mut self, channel: &str, head: u64, now: Instant) -> bool {
        let Some((seq, moved)) = self.delivered.get_mut(channel) else {
            return false;
        };
        if *seq >= head {
            // The time begins with the first update that is missing.
            *moved = now;
            return false;
        }
        now >= self.last + WITHIN || now >= *moved + MOVES_WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_silent_receiver_that_is_behind_is_stuck() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut stall = Stall::new(start);
        assert!(!stall.is_stuck("lore", 9, at(100)), "not welcomed yet");
        stall.delivered("lore", 5, at(100));
        assert!(!stall.is_stuck("lore", 5, at(1000)), "nothing is missing");
        assert!(!stall.is_stuck("lore", 6, at(159)));
        assert!(stall.is_stuck("lore", 6, at(160)));
        stall.reset(at(120));
        assert!(!stall.is_stuck("lore", 6, at(160)));
        stall.delivered("lore", 6, at(121));
        assert!(!stall.is_stuck("lore", 6, at(300)));
        for s in 301..599 {
            stall.reset(at(s));
            assert!(!stall.is_stuck("lore", 7, at(s)), "something else arrives");
        }
        stall.reset(at(600));
        assert!(
            stall.is_stuck("lore", 7, at(600)),
            "but never what is missing"
        );
        stall.grant_grace(at(600));
        assert!(!stall.is_stuck("lore", 7, at(600)));
    }
}
