//! The control stream: `type | length | body` frames on stream 0 of the unicast path (protocol.md
//! section 4).

mod addresses;
mod feedback;
mod flow;
mod hello;
mod keys;
mod legs;
mod lineage;
mod live;
mod need;
mod relay;
mod tags;

use signing::Endorsement;
use zeroize::{Zeroize, Zeroizing};

pub use addresses::{MAX_SOURCE_ADDRESSES, SourceAddress};
pub use feedback::FeedbackKey;
pub use flow::{Action, Anchor, Announce, Endpoint, Key, RungNotice, State, Window};
pub use hello::{
    CAPABILITY_AMT, CAPABILITY_APART_SYMBOLS, CAPABILITY_COPIES, CAPABILITY_DEADLINES,
    CAPABILITY_FEC, CAPABILITY_FEEDBACK, CAPABILITY_HITLESS, CAPABILITY_MESSAGES,
    CAPABILITY_MULTICAST_IPV4, CAPABILITY_MULTICAST_IPV6, CAPABILITY_PACKET_AUTHENTICATION,
    CAPABILITY_SIGNATURES, CAPABILITY_STREAM_SIGNATURES, Credential, Hello, Refusal,
    SOURCE_ANSWERS_NEED, SOURCE_KEEPS_TIME, SOURCE_SENDS_KEYS, SOURCE_TAKES_LEGS, Welcome,
    WelcomeChannel,
};
use hello::{count, cursor, put_cursor};
pub use legs::{Leg, LegReport, LegState, Legs, MAX_LEGS};
pub use lineage::Lineage;
pub use live::{Clock, Expired};
pub(crate) use need::{NEED_AHEAD, NEEDS_PER_S};
pub use need::{Need, NeedReason};
pub use relay::{MAX_RELAYS, RelayAddress, RelayHint};
pub use tags::TagKey;

use crate::wire::{BufMutExt, Reader, WireError};
use crate::{Cursor, FlowId};

/// The longest body of a control frame that an end accepts, in bytes.
pub const MAX_FRAME: usize = 64 << 10;
/// The most channels that one HELLO or WELCOME names.
pub const MAX_CHANNELS: usize = 256;
/// The longest name of a receiver or a channel, in bytes.
pub const MAX_NAME: usize = 255;

const HELLO: u64 = 0x01;
const WELCOME: u64 = 0x02;
const REFUSED: u64 = 0x03;
const CURSOR: u64 = 0x04;
const GAP: u64 = 0x05;
const NEED: u64 = 0x06;
const ADDRESSES: u64 = 0x07;
const LINEAGE: u64 = 0x08;
const KEYS: u64 = 0x09;
const EXPIRED: u64 = 0x0a;
const CLOCK: u64 = 0x0b;
const FC_LEGS: u64 = 0x0d;
const FC_ANNOUNCE: u64 = 0x10;
const FC_STATE: u64 = 0x11;
const FC_KEY: u64 = 0x12;
const FC_WINDOW: u64 = 0x13;
const FC_RUNG: u64 = 0x14;
const FC_FEEDBACK: u64 = 0x15;
const FC_HEARD: u64 = 0x16;
const FC_TAG_KEY: u64 = 0x17;

/// A frame of the control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Receiver to source, first of all.
    Hello(Hello),
    /// Source to receiver: you are served.
    Welcome(Welcome),
    /// Source to receiver: you are not.
    Refused {
        /// A [`Refusal`] number; unknown ones are as final as BadHello.
        code: u64,
        /// For people.
        reason: String,
    },
    /// Receiver to source: these outputs reach so far.
    Cursors(Vec<Cursor>),
    /// Source to receiver.
    Announce(Announce),
    /// Receiver to source.
    State(State),
    /// Source to receiver.
    Key(Key),
    /// Source to receiver.
    Rung(RungNotice),
    /// Receiver to source.
    Window(Window),
    /// Source to receiver: these updates of a channel are gone for good.
    Gap {
        /// The channel's number in WELCOME.
        channel: u64,
        /// The first `seq` that is gone.
        first: u64,
        /// The last `seq` that is gone.
        last: u64,
    },
    /// Receiver to source: bytes of an update to be sent on the unicast path.
    Need(Need),
    /// Source to receiver: where else it is reached.
    Addresses(Vec<SourceAddress>),
    /// Source to receiver.
    Lineage(Lineage),
    /// Source to receiver: signing keys that vouch for each other.
    Keys(Vec<Endorsement>),
    /// Source to receiver.
    Expired(Expired),
    /// Receiver to source, and the answer.
    Clock(Clock),
    /// Receiver to source.
    Legs(Legs),
    /// Source to receiver.
    Feedback(FeedbackKey),
    /// Source to receiver: its feedback packets for this flow arrive.
    Heard(FlowId),
    /// Source to receiver.
    TagKey(TagKey),
}

