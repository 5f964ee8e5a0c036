//! The send queue of a flow: updates in order, ends of abandoned updates, messages.

use std::collections::VecDeque;

use bytes::Bytes;

use super::ledger::StreamRange;

/// Bound on messages that wait to be sent.
const MAX_DATAGRAMS: usize = 64;

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

    /// Returns the rest of the update.
    fn rest(&self) -> StreamRange {
        StreamRange {
            seq: self.seq,
            range: self.offset as u64..self.bytes.len() as u64,
        }
    }
}

/// Queue of a flow.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) updates: VecDeque<Outgoing>,
    pub(super) datagrams: VecDeque<Bytes>,
    /// Updates that go no further on the flow: number and length.
    pub(super) resets: VecDeque<(u64, u64)>,
    /// The `seq` after the last one that was pushed.
    next_seq: u64,
    /// Bytes of all updates that were pushed: the channel offset after the last one.
    pushed: u64,
    /// Bytes of updates that wait.
    bytes: usize,
}

impl SendQueue {
    pub(super) fn new() -> Self {
        SendQueue {
            updates: VecDeque::new(),
            datagrams: VecDeque::new(),
            resets: VecDeque::new(),
            next_seq: 1,
            pushed: 0,
            bytes: 0,
        }
    }

    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the bytes of updates that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
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

    /// Queues a message; returns whether there was room.
    pub(super) fn push_datagram(&mut self, data: Bytes) -> bool {
        let room = self.datagrams.len() < MAX_DATAGRAMS;
        if room {
            self.datagrams.push_back(data);
        }
        room
    }

    /// Takes an update off the queue and queues its end; returns its rest.
    pub(super) fn abandon(&mut self, seq: u64) -> Option<StreamRange> {
        let at = self.updates.iter().position(|o| o.seq == seq)?;
        let rest = self.updates.remove(at)?.rest();
        self.bytes -= (rest.range.end - rest.range.start) as usize;
        self.resets.push_back((seq, rest.range.end));
        Some(rest)
    }

    /// Notes that `bytes` of the first update were sent; returns the channel offset after them.
    /// An update that was sent to its end leaves the queue.
    pub(super) fn advance(&mut self, bytes: usize) -> Option<u64> {
        let front = self.updates.front_mut()?;
        front.offset += bytes;
        let sent = front.start + front.offset as u64;
        self.bytes -= bytes;
        if front.offset >= front.bytes.len() {
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
            Some(front) => (Some(front.rest()), front.seq + 1),
        }
    }

    /// Whether there is more to send than a PING. Updates do not count while they are `blocked`.
    pub(super) fn has_frames(&self, blocked: bool) -> bool {
        let data = !self.updates.is_empty() && !blocked;
        data || !self.datagrams.is_empty() || !self.resets.is_empty()
    }

    /// Discards everything that waits.
    pub(super) fn clear(&mut self) {
        self.updates.clear();
        self.datagrams.clear();
        self.resets.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> SendQueue {
        let mut queue = SendQueue::new();
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
        let mut queue = SendQueue::new();
        queue.push(1, Bytes::from(signed.clone()), true);
        let front = &queue.updates[0];
        assert_eq!((front.first_frame_len(), front.last_of_next()), (80, 79));
        queue.advance(80);
        let front = &queue.updates[0];
        assert_eq!((front.first_frame_len(), front.last_of_next()), (0, 80));
        // One that is all header, and one that states more than it has.
        for length in [80, 50] {
            let mut queue = SendQueue::new();
            queue.push(1, Bytes::from(signed[..length].to_vec()), true);
            assert_eq!(queue.updates[0].last_of_next(), length - 1);
        }
        let mut queue = self::queue();
        assert_eq!(queue.updates[0].last_of_next(), 0, "not signed");
        queue.advance(30);
        assert_eq!(queue.updates[0].last_of_next(), 30);
    }

    #[test]
    fn blocked_updates_are_nothing_to_send() {
        let mut queue = queue();
        assert!(queue.has_frames(false) && !queue.has_frames(true));
        assert!(queue.push_datagram(Bytes::from_static(b"message")));
        assert!(queue.has_frames(true));
        let accepted = (0..MAX_DATAGRAMS).filter(|_| queue.push_datagram(Bytes::new()));
        assert_eq!(accepted.count(), MAX_DATAGRAMS - 1);
    }
}
