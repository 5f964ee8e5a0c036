//! The receiver's merge: bytes of updates from the flow and from the unicast path come together by (`seq`, offset), each update leaves once and in order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use crate::control::{NEED_AHEAD, NeedReason};
use crate::range::RangeSet;
use crate::{MAX_UPDATE, Via};

/// How far beyond the next update to be delivered a receiver takes bytes.
pub const WINDOW: u64 = 4096;
/// How many bytes of undelivered updates a receiver holds per channel. Flow packets that do not fit are not acknowledged, unicast streams are not read on.
pub const MAX_BUFFERED: usize = 32 << 20;

/// Separate ranges of updates that are gone, which a receiver remembers until it comes to them.
const MAX_GONE: usize = 1024;
/// Updates that were handed on and are kept to be compared with what still arrives of them.
const MAX_HANDED: usize = 256;
/// Bytes of such updates.
const MAX_HANDED_BYTES: usize = 1 << 20;

/// Whether these encoded bytes are a valid update of this `seq`.
pub type Check = fn(u64, &[u8]) -> bool;

/// A whole update, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Its number.
    pub seq: u64,
    /// Its encoded bytes.
    pub encoded: Bytes,
    /// How it came.
    pub via: Via,
}

/// What comes out of a merge, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// An update.
    Update(Delivered),
    /// Updates that are gone for good stood here.
    Gap {
        /// The first `seq` that is missing.
        from: u64,
        /// The last `seq` that is missing.
        to: u64,
    },
}

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A flow packet: authenticated only as coming from somebody with the group key.
    Flow,
    /// The receiver's own connection: from the source. Where both differ, this one wins.
    Unicast,
}

/// An update whose bytes from the flow were found to be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distrust {
    /// The update.
    pub seq: u64,
    /// Why.
    pub reason: NeedReason,
    /// Whether the application has it already: nothing can be dropped then.
    pub handed: bool,
}

/// Bytes that are asked of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) seq: u64,
    pub(crate) range: Range<u64>,
    pub(crate) reason: NeedReason,
}

#[derive(Debug, Default)]
struct Assembly {
    bytes: Vec<u8>,
    have: RangeSet,
    /// Those of `have` that came by the unicast path.
    unicast: RangeSet,
    total: Option<u64>,
    /// The unicast path said how long it is.
    certain: bool,
    /// Its flow bytes were dropped, and no others are taken.
    no_flow: bool,
    from_flow: u64,
    from_unicast: u64,
}

impl Assembly {
    /// Takes bytes of a flow packet. Returns whether they agree with what is here.
    fn add_flow(&mut self, offset: u64, data: &[u8], total: Option<u64>) -> bool {
        let end = offset + data.len() as u64;
        let ends_before = |total: u64| self.have.max().is_some_and(|max| max >= total);
        let contradicts = match (total, self.total) {
            (Some(total), Some(known)) => total != known,
            (Some(total), None) => ends_before(total),
            (None, _) => false,
        };
        if contradicts || self.total.is_some_and(|total| end > total) {
            return false;
        }
        self.total = self.total.or(total);
        self.make_room(end);
        let at = offset as usize..end as usize;
        let bytes = &mut self.bytes;
        let mut written = 0;
        self.have.insert_with(offset..end, |new| {
            let from = (new.start - offset) as usize..(new.end - offset) as usize;
            bytes[new.start as usize..new.end as usize].copy_from_slice(&data[from]);
            written += new.end - new.start;
        });
        self.from_flow += written;
        self.bytes[at] == *data
    }

    /// Takes bytes of the unicast path. Returns whether they agree with what is here; where they
    /// do not, all flow bytes are dropped.
    fn add_unicast(&mut self, offset: u64, data: &[u8], total: u64) -> bool {
        let end = offset + data.len() as u64;
        if end > total {
            // The reader of the stream has refused this before.
            return true;
        }
        let mut agrees = self.total.is_none_or(|known| known == total)
            && self.have.max().is_none_or(|max| max < total);
        agrees &= self.have.iter().all(|k| {
            let both = k.start.max(offset)..k.end.min(end);
            both.is_empty()
                || self.bytes[both.start as usize..both.end as usize]
                    == data[(both.start - offset) as usize..(both.end - offset) as usize]
        });
        if !agrees {
            self.drop_flow();
            self.have.remove_from(total);
            self.unicast.remove_from(total);
            self.bytes.truncate(total as usize);
        }
        (self.total, self.certain) = (Some(total), true);
        self.make_room(end);
        self.bytes[offset as usize..end as usize].copy_from_slice(data);
        let mut new_bytes = 0;
        self.have
            .insert_with(offset..end, |new| new_bytes += new.end - new.start);
        self.unicast.insert(offset..end);
        self.from_unicast += new_bytes;
        agrees
    }

    fn make_room(&mut self, end: u64) {
        if self.bytes.len() < end as usize {
            self.bytes.resize(end as usize, 0);
        }
    }

