//! Making packets: what goes into the next one, and what sending it means for the timers.

use std::time::Instant;

use bytes::Bytes;

use super::ledger::{Fill, PacketContents, StreamRange};
use super::pings::MIN_TAIL_PROBE;
use super::sender::{FlowEvent, FlowSender};
use crate::authentication::Sealer;
use crate::fec::RESERVE;
use crate::frame;
use crate::protect::{HEADER_LEN, OVERHEAD, TAG_LEN};
use crate::trace;

/// The error code of an update that the flow does not finish (protocol.md section 6.3).
const ABANDONED: u64 = 1;

impl FlowSender {
    /// Returns the length of the longest DATAGRAM that fits a packet of the smallest full size.
    pub(crate) fn datagram_room(&self) -> usize {
        let limit = self.pmtu.limit_of(self.config.udp_payload);
        limit.saturating_sub(HEADER_LEN + 8)
    }

    /// Queues the fragments of a message, which are sent once and not repaired, and not after
    /// `until`. Returns whether there was room for all of them, both in the queue and in packets.
    pub(crate) fn push_datagrams(&mut self, fragments: &[Bytes], until: Option<Instant>) -> bool {
        let room = self.datagram_room();
        let fits = fragments.iter().all(|data| data.len() <= room);
        fits && self.is_heard() && self.queue.push_datagrams(fragments, until)
    }

    /// Sends no more of an update on the flow: members get the rest on their unicast paths. Returns
    /// whether any of it was still to be sent.
    pub fn abandon(&mut self, seq: u64) -> bool {
        let Some(rest) = self.queue.abandon(seq) else {
            return false;
        };
        self.stats.abandoned += 1;
        for member in self.members.keys() {
            self.events.push_back(FlowEvent::Repair {
                member: *member,
                range: rest.clone(),
            });
        }
        self.regrant();
        true
    }

