//! Intake of flow packets.

use std::ops::Range;
use std::time::{Duration, Instant};

use signing::Forgery;

use super::backoff::REJOIN_FIRST;
use super::{FlowDriver, RelayLeg};
use crate::ack::AckTracker;
use crate::authentication::{Held, SIGNATURE_LEN, Verdict, split_signature};
use crate::control::{Action, Leg};
use crate::frame::{Frame, Frames};
use crate::merge::MergeStats;
use crate::message::Fragment;
use crate::protect::{MAX_PACKETS, Opened, peek_flow_id};
use crate::receiver::messages::{Outcome, Path};
use crate::receiver::timer::{FlowTimer, Timer};
use crate::receiver::trust::FailedCheck;
use crate::receiver::{FlowInput, Receiver};
use crate::trace::{self, PacketTrace, TracedFrame};
use crate::{Ecn, FlowId, PathId, Rung};

/// Verified packets with invalid frames after which a receiver leaves a flow.
const MAX_INVALID: u64 = 100;
/// Number of packets after which invalid ones are judged against the progress.
const JUDGED_EVERY: u64 = 1000;
/// An older epoch's key is kept for this long after the first packet of the newer one, for packets
/// that were overtaken.
const KEY_OVERLAP: Duration = Duration::from_secs(3);

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
    /// The repair symbol of a packet that carries one.
    symbol: Option<&'a [u8]>,
}

/// Arrival of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) path: PathId,
    rung: Rung,
    /// Which of several legs by this rung.
    number: u64,
    mark: Ecn,
    pub(super) now: Instant,
}

impl Arrival {
    /// Arrival of what a member got on its connection.
    pub(super) fn of_member(path: PathId, rung: Rung, now: Instant) -> Self {
        Arrival {
            path,
            rung,
            number: 0,
            mark: Ecn::NotEct,
            now,
        }
    }

    pub(super) fn leg(&self) -> Leg {
        Leg {
            rung: self.rung,
            number: self.number,
        }
    }
}

/// Whether a packet of a flow whose packets are authenticated is known to be the source's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Unproved,
    Proved,
}

impl Receiver {
    /// Whether a datagram is for a flow that the source announced, and not for the connection
    /// (protocol.md section 2).
    pub fn knows_flow(&self, datagram: &[u8]) -> bool {
        peek_flow_id(datagram).is_some_and(|id| self.flow_of(id).is_some())
    }

    /// Returns the flow of whose packets, or packets of tags, this is the Flow ID.
    fn flow_of(&self, id: FlowId) -> Option<FlowId> {
        if self.flows.contains_key(&id) {
            return Some(id);
        }
        let mut flows = self.flows.iter();
        let flow = flows.find(|(_, flow)| flow.tag_flow() == Some(id));
        flow.map(|(id, _)| *id)
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
        self.on_leg_datagram(Leg { rung, number: 0 }, mark, datagram, now)
    }

    /// Takes a datagram that arrived for a flow by one of several legs. It is decrypted in place.
    pub fn on_leg_datagram(
        &mut self,
        leg: Leg,
        mark: Ecn,
        datagram: &mut [u8],
        now: Instant,
    ) -> FlowInput {
        let Leg { rung, number } = leg;
        let Some(id) = peek_flow_id(datagram) else {
            return FlowInput::UnknownFlow;
        };
        let Some(flow) = self.flow_of(id) else {
            return FlowInput::UnknownFlow;
        };
        if flow != id {
            return self.take_tags(flow, datagram, now);
        }
        let Some(path) = self.flows.get(&id).map(|flow| flow.path(rung)) else {
            return FlowInput::UnknownFlow;
        };
        #[cfg(feature = "fault-injection")]
        let path = match self.legs_unmerged && number > 0 {
            true => PathId::new(path.flow_index(), Rung::Multicast),
            false => path,
        };
        let arrival = Arrival {
            path,
            rung,
            number,
            mark,
            now,
        };
        self.take_packet(id, arrival, datagram, Origin::Unproved)
    }

