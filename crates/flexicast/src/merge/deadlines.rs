//! Updates with a deadline in a merge: each is handed on as soon as it is whole, or not at all, and
//! those that expired are passed over in their place (protocol.md section 7.6).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Delivered, Merge, Output, WINDOW};
use crate::deadline::{deadline_of, is_past};
use crate::range::RangeSet;

/// Separate ranges of expired updates, which a receiver remembers until it comes to them.
const MAX_EXPIRED: usize = WINDOW as usize;

/// Deadlines of the updates of a merge, and what has become of them.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Whether they are kept: the source of the connection does so, too.
    on: bool,
    /// Unix time in µs by the source's clock, as the owner said last; `None` while it is not known.
    now_us: Option<u64>,
    /// Number of deadlines that were read so far.
    seen: u64,
    /// Deadlines in Unix ms of updates that are not whole, by `seq`.
    partial: BTreeMap<u64, u64>,
    /// The same, earliest first.
    due: BTreeSet<(u64, u64)>,
    /// Updates that expired before they were whole, and were not passed over yet.
    expired: RangeSet,
    /// Lengths of those of them that are known.
    lengths: BTreeMap<u64, usize>,
    /// Whole updates that wait to be handed on out of order.
    fresh: BTreeSet<u64>,
    /// Updates that were handed on out of order, and not yet in order.
    shown: BTreeSet<u64>,
    /// Whether late updates are handed on.
    #[cfg(feature = "fault-injection")]
    expired_delivered: bool,
}

impl Deadlines {
    /// Deadlines of another history, at the same source and time.
    pub(super) fn restarted(&self) -> Self {
        Deadlines {
            on: self.on,
            now_us: self.now_us,
            seen: self.seen,
            #[cfg(feature = "fault-injection")]
            expired_delivered: self.expired_delivered,
            ..Deadlines::default()
        }
    }

    /// Whether an update that is not here has expired, and is not come to.
    pub(super) fn has_expired(&self, seq: u64) -> bool {
        self.expired.contains(seq)
    }

    /// Takes the next updates from `next` on that have expired: where they end, and their length
    /// if it is known.
    pub(super) fn take_expired(&mut self, next: u64) -> Option<(u64, usize)> {
        let end = self.expired.iter().find(|r| r.contains(&next))?.end;
        match self.lengths.remove(&next) {
            Some(length) => Some((next + 1, length)),
            None => {
                let known = self.lengths.range(next..end).next();
                Some((known.map_or(end, |(seq, _)| *seq), 0))
            }
        }
    }

    /// Puts back updates that were passed over and not handed on.
    pub(super) fn put_back(&mut self, seqs: Range<u64>, length: usize) {
        if length > 0 {
            self.lengths.insert(seqs.start, length);
        }
        self.expired.insert(seqs);
    }

    /// Forgets what concerns updates below `next`, apart from whole ones.
    pub(super) fn forget_below(&mut self, next: u64) {
        self.expired.remove_below(next);
        if self
            .lengths
            .first_key_value()
            .is_some_and(|(seq, _)| *seq < next)
        {
            self.lengths = self.lengths.split_off(&next);
        }
        while let Some(first) = self.partial.first_entry().filter(|e| *e.key() < next) {
            let (seq, deadline) = first.remove_entry();
            self.due.remove(&(deadline, seq));
        }
    }

    /// Forgets the deadlines of updates that are not whole.
    pub(super) fn forget_partial(&mut self) {
        self.partial.clear();
        self.due.clear();
    }

    fn forget(&mut self, seq: u64) {
        if let Some(deadline) = self.partial.remove(&seq) {
            self.due.remove(&(deadline, seq));
        }
    }

    /// Whether deadlines are kept, as they always are but for an injected fault.
    fn is_on(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return self.on && !self.expired_delivered;
        #[cfg(not(feature = "fault-injection"))]
        self.on
    }

    /// Whether the deadline of a whole update has passed; `None` while the time is not known.
    fn is_late(&self, update: &Delivered) -> Option<bool> {
        match update.deadline_ms.filter(|_| self.is_on()) {
            Some(deadline) => self.now_us.map(|now| is_past(deadline, now)),
            None => Some(false),
        }
    }

    /// Whether the next update in order can be handed on, or passed over: it can be judged.
    pub(super) fn is_judged(&self, output: &Output) -> bool {
        match output {
            Output::Update(update) => {
                self.shown.contains(&update.seq) || self.is_late(update).is_some()
            }
            Output::Gap { .. } | Output::Expired { .. } => true,
        }
    }

    /// Notes that an update is whole.
    pub(super) fn note_whole(&mut self, update: &Delivered) {
        self.forget(update.seq);
        if update.deadline_ms.is_some() && !self.shown.contains(&update.seq) {
            self.fresh.insert(update.seq);
        }
    }

    /// Turns an update whose time in order has come into what is handed on: one that was not handed
    /// on in time has expired.
    pub(super) fn judge(&mut self, update: Delivered) -> Output {
        let was_shown = self.shown.contains(&update.seq);
        self.forget_up_to(update.seq);
        match !was_shown && self.is_late(&update) == Some(true) {
            true => Output::Expired {
                from: update.seq,
                to: update.seq,
                bytes: update.encoded.len() as u64,
            },
            false => Output::Update(update),
        }
    }

