//! Frames on the flow (protocol.md section 6): the encodings of RFC 9000 section 19, and extensions
//! as `type | length | body` that are skipped when unknown.

use crate::FlowId;
use crate::authentication::SIGNATURE_LEN;
use crate::wire::{BufMutExt, Reader, VARINT_MAX, WireError, varint_len};

const PADDING: u64 = 0x00;
const PING: u64 = 0x01;
const RESET_STREAM: u64 = 0x04;
const STREAM: u64 = 0x08;
const STREAM_LAST: u64 = 0x0f;
const STREAM_FIN: u64 = 0x01;
const STREAM_LEN: u64 = 0x02;
const STREAM_OFF: u64 = 0x04;
const DATAGRAM: u64 = 0x30;
const DATAGRAM_LEN: u64 = 0x31;
/// Types from here on carry their length and may be skipped; those below have the fixed encodings
/// of RFC 9000.
const FIRST_EXTENSION: u64 = 0x40;
/// Type of the signature of a stream.
pub(crate) const STREAM_SIGNATURE: u64 = 0x40;
/// Type of a repair symbol.
pub(crate) const REPAIR: u64 = 0x41;
/// Bytes of a REPAIR frame before the repair symbol, at most.
pub(crate) const REPAIR_HEADER: usize = 2 + 2;
/// Bytes of a DATAGRAM with a repair symbol, for a connection, before the symbol.
const APART_HEADER: usize = 2 + FlowId::LEN;

/// The stream that carries the update `seq` (protocol.md section 7): a server-initiated
/// unidirectional stream.
pub fn stream_id(seq: u64) -> u64 {
    seq.saturating_mul(4).saturating_add(3)
}

/// The update that a stream carries.
fn update_of(id: u64) -> Result<u64, WireError> {
    if id % 4 != 3 || id < stream_id(1) {
        return Err(WireError::invalid(
            "flow frame",
            "not the stream of an update",
        ));
    }
    Ok(id / 4)
}

/// A frame of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Bytes without meaning.
    Padding,
    /// Asks for nothing but an acknowledgement; also the heartbeat.
    Ping,
    /// A range of an encoded update.
    Stream {
        /// The update's number in its channel.
        seq: u64,
        /// Where `data` begins in the encoded update, in bytes.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
        /// Whether the encoded update ends with these bytes.
        fin: bool,
    },
    /// The source sends no more of this update on the flow; what is missing comes on the unicast
    /// path (RFC 9000 section 19.4).
    Reset {
        /// The update's number in its channel.
        seq: u64,
        /// Why, as an application error code.
        code: u64,
        /// Length of the whole encoded update in bytes.
        size: u64,
    },
    /// A message that is not repaired (RFC 9221 section 4).
    Datagram {
        /// The bytes.
        data: &'a [u8],
    },
    /// The signature of a whole update, on a flow whose streams are signed.
    StreamSignature {
        /// The update's number in its channel.
        seq: u64,
        /// The signature.
        signature: &'a [u8; SIGNATURE_LEN],
    },
    /// A repair symbol with its header (protocol.md section 5.6).
    Repair {
        /// The bytes, which no one has looked at.
        symbol: &'a [u8],
    },
    /// An extension frame that this version does not know.
    Unknown {
        /// Its type.
        kind: u64,
    },
}

impl Frame<'_> {
    /// Whether a packet with this frame asks for an acknowledgement (RFC 9002 section 2).
    pub fn is_ack_eliciting(&self) -> bool {
        !matches!(self, Frame::Padding)
    }
}

/// Walks over the frames of an opened packet.
pub struct Frames<'a> {
    bytes: &'a [u8],
}

impl<'a> Frames<'a> {
    /// The frames in a packet's plain text.
    pub fn new(bytes: &'a [u8]) -> Self {
        Frames { bytes }
    }

