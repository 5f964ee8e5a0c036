//! NEED: bytes of an update that a receiver asks for (protocol.md section 4.4).

use crate::wire::{BufMutExt, Reader, WireError};

/// Requests of one receiver per second.
pub(crate) const NEEDS_PER_S: u64 = 20;
/// Updates from the next one to be delivered for which a receiver may ask. With one request per
/// update this bounds the open ones, and the update that delivery waits for is always among them.
pub(crate) const NEED_AHEAD: u64 = 64;

/// Why a receiver needs bytes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedReason {
    /// The update was whole and not valid.
    Invalid = 1,
    /// Bytes of the update, or statements of its length, contradicted each other.
    Contradicted = 2,
    /// Later updates are here, and this one does not come.
    Missing = 3,
    /// The update, or its header, was not what the source signed.
    Forged = 4,
}

/// A range of an update that a receiver asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The channel's number in WELCOME.
    pub channel: u64,
    /// The update.
    pub seq: u64,
    /// The first byte of its encoded bytes.
    pub offset: u64,
    /// Number of bytes; `None` for all up to the update's end.
    pub length: Option<u64>,
    /// A [`NeedReason`] number; unknown ones mean nothing.
    pub reason: u64,
}

impl Need {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_varint(self.channel);
        out.put_varint(self.seq);
        out.put_varint(self.offset);
        out.put_varint(self.length.unwrap_or(0));
        out.put_varint(self.reason);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let need = Need {
            channel: r.varint()?,
            seq: r.varint()?,
            offset: r.varint()?,
            length: Some(r.varint()?).filter(|length| *length > 0),
            reason: r.varint()?,
        };
        if need.seq == 0 {
            return Err(WireError::invalid("NEED", "the seq 0"));
        }
        Ok(need)
    }
}
