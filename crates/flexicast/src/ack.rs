//! Acknowledgements of flow packets: the PATH_ACK codec, and the tracker that decides what a
//! receiver acknowledges and when (protocol.md section 4).

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::range::RangeSet;
use crate::wire::{BufMutExt, Reader, WireError};
use crate::{Ecn, EcnCounts, PathId};

/// The type of a PATH_ACK in a QUIC DATAGRAM.
pub const PATH_ACK: u64 = 0x3e;
/// The most ranges that one PATH_ACK carries: the newest.
pub const MAX_RANGES: usize = 64;
/// The most rebuilt ranges that one PATH_ACK carries: the newest.
pub const MAX_REBUILT: usize = 32;
/// With this many ranges pending, the acknowledgement goes at once.
const RANGES_AT_ONCE: usize = 48;
/// Each state of the ranges is sent at least this often, because datagrams get lost.
const COPIES: u8 = 2;
/// A receiver remembers this many ranges of packet numbers; what lies below the lowest counts as
/// received.
const REMEMBERED: usize = 256;

/// An acknowledgement of packets of one path (draft-ietf-quic-multipath, PATH_ACK; delay exponent
/// 0).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathAck {
    /// On which path the packets arrived.
    pub path: PathId,
    /// Delay of the acknowledgement of the largest packet number.
    pub delay: Duration,
    /// The packet numbers, newest range first, disjoint and apart. Never empty.
    pub ranges: Vec<Range<u64>>,
    /// Packets of the path that arrived with each ECN mark; `None` where none was marked.
    pub ecn: Option<EcnCounts>,
    /// Packets that did not arrive and were rebuilt from repair symbols, newest range first,
    /// disjoint and apart; all below the largest packet number.
    pub rebuilt: Vec<Range<u64>>,
}

impl PathAck {
    /// The largest packet number acknowledged.
    pub fn largest(&self) -> u64 {
        self.ranges.first().map_or(0, |r| r.end - 1)
    }

    /// The DATAGRAM payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.ranges.len() * 4);
        out.put_varint(PATH_ACK);
        out.put_varint(self.path.0);
        out.put_varint(self.largest());
        out.put_varint(self.delay.as_micros() as u64);
        out.put_varint(self.ranges.len().saturating_sub(1) as u64);
        let mut below: Option<u64> = None;
        for range in &self.ranges {
            if let Some(below) = below {
                put_gap(&mut out, below, range);
            }
            out.put_varint((range.end - range.start).saturating_sub(1));
            below = Some(range.start);
        }
        if let Some(ecn) = &self.ecn {
            ecn.put(&mut out);
        }
        if self.rebuilt.is_empty() {
            return out;
        }
        if self.ecn.is_none() {
            EcnCounts::default().put(&mut out);
        }
        out.put_varint(self.rebuilt.len() as u64);
        let mut below = self.largest() + 1;
        for range in &self.rebuilt {
            put_gap(&mut out, below, range);
            out.put_varint((range.end - range.start).saturating_sub(1));
            below = range.start;
        }
        out
    }

    /// Reads a DATAGRAM payload that begins with type [`PATH_ACK`]; bytes after the last range that
    /// are no ECN counts, or no rebuilt ranges behind these, are ignored.
    ///
    /// # Errors
    ///
    /// The bytes are no PATH_ACK, or have more ranges than one may have.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        const WHAT: &str = "PATH_ACK";
        let mut r = Reader::new(WHAT, bytes);
        if r.varint()? != PATH_ACK {
            return Err(WireError::invalid(WHAT, "another type"));
        }
        let path = PathId(r.varint()?);
        let largest = r.varint()?;
        let delay = Duration::from_micros(r.varint()?);
        let count = r.varint()?;
        if count >= MAX_RANGES as u64 {
            return Err(WireError::invalid(WHAT, "more than 64 ranges"));
        }
        let below_zero = || WireError::invalid(WHAT, BELOW_ZERO);
        let start = largest.checked_sub(r.varint()?).ok_or_else(below_zero)?;
        let mut ranges = Vec::with_capacity(count as usize + 1);
        ranges.push(start..largest + 1);
        let mut lowest = start;
        for _ in 0..count {
            ranges.push(read_range(&mut r, WHAT, &mut lowest)?);
        }
        // All of them 0 is as none at all.
        let counts = EcnCounts::read(&mut r);
        let mut rebuilt = Vec::new();
        let mut lowest = largest + 1;
        if counts.is_some() && r.remaining() > 0 {
            let count = r.varint()?;
            if count > MAX_REBUILT as u64 {
                return Err(WireError::invalid(WHAT, "more than 32 rebuilt ranges"));
            }
            for _ in 0..count {
                rebuilt.push(read_range(&mut r, WHAT, &mut lowest)?);
            }
        }
        Ok(PathAck {
            path,
            delay,
            ranges,
            ecn: counts.filter(|counts| !counts.is_empty()),
            rebuilt,
        })
    }
}

