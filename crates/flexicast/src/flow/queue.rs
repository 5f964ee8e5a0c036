//! The send queue of a flow: updates in order, ends of abandoned updates, messages.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::ledger::{PacketContents, StreamRange};
use crate::authentication::{PacketSigner, SIGNATURE_LEN};
use crate::frame;

/// Bytes of fragments of messages that wait to be sent at most.
const MAX_DATAGRAM_BYTES: usize = 1 << 20;

/// Fragment of a message.
#[derive(Debug)]
pub(super) struct QueuedDatagram {
    pub(super) data: Bytes,
    /// When it is worthless.
    until: Option<Instant>,
}

/// Update that is being sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) seq: u64,
    pub(super) bytes: Bytes,
    /// First byte that was not sent.
    pub(super) offset: usize,
    /// Bytes of the channel before this update.
    pub(super) start: u64,
}

impl Outgoing {
    /// Returns the bytes that go into one frame together: the header of a signed update of which
    /// nothing was sent.
    pub(super) fn first_frame_len(&self) -> usize {
        match self.offset {
            0 => signing::header_len(&self.bytes).map_or(0, |len| len.min(self.bytes.len())),
            _ => 0,
        }
    }

    /// Returns the last byte that the next frame has at least.
    pub(super) fn last_of_next(&self) -> usize {
        self.offset.max(self.first_frame_len().saturating_sub(1))
    }

    /// Returns the number of bytes that were not sent.
    fn unsent(&self) -> usize {
        self.bytes.len() - self.offset
    }
}

/// Queue of a flow.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) updates: VecDeque<Outgoing>,
    pub(super) datagrams: VecDeque<QueuedDatagram>,
    datagram_bytes: usize,
    /// Whether the last packet left fragments out for updates.
    skips_datagrams: bool,
    /// Updates that go no further on the flow: number and length.
    pub(super) resets: VecDeque<(u64, u64)>,
    /// The `seq` after the last one that was pushed.
    next_seq: u64,
    /// Bytes of all updates that were pushed: the channel offset after the last one.
    pushed: u64,
    /// Bytes of updates that wait.
    bytes: usize,
    /// Key by which whole updates are signed, if they are.
    signer: Option<PacketSigner>,
    /// Signatures of updates that were sent to their end.
    signatures: VecDeque<(u64, [u8; SIGNATURE_LEN])>,
}

impl SendQueue {
    /// An empty queue of a flow whose updates are signed as a whole by `signer`.
    pub(super) fn new(signer: Option<PacketSigner>) -> Self {
        SendQueue {
            updates: VecDeque::new(),
            datagrams: VecDeque::new(),
            datagram_bytes: 0,
            skips_datagrams: true,
            resets: VecDeque::new(),
            next_seq: 1,
            pushed: 0,
            bytes: 0,
            signer,
            signatures: VecDeque::new(),
        }
    }

    /// Returns the key by which whole updates are signed, if they are.
    pub(super) fn signer(&self) -> Option<&PacketSigner> {
        self.signer.as_ref()
    }

    /// Returns the rest of an update for members that get no more of it from the flow. What the
    /// flow brought is worth nothing without a signature, so that all of it is the rest then.
    fn rest(&self, outgoing: &Outgoing) -> StreamRange {
        match self.signer {
            Some(_) => StreamRange::whole(outgoing.seq),
            None => StreamRange {
                seq: outgoing.seq,
                range: outgoing.offset as u64..outgoing.bytes.len() as u64,
            },
        }
    }

    /// Returns the updates that were sent to their end, but for their signatures.
    pub(super) fn unsigned(&self) -> impl Iterator<Item = StreamRange> {
        self.signatures
            .iter()
            .map(|(seq, _)| StreamRange::whole(*seq))
    }

