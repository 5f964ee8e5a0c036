//! The last updates that left a merge.

use std::collections::VecDeque;

use bytes::Bytes;

use super::assembly::Spare;

/// Updates that are kept at most.
const MAX_UPDATES: usize = 256;
/// Bytes of such updates.
const MAX_BYTES: usize = 1 << 20;

/// An update that was handed on.
#[derive(Debug)]
pub(super) struct HandedUpdate {
    seq: u64,
    pub(super) encoded: Bytes,
    /// Different bytes of it have arrived since.
    pub(super) disputed: bool,
}

/// The last updates that were handed on, ascending, to be compared with what still arrives of them.
#[derive(Debug, Default)]
pub(super) struct HandedUpdates {
    updates: VecDeque<HandedUpdate>,
    bytes: usize,
}

impl HandedUpdates {
    /// Keeps an update; the oldest ones make room. Their memory, if nothing else holds it, becomes
    /// `spare`.
    pub(super) fn push(&mut self, seq: u64, encoded: Bytes, spare: &mut Spare) {
        self.bytes += encoded.len();
        self.updates.push_back(HandedUpdate {
            seq,
            encoded,
            disputed: false,
        });
        while self.updates.len() > MAX_UPDATES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.updates.pop_front() else {
                break;
            };
            self.bytes -= oldest.encoded.len();
            spare.reclaim(oldest.encoded);
        }
    }

    /// Forgets the updates from `next` on, which were taken back.
    pub(super) fn take_back(&mut self, next: u64) {
        while let Some(last) = self.updates.pop_back_if(|update| update.seq >= next) {
            self.bytes -= last.encoded.len();
        }
    }

    /// Returns an update that is still kept.
    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut HandedUpdate> {
        let at = self.updates.binary_search_by_key(&seq, |update| update.seq);
        self.updates.get_mut(at.ok()?)
    }

    /// Returns the number of updates and their bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.updates.len(), self.bytes)
    }
}
