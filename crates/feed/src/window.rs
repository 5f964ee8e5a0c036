//! The last entries of a channel, newest first: the content of the receiver's feed files in any
//! format.

use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use crate::payload::Update;

/// Default number of entries in a file.
pub const KEEP: usize = 500;

/// Largest number of bytes of entries in a file, whatever their number: the oldest are dropped
/// first. The newest entry is always kept.
pub const MAX_FILE_BYTES: usize = 64 << 20;

/// Result of applying an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpsertOutcome {
    /// The entry is new in the file.
    Added,
    /// An older version of the entry was replaced.
    Replaced,
    /// This update or a later one of the same entry was present, or the file is full of later ones.
    Unchanged,
}

/// One entry in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Id in the form of the format.
    pub id: String,
    /// Incarnation and seq of the update; `None` for an entry of unknown origin.
    pub origin: Option<(Uuid, u64)>,
    /// Time at which the source stored the update.
    pub time: Timestamp,
    /// Entry in the file's format. Shared with snapshots, so that reading a feed while it changes
    /// copies no entry.
    pub text: Arc<str>,
}

/// The entries of one file in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    keep: usize,
    /// [`MAX_FILE_BYTES`].
    pub max_bytes: usize,
    /// Slots, newest first, no id twice.
    slots: Vec<Slot>,
}

impl Window {
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            keep: keep.max(1),
            max_bytes: MAX_FILE_BYTES,
            slots: Vec::new(),
        }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the length of all entries.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.text.len()).sum()
    }

    /// Replaces all slots. Returns whether some of the new ones exceeded the limits.
    pub(crate) fn fill(&mut self, slots: Vec<Slot>) -> bool {
        self.slots = slots;
        self.trim()
    }

    /// Applies an update as the entry `id`: a new entry is inserted in front; a new version
    /// replaces the older one and moves to the front. An update that is already present, or older
    /// than the present version, changes nothing, so a repeated delivery from any earlier point is
    /// harmless. `text` renders the entry under its id; it is not called if nothing changes.
    pub(crate) fn upsert(
        &mut self,
        update: &Update,
        id: String,
        text: impl FnOnce(&str) -> String,
    ) -> UpsertOutcome {
        let origin = (update.incarnation, update.seq);
        let old = self.slots.iter().position(|s| s.id == id);
        if let Some(there) = old.and_then(|at| self.slots.get(at))
            && there
                .origin
                .is_some_and(|(i, seq)| i == origin.0 && seq >= origin.1)
        {
            return UpsertOutcome::Unchanged;
        }
        // In front of everything that is not later in the same numbering. In-order delivery always
        // inserts at 0; a repeated one finds its old place.
        let mut at = self
            .slots
            .iter()
            .position(|s| {
                s.origin
                    .is_none_or(|(i, seq)| i != origin.0 || seq < origin.1)
            })
            .unwrap_or(self.slots.len());
        if at >= self.keep {
            return UpsertOutcome::Unchanged;
        }
        let text = text(&id).into();
        let slot = Slot {
            id,
            origin: Some(origin),
            time: update.time,
            text,
        };
        if let Some(old) = old {
            self.slots.remove(old);
            // The old version is never in front: it is earlier, or of another incarnation.
            at = at.min(self.slots.len());
        }
        self.slots.insert(at, slot);
        self.trim();
        if old.is_some() {
            UpsertOutcome::Replaced
        } else {
            UpsertOutcome::Added
        }
    }

    /// Marks entries of this incarnation with a seq greater than `after` as of unknown origin.
    /// Returns whether there were any.
    pub(crate) fn forget_numbers(&mut self, incarnation: Uuid, after: u64) -> bool {
        let mut any = false;
        for slot in &mut self.slots {
            if slot
                .origin
                .is_some_and(|(i, seq)| i == incarnation && seq > after)
            {
                slot.origin = None;
                any = true;
            }
        }
        any
    }

    /// Drops the oldest entries past the limits. Returns whether there were any.
    fn trim(&mut self) -> bool {
        let before = self.slots.len();
        let most = self.max_bytes;
        self.slots.truncate(self.keep);
        let mut bytes = 0usize;
        let fit = self
            .slots
            .iter()
            .take_while(|slot| {
                bytes = bytes.saturating_add(slot.text.len());
                bytes <= most
            })
            .count();
        self.slots.truncate(fit.max(1));
        self.slots.len() != before
    }
}