    /// Appends the signatures that wait, as far as they fit until `out` is `limit` bytes long.
    /// Returns whether all of them did.
    pub(super) fn put_signatures(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        contents: &mut PacketContents,
    ) -> bool {
        while let Some((seq, signature)) = self.signatures.front() {
            if !frame::put_stream_signature(out, limit, *seq, signature) {
                return false;
            }
            contents.push(StreamRange::whole(*seq));
            self.signatures.pop_front();
        }
        true
    }

    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the bytes of updates and signatures that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.signatures.len() * SIGNATURE_LEN
    }

    /// Takes the next update of the channel, and queues it if anybody `listens`.
    pub(super) fn push(&mut self, seq: u64, bytes: Bytes, listens: bool) {
        self.next_seq = seq + 1;
        let start = self.pushed;
        self.pushed += bytes.len() as u64;
        if listens {
            self.bytes += bytes.len();
            self.updates.push_back(Outgoing {
                seq,
                bytes,
                offset: 0,
                start,
            });
        }
    }

    /// Queues all fragments of a message, which are worthless after `until`; returns whether there
    /// was room.
    pub(super) fn push_datagrams(&mut self, fragments: &[Bytes], until: Option<Instant>) -> bool {
        let bytes: usize = fragments.iter().map(Bytes::len).sum();
        let has_room = self.datagram_bytes + bytes <= MAX_DATAGRAM_BYTES;
        if has_room {
            self.datagram_bytes += bytes;
            let data = fragments.iter().cloned();
            let queued = data.map(|data| QueuedDatagram { data, until });
            self.datagrams.extend(queued);
        }
        has_room
    }

    /// Drops fragments in front that are worthless by now. Returns how many.
    pub(super) fn drop_late_datagrams(&mut self, now: Instant) -> u64 {
        let is_late = |front: &QueuedDatagram| front.until.is_some_and(|until| until <= now);
        let mut dropped = 0;
        while self.datagrams.front().is_some_and(is_late) {
            self.pop_datagram();
            dropped += 1;
        }
        dropped
    }

    /// Whether fragments may be in the next packet: while updates wait that are not `blocked`, in
    /// every other one.
    pub(super) fn is_datagrams_turn(&mut self, blocked: bool) -> bool {
        let is_shared = !self.updates.is_empty() && !self.datagrams.is_empty() && !blocked;
        self.skips_datagrams = is_shared && !self.skips_datagrams;
        !self.skips_datagrams
    }

    /// Removes the first fragment.
    pub(super) fn pop_datagram(&mut self) {
        if let Some(front) = self.datagrams.pop_front() {
            self.datagram_bytes -= front.data.len();
        }
    }

    /// Takes an update off the queue and queues its end; returns its rest.
    pub(super) fn abandon(&mut self, seq: u64) -> Option<StreamRange> {
        let at = self.updates.iter().position(|o| o.seq == seq)?;
        let outgoing = self.updates.remove(at)?;
        self.bytes -= outgoing.unsent();
        let length = outgoing.bytes.len() as u64;
        self.resets.push_back((seq, length));
        Some(self.rest(&outgoing))
    }

    /// Notes that `bytes` of the first update were sent; returns the channel offset after them.
    /// An update that was sent to its end leaves the queue, and its signature waits in its place.
    pub(super) fn advance(&mut self, bytes: usize) -> Option<u64> {
        let front = self.updates.front_mut()?;
        front.offset += bytes;
        let sent = front.start + front.offset as u64;
        self.bytes -= bytes;
        if front.offset >= front.bytes.len() {
            if let Some(signer) = &self.signer {
                let signature = signer.sign_stream(front.seq, &front.bytes);
                self.signatures.push_back((front.seq, signature));
            }
            self.updates.pop_front();
        }
        Some(sent)
    }

    /// Returns the channel offset up to which the next frame reaches at least, if an update waits.
    pub(super) fn position(&self) -> Option<u64> {
        let front = self.updates.front()?;
        Some(front.start + front.last_of_next() as u64)
    }

    /// Returns the cut for a member that leaves: the rest of an update that was sent in part, and
    /// the first `seq` of which nothing was sent.
    pub(super) fn cut(&self) -> (Option<StreamRange>, u64) {
        match self.updates.front() {
            None => (None, self.next_seq),
            Some(front) if front.offset == 0 => (None, front.seq),
            Some(front) => (Some(self.rest(front)), front.seq + 1),
        }
    }

    /// Whether there is more to send than a PING. Updates do not count while they are `blocked`.
    pub(super) fn has_frames(&self, blocked: bool) -> bool {
        let data = !self.updates.is_empty() && !blocked;
        let others = [
            self.datagrams.len(),
            self.resets.len(),
            self.signatures.len(),
        ];
        data || others.iter().any(|waiting| *waiting > 0)
    }

    /// Discards everything that waits.
    pub(super) fn clear(&mut self) {
        self.updates.clear();
        self.datagrams.clear();
        self.datagram_bytes = 0;
        self.resets.clear();
        self.signatures.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protect::FlowSecret;

    fn queue() -> SendQueue {
        let mut queue = SendQueue::new(None);
        for seq in 1..=3 {
            queue.push(seq, Bytes::from(vec![0; 100]), true);
        }
        queue
    }

    #[test]
    fn the_cut_falls_into_the_update_that_is_being_sent() {
        let mut queue = queue();
        assert_eq!(queue.cut(), (None, 1));
        assert_eq!(queue.advance(30), Some(30));
        let rest = StreamRange {
            seq: 1,
            range: 30..100,
        };
        assert_eq!(queue.cut(), (Some(rest), 2));
        assert_eq!(queue.advance(70), Some(100));
        assert_eq!((queue.cut(), queue.position()), ((None, 2), Some(100)));
        queue.clear();
        assert_eq!(queue.cut(), (None, 4));
    }

    #[test]
    fn bytes_are_those_of_updates_that_wait() {
        let mut queue = queue();
        queue.advance(30);
        assert_eq!(queue.bytes(), 270);
        let rest = queue.abandon(1).unwrap();
        assert_eq!((rest.range, queue.bytes()), (30..100, 200));
        assert_eq!(queue.resets, [(1, 100)]);
        assert_eq!(queue.abandon(1), None);
        queue.push(4, Bytes::from_static(b"unheard"), false);
        assert_eq!(
            (queue.bytes(), queue.pushed(), queue.next_seq()),
            (200, 307, 5)
        );
    }

    /// A grant that ends within the header of an update lets none of it be sent.
    #[test]
    fn the_first_frame_of_a_signed_update_has_its_header() {
        let mut signed = vec![signing::SIGNED, 0, 77];
        signed.resize(100, 1);
        let mut queue = SendQueue::new(None);
        queue.push(1, Bytes::from(signed.clone()), true);
        let front = &queue.updates[0];
        assert_eq!((front.first_frame_len(), front.last_of_next()), (80, 79));
        queue.advance(80);
        let front = &queue.updates[0];
        assert_eq!((front.first_frame_len(), front.last_of_next()), (0, 80));
        // One that is all header, and one that states more than it has.
        for length in [80, 50] {
            let mut queue = SendQueue::new(None);
            queue.push(1, Bytes::from(signed[..length].to_vec()), true);
            assert_eq!(queue.updates[0].last_of_next(), length - 1);
        }
        let mut queue = self::queue();
        assert_eq!(queue.updates[0].last_of_next(), 0, "not signed");
        queue.advance(30);
        assert_eq!(queue.updates[0].last_of_next(), 30);
    }

    /// A part of an update is worth nothing to members without the signature, nor is all of it.
    #[test]
    fn the_rest_of_a_signed_stream_is_all_of_it() {
        let signer = PacketSigner::new(&FlowSecret::from([7; 32])).unwrap();
        let key = signer.key();
        let mut queue = SendQueue::new(Some(signer));
        for seq in 1..=3 {
            queue.push(seq, Bytes::from(vec![seq as u8; 100]), true);
        }
        assert_eq!(queue.cut(), (None, 1));
        queue.advance(30);
        assert_eq!(queue.cut(), (Some(StreamRange::whole(1)), 2));
        queue.advance(70);
        assert_eq!(queue.cut(), (None, 2));
        assert!(queue.unsigned().eq([StreamRange::whole(1)]));
        queue.advance(30);
        assert_eq!(queue.abandon(2), Some(StreamRange::whole(2)));
        assert_eq!((queue.bytes(), &queue.resets[0]), (164, &(2, 100)));
        queue.updates.clear();
        queue.resets.clear();
        assert!(queue.has_frames(true), "the signature waits");
        let (mut out, mut contents) = (Vec::new(), PacketContents::Ping);
        assert!(!queue.put_signatures(&mut out, 60, &mut contents));
        assert!(out.is_empty() && contents == PacketContents::Ping);
        assert!(queue.put_signatures(&mut out, 100, &mut contents));
        assert_eq!(contents.ranges(), [StreamRange::whole(1)]);
        let frame = frame::Frames::new(&out).next();
        let Some(Ok(frame::Frame::StreamSignature { seq: 1, signature })) = frame else {
            panic!("{frame:?}");
        };
        assert!(key.signed_stream(1, &[1; 100], signature));
        assert!(!queue.has_frames(false));
    }

    #[test]
    fn blocked_updates_are_nothing_to_send() {
        let mut queue = queue();
        assert!(queue.has_frames(false) && !queue.has_frames(true));
        assert!(queue.push_datagrams(&[Bytes::from_static(b"message")], None));
        assert!(queue.has_frames(true));
    }

    #[test]
    fn messages_and_updates_take_turns() {
        let mut queue = queue();
        assert!(queue.is_datagrams_turn(false), "none waits");
        assert!(queue.push_datagrams(&[Bytes::from_static(b"message")], None));
        let turns: Vec<bool> = (0..4).map(|_| queue.is_datagrams_turn(false)).collect();
        assert!(turns == [true, false, true, false] || turns == [false, true, false, true]);
        assert!((0..3).all(|_| queue.is_datagrams_turn(true)));
        queue.updates.clear();
        assert!((0..3).all(|_| queue.is_datagrams_turn(false)));
    }

    #[test]
    fn messages_wait_within_bounds_and_until_they_are_late() {
        let mut queue = SendQueue::new(None);
        let (now, second) = (Instant::now(), std::time::Duration::from_secs(1));
        let message = vec![Bytes::from(vec![0; 1000]); 66];
        let accepted = (0..20).filter(|_| queue.push_datagrams(&message, Some(now + second)));
        assert_eq!(accepted.count(), MAX_DATAGRAM_BYTES / 66_000);
        let small = [Bytes::from_static(b"small")];
        assert!(queue.push_datagrams(&small, None), "room for less");
        assert_eq!(queue.drop_late_datagrams(now), 0);
        assert_eq!(queue.drop_late_datagrams(now + second), 15 * 66);
        assert_eq!((queue.datagrams.len(), queue.datagram_bytes), (1, 5));
        queue.pop_datagram();
        assert_eq!(queue.datagram_bytes, 0);
        assert!(queue.push_datagrams(&message, None));
    }
}
