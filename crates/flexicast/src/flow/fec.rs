//! Repair symbols of a flow (protocol.md section 5.6).

use std::time::Instant;

use erasure::MAX_PACKET;

use super::queue::QueuedDatagram;
use super::sender::{FlowEvent, FlowSender, MemberId};
use crate::Rung;
use crate::fec::{MemberLoss, RESERVE};
use crate::frame;
use crate::protect::HEADER_LEN;

impl FlowSender {
    /// Notes that a member rebuilds packets from repair symbols, and reports what it rebuilt.
    pub fn set_rebuilding(&mut self, member: MemberId) {
        if let (Some(member), Some(fec)) = (self.members.get_mut(&member), &mut self.fec) {
            member.rebuilds = true;
            if !fec.demand().has_members() {
                fec.demand().expire();
            }
        }
    }

    /// Has repair symbols span key epochs, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_window_across_epochs(&mut self, on: bool) {
        if let Some(fec) = &mut self.fec {
            fec.window_across_epochs = on;
        }
    }

    /// Has the losses of members weighed again before the next packet.
    pub(super) fn expire_demand(&mut self) {
        if let Some(fec) = &mut self.fec {
            fec.demand().expire();
        }
    }

    /// Whether updates and messages wait for nothing but repair symbols.
    pub(super) fn is_idle(&self) -> bool {
        !self.shared.has_frames() && !self.queue.has_frames(self.window.is_blocked())
    }

    /// Returns the bytes by which the frames of the next packet end before `limit`, for a repair
    /// symbol; `None` if it gets none.
    pub(super) fn symbol_reserve(&mut self, limit: usize, now: Instant) -> Option<usize> {
        let fec = self.fec.as_mut()?;
        if fec.demand().is_stale(now) {
            let pacer = &self.pacer;
            let losses = self.members.iter().map(|(id, member)| MemberLoss {
                share: member.rebuilds.then(|| pacer.estimated_loss(*id)),
                is_replicated: member.path.rung() == Some(Rung::Replicated),
            });
            fec.demand().update(losses, now);
        }
        // Packets of a network with tiny ones have no room, and jumbo frames fit no symbol.
        let room = fec.frames_room(limit.saturating_sub(HEADER_LEN));
        let is_possible = (RESERVE..=MAX_PACKET).contains(&room);
        if !is_possible || !fec.is_on(now) {
            fec.stop();
            return None;
        }
        // A message is not split, and may take all of a packet.
        let is_fit = |front: &QueuedDatagram| frame::datagram_len(front.data.len()) <= room;
        let fits = self.queue.datagrams.front().is_none_or(is_fit);
        fits.then(|| limit - HEADER_LEN - room)
    }

    /// Has the symbols that are due sent on the connections of members, where they travel there.
    pub(super) fn send_symbols_apart(&mut self, now: Instant) {
        let (is_idle, next_pn) = (self.is_idle(), self.next_pn());
        let Some(fec) = self.fec.as_mut().filter(|fec| fec.is_apart()) else {
            return;
        };
        while fec.is_due(is_idle, now)
            && let Some(symbol) = fec.apart_symbol(self.config.flow)
        {
            let mut members = Vec::new();
            for (id, member) in &mut self.members {
                let lost = self.pacer.estimated_loss(*id);
                let is_sent = member.rebuilds && fec.serves(*id, lost);
                member.served.note(is_sent);
                members.extend(is_sent.then_some(*id));
            }
            // Who acknowledges the next packet had time for the symbol, too.
            fec.on_sent(next_pn);
            self.owes_ping |= is_idle && !members.is_empty();
            self.stats.repair_symbols += members.len() as u64;
            self.events.push_back(FlowEvent::Symbol {
                members,
                symbol: symbol.into(),
            });
        }
    }

    /// Fills a packet, whose frames end at `limit` at most, with a repair symbol that is due.
    /// Returns whether there was one.
    pub(super) fn put_repair_symbol(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        now: Instant,
    ) -> bool {
        let is_idle = self.is_idle();
        let fec = self.fec.as_mut().filter(|fec| !fec.is_apart());
        fec.is_some_and(|fec| fec.is_due(is_idle, now) && fec.put_repair(out, limit))
    }

    /// Returns when the burst that is being sent is over, if a repair symbol is due then.
    pub(super) fn tail_symbol_at(&self) -> Option<Instant> {
        self.fec.as_ref()?.tail_at().filter(|_| self.is_idle())
    }

    /// Notes which packets repair symbols may still bring.
    pub(super) fn expect_symbols(&mut self, now: Instant) {
        let is_idle = self.is_idle();
        if let Some(fec) = &self.fec {
            fec.expect(is_idle, now, &mut self.delays.expected);
        }
    }

    /// Notes what a member misses that acknowledged `largest`.
    pub(super) fn note_missing(&mut self, id: MemberId, largest: u64, now: Instant) {
        let member = self.members.get(&id).filter(|member| member.rebuilds);
        if let (Some(fec), Some(member)) = (&mut self.fec, member) {
            let missing = member.awaited().filter(|pn| fec.covers(*pn)).count();
            fec.on_missing(id, missing, (largest, member.served), now);
        }
    }
}
