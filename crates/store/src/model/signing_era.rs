//! Lineage of a channel's updates: the ranges that one key signed.

use uuid::Uuid;

/// Range of a channel's updates that one key signed under one incarnation.
///
/// The eras of a channel do not overlap. Updates outside of all of them are unsigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningEra {
    /// Seq of its first update: the channel's next one when it began.
    pub first: u64,
    /// Seq of its last update; `None` while it is open.
    pub last: Option<u64>,
    /// Incarnation that the signatures name: the channel's when the era began, which it may have
    /// lost since.
    pub incarnation: Uuid,
    /// Ed25519 public key.
    pub key: [u8; 32],
}
