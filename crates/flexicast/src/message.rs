//! Messages: what is sent to all receivers of a channel once, in fragments (protocol.md section
//! 7.8).

use bytes::Bytes;

use crate::wire::{BufMutExt, Reader, WireError, varint_len};

/// The type of a fragment in a QUIC DATAGRAM, on a flow or on a connection.
pub const MESSAGE: u64 = 0x4d;
/// Maximum length of a message in bytes, with the header that signs it.
pub const MAX_MESSAGE: usize = 72 << 10;
/// Length of the longest fragment in bytes: it fits a packet beside which there is room for a
/// repair symbol, and a packet of every connection.
pub const MAX_FRAGMENT: usize = 1_084;
/// Length of what is before a fragment's data, at most: its type, and four varints.
const MAX_FRAGMENT_HEADER: usize = 2 + 4 + 8 + 4 + 4;

/// A part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Number of the channel on this connection.
    pub channel: u64,
    /// Number of the message: those of a channel ascend.
    pub number: u64,
    /// Length of the whole message in bytes.
    pub length: usize,
    /// Where the data begins in it.
    pub offset: usize,
    /// A part of the message's bytes.
    pub data: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Reads the payload of a DATAGRAM; `None` if it is of another type.
    ///
    /// # Errors
    /// The bytes end within a field, or are no part of a message that may be.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<Self>, WireError> {
        const WHAT: &str = "MESSAGE";
        let mut r = Reader::new(WHAT, bytes);
        if r.varint()? != MESSAGE {
            return Ok(None);
        }
        let (channel, number) = (r.varint()?, r.varint()?);
        let (length, offset) = (r.varint()?, r.varint()?);
        let data = r.rest();
        let end = offset.saturating_add(data.len() as u64);
        if data.is_empty() || end > length {
            return Err(WireError::invalid(WHAT, "no data, or beyond the end"));
        }
        if length > MAX_MESSAGE as u64 {
            return Err(WireError::TooLong {
                what: WHAT,
                len: length,
                max: MAX_MESSAGE as u64,
            });
        }
        Ok(Some(Fragment {
            channel,
            number,
            length: length as usize,
            offset: offset as usize,
            data,
        }))
    }

    /// Returns it as the payload of a DATAGRAM.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_FRAGMENT_HEADER + self.data.len());
        out.put_varint(MESSAGE);
        out.put_varint(self.channel);
        out.put_varint(self.number);
        out.put_varint(self.length as u64);
        out.put_varint(self.offset as u64);
        out.extend_from_slice(self.data);
        out
    }
}

/// Returns the fragments of a message, none longer than `room` bytes; nothing if there is no room
/// for any data, or the message is empty or too long.
pub(crate) fn fragments(channel: u64, number: u64, message: &[u8], room: usize) -> Vec<Bytes> {
    let length = message.len();
    let longest = [MESSAGE, channel, number, length as u64, length as u64];
    let header: usize = longest.into_iter().map(varint_len).sum();
    let most = room.min(MAX_FRAGMENT).saturating_sub(header);
    if most == 0 || length > MAX_MESSAGE {
        return Vec::new();
    }
    // Of one length, so that none of them is a small packet of its own.
    let step = length.div_ceil(length.div_ceil(most).max(1)).max(1);
    let parts = message.chunks(step).enumerate();
    let fragments = parts.map(|(index, data)| Fragment {
        channel,
        number,
        length,
        offset: index * step,
        data,
    });
    fragments.map(|part| part.encode().into()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fragments_are_read_as_written(
            number in 0..1u64 << 62,
            length in 0..MAX_MESSAGE + 10,
            room in 0..1_300usize,
        ) {
            let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let all = fragments(3, number, &message, room);
            let mut joined = Vec::new();
            for bytes in &all {
                prop_assert!(bytes.len() <= room.min(MAX_FRAGMENT));
                let fragment = Fragment::decode(bytes).unwrap().unwrap();
                prop_assert_eq!(fragment.offset, joined.len());
                prop_assert_eq!((fragment.channel, fragment.number), (3, number));
                prop_assert_eq!(fragment.length, length);
                joined.extend_from_slice(fragment.data);
            }
            let is_sent = room > MAX_FRAGMENT_HEADER && length <= MAX_MESSAGE;
            prop_assert!(joined == message || !is_sent && joined.is_empty());
        }

        #[test]
        fn any_bytes_may_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Fragment::decode(&[&[0x40, 0x4d], &bytes[..]].concat());
            let _ = Fragment::decode(&bytes);
        }
    }

    #[test]
    fn what_is_no_part_of_a_message_is_refused() {
        let part = |length: usize, offset, data| Fragment {
            channel: 0,
            number: 1,
            length,
            offset,
            data,
        };
        let read = |part: Fragment<'_>| Fragment::decode(&part.encode()).map(|_| ());
        assert_eq!(read(part(3, 0, b"abc")), Ok(()));
        for wrong in [part(3, 0, b""), part(3, 1, b"abc"), part(0, 0, b"a")] {
            assert!(matches!(read(wrong), Err(WireError::Invalid { .. })));
        }
        let long = part(MAX_MESSAGE + 1, 0, b"a");
        assert!(matches!(read(long), Err(WireError::TooLong { .. })));
        assert_eq!(Fragment::decode(&[0x3e, 1]), Ok(None));
        assert_eq!(
            Fragment::decode(&[0x40, 0x4d, 0]),
            Err(WireError::Truncated { what: "MESSAGE" })
        );
    }
}
