//! Positions of the P flag that relays read in a Request, learnt from their answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::types::MAX_CANDIDATES;
use crate::PFlag;

/// Most relays remembered: candidates and the relays that Advertisements led to.
const MAX_RELAYS: usize = 2 * MAX_CANDIDATES;

/// Learnt positions of the P flag.
#[derive(Debug, Default)]
pub(super) struct PFlags(BTreeMap<SocketAddr, PFlag>);

impl PFlags {
    /// Returns the position that this relay answered last.
    pub(super) fn get(&self, relay: SocketAddr) -> Option<PFlag> {
        self.0.get(&relay).copied()
    }

    /// Notes that the relay answered an MLD Request with the P flag at this position.
    pub(super) fn set(&mut self, relay: SocketAddr, p: PFlag) {
        if self.0.len() >= MAX_RELAYS && !self.0.contains_key(&relay) {
            // A forgotten relay is asked with both positions again.
            self.0.pop_first();
        }
        self.0.insert(relay, p);
    }
}