impl Control {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // Large enough for a key, or for all of a HELLO up to its credential, so that no copy of
        // one is left behind by growing.
        let room = match self {
            Control::Hello(hello) => hello.room(),
            _ => 128,
        };
        let mut body = Zeroizing::new(Vec::with_capacity(room));
        let kind = match self {
            Control::Hello(hello) => {
                hello.put(&mut body);
                HELLO
            }
            Control::Welcome(welcome) => {
                welcome.put(&mut body);
                WELCOME
            }
            Control::Refused { code, reason } => {
                body.put_varint(*code);
                body.put_prefixed(reason.as_bytes());
                REFUSED
            }
            Control::Cursors(cursors) => {
                body.put_varint(cursors.len() as u64);
                cursors.iter().for_each(|c| put_cursor(&mut body, c));
                CURSOR
            }
            Control::Announce(announce) => {
                announce.put(&mut body);
                FC_ANNOUNCE
            }
            Control::State(state) => {
                state.put(&mut body);
                FC_STATE
            }
            Control::Key(key) => {
                key.put(&mut body);
                FC_KEY
            }
            Control::Rung(notice) => {
                notice.put(&mut body);
                FC_RUNG
            }
            Control::Window(window) => {
                window.put(&mut body);
                FC_WINDOW
            }
            Control::Gap {
                channel,
                first,
                last,
            } => {
                body.put_varint(*channel);
                body.put_varint(*first);
                body.put_varint(*last);
                GAP
            }
            Control::Need(need) => {
                need.put(&mut body);
                NEED
            }
            Control::Addresses(addresses) => {
                addresses::put(addresses, &mut body);
                ADDRESSES
            }
            Control::Lineage(lineage) => {
                lineage.put(&mut body);
                LINEAGE
            }
            Control::Keys(endorsements) => {
                keys::put(endorsements, &mut body);
                KEYS
            }
            Control::Expired(expired) => {
                expired.put(&mut body);
                EXPIRED
            }
            Control::Clock(clock) => {
                clock.put(&mut body);
                CLOCK
            }
            Control::Legs(legs) => {
                legs.put(&mut body);
                FC_LEGS
            }
            Control::Feedback(key) => {
                key.put(&mut body);
                FC_FEEDBACK
            }
            Control::Heard(flow) => {
                flow::put_flow(&mut body, *flow);
                FC_HEARD
            }
            Control::TagKey(key) => {
                key.put(&mut body);
                FC_TAG_KEY
            }
        };
        out.put_varint(kind);
        out.put_prefixed(&body);
    }
}

