//! Messages of a channel at a receiver: put together from fragments of the flow and of the
//! connection, each handed on once (protocol.md section 7.8).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use signing::Forgery;

use super::{Channel, Receiver, ReceiverEvent};
use crate::deadline::{deadline_of, is_past};
use crate::frame;
use crate::message::Fragment;
use crate::range::RangeSet;

/// Messages of a channel that are not whole at most: the one that was begun first makes room, and
/// of those only if there are others one of which the connection has brought a part.
const MAX_PARTIAL: usize = 16;
/// Separate parts of a message that is not whole at most: a source's fragments leave few, unless so
/// many are lost that it never gets whole.
const MAX_PARTS: usize = 256;
/// Numbers of handed-on messages that are remembered; lower ones count as handed on.
const MAX_TAKEN: usize = 1024;
/// Messages that wait for the application, of all channels.
const MAX_WAITING: usize = 64;

/// Path of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// The flow, whose other members can forge it.
    Flow,
    /// The connection to the source.
    Connection,
}

/// Outcome of a fragment that is part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// More is missing, or the message was here before.
    Taken,
    /// The message is whole, and was handed on.
    HandedOn,
    /// The message is whole, and its deadline has passed.
    Late,
    /// The message is whole, and there is no room for it.
    NoRoom,
    /// The message is whole, and is not the source's.
    Forged(Forgery),
}

/// A message of which something is missing.
#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    arrived: RangeSet,
    /// Parts of it that the connection has brought: nothing of the flow changes them.
    trusted: RangeSet,
    /// Number of messages that were begun before.
    begun: u64,
}

impl Partial {
    /// Whether there are more separate parts of it than a source that loses packets leaves.
    fn is_scattered(&self) -> bool {
        self.arrived.len().max(self.trusted.len()) > MAX_PARTS
    }

    fn take(&mut self, fragment: &Fragment<'_>, path: Path) {
        let end = fragment.offset + fragment.data.len();
        let range = fragment.offset as u64..end as u64;
        if let Some(place) = self.bytes.get_mut(fragment.offset..end) {
            match path {
                Path::Connection => place.copy_from_slice(fragment.data),
                Path::Flow => {
                    for gap in self.trusted.gaps(range.clone()) {
                        let gap = gap.start as usize - fragment.offset
                            ..gap.end as usize - fragment.offset;
                        if let (Some(place), Some(data)) =
                            (place.get_mut(gap.clone()), fragment.data.get(gap))
                        {
                            place.copy_from_slice(data);
                        }
                    }
                }
            }
            self.arrived.insert(range.clone());
            if path == Path::Connection {
                self.trusted.insert(range);
            }
        }
    }
}

/// A message that is whole.
#[derive(Debug, PartialEq, Eq)]
struct Whole {
    number: u64,
    bytes: Bytes,
    by_flow: bool,
}

/// Messages of a channel.
#[derive(Debug, Default)]
pub(super) struct Messages {
    partial: BTreeMap<u64, Partial>,
    /// Number of messages that were begun.
    begun: u64,
    taken: BTreeSet<u64>,
    /// Messages below this number count as handed on.
    floor: u64,
    /// Whether forged messages are handed on.
    #[cfg(feature = "fault-injection")]
    pub(super) check_off: bool,
}

impl Messages {
    /// Forgets what a connection and its flows have brought of messages that are not whole.
    pub(super) fn disconnected(&mut self) {
        self.partial.clear();
    }

    /// Forgets all numbers: those of another incarnation may begin anywhere.
    pub(super) fn restart(&mut self) {
        *self = Messages {
            #[cfg(feature = "fault-injection")]
            check_off: self.check_off,
            ..Messages::default()
        };
    }

    fn was_taken(&self, number: u64) -> bool {
        number < self.floor || self.taken.contains(&number)
    }

