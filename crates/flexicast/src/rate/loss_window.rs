//! Share of packets that a member lost in the last seconds.

use std::time::Duration;

/// Slots of one second each.
const SLOTS: usize = 5;
/// Packets below which a share of losses says nothing.
pub(super) const MIN_PACKETS: u64 = 50;
/// Packets that count as arrived where a share of losses is estimated from few.
const UNSEEN: u64 = 16;
/// Standard deviations between the measured share and its lower bound: of a thousand members with
/// a tolerable loss, none is beyond it for a slow flow's few packets.
const CONFIDENCE: f64 = 3.0;

/// Packets about which a member reported, and how many of them it lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) reported: u32,
    pub(super) lost: u32,
}

impl Tally {
    pub(super) fn add(&mut self, reported: u64, lost: u64) {
        let clamp = |value: u64| value.min(u64::from(u32::MAX)) as u32;
        self.reported = self.reported.saturating_add(clamp(reported));
        self.lost = self.lost.saturating_add(clamp(lost)).min(self.reported);
    }

    /// Takes losses back that were none; returns how many of `lost` were not counted here.
    pub(super) fn take_back(&mut self, lost: u64) -> u64 {
        let here = lost.min(self.lost.into());
        self.lost -= here as u32;
        lost - here
    }

    /// The share of the packets that was lost.
    pub(super) fn share(&self) -> f64 {
        f64::from(self.lost) / f64::from(self.reported.max(1))
    }
}

/// The last [`SLOTS`] seconds of a member.
#[derive(Debug, Clone, Default)]
pub(super) struct LossWindow {
    slots: [Tally; SLOTS],
    /// The second of the newest slot.
    newest: u32,
}

impl LossWindow {
    /// Counts packets at `now`, on any clock.
    pub(super) fn add(&mut self, reported: u64, lost: u64, now: Duration) {
        self.expire(now);
        self.slots[self.newest as usize % SLOTS].add(reported, lost);
    }

    /// Takes losses back that were none, the newest first.
    pub(super) fn take_back(&mut self, lost: u64) {
        (0..SLOTS).fold(lost, |lost, age| {
            let slot = (self.newest as usize + SLOTS - age) % SLOTS;
            self.slots[slot].take_back(lost)
        });
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Duration) {
        let second = now.as_secs().min(u64::from(u32::MAX)) as u32;
        let passed = second.saturating_sub(self.newest);
        for step in 1..=passed.min(SLOTS as u32) {
            self.slots[(self.newest + step) as usize % SLOTS] = Tally::default();
        }
        if passed as usize > SLOTS {
            self.slots = Default::default();
        }
        self.newest = self.newest.max(second);
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        for slot in &self.slots {
            total.add(slot.reported.into(), slot.lost.into());
        }
        total
    }

    /// The share of packets that was lost.
    pub(super) fn share(&self) -> f64 {
        self.total().share()
    }

    /// Returns the share of packets that is lost, as if some more had arrived.
    pub(super) fn estimate(&self) -> f64 {
        let mut total = self.total();
        total.add(UNSEEN, 0);
        total.share()
    }

    /// Whether more than this share is lost: surely in the whole window, and still in its last two
    /// seconds. The end of slow start, when much is lost at once, is neither.
    pub(super) fn is_above(&self, limit: f64) -> bool {
        let mut recent = self.slots[self.newest as usize % SLOTS];
        let previous = self.slots[(self.newest as usize + SLOTS - 1) % SLOTS];
        recent.add(previous.reported.into(), previous.lost.into());
        recent.share() > limit && self.lower_bound() > limit
    }

    /// The least share that the sample allows for (Wilson's score interval); 0 for too few packets.
    fn lower_bound(&self) -> f64 {
        let total = self.total();
        if u64::from(total.reported) < MIN_PACKETS {
            return 0.0;
        }
        let (n, p) = (f64::from(total.reported), total.share());
        let z2 = CONFIDENCE * CONFIDENCE;
        let middle = p + z2 / (2.0 * n);
        let spread = CONFIDENCE * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
        ((middle - spread) / (1.0 + z2 / n)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(reported: u64, lost: u64) -> LossWindow {
        let mut window = LossWindow::default();
        window.add(reported, lost, Duration::from_secs(100));
        window
    }

    #[test]
    fn few_packets_prove_nothing_and_many_do() {
        assert_eq!(window(49, 49).lower_bound(), 0.0);
        assert!(window(50, 10).lower_bound() < 0.1);
        assert!(window(50, 20).lower_bound() > 0.1);
        assert!((0.1..0.12).contains(&window(100_000, 12_000).lower_bound()));
        assert!(window(100_000, 9_900).lower_bound() < 0.1);
    }

    #[test]
    fn losses_of_a_moment_are_not_above_the_limit() {
        let mut window = window(100, 50);
        assert!(window.is_above(0.1));
        window.add(20, 0, Duration::from_secs(101));
        assert!(window.is_above(0.1));
        window.add(20, 0, Duration::from_secs(102));
        assert!(window.lower_bound() > 0.1 && !window.is_above(0.1));
    }

    #[test]
    fn seconds_pass_out_of_the_window() {
        let mut window = window(100, 50);
        window.add(100, 0, Duration::from_secs(104));
        assert_eq!(window.share(), 0.25);
        window.expire(Duration::from_secs(105));
        assert_eq!(window.share(), 0.0);
        assert!(!window.is_above(0.1));
        window.add(10, 10, Duration::from_secs(1000));
        assert_eq!(window.share(), 1.0);
    }
}