const BELOW_ZERO: &str = "a range below zero";

/// Appends the gap between a range and what lies above it from `below` on: one less than the packet
/// numbers between the two, as in RFC 9000 section 19.3.1.
fn put_gap(out: &mut Vec<u8>, below: u64, range: &Range<u64>) {
    out.put_varint(below.saturating_sub(range.end).saturating_sub(1));
}

/// Reads the next lower range, and moves `lowest` to its first packet number.
fn read_range(
    r: &mut Reader<'_>,
    what: &'static str,
    lowest: &mut u64,
) -> Result<Range<u64>, WireError> {
    let below_zero = || WireError::invalid(what, BELOW_ZERO);
    let end = lowest.checked_sub(r.varint()? + 1).ok_or_else(below_zero)?;
    let start = end.checked_sub(r.varint()? + 1).ok_or_else(below_zero)?;
    *lowest = start;
    Ok(start..end)
}

/// A receiver's state of one path of a flow: packet numbers received, and those not acknowledged
/// yet.
#[derive(Debug, Clone)]
pub struct AckTracker {
    received: RangeSet,
    /// Everything below counts as received; it fell out of memory.
    floor: u64,
    largest_at: Option<Instant>,
    /// Ranges that were opened since the last acknowledgement.
    fresh_ranges: usize,
    copies_due: u8,
    deadline: Option<Instant>,
    ecn: EcnCounts,
    /// Packets that were rebuilt, which may have arrived since.
    rebuilt: RangeSet,
}

impl Default for AckTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl AckTracker {
    /// Nothing received yet.
    pub fn new() -> Self {
        Self::starting_at(0)
    }

    /// Nothing received yet, and everything below `floor` counts as received.
    pub fn starting_at(floor: u64) -> Self {
        AckTracker {
            received: RangeSet::new(),
            floor,
            largest_at: None,
            fresh_ranges: 0,
            copies_due: 0,
            deadline: None,
            ecn: EcnCounts::default(),
            rebuilt: RangeSet::new(),
        }
    }

    /// Whether this packet number arrived before, or is too old to tell.
    pub fn is_duplicate(&self, pn: u64) -> bool {
        pn < self.floor || self.received.contains(pn)
    }

    /// The largest packet number that arrived.
    pub fn largest(&self) -> Option<u64> {
        self.received.max()
    }

    /// When the largest packet number arrived.
    pub fn largest_at(&self) -> Option<Instant> {
        self.largest_at
    }

    /// Notes a packet; `hold` is how long its acknowledgement may wait, already jittered. `owes`
    /// says whether the receiver is a member and acknowledges.
    #[inline]
    pub fn on_packet(
        &mut self,
        pn: u64,
        now: Instant,
        hold: Duration,
        ack_eliciting: bool,
        owes: bool,
    ) {
        if self.received.max().is_none_or(|max| pn > max) {
            self.largest_at = Some(now);
        }
        let ranges = self.received.len();
        self.received.insert_one(pn);
        self.fresh_ranges += usize::from(self.received.len() > ranges);
        if let Some(floor) = self.received.truncate_low(REMEMBERED) {
            self.floor = floor;
        }
        if ack_eliciting && owes {
            self.owe(now, hold);
        }
    }

    /// Counts the mark of a packet that was noted.
    pub fn on_mark(&mut self, mark: Ecn) {
        self.ecn.add(mark);
    }

    /// Notes a packet that did not arrive and was rebuilt. It is none that arrived: no round trip
    /// is measured with it, and it is reported once a later one has arrived.
    pub fn on_rebuilt(&mut self, pn: u64, now: Instant, hold: Duration, owes: bool) {
        if self.is_duplicate(pn) {
            return;
        }
        self.rebuilt.insert_one(pn);
        self.rebuilt.truncate_low(MAX_REBUILT);
        if owes && self.largest().is_some_and(|largest| pn < largest) {
            self.owe(now, hold);
        }
    }

    /// Asks for an acknowledgement of everything that arrived, at the latest after `hold`.
    ///
    /// The first packet that waits decides how long: the earliest of many jittered deadlines would
    /// always be one of the shortest, and all members together would exceed the budget of
    /// acknowledgements that the announced delay is made for.
    pub fn owe(&mut self, now: Instant, hold: Duration) {
        let waits = self.deadline.filter(|_| self.is_waiting());
        self.copies_due = COPIES;
        self.deadline = Some(if self.fresh_ranges >= RANGES_AT_ONCE {
            now
        } else {
            waits.unwrap_or(now + hold)
        });
    }

