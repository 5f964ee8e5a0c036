//! Packets that a receiver rebuilds from repair symbols (protocol.md section 5.6).

use std::collections::VecDeque;
use std::time::Instant;

use erasure::{Decoder, Event, Intake, MAX_UNKNOWNS, RepairError, RepairHeader};

use super::FlowDriver;
use super::packet::Arrival;
use crate::fec::{FecParameters, FecScheme};
use crate::frame::{Frame, Frames};
use crate::receiver::trust::FailedCheck;

/// Packets and repair symbols of a flow's newest key epoch.
#[derive(Debug)]
pub(super) struct Rebuilding {
    decoder: Decoder,
    /// Sequence of the epoch, and its first packet number; `None` before the first packet.
    epoch: Option<(u64, u64)>,
    /// Repair symbols of connections that have overtaken so many packets that they are of no use
    /// yet.
    early: VecDeque<EarlySymbol>,
}

/// Repair symbol that has overtaken packets of its window.
#[derive(Debug)]
struct EarlySymbol {
    symbol: Vec<u8>,
    /// Packet number from which on it is tried again.
    at: u64,
    /// Whether it was.
    is_retried: bool,
}

/// Repair symbols at most that wait for the packets that they have overtaken.
const MAX_EARLY: usize = 8;

impl Rebuilding {
    /// Returns the state of a flow from which nothing came yet; `None` if its code is not known.
    pub(super) fn new(parameters: FecParameters) -> Option<Self> {
        FecScheme::from_number(parameters.scheme)?;
        Some(Rebuilding {
            decoder: Decoder::new(parameters.span.into(), 0),
            epoch: None,
            early: VecDeque::new(),
        })
    }

    /// Begins the epoch of a packet that arrived, if it is newer.
    fn follow(&mut self, sequence: u64, first_pn: u64) {
        if self.epoch.is_none_or(|(known, _)| sequence > known) {
            self.epoch = Some((sequence, first_pn));
            self.decoder.begin_epoch(first_pn);
            self.early.clear();
        }
    }

    /// Drops all packets and repair symbols: one of them was forged.
    pub(super) fn discard(&mut self) {
        let first = self.epoch.map_or(0, |(_, first)| first);
        self.decoder.begin_epoch(first);
        self.early.clear();
        while self.decoder.poll_event().is_some() {}
    }

    /// Takes a repair symbol. Returns whether it fits the packets and other symbols.
    fn take_symbol(&mut self, symbol: &[u8]) -> bool {
        !matches!(
            self.decoder.on_repair(symbol),
            Err(RepairError::Contradiction | RepairError::Short(_))
        )
    }

    /// Takes a repair symbol that came on the connection, and ends with packet `last`. Returns
    /// whether it fits.
    fn take_apart(&mut self, last: u64, symbol: &[u8]) -> bool {
        match self.decoder.on_repair(symbol) {
            Err(RepairError::Contradiction | RepairError::Short(_)) => return false,
            Err(RepairError::Unknowns) => {
                if self.early.len() == MAX_EARLY {
                    self.early.pop_front();
                }
                self.early.push_back(EarlySymbol {
                    symbol: symbol.to_vec(),
                    at: last,
                    is_retried: false,
                });
            }
            Err(_) | Ok(_) => {}
        }
        true
    }

    /// Takes a packet of the source, or the repair symbol that it carries, and the symbols that had
    /// overtaken it. Returns whether it fits the others.
    fn take(&mut self, pn: u64, frames: &[u8], symbol: Option<&[u8]>) -> bool {
        let fits = match symbol {
            Some(symbol) if !is_of_earlier(symbol, pn) => true,
            Some(symbol) => self.take_symbol(symbol),
            None => self.decoder.on_packet(pn, frames) != Intake::Contradiction,
        };
        fits && self.take_early(pn)
    }

    /// Takes the symbols that waited for packets up to `pn`. Those of which too many packets are
    /// on the way still wait for as many more, once.
    fn take_early(&mut self, pn: u64) -> bool {
        while let Some(at) = self.early.iter().position(|early| early.at <= pn) {
            let Some(mut early) = self.early.remove(at) else {
                break;
            };
            match self.decoder.on_repair(&early.symbol) {
                Err(RepairError::Contradiction | RepairError::Short(_)) => return false,
                Err(RepairError::Unknowns) if !early.is_retried => {
                    (early.at, early.is_retried) = (pn + MAX_UNKNOWNS as u64, true);
                    self.early.push_back(early);
                }
                Err(_) | Ok(_) => {}
            }
        }
        true
    }
}

/// Whether a repair symbol combines packets that were sent before the one that carries it.
fn is_of_earlier(symbol: &[u8], carrier: u64) -> bool {
    RepairHeader::parse(symbol).is_ok_and(|(header, _)| header.window.last() < carrier)
}

