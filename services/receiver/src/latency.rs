//! Latency over the last live updates.

use std::collections::VecDeque;

/// How many updates the figures are of.
const WINDOW: usize = 1000;

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
