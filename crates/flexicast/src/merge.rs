//! The receiver's merge: bytes of updates from the flow and from the unicast path come together by
//! (`seq`, offset), each update leaves once and in order.

mod assembly;
mod deadlines;
mod distrust;
mod handed;
mod signed;
mod streams;
mod types;

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher;
use std::ops::Range;

use signing::Forgery;

use crate::MAX_UPDATE;
use crate::control::{NEED_AHEAD, NeedReason};
use crate::range::RangeSet;
use assembly::{Assembly, CHUNK_OVERHEAD, Sizes, Spare};
use deadlines::Deadlines;
use handed::HandedUpdates;
pub(crate) use types::MissingRange;
pub use types::{
    AuthenticationFailure, Check, Delivered, DistrustedUpdate, MergeStats, Output, Signatures,
    Validity,
};

/// Number of updates beyond the next one to be delivered for which bytes are accepted.
pub const WINDOW: u64 = 4096;
/// Bound on the bytes of undelivered updates per channel. Flow packets beyond it are not
/// acknowledged, unicast streams not read on.
pub const MAX_BUFFERED: usize = 32 << 20;

/// Updates that are not proved and wait for their place.
const MAX_UNPROVEN: usize = 256;
/// Separate ranges of updates that are gone, which a receiver remembers until it comes to them.
const MAX_GONE: usize = 1024;

/// The merge of one channel.
#[derive(Debug)]
pub struct Merge {
    /// The next update to be delivered.
    next: u64,
    parts: BTreeMap<u64, Assembly>,
    whole: BTreeMap<u64, Delivered>,
    /// Updates that will not come.
    gone: RangeSet,
    /// Memory of everything that is not in order yet. A whole update that is not certain counts
    /// as the flow's.
    sizes: Sizes,
    ready: VecDeque<Output>,
    /// Bytes of what is in order and waits for the application.
    ready_bytes: usize,
    handed: HandedUpdates,
    spare: Spare,
    /// Updates to be requested, with the reason.
    needs: BTreeMap<u64, NeedReason>,
    /// Updates below this one were asked for because they did not come.
    sought_below: u64,
    /// Findings that the owner has not taken yet.
    distrusts: VecDeque<DistrustedUpdate>,
    /// The source can be asked for bytes.
    source_answers: bool,
    /// Flow bytes of these updates are not taken: a source that cannot be asked sends them by the
    /// unicast path.
    shunned: BTreeSet<u64>,
    /// The last update that was handed out and is not certain.
    uncertain: u64,
    check: Option<Check>,
    /// Keys of the updates, with the channel's name, if the source signs them.
    signatures: Option<Signatures>,
    /// Whether the flow signs whole updates, so that nothing else of it is handed on.
    signed_streams: bool,
    /// Whole updates of the unicast path that are not signed, although they have to be. Only in its
    /// place does one fail: those before it may still come.
    unproven: BTreeMap<u64, Forgery>,
    /// Failure of the source itself: nothing is taken any more.
    failure: Option<AuthenticationFailure>,
    /// Updates of which a forged header came: the true one may have been lost to it.
    forged: BTreeSet<u64>,
    /// Updates that were asked for because of that.
    requested: BTreeSet<u64>,
    deadlines: Deadlines,
    hasher: RandomState,
    /// Updates that were cleared on this connection.
    cleared: u64,
    stats: MergeStats,
    #[cfg(feature = "fault-injection")]
    dedupe_off: bool,
    #[cfg(feature = "fault-injection")]
    signatures_off: bool,
    #[cfg(feature = "fault-injection")]
    hash_check_off: bool,
}