/// A type of control frame: its number, its name and the reader of its body.
///
/// Bytes after the fields that are known are left for later versions.
type FrameType = (
    u64,
    &'static str,
    fn(&mut Reader<'_>) -> Result<Control, WireError>,
);

/// The types that this version knows; frames of other types are skipped.
const FRAME_TYPES: [FrameType; 20] = [
    (HELLO, "HELLO", |r| Hello::read(r).map(Control::Hello)),
    (WELCOME, "WELCOME", |r| {
        Welcome::read(r).map(Control::Welcome)
    }),
    (REFUSED, "REFUSED", |r| {
        Ok(Control::Refused {
            code: r.varint()?,
            reason: r.text(MAX_FRAME)?,
        })
    }),
    (CURSOR, "CURSOR", |r| {
        let cursors = (0..count(r, MAX_CHANNELS, "CURSOR")?).map(|_| cursor(r));
        cursors.collect::<Result<_, _>>().map(Control::Cursors)
    }),
    (GAP, "GAP", read_gap),
    (NEED, "NEED", |r| Need::read(r).map(Control::Need)),
    (ADDRESSES, "ADDRESSES", |r| {
        addresses::read(r).map(Control::Addresses)
    }),
    (LINEAGE, "LINEAGE", |r| {
        Lineage::read(r).map(Control::Lineage)
    }),
    (KEYS, "KEYS", |r| keys::read(r).map(Control::Keys)),
    (EXPIRED, "EXPIRED", |r| {
        Expired::read(r).map(Control::Expired)
    }),
    (CLOCK, "CLOCK", |r| Clock::read(r).map(Control::Clock)),
    (FC_LEGS, "FC_LEGS", |r| Legs::read(r).map(Control::Legs)),
    (FC_ANNOUNCE, "FC_ANNOUNCE", |r| {
        Announce::read(r).map(Control::Announce)
    }),
    (FC_STATE, "FC_STATE", |r| State::read(r).map(Control::State)),
    (FC_KEY, "FC_KEY", |r| Key::read(r).map(Control::Key)),
    (FC_WINDOW, "FC_WINDOW", |r| {
        Window::read(r).map(Control::Window)
    }),
    (FC_RUNG, "FC_RUNG", |r| {
        RungNotice::read(r).map(Control::Rung)
    }),
    (FC_FEEDBACK, "FC_FEEDBACK", |r| {
        FeedbackKey::read(r).map(Control::Feedback)
    }),
    (FC_HEARD, "FC_HEARD", |r| {
        flow::flow(r, "FC_HEARD").map(Control::Heard)
    }),
    (FC_TAG_KEY, "FC_TAG_KEY", |r| {
        TagKey::read(r).map(Control::TagKey)
    }),
];

fn read_gap(r: &mut Reader<'_>) -> Result<Control, WireError> {
    let (channel, first, last) = (r.varint()?, r.varint()?, r.varint()?);
    if first == 0 || last < first {
        return Err(WireError::invalid(
            "GAP",
            "a range that is empty or begins at 0",
        ));
    }
    Ok(Control::Gap {
        channel,
        first,
        last,
    })
}

/// Cuts the bytes of a control stream into frames; unknown types are skipped. Holds at most one
/// frame of [`MAX_FRAME`] bytes, and erases what it has read: keys come this way.
#[derive(Default)]
pub struct ControlReader {
    buffer: Zeroizing<Vec<u8>>,
    /// Up to where `buffer` was read; erased already.
    at: usize,
    /// Remaining bytes of an unknown frame to skip.
    skip: u64,
    /// Unknown frames that were passed over since the last [`ControlReader::take_skipped`].
    skipped: u64,
}

impl ControlReader {
    /// A reader at the stream's beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the stream's next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let skip = self.skip.min(bytes.len() as u64);
        self.skip -= skip;
        bytes = &bytes[skip as usize..];
        self.compact();
        if self.buffer.capacity() - self.buffer.len() < bytes.len() {
            // Growing in place would leave the old allocation behind unerased.
            let mut larger = Vec::with_capacity((self.buffer.len() + bytes.len()) * 2);
            larger.extend_from_slice(&self.buffer);
            self.buffer = Zeroizing::new(larger);
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Erases the next `len` bytes, which were read.
    fn consume(&mut self, len: usize) {
        self.buffer[self.at..self.at + len].zeroize();
        self.at += len;
    }

    /// Moves what was not read to the front, once for all that was read before, and overwrites what
    /// that leaves behind.
    fn compact(&mut self) {
        let rest = self.buffer.len() - self.at;
        self.buffer.copy_within(self.at.., 0);
        self.buffer[rest..].zeroize();
        self.buffer.truncate(rest);
        self.at = 0;
    }

    /// Returns the number of unknown frames skipped since the last call, which count against the
    /// limits.
    pub fn take_skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }

    /// Returns the next whole frame.
    ///
    /// # Errors
    ///
    /// The frame is invalid or too long. An error is final: the stream cannot be read on.
    pub fn next_frame(&mut self) -> Result<Option<Control>, WireError> {
        loop {
            let mut r = Reader::new("control frame", &self.buffer[self.at..]);
            let (Ok(kind), Ok(len)) = (r.varint(), r.varint()) else {
                return Ok(None);
            };
            let head = r.offset();
            let known = FRAME_TYPES.iter().find(|(number, ..)| *number == kind);
            let Some((_, name, read)) = known else {
                // Skipped without being held, however long it claims to be.
                let here = len.min(r.remaining() as u64);
                self.skip = len - here;
                self.skipped += 1;
                self.consume(head + here as usize);
                continue;
            };
            if len > MAX_FRAME as u64 {
                return Err(WireError::TooLong {
                    what: name,
                    len,
                    max: MAX_FRAME as u64,
                });
            }
            let end = head + len as usize;
            let Some(body) = self.buffer.get(self.at + head..self.at + end) else {
                return Ok(None);
            };
            let frame = read(&mut Reader::new(name, body))?;
            self.consume(end);
            return Ok(Some(frame));
        }
    }
}

impl std::fmt::Debug for ControlReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlReader")
            .field("buffered", &(self.buffer.len() - self.at))
            .field("skip", &self.skip)
            .finish()
    }
}

#[cfg(test)]
mod tests;
