//! Results of a run.

use std::time::Duration;

/// Results of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Updates that were published.
    pub updates: u64,
    /// Receivers that got each of them in time.
    pub complete: usize,
    /// Receivers.
    pub receivers: usize,
    /// Updates that expired before they were whole, counted for each receiver.
    pub expired: u64,
    /// Lateness of all updates at all receivers.
    pub lateness: Lateness,
    /// Bytes of UDP payload that the source sent.
    pub source_bytes: u64,
    /// Those of them that went by unicast.
    pub unicast_bytes: u64,
    /// Bytes of UDP payload that all receivers sent.
    pub receiver_bytes: u64,
    /// Repair symbols.
    pub symbols: u64,
    /// Ranges of updates that were repaired by unicast.
    pub repairs: u64,
    /// Packets that were rebuilt, counted for each receiver.
    pub rebuilt: u64,
    /// Members that fell back to unicast, and mostly came back.
    pub fall_backs: u64,
}

impl Report {
    /// Returns the share of receivers that got everything in time.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.complete as f64 / self.receivers.max(1) as f64
    }
}

/// Lateness of updates as in section 5 of the paper: time from the publication until an update is
/// whole, less the least that the same receiver saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lateness {
    /// In microseconds, sorted.
    micros: Vec<u64>,
}

impl Lateness {
    /// Collects the delays of each receiver.
    pub(super) fn of(receivers: impl Iterator<Item = Vec<Duration>>) -> Lateness {
        let mut micros = Vec::new();
        for delays in receivers {
            let least = delays.iter().min().copied().unwrap_or_default();
            micros.extend(
                delays
                    .iter()
                    .map(|delay| (*delay - least).as_micros() as u64),
            );
        }
        micros.sort_unstable();
        Lateness { micros }
    }

    /// Number of updates that arrived, at all receivers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.micros.len()
    }

    /// Returns the lateness in ms that this share of them does not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (self.micros.len() as f64 * share).ceil() as usize;
        let at = self.micros.get(rank.saturating_sub(1));
        at.map_or(0.0, |micros| *micros as f64 / 1e3)
    }

    /// Returns the share whose lateness does not exceed this, in ms.
    #[must_use]
    pub fn share_within(&self, ms: f64) -> f64 {
        let within = self.micros.partition_point(|at| *at as f64 <= ms * 1e3);
        within as f64 / self.micros.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_leaves_out_each_receivers_own_way() {
        let ms = Duration::from_millis;
        let near = vec![ms(3), ms(5), ms(3)];
        let far = vec![ms(30), ms(30), ms(130)];
        let lateness = Lateness::of([near, far].into_iter());
        assert_eq!(lateness.count(), 6);
        assert_eq!(lateness.quantile(0.5), 0.0);
        assert_eq!(lateness.quantile(0.8), 2.0);
        assert_eq!(lateness.quantile(1.0), 100.0);
        assert_eq!(lateness.share_within(1.0), 4.0 / 6.0);
        assert_eq!(Lateness::default().quantile(0.5), 0.0);
    }
}