    /// Forgets what came by the flow.
    fn drop_flow(&mut self) {
        self.have = self.unicast.clone();
        let held = self.have.max().map_or(0, |max| max as usize + 1);
        self.bytes.truncate(held);
        self.bytes.shrink_to_fit();
        self.total = self.total.filter(|_| self.certain);
        self.from_flow = 0;
    }

    fn is_whole(&self) -> bool {
        self.total
            .is_some_and(|total| self.have.contains_range(0..total))
    }

    /// The range from the first to the last byte that the unicast path has not brought. The end
    /// that the flow states does not count.
    fn missing(&self) -> Option<Range<u64>> {
        if self.is_certain() {
            return None;
        }
        let total = self.total.filter(|_| self.certain);
        let mut gaps = self.unicast.gaps(0..total.unwrap_or(u64::MAX));
        let first = gaps.next()?;
        Some(first.start..gaps.last().map_or(first.end, |last| last.end))
    }

    fn via(&self) -> Via {
        match (self.from_flow, self.from_unicast) {
            (0, _) if self.certain => Via::Unicast,
            (_, 0) => Via::Flow,
            _ => Via::Repaired,
        }
    }

    /// Whether the unicast path brought all of it.
    fn is_certain(&self) -> bool {
        let total = self.total.filter(|_| self.certain);
        total.is_some_and(|total| self.unicast.contains_range(0..total))
    }
}

/// Counters of a merge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Pieces of updates that were whole already.
    pub duplicates: u64,
    /// Times that bytes of an update contradicted each other.
    pub mismatches: u64,
    /// Updates whose flow bytes were dropped, to be had by the unicast path.
    pub distrusted: u64,
}

/// An update that was handed on.
#[derive(Debug)]
struct Handed {
    seq: u64,
    encoded: Bytes,
    /// Different bytes of it have arrived since.
    disputed: bool,
}

/// The merge of one channel.
#[derive(Debug)]
pub struct Merge {
    /// The next update to be delivered.
    next: u64,
    parts: BTreeMap<u64, Assembly>,
    whole: BTreeMap<u64, (Bytes, Via)>,
    /// Updates that will not come.
    gone: RangeSet,
    /// Bytes of everything that is not in order yet.
    buffered: usize,
    ready: VecDeque<Output>,
    /// Bytes of what is in order and waits for the application.
    ready_bytes: usize,
    /// The last updates that left, ascending, within bounds.
    handed: VecDeque<Handed>,
    handed_bytes: usize,
    /// Updates to be requested, with the reason.
    needs: BTreeMap<u64, NeedReason>,
    /// Updates below this one were asked for because they did not come.
    sought_below: u64,
    /// Findings that the owner has not taken yet.
    distrusts: VecDeque<Distrust>,
    /// The source can be asked for bytes.
    source_answers: bool,
    /// Flow bytes of updates up to this one are not taken: a source that cannot be asked sends
    /// them by the unicast path.
    no_flow_until: u64,
    check: Option<Check>,
    stats: MergeStats,
    dedupe_off: bool,
}

/// Findings that wait for the owner.
const MAX_DISTRUSTS: usize = 64;

impl Merge {
    /// A merge that delivers from `next` on. What any flow packet took part in leaves it only if
    /// `check` finds it valid. `dedupe_off` is test-only: what arrives again is delivered again.
    pub fn new(next: u64, check: Option<Check>, dedupe_off: bool) -> Self {
        Merge {
            next,
            parts: BTreeMap::new(),
            whole: BTreeMap::new(),
            gone: RangeSet::new(),
            buffered: 0,
            ready: VecDeque::new(),
            ready_bytes: 0,
            handed: VecDeque::new(),
            handed_bytes: 0,
            needs: BTreeMap::new(),
            sought_below: 0,
            distrusts: VecDeque::new(),
            source_answers: false,
            no_flow_until: 0,
            check,
            stats: MergeStats::default(),
            dedupe_off,
        }
    }

    /// Says whether the source of this connection can be asked for bytes.
    pub fn set_source_answers(&mut self, answers: bool) {
        self.source_answers = answers;
        if answers {
            self.no_flow_until = 0;
        }
    }

    /// Whether the source of this connection can be asked for bytes.
    pub fn does_source_answer(&self) -> bool {
        self.source_answers
    }