    /// Adds a fragment. Returns the message if it is whole by that; it stays until it is taken, or
    /// distrusted.
    fn add(&mut self, fragment: &Fragment<'_>, path: Path) -> Option<Whole> {
        let number = fragment.number;
        if self.was_taken(number) {
            return None;
        }
        let is_other = |partial: &Partial| partial.bytes.len() != fragment.length;
        if self.partial.get(&number).is_some_and(is_other) {
            // One of them is forged, and the source's own path is right.
            if path == Path::Flow {
                return None;
            }
            self.partial.remove(&number);
        }
        if !self.partial.contains_key(&number) {
            self.make_room();
        }
        let partial = self.partial.entry(number).or_insert_with(|| {
            self.begun += 1;
            Partial {
                bytes: vec![0; fragment.length],
                arrived: RangeSet::new(),
                trusted: RangeSet::new(),
                begun: self.begun,
            }
        });
        partial.take(fragment, path);
        if partial.is_scattered() {
            self.distrust(number);
            return None;
        }
        let all = 0..fragment.length as u64;
        if !partial.arrived.contains_range(all.clone()) {
            return None;
        }
        let by_flow = !partial.trusted.contains_range(all);
        let bytes = Bytes::copy_from_slice(&partial.bytes);
        Some(Whole {
            number,
            bytes,
            by_flow,
        })
    }

    /// Makes room for another message.
    fn make_room(&mut self) {
        if self.partial.len() < MAX_PARTIAL {
            return;
        }
        let rank = |partial: &Partial| (!partial.trusted.is_empty(), partial.begun);
        let first = self.partial.iter().min_by_key(|(_, partial)| rank(partial));
        if let Some(number) = first.map(|(number, _)| *number) {
            self.partial.remove(&number);
        }
    }

    /// Drops what the flow brought of a message that is not the source's, and all of it if that was
    /// nothing.
    fn distrust(&mut self, number: u64) {
        let Some(partial) = self.partial.get_mut(&number) else {
            return;
        };
        partial.arrived = partial.trusted.clone();
        if partial.trusted.is_empty() || partial.is_scattered() {
            self.partial.remove(&number);
        }
    }

    /// Notes that a message was handed on, or expired.
    fn note_taken(&mut self, number: u64) {
        self.partial.remove(&number);
        self.taken.insert(number);
        while self.taken.len() > MAX_TAKEN
            && let Some(lowest) = self.taken.pop_first()
        {
            self.floor = lowest + 1;
        }
    }

    /// Whether messages are verified, as they always are but for an injected fault.
    fn verifies(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.check_off;
        #[cfg(not(feature = "fault-injection"))]
        true
    }
}

impl Channel {
    /// Takes a fragment of this channel. `now_us` is the source's time in Unix µs, if it is known.
    pub(super) fn take_fragment(
        &mut self,
        fragment: &Fragment<'_>,
        path: Path,
        now_us: Option<u64>,
        events: &mut VecDeque<ReceiverEvent>,
    ) -> Outcome {
        let Some(whole) = self.messages.add(fragment, path) else {
            return Outcome::Taken;
        };
        let verified = match self.messages.verifies() {
            true => self
                .merge
                .verify_message(whole.number, &whole.bytes, whole.by_flow),
            false => Ok(deadline_of(&whole.bytes)),
        };
        let deadline_ms = match verified {
            Ok(deadline_ms) => deadline_ms,
            Err(forgery) => {
                self.stats.messages.forged += 1;
                self.messages.distrust(whole.number);
                return Outcome::Forged(forgery);
            }
        };
        self.messages.note_taken(whole.number);
        let is_late = |(deadline_ms, now_us)| is_past(deadline_ms, now_us);
        if deadline_ms.zip(now_us).is_some_and(is_late) {
            self.stats.messages.late += 1;
            return Outcome::Late;
        }
        let is_message = |event: &&ReceiverEvent| matches!(event, ReceiverEvent::Message { .. });
        if events.iter().filter(is_message).count() >= MAX_WAITING {
            self.stats.messages.dropped += 1;
            return Outcome::NoRoom;
        }
        self.stats.messages.taken += 1;
        events.push_back(ReceiverEvent::Message {
            channel: self.name.clone(),
            number: whole.number,
            deadline_ms,
            encoded: whole.bytes,
        });
        Outcome::HandedOn
    }
}

impl Receiver {
    /// Takes the payload of a DATAGRAM frame of the connection. What is no fragment of a message of
    /// a channel here is ignored.
    pub fn on_datagram(&mut self, bytes: &[u8], now: Instant) {
        if let Some((flow, symbol)) = frame::read_apart_symbol(bytes) {
            self.drive(flow, |flow| flow.rebuild_apart(symbol, now));
            return;
        }
        let Ok(Some(fragment)) = Fragment::decode(bytes) else {
            return;
        };
        let now_us = self.clock.us(now);
        let number = Some(fragment.channel);
        if let Some(channel) = self.channels.iter_mut().find(|c| c.number == number) {
            channel.take_fragment(&fragment, Path::Connection, now_us, &mut self.events);
        }
    }

