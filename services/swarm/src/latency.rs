//! Latencies of all updates at all receivers, in bins of a millisecond: the resolution of the time
//! that updates carry.

use serde::Serialize;

/// Longest latency that has a bin of its own, in ms.
const BINS: usize = 60_000;

/// Counts by latency.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// Number of updates by whole milliseconds; the last bin has all longer ones.
    bins: Vec<u64>,
    count: u64,
    max_ms: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            bins: vec![0; BINS + 1],
            count: 0,
            max_ms: 0,
        }
    }
}

/// Percentiles of latencies, in ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Number of updates, each counted at each receiver.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// Latency that 99 % did not exceed.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

impl Latencies {
    /// Adds the latency of one update at one receiver.
    pub fn push(&mut self, ms: u64) {
        let bin = usize::try_from(ms).unwrap_or(BINS).min(BINS);
        self.bins[bin] += 1;
        self.count += 1;
        self.max_ms = self.max_ms.max(ms);
    }

    /// Returns the percentiles by nearest rank, all 0 without updates.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            count: self.count,
            p50: self.rank(50),
            p99: self.rank(99),
            max: self.max_ms,
        }
    }

    fn rank(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (ms, count) in (0..).zip(&self.bins) {
            seen += count;
            if seen >= wanted {
                return if ms == BINS as u64 { self.max_ms } else { ms };
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_values() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentiles(), Percentiles::default());
        for ms in (1..=1000).rev() {
            latencies.push(ms);
        }
        let expected = Percentiles {
            count: 1000,
            p50: 500,
            p99: 990,
            max: 1000,
        };
        assert_eq!(latencies.percentiles(), expected);
        for _ in 0..2000 {
            latencies.push(100_000);
        }
        let late = latencies.percentiles();
        assert_eq!((late.p50, late.max), (100_000, 100_000));
    }
}
