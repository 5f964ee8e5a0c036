//! Counters of a run with repair symbols.

use std::time::Duration;

/// Counters of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FecReport {
    /// Updates published.
    pub updates: u64,
    /// Packets of the flow.
    pub packets: u64,
    /// Their bytes of UDP payload.
    pub bytes: u64,
    /// Repair symbols among the packets.
    pub symbols: u64,
    /// Packets of shared repairs among the packets.
    pub shared_repairs: u64,
    /// Packets with data that were lost, counted for each member.
    pub lost: u64,
    /// Those of them that were rebuilt, and not repaired in any other way.
    pub rebuilt: u64,
    /// Those that a packet of shared repairs made good.
    pub shared: u64,
    /// Those that were repaired by unicast.
    pub repaired: u64,
    /// Those that were not repaired by the end: another packet brought the same.
    pub open: u64,
    /// Repairs by unicast: ranges of updates.
    pub repairs: u64,
    /// Their bytes, with those of headers.
    pub repair_bytes: u64,
    /// Repairs by unicast of what the member had already.
    pub needless: u64,
    /// Members that left the flow.
    pub fall_backs: u64,
    /// Delays of updates that lost packets, beyond the time on their way, counted for each member.
    pub delays: Delays,
    /// Virtual time of the run.
    pub time: Duration,
}

impl FecReport {
    /// Returns the share of lost packets that no unicast repair was sent for.
    #[must_use]
    pub fn without_repair(&self) -> f64 {
        1.0 - self.repaired as f64 / self.lost.max(1) as f64
    }
}

/// Delays, in whole milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delays {
    /// Number of delays of each length.
    counts: Vec<u64>,
}

impl Delays {
    pub(super) fn add(&mut self, ms: u64) {
        let at = ms as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }

    /// Number of delays.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the delay that this share of all does not exceed, in ms.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut sum = 0;
        let reaches = |count: &u64| {
            sum += count;
            sum >= wanted
        };
        self.counts.iter().position(reaches).unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_all_delays() {
        let mut delays = Delays::default();
        assert_eq!(delays.quantile(0.99), 0);
        (1..=100).for_each(|ms| delays.add(ms));
        assert_eq!((delays.count(), delays.quantile(0.5)), (100, 50));
        assert_eq!((delays.quantile(0.99), delays.quantile(1.0)), (99, 100));
    }
}