impl Merge {
    /// A merge that delivers from `next` on. What any flow packet took part in leaves it only if
    /// `check` finds it valid, and see [`Merge::set_signatures`].
    pub fn new(next: u64, check: Option<Check>) -> Self {
        Merge {
            next,
            parts: BTreeMap::new(),
            whole: BTreeMap::new(),
            gone: RangeSet::new(),
            sizes: Sizes::default(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            handed: HandedUpdates::default(),
            spare: Spare::default(),
            needs: BTreeMap::new(),
            sought_below: 0,
            distrusts: VecDeque::new(),
            source_answers: false,
            shunned: BTreeSet::new(),
            uncertain: 0,
            check,
            signatures: None,
            signed_streams: false,
            unproven: BTreeMap::new(),
            failure: None,
            forged: BTreeSet::new(),
            requested: BTreeSet::new(),
            deadlines: Deadlines::default(),
            hasher: RandomState::new(),
            cleared: 0,
            stats: MergeStats::default(),
            #[cfg(feature = "fault-injection")]
            dedupe_off: false,
            #[cfg(feature = "fault-injection")]
            signatures_off: false,
            #[cfg(feature = "fault-injection")]
            hash_check_off: false,
        }
    }

    /// Begins again at `next`, as another history does. The counters go on.
    pub fn restart(&mut self, next: u64) {
        *self = Merge {
            stats: self.stats,
            deadlines: self.deadlines.restarted(),
            #[cfg(feature = "fault-injection")]
            dedupe_off: self.dedupe_off,
            #[cfg(feature = "fault-injection")]
            signatures_off: self.signatures_off,
            #[cfg(feature = "fault-injection")]
            hash_check_off: self.hash_check_off,
            ..Merge::new(next, self.check)
        };
    }

    /// Delivers again what arrives again, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_dedupe_off(&mut self, off: bool) {
        self.dedupe_off = off;
    }

