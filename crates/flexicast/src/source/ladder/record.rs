//! Records of the rungs on this connection.

use std::time::Instant;

use crate::Rung;

/// History of one rung on this connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RungRecord {
    /// Consecutive failures.
    pub(super) failures: u32,
    pub(super) backoff_until: Option<Instant>,
    /// Whether the receiver was a member by this rung before.
    pub(super) returned: bool,
    /// Whether the receiver reported a failed attempt.
    pub(super) tried: bool,
}

impl RungRecord {
    pub(super) fn fail(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }
}

/// Histories of the three rungs of the flow.
#[derive(Debug, Default)]
pub(super) struct RungRecords(pub(super) [RungRecord; 3]);

impl RungRecords {
    pub(super) fn get(&self, rung: Rung) -> Option<&RungRecord> {
        self.0.get(rung as usize - 1)
    }

    pub(super) fn get_mut(&mut self, rung: Rung) -> Option<&mut RungRecord> {
        self.0.get_mut(rung as usize - 1)
    }
}
