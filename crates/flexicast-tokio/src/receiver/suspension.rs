//! Channels whose updates the source failed to authenticate.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after which a suspended channel is tried again, at first and at most: somebody may have
/// repaired the source.
const FIRST: Duration = Duration::from_secs(300);
const LONGEST: Duration = Duration::from_secs(3600);

/// Channels that are left out of connections for a time.
#[derive(Debug, Default)]
pub(super) struct Suspensions {
    failures: BTreeMap<String, Failures>,
    until: BTreeMap<String, Instant>,
}

/// Failures of a channel, one after another.
#[derive(Debug, Clone, Copy)]
struct Failures {
    /// The update that could not be authenticated.
    seq: u64,
    times: u32,
}

impl Suspensions {
    /// Handles a failure at this update, the next one of its channel. Returns for how long to leave
    /// the channel out; `None` if another connection should show whether it was one: the update may
    /// have overtaken the frame that says its key.
    pub(super) fn failed(&mut self, channel: &str, seq: u64, now: Instant) -> Option<Duration> {
        let before = self
            .failures
            .get(channel)
            .filter(|before| before.seq == seq);
        let times = before.map_or(1, |before| before.times.saturating_add(1));
        self.failures
            .insert(channel.to_owned(), Failures { seq, times });
        let doublings = times.checked_sub(2)?;
        let pause = FIRST.saturating_mul(1 << doublings.min(8)).min(LONGEST);
        self.until.insert(channel.to_owned(), now + pause);
        Some(pause)
    }

    /// Returns when the next channel is tried again.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.until.values().min().copied()
    }

    /// Takes the channels that are to be tried again. Each attempt ends the connection of all
    /// channels, so those that would follow soon come along.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<String> {
        if self.next_timeout().is_none_or(|at| at > now) {
            return Vec::new();
        }
        let due = self.until.extract_if(.., |_, at| *at <= now + FIRST / 2);
        due.map(|(channel, _)| channel).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_left_out_after_a_second_failure_at_the_same_update() {
        let now = Instant::now();
        let mut channels = Suspensions::default();
        assert_eq!(channels.failed("lore", 7, now), None);
        assert_eq!(channels.failed("lore", 8, now), None, "7 came after all");
        assert_eq!(channels.failed("news", 8, now), None);
        assert_eq!(channels.next_timeout(), None);
        assert_eq!(channels.failed("lore", 8, now), Some(FIRST));
        assert_eq!(channels.next_timeout(), Some(now + FIRST));
        assert!(channels.take_due(now + FIRST / 2).is_empty());
        let later = now + FIRST / 4;
        assert_eq!(channels.failed("news", 8, later), Some(FIRST));
        assert_eq!(channels.take_due(now + FIRST), ["lore", "news"], "together");
        assert_eq!(channels.next_timeout(), None);
        for pause in [2 * FIRST, 4 * FIRST, 8 * FIRST, LONGEST, LONGEST] {
            assert_eq!(channels.failed("lore", 8, now), Some(pause));
        }
        assert_eq!(channels.failed("lore", 9, now), None, "8 came");
    }
}
