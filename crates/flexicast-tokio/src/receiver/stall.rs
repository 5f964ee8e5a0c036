//! Noticing that nothing comes although the source has more: whatever the reason, another connection begins at the cursor again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// With updates missing, something has to arrive within this time. A source whose store is away for a while is not worth a reconnection.
const WITHIN: Duration = Duration::from_secs(60);

/// How far each channel was handed out, and when something last happened.
pub(super) struct Stall {
    delivered: BTreeMap<String, u64>,
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
            Some(delivered) => *delivered = seq,
            None => drop(self.delivered.insert(channel.to_owned(), seq)),
        }
    }

    /// Something arrived, or there is a reason why nothing does.
    pub(super) fn reset(&mut self, now: Instant) {
        self.last = now;
    }

    /// Whether a channel that the source has up to `head` is stuck.
    pub(super) fn is_stuck(&self, channel: &str, head: u64, now: Instant) -> bool {
        let behind = self.delivered.get(channel).is_some_and(|seq| *seq < head);
        behind && now >= self.last + WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_behind_and_hears_nothing_is_stuck() {
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
    }
}
