//! Server-initiated streams of the unicast path: ranges of single updates, and catch-up
//! (protocol.md section 7).

use bytes::{Buf, Bytes, BytesMut};

use crate::MAX_UPDATE;
use crate::wire::{BufMutExt, Reader, WireError};

const RANGE: u64 = 0x01;
const CATCH_UP: u64 = 0x02;
/// No header is longer than this many bytes.
const MAX_HEADER: usize = 64;

/// The header of a stream that carries a range of one update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeHeader {
    /// The channel's number in WELCOME.
    pub channel: u64,
    /// The update.
    pub seq: u64,
    /// The first byte of the encoded update: how the rest is encoded.
    pub encoding: u8,
    /// Length of the whole encoded update in bytes.
    pub total: u64,
    /// Where in the encoded update the stream's bytes begin.
    pub offset: u64,
}

impl RangeHeader {
    /// Appends the header; the range's bytes follow it, and the stream's FIN ends the range (not
    /// the update).
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(RANGE);
        out.put_varint(self.channel);
        out.put_varint(self.seq);
        out.push(self.encoding);
        out.put_varint(self.total);
        out.put_varint(self.offset);
    }
}

/// Appends the header of a catch-up stream for a channel.
pub fn put_catch_up(out: &mut Vec<u8>, channel: u64) {
    out.put_varint(CATCH_UP);
    out.put_varint(channel);
}

/// Appends the header of an update on a catch-up stream.
pub fn put_catch_up_item(out: &mut Vec<u8>, seq: u64, len: usize) {
    out.put_varint(seq);
    out.put_varint(len as u64);
}

/// Output of a unicast stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of an update.
    Range {
        /// The update, and where `data` belongs: `header.offset` is moved on for each piece.
        header: RangeHeader,
        /// The bytes; may be empty at the end of an empty range.
        data: Bytes,
    },
    /// A whole update.
    Update {
        /// The channel's number in WELCOME.
        channel: u64,
        /// The update.
        seq: u64,
        /// Its encoded bytes.
        data: Bytes,
    },
}

impl Piece {
    /// Returns the number of the update that it is of.
    pub fn seq(&self) -> u64 {
        match self {
            Piece::Range { header, .. } => header.seq,
            Piece::Update { seq, .. } => *seq,
        }
    }

    /// Returns number and bytes if it is a whole update of a catch-up stream.
    pub fn update(&self) -> Option<(u64, &[u8])> {
        match self {
            Piece::Range { .. } => None,
            Piece::Update { seq, data, .. } => Some((*seq, data)),
        }
    }
}

#[derive(Debug)]
enum State {
    Start,
    Range {
        header: RangeHeader,
        /// Whether a range without bytes, as of an empty update, was emitted.
        reported: bool,
    },
    CatchUp {
        channel: u64,
    },
}

/// Reads one unicast stream, whatever pieces it arrives in. Holds at most one update.
#[derive(Debug)]
pub struct StreamReader {
    state: State,
    buffer: BytesMut,
}

impl Default for StreamReader {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamReader {
    /// A reader at the stream's beginning.
    pub fn new() -> Self {
        StreamReader {
            state: State::Start,
            buffer: BytesMut::new(),
        }
    }

    /// Takes the stream's next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that were taken and are no whole item yet.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next piece.
    ///
    /// # Errors
    ///
    /// The source violates the protocol.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, WireError> {
        const WHAT: &str = "unicast stream";
        loop {
            match &mut self.state {
                State::Start => {
                    let mut r = Reader::new(WHAT, &self.buffer);
                    match Self::header(&mut r) {
                        Ok(state) => {
                            let head = r.offset();
                            self.buffer.advance(head);
                            self.state = state;
                        }
                        Err(WireError::Truncated { .. }) if self.buffer.len() < MAX_HEADER => {
                            return Ok(None);
                        }
                        Err(error) => return Err(error),
                    }
                }
                State::Range { header, reported } => {
                    let empty = header.total == header.offset && !*reported;
                    if self.buffer.is_empty() && !empty {
                        return Ok(None);
                    }
                    *reported = true;
                    let data = self.buffer.split().freeze();
                    let piece = *header;
                    header.offset += data.len() as u64;
                    if header.offset > header.total {
                        return Err(WireError::invalid(
                            WHAT,
                            "a range that reaches past the update's end",
                        ));
                    }
                    return Ok(Some(Piece::Range {
                        header: piece,
                        data,
                    }));
                }
                State::CatchUp { channel } => {
                    let mut r = Reader::new(WHAT, &self.buffer);
                    let (Ok(seq), Ok(len)) = (r.varint(), r.varint()) else {
                        return Ok(None);
                    };
                    if len > MAX_UPDATE as u64 {
                        return Err(WireError::TooLong {
                            what: WHAT,
                            len,
                            max: MAX_UPDATE as u64,
                        });
                    }
                    let head = r.offset();
                    if self.buffer.len() < head + len as usize {
                        return Ok(None);
                    }
                    self.buffer.advance(head);
                    let data = self.buffer.split_to(len as usize).freeze();
                    return Ok(Some(Piece::Update {
                        channel: *channel,
                        seq,
                        data,
                    }));
                }
            }
        }
    }

