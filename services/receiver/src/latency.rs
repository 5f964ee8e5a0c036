//! Latency over the last live updates, for people, and over all of them, for metrics.

use std::collections::VecDeque;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Number of updates that the percentiles cover.
const WINDOW: usize = 1000;

/// Bounds of the histogram's buckets, in seconds: from a local flow to a repair.
const BUCKETS: [f64; 12] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Label of a channel's metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ChannelLabels {
    /// Channel.
    pub channel: String,
}

/// Latencies of all live updates since the start, by channel, in seconds.
#[derive(Clone, Debug)]
pub struct LatencyHistograms(Family<ChannelLabels, Histogram, fn() -> Histogram>);

impl Default for LatencyHistograms {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(BUCKETS)))
    }
}

impl LatencyHistograms {
    /// Adds a channel, even without updates.
    pub fn begin(&self, channel: &str) {
        let channel = channel.to_owned();
        drop(self.0.get_or_create(&ChannelLabels { channel }));
    }

    /// Counts an update.
    pub fn push(&self, channel: &str, ms: f64) {
        let channel = channel.to_owned();
        // Negative if the clock is behind the source's; the sum must not decrease.
        let seconds = (ms / 1e3).max(0.0);
        let histogram = self.0.get_or_create(&ChannelLabels { channel });
        histogram.observe(seconds);
    }

    /// Returns the metric for a registry.
    #[must_use]
    pub fn family(&self) -> Family<ChannelLabels, Histogram, fn() -> Histogram> {
        self.0.clone()
    }
}

/// Latencies of the last live updates, in ms.
#[derive(Debug, Default)]
pub struct Latencies {
    window: VecDeque<f64>,
}

impl Latencies {
    /// Adds a latency.
    pub fn push(&mut self, ms: f64) {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(ms);
    }

    /// Returns the last one.
    #[must_use]
    pub fn last(&self) -> Option<f64> {
        self.window.back().copied()
    }

    /// Returns, for each `percent`, the smallest latency that so many updates did not exceed
    /// (nearest rank).
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
