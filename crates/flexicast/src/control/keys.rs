//! KEYS: signing keys that vouch for each other (protocol.md section 4.13).

use signing::{Endorsement, MAX_ENDORSEMENTS, VerifyingKey};

use crate::wire::{BufMutExt, Reader, WireError};

/// Appends the body of KEYS.
pub(super) fn put(endorsements: &[Endorsement], out: &mut Vec<u8>) {
    out.put_varint(endorsements.len() as u64);
    for endorsement in endorsements {
        out.extend_from_slice(&endorsement.signer.0);
        out.extend_from_slice(&endorsement.subject.0);
        out.extend_from_slice(&endorsement.signature);
    }
}

/// Reads the body of KEYS.
pub(super) fn read(r: &mut Reader<'_>) -> Result<Vec<Endorsement>, WireError> {
    let endorsements = (0..super::hello::count(r, MAX_ENDORSEMENTS, "KEYS")?).map(|_| {
        Ok(Endorsement {
            signer: VerifyingKey(r.array()?),
            subject: VerifyingKey(r.array()?),
            signature: r.array()?,
        })
    });
    endorsements.collect()
}