    /// Forgets which updates were handed on out of order, up to one that is handed on in order.
    pub(super) fn forget_up_to(&mut self, seq: u64) {
        for set in [&mut self.shown, &mut self.fresh] {
            while set.first().is_some_and(|first| *first <= seq) {
                set.pop_first();
            }
        }
    }
}

impl Merge {
    /// Says whether the source of this connection keeps deadlines. Otherwise updates with one are
    /// like all others.
    pub fn set_deadlines(&mut self, on: bool) {
        self.deadlines.on = on;
    }

    /// Hands on what has expired, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_expired_delivered(&mut self, on: bool) {
        self.deadlines.expired_delivered = on;
    }

    /// Says the Unix time in µs by the source's clock, if it is known, and passes over what has
    /// expired. Until it is known, whole updates with a deadline wait.
    pub fn set_time(&mut self, now_us: Option<u64>) {
        self.deadlines.now_us = now_us;
        let Some(now_us) = now_us.filter(|_| self.deadlines.is_on()) else {
            return;
        };
        let mut has_expired = false;
        while let Some((deadline, seq)) = self.deadlines.due.first().copied() {
            if !is_past(deadline, now_us) {
                break;
            }
            self.deadlines.forget(seq);
            if seq < self.next || self.whole.contains_key(&seq) {
                continue;
            }
            let length = self.parts.get(&seq).and_then(|part| part.length());
            self.deadlines.put_back(seq..seq + 1, length.unwrap_or(0));
            self.drop_parts(seq..seq + 1);
            self.stats.late += 1;
            has_expired = true;
        }
        if has_expired {
            self.release();
        }
    }

    /// Returns the next deadline of an update that is not whole, in Unix ms.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let due = self
            .deadlines
            .due
            .first()
            .filter(|_| self.deadlines.is_on());
        due.map(|(deadline, _)| *deadline)
    }

    /// Returns the number of deadlines that were read so far.
    pub(crate) fn deadlines_seen(&self) -> u64 {
        self.deadlines.seen
    }

    /// The source says that these updates have expired: those that are not whole are passed over in
    /// their place. Returns whether there was room to remember that.
    pub fn expire(&mut self, seqs: Range<u64>) -> bool {
        if self.deadlines.expired.len() >= MAX_EXPIRED {
            return false;
        }
        let seqs = seqs.start.max(self.next)..seqs.end;
        if !seqs.is_empty() {
            self.drop_parts(seqs.clone());
            self.deadlines.expired.insert(seqs);
            self.release();
        }
        true
    }

    /// Drops what is here of updates that are not whole.
    fn drop_parts(&mut self, seqs: Range<u64>) {
        let dropped: Vec<u64> = self
            .parts
            .range(seqs.clone())
            .map(|(seq, _)| *seq)
            .collect();
        for seq in dropped {
            if let Some(part) = self.parts.remove(&seq) {
                self.forget(&part);
            }
        }
        for set in [&mut self.forged, &mut self.shunned, &mut self.requested] {
            set.retain(|seq| !seqs.contains(seq));
        }
        self.needs.retain(|seq, _| !seqs.contains(seq));
        self.unproven.retain(|seq, _| !seqs.contains(seq));
    }

    /// Notes the deadline that the beginning of an update states, which the source has sent.
    pub(super) fn note_deadline(&mut self, seq: u64, beginning: &[u8]) {
        let deadline = deadline_of(beginning).filter(|_| self.deadlines.on);
        let Some(deadline) = deadline.filter(|_| seq >= self.next) else {
            return;
        };
        self.deadlines.forget(seq);
        self.deadlines.seen += 1;
        self.deadlines.partial.insert(seq, deadline);
        self.deadlines.due.insert((deadline, seq));
    }

    /// Returns the deadline of a whole update, if the source has stated it: where the flow's
    /// updates are not signed, any holder of its key may have.
    pub(super) fn deadline_of_whole(&mut self, encoded: &[u8], certain: bool) -> Option<u64> {
        let proved = certain || self.signatures().is_some();
        let deadline = deadline_of(encoded).filter(|_| proved && self.deadlines.on);
        self.deadlines.seen += u64::from(deadline.is_some());
        deadline
    }

    /// The newest whole update with a deadline that was not handed on yet and has not expired,
    /// whatever is missing before it. In order it comes again.
    pub fn pop_live(&mut self) -> Option<Delivered> {
        loop {
            let seq = *self.deadlines.fresh.last()?;
            let update = self.ready_update(seq).or(self.whole.get(&seq));
            let is_late = match update {
                Some(update) => self.deadlines.is_late(update)?,
                None => true,
            };
            let update = update.filter(|_| !is_late).cloned();
            self.deadlines.fresh.remove(&seq);
            if let Some(update) = update {
                self.deadlines.shown.insert(seq);
                return Some(update);
            }
        }
    }

    /// Returns an update that is in order and was not handed on in order yet.
    fn ready_update(&self, seq: u64) -> Option<&Delivered> {
        match self.ready.get(self.ready_from(seq))? {
            Output::Update(update) if update.seq == seq => Some(update),
            _ => None,
        }
    }

    /// Returns the place of the first output that ends at `seq` or after it.
    pub(super) fn ready_from(&self, seq: u64) -> usize {
        self.ready.partition_point(|output| output.last() < seq)
    }
}
