//! Latency over the last live updates, for people, and over all of them, for metrics.

use std::collections::VecDeque;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Number of updates that the percentiles cover.
const WINDOW: usize = 1000;

/// The bounds of what is counted together, in seconds: from a flow on the spot to a repair.
const BUCKETS: [f64; 12] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The label of what belongs to a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ChannelLabels {
    /// The channel.
    pub channel: String,
}

/// The latencies of all live updates since the start, by channel, in seconds.
#[derive(Clone, Debug)]
pub struct LatencyHistograms(Family<ChannelLabels, Histogram, fn() -> Histogram>);

impl Default for LatencyHistograms {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(BUCKETS)))
    }
}

impl LatencyHistograms {
    /// Has a channel in it, be it without any update.
    pub fn begin(&self, channel: &str) {
        let channel = channel.to_owned();
        drop(self.0.get_or_create(&ChannelLabels { channel }));
    }

    /// Takes an update in.
    pub fn push(&self, channel: &str, ms: f64) {
        let channel = channel.to_owned();
        // A clock that is behind the source's makes it negative, and the sum must not go down.
        let seconds = (ms / 1e3).max(0.0);
        let histogram = self.0.get_or_create(&ChannelLabels { channel });
        histogram.observe(seconds);
    }

    /// For a registry.
    #[must_use]
    pub fn family(&self) -> Family<ChannelLabels, Histogram, fn() -> Histogram> {
        self.0.clone()
    }
}

/// The latencies of the last live updates, in ms.
#[derive(Debug, Default)]
pub struct Latencies {
    window: VecDeque<f64>,
}

impl Latencies {
    /// Takes one in.
    pub fn push(&mut self, ms: f64) {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(ms);
    }

    /// The last one.
    #[must_use]
    pub fn last(&self) -> Option<f64> {
        self.window.back().copied()
    }

    /// The smallest latency that `percent` of the updates did not exceed (nearest rank), for each.
    #[must_use]
    pub fn percentiles<const N: usize>(&self, percents: [usize; N]) -> [Option<f64>; N] {
        let mut sorted: Vec<f64> = self.window.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        percents.map(|percent| {
            let rank = (sorted.len() * percent).div_ceil(100);
            sorted.get(rank.saturating_sub(1)).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank_over_the_last_thousand() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentiles([50, 99]), [None, None]);
        assert_eq!(latencies.last(), None);
        latencies.push(7.0);
        assert_eq!(latencies.percentiles([50, 99]), [Some(7.0), Some(7.0)]);
        for ms in (1..=1000).rev() {
            latencies.push(f64::from(ms));
        }
        assert_eq!(latencies.percentiles([50, 99]), [Some(500.0), Some(990.0)]);
        assert_eq!(latencies.last(), Some(1.0));
    }
}
