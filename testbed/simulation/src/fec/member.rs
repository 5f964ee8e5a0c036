//! A member of a modelled flow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use erasure::{Decoder, Event, RepairError};
use flexicast::ack::AckTracker;
use flexicast::flow::ledger::StreamRange;
use flexicast::range::RangeSet;

use super::report::FecReport;
use super::{FecFailure, Packet, Symbol, failed};
use crate::link::Link;

/// Lost packets of which nothing more can be reported.
const FORGOTTEN: u64 = 2048;

/// Fate of a lost packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    /// Rebuilt from repair symbols.
    Rebuilt,
    /// Repaired on the flow, for many members.
    Shared,
    /// Repaired by unicast, whether it was needed or not.
    Repaired,
}

/// A lost packet.
#[derive(Debug)]
struct Lost {
    pieces: Vec<StreamRange>,
    fate: Fate,
}

/// A member.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) is_member: bool,
    pub(super) there: Link,
    pub(super) back: Link,
    /// Path of its connection: its losses are of its own.
    pub(super) apart: Link,
    pub(super) tracker: AckTracker,
    /// Tick for which its next acknowledgement is planned; 0 for none.
    pub(super) planned: u64,
    /// Packets of this burst until the one that it loses.
    pub(super) loses: Option<u64>,
    decoder: Option<Decoder>,
    /// The decoder has all packets below that arrived, as far as windows had them.
    fed: u64,
    lost: BTreeMap<u64, Lost>,
    /// Next update of which nothing has come.
    next: u64,
    /// Earlier updates of which something is missing, with what has come.
    partial: BTreeMap<u64, RangeSet>,
    /// Updates that are incomplete and have lost a packet.
    hurt: BTreeSet<u64>,
}

/// Returns the packet with this number, if it is kept.
fn find(packets: &VecDeque<Packet>, pn: u64) -> Option<&Packet> {
    let first = packets.front().map_or(0, |packet| packet.pn);
    let guess = pn
        .checked_sub(first)
        .and_then(|at| packets.get(at as usize));
    guess.filter(|packet| packet.pn == pn).or_else(|| {
        let at = packets.partition_point(|packet| packet.pn < pn);
        packets.get(at).filter(|packet| packet.pn == pn)
    })
}

fn meets(one: &StreamRange, other: &StreamRange) -> bool {
    let (a, b): (&Range<u64>, &Range<u64>) = (&one.range, &other.range);
    one.seq == other.seq && a.start < b.end && b.start < a.end
}

impl Member {
    /// A member that rebuilds packets of windows of this span, if it rebuilds any.
    pub(super) fn new(span: Option<u8>, [there, back, apart]: [Link; 3]) -> Self {
        Member {
            is_member: true,
            there,
            back,
            apart,
            tracker: AckTracker::new(),
            planned: 0,
            loses: None,
            decoder: span.map(|span| Decoder::new(span.into(), 0)),
            fed: 0,
            lost: BTreeMap::new(),
            next: 1,
            partial: BTreeMap::new(),
            hurt: BTreeSet::new(),
        }
    }

    pub(super) fn one_way(&self) -> Duration {
        self.there.quality.delay
    }

    /// Whether the next packet of the burst is the one that it loses.
    pub(super) fn loses_next(&mut self) -> bool {
        let left = self.loses;
        self.loses = left.and_then(|left| left.checked_sub(1));
        left == Some(0)
    }

    /// Last update up to which it has everything.
    pub(super) fn cursor(&self) -> u64 {
        let first = self.partial.keys().next();
        first.copied().unwrap_or(self.next) - 1
    }

    pub(super) fn has(&self, piece: &StreamRange) -> bool {
        if piece.seq >= self.next {
            return false;
        }
        let got = self.partial.get(&piece.seq);
        got.is_none_or(|got| got.contains_range(piece.range.clone()))
    }

    /// Loses a packet with data.
    pub(super) fn lose(&mut self, pn: u64, pieces: &[StreamRange], report: &mut FecReport) {
        while let Some(first) = self.lost.first_entry() {
            if *first.key() + FORGOTTEN > pn {
                break;
            }
            count(first.remove().fate, report);
        }
        for piece in pieces {
            if !self.has(piece) {
                self.hurt.insert(piece.seq);
            }
        }
        let lost = Lost {
            pieces: pieces.to_vec(),
            fate: Fate::Open,
        };
        self.lost.insert(pn, lost);
    }

