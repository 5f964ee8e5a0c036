//! Intake of flow packets.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::FlowDriver;
use super::backoff::REJOIN_FIRST;
use super::participation::Participation;
use crate::ack::AckTracker;
use crate::control::Action;
use crate::frame::{Frame, Frames};
use crate::protect::{Opened, peek_flow_id};
use crate::range::RangeSet;
use crate::receiver::timer::{FlowTimer, Timer};
use crate::receiver::{FlowInput, Receiver, ReceiverEvent};
use crate::trace::{Outcome, PacketTrace, TracedFrame};
use crate::{Cause, Ecn, PathId, Rung};

/// Verified packets with invalid frames after which a receiver leaves a flow.
const MAX_INVALID: u64 = 100;
/// Number of packets after which invalid ones are judged against the progress.
const JUDGED_EVERY: u64 = 1000;
/// Bound on remembered packets with messages; those below the lowest count as delivered.
const MAX_REMEMBERED: usize = 256;
/// Messages that wait for the application.
const MAX_DATAGRAMS: usize = 64;
/// An older epoch's key is kept for this long after the first packet of the newer one, for packets
/// that were overtaken.
const KEY_OVERLAP: Duration = Duration::from_secs(3);

/// Packets whose messages the application has.
///
/// A packet arrives natively and replicated, and received numbers are forgotten at each fall-back:
/// frames that are not merged by their place in an update are delivered once.
#[derive(Debug, Default)]
pub(super) struct SeenMessages {
    packets: RangeSet,
    /// Packets below this one count as seen.
    floor: u64,
}

impl SeenMessages {
    fn contains(&self, pn: u64) -> bool {
        pn < self.floor || self.packets.contains(pn)
    }

    fn insert(&mut self, pn: u64) {
        self.packets.insert_one(pn);
    }

    /// Forgets the oldest beyond the bound.
    fn trim(&mut self) {
        if let Some(floor) = self.packets.truncate_low(MAX_REMEMBERED) {
            self.floor = floor;
        }
    }
}

/// Verified packets that made no sense, less those that were forgiven.
#[derive(Debug)]
pub(super) struct InvalidPackets {
    count: u64,
    /// The next update to be delivered when they were last forgiven.
    forgiven_at: u64,
}

impl InvalidPackets {
    /// Counts from the update `next` on.
    pub(super) fn since(next: u64) -> Self {
        InvalidPackets {
            count: 0,
            forgiven_at: next,
        }
    }

    /// Adds invalid packets. Returns whether there are too many.
    fn add(&mut self, packets: u64) -> bool {
        self.count += packets;
        self.count >= MAX_INVALID
    }

    /// Takes back packets that were found to be valid.
    pub(super) fn clear(&mut self, packets: u64) {
        self.count = self.count.saturating_sub(packets);
    }

    /// Forgives them if more updates than that were delivered meanwhile: a bad packet now and then
    /// is no reason to leave.
    fn forgive(&mut self, next: u64) {
        if next.saturating_sub(self.forgiven_at) > self.count {
            *self = InvalidPackets::since(next);
        }
    }
}

/// Intermediate results about a packet, for its trace.
#[derive(Default)]
struct PacketFindings {
    pn: Option<u64>,
    key_sequence: u64,
    frames: Vec<TracedFrame>,
}

/// Frames of a packet that may be merged.
struct CheckedFrames<'a> {
    ack_eliciting: bool,
    /// The frame of a packet that has no other, as nearly all have.
    only: Option<Frame<'a>>,
}

/// Arrival of a packet.
#[derive(Clone, Copy)]
struct Arrival {
    path: PathId,
    rung: Rung,
    mark: Ecn,
    now: Instant,
}

impl Receiver {
    /// Whether a datagram is for a flow that the source announced, and not for the connection
    /// (protocol.md section 2).
    pub fn knows_flow(&self, datagram: &[u8]) -> bool {
        peek_flow_id(datagram).is_some_and(|id| self.flows.contains_key(&id))
    }

    /// Takes a datagram that arrived for a flow by `rung`, where its ECN mark is not known. It is
    /// decrypted in place.
    pub fn on_flow_datagram(&mut self, rung: Rung, datagram: &mut [u8], now: Instant) -> FlowInput {
        self.on_marked_flow_datagram(rung, Ecn::NotEct, datagram, now)
    }