    fn parse(&mut self) -> Result<Frame<'a>, WireError> {
        let mut r = Reader::new("flow frame", self.bytes);
        let kind = r.varint()?;
        let frame = match kind {
            PADDING => {
                // The type may be written longer than it need be: what was read is consumed in any
                // case.
                let rest = r.rest();
                let run = rest.iter().position(|b| *b != 0);
                self.bytes = &rest[run.unwrap_or(rest.len())..];
                return Ok(Frame::Padding);
            }
            PING => Frame::Ping,
            RESET_STREAM => Frame::Reset {
                seq: update_of(r.varint()?)?,
                code: r.varint()?,
                size: r.varint()?,
            },
            DATAGRAM => Frame::Datagram { data: r.rest() },
            DATAGRAM_LEN => {
                let len = r.varint()?;
                Frame::Datagram {
                    data: r.bytes(usize::try_from(len).unwrap_or(usize::MAX))?,
                }
            }
            STREAM..=STREAM_LAST => {
                let seq = update_of(r.varint()?)?;
                let offset = if kind & STREAM_OFF != 0 {
                    r.varint()?
                } else {
                    0
                };
                let data = if kind & STREAM_LEN != 0 {
                    let len = r.varint()?;
                    r.bytes(usize::try_from(len).unwrap_or(usize::MAX))?
                } else {
                    r.rest()
                };
                if offset + data.len() as u64 > VARINT_MAX {
                    return Err(WireError::invalid(
                        "STREAM on a flow",
                        "an offset past the largest one",
                    ));
                }
                Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin: kind & STREAM_FIN != 0,
                }
            }
            FIRST_EXTENSION.. => {
                let len = r.varint()?;
                let body = r.bytes(usize::try_from(len).unwrap_or(usize::MAX))?;
                match kind {
                    STREAM_SIGNATURE => stream_signature(body)?,
                    REPAIR => Frame::Repair { symbol: body },
                    _ => Frame::Unknown { kind },
                }
            }
            _ => {
                return Err(WireError::invalid(
                    "flow frame",
                    "a frame type that has no place on a flow",
                ));
            }
        };
        self.bytes = &self.bytes[r.offset()..];
        Ok(frame)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let frame = self.parse();
        if frame.is_err() {
            self.bytes = &[];
        }
        Some(frame)
    }
}

/// Reads the body of a signature of a stream.
fn stream_signature(body: &[u8]) -> Result<Frame<'_>, WireError> {
    const WHAT: &str = "signature of a stream";
    let mut r = Reader::new(WHAT, body);
    let seq = update_of(r.varint()?)?;
    let signature = r.rest().try_into();
    let signature =
        signature.map_err(|_| WireError::invalid(WHAT, "a signature that is not 64 bytes long"))?;
    Ok(Frame::StreamSignature { seq, signature })
}

/// Appends a PING.
pub fn put_ping(out: &mut Vec<u8>) {
    out.push(PING as u8);
}

/// Appends a RESET_STREAM for an update of `size` bytes.
pub fn put_reset(out: &mut Vec<u8>, seq: u64, code: u64, size: u64) {
    out.push(RESET_STREAM as u8);
    out.put_varint(stream_id(seq));
    out.put_varint(code);
    out.put_varint(size);
}

/// Returns the length of a DATAGRAM frame with a length field and so many bytes.
pub(crate) fn datagram_len(data: usize) -> usize {
    1 + varint_len(data as u64) + data
}

/// Appends a DATAGRAM frame with a length field, if it fits until `out` is `limit` bytes long;
/// returns whether it did.
pub fn put_datagram(out: &mut Vec<u8>, limit: usize, data: &[u8]) -> bool {
    if out.len() + datagram_len(data.len()) > limit {
        return false;
    }
    out.push(DATAGRAM_LEN as u8);
    out.put_prefixed(data);
    true
}

/// Appends the signature of the update `seq`, if it fits until `out` is `limit` bytes long; returns
/// whether it did.
pub fn put_stream_signature(
    out: &mut Vec<u8>,
    limit: usize,
    seq: u64,
    signature: &[u8; SIGNATURE_LEN],
) -> bool {
    let id = stream_id(seq);
    let body = varint_len(id) + SIGNATURE_LEN;
    if out.len() + varint_len(STREAM_SIGNATURE) + varint_len(body as u64) + body > limit {
        return false;
    }
    out.put_varint(STREAM_SIGNATURE);
    out.put_varint(body as u64);
    out.put_varint(id);
    out.extend_from_slice(signature);
    true
}

/// Appends a REPAIR frame with the repair symbol that `write` appends, of at most `len` bytes, if
/// that fits until `out` is `limit` bytes long; returns whether it did.
pub(crate) fn put_repair(
    out: &mut Vec<u8>,
    limit: usize,
    len: usize,
    write: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    let begin = out.len();
    if begin + REPAIR_HEADER + len > limit {
        return false;
    }
    out.put_varint(REPAIR);
    // Two bytes of length, whatever it is.
    out.extend_from_slice(&[0; 2]);
    let body = out.len();
    if !write(out) {
        out.truncate(begin);
        return false;
    }
    let len = (out.len() - body) as u16 | 0x4000;
    out[body - 2..body].copy_from_slice(&len.to_be_bytes());
    true
}