impl FlowDriver<'_> {
    /// Takes an accepted packet of epoch `sequence`, or the repair symbol that it carries, and what
    /// is rebuilt with it.
    pub(super) fn rebuild(
        &mut self,
        arrival: Arrival,
        (sequence, pn): (u64, u64),
        frames: &[u8],
        symbol: Option<&[u8]>,
    ) {
        let flow = &mut *self.flow;
        let Some(rebuilding) = &mut flow.rebuilding else {
            return;
        };
        if flow.opener.is_none() && flow.suspicion.is_on() {
            return rebuilding.discard();
        }
        let first = flow.keys.first_pn_of(sequence);
        rebuilding.follow(sequence, first.unwrap_or(pn));
        if !rebuilding.take(pn, frames, symbol) {
            return rebuilding.discard();
        }
        self.take_all_rebuilt(arrival);
    }

    /// Takes a repair symbol that the source sent on the connection, and what is rebuilt with it.
    pub(in crate::receiver) fn rebuild_apart(&mut self, symbol: &[u8], now: Instant) {
        let flow = &mut *self.flow;
        let is_suspect = flow.opener.is_none() && flow.suspicion.is_on();
        let (Some(path), Some(rebuilding)) = (flow.membership.path(), &mut flow.rebuilding) else {
            return;
        };
        let Ok((RepairHeader { window, .. }, _)) = RepairHeader::parse(symbol) else {
            return;
        };
        // All packets of the newest epoch that were sent so far may be lost.
        if let Some((sequence, first)) = flow.keys.newest()
            && window.first() >= first
        {
            rebuilding.follow(sequence, first);
        }
        if is_suspect || rebuilding.epoch.is_none() {
            return;
        }
        if !rebuilding.take_apart(window.last(), symbol) {
            return rebuilding.discard();
        }
        let arrival = Arrival::of_member(path, flow.rung(), now);
        self.take_all_rebuilt(arrival);
    }

    fn take_all_rebuilt(&mut self, arrival: Arrival) {
        while let Some(event) = self.next_rebuilt() {
            let fits = match event {
                Event::Rebuilt { pn, packet } => self.take_rebuilt(pn, &packet, arrival),
                Event::Invalid { .. } => false,
            };
            if !fits && let Some(rebuilding) = &mut self.flow.rebuilding {
                return rebuilding.discard();
            }
        }
    }

    fn next_rebuilt(&mut self) -> Option<Event> {
        self.flow.rebuilding.as_mut()?.decoder.poll_event()
    }

    /// Takes a rebuilt packet. It settles what this receiver is owed and nothing else: it is no
    /// proof of a rung, no sign of life, and no invalid packet. Returns whether it may be the
    /// source's.
    fn take_rebuilt(&mut self, pn: u64, frames: &[u8], arrival: Arrival) -> bool {
        let now = arrival.now;
        let path = self.flow.membership.path().unwrap_or(arrival.path);
        let tracked = self.flow.tracked(path);
        let tracker = self.flow.trackers.get(&tracked);
        if tracker.is_some_and(|tracker| tracker.is_duplicate(pn)) {
            return true;
        }
        match self.accepts_frames(frames) {
            Some(true) => {}
            // The source repairs it.
            Some(false) => return true,
            None => return false,
        }
        let before = self.channel.merge.stats();
        self.merge_frames(Frames::new(frames).flatten(), now);
        self.want_needed(now);
        let after = self.channel.merge.stats();
        let failed = after.failed_checks - before.failed_checks;
        if failed > 0 {
            self.count_failed_checks(failed, FailedCheck::Signature, now);
        }
        if after.forged > before.forged || failed > 0 {
            return false;
        }
        self.channel.stats.reception.rebuilt += 1;
        #[cfg(feature = "fault-injection")]
        if self.channel.rebuilt_proves {
            self.accepted(arrival, pn, true);
            return true;
        }
        let hold = self.hold();
        let owes = self.flow.membership.path() == Some(path);
        if let Some(tracker) = self.flow.trackers.get_mut(&tracked).filter(|_| owes) {
            tracker.on_rebuilt(pn, now, hold, owes);
        }
        true
    }

    /// Whether there is room for all frames of a rebuilt packet; `None` if one is invalid, or none
    /// that the source protects.
    fn accepts_frames(&mut self, frames: &[u8]) -> Option<bool> {
        let mut accepts = true;
        for frame in Frames::new(frames) {
            accepts &= match frame.ok()? {
                Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin,
                } => {
                    let range = offset..offset + data.len() as u64;
                    self.channel.merge.accepts(seq, range, fin)
                }
                Frame::StreamSignature { seq, .. } if self.flow.signs_streams() => {
                    self.channel.merge.accepts(seq, 0..0, false)
                }
                Frame::Repair { .. } => return None,
                _ => true,
            };
        }
        Some(accepts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fec::FecConfig;
    use erasure::Encoder;

    /// A symbol that overtakes a whole window of packets is used when they are there.
    #[test]
    fn a_symbol_waits_for_the_packets_that_it_has_overtaken() {
        let parameters = FecConfig::default().parameters();
        let mut rebuilding = Rebuilding::new(parameters).unwrap();
        rebuilding.follow(1, 0);
        let mut encoder = Encoder::new(FecScheme::Rlc, parameters.span.into());
        (0..40).for_each(|pn| encoder.push(pn, &[pn as u8; 100]).unwrap());
        let mut symbol = Vec::new();
        let last = encoder.repair(&mut symbol).unwrap().last();
        (0..20).for_each(|_| assert!(rebuilding.take_apart(last, &symbol)));
        assert_eq!(rebuilding.early.len(), MAX_EARLY, "bounded");
        for pn in (0..40).filter(|pn| *pn != 7) {
            assert_eq!(rebuilding.decoder.poll_event(), None);
            assert!(rebuilding.take(pn, &[pn as u8; 100], None));
        }
        let packet = vec![7; 100];
        let event = rebuilding.decoder.poll_event();
        assert_eq!(event, Some(Event::Rebuilt { pn: 7, packet }));
        assert!(rebuilding.early.is_empty());
    }
}
