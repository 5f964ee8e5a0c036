//! Signed updates (protocol.md section 7.5): a [`Header`] with the hashes of an update's chunks and
//! an Ed25519 signature (RFC 8032), in front of the bytes that it vouches for.
//!
//! A [`Signer`] signs an update once. [`Header::verify`] proves the header against a
//! [`VerifyingKey`], and [`Header::is_genuine`] each chunk against the header, in any order. A
//! [`Lineage`] has the keys of a channel's whole history, and judges whole updates.
//! [`Endorsement`]s lead from a pinned key to the keys that came before and after it.
//!
//! No file, socket, clock or entropy: seeds and salts are the caller's.

pub mod ed25519;
mod endorsement;
mod header;
mod key;
mod lineage;
#[cfg(test)]
mod tests;

pub use endorsement::{Endorsement, MAX_ENDORSEMENTS, trusted_keys};
pub use header::{Header, HeaderError, Statement};
pub use key::{ForgedHeader, KeyId, KeyTextError, SignError, Signer, VerifyingKey};
pub use lineage::{Era, Forgery, Lineage, LineageError, MAX_ERAS};

/// Encoding byte of a signed update.
pub const SIGNED: u8 = 2;
/// Length of the salt of an update's hashes in bytes.
pub const SALT_LEN: usize = 16;
/// Maximum length of a header in bytes, with its encoding byte and signature: it fits one packet of
/// a flow.
pub const MAX_HEADER: usize = 1_056;

/// Returns the length of a header by its first bytes, with its encoding byte and signature and
/// whatever the algorithm; `None` if the update is not signed, or cut off.
#[must_use]
pub fn header_len(encoded: &[u8]) -> Option<usize> {
    header::stated_len(encoded)
}

/// Returns the encoded update behind the header of a signed one, verified or not; any other bytes
/// as they are.
#[must_use]
pub fn content(encoded: &[u8]) -> &[u8] {
    header::content(encoded).unwrap_or(encoded)
}

/// The examples of the README, as tests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
