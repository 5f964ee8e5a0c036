//! The TCP-friendly rate of a member: from its loss events over a long time, and from a CUBIC
//! controller of its own while its losses are far beyond what they were.

use std::time::{Duration, Instant};

use super::controller::Controller;
use super::loss_intervals::{LossIntervals, deviation};
use super::loss_window::Tally;

/// Round trips in which losses of one member count as one sudden change.
const ROUNDS: usize = 8;

/// Returns the packets a second that CUBIC sends on average where it meets loss events with
/// probability `p` (RFC 9438 section 5.2 for its own region; section 4.3 and RFC 5348 section 3.1
/// for the Reno-friendly one).
pub(super) fn response(p: f64, rtt: f64) -> f64 {
    if p <= 0.0 {
        return f64::INFINITY;
    }
    let reno = (1.5 / p).sqrt();
    let cubic = 1.054 * (rtt / p).powf(0.75);
    reno.max(cubic) / rtt
}

/// Loss among all members: what is typical, and from where on a member is not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Population {
    events: f64,
    packets: f64,
    members: usize,
    /// Packets per loss event before the first one, as the rate at that time suggests.
    first: f64,
}

/// Loss events after which the rate at the first one is forgotten.
const FIRST_EVENTS: f64 = 16.0;

impl Population {
    /// Adds the sample of a member.
    pub(super) fn add(&mut self, (events, packets): (f64, f64)) {
        self.events += events;
        self.packets += packets;
        self.members += 1;
    }

    /// Completes the sample: with its first loss events the flow goes on at about half its rate,
    /// which is in packets per round trip and went up by slow start (RFC 5348 section 6.3.1).
    pub(super) fn complete(&mut self, before: &Population, window: f64) {
        if self.events > 0.0 {
            self.first = match before.events > 0.0 {
                true => before.first,
                false => (window / 2.0).powi(2) / 1.5,
            };
        }
    }

    /// The typical probability of a loss event.
    pub(super) fn loss(&self) -> f64 {
        if self.events == 0.0 {
            return 0.0;
        }
        let weight = (1.0 - self.events / FIRST_EVENTS).max(0.0);
        self.events / (self.packets + weight * self.first).max(1.0)
    }

    /// Standard deviations by which the extreme one of so many equal members differs.
    fn significance(&self) -> f64 {
        (2.0 * (self.members.max(1) as f64).ln()).sqrt().max(2.0)
    }

    /// Returns the probability of a loss event that a member is taken to have: the typical one
    /// unless its own sample differs significantly, and its own where that is beyond doubt. Without
    /// this the flow would follow whichever of many equal members had bad luck.
    pub(super) fn estimate(&self, (events, packets): (f64, f64)) -> f64 {
        let typical = self.loss();
        let z = self.significance();
        let off = deviation(events, typical * packets).abs();
        let weight = ((off - z) / z).clamp(0.0, 1.0);
        if weight == 0.0 || packets < 1.0 {
            return typical;
        }
        let own = events / packets;
        (typical.sqrt() * (1.0 - weight) + own.sqrt() * weight).powi(2)
    }
}

/// Reports and losses of the last round trips.
#[derive(Debug, Clone, Default)]
struct RecentLosses {
    /// Newest first: packets, and loss events among them.
    rounds: [(Tally, u8); ROUNDS],
    began: Option<Instant>,
}

impl RecentLosses {
    fn add(&mut self, reported: u64, lost: u64, events: u8, round: Duration, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let elapsed = now.saturating_duration_since(began);
        if elapsed >= round {
            let passed = elapsed.as_nanos() / round.as_nanos().max(1);
            let passed = passed.min(ROUNDS as u128) as usize;
            self.rounds.rotate_right(passed.min(ROUNDS - 1));
            self.rounds[..passed].fill_with(Default::default);
            self.began = Some(now);
        }
        self.rounds[0].0.add(reported, lost);
        self.rounds[0].1 = self.rounds[0].1.saturating_add(events);
    }

    /// Takes losses back that were none, the newest first.
    fn take_back(&mut self, lost: u64) {
        self.rounds
            .iter_mut()
            .fold(lost, |lost, (tally, _)| tally.take_back(lost));
    }

    /// Returns the loss events of the last rounds, if more was lost in them than any chance
    /// explains where `p` is usual.
    fn excess(&self, p: f64) -> Option<usize> {
        let (mut total, mut events) = (Tally::default(), 0);
        for (tally, more) in &self.rounds {
            total.add(tally.reported.into(), tally.lost.into());
            events += usize::from(*more);
            let expected = p * f64::from(total.reported);
            let spread = (expected * (1.0 - p).max(0.0)).sqrt();
            if f64::from(total.lost) > expected + 5.0 * spread + 5.0 {
                return Some(events);
            }
        }
        None
    }
}

/// A member's own congestion control.
#[derive(Debug, Clone)]
pub(super) struct Congestion {
    pub(super) controller: Controller,
    pub(super) began: Instant,
    /// The first packet sent after the reduction that it began with.
    pub(super) answered: u64,
}

/// Loss history of a member.
#[derive(Debug, Clone)]
pub(super) struct LossHistory {
    pub(super) intervals: LossIntervals,
    recent: RecentLosses,
    /// Since a sudden change, until it does not limit the flow any more.
    pub(super) congestion: Option<Box<Congestion>>,
}