    /// Whether the stream may end here: after a header, and not inside an item.
    pub fn may_end(&self) -> bool {
        match self.state {
            State::Start => false,
            State::Range { .. } => true,
            State::CatchUp { .. } => self.buffer.is_empty(),
        }
    }

    fn header(r: &mut Reader<'_>) -> Result<State, WireError> {
        const WHAT: &str = "unicast stream";
        Ok(match r.varint()? {
            RANGE => {
                let header = RangeHeader {
                    channel: r.varint()?,
                    seq: r.varint()?,
                    encoding: r.u8()?,
                    total: r.varint()?,
                    offset: r.varint()?,
                };
                if header.total > MAX_UPDATE as u64 {
                    return Err(WireError::TooLong {
                        what: WHAT,
                        len: header.total,
                        max: MAX_UPDATE as u64,
                    });
                }
                if header.offset > header.total {
                    return Err(WireError::invalid(
                        WHAT,
                        "a range that begins past the update's end",
                    ));
                }
                State::Range {
                    header,
                    reported: false,
                }
            }
            CATCH_UP => State::CatchUp {
                channel: r.varint()?,
            },
            _ => return Err(WireError::invalid(WHAT, "an unknown kind of stream")),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_and_catch_up_round_trip(
            data in prop::collection::vec(any::<u8>(), 1..3000),
            offset in 0u64..1000,
            piece in 1usize..700,
        ) {
            let total = offset + data.len() as u64 + 5;
            let header = RangeHeader { channel: 2, seq: 9, encoding: 1, total, offset };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            bytes.extend_from_slice(&data);
            let (mut reader, mut got) = (StreamReader::new(), Vec::new());
            for chunk in bytes.chunks(piece) {
                reader.push(chunk);
                while let Some(Piece::Range { header: h, data }) = reader.next_piece().unwrap() {
                    prop_assert_eq!(h.offset, offset + got.len() as u64);
                    got.extend_from_slice(&data);
                }
            }
            prop_assert_eq!(&got, &data);

            let mut bytes = Vec::new();
            put_catch_up(&mut bytes, 4);
            for seq in 1..4 {
                put_catch_up_item(&mut bytes, seq, data.len());
                bytes.extend_from_slice(&data);
            }
            let (mut reader, mut next) = (StreamReader::new(), 1);
            for chunk in bytes.chunks(piece) {
                reader.push(chunk);
                while let Some(piece) = reader.next_piece().unwrap() {
                    let update = Piece::Update { channel: 4, seq: next, data: data.clone().into() };
                    prop_assert_eq!(piece, update);
                    next += 1;
                }
            }
            prop_assert_eq!(next, 4);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = StreamReader::new();
            for chunk in bytes.chunks(11) {
                reader.push(chunk);
                while let Ok(Some(_)) = reader.next_piece() {}
            }
        }
    }

    #[test]
    fn a_range_past_the_end_is_refused() {
        let mut bytes = Vec::new();
        RangeHeader {
            channel: 1,
            seq: 1,
            encoding: 0,
            total: 3,
            offset: 0,
        }
        .encode(&mut bytes);
        bytes.extend_from_slice(b"four");
        let mut reader = StreamReader::new();
        reader.push(&bytes);
        assert!(reader.next_piece().is_err());
    }
}
