//! Keys that vouch for keys: the way from a key that a receiver pins to those that signed.

use crate::ed25519::{self, SIGNATURE_LEN};
use crate::key::VerifyingKey;

/// First bytes of what an endorsement signs: no header begins like this.
pub(crate) const CONTEXT: &[u8] = b"flexfeed key 1\0";
/// Number of endorsements that a source sends at most.
pub const MAX_ENDORSEMENTS: usize = 64;

/// One key's signature over another: a receiver that trusts the first trusts the second, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endorsement {
    /// Key that signed.
    pub signer: VerifyingKey,
    /// Key that it vouches for.
    pub subject: VerifyingKey,
    /// Ed25519 over the subject (protocol.md section 7.5).
    pub signature: [u8; SIGNATURE_LEN],
}

impl Endorsement {
    /// Whether its signer signed it.
    #[must_use]
    pub fn is_genuine(&self) -> bool {
        ed25519::verify(&self.signer.0, &message(&self.subject), &self.signature)
    }
}

/// Returns the bytes that an endorsement's signature is about.
pub(crate) fn message(subject: &VerifyingKey) -> Vec<u8> {
    [CONTEXT, &subject.0].concat()
}

/// Returns the pinned keys, and those that they vouch for, directly or by others. Of the
/// endorsements, the first [`MAX_ENDORSEMENTS`] count.
#[must_use]
pub fn trusted_keys(pinned: &[VerifyingKey], endorsements: &[Endorsement]) -> Vec<VerifyingKey> {
    let mut trusted = pinned.to_vec();
    let mut open: Vec<&Endorsement> = endorsements.iter().take(MAX_ENDORSEMENTS).collect();
    loop {
        let is_next = |e: &&Endorsement| trusted.contains(&e.signer);
        let (next, rest): (Vec<&Endorsement>, Vec<_>) = open.into_iter().partition(is_next);
        if next.is_empty() {
            return trusted;
        }
        for endorsement in next {
            if !trusted.contains(&endorsement.subject) && endorsement.is_genuine() {
                trusted.push(endorsement.subject);
            }
        }
        open = rest;
    }
}