    /// Whether what arrives again is dropped, as it always is but for an injected fault.
    fn dedupes(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.dedupe_off;
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    /// Says whether the source of this connection can be asked for bytes.
    pub fn set_source_answers(&mut self, answers: bool) {
        self.source_answers = answers;
        if answers {
            self.shunned.clear();
        }
    }

    /// Whether the source of this connection can be asked for bytes.
    pub fn does_source_answer(&self) -> bool {
        self.source_answers
    }

    /// Handles the end of the connection; the next one begins after what was handed out. Bytes of
    /// flow packets end with it, for their sender is only known to have held the key. Those of the
    /// unicast path stay.
    pub fn disconnected(&mut self) {
        self.failure = None;
        self.signed_streams = false;
        self.unproven.clear();
        if self.signatures.as_ref().is_some_and(|s| s.required) {
            // What the unicast path brought is proved only as a whole: another source's part of an
            // update would spoil the true one.
            self.parts.clear();
        }
        self.needs.clear();
        self.forged.clear();
        self.requested.clear();
        self.sought_below = 0;
        self.cleared = 0;
        self.deadlines.forget_partial();
        self.drop_flow_bytes(|_| {});
    }

    /// Drops what the flow brought and was not handed out; calls `dropped` with each such update.
    fn drop_flow_bytes(&mut self, mut dropped: impl FnMut(u64)) {
        let by_flow = |o: &Output| matches!(o, Output::Update(u) if !u.certain);
        if let Some(at) = self.ready.iter().position(by_flow) {
            self.take_back(at);
        }
        self.whole.retain(|seq, update| {
            if !update.certain {
                dropped(*seq);
            }
            update.certain
        });
        self.parts.retain(|seq, part| {
            if part.sizes().flow > 0 {
                dropped(*seq);
            }
            part.drop_flow();
            (part.no_flow, part.refused) = (false, None);
            part.has_unicast()
        });
        let parts = self.parts.values().map(|part| part.sizes().unicast);
        let whole = self.whole.values().map(|update| update.encoded.len());
        self.sizes = Sizes {
            unicast: parts.chain(whole).sum(),
            ..Sizes::default()
        };
    }

    /// Puts what is ready, from this place on, back among what waits for its turn.
    fn take_back(&mut self, at: usize) {
        for output in self.ready.split_off(at).into_iter().rev() {
            match output {
                Output::Update(update) => {
                    self.next = update.seq;
                    self.ready_bytes -= update.encoded.len();
                    *self.size_of(&update) += update.encoded.len();
                    self.whole.insert(update.seq, update);
                }
                Output::Gap { from, to } => {
                    self.next = from;
                    self.gone.insert(from..to + 1);
                }
                Output::Expired { from, to, bytes } => {
                    self.next = from;
                    self.deadlines.put_back(from..to + 1, bytes as usize);
                }
            }
        }
        self.handed.take_back(self.next);
    }

    fn size_of(&mut self, update: &Delivered) -> &mut usize {
        match update.certain {
            true => &mut self.sizes.unicast,
            false => &mut self.sizes.flow,
        }
    }

    /// Takes a whole update from those that wait for their turn.
    fn take_whole(&mut self, seq: u64) -> Option<Delivered> {
        let update = self.whole.remove(&seq)?;
        let size = self.size_of(&update);
        *size = size.saturating_sub(update.encoded.len());
        Some(update)
    }

    /// Changes an update that is not whole, and what is known of the memory that it takes.
    fn change<R>(&mut self, seq: u64, change: impl FnOnce(&mut Assembly, &mut Spare) -> R) -> R {
        let part = self.parts.entry(seq).or_default();
        let before = part.sizes();
        let result = change(part, &mut self.spare);
        let after = part.sizes();
        self.sizes.flow = (self.sizes.flow + after.flow).saturating_sub(before.flow);
        self.sizes.unicast = (self.sizes.unicast + after.unicast).saturating_sub(before.unicast);
        self.sizes.early = (self.sizes.early + after.early).saturating_sub(before.early);
        result
    }

    fn forget(&mut self, part: &Assembly) {
        let sizes = part.sizes();
        self.sizes.flow = self.sizes.flow.saturating_sub(sizes.flow);
        self.sizes.unicast = self.sizes.unicast.saturating_sub(sizes.unicast);
        self.sizes.early = self.sizes.early.saturating_sub(sizes.early);
    }

    /// Whether bytes of an update should be asked for now.
    pub(crate) fn has_need(&self) -> bool {
        let first = self.needs.first_key_value();
        self.source_answers && first.is_some_and(|(seq, _)| *seq < self.next + NEED_AHEAD)
    }

    /// The update that later ones wait for, and how much of it the unicast path has brought, if
    /// the source can be asked for it and was not. What lies far ahead waits for nothing: it may
    /// be a forger's.
    pub(crate) fn waits_for(&self) -> Option<(u64, usize)> {
        let near = self.next + 1..self.next + NEED_AHEAD;
        let mut parts = self.parts.range(near.clone());
        let behind = parts.next().is_some() || self.whole.range(near).next().is_some();
        let can_come = self.source_answers && !self.is_full() && self.next >= self.sought_below;
        let part = self.parts.get(&self.next);
        let progress = part.map_or(0, Assembly::unicast_bytes);
        (behind && can_come).then_some((self.next, progress))
    }

    /// Asks for the missing updates before the last whole one that is near: their packets may have
    /// been acknowledged without having arrived, and would never be repaired.
    pub(crate) fn seek(&mut self) {
        let near = self.next..self.next + NEED_AHEAD;
        let unsigned = self.last_unsigned(near.clone());
        let last = self.whole.range(near).last().map(|(seq, _)| *seq);
        let last = last.max(unsigned).unwrap_or(0);
        let end = last.max(self.next + 1);
        for seq in self.next..end {
            let part = self.parts.get(&seq);
            let expected = !self.whole.contains_key(&seq) && !self.deadlines.has_expired(seq);
            if expected && !part.is_some_and(|part| part.no_flow) {
                self.needs.entry(seq).or_insert(NeedReason::Missing);
            }
        }
        self.sought_below = end;
    }

    /// The next request; each update is requested once per reason.
    pub(crate) fn pop_need(&mut self) -> Option<MissingRange> {
        while self.has_need() {
            let (seq, reason) = self.needs.pop_first()?;
            let range = match self.parts.get(&seq) {
                Some(part) => part.missing(),
                None if seq < self.next || self.whole.contains_key(&seq) => None,
                None => Some(0..u64::MAX),
            };
            if let Some(range) = range {
                return Some(MissingRange { seq, range, reason });
            }
        }
        None
    }

    /// The next update to be delivered.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Counters since the beginning.
    pub fn stats(&self) -> MergeStats {
        self.stats
    }

    /// These updates are gone for good: those that are not here already are passed over in their
    /// place. Returns whether there was room to remember that.
    pub fn pass_over(&mut self, gone: Range<u64>) -> bool {
        if self.gone.len() >= MAX_GONE {
            return false;
        }
        self.gone.insert(gone.start.max(self.next)..gone.end);
        self.release();
        true
    }

    /// Bytes of updates that are not in order yet.
    pub fn buffered(&self) -> usize {
        self.sizes.flow + self.sizes.unicast
    }

    /// Number of updates of which something has come, and not all.
    pub fn partial_updates(&self) -> usize {
        self.parts.len()
    }

    /// Those of them that the unicast path has brought.
    pub fn buffered_unicast(&self) -> usize {
        self.sizes.unicast
    }

    /// The last update that was handed out although the unicast path had not brought all of it.
    pub fn last_uncertain(&self) -> u64 {
        self.uncertain
    }

    /// Whether an update is to come by the unicast path alone, and has not.
    pub fn is_distrusted(&self, seq: u64) -> bool {
        self.parts.get(&seq).is_some_and(|part| part.no_flow)
    }

    /// Bytes of all updates that were not handed out yet.
    pub fn held(&self) -> usize {
        self.buffered() + self.ready_bytes
    }

    /// Whether so much waits for the application that the unicast streams should not be read on.
    /// Updates that are not in order yet do not count: only the unicast path can fill its gaps.
    pub fn is_full(&self) -> bool {
        self.ready_bytes >= MAX_BUFFERED
    }

    /// Whether so much is held that the flow may add nothing more to update `seq`. Where most of it
    /// is the flow's own, more than a flow is granted (protocol.md section 4.8) waits: what lies
    /// farthest ahead has not come from the source, and goes first.
    fn is_crowded(&mut self, seq: u64) -> bool {
        while self.held() >= MAX_BUFFERED {
            let mut parts = self.parts.range(seq + 1..).rev();
            let part = parts.find(|(_, part)| part.sizes().flow > 0);
            let mut whole = self.whole.range(seq + 1..).rev();
            let whole = whole.find(|(_, update)| !update.certain);
            let farthest = part.map(|p| *p.0).max(whole.map(|w| *w.0));
            let Some(farthest) = farthest.filter(|_| self.sizes.flow > MAX_BUFFERED / 2) else {
                return true;
            };
            self.take_whole(farthest);
            self.contradicted(farthest);
        }
        false
    }

    /// Whether a packet with these bytes may be acknowledged: they are wanted and fit, are
    /// requested by NEED anyway, or are not needed any more. What is not acknowledged is repaired
    /// on the unicast path. A packet's ranges are asked for together and added together: it may
    /// overshoot [`MAX_BUFFERED`] by itself.
    #[inline]
    pub fn accepts(&mut self, seq: u64, range: Range<u64>, ends: bool) -> bool {
        if self.failure.is_some() {
            return false;
        }
        if self.is_past(seq) {
            return true;
        }
        if seq - self.next >= WINDOW || range.end > MAX_UPDATE as u64 || self.is_crowded(seq) {
            return false;
        }
        let ends_at = ends.then_some(range.end);
        let part = self.parts.get(&seq);
        if self.signatures().is_some() && range.start > 0 {
            // Before its header, little is kept of an update.
            let length = (range.end - range.start) as usize + CHUNK_OVERHEAD;
            let fits =
                |part: &Assembly| part.is_headed() || part.early() + length <= signed::MAX_EARLY;
            if !part.is_none_or(|part| part.no_flow || fits(part)) {
                return false;
            }
        }
        if part.is_some_and(|part| !part.no_flow && part.is_scattered(&range)) {
            return false;
        }
        // A source that answers sends what is missing of an update that is doubted.
        let doubted =
            part.is_some_and(|part| part.no_flow || part.disputes_length(range.end, ends_at));
        self.source_answers || !(doubted || self.shunned.contains(&seq))
    }

    /// Whether nothing of an update is wanted any more: it is here, passed over, or expired.
    fn is_past(&self, seq: u64) -> bool {
        seq < self.next || self.whole.contains_key(&seq) || self.deadlines.has_expired(seq)
    }

    /// Takes bytes of a flow packet; `total` is the update's length where the packet states it.
    /// Bytes that [`Merge::accepts`] refuses are dropped.
    #[inline]
    pub fn add_flow(&mut self, seq: u64, offset: u64, data: &[u8], total: Option<u64>) {
        if self.failure.is_some() {
            return;
        }
        let past = self.is_past(seq);
        if past && self.dedupes() {
            self.stats.duplicates += 1;
            self.compare(seq, offset, data, total);
            return;
        }
        let end = offset + data.len() as u64;
        let far = !past && seq - self.next >= WINDOW;
        if far || end > MAX_UPDATE as u64 || self.shunned.contains(&seq) || self.is_distrusted(seq)
        {
            return;
        }
        if self.signatures().is_some() && !self.take_signed(seq, offset, data, total) {
            return;
        }
        let (agrees, whole) = self.change(seq, |part, spare| {
            let agrees = part.add_flow(offset, data, total, spare);
            (agrees, agrees && part.is_whole())
        });
        if whole {
            self.finish(seq);
        } else if !agrees {
            self.contradicted(seq);
        }
    }

    /// Takes bytes of the unicast path, of an update that is `total` bytes long.
    pub fn add_unicast(&mut self, seq: u64, offset: u64, data: &[u8], total: u64) {
        if self.failure.is_some() {
            return;
        }
        if self.is_past(seq) && self.dedupes() {
            self.stats.duplicates += 1;
            self.compare(seq, offset, data, Some(total));
            if self.is_past(seq) {
                return;
            }
        }
        // The unicast path has flow control of its own; it is never dropped for lack of room, only
        // not read on (see `is_full`).
        if total > MAX_UPDATE as u64 {
            return;
        }
        let (agrees, whole) = self.change(seq, |part, spare| {
            let agrees = part.add_unicast(offset, data, total, spare);
            (agrees, part.is_whole())
        });
        if !agrees {
            self.contradicted(seq);
        }
        if whole {
            self.finish(seq);
        } else if offset == 0 {
            self.note_deadline(seq, data);
        }
    }

    fn finish(&mut self, seq: u64) {
        let part = self.parts.get(&seq);
        if part.is_some_and(|part| self.lacks_signature(part)) {
            return;
        }
        let Some(mut part) = self.parts.remove(&seq) else {
            return;
        };
        self.forget(&part);
        let leans_on_early = part.leans_on_early();
        let (via, certain, encoded) = (part.via(), part.is_certain(), part.assemble());
        let hash = || self.hasher.hash_one(&encoded);
        let required = self.signatures().filter(|s| certain && s.required);
        if let Some(Err(forgery)) = required.map(|signatures| signatures.verify(seq, &encoded)) {
            self.unproven.insert(seq, forgery);
            self.release();
            return;
        }
        if !certain && !self.is_signed_stream(seq, &encoded, &part) {
            self.stats.count_forgery(true);
            part.stream_signature = None;
            // The true one may still come. If it fails, too, the bytes are not the source's.
            let was_refused = std::mem::replace(&mut part.stream_refused, true);
            match was_refused {
                true => part.drop_flow(),
                false => part.restore(&encoded, &mut self.spare),
            }
            self.put_back(seq, part);
            if was_refused {
                self.distrust(seq, NeedReason::Forged);
            }
            return;
        }
        if certain {
            if part.refused.is_some_and(|refused| refused == hash()) {
                self.stats.cleared += 1;
                self.cleared += 1;
            }
        } else if let Some(reason) = self.fault_of(seq, &encoded, part.header()) {
            if reason == NeedReason::Forged {
                self.stats.count_forgery(true);
            }
            if reason == NeedReason::Forged && leans_on_early {
                // Some of what came before the header was a forger's. The flow may bring the true
                // bytes yet; those that were dropped it will not.
                part.drop_early();
                self.put_back(seq, part);
                if !self.request(seq) {
                    self.distrust(seq, reason);
                }
                return;
            }
            part.refused = Some(hash());
            part.drop_flow();
            self.put_back(seq, part);
            self.distrust(seq, reason);
            return;
        }
        let deadline_ms = self.deadline_of_whole(&encoded, certain);
        self.take(Delivered {
            deadline_ms,
            seq,
            encoded,
            via,
            certain,
        });
    }

    /// Takes a whole update that nothing is wrong with.
    fn take(&mut self, update: Delivered) {
        let seq = update.seq;
        self.needs.remove(&seq);
        self.unproven.remove(&seq);
        self.deadlines.note_whole(&update);
        if !self.dedupes() && seq < self.next {
            self.ready_bytes += update.encoded.len();
            self.ready.push_back(Output::Update(update));
            return;
        }
        *self.size_of(&update) += update.encoded.len();
        self.whole.insert(seq, update);
        self.release();
    }

    fn put_back(&mut self, seq: u64, part: Assembly) {
        let sizes = part.sizes();
        self.sizes.flow += sizes.flow;
        self.sizes.unicast += sizes.unicast;
        self.sizes.early += sizes.early;
        self.parts.insert(seq, part);
    }

    fn release(&mut self) {
        loop {
            if let Some(update) = self.take_whole(self.next) {
                self.ready_bytes += update.encoded.len();
                self.handed
                    .push(self.next, update.encoded.clone(), &mut self.spare);
                self.ready.push_back(Output::Update(update));
                self.next += 1;
            } else if let Some(end) = self.end_of_gap() {
                let (from, to) = self.pass(end);
                self.ready.push_back(Output::Gap { from, to });
            } else if let Some((end, length)) = self.deadlines.take_expired(self.next) {
                let (from, to) = self.pass(end);
                let bytes = length as u64;
                self.ready.push_back(Output::Expired { from, to, bytes });
            } else {
                break;
            }
        }
        self.unproven = self.unproven.split_off(&self.next);
        let overdue = self.unproven.len() > MAX_UNPROVEN;
        let first = self.unproven.first_key_value();
        if let Some((&seq, &forgery)) = first.filter(|(seq, _)| overdue || **seq == self.next) {
            self.failure = Some(AuthenticationFailure { seq, forgery });
        }
        self.gone.remove_below(self.next);
        self.deadlines.forget_below(self.next);
        if self.shunned.first().is_some_and(|seq| *seq < self.next) {
            self.shunned = self.shunned.split_off(&self.next);
        }
    }

    /// Returns where the updates that are gone end, if the next one is among them.
    fn end_of_gap(&self) -> Option<u64> {
        let gone = self.gone.iter().find(|r| r.contains(&self.next));
        gone.map(|gone| gone.end)
    }

    /// Passes over the updates before `end` that will not come, up to the next one that is here.
    /// Returns the first and the last of them.
    fn pass(&mut self, end: u64) -> (u64, u64) {
        let from = self.next;
        let here = self.whole.range(from..).next().map(|(seq, _)| *seq);
        self.next = end.min(here.unwrap_or(end));
        let kept = self.parts.split_off(&self.next);
        let dropped = std::mem::replace(&mut self.parts, kept);
        dropped.values().for_each(|part| self.forget(part));
        self.needs = self.needs.split_off(&self.next);
        (from, self.next - 1)
    }

    /// The next update in order, or the gap in its place. One with a deadline that was not handed
    /// on in time ([`Merge::pop_live`]) has expired.
    pub fn pop(&mut self) -> Option<Output> {
        let deadlines = &self.deadlines;
        let output = self
            .ready
            .pop_front_if(|output| deadlines.is_judged(output))?;
        let Output::Update(update) = output else {
            self.deadlines.forget_up_to(output.last());
            return Some(output);
        };
        self.ready_bytes -= update.encoded.len();
        if !update.certain {
            self.uncertain = update.seq;
        }
        let output = self.deadlines.judge(update);
        self.stats.late += u64::from(matches!(output, Output::Expired { .. }));
        Some(output)
    }
}

#[cfg(test)]
mod tests;