/// Reads the payload of a DATAGRAM of a connection that is a repair symbol of a flow (protocol.md
/// section 6.7); `None` if it is of another type, or ends too early.
#[must_use]
pub fn read_apart_symbol(bytes: &[u8]) -> Option<(FlowId, &[u8])> {
    let mut r = Reader::new("REPAIR", bytes);
    let is_symbol = r.varint() == Ok(REPAIR);
    let flow = r.array().ok().filter(|_| is_symbol)?;
    Some((FlowId(flow), r.rest()))
}

/// Returns the payload of a DATAGRAM with the repair symbol of a flow that `write` appends, of at
/// most `len` bytes; `None` if it appends none.
pub fn apart_symbol(
    flow: FlowId,
    len: usize,
    write: impl FnOnce(&mut Vec<u8>) -> bool,
) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(APART_HEADER + len);
    out.put_varint(REPAIR);
    out.extend_from_slice(&flow.0);
    write(&mut out).then_some(out)
}

/// Whether a STREAM frame with `data` from `offset` on would have the whole header of a signed
/// update, if `data` begins with one. The frames of a packet begin at `begin` of `out` and end at
/// `limit`; a header that no packet has room for is cut.
pub(crate) fn keeps_header(
    out: &[u8],
    (begin, limit): (usize, usize),
    seq: u64,
    offset: u64,
    data: &[u8],
) -> bool {
    if offset > 0 || out.len() == begin {
        return true;
    }
    let header = signing::header_len(data).map_or(0, |length| length.min(data.len()));
    // With a length field, as where the update ends in this packet.
    let frame = 1 + varint_len(stream_id(seq)) + varint_len(limit as u64);
    out.len() + frame + header <= limit
}

