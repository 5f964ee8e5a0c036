//! Pending updates of a channel, and their bounds.

use std::time::{Duration, Instant};

use crate::deliver::{Item, ItemKind};
use crate::journal::{Limits, OVERHEAD};

/// The most updates in a batch: each one waits for the disk and renders the entries that stay in
/// the feeds, so few large ones catch up sooner.
pub(super) const BATCH_UPDATES: usize = 8192;

/// A batch takes no more updates once it has so many bytes of them.
const BATCH_BYTES: u64 = 8 << 20;

/// While much is to come still, a batch waits so long to become large: what it brings is old
/// already.
const GATHER: Duration = Duration::from_millis(500);

/// A batch is worth waiting for when more updates than this are to come.
pub(super) const FAR_BEHIND: u64 = 500;

/// The bounds of all that waits, where the journals can take so much at once.
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
    /// As the journal has them.
    bytes: u64,
    /// Whether the batch starts an incarnation: it is written before anything more is taken.
    pub(super) is_urgent: bool,
    /// When the first one came.
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
            ItemKind::Gap { .. } => 0,
        };
        if self.items.is_empty() {
            self.since = Some(Instant::now());
        }
        self.items.push(item);
        self.bytes += (OVERHEAD + encoded) as u64;
    }
}

impl Batch {
    /// Until when it waits for more, where so many updates are to come still.
    pub(super) fn gathers(&self, to_come: u64) -> Option<Instant> {
        let worth = to_come > FAR_BEHIND && !self.is_urgent;
        self.since.filter(|_| worth).map(|since| since + GATHER)
    }
}

/// Whether there is room for more beside these.
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