    /// Takes a datagram that arrived for a flow by `rung` with an ECN mark. It is decrypted in
    /// place.
    pub fn on_marked_flow_datagram(
        &mut self,
        rung: Rung,
        mark: Ecn,
        datagram: &mut [u8],
        now: Instant,
    ) -> FlowInput {
        let Some(id) = peek_flow_id(datagram) else {
            return FlowInput::UnknownFlow;
        };
        let mut findings = self.tracer.is_on().then(PacketFindings::default);
        let len = datagram.len();
        let taken = self.drive(id, |flow| {
            let path = flow.flow.path(rung);
            let arrival = Arrival {
                path,
                rung,
                mark,
                now,
            };
            (path, flow.take_packet(arrival, datagram, &mut findings))
        });
        let Some((path, input)) = taken else {
            return FlowInput::UnknownFlow;
        };
        let Some(findings) = findings else {
            return input;
        };
        self.tracer.note(|| PacketTrace {
            at: now,
            flow: id,
            path,
            outcome: match input {
                FlowInput::Accepted => Outcome::Received,
                other => Outcome::Dropped(other),
            },
            pn: findings.pn,
            key_sequence: findings.key_sequence,
            len,
            frames: findings.frames,
        });
        input
    }
}

impl FlowDriver<'_> {
    fn take_packet(
        &mut self,
        arrival: Arrival,
        datagram: &mut [u8],
        findings: &mut Option<PacketFindings>,
    ) -> FlowInput {
        if !self.flow.participation.reads() {
            return FlowInput::UnknownFlow;
        }
        if self.flow.keys.is_empty() {
            return FlowInput::UnknownFlow;
        }
        let Some((packet, sequence)) = self.open_packet(datagram, arrival.now) else {
            self.channel.stats.reception.flow_invalid += 1;
            return FlowInput::Unverified;
        };
        if let Some(findings) = findings {
            findings.pn = Some(packet.pn);
            findings.key_sequence = sequence;
            findings.frames = crate::trace::frames(packet.frames);
        }
        let before = self.channel.merge.stats().refetched;
        let tracker = self.flow.trackers.entry(arrival.path).or_default();
        if tracker.is_duplicate(packet.pn) {
            self.channel.stats.reception.duplicates += 1;
            self.merge_again(packet.frames);
            self.count_refetched(before, arrival.now);
            return FlowInput::Duplicate;
        }
        let checked = match self.check_frames(packet.frames) {
            Ok(checked) => checked,
            Err(refused) => return refused,
        };
        match checked.only {
            Some(frame) => self.merge_frames(packet.pn, std::iter::once(frame)),
            None => self.merge_frames(packet.pn, Frames::new(packet.frames).flatten()),
        }
        self.accepted(arrival, packet.pn, checked.ack_eliciting);
        self.count_refetched(before, arrival.now);
        FlowInput::Accepted
    }

    /// Decrypts a packet. With it comes the sequence of its key epoch.
    fn open_packet<'a>(
        &mut self,
        datagram: &'a mut [u8],
        now: Instant,
    ) -> Option<(Opened<'a>, u64)> {
        let keys = &mut self.flow.keys;
        let trackers = self.flow.trackers.values();
        let largest = trackers.filter_map(|tracker| tracker.largest()).max();
        let expected = largest.map_or(keys.first_pn(), |pn| pn + 1);
        let opened = keys.open(expected, datagram)?;
        if keys.is_superseding(opened.1) && !self.is_set(FlowTimer::KeyDiscard) {
            self.set(FlowTimer::KeyDiscard, now + KEY_OVERLAP);
        }
        Some(opened)
    }

    /// Merges the updates of a packet whose number has arrived before.
    ///
    /// The first packet with this number may have been forged by a member: the content of this one
    /// is kept, though its number is not acknowledged again.
    fn merge_again(&mut self, frames: &[u8]) {
        for frame in Frames::new(frames).flatten() {
            if let Frame::Stream {
                seq,
                offset,
                data,
                fin,
            } = frame
            {
                let range = range_of(offset, data);
                let total = fin.then_some(range.end);
                if self.channel.merge.accepts(seq, range, fin) {
                    self.channel.merge.add_flow(seq, offset, data, total);
                }
            }
        }
    }

    /// Checks all frames before any is merged.
    ///
    /// # Errors
    ///
    /// The outcome of a packet with an invalid frame, or for whose updates there is no room.
    #[inline]
    fn check_frames<'a>(&mut self, frames: &'a [u8]) -> Result<CheckedFrames<'a>, FlowInput> {
        let (mut ack_eliciting, mut only) = (false, None);
        for (place, frame) in Frames::new(frames).enumerate() {
            let Ok(frame) = frame else {
                self.channel.stats.reception.flow_invalid += 1;
                self.count_invalid(1);
                return Err(FlowInput::Invalid);
            };
            ack_eliciting |= frame.is_ack_eliciting();
            only = (place == 0).then_some(frame);
            if let Frame::Stream {
                seq,
                offset,
                data,
                fin,
            } = frame
                && !self.channel.merge.accepts(seq, range_of(offset, data), fin)
            {
                self.channel.stats.no_room += 1;
                return Err(FlowInput::NoRoom);
            }
        }
        Ok(CheckedFrames {
            ack_eliciting,
            only,
        })
    }

    /// Merges the frames of a new packet.
    #[inline]
    fn merge_frames<'a>(&mut self, pn: u64, frames: impl Iterator<Item = Frame<'a>>) {
        let seen = self.flow.messages.contains(pn);
        for frame in frames {
            match frame {
                Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin,
                } => {
                    let total = fin.then_some(range_of(offset, data).end);
                    // A source that does not answer NEED is found to be behind by its head. To
                    // others, a number of the flow's proves nothing.
                    let stats = &mut self.channel.stats;
                    if !self.channel.merge.does_source_answer() {
                        stats.head = stats.head.max(seq);
                    }
                    self.channel.merge.add_flow(seq, offset, data, total);
                }
                Frame::Reset { .. } => self.channel.stats.resets += 1,
                Frame::Datagram { .. } if seen => {}
                Frame::Datagram { data } => {
                    self.flow.messages.insert(pn);
                    self.deliver_message(data);
                }
                Frame::Padding | Frame::Ping | Frame::Unknown { .. } => {}
            }
        }
        self.flow.messages.trim();
    }

    fn deliver_message(&mut self, data: &[u8]) {
        self.channel.stats.datagrams += 1;
        let waiting = self.events.iter().filter(|e| is_datagram(e)).count();
        if waiting < MAX_DATAGRAMS {
            self.events.push_back(ReceiverEvent::Datagram {
                channel: self.channel.name.clone(),
                data: Bytes::copy_from_slice(data),
            });
        }
    }

    /// Notes a packet whose frames were taken: acknowledges it, and follows what it says about its
    /// rung.
    fn accepted(&mut self, arrival: Arrival, pn: u64, ack_eliciting: bool) {
        let Arrival {
            path,
            rung,
            mark,
            now,
        } = arrival;
        let stats = &mut self.channel.stats;
        stats.reception.flow_packets += 1;
        if stats.reception.flow_packets.is_multiple_of(JUDGED_EVERY) {
            self.flow.invalid.forgive(self.channel.merge.next());
        }
        stats.copied_packets += u64::from(rung == Rung::Replicated);
        stats.tunnelled_packets += u64::from(rung == Rung::Amt);
        let owes = self.flow.membership.path() == Some(path);
        let known = self.flow.trackers.get(&path);
        let hold = match known.is_some_and(AckTracker::is_waiting) {
            true => Duration::ZERO,
            false => self.hold(),
        };
        let tracker = self.flow.trackers.entry(path).or_default();
        tracker.on_packet(pn, now, hold, ack_eliciting, owes);
        tracker.on_mark(mark);
        self.flow.membership.on_packet(path, now);
        match rung {
            Rung::Multicast => {
                if self.flow.native.arrived(now) {
                    let quiet = self.flow.quiet_span();
                    self.set(FlowTimer::Rejoin, now + REJOIN_FIRST.max(quiet));
                }
                self.on_native_packet(owes, now);
            }
            Rung::Amt => self.on_tunnelled_packet(now),
            Rung::Replicated | Rung::Unicast => {}
        }
        let better = rung < self.flow.rung() && !self.flow.participation.is_held();
        if better && self.flow.proof.on_packet(path, pn, now) {
            self.report(Action::Ready, path, None);
        }
    }

    /// Counts each update that a packet made suspect like an invalid packet: a flow that does
    /// nothing else is left.
    fn count_refetched(&mut self, before: u64, now: Instant) {
        if self.channel.merge.has_need() && !self.timers.is_set(Timer::Need) {
            self.timers.set(Timer::Need, now);
        }
        let found = self.channel.merge.stats().refetched - before;
        if found > 0 {
            self.count_invalid(found);
        }
    }

    fn count_invalid(&mut self, packets: u64) {
        let too_many = self.flow.invalid.add(packets);
        if too_many && self.flow.participation != Participation::Left {
            self.leave(Cause::FlowInvalid);
        }
    }
}

fn range_of(offset: u64, data: &[u8]) -> Range<u64> {
    offset..offset + data.len() as u64
}

fn is_datagram(event: &ReceiverEvent) -> bool {
    matches!(event, ReceiverEvent::Datagram { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_seen_once_and_memory_is_bounded() {
        let mut seen = SeenMessages::default();
        for pn in (0..2000).step_by(2) {
            assert!(!seen.contains(pn));
            seen.insert(pn);
            seen.trim();
        }
        assert!(seen.contains(1998) && !seen.contains(1997));
        assert!(seen.contains(1), "too old to tell counts as seen");
        assert!(seen.packets.len() <= MAX_REMEMBERED);
    }

    #[test]
    fn invalid_packets_are_forgiven_where_more_was_delivered() {
        let mut invalid = InvalidPackets::since(10);
        assert!(!invalid.add(MAX_INVALID - 1));
        invalid.forgive(10 + MAX_INVALID - 1);
        assert!(invalid.add(1), "no more updates than invalid packets");
        invalid.clear(1);
        invalid.forgive(10 + MAX_INVALID);
        assert!(!invalid.add(MAX_INVALID - 1));
        invalid.clear(u64::MAX);
        assert!(!invalid.add(1));
    }
}
