//! Rates per second, from successive statuses.

use std::collections::VecDeque;

use super::model::Status;

/// Time over which rates are computed, in ms.
const OVER_MS: u64 = 10_000;

/// Largest number of statuses kept.
const SAMPLES: usize = 128;

/// Time for which a restart is shown, in ms.
const SHOWN_MS: u64 = 60_000;

/// Statuses of the last seconds.
#[derive(Debug, Default)]
pub(super) struct Rates {
    samples: VecDeque<Sample>,
    /// Run of the program that the counters belong to.
    run: Option<(u32, u64)>,
    /// Last restart.
    restarted: Option<Restart>,
}

#[derive(Debug)]
struct Sample {
    at_ms: u64,
    /// Updates and flow packets of each channel.
    counts: Vec<(u64, u64)>,
}

/// Restart of the receiver during the observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restart {
    /// Time of detection.
    pub(super) at_ms: u64,
    /// Previous process id.
    pub(super) pid: u32,
}

/// Rates per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rate {
    /// Updates.
    pub(super) updates: f64,
    /// Flow packets.
    pub(super) packets: f64,
}

impl Rates {
    /// Adds a status.
    pub(super) fn see(&mut self, status: &Status, now_ms: u64) {
        let run = (status.pid, status.started_ms);
        if let Some((pid, _)) = self.run.filter(|known| *known != run) {
            self.samples.clear();
            self.restarted = Some(Restart { at_ms: now_ms, pid });
        }
        self.run = Some(run);
        if self
            .samples
            .back()
            .is_some_and(|last| last.at_ms == status.updated_ms)
        {
            return;
        }
        let counts = status
            .channels
            .iter()
            .map(|c| (c.updates, c.reception.flow_packets));
        self.samples.push_back(Sample {
            at_ms: status.updated_ms,
            counts: counts.collect(),
        });
        let old = |sample: &Sample| sample.at_ms.saturating_add(OVER_MS) < status.updated_ms;
        // Keeps one older status, from which rates are computed.
        while self.samples.len() > SAMPLES || self.samples.get(1).is_some_and(old) {
            self.samples.pop_front();
        }
    }

    /// Returns the rate of the channel with this index; `None` before there are two statuses.
    pub(super) fn of(&self, channel: usize) -> Option<Rate> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let seconds = last
            .at_ms
            .checked_sub(first.at_ms)
            .filter(|ms| *ms >= 900)? as f64
            / 1000.0;
        let (before, now) = (first.counts.get(channel)?, last.counts.get(channel)?);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Some(Rate {
            updates: rate(now.0, before.0),
            packets: rate(now.1, before.1),
        })
    }

    /// Returns the restart of the receiver, if it is recent.
    pub(super) fn restarted(&self, now_ms: u64) -> Option<Restart> {
        self.restarted
            .filter(|restart| now_ms.saturating_sub(restart.at_ms) < SHOWN_MS)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::screen::tests::status;
    use super::*;

    #[test]
    fn rates_are_of_the_last_seconds_and_of_one_run() {
        let mut rates = Rates::default();
        let mut status = status();
        for second in 0..30 {
            status.updated_ms = 1000 * second;
            status.channels[0].updates = 10 * second;
            status.channels[0].reception.flow_packets = if second < 15 { 0 } else { 100 };
            rates.see(&status, status.updated_ms);
            // A repeated status changes nothing.
            rates.see(&status, status.updated_ms);
        }
        let rate = rates.of(0).unwrap();
        assert!((rate.updates - 10.0).abs() < 0.01, "{rate:?}");
        assert!(rate.packets < 0.01, "{rate:?}");
        assert_eq!(rates.of(7), None);
        assert_eq!(rates.restarted(30_000), None);

        let pid = status.pid;
        status.pid += 1;
        status.channels[0].updates = 0;
        status.updated_ms += 100;
        rates.see(&status, 30_000);
        assert_eq!(rates.of(0), None);
        assert_eq!(
            rates.restarted(31_000),
            Some(Restart { at_ms: 30_000, pid })
        );
        assert_eq!(rates.restarted(200_000), None);
    }

    #[test]
    fn remembered_updates_are_bounded() {
        let mut rates = Rates::default();
        let mut status = status();
        for n in 0..10_000 {
            status.updated_ms = n;
            rates.see(&status, n);
        }
        assert!(rates.samples.len() <= SAMPLES);
    }
}
