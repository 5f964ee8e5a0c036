//! LINEAGE: which key signs which updates of a channel (protocol.md section 4.12).

use signing::{Era, MAX_ERAS, VerifyingKey};
use uuid::Uuid;

use crate::wire::{BufMutExt, Reader, WireError};

const WHAT: &str = "LINEAGE";

/// Keys of a channel's updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// The channel's number in WELCOME.
    pub channel: u64,
    /// Its eras; updates outside of them are not signed.
    pub eras: signing::Lineage,
}

impl Lineage {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_varint(self.channel);
        out.put_varint(self.eras.eras().len() as u64);
        for era in self.eras.eras() {
            out.put_varint(era.first);
            out.put_varint(era.last.unwrap_or(0));
            out.extend_from_slice(era.incarnation.as_bytes());
            out.extend_from_slice(&era.key.0);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let channel = r.varint()?;
        let count = super::hello::count(r, MAX_ERAS, WHAT)?;
        let eras = (0..count).map(|_| {
            Ok(Era {
                first: r.varint()?,
                last: Some(r.varint()?).filter(|last| *last > 0),
                incarnation: Uuid::from_bytes(r.array()?),
                key: VerifyingKey(r.array()?),
            })
        });
        let eras = signing::Lineage::new(eras.collect::<Result<_, WireError>>()?);
        let eras = eras.map_err(|_| WireError::invalid(WHAT, "eras out of order"))?;
        Ok(Lineage { channel, eras })
    }
}