    /// The connection is gone, and the next one begins behind what was handed out: whatever a flow
    /// packet took part in ends with it, for its sender is only known to have held the key. What
    /// came by the unicast path stays.
    pub fn disconnected(&mut self) {
        self.needs.clear();
        self.sought_below = 0;
        let by_flow = |o: &Output| matches!(o, Output::Update(u) if u.via != Via::Unicast);
        if let Some(at) = self.ready.iter().position(by_flow) {
            for output in self.ready.split_off(at).into_iter().rev() {
                match output {
                    Output::Update(update) => {
                        self.next = update.seq;
                        self.ready_bytes -= update.encoded.len();
                        if update.via == Via::Unicast {
                            self.buffered += update.encoded.len();
                            self.whole.insert(update.seq, (update.encoded, update.via));
                        }
                    }
                    Output::Gap { from, to } => {
                        self.next = from;
                        self.gone.insert(from..to + 1);
                    }
                }
            }
            while self.handed.back().is_some_and(|h| h.seq >= self.next) {
                let dropped = self.handed.pop_back();
                self.handed_bytes -= dropped.map_or(0, |h| h.encoded.len());
            }
        }
        self.whole.retain(|_, (encoded, via)| {
            let stays = *via == Via::Unicast;
            if !stays {
                self.buffered -= encoded.len().min(self.buffered);
            }
            stays
        });
        self.parts.retain(|_, part| {
            let before = part.bytes.len();
            part.drop_flow();
            part.no_flow = false;
            self.buffered = (self.buffered + part.bytes.len()).saturating_sub(before);
            !part.unicast.is_empty()
        });
    }

    /// The next finding.
    pub fn pop_distrust(&mut self) -> Option<Distrust> {
        self.distrusts.pop_front()
    }

    /// Whether bytes of an update should be asked for now.
    pub(crate) fn has_need(&self) -> bool {
        let first = self.needs.first_key_value();
        self.source_answers && first.is_some_and(|(seq, _)| *seq < self.next + NEED_AHEAD)
    }

    /// The update that later ones wait for, if the source can be asked for it and was not.
    pub(crate) fn waits_for(&self) -> Option<u64> {
        let parts = self.parts.last_key_value().map(|(seq, _)| *seq);
        let whole = self.whole.last_key_value().map(|(seq, _)| *seq);
        let behind = parts.max(whole).is_some_and(|last| last > self.next);
        let can_come = self.source_answers && !self.is_full() && self.next >= self.sought_below;
        (behind && can_come).then_some(self.next)
    }

    /// Asks for the missing updates before the last whole one: their packets may have been
    /// acknowledged without having arrived, and would never be repaired.
    pub(crate) fn seek(&mut self) {
        let whole = self.whole.last_key_value().map(|(seq, _)| *seq);
        let end = whole
            .unwrap_or(0)
            .clamp(self.next + 1, self.next + NEED_AHEAD);
        for seq in self.next..end {
            let part = self.parts.get(&seq);
            if !self.whole.contains_key(&seq) && !part.is_some_and(|part| part.no_flow) {
                self.needs.entry(seq).or_insert(NeedReason::Missing);
            }
        }
        self.sought_below = end;
    }