    /// Whether an acknowledgement waits whose deadline further packets do not change, however
    /// long theirs may wait.
    pub fn is_waiting(&self) -> bool {
        self.deadline.is_some() && self.copies_due == COPIES
    }

    /// When the next acknowledgement is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The acknowledgement, if one is due; a second copy follows after `hold` unless a newer one
    /// covers it.
    pub fn take_due(&mut self, path: PathId, now: Instant, hold: Duration) -> Option<PathAck> {
        if self.deadline.is_none_or(|d| d > now) {
            return None;
        }
        self.deadline = None;
        let largest_at = self.largest_at?;
        self.copies_due = self.copies_due.saturating_sub(1);
        if self.copies_due > 0 {
            self.deadline = Some(now + hold);
        }
        self.fresh_ranges = 0;
        let ranges: Vec<_> = self
            .received
            .iter()
            .rev()
            .take(MAX_RANGES)
            .cloned()
            .collect();
        (!ranges.is_empty()).then(|| PathAck {
            path,
            delay: now.saturating_duration_since(largest_at),
            ranges,
            ecn: (!self.ecn.is_empty()).then_some(self.ecn),
            rebuilt: self.rebuilt_ranges(),
        })
    }

    /// Returns the packets that were rebuilt and have not arrived since, newest range first.
    fn rebuilt_ranges(&self) -> Vec<Range<u64>> {
        let mut missing = RangeSet::new();
        let largest = self.largest().unwrap_or_default();
        for range in self.rebuilt.iter() {
            let end = range.end.min(largest);
            let start = range.start.max(self.floor).min(end);
            self.received
                .gaps(start..end)
                .for_each(|gap| _ = missing.insert(gap));
        }
        missing.iter().rev().take(MAX_REBUILT).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn round_trip(
            path in 1u64..1000,
            delay in 0u64..1 << 40, pns in prop::collection::vec(0u64..500, 1..100),
            marks in prop::option::of((1u64..1 << 30, 0u64..9, 0u64..1 << 50)),
            rebuilt in prop::collection::vec(0u64..500, 0..60),
        ) {
            let set = |pns: Vec<u64>| {
                let mut set = RangeSet::new();
                pns.into_iter().for_each(|pn| { set.insert_one(pn); });
                set
            };
            let ranges: Vec<_> = set(pns).iter().rev().take(MAX_RANGES).cloned().collect();
            let ecn = marks.map(|(ect0, ect1, ce)| EcnCounts { ect0, ect1, ce });
            let delay = Duration::from_micros(delay);
            let mut ack = PathAck { path: PathId(path), delay, ranges, ecn, rebuilt: vec![] };
            let below = rebuilt.into_iter().filter(|pn| *pn < ack.largest()).collect();
            ack.rebuilt = set(below).iter().rev().take(MAX_REBUILT).cloned().collect();
            prop_assert_eq!(PathAck::decode(&ack.encode()).unwrap(), ack);
        }

        #[test]
        fn any_bytes_decode_or_fail(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100),
            typed in any::<bool>(),
        ) {
            if typed { bytes.insert(0, PATH_ACK as u8); }
            if let Ok(ack) = PathAck::decode(&bytes) {
                prop_assert!(ack.ranges.len() <= MAX_RANGES);
                prop_assert!(ack.ranges.iter().all(|r| !r.is_empty()));
                prop_assert!(ack.ranges.windows(2).all(|w| w[1].end < w[0].start));
                prop_assert!(ack.rebuilt.len() <= MAX_REBUILT);
                prop_assert!(ack.rebuilt.iter().all(|r| !r.is_empty() && r.end <= ack.largest()));
                prop_assert!(ack.rebuilt.windows(2).all(|w| w[1].end < w[0].start));
            }
        }
    }

    #[test]
    fn marks_are_counted_until_the_state_is_reset() {
        let (start, hold) = (Instant::now(), Duration::from_millis(25));
        let mut tracker = AckTracker::new();
        for (pn, mark) in [
            (1, Ecn::Ect0),
            (2, Ecn::Ce),
            (3, Ecn::NotEct),
            (4, Ecn::Ect0),
        ] {
            tracker.on_packet(pn, start, hold, true, true);
            tracker.on_mark(mark);
        }
        let ack = tracker.take_due(PathId(1), start + hold, hold).unwrap();
        let counts = EcnCounts {
            ect0: 2,
            ect1: 0,
            ce: 1,
        };
        assert_eq!(ack.ecn, Some(counts));
        assert_eq!(PathAck::decode(&ack.encode()), Ok(ack.clone()));
        let mut cut = ack.encode();
        cut.pop();
        assert_eq!(PathAck::decode(&cut).unwrap().ecn, None, "not all counts");
        let mut tracker = AckTracker::starting_at(9);
        tracker.on_packet(9, start, hold, true, true);
        tracker.on_mark(Ecn::NotEct);
        let ack = tracker.take_due(PathId(1), start + hold, hold).unwrap();
        assert_eq!(ack.ecn, None);
    }

    /// A packet counts as rebuilt until it arrives, or is too old to tell; no unsent one does.
    #[test]
    fn rebuilt_packets_are_reported_apart_until_they_arrive() {
        let (start, hold) = (Instant::now(), Duration::from_millis(25));
        let mut tracker = AckTracker::new();
        tracker.on_rebuilt(0, start, hold, true);
        for pn in [0, 1, 5, 9] {
            tracker.on_packet(pn, start, hold, true, true);
        }
        for pn in [2, 3, 5, 8, 9, 10] {
            tracker.on_rebuilt(pn, start, hold, true);
        }
        let reported = |tracker: &mut AckTracker, at: Instant| {
            let ack = tracker.take_due(PathId(1), at, hold).unwrap();
            assert_eq!(PathAck::decode(&ack.encode()), Ok(ack.clone()));
            ack.rebuilt
        };
        assert_eq!(reported(&mut tracker, start + hold), [8..9, 2..4]);
        tracker.on_packet(3, start + hold, hold, true, true);
        assert_eq!(reported(&mut tracker, start + hold * 2), [8..9, 2..3]);
        for pn in 0..10_000 {
            tracker.on_packet(100 + pn * 4, start + hold, hold, true, true);
            tracker.on_rebuilt(99 + pn * 4, start + hold, hold, true);
        }
        assert!(tracker.rebuilt.len() <= MAX_REBUILT);
        assert_eq!(reported(&mut tracker, start + hold * 3).len(), MAX_REBUILT);
    }

    #[test]
    fn every_state_is_sent_twice_then_there_is_silence() {
        let (start, hold) = (Instant::now(), Duration::from_millis(25));
        let mut tracker = AckTracker::new();
        tracker.on_packet(5, start, hold, true, true);
        assert_eq!(tracker.take_due(PathId(1), start, hold), None, "held back");
        let first = tracker.take_due(PathId(1), start + hold, hold).unwrap();
        assert_eq!(
            (first.largest(), first.ranges.len(), first.delay),
            (5, 1, hold)
        );
        let second = tracker.take_due(PathId(1), start + hold * 2, hold).unwrap();
        assert_eq!(second.ranges, first.ranges);
        assert_eq!(tracker.deadline(), None);
    }

    /// Later packets neither hasten an acknowledgement nor put it off; a duplicate makes room for
    /// new ranges.
    #[test]
    fn the_first_packet_that_waits_draws_the_deadline() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        let mut tracker = AckTracker::new();
        for (pn, hold) in [(1, 30), (2, 20), (3, 40)] {
            let now = start + ms * pn as u32;
            tracker.on_packet(pn, now, ms * hold, true, true);
            assert_eq!(tracker.deadline(), Some(start + ms * 31));
        }
        let first = tracker.take_due(PathId(1), start + ms * 31, ms * 20);
        assert_eq!(first.map(|ack| ack.largest()), Some(3));
        assert_eq!(tracker.deadline(), Some(start + ms * 51), "the copy");
        tracker.on_packet(4, start + ms * 33, ms * 25, true, true);
        assert_eq!(tracker.deadline(), Some(start + ms * 58));
    }

    #[test]
    fn many_gaps_are_reported_at_once_and_memory_is_bounded() {
        let (start, hold) = (Instant::now(), Duration::from_millis(25));
        let mut tracker = AckTracker::new();
        for i in 0..10_000 {
            tracker.on_packet(i * 2, start, hold, true, true);
            assert_eq!(
                tracker.deadline() == Some(start),
                i + 1 >= RANGES_AT_ONCE as u64
            );
        }
        assert!(tracker.received.len() <= REMEMBERED);
        assert!(
            tracker.is_duplicate(1),
            "too old to tell counts as received"
        );
        let ack = tracker.take_due(PathId(1), start, hold).unwrap();
        assert_eq!((ack.ranges.len(), ack.largest()), (MAX_RANGES, 19_998));
    }
}
