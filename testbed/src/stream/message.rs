//! The messages of a stream: each carries its send time, and the rest is derived from its number.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Bytes of a message's head: its number and when it was sent.
const HEAD: usize = 16;

/// All messages of a stream. None is stored: of each, only the time is.
#[derive(Debug)]
pub struct Messages {
    size: usize,
    sent_ns: Mutex<Vec<u64>>,
}

impl Messages {
    /// No messages yet, of `size` bytes each (at least 16).
    pub fn new(size: usize) -> Messages {
        Messages {
            size: size.max(HEAD),
            sent_ns: Mutex::new(Vec::new()),
        }
    }

    /// Makes the next message, sent at this time.
    pub fn add(&self, sent_ns: u64) -> (u64, Bytes) {
        let mut times = self.sent_ns.lock().unwrap_or_else(PoisonError::into_inner);
        times.push(sent_ns);
        let seq = times.len() as u64;
        (seq, build(self.size, seq, sent_ns))
    }

    /// Messages from number `from` on, at most `limit` of them and about `max_bytes`, but at least
    /// one if there is one.
    pub fn stored(&self, from: u64, limit: usize, max_bytes: usize) -> Vec<(u64, Bytes)> {
        let limit = limit.min((max_bytes / self.size).max(1));
        let times = self.sent_ns.lock().unwrap_or_else(PoisonError::into_inner);
        let first = from.max(1);
        let start = usize::try_from(first - 1).unwrap_or(usize::MAX);
        let times = times.get(start..).unwrap_or_default();
        (first..)
            .zip(times.iter().take(limit))
            .map(|(seq, sent)| (seq, build(self.size, seq, *sent)))
            .collect()
    }

    /// When a message was sent; `None` if it is not, byte by byte, message `seq` of a stream.
    pub fn sent_ns(seq: u64, message: &[u8]) -> Option<u64> {
        let (head, _) = message.split_at_checked(HEAD)?;
        let sent = u64::from_be_bytes(head[8..].try_into().ok()?);
        (message == build(message.len(), seq, sent)).then_some(sent)
    }
}

fn build(size: usize, seq: u64, sent_ns: u64) -> Bytes {
    let mut message = Vec::with_capacity(size);
    message.extend(seq.to_be_bytes());
    message.extend(sent_ns.to_be_bytes());
    let filler = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    while message.len() < size {
        let room = filler.len().min(size - message.len());
        message.extend(&filler[..room]);
    }
    message.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_message_is_the_one_that_was_sent() {
        let messages = Messages::new(1_100);
        let sent: Vec<(u64, Bytes)> = [70, 80, 90].map(|at| messages.add(at)).into();
        assert_eq!(messages.stored(1, 10, 1 << 20), sent);
        assert_eq!(messages.stored(2, 1, 1), sent[1..2]);
        assert!(messages.stored(4, 10, 1 << 20).is_empty());
        assert_eq!(Messages::sent_ns(2, &sent[1].1), Some(80));
    }

    #[test]
    fn another_message_is_not_taken_for_it() {
        let (_, message) = Messages::new(40).add(70);
        assert_eq!(Messages::sent_ns(2, &message), None);
        assert_eq!(Messages::sent_ns(1, &message[..15]), None);
        let mut changed = message.to_vec();
        changed[39] ^= 1;
        assert_eq!(Messages::sent_ns(1, &changed), None);
    }
}
