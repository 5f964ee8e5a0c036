//! Updates that the flow brought wrong: what contradicts what, and what is done about it.

use super::{DistrustedUpdate, Merge, NeedReason, Output};

/// Updates that are not taken from the flow of a source that cannot be asked.
const MAX_SHUNNED: usize = 256;
/// Findings that wait for the owner.
const MAX_DISTRUSTS: usize = 64;

impl Merge {
    /// The next finding.
    pub fn pop_distrust(&mut self) -> Option<DistrustedUpdate> {
        self.distrusts.pop_front()
    }

    /// Compares what arrives again with what it was the first time.
    pub(super) fn compare(&mut self, seq: u64, offset: u64, data: &[u8], total: Option<u64>) {
        let differs = |known: &[u8]| {
            let end = offset.saturating_add(data.len() as u64);
            let known_there = known.get(offset as usize..end as usize);
            known_there != Some(data) || total.is_some_and(|total| total != known.len() as u64)
        };
        let at = self.ready_from(seq);
        let ready = match self.ready.get(at) {
            Some(Output::Update(update)) if update.seq == seq => Some(update),
            _ => None,
        };
        let is_ready = ready.is_some();
        if let Some(known) = ready.or(self.whole.get(&seq)) {
            if !differs(&known.encoded) {
                return;
            }
            // Which of them is true is not known, unless the unicast path brought one, or the
            // source signed it.
            if known.certain || self.signatures().is_some() || self.signed_streams {
                self.stats.mismatches += 1;
                return;
            }
            if is_ready {
                self.take_back(at);
            }
            self.take_whole(seq);
            self.contradicted(seq);
        } else if let Some(handed) = self.handed.get_mut(seq)
            && differs(&handed.encoded)
        {
            self.stats.mismatches += 1;
            if !std::mem::replace(&mut handed.disputed, true) {
                self.note(DistrustedUpdate {
                    seq,
                    reason: NeedReason::Contradicted,
                    handed: true,
                });
            }
        }
    }

    pub(super) fn note(&mut self, distrust: DistrustedUpdate) {
        if self.distrusts.len() < MAX_DISTRUSTS {
            self.distrusts.push_back(distrust);
        }
    }

    pub(super) fn contradicted(&mut self, seq: u64) {
        self.stats.mismatches += 1;
        self.distrust(seq, NeedReason::Contradicted);
    }

    /// Drops an update's flow bytes and refuses further ones: the unicast path brings it.
    pub(super) fn distrust(&mut self, seq: u64, reason: NeedReason) {
        let known = self.change(seq, |part, _| {
            part.drop_flow();
            std::mem::replace(&mut part.no_flow, true)
        });
        if known {
            return;
        }
        self.stats.refetched += 1;
        if self.source_answers {
            self.needs.insert(seq, reason);
        } else {
            self.shunned.insert(seq);
            if self.shunned.len() > MAX_SHUNNED {
                self.shunned.pop_last();
            }
        }
        self.note(DistrustedUpdate {
            seq,
            reason,
            handed: false,
        });
    }
}