    /// Hands on messages that the source did not sign, a fault for tests that must notice.
    #[cfg(feature = "fault-injection")]
    pub fn set_message_check_off(&mut self, off: bool) {
        for channel in &mut self.channels {
            channel.messages.check_off = off;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64, length: usize, offset: usize, data: &[u8]) -> Fragment<'_> {
        Fragment {
            channel: 0,
            number,
            length,
            offset,
            data,
        }
    }

    #[test]
    fn fragments_of_both_paths_are_one_message_once() {
        let mut messages = Messages::default();
        assert_eq!(messages.add(&part(7, 6, 3, b"def"), Path::Flow), None);
        assert_eq!(
            messages.add(&part(7, 6, 3, b"def"), Path::Flow),
            None,
            "twice"
        );
        let whole = messages.add(&part(7, 6, 0, b"abc"), Path::Connection);
        let expected = Whole {
            number: 7,
            bytes: Bytes::from_static(b"abcdef"),
            by_flow: true,
        };
        assert_eq!(whole, Some(expected));
        // If it was not the source's, the connection brings the rest of what it began.
        messages.distrust(7);
        assert_eq!(messages.add(&part(7, 6, 0, b"xyz"), Path::Flow), None);
        let again = messages.add(&part(7, 6, 3, b"def"), Path::Connection);
        assert!(again.is_some_and(|whole| !whole.by_flow && &whole.bytes[..] == b"abcdef"));
        messages.note_taken(7);
        assert_eq!(messages.add(&part(7, 6, 0, b"abcdef"), Path::Flow), None);
    }

    #[test]
    fn the_connection_knows_the_length() {
        let mut messages = Messages::default();
        assert_eq!(messages.add(&part(7, 60, 3, b"xxx"), Path::Flow), None);
        assert_eq!(messages.add(&part(7, 6, 0, b"abc"), Path::Connection), None);
        assert_eq!(messages.add(&part(7, 60, 0, b"xxx"), Path::Flow), None);
        let whole = messages.add(&part(7, 6, 3, b"def"), Path::Connection);
        assert!(whole.is_some_and(|whole| &whole.bytes[..] == b"abcdef" && !whole.by_flow));
    }

    #[test]
    fn a_message_in_scattered_parts_is_dropped() {
        let mut messages = Messages::default();
        let length = 4 * MAX_PARTS;
        assert_eq!(
            messages.add(&part(7, length, 1, b"a"), Path::Connection),
            None
        );
        for at in 1..MAX_PARTS {
            let scattered = part(7, length, 2 * at + 1, b"x");
            assert_eq!(messages.add(&scattered, Path::Flow), None);
        }
        assert_eq!(messages.partial[&7].arrived.len(), MAX_PARTS);
        let one_more = part(7, length, 3 * MAX_PARTS, b"x");
        assert_eq!(messages.add(&one_more, Path::Flow), None);
        assert_eq!(messages.partial[&7].arrived.len(), 1, "the connection's");
        for at in 0..=MAX_PARTS {
            let scattered = part(7, length, 2 * at + 1, b"x");
            assert_eq!(messages.add(&scattered, Path::Connection), None);
        }
        assert!(!messages.partial.contains_key(&7));
    }

    #[test]
    fn memory_is_bounded() {
        let mut messages = Messages::default();
        assert_eq!(messages.add(&part(3, 9, 0, b"a"), Path::Connection), None);
        for number in (0..100).rev() {
            assert_eq!(messages.add(&part(number, 9, 0, b"a"), Path::Flow), None);
            assert!(
                messages.partial.contains_key(&number),
                "there is room for a new one"
            );
        }
        assert_eq!(messages.partial.len(), MAX_PARTIAL);
        assert!(messages.partial.contains_key(&3), "the connection's stays");
        for number in 0..5000 {
            messages.note_taken(number * 2);
        }
        assert_eq!(messages.taken.len(), MAX_TAKEN);
        assert!(messages.was_taken(1), "too old to tell counts as handed on");
        assert!(!messages.was_taken(9_999) && messages.was_taken(9_998));
        messages.restart();
        assert!(!messages.was_taken(1) && messages.partial.is_empty());
    }
}