    /// Takes a packet that arrived. Returns the packets that are rebuilt with it; `None` if it is
    /// of no use.
    pub(super) fn take_packet(
        &mut self,
        pn: u64,
        packets: &VecDeque<Packet>,
        now: Instant,
        hold: Duration,
    ) -> Result<Option<Vec<u64>>, FecFailure> {
        if self.tracker.is_duplicate(pn) || !self.is_member {
            return Ok(None);
        }
        let packet = find(packets, pn).ok_or_else(|| failed("a packet took too long"))?;
        self.tracker.on_packet(pn, now, hold, true, true);
        let Some(decoder) = &mut self.decoder else {
            return Ok(Some(Vec::new()));
        };
        match &packet.symbol {
            None if pn < self.fed || decoder.unknowns().0 > 0 => {
                decoder.on_packet(pn, &packet.frames);
            }
            None => return Ok(Some(Vec::new())),
            Some(symbol) => self.feed(symbol, packets)?,
        }
        self.take_rebuilt(packets, now, hold).map(Some)
    }

    /// Takes a repair symbol that came by another path than the flow. Returns the packets that are
    /// rebuilt with it.
    pub(super) fn take_symbol(
        &mut self,
        symbol: &Symbol,
        packets: &VecDeque<Packet>,
        now: Instant,
        hold: Duration,
    ) -> Result<Vec<u64>, FecFailure> {
        if !self.is_member {
            return Ok(Vec::new());
        }
        self.feed(symbol, packets)?;
        self.take_rebuilt(packets, now, hold)
    }

    /// Gives the decoder a symbol, if packets of its window are missing, and those that are not.
    fn feed(&mut self, symbol: &Symbol, packets: &VecDeque<Packet>) -> Result<(), FecFailure> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(());
        };
        let window = &symbol.window;
        if window.iter().all(|pn| self.tracker.is_duplicate(*pn)) {
            return Ok(());
        }
        let fed = self.fed;
        let new = window.iter().filter(|pn| **pn >= fed);
        for pn in new.filter(|pn| self.tracker.is_duplicate(**pn)) {
            if let Some(packet) = find(packets, *pn) {
                decoder.on_packet(packet.pn, &packet.frames);
            }
        }
        self.fed = window.last().map_or(fed, |last| fed.max(last + 1));
        match decoder.on_repair(&symbol.bytes) {
            Ok(_) | Err(RepairError::Unknowns) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn take_rebuilt(
        &mut self,
        packets: &VecDeque<Packet>,
        now: Instant,
        hold: Duration,
    ) -> Result<Vec<u64>, FecFailure> {
        let mut rebuilt = Vec::new();
        while let Some(event) = self.decoder.as_mut().and_then(Decoder::poll_event) {
            let Event::Rebuilt { pn, packet } = event else {
                return Err(failed("a rebuilt packet is none"));
            };
            if find(packets, pn).is_none_or(|sent| sent.frames != packet) {
                return Err(failed("a rebuilt packet differs"));
            }
            if !self.tracker.is_duplicate(pn) {
                self.tracker.on_rebuilt(pn, now, hold, true);
                rebuilt.push(pn);
            }
        }
        Ok(rebuilt)
    }

    pub(super) fn note_rebuilt(&mut self, pn: u64) {
        if let Some(lost) = self.lost.get_mut(&pn).filter(|it| it.fate == Fate::Open) {
            lost.fate = Fate::Rebuilt;
        }
    }

    pub(super) fn note_shared(&mut self, piece: &StreamRange) {
        self.settle(piece, Fate::Shared);
    }

    pub(super) fn note_repaired(&mut self, range: &StreamRange) {
        self.settle(range, Fate::Repaired);
    }

    fn settle(&mut self, piece: &StreamRange, fate: Fate) {
        for lost in self.lost.values_mut().rev() {
            let settles = lost.fate == Fate::Open || fate == Fate::Repaired;
            if settles && lost.pieces.iter().any(|it| meets(it, piece)) {
                lost.fate = fate;
            }
        }
    }

    /// Takes a part of an update, by whichever path. Where it completes the update, returns whether
    /// that has lost a packet.
    pub(super) fn take(&mut self, piece: &StreamRange, len: u64) -> Option<bool> {
        while self.next <= piece.seq {
            self.partial.insert(self.next, RangeSet::new());
            self.next += 1;
        }
        let got = self.partial.get_mut(&piece.seq)?;
        got.insert(piece.range.start..piece.range.end.min(len));
        got.contains_range(0..len).then(|| {
            self.partial.remove(&piece.seq);
            self.hurt.remove(&piece.seq)
        })
    }

    /// Does not count what it has lost so far.
    pub(super) fn forget_losses(&mut self) {
        self.lost.clear();
        self.hurt.clear();
    }

    /// Counts what became of its last losses.
    pub(super) fn finish(&mut self, report: &mut FecReport) {
        for lost in std::mem::take(&mut self.lost).into_values() {
            count(lost.fate, report);
        }
    }
}

fn count(fate: Fate, report: &mut FecReport) {
    match fate {
        Fate::Open => report.open += 1,
        Fate::Rebuilt => report.rebuilt += 1,
        Fate::Shared => report.shared += 1,
        Fate::Repaired => report.repaired += 1,
    }
}