    /// Takes a packet of tags, and the packets that waited for them.
    fn take_tags(&mut self, id: FlowId, datagram: &[u8], now: Instant) -> FlowInput {
        let proved = self.drive(id, |flow| flow.open_tags(datagram, now));
        let Some(proved) = proved.flatten() else {
            return FlowInput::Unverified;
        };
        let mut input = FlowInput::Held;
        for mut held in proved {
            let arrival = Arrival { now, ..held.note };
            let taken = self.take_packet(id, arrival, &mut held.packet, Origin::Proved);
            if taken == FlowInput::Accepted {
                input = taken;
            }
        }
        input
    }

    fn take_packet(
        &mut self,
        id: FlowId,
        arrival: Arrival,
        datagram: &mut [u8],
        origin: Origin,
    ) -> FlowInput {
        let mut findings = self.tracer.is_on().then(PacketFindings::default);
        let len = datagram.len();
        let taken = self.drive(id, |flow| {
            flow.take_packet(arrival, datagram, origin, &mut findings)
        });
        let Some(input) = taken else {
            return FlowInput::UnknownFlow;
        };
        let Some(findings) = findings else {
            return input;
        };
        self.tracer.note(|| PacketTrace {
            at: arrival.now,
            flow: id,
            path: arrival.path,
            outcome: match input {
                FlowInput::Accepted => trace::Outcome::Received,
                other => trace::Outcome::Dropped(other),
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
    /// Opens a packet of tags. Returns the packets that the source sent and that waited for one of
    /// them; `None` if it does not open.
    fn open_tags(&mut self, datagram: &[u8], now: Instant) -> Option<Vec<Held<Arrival>>> {
        if !self.flow.participation.reads() || self.flow.keys.is_empty() {
            return None;
        }
        if !self.affords_checks(now) {
            self.suspect(now);
            return None;
        }
        let Some(payload) = self.flow.keys.open_tags(datagram) else {
            self.channel.stats.reception.flow_invalid += 1;
            return None;
        };
        let proved = self.flow.opener.as_mut()?.take_tags(&payload);
        self.count_failed_tags(now);
        Some(proved)
    }

    fn take_packet(
        &mut self,
        arrival: Arrival,
        datagram: &mut [u8],
        origin: Origin,
        findings: &mut Option<PacketFindings>,
    ) -> FlowInput {
        if !self.flow.participation.reads() {
            return FlowInput::UnknownFlow;
        }
        if self.flow.keys.is_empty() {
            return FlowInput::UnknownFlow;
        }
        if origin == Origin::Unproved && !self.affords_checks(arrival.now) {
            self.suspect(arrival.now);
            return FlowInput::Unchecked;
        }
        self.end_suspicion(arrival.now);
        let is_authenticated = self.flow.opener.is_some();
        let (datagram, unproved) = match is_authenticated && origin == Origin::Unproved {
            true => {
                let (packet, signature) = split_signature(datagram);
                let sealed = packet.to_vec();
                (packet, Some((sealed, signature)))
            }
            false => (datagram, None),
        };
        let tag = datagram.last_chunk().copied();
        let Some((packet, sequence)) = self.open_packet(datagram) else {
            self.channel.stats.reception.flow_invalid += 1;
            return FlowInput::Unverified;
        };
        let far = self.flow.keys.first_pn().saturating_add(2 * MAX_PACKETS);
        if packet.pn >= far && !is_authenticated {
            // No epoch is so long: by this number, true ones would be reconstructed wrong.
            self.channel.stats.reception.forged += 1;
            self.channel.stats.reception.flow_invalid += 1;
            self.suspect(arrival.now);
            return FlowInput::Forged;
        }
        // A forgery that shows in nothing else must not be a proof.
        if self.flow.membership.path().is_none()
            && !is_authenticated
            && tag.is_some_and(|tag| self.flow.suspicion.contradicts(packet.pn, tag))
        {
            let heartbeat = self.flow.announce.heartbeat;
            self.flow.suspicion.renew(heartbeat, arrival.now);
        }
        if let Some(findings) = findings {
            findings.pn = Some(packet.pn);
            findings.key_sequence = sequence;
            findings.frames = trace::frames(packet.frames);
        }
        let before = self.channel.merge.stats();
        let tracker = self.flow.trackers.get(&self.flow.tracked(arrival.path));
        let is_duplicate = tracker.is_some_and(|tracker| tracker.is_duplicate(packet.pn));
        if is_duplicate && is_authenticated {
            // The source sent what came before with this number: this is the same, or forged.
            self.note_duplicate(arrival, packet.pn, tag);
            return FlowInput::Duplicate;
        }
        // Nothing that follows from a packet's number comes before this.
        if let Some((sealed, signature)) = unproved
            && let Some(input) = self.authenticate(packet.pn, sealed, signature, arrival)
        {
            return input;
        }
        if self.flow.keys.is_superseding(sequence) && !self.is_set(FlowTimer::KeyDiscard) {
            self.set(FlowTimer::KeyDiscard, arrival.now + KEY_OVERLAP);
        }
        if is_duplicate {
            self.merge_again(packet.frames);
            self.judge(before, arrival.now);
            let again = self.channel.merge.stats().duplicates - before.duplicates;
            if self.note_duplicate(arrival, packet.pn, tag) {
                self.channel.redundant_frames += again;
            }
            return FlowInput::Duplicate;
        }
        let checked = match self.check_frames(packet.frames, arrival.now) {
            Ok(checked) => checked,
            Err(refused) => return refused,
        };
        match checked.only {
            Some(frame) => self.merge_frames(std::iter::once(frame), arrival.now),
            None => self.merge_frames(Frames::new(packet.frames).flatten(), arrival.now),
        }
        // First, so that a forged packet is no proof.
        self.judge(before, arrival.now);
        self.accepted(arrival, packet.pn, checked.ack_eliciting);
        self.heard_on_leg(arrival, packet.pn, tag, true);
        self.rebuild(
            arrival,
            (sequence, packet.pn),
            packet.frames,
            checked.symbol,
        );
        FlowInput::Accepted
    }

    /// Notes a packet whose number has arrived before: as the first one by its leg it is a sign of
    /// life of that. Returns whether it is.
    fn note_duplicate(&mut self, arrival: Arrival, pn: u64, tag: Option<[u8; 8]>) -> bool {
        let is_sign = self.heard_on_leg(arrival, pn, tag, false);
        let reception = &mut self.channel.stats.reception;
        if is_sign {
            reception.redundant += 1;
            self.note_arrival(arrival);
        } else {
            reception.duplicates += 1;
        }
        is_sign
    }

    /// Judges a packet that opened by its signature or tag. Returns the outcome of one that the
    /// source is not known to have sent.
    fn authenticate(
        &mut self,
        pn: u64,
        sealed: Vec<u8>,
        signature: Option<[u8; SIGNATURE_LEN]>,
        arrival: Arrival,
    ) -> Option<FlowInput> {
        #[cfg(feature = "fault-injection")]
        if self.channel.packet_check_off {
            return None;
        }
        let opener = self.flow.opener.as_mut()?;
        let now = arrival.now;
        let verdict = opener.judge(pn, sealed, signature, arrival);
        let stats = &mut self.channel.stats;
        stats.untagged_packets += opener.take_untagged();
        self.count_failed_tags(now);
        let stats = &mut self.channel.stats;
        match verdict {
            Verdict::Authentic => None,
            Verdict::Held => Some(FlowInput::Held),
            Verdict::Forged => {
                stats.forged_packets += 1;
                stats.reception.flow_invalid += 1;
                stats.reception.forged += 1;
                if signature.is_some() {
                    self.count_failed_checks(1, FailedCheck::Signature, now);
                }
                Some(FlowInput::Forged)
            }
        }
    }

    /// Decrypts a packet. With it comes the sequence of its key epoch.
    fn open_packet<'a>(&mut self, datagram: &'a mut [u8]) -> Option<(Opened<'a>, u64)> {
        let keys = &mut self.flow.keys;
        let trackers = self.flow.trackers.values();
        let largest = trackers.filter_map(|tracker| tracker.largest()).max();
        let expected = largest.map_or(keys.first_pn(), |pn| pn + 1);
        keys.open(expected, datagram)
    }

    /// Merges the updates of a packet whose number has arrived before.
    ///
    /// The first packet with this number may have been forged by a member: the content of this one
    /// is kept, though its number is not acknowledged again.
    fn merge_again(&mut self, frames: &[u8]) {
        for frame in Frames::new(frames).flatten() {
            match frame {
                Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin,
                } => {
                    let range = range_of(offset, data);
                    let total = fin.then_some(range.end);
                    if self.channel.merge.accepts(seq, range, fin) {
                        self.channel.merge.add_flow(seq, offset, data, total);
                    }
                }
                Frame::StreamSignature { seq, signature } => self.take_signature(seq, signature),
                _ => {}
            }
        }
    }

    /// Takes the signature of an update, on a flow that has them.
    fn take_signature(&mut self, seq: u64, signature: &[u8; SIGNATURE_LEN]) {
        if let Some(key) = self.flow.stream_key {
            self.channel.merge.add_signature(seq, key, signature);
        }
    }

    /// Checks all frames before any is merged.
    ///
    /// # Errors
    ///
    /// The outcome of a packet with an invalid frame, or for whose updates there is no room.
    #[inline]
    fn check_frames<'a>(
        &mut self,
        frames: &'a [u8],
        now: Instant,
    ) -> Result<CheckedFrames<'a>, FlowInput> {
        let (mut ack_eliciting, mut only, mut symbol) = (false, None, None);
        for (place, frame) in Frames::new(frames).enumerate() {
            let Ok(frame) = frame else {
                self.channel.stats.reception.flow_invalid += 1;
                self.count_invalid(1, now);
                return Err(FlowInput::Invalid);
            };
            ack_eliciting |= frame.is_ack_eliciting();
            only = (place == 0).then_some(frame);
            let accepts = match frame {
                Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin,
                } => self.channel.merge.accepts(seq, range_of(offset, data), fin),
                Frame::Repair { symbol: bytes } => {
                    symbol = Some(bytes);
                    true
                }
                Frame::StreamSignature { seq, .. } if self.flow.signs_streams() => {
                    self.channel.merge.accepts(seq, 0..0, false)
                }
                _ => true,
            };
            if !accepts {
                self.channel.stats.no_room += 1;
                return Err(FlowInput::NoRoom);
            }
        }
        Ok(CheckedFrames {
            ack_eliciting,
            only,
            symbol,
        })
    }

    /// Merges the frames of a new packet.
    #[inline]
    pub(super) fn merge_frames<'a>(
        &mut self,
        frames: impl Iterator<Item = Frame<'a>>,
        now: Instant,
    ) {
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
                Frame::Datagram { data } => self.take_datagram(data, now),
                Frame::StreamSignature { seq, signature } => self.take_signature(seq, signature),
                Frame::Padding | Frame::Ping | Frame::Repair { .. } | Frame::Unknown { .. } => {}
            }
        }
    }

    /// Takes a fragment of a message of the flow's channel; anything else is ignored.
    fn take_datagram(&mut self, data: &[u8], now: Instant) {
        let Ok(Some(fragment)) = Fragment::decode(data) else {
            return;
        };
        if self.channel.number != Some(fragment.channel) {
            return;
        }
        let now_us = self.clock.us(now);
        let outcome = self
            .channel
            .take_fragment(&fragment, Path::Flow, now_us, self.events);
        if let Outcome::Forged(forgery) = outcome {
            self.suspect(now);
            // The hashes of a message cost no less than a signature.
            if matches!(forgery, Forgery::Signature | Forgery::Content) {
                self.count_failed_checks(1, FailedCheck::Signature, now);
            }
        }
    }

    /// Notes a packet whose frames were taken: acknowledges it, and follows what it says about its
    /// rung.
    pub(super) fn accepted(&mut self, arrival: Arrival, pn: u64, ack_eliciting: bool) {
        let Arrival {
            path,
            rung,
            mark,
            now,
            ..
        } = arrival;
        let stats = &mut self.channel.stats;
        stats.reception.flow_packets += 1;
        if stats.reception.flow_packets.is_multiple_of(JUDGED_EVERY) {
            self.flow.invalid.forgive(self.channel.merge.next());
        }
        stats.copied_packets += u64::from(rung == Rung::Replicated);
        stats.tunnelled_packets += u64::from(rung == Rung::Amt);
        let (owes, tracked) = (self.is_owed(path), self.flow.tracked(path));
        let known = self.flow.trackers.get(&tracked);
        let hold = match known.is_some_and(AckTracker::is_waiting) {
            true => Duration::ZERO,
            false => self.hold(),
        };
        // Nothing counts for one that is no member and suspects the flow.
        let is_suspect = self.flow.opener.is_none() && self.flow.suspicion.is_on();
        if owes || !is_suspect {
            let tracker = self.flow.trackers.entry(tracked).or_default();
            tracker.on_packet(pn, now, hold, ack_eliciting, owes);
            tracker.on_mark(mark);
        }
        self.note_arrival(arrival);
        // A member's other leg is reported by FC_LEGS.
        let better = rung < self.flow.rung() && !owes && !self.flow.participation.is_held();
        let proves = better && !self.flow.suspicion.is_on();
        let is_again = self.flow.proof.is_reported(path);
        let is_unproved = self.flow.opener.is_none();
        if proves && self.flow.proof.on_packet(path, pn, now) {
            if is_again {
                // A forged number would be in each further READY.
                let mut tracker = AckTracker::starting_at(pn);
                tracker.on_packet(pn, now, hold, ack_eliciting, false);
                self.flow.trackers.insert(tracked, tracker);
                if let Some(merged) = self.flow.merged.as_mut().filter(|_| is_unproved) {
                    merged.restart();
                }
            }
            self.report(Action::Ready, path, None);
        }
    }

    /// Notes a sign of life of the rung by which a packet came.
    fn note_arrival(&mut self, arrival: Arrival) {
        let Arrival {
            path,
            rung,
            number,
            now,
            ..
        } = arrival;
        let owes = self.is_owed(path);
        if owes {
            self.flow.membership.on_packet(now);
        }
        match rung {
            Rung::Multicast => {
                if self.flow.native.arrived(now) {
                    let quiet = self.flow.quiet_span();
                    self.set(FlowTimer::Rejoin, now + REJOIN_FIRST.max(quiet));
                }
                self.on_native_packet(owes, now);
            }
            Rung::Amt => {
                if let Some(relay) = RelayLeg::of_number(number) {
                    self.on_tunnelled_packet(relay, now);
                }
            }
            Rung::Replicated | Rung::Unicast => {}
        }
    }

    /// Requests bytes that the flow brought wrong.
    #[inline]
    pub(super) fn want_needed(&mut self, now: Instant) {
        if self.channel.merge.has_need() && !self.timers.is_set(Timer::Need) {
            self.timers.set(Timer::Need, now);
        }
    }

    /// Counts what a packet made suspect: each update like an invalid packet, and the checks that
    /// failed. A flow that does nothing else, or brings too much to check, is left.
    #[inline]
    fn judge(&mut self, before: MergeStats, now: Instant) {
        self.want_needed(now);
        let stats = self.channel.merge.stats();
        if stats.forged > before.forged {
            self.suspect(now);
        }
        if stats.refetched > before.refetched {
            self.count_invalid(stats.refetched - before.refetched, now);
        }
        if stats.failed_checks > before.failed_checks {
            let failed = stats.failed_checks - before.failed_checks;
            self.count_failed_checks(failed, FailedCheck::Signature, now);
        }
    }

    fn count_invalid(&mut self, packets: u64, now: Instant) {
        self.suspect(now);
        if self.flow.invalid.add(packets) {
            self.leave(now);
        }
    }

    /// Counts failed checks of signed updates and of packets. A member that has paid for too many
    /// of them gets the updates by unicast.
    pub(super) fn count_failed_checks(&mut self, failed: u64, check: FailedCheck, now: Instant) {
        self.channel.failed_checks.take(failed, check);
        let affords = self.affords_checks(now);
        // On a flow whose packets are authenticated, a forged one proves nothing.
        if !affords || self.flow.opener.is_none() {
            self.suspect(now);
        }
        if !affords {
            self.leave(now);
        }
    }

    /// Whether another check may fail.
    fn affords_checks(&mut self, now: Instant) -> bool {
        self.channel.failed_checks.affords(now)
    }

    fn count_failed_tags(&mut self, now: Instant) {
        let opener = self.flow.opener.as_mut();
        let failed = opener.map_or(0, |opener| opener.take_failed_tags());
        if failed > 0 {
            self.channel.stats.failed_tags += failed;
            self.count_failed_checks(failed, FailedCheck::Tag, now);
        }
    }
}

fn range_of(offset: u64, data: &[u8]) -> Range<u64> {
    offset..offset + data.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

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
