//! EXPIRED and CLOCK: updates with a deadline (protocol.md sections 4.15 and 7.6).

use crate::wire::{BufMutExt, Reader, WireError};

/// Updates of a channel whose deadline has passed: the source sends nothing more of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// The channel's number in WELCOME.
    pub channel: u64,
    /// The first `seq` that has expired.
    pub first: u64,
    /// The last `seq` that has expired.
    pub last: u64,
    /// Bytes of the channel up to the end of the last one, as grants of its flow count them; `None`
    /// where the source does not say.
    pub offset: Option<u64>,
}

impl Expired {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_varint(self.channel);
        out.put_varint(self.first);
        out.put_varint(self.last);
        out.put_varint(self.offset.unwrap_or(0));
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let expired = Expired {
            channel: r.varint()?,
            first: r.varint()?,
            last: r.varint()?,
            offset: Some(r.varint()?).filter(|offset| *offset > 0),
        };
        if expired.first == 0 || expired.last < expired.first {
            let reason = "a range that is empty or begins at 0";
            return Err(WireError::invalid("EXPIRED", reason));
        }
        Ok(expired)
    }
}

/// A question for the source's time, or the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// The receiver's number of the question.
    pub question: u64,
    /// Unix time of the source in µs, in an answer.
    pub time_us: Option<u64>,
}

impl Clock {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_varint(self.question);
        out.put_varint(self.time_us.unwrap_or(0));
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Clock {
            question: r.varint()?,
            time_us: Some(r.varint()?).filter(|time| *time > 0),
        })
    }
}
