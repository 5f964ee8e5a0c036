//! Pending updates of a channel, and their bounds.

use std::time::{Duration, Instant};

use crate::deliver::{Item, ItemKind};
use crate::journal::{Limits, OVERHEAD};

/// Largest number of updates in a batch: each batch waits for the disk and renders the entries that
/// stay in the feeds, so few large ones catch up sooner.
pub(super) const BATCH_UPDATES: usize = 8192;

/// Size from which on a batch takes no more updates, in bytes.
const BATCH_BYTES: u64 = 8 << 20;

/// Time for which a batch waits to become large while many updates are missing: its updates are old
/// already.
const GATHER: Duration = Duration::from_millis(500);

/// Number of missing updates above which a batch waits.
pub(super) const FAR_BEHIND: u64 = 500;

/// Returns the bounds of all pending updates, given those of the journals.
pub(super) fn bounds(journal: Limits) -> Limits {
    Limits {
        updates: journal.updates.min(BATCH_UPDATES),
        bytes: journal.bytes.clamp(1, BATCH_BYTES),
    }
}

/// Items of one channel, in order.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    /// Size in the journal.
    bytes: u64,
    /// Whether the batch starts an incarnation, and so is written before more is taken.
    pub(super) is_urgent: bool,
    /// Arrival of the first one.
    since: Option<Instant>,
}

impl Batch {
    pub(super) fn push(&mut self, item: Item) {
        let encoded = match &item.kind {
            ItemKind::Update(received) => received.encoded.len(),
            ItemKind::Begins { .. } => {
                self.is_urgent = true;
                0
            }
            ItemKind::Gap { .. } | ItemKind::Lineage(_) => 0,
        };
        if self.items.is_empty() {
            self.since = Some(Instant::now());
        }
        self.items.push(item);
        self.bytes += (OVERHEAD + encoded) as u64;
    }
}

impl Batch {
    /// Returns the time until which the batch waits for more, given the number of missing updates.
    pub(super) fn gathers(&self, to_come: u64) -> Option<Instant> {
        let worth = to_come > FAR_BEHIND && !self.is_urgent;
        self.since.filter(|_| worth).map(|since| since + GATHER)
    }
}

/// Whether there is room for more.
pub(super) fn takes_more<'a>(batches: impl Iterator<Item = &'a Batch>, most: Limits) -> bool {
    let (mut updates, mut bytes) = (0, 0);
    for batch in batches {
        if batch.is_urgent {
            return false;
        }
        updates += batch.items.len();
        bytes += batch.bytes;
    }
    updates < most.updates && bytes < most.bytes
}
