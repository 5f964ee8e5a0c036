//! Where relays read P of a Request, as their answers have shown.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::types::MAX_CANDIDATES;
use crate::PFlag;

/// Relays that are remembered: those that Advertisements led to, too.
const MAX_RELAYS: usize = 2 * MAX_CANDIDATES;

/// The positions that relays have answered.
#[derive(Debug, Default)]
pub(super) struct PFlags(BTreeMap<SocketAddr, PFlag>);

impl PFlags {
    /// The position that this relay answered last.
    pub(super) fn get(&self, relay: SocketAddr) -> Option<PFlag> {
        self.0.get(&relay).copied()
    }

    /// The relay has answered a Request for MLD with P at this position.
    pub(super) fn set(&mut self, relay: SocketAddr, p: PFlag) {
        if self.0.len() >= MAX_RELAYS && !self.0.contains_key(&relay) {
            // A relay that is forgotten is asked with both again.
            self.0.pop_first();
        }
        self.0.insert(relay, p);
    }
}
