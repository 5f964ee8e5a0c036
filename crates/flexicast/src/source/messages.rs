//! Messages: sent to all receivers of a channel once, on the flow and on the connections of those
//! that are not on it (protocol.md section 7.8).

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::Source;
use super::types::{ChannelIndex, SessionId, channel_number};
use crate::control::CAPABILITY_MESSAGES;
use crate::deadline::{deadline_of, is_past};
use crate::flow::FlowSender;
use crate::message::{MAX_FRAGMENT, MAX_MESSAGE, fragments};

/// Bytes of messages that wait for a session's connection at most.
const MAX_WAITING: usize = 256 << 10;
/// Bytes of repair symbols that wait for a session's connection at most.
const MAX_SYMBOLS_WAITING: usize = 32 << 10;

/// Payload of a DATAGRAM frame for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// The payload.
    pub bytes: Bytes,
    /// When it is worthless.
    pub until: Option<Instant>,
    /// Whether it is a repair symbol, for which messages never lack room.
    pub is_symbol: bool,
}

/// Reason for which a message is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// No channel in this place.
    #[error("there is no such channel")]
    NoChannel,
    /// Longer than a message may be, or empty.
    #[error("a message has 1 to {MAX_MESSAGE} bytes with its signature, not {0}")]
    Length(usize),
    /// A number that does not follow the last one.
    #[error("message {number} does not follow {last}")]
    Number {
        /// Its number.
        number: u64,
        /// Number of the message before.
        last: u64,
    },
    /// A deadline that has passed.
    #[error("its deadline has passed")]
    Late,
    /// More messages wait for the flow than may: there will be room.
    #[error("the flow has more messages to send than it can hold")]
    NoRoom,
}

/// Datagrams that wait for a session's connection.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    waiting: VecDeque<Datagram>,
    /// Bytes of fragments, and of repair symbols, among them.
    bytes: usize,
    symbol_bytes: usize,
}

impl Datagrams {
    /// Adds all fragments of a message. Returns whether there was room.
    fn push(&mut self, fragments: &[Bytes], until: Option<Instant>) -> bool {
        let bytes: usize = fragments.iter().map(Bytes::len).sum();
        let has_room = self.bytes + bytes <= MAX_WAITING;
        if has_room {
            self.bytes += bytes;
            let bytes = fragments.iter().cloned();
            self.waiting.extend(bytes.map(|bytes| Datagram {
                bytes,
                until,
                is_symbol: false,
            }));
        }
        has_room
    }

    /// Adds a repair symbol, unless too many wait already: what it would bring is repaired.
    pub(super) fn push_symbol(&mut self, bytes: Bytes, until: Instant) {
        if self.symbol_bytes + bytes.len() <= MAX_SYMBOLS_WAITING {
            self.symbol_bytes += bytes.len();
            self.waiting.push_back(Datagram {
                bytes,
                until: Some(until),
                is_symbol: true,
            });
        }
    }

    fn take(&mut self) -> Vec<Datagram> {
        (self.bytes, self.symbol_bytes) = (0, 0);
        self.waiting.drain(..).collect()
    }
}

impl Source {
    /// Sends a message to all receivers of a channel that are connected now: once, without repairs,
    /// and in no order. Numbers ascend; the deadline is that of the header that signs the message,
    /// if it has one.
    ///
    /// # Errors
    /// [`MessageError`] if it is not sent.
    pub fn send_message(
        &mut self,
        c: ChannelIndex,
        number: u64,
        message: &[u8],
        now: Instant,
    ) -> Result<(), MessageError> {
        let sent = self.try_send_message(c, number, message, now);
        let counters = &mut self.out.counters.messages;
        match sent {
            Ok(()) => counters.sent += 1,
            // The caller tries again.
            Err(MessageError::NoRoom) => {}
            Err(_) => counters.refused += 1,
        }
        sent
    }

    fn try_send_message(
        &mut self,
        c: ChannelIndex,
        number: u64,
        message: &[u8],
        now: Instant,
    ) -> Result<(), MessageError> {
        let clock = self.deadline_clock();
        let channel = self.channels.get_mut(c).ok_or(MessageError::NoChannel)?;
        if message.is_empty() || message.len() > MAX_MESSAGE {
            return Err(MessageError::Length(message.len()));
        }
        let last = channel.last_message;
        if number <= last {
            return Err(MessageError::Number { number, last });
        }
        let deadline = clock.zip(deadline_of(message));
        if deadline.is_some_and(|(clock, deadline)| is_past(deadline, clock.us(now))) {
            return Err(MessageError::Late);
        }
        let until = deadline.and_then(|(clock, deadline)| clock.passes_at(deadline));
        let room = channel.flow.as_ref().map(FlowSender::datagram_room);
        let room = room.map_or(MAX_FRAGMENT, |room| room.min(MAX_FRAGMENT));
        let parts = fragments(channel_number(c), number, message, room);
        let heard = channel.flow.as_mut().filter(|flow| flow.is_heard());
        if heard.is_some_and(|flow| !flow.push_datagrams(&parts, until)) {
            return Err(MessageError::NoRoom);
        }
        channel.last_message = number;
        let (mut copies, mut dropped) = (0, 0);
        #[cfg(feature = "fault-injection")]
        let parts = match self.faults.message_copies_off {
            true => Vec::new(),
            false => parts,
        };
        for id in &channel.direct {
            let Some(session) = self.sessions.get_mut(*id) else {
                continue;
            };
            let takes = session.can(CAPABILITY_MESSAGES);
            let subscription = session.subscription(c);
            if !takes || !subscription.is_some_and(|s| s.delivery.backlog.is_live()) {
                continue;
            }
            match session.datagrams.push(&parts, until) {
                true => copies += 1,
                false => dropped += 1,
            }
            self.out.mark_dirty(*id);
        }
        let counters = &mut self.out.counters.messages;
        counters.copies += copies;
        counters.dropped += dropped;
        Ok(())
    }

    /// Returns the DATAGRAMs that wait for a session's connection, in order.
    pub fn take_datagrams(&mut self, session: SessionId) -> Vec<Datagram> {
        let session = self.sessions.get_mut(session);
        session
            .map(|session| session.datagrams.take())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_connection_is_bounded() {
        let message = vec![Bytes::from(vec![0; 1024]); 64];
        let mut datagrams = Datagrams::default();
        let taken = (0..10).filter(|_| datagrams.push(&message, None)).count();
        assert_eq!(taken, MAX_WAITING / 65_536);
        assert_eq!(datagrams.take().len(), taken * 64);
        assert!(datagrams.push(&message, None) && datagrams.bytes == 65_536);
        // Repair symbols take no room from messages, and have a bound of their own.
        let (symbol, now) = (Bytes::from(vec![0; 1024]), Instant::now());
        (0..100).for_each(|_| datagrams.push_symbol(symbol.clone(), now));
        let taken = (0..10).filter(|_| datagrams.push(&message, None)).count();
        assert_eq!(taken, MAX_WAITING / 65_536 - 1);
        let symbols = datagrams.take().iter().filter(|it| it.is_symbol).count();
        assert_eq!(symbols, MAX_SYMBOLS_WAITING / 1024);
    }
}