    /// The next request; each update is requested once per reason.
    pub(crate) fn pop_need(&mut self) -> Option<Missing> {
        while self.has_need() {
            let (seq, reason) = self.needs.pop_first()?;
            let range = match self.parts.get(&seq) {
                Some(part) => part.missing(),
                None if seq < self.next || self.whole.contains_key(&seq) => None,
                None => Some(0..u64::MAX),
            };
            if let Some(range) = range {
                return Some(Missing { seq, range, reason });
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

    /// These updates are gone for good: those that are not here already are passed over in their place. Returns whether there was room to remember that.
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
        self.buffered
    }

    /// Bytes of all updates that were not handed out yet.
    pub fn held(&self) -> usize {
        self.buffered + self.ready_bytes
    }

    /// Whether so much waits for the application that the unicast streams should not be read on. What is not in order yet does not count: only the unicast
    /// path can fill its gaps.
    pub fn is_full(&self) -> bool {
        self.ready_bytes >= MAX_BUFFERED
    }

    /// Whether the flow may add nothing more.
    fn is_crowded(&self) -> bool {
        self.buffered + self.ready_bytes >= MAX_BUFFERED
    }

    /// Whether a packet with these bytes may be acknowledged: they are wanted and fit, are
    /// requested
    /// by NEED anyway, or are not needed any more. What is not acknowledged is repaired on the
    /// unicast path. A packet's ranges are asked for together and added together: it may overshoot
    /// [`MAX_BUFFERED`] by itself.
    pub fn accepts(&self, seq: u64, range: Range<u64>, ends: bool) -> bool {
        if seq < self.next || self.whole.contains_key(&seq) {
            return true;
        }
        if seq - self.next >= WINDOW || range.end > MAX_UPDATE as u64 || self.is_crowded() {
            return false;
        }
        // A source that answers sends what is missing of an update that is doubted.
        let doubted = self.parts.get(&seq).is_some_and(|part| {
            let beyond = part.have.max().is_some_and(|max| max >= range.end);
            let contradicts = part
                .total
                .is_some_and(|total| range.end > total || (ends && range.end != total));
            part.no_flow || contradicts || (ends && beyond)
        });
        seq > self.no_flow_until && (self.source_answers || !doubted)
    }

    /// Takes bytes of a flow packet; `total` is the update's length where the packet states it.
    /// What [`Merge::accepts`] refuses is dropped.
    pub fn add_flow(&mut self, seq: u64, offset: u64, data: &[u8], total: Option<u64>) {
        let past = seq < self.next || self.whole.contains_key(&seq);
        if past && !self.dedupe_off {
            self.stats.duplicates += 1;
            self.compare(seq, offset, data, total, Origin::Flow);
            return;
        }
        let end = offset + data.len() as u64;
        let far = !past && seq - self.next >= WINDOW;
        if far || end > MAX_UPDATE as u64 || seq <= self.no_flow_until {
            return;
        }
        let part = self.parts.entry(seq).or_default();
        if part.no_flow {
            return;
        }
        let before = part.bytes.len();
        let agrees = part.add_flow(offset, data, total);
        let whole = agrees && part.is_whole();
        self.buffered = (self.buffered + part.bytes.len()).saturating_sub(before);
        if whole {
            self.finish(seq);
        } else if !agrees {
            self.contradicted(seq);
        }
    }

    /// Takes bytes of the unicast path, of an update that is `total` bytes long.
    pub fn add_unicast(&mut self, seq: u64, offset: u64, data: &[u8], total: u64) {
        let past = seq < self.next || self.whole.contains_key(&seq);
        if past && !self.dedupe_off {
            self.stats.duplicates += 1;
            self.compare(seq, offset, data, Some(total), Origin::Unicast);
            if seq < self.next || self.whole.contains_key(&seq) {
                return;
            }
        }
        // The unicast path has flow control of its own; it is never dropped for want of room, only not read on (see `is_full`).
        if total > MAX_UPDATE as u64 {
            return;
        }
        let part = self.parts.entry(seq).or_default();
        let before = part.bytes.len();
        let agrees = part.add_unicast(offset, data, total);
        let whole = part.is_whole();
        self.buffered = (self.buffered + part.bytes.len()).saturating_sub(before);
        if !agrees {
            self.contradicted(seq);
        }
        if whole {
            self.finish(seq);
        }
    }

    /// Compares what arrives again with what it was the first time.
    pub fn compare(
        &mut self,
        seq: u64,
        offset: u64,
        data: &[u8],
        total: Option<u64>,
        origin: Origin,
    ) {
        let differs = |known: &[u8]| {
            let end = offset.saturating_add(data.len() as u64);
            let known_there = known.get(offset as usize..end as usize);
            known_there != Some(data) || total.is_some_and(|total| total != known.len() as u64)
        };
        if let Some((known, via)) = self.whole.get(&seq) {
            if !differs(known) {
                return;
            }
            // Which of them is true is not known, unless one came by the unicast path.
            if *via == Via::Unicast && origin == Origin::Flow {
                self.stats.mismatches += 1;
                return;
            }
            self.buffered -= known.len().min(self.buffered);
            self.whole.remove(&seq);
            self.contradicted(seq);
        } else if let Ok(at) = self.handed.binary_search_by_key(&seq, |h| h.seq)
            && let Some(handed) = self.handed.get_mut(at)
            && differs(&handed.encoded)
        {
            self.stats.mismatches += 1;
            if !std::mem::replace(&mut handed.disputed, true) {
                self.note(Distrust {
                    seq,
                    reason: NeedReason::Contradicted,
                    handed: true,
                });
            }
        }
    }

    fn note(&mut self, distrust: Distrust) {
        if self.distrusts.len() < MAX_DISTRUSTS {
            self.distrusts.push_back(distrust);
        }
    }

    fn contradicted(&mut self, seq: u64) {
        self.stats.mismatches += 1;
        self.distrust(seq, NeedReason::Contradicted);
    }

    /// Drops an update's flow bytes and refuses further ones: the unicast path brings it.
    fn distrust(&mut self, seq: u64, reason: NeedReason) {
        let part = self.parts.entry(seq).or_default();
        let before = part.bytes.len();
        part.drop_flow();
        self.buffered = (self.buffered + part.bytes.len()).saturating_sub(before);
        if std::mem::replace(&mut part.no_flow, true) {
            return;
        }
        self.stats.distrusted += 1;
        if self.source_answers {
            self.needs.insert(seq, reason);
        } else {
            self.no_flow_until = self.no_flow_until.max(seq);
        }
        self.note(Distrust {
            seq,
            reason,
            handed: false,
        });
    }

    fn finish(&mut self, seq: u64) {
        let Some(part) = self.parts.remove(&seq) else {
            return;
        };
        let via = part.via();
        let valid = || self.check.is_none_or(|check| check(seq, &part.bytes));
        if !part.is_certain() && !valid() {
            self.parts.insert(seq, part);
            self.distrust(seq, NeedReason::Invalid);
            return;
        }
        self.needs.remove(&seq);
        let encoded = Bytes::from(part.bytes);
        if self.dedupe_off && seq < self.next {
            self.buffered -= encoded.len().min(self.buffered);
            self.ready_bytes += encoded.len();
            let update = Delivered { seq, encoded, via };
            self.ready.push_back(Output::Update(update));
            return;
        }
        self.whole.insert(seq, (encoded, via));
        self.release();
    }

    /// Keeps an update that leaves, to be compared with what still arrives of it.
    fn remember(&mut self, seq: u64, encoded: Bytes) {
        self.handed_bytes += encoded.len();
        self.handed.push_back(Handed {
            seq,
            encoded,
            disputed: false,
        });
        while self.handed.len() > MAX_HANDED || self.handed_bytes > MAX_HANDED_BYTES {
            let Some(oldest) = self.handed.pop_front() else {
                break;
            };
            self.handed_bytes -= oldest.encoded.len();
        }
    }

    fn release(&mut self) {
        loop {
            if let Some((encoded, via)) = self.whole.remove(&self.next) {
                self.buffered -= encoded.len().min(self.buffered);
                self.ready_bytes += encoded.len();
                self.remember(self.next, encoded.clone());
                self.ready.push_back(Output::Update(Delivered {
                    seq: self.next,
                    encoded,
                    via,
                }));
                self.next += 1;
            } else if self.gone.contains(self.next) {
                self.pass();
            } else {
                break;
            }
        }
        self.gone.remove_below(self.next);
    }

    /// Passes over what is gone, up to the next update that is here or may still come.
    fn pass(&mut self) {
        let from = self.next;
        let gone = self.gone.iter().find(|r| r.contains(&from));
        let end = gone.map_or(from, |r| r.end);
        let here = self.whole.range(from..).next().map(|(seq, _)| *seq);
        self.next = end.min(here.unwrap_or(end));
        let kept = self.parts.split_off(&self.next);
        let dropped = std::mem::replace(&mut self.parts, kept);
        let freed: usize = dropped.values().map(|part| part.bytes.len()).sum();
        self.buffered -= freed.min(self.buffered);
        self.needs = self.needs.split_off(&self.next);
        let to = self.next - 1;
        self.ready.push_back(Output::Gap { from, to });
    }

    /// The next update in order, or the gap in its place.
    pub fn pop(&mut self) -> Option<Output> {
        let output = self.ready.pop_front()?;
        if let Output::Update(update) = &output {
            self.ready_bytes -= update.encoded.len();
        }
        Some(output)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pop(merge: &mut Merge) -> Option<Delivered> {
        match merge.pop()? {
            Output::Update(update) => Some(update),
            Output::Gap { from, to } => panic!("a gap from {from} to {to}"),
        }
    }

    #[test]
    fn what_is_gone_is_passed_over_and_what_is_here_is_not() {
        let mut merge = Merge::new(1, None, false);
        for seq in [3, 7] {
            merge.add_flow(seq, 0, b"x", Some(1));
        }
        merge.add_flow(4, 0, b"part", Some(9));
        assert!(merge.pass_over(2..6));
        assert_eq!(merge.pop(), None, "1 may still come");
        merge.add_unicast(1, 0, b"x", 1);
        let got: Vec<_> = std::iter::from_fn(|| merge.pop())
            .map(|o| match o {
                Output::Update(u) => (u.seq, u.seq),
                Output::Gap { from, to } => (from, to),
            })
            .collect();
        assert_eq!(got, [(1, 1), (2, 2), (3, 3), (4, 5)]);
        merge.add_unicast(6, 0, b"x", 1);
        assert_eq!(std::iter::from_fn(|| merge.pop()).count(), 2);
        assert_eq!(
            (merge.next(), merge.buffered(), merge.gone.len()),
            (8, 0, 0)
        );
    }

    /// Byte 0 is the length, so that a part of it is none.
    fn update(seq: u64, len: usize) -> Vec<u8> {
        let bytes = (1..len).map(|i| (i as u64 * 31 + seq) as u8);
        std::iter::once(len as u8).chain(bytes).collect()
    }

    proptest! {
        /// Pieces of several updates in any order, by both ways, with overlaps and repetitions: each update leaves once, whole and in order.
        #[test]
        fn once_whole_and_in_order(pieces in prop::collection::vec((1u64..6, 0usize..40, 1usize..30, any::<bool>()), 0..200), len in 1usize..40) {
            let mut merge = Merge::new(1, None, false);
            let mut got = Vec::new();
            let last: Vec<_> = (1..6).map(|seq| (seq, 0, len, true)).collect();
            for (seq, offset, n, unicast) in pieces.into_iter().chain(last) {
                let whole = update(seq, len);
                let start = offset.min(len - 1);
                let end = (start + n).min(len);
                let piece = &whole[start..end];
                if unicast {
                    merge.add_unicast(seq, start as u64, piece, len as u64);
                } else {
                    let total = (end == len).then_some(len as u64);
                    merge.add_flow(seq, start as u64, piece, total);
                }
                got.extend(std::iter::from_fn(|| pop(&mut merge)));
            }
            prop_assert_eq!(got.iter().map(|d| d.seq).collect::<Vec<_>>(), vec![1, 2, 3, 4, 5]);
            prop_assert!(got.iter().all(|d| d.encoded == update(d.seq, len)));
            prop_assert_eq!((merge.buffered, merge.stats.mismatches), (0, 0));
        }

        /// Whatever a forger with the group key sends first, what the source says on the unicast path is what is delivered.
        #[test]
        fn unicast_wins(forged in prop::collection::vec((0u64..50, prop::collection::vec(any::<u8>(), 1..30), any::<bool>()), 0..10), len in 1usize..40) {
            let mut merge = Merge::new(1, None, false);
            for (offset, data, fin) in forged {
                merge.add_flow(1, offset, &data, fin.then_some(offset + data.len() as u64));
                // A forgery that is whole at once is delivered: until source authentication is on, docs/security.md says so.
                if pop(&mut merge).is_some() { return Ok(()); }
            }
            let right = update(1, len);
            merge.add_unicast(1, 0, &right, len as u64);
            prop_assert_eq!(pop(&mut merge).map(|d| d.encoded), Some(right.into()));
        }
    }

    #[test]
    fn contradictions_are_counted() {
        let mut merge = Merge::new(1, None, false);
        merge.add_flow(1, 0, b"xx", None);
        merge.add_unicast(1, 0, b"abcd", 4);
        assert_eq!(
            pop(&mut merge).map(|d| (d.encoded, d.via)),
            Some(("abcd".into(), Via::Unicast))
        );
        assert_eq!(merge.stats.mismatches, 1);
        merge.add_unicast(1, 0, b"abcd", 4);
        assert_eq!((pop(&mut merge), merge.stats.duplicates), (None, 1));
    }

    /// What was asked for together is taken together: it is acknowledged, so nobody would send it again.
    #[test]
    fn a_packet_that_fills_the_merge_is_taken_whole() {
        let mut merge = Merge::new(1, None, false);
        for seq in 2..10 {
            let all = vec![0; MAX_UPDATE - 100];
            merge.add_flow(seq, 0, &all, None);
        }
        let room = MAX_BUFFERED - merge.buffered;
        assert!(merge.accepts(10, 0..room as u64, false) && merge.accepts(11, 0..1, true));
        merge.add_flow(10, 0, &vec![0; room], None);
        merge.add_flow(11, 0, b"x", Some(1));
        assert!(merge.whole.contains_key(&11));
        assert!(!merge.accepts(12, 0..1, true));
    }

    /// The source cannot be asked: true bytes that a forged end keeps out are not acknowledged,
    /// and the repair shows that all of it has to be fetched again.
    #[test]
    fn a_forged_end_is_overruled() {
        let mut merge = Merge::new(1, None, false);
        let right = update(1, 1000);
        merge.add_flow(1, 0, &right[..100], None);
        merge.add_flow(1, 150, b"x", Some(151));
        assert!(!merge.accepts(1, 100..1000, true));
        merge.add_unicast(1, 100, &right[100..], 1000);
        assert_eq!(merge.pop(), None);
        assert_eq!(found(&mut merge), [(1, NeedReason::Contradicted, false)]);
        merge.disconnected();
        merge.add_unicast(1, 0, &right[..100], 1000);
        assert_eq!(pop(&mut merge).map(|d| d.encoded), Some(right.into()));
    }

    #[test]
    fn memory_is_bounded_against_the_flow() {
        let mut merge = Merge::new(1, None, false);
        assert!(!merge.accepts(1 + WINDOW, 0..1, false), "too far ahead");
        assert!(
            !merge.accepts(1, MAX_UPDATE as u64..MAX_UPDATE as u64 + 1, false),
            "too long"
        );
        let far = MAX_UPDATE as u64 - 1;
        let mut seq = 1;
        while merge.accepts(seq, far..far + 1, false) {
            merge.add_flow(seq, far, b"x", None);
            seq += 1;
            assert!(seq < WINDOW, "it must get full before the window ends");
        }
        assert!(merge.buffered <= MAX_BUFFERED + MAX_UPDATE);
    }

    fn is_valid(seq: u64, bytes: &[u8]) -> bool {
        !bytes.is_empty() && bytes == update(seq, bytes.len())
    }

    /// A merge at a source that answers.
    fn asking() -> Merge {
        let mut merge = Merge::new(1, Some(is_valid), false);
        merge.set_source_answers(true);
        merge
    }

    fn found(merge: &mut Merge) -> Vec<(u64, NeedReason, bool)> {
        let all = std::iter::from_fn(|| merge.pop_distrust());
        all.map(|d| (d.seq, d.reason, d.handed)).collect()
    }

    fn need(seq: u64, range: Range<u64>, reason: NeedReason) -> Option<Missing> {
        Some(Missing { seq, range, reason })
    }

    /// Ten forged bytes before the true ones: nothing of the flow is believed, and the unicast
    /// path brings the update.
    #[test]
    fn forged_bytes_ahead_of_the_true_ones_lose_nothing() {
        let (mut merge, right) = (asking(), update(1, 100));
        merge.add_flow(1, 0, &[0xee; 10], None);
        assert!(merge.accepts(1, 0..100, true));
        merge.add_flow(1, 0, &right, Some(100));
        assert_eq!(merge.pop(), None);
        assert_eq!(found(&mut merge), [(1, NeedReason::Contradicted, false)]);
        let whole = need(1, 0..u64::MAX, NeedReason::Contradicted);
        assert_eq!((merge.pop_need(), merge.pop_need()), (whole, None));
        // The forger goes on: it is acknowledged, since the source was asked, and not taken.
        assert!(merge.accepts(1, 0..100, true));
        merge.add_flow(1, 0, &[0xee; 100], Some(100));
        assert_eq!((merge.pop(), merge.buffered()), (None, 0));
        merge.add_unicast(1, 0, &right, 100);
        let got = pop(&mut merge).map(|d| (d.encoded, d.via));
        assert_eq!(got, Some((right.into(), Via::Unicast)));
        assert_eq!((merge.stats.mismatches, merge.stats.distrusted), (1, 1));
    }

    #[test]
    fn what_is_whole_and_not_valid_is_asked_for_again() {
        let mut merge = asking();
        merge.add_flow(2, 0, b"garbage", Some(7));
        assert_eq!(found(&mut merge), [(2, NeedReason::Invalid, false)]);
        let whole = need(2, 0..u64::MAX, NeedReason::Invalid);
        assert_eq!(merge.pop_need(), whole);
        // A half that the unicast path brought stays, and only the rest is asked for.
        let right = update(1, 100);
        merge.add_unicast(1, 0, &right[..50], 100);
        merge.add_flow(1, 50, &[0xee; 50], None);
        assert_eq!(found(&mut merge), [(1, NeedReason::Invalid, false)]);
        let rest = need(1, 50..100, NeedReason::Invalid);
        assert_eq!(merge.pop_need(), rest);
        merge.add_unicast(1, 50, &right[50..], 100);
        assert_eq!(pop(&mut merge).map(|d| d.encoded), Some(right.into()));
    }

    /// Bytes of the unicast path are the source's own, whatever the application thinks of them.
    #[test]
    fn what_came_by_unicast_is_handed_on_as_it_is() {
        let mut merge = asking();
        merge.add_unicast(1, 0, b"garbage", 7);
        merge.add_unicast(2, 0, b"", 0);
        merge.add_flow(3, 0, b"bage", None);
        merge.add_unicast(3, 0, b"bage", 4);
        assert_eq!(std::iter::from_fn(|| pop(&mut merge)).count(), 3);
        assert_eq!((found(&mut merge), merge.pop_need()), (vec![], None));
    }

    /// A whole forgery that waits for its turn, and the true packet: the unicast path decides.
    #[test]
    fn a_whole_forgery_that_waits_is_contradicted_by_the_true_one() {
        let mut merge = asking();
        merge.check = None;
        for (first, second) in [(b"forged", b"genuine".as_slice()), (b"wrong!", b"right!")] {
            let seq = merge.next() + 2;
            merge.add_flow(seq, 0, first, Some(6));
            merge.add_flow(seq, 0, second, Some(second.len() as u64));
            let again = need(seq, 0..u64::MAX, NeedReason::Contradicted);
            assert_eq!(merge.pop_need(), again);
            for seq in seq - 2..=seq {
                merge.add_unicast(seq, 0, second, second.len() as u64);
                assert_eq!(
                    pop(&mut merge).map(|d| d.encoded.to_vec()),
                    Some(second.to_vec())
                );
            }
        }
        assert_eq!(merge.buffered(), 0);
        // One that was handed on cannot be had back, but is noticed, by either path, and once.
        merge.add_flow(7, 0, b"forged", Some(6));
        assert!(pop(&mut merge).is_some());
        found(&mut merge);
        merge.add_flow(7, 0, b"gen", None);
        merge.add_unicast(7, 0, b"genuine", 7);
        assert_eq!(found(&mut merge), [(7, NeedReason::Contradicted, true)]);
        assert_eq!(merge.stats.mismatches, 4);
    }

    #[test]
    fn what_was_handed_on_is_remembered_within_bounds() {
        let mut merge = asking();
        merge.check = None;
        for seq in 1..2000 {
            merge.add_flow(seq, 0, &[7; 10], Some(10));
        }
        assert_eq!((merge.handed.len(), merge.handed_bytes), (MAX_HANDED, 2560));
        merge.add_flow(1, 0, b"x", None);
        assert_eq!(merge.stats.mismatches, 0, "too long ago");
        merge.add_flow(2000, 0, &vec![7; MAX_UPDATE], Some(MAX_UPDATE as u64));
        assert_eq!((merge.handed.len(), merge.handed_bytes), (0, 0));
    }

    /// Flow bytes end with the connection; the next one's cursor is that of the last update that
    /// was handed out.
    #[test]
    fn bytes_of_the_flow_end_with_their_connection() {
        let mut merge = asking();
        merge.add_unicast(1, 0, &update(1, 9), 9);
        merge.add_flow(2, 0, &update(2, 9), Some(9));
        assert!(merge.pass_over(3..4));
        merge.add_unicast(4, 0, &update(4, 9), 9);
        merge.add_flow(6, 0, &update(6, 9), Some(9));
        merge.add_unicast(7, 0, &update(7, 9), 9);
        merge.add_unicast(8, 0, &update(8, 9)[..4], 9);
        merge.add_flow(8, 4, &update(8, 9)[4..7], None);
        merge.add_flow(9, 0, &update(9, 9)[..4], None);
        assert_eq!((merge.next(), merge.held()), (5, 56));
        merge.disconnected();
        assert_eq!((merge.next(), merge.held()), (2, 31), "1, 4, 7, some of 8");
        assert_eq!(pop(&mut merge).map(|d| d.seq), Some(1));
        for seq in [2, 5, 6, 8, 9] {
            merge.add_unicast(seq, 0, &update(seq, 9), 9);
        }
        let got: Vec<_> = std::iter::from_fn(|| merge.pop())
            .map(|o| match o {
                Output::Update(u) => (u.seq, u.via),
                Output::Gap { from, .. } => (from, Via::Flow),
            })
            .collect();
        let unicast = |seq| (seq, Via::Unicast);
        let gap = (3, Via::Flow);
        assert_eq!(got[..3], [unicast(2), gap, unicast(4)]);
        assert_eq!(got[3..], [5, 6, 7, 8, 9].map(unicast));
        assert_eq!((merge.held(), merge.stats.mismatches), (0, 0));
    }

    /// Requests are for what delivery waits for, and what is close behind it.
    #[test]
    fn few_requests_are_open() {
        let mut merge = asking();
        for seq in 1..1000 {
            merge.add_flow(seq, 0, b"garbage", Some(7));
        }
        let asked = |merge: &mut Merge| std::iter::from_fn(|| merge.pop_need()).count() as u64;
        assert_eq!(asked(&mut merge), NEED_AHEAD);
        merge.add_unicast(1, 0, b"", 0);
        merge.add_unicast(2, 0, b"", 0);
        assert_eq!(asked(&mut merge), 2);
        merge.disconnected();
        assert_eq!(asked(&mut merge), 0);
    }

    /// With a source that does not answer NEED, the flow is not believed until the update has
    /// come.
    #[test]
    fn without_an_answering_source_the_flow_is_not_believed_until_the_update_is_past() {
        let mut merge = asking();
        merge.set_source_answers(false);
        merge.add_flow(3, 0, b"garbage", Some(7));
        assert_eq!(found(&mut merge), [(3, NeedReason::Invalid, false)]);
        assert_eq!(merge.pop_need(), None);
        merge.disconnected();
        for seq in 1..=3 {
            assert!(!merge.accepts(seq, 0..9, true), "it is not acknowledged");
            merge.add_flow(seq, 0, &update(seq, 9), Some(9));
        }
        assert_eq!(merge.pop(), None);
        for seq in 1..=3 {
            merge.add_unicast(seq, 0, &update(seq, 9), 9);
        }
        assert!(merge.accepts(4, 0..9, true));
        merge.add_flow(4, 0, &update(4, 9), Some(9));
        let all = std::iter::from_fn(|| pop(&mut merge));
        assert_eq!(all.map(|d| d.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    proptest! {
        /// Whatever a forger sends by the flow, among the true bytes: what the source sends when
        /// it is asked makes every update whole and true.
        #[test]
        fn nothing_forged_is_lost_for_ever(
            packets in prop::collection::vec(
                (1u64..6, 0usize..40, 1usize..30, any::<bool>(), any::<bool>()),
                0..60,
            ),
            len in 1usize..40,
        ) {
            let mut merge = asking();
            for (seq, offset, n, forged, fin) in packets {
                let whole = update(seq, len);
                let start = offset.min(len - 1);
                let end = (start + n).min(len);
                let bytes = if forged { vec![0xee; n] } else { whole[start..end].to_vec() };
                let last = start + bytes.len();
                let ends = if forged { fin } else { end == len };
                let range = start as u64..last as u64;
                if merge.accepts(seq, range, ends) {
                    merge.add_flow(seq, start as u64, &bytes, ends.then_some(last as u64));
                }
            }
            // All true packets arrive and are acknowledged: nothing else is repaired.
            for seq in 1..6 {
                let whole = update(seq, len);
                prop_assert!(merge.accepts(seq, 0..len as u64, true));
                merge.add_flow(seq, 0, &whole, Some(len as u64));
            }
            while let Some(Missing { seq, range, .. }) = merge.pop_need() {
                let whole = update(seq, len);
                let range = range.start as usize..range.end.min(len as u64) as usize;
                merge.add_unicast(seq, range.start as u64, &whole[range], len as u64);
            }
            let got: Vec<_> = std::iter::from_fn(|| pop(&mut merge)).collect();
            prop_assert_eq!(got.iter().map(|d| d.seq).collect::<Vec<_>>(), vec![1, 2, 3, 4, 5]);
            prop_assert!(got.iter().all(|d| d.encoded == update(d.seq, len)));
            prop_assert_eq!(merge.held(), 0);
        }
    }
}
