//! Counts of receivers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Receivers by rung.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// All that are known.
    pub total: u64,
    /// Those that are connected.
    pub connected: u64,
    /// Of those, on the rung `multicast`.
    pub multicast: u64,
    /// … on the rung `amt`.
    pub amt: u64,
    /// … on the rung `replicated`.
    pub replicated: u64,
    /// … on the rung `unicast`.
    pub unicast: u64,
    /// Those that are not connected.
    pub offline: u64,
}