    /// Makes the next packet in `out`, if there is something to send and pacing allows it. Returns
    /// whether it did.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        out.clear();
        self.append_packet(now, out)
    }

    /// Makes the next packet like [`FlowSender::poll_transmit`], after the bytes that `out` holds:
    /// the packets of a train stand where they are sent from.
    ///
    /// Tags of packets go before many more packets, and at the latest when there is nothing else to
    /// send now.
    pub fn append_packet(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let are_due = self.sealer.as_ref().is_some_and(Sealer::are_tags_due);
        (are_due && self.append_tags(out)) || self.append_frames(now, out) || self.append_tags(out)
    }

    /// Makes a packet of tags, if any wait. It is neither acknowledged nor repaired: what lacks its
    /// tag is. Pacing does not hold it up, because the tags were paid for with their packets, which
    /// count as arrived only with them.
    fn append_tags(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(sealer) = &mut self.sealer else {
            return false;
        };
        let (flow, tags) = (sealer.tag_flow(), sealer.take_tags());
        let Some(tags) = tags else {
            return false;
        };
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        out.extend_from_slice(&tags);
        let end = out.len() - start;
        out.extend_from_slice(&[0; TAG_LEN]);
        let epoch = &mut self.epochs.current;
        if !epoch.seal_tags(flow, &mut out[start..], end) {
            out.truncate(start);
            return false;
        }
        let len = out.len() - start;
        self.stats.tag_packets += 1;
        self.stats.bytes += len as u64;
        self.pacer.on_tags(OVERHEAD);
        if let Some(frames) = &mut self.traced {
            frames.clear();
        }
        true
    }

    /// Makes the next packet with frames.
    fn append_frames(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        self.stats.late_datagrams += self.queue.drop_late_datagrams(now);
        if !self.has_frames() {
            self.pacer.on_app_limited(now);
        }
        self.postpone_probe(now);
        self.send_symbols_apart(now);
        if !self.wants_to_send(now) || self.pacer.ready_at(now) > now {
            return false;
        }
        self.switch_if_due(now);
        if self.is_spent() {
            return false;
        }
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        let mut contents = PacketContents::Ping;
        let probe = self.pmtu.due_probe(now);
        let mut limit = self.pmtu.frame_limit();
        let reserve = self.symbol_reserve(limit, now);
        let mut is_symbol = false;
        match probe {
            Some(size) => self.put_probe(out, start, size),
            None => {
                is_symbol = self.put_repair_symbol(out, start + limit, now);
                if !is_symbol {
                    limit -= reserve.unwrap_or(0);
                    self.put_frames(now, out, start + limit, &mut contents);
                }
            }
        }
        let is_ping = out.len() == start + HEADER_LEN;
        if is_ping {
            if self.window.is_blocked()
                && !self.owes_ping
                && self.ping_at().is_some_and(|at| at > now)
            {
                // Only now did it show that the members' windows are used up.
                out.truncate(start);
                return false;
            }
            frame::put_ping(out);
            self.stats.pings += 1;
        }
        let (pn, end) = (self.next_pn(), out.len() - start);
        if let Some(frames) = &mut self.traced {
            *frames = trace::frames(&out[start + HEADER_LEN..]);
        }
        let is_protected = probe.is_none() && !is_symbol && !is_ping && reserve.is_some();
        if let Some(fec) = self.fec.as_mut().filter(|_| is_protected) {
            let settled = self.ledger.base();
            fec.on_packet(pn, &out[start + HEADER_LEN..], settled, now);
        }
        // The tag is room enough for the 16 bytes after the packet number that header protection
        // samples.
        out.extend_from_slice(&[0; TAG_LEN]);
        let packet = &mut out[start..];
        let epoch = &mut self.epochs.current;
        let phase = epoch.phase();
        if epoch
            .key
            .seal(self.config.flow, pn, phase, packet, end)
            .is_none()
        {
            self.shared.note_unsent();
            if let Some(fec) = &mut self.fec {
                fec.clear();
            }
            out.truncate(start);
            return false;
        }
        let mut tags = 0;
        if let Some(sealer) = &mut self.sealer {
            self.stats.signed += u64::from(sealer.is_signing());
            tags = sealer.seal(pn, out, start, self.pmtu.frame_limit() - HEADER_LEN);
        }
        let len = out.len() - start;
        self.stats.packets += 1;
        self.stats.bytes += len as u64;
        // Its tags take their part of the rate with it.
        let len = len + tags;
        let fill = match probe {
            Some(_) => Fill::Short,
            // One that ends far earlier, so that a symbol of it fits connections, is a short one.
            None if reserve.is_some_and(|reserve| reserve > RESERVE) => {
                self.pmtu.fill(end, usize::MAX)
            }
            None => self.pmtu.fill(end, limit),
        };
        if probe.is_some() {
            self.stats.probes += 1;
            self.pacer.on_probe(len);
            self.pmtu.note_probe(pn, now);
        } else {
            if is_ping {
                self.pacer.on_ping_sent(pn, len, now);
            } else {
                self.pacer.on_sent(pn, len, now);
            }
            if let Some(fec) = self.fec.as_mut().filter(|_| is_symbol) {
                fec.on_sent(pn);
                self.stats.repair_symbols += 1;
            }
            self.note_sent(pn, &contents, now);
        }
        self.owes_ping = false;
        self.ledger.push(now, contents, self.members.len(), fill);
        if self.ledger.len() > 0 {
            // No member that owes nothing can be late before: tails are repaired later, after 2.5
            // acknowledgement delays at least.
            let late = (self.config.ack_delay * 2).min(self.config.fall_back);
            self.checks.note_sent(now + late.max(MIN_TAIL_PROBE));
        }
        true
    }

    /// Fills a packet, whose frames end at `limit` at most: what ends updates first, then messages,
    /// then updates in order, with their signatures, whose ranges are added to `contents`.
    fn put_frames(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        limit: usize,
        contents: &mut PacketContents,
    ) {
        let begin = out.len();
        while out.len() + 32 <= limit
            && let Some((seq, size)) = self.queue.resets.pop_front()
        {
            frame::put_reset(out, seq, ABANDONED, size);
        }
        if !self.queue.put_signatures(out, limit, contents) {
            return;
        }
        let takes = self.queue.is_datagrams_turn(self.window.is_blocked());
        while takes && let Some(front) = self.queue.datagrams.front() {
            if !frame::put_datagram(out, limit, &front.data) {
                return;
            }
            self.queue.pop_datagram();
            self.stats.late_datagrams += self.queue.drop_late_datagrams(now);
            self.stats.datagrams += 1;
        }
        let room = (begin, limit);
        // The loss of a packet of repairs is repaired by what they repair, and by nothing else.
        if self.shared.has_frames()
            && !contents.is_data()
            && self.put_shared_repairs(out, room, contents)
        {
            return;
        }
        while let Some(front) = self.queue.updates.front() {
            let granted = self.window.limit().saturating_sub(front.start) as usize;
            let len = front.bytes.len();
            if granted <= front.last_of_next() && front.offset < len {
                self.block(now);
                if self.window.is_blocked() {
                    return;
                }
                // The blocking members have left.
                continue;
            }
            let data = &front.bytes[front.offset..granted.min(len)];
            let ends = granted >= len;
            let start = front.offset as u64;
            // Receivers verify a header before they take anything else of the update.
            if !frame::keeps_header(out, (begin, limit), front.seq, start, data) {
                return;
            }
            let Some(taken) = frame::put_stream(out, limit, front.seq, start, data, ends) else {
                return;
            };
            contents.push(StreamRange {
                seq: front.seq,
                range: start..start + taken as u64,
            });
            let whole = front.offset + taken >= len;
            if let Some(sent) = self.queue.advance(taken) {
                self.window.sent_up_to(sent, now);
            }
            if !whole || !self.queue.put_signatures(out, limit, contents) {
                return;
            }
        }
    }

    /// Schedules the next PING after a packet. A probe of a size is none, since it may not arrive.
    fn note_sent(&mut self, pn: u64, contents: &PacketContents, now: Instant) {
        self.shared.note_sent(pn);
        // The packets of a train are sent at one instant, and the first of them has set the timer.
        let is_next = self.last_data.is_some_and(|last| last + 1 == pn);
        if contents.is_data() && is_next && self.pings.is_probing(now) {
            self.last_data = Some(pn);
            return;
        }
        let (ack_delay, soon) = (self.delays.ack, self.config.fall_back / 3);
        let probe = if contents.is_data() {
            self.last_data = Some(pn);
            (!self.members.is_empty()).then_some(soon)
        } else {
            let is_owed = |last| self.ledger.len() > 0 && self.ledger.base() <= last;
            let is_due = self.checks.any_silent() || self.last_data.is_some_and(is_owed);
            // The PING before this one may be acknowledged until then.
            is_due.then_some(soon.max(ack_delay * 5 / 4))
        };
        self.pings.note_sent(now, ack_delay, probe);
    }
}
