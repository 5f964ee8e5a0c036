//! Inputs and outputs of a merge.

use std::ops::Range;

use bytes::Bytes;
use signing::{Forgery, Lineage, VerifyingKey};

use crate::Via;
use crate::control::NeedReason;

/// The validity of encoded bytes as an update of this `seq`.
pub type Check = fn(u64, &[u8]) -> Validity;

/// A check's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// An update.
    Valid,
    /// No update of this `seq`.
    Invalid,
    /// In the form of a later version: not to be judged, and taken.
    Unknown,
}

impl From<bool> for Validity {
    fn from(valid: bool) -> Self {
        match valid {
            true => Validity::Valid,
            false => Validity::Invalid,
        }
    }
}

/// Keys that sign the updates of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signatures {
    /// The channel's name.
    pub channel: String,
    /// Its keys.
    pub lineage: Lineage,
    /// Whether updates of the unicast path have to be signed, too.
    pub required: bool,
}

impl Signatures {
    /// Checks that the source signed these bytes as this update.
    ///
    /// # Errors
    /// [`Forgery`] if not.
    pub fn verify(&self, seq: u64, signed: &[u8]) -> Result<(), Forgery> {
        self.lineage.verify(&self.channel, seq, signed)
    }

    /// Checks updates together; returns the result of [`Signatures::verify`] for each.
    pub(crate) fn verify_all(&self, updates: &[(u64, &[u8])]) -> Vec<Result<(), Forgery>> {
        self.lineage.verify_all(&self.channel, updates)
    }

    /// Restricts them to these keys.
    pub(crate) fn trust_only(&mut self, keys: Vec<VerifyingKey>) {
        self.lineage.trust_only(keys);
    }
}

/// Update of the unicast path that the source did not sign with a key that the receiver pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthenticationFailure {
    /// The update.
    pub seq: u64,
    /// Why.
    pub forgery: Forgery,
}

/// A whole update, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Its number.
    pub seq: u64,
    /// Its encoded bytes.
    pub encoded: Bytes,
    /// Path of the arrival.
    pub via: Via,
    /// The unicast path brought all of it.
    pub certain: bool,
    /// Unix time in ms at which it expires, by the source's clock.
    pub deadline_ms: Option<u64>,
}

/// Output of a merge, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// An update.
    Update(Delivered),
    /// Updates that are gone for good, in their place.
    Gap {
        /// The first `seq` that is missing.
        from: u64,
        /// The last `seq` that is missing.
        to: u64,
    },
    /// Updates whose deadline passed before they could be handed on, in their place.
    Expired {
        /// The first `seq` that expired.
        from: u64,
        /// The last `seq` that expired.
        to: u64,
        /// Bytes of those whose length is known.
        bytes: u64,
    },
}

impl Output {
    /// Returns the last `seq` that it is about.
    pub fn last(&self) -> u64 {
        match self {
            Output::Update(update) => update.seq,
            Output::Gap { to, .. } | Output::Expired { to, .. } => *to,
        }
    }
}

/// An update whose bytes from the flow were found to be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistrustedUpdate {
    /// The update.
    pub seq: u64,
    /// Why.
    pub reason: NeedReason,
    /// Whether the application has it already: nothing can be dropped then.
    pub handed: bool,
}

/// Bytes that are asked of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingRange {
    pub(crate) seq: u64,
    pub(crate) range: Range<u64>,
    pub(crate) reason: NeedReason,
}

/// Counters of a merge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Pieces of updates that were whole already.
    pub duplicates: u64,
    /// Times that bytes of an update contradicted each other.
    pub mismatches: u64,
    /// Headers and whole updates that the flow brought and the source did not sign.
    pub forged: u64,
    /// Those of them for which a signature or hashes were checked.
    pub failed_checks: u64,
    /// Updates whose flow bytes were dropped, to be had by the unicast path.
    pub refetched: u64,
    /// Those of them that the source, too, sent with these bytes: they only seemed to be invalid.
    pub cleared: u64,
    /// Updates that expired here, in part or whole.
    pub late: u64,
}

impl MergeStats {
    /// Counts bytes that the source did not sign. `checked` says that a signature or hashes were
    /// checked to find that out: all else costs next to nothing.
    pub(super) fn count_forgery(&mut self, checked: bool) {
        self.forged += 1;
        self.failed_checks += u64::from(checked);
    }
}