impl LossHistory {
    /// No losses before the packet with this ordinal.
    pub(super) fn new(start: u64) -> Self {
        LossHistory {
            intervals: LossIntervals::new(start),
            recent: RecentLosses::default(),
            congestion: None,
        }
    }

    /// Takes a report; `events` are the loss events that it begins, `usual` is the probability of
    /// one so far. Returns whether the member meets a sudden change, of which all loss events are
    /// one then.
    pub(super) fn on_report(
        &mut self,
        report: (u64, u64, u8),
        usual: f64,
        round: Duration,
        now: Instant,
        is_shared: impl Fn(u64) -> bool,
    ) -> bool {
        let (reported, lost, events) = report;
        self.recent.add(reported, lost, events, round, now);
        if lost == 0 {
            return false;
        }
        let Some(events) = self.recent.excess(usual) else {
            return false;
        };
        self.intervals.join(events, is_shared);
        self.recent = RecentLosses::default();
        true
    }

    /// Takes a loss of the member's own back that was none.
    pub(super) fn take_back(&mut self, ordinal: u64, at: Instant) {
        self.recent.take_back(1);
        self.intervals.take_back(ordinal, at);
    }

    /// Takes the losses since `at` for what most members share. Returns whether that ends the
    /// member's own congestion control.
    pub(super) fn share_losses(&mut self, at: Instant) -> bool {
        self.recent = RecentLosses::default();
        self.intervals.share_losses(at);
        let own = self.congestion.take_if(|own| own.began >= at);
        own.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population(members: usize, sample: (f64, f64)) -> Population {
        let mut population = Population::default();
        (0..members).for_each(|_| population.add(sample));
        population
    }

    /// RFC 9438 section 5: CUBIC's own region needs a long round trip and few losses.
    #[test]
    fn the_response_is_the_faster_of_reno_and_cubic() {
        assert_eq!(response(0.0, 0.1), f64::INFINITY);
        let reno = response(0.01, 0.01) * 0.01;
        assert!((reno - 12.25).abs() < 0.01, "{reno}");
        let cubic = response(1e-6, 0.1) * 0.1;
        assert!(
            (cubic / (1.054 * 1e5f64.powf(0.75)) - 1.0).abs() < 0.001,
            "{cubic}"
        );
    }

    #[test]
    fn bad_luck_is_not_significant_and_a_bad_path_is() {
        let all = population(1000, (100.0, 10_000.0));
        assert_eq!(all.estimate((130.0, 10_000.0)), 0.01, "3 deviations of 3.7");
        let doubtful = all.estimate((150.0, 10_000.0));
        assert!((0.0101..0.014).contains(&doubtful), "{doubtful}");
        assert_eq!(all.estimate((300.0, 10_000.0)), 0.03);
        assert_eq!(all.estimate((0.0, 10_000.0)), 0.0);
        assert_eq!(all.estimate((0.0, 0.0)), 0.01, "nothing known");
        let few = population(2, (100.0, 10_000.0));
        assert_eq!(few.estimate((115.0, 10_000.0)), 0.01, "1.4 deviations");
        assert!(
            few.estimate((130.0, 10_000.0)) > 0.0101,
            "few have no bad luck"
        );
    }

    #[test]
    fn the_first_losses_leave_half_of_the_rate() {
        let mut first = population(2, (0.5, 1_000.0));
        first.complete(&Population::default(), 400.0);
        let window = response(first.loss(), 0.01) * 0.01;
        assert!((190.0..280.0).contains(&window), "{window}");
        let mut later = population(2, (50.0, 1_000.0));
        later.complete(&first, 400.0);
        assert_eq!(later.loss(), 0.05);
    }

    #[test]
    fn far_too_many_losses_are_a_sudden_change() {
        let (start, round) = (Instant::now(), Duration::from_millis(100));
        let at = |i: u32| start + round * i;
        let mut history = LossHistory::new(0);
        for i in 0..50 {
            let usual = history.on_report((100, 1, 1), 0.01, round, at(i), |_| false);
            assert!(!usual);
        }
        assert!(history.on_report((100, 15, 1), 0.01, round, at(50), |_| false));
        // Three per round are within chance for one round, not for eight.
        let mut history = LossHistory::new(0);
        let reports = (0..8).map(|i| history.on_report((100, 3, 1), 0.0, round, at(i), |_| false));
        let reports: Vec<bool> = reports.collect();
        assert_eq!(reports[..3], [false, true, false], "{reports:?}");
    }

    #[test]
    fn a_sudden_change_is_one_loss_event() {
        let (start, round) = (Instant::now(), Duration::from_millis(100));
        let mut history = LossHistory::new(0);
        for (i, expected) in [(1, 1.0), (2, 2.0), (3, 1.0), (4, 2.0)] {
            let (pn, at) = (i * 100, start + round * i as u32);
            let begins = history.intervals.on_lost(pn, pn, at, round, |_| false);
            let sudden = history.on_report((100, 2, begins.into()), 0.0, round, at, |_| false);
            assert_eq!(sudden, i == 3);
            assert_eq!(history.intervals.sample(400).0, expected);
        }
    }

    #[test]
    fn old_rounds_do_not_count() {
        let (start, round) = (Instant::now(), Duration::from_millis(100));
        let mut history = LossHistory::new(0);
        for i in 0..20 {
            let at = start + round * 8 * i;
            assert!(!history.on_report((100, 5, 1), 0.0, round, at, |_| false));
        }
    }
}
