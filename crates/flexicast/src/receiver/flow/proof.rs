//! The proof that a better rung delivers (protocol.md section 8.1).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::PathId;

/// Interval at which a READY for a better rung is repeated, should the source not have moved this
/// receiver to it.
const READY_AGAIN: Duration = Duration::from_secs(5);

/// Which packets prove a rung, and the rungs that were reported as proved.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// Packets from this number on prove that the flow arrives.
    from: u64,
    /// Time of the last READY by path.
    reported: BTreeMap<PathId, Instant>,
}

impl Proof {
    /// Counts only packets from this number on.
    pub(super) fn restart(&mut self, from: u64) {
        self.from = from;
        self.reported.clear();
    }

    /// Forgets all reports, so that they are repeated.
    pub(super) fn forget_reports(&mut self) {
        self.reported.clear();
    }

    /// Whether this path was reported.
    pub(super) fn is_reported(&self, path: PathId) -> bool {
        self.reported.contains_key(&path)
    }

    /// Forgets the report of one path. Returns whether there was one.
    pub(super) fn forget_report(&mut self, path: PathId) -> bool {
        self.reported.remove(&path).is_some()
    }

    /// Whether a packet with this number proves anything.
    pub(super) fn counts(&self, pn: u64) -> bool {
        pn >= self.from
    }

    /// Notes a packet. Returns whether a READY is due.
    pub(super) fn on_packet(&mut self, path: PathId, pn: u64, now: Instant) -> bool {
        let last = self.reported.get(&path);
        let due = pn >= self.from && last.is_none_or(|at| *at + READY_AGAIN <= now);
        if due {
            self.reported.insert(path, now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_reported_once_per_interval_and_only_for_new_packets() {
        let (now, path) = (Instant::now(), PathId(5));
        let mut proof = Proof::default();
        proof.restart(10);
        assert!(!proof.on_packet(path, 9, now), "sent before the fall-back");
        assert!(proof.on_packet(path, 10, now));
        assert!(!proof.on_packet(path, 11, now));
        assert!(proof.on_packet(PathId(6), 11, now), "another path");
        assert!(proof.on_packet(path, 12, now + READY_AGAIN));
        assert!(proof.forget_report(path) && !proof.forget_report(path));
        assert!(proof.on_packet(path, 13, now + READY_AGAIN));
    }
}