/// Appends a STREAM frame with as much of `data` as fits until `out` is `limit` bytes long; returns
/// how many bytes of `data` went in, `None` if it is not worth a frame. `ends` says that the update
/// ends with `data`; the FIN bit is set only if all of it fits.
pub fn put_stream(
    out: &mut Vec<u8>,
    limit: usize,
    seq: u64,
    offset: u64,
    data: &[u8],
    ends: bool,
) -> Option<usize> {
    let id = stream_id(seq);
    let head = 1 + varint_len(id) + if offset > 0 { varint_len(offset) } else { 0 };
    let room = limit.checked_sub(out.len() + head)?;
    // A frame that fills the packet goes without a length field (RFC 9000 section 19.8).
    let (take, with_len) = if data.len() >= room {
        (room, false)
    } else {
        let take = data
            .len()
            .min(room.checked_sub(varint_len(data.len() as u64))?);
        (take, true)
    };
    if take == 0 && !data.is_empty() {
        return None;
    }
    let fin = ends && take == data.len();
    let mut kind = STREAM;
    kind |= if offset > 0 { STREAM_OFF } else { 0 };
    kind |= if with_len { STREAM_LEN } else { 0 };
    kind |= if fin { STREAM_FIN } else { 0 };
    out.push(kind as u8);
    out.put_varint(id);
    if offset > 0 {
        out.put_varint(offset);
    }
    if with_len {
        out.put_varint(take as u64);
    }
    out.extend_from_slice(&data[..take]);
    Some(take)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any update cut into frames of any size comes out the same.
        #[test]
        fn streams_round_trip(
            seq in 1u64..1 << 40,
            data in prop::collection::vec(any::<u8>(), 0..5000),
            limit in 20usize..1300,
            lead in 0usize..10,
        ) {
            let mut got = vec![0; data.len()];
            let (mut offset, mut ended) = (0, false);
            while !ended {
                let mut out = vec![PING as u8; lead];
                let (end, rest) = (limit + lead, &data[offset..]);
                let n = put_stream(&mut out, end, seq, offset as u64, rest, true);
                let n = n.expect("some bytes fit");
                prop_assert!(out.len() <= limit + lead);
                for frame in Frames::new(&out).skip(lead) {
                    let Frame::Stream { seq: s, offset: o, data: d, fin } = frame.unwrap() else {
                        panic!("a STREAM frame")
                    };
                    prop_assert_eq!((s, o as usize, d.len()), (seq, offset, n));
                    got[offset..offset + n].copy_from_slice(d);
                    prop_assert_eq!(fin, offset + n == data.len());
                    ended = fin;
                }
                offset += n;
            }
            prop_assert_eq!(got, data);
        }

        #[test]
        fn any_bytes_parse_or_fail_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let frames: Vec<_> = Frames::new(&bytes).collect();
            prop_assert!(frames.len() <= bytes.len());
            let mut before_the_last = frames.iter().rev().skip(1);
            prop_assert!(before_the_last.all(|f| f.is_ok()), "nothing is read after an error");
        }
    }

    /// Wherever a packet has room, the header of a signed update goes into one frame whole, or not
    /// at all.
    #[test]
    fn a_header_is_whole_in_one_frame() {
        let mut signed = vec![signing::SIGNED, 0, 129];
        signed.resize(200, 1);
        let (begin, limit) = (5, 400);
        let mut fits = 0;
        for lead in 1..limit {
            let mut out = vec![PING as u8; begin + lead];
            if !keeps_header(&out, (begin, limit), 9, 0, &signed) {
                continue;
            }
            fits += 1;
            let taken = put_stream(&mut out, limit, 9, 0, &signed, true);
            assert!(taken.unwrap() >= 132 && out.len() <= limit, "behind {lead}");
        }
        // Type, stream ID and length field take four bytes.
        assert_eq!(fits, limit - begin - 132 - 4);
        let full = vec![PING as u8; limit - 20];
        let keeps = |offset, data: &[u8]| keeps_header(&full, (begin, limit), 9, offset, data);
        assert!(!keeps(0, &signed));
        assert!(keeps(132, &signed[132..]), "behind the header");
        assert!(keeps(0, &[0; 200]), "not signed");
        // No packet has room for it: it is cut.
        let empty = vec![0; begin];
        assert!(keeps_header(&empty, (begin, 50), 9, 0, &signed));
    }

    #[test]
    fn resets_and_datagrams_round_trip() {
        let mut out = Vec::new();
        put_reset(&mut out, 7, 3, 99_999);
        assert!(put_datagram(&mut out, 100, b"hello"));
        let limit = out.len() + 6;
        assert!(!put_datagram(&mut out, limit, b"hello"));
        out.extend_from_slice(&[DATAGRAM as u8, b'x']);
        let frames: Vec<_> = Frames::new(&out).collect();
        let reset = Frame::Reset {
            seq: 7,
            code: 3,
            size: 99_999,
        };
        assert_eq!(
            frames,
            [
                Ok(reset),
                Ok(Frame::Datagram { data: b"hello" }),
                Ok(Frame::Datagram { data: b"x" })
            ]
        );
    }

    #[test]
    fn signatures_of_streams_round_trip() {
        for seq in [1, 301, 1 << 40] {
            let (mut out, signature) = (vec![PING as u8; 7], [0x5a; SIGNATURE_LEN]);
            let full = (7..).find(|limit| put_stream_signature(&mut out, *limit, seq, &signature));
            assert_eq!(full, Some(out.len()), "it fits exactly");
            let last = Frames::new(&out).last().unwrap().unwrap();
            let signature = &signature;
            assert_eq!(last, Frame::StreamSignature { seq, signature });
            assert!(last.is_ack_eliciting());
        }
        let body = [&[7][..], &[1; SIGNATURE_LEN]].concat();
        let short = &body[..SIGNATURE_LEN];
        let no_update = [&[4][..], &[1; SIGNATURE_LEN]].concat();
        let long = [&body[..], &[1]].concat();
        for wrong in [short, &no_update, &long, &[]] {
            let mut out = Vec::new();
            out.put_varint(STREAM_SIGNATURE);
            out.put_prefixed(wrong);
            assert!(Frames::new(&out).next().unwrap().is_err(), "{wrong:?}");
        }
    }

    /// Found by fuzzing: an endless loop.
    #[test]
    fn padding_with_a_long_type_ends() {
        let frames: Vec<_> = Frames::new(&[0, 0, 0x40, 0, 0, 0x80, 0, 0, 0, 1]).collect();
        assert_eq!(
            frames,
            [
                Ok(Frame::Padding),
                Ok(Frame::Padding),
                Ok(Frame::Padding),
                Ok(Frame::Ping)
            ]
        );
    }

    #[test]
    fn unknown_extensions_are_skipped_and_foreign_types_are_not() {
        let mut out = Vec::new();
        out.put_varint(0x7001);
        out.put_prefixed(b"from a later version");
        put_ping(&mut out);
        let frames: Vec<_> = Frames::new(&out).collect();
        assert_eq!(
            frames,
            [Ok(Frame::Unknown { kind: 0x7001 }), Ok(Frame::Ping)]
        );
        assert!(
            Frames::new(&[0x06, 0, 0]).next().unwrap().is_err(),
            "CRYPTO has no place on a flow"
        );
        assert!(
            Frames::new(&[0x0a, 0x04, 0x00]).next().unwrap().is_err(),
            "stream 4 is no update"
        );
    }
}
