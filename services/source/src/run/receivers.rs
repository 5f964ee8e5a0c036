//! Operators' decisions about receivers, carried out by the transport: revoked and forgotten ones
//! are disconnected, held ones stay on their own connections.

use std::collections::{BTreeMap, BTreeSet};

use store::StoreError;
use tracing::info;
use uuid::Uuid;

use super::context::Context;
use crate::database::answer;

/// Number of ticks in which a receiver is searched for: its admission may have been in progress.
const EJECTIONS: u8 = 3;

/// Receivers still to be disconnected.
#[derive(Debug, Default)]
pub(super) struct Ejections {
    /// Revoked receivers, with the number of ticks in which they still have to be searched for.
    revoked: BTreeMap<Uuid, u8>,
    /// The same for all receivers that the database does not know.
    forgotten: u8,
}

impl Ejections {
    /// Reads the decisions after a change of the database, and passes on which receivers are held.
    pub(super) async fn read(
        &mut self,
        context: &Context,
        is_first: bool,
    ) -> Result<(), StoreError> {
        let receivers = context.store.receivers();
        let ids = answer(receivers.revoked()).await?;
        let before = std::mem::take(&mut self.revoked);
        // At the start no receiver is connected.
        let fresh = if is_first { 0 } else { EJECTIONS };
        let ids = ids.into_iter();
        let ids = ids.map(|id| (id, before.get(&id).copied().unwrap_or(fresh)));
        self.revoked = ids.collect();
        self.forgotten = fresh;
        let held = answer(receivers.held()).await?;
        context.handle.hold(held.into_iter().collect()).await;
        Ok(())
    }

    /// Disconnects them: later updates are encrypted with keys that they do not get.
    pub(super) async fn eject(&mut self, context: &Context) -> Result<(), StoreError> {
        #[cfg(feature = "fault-injection")]
        if crate::faults::Fault::RevocationOff.is_injected() {
            return Ok(());
        }
        for (id, left) in self.revoked.iter_mut().filter(|(_, left)| **left > 0) {
            if *left == EJECTIONS {
                info!(receiver = %id, "revoked receiver disconnected");
            }
            *left -= 1;
            context.handle.eject(*id).await;
        }
        self.eject_forgotten(context).await
    }

    /// Disconnects receivers of which the database has no trace.
    async fn eject_forgotten(&mut self, context: &Context) -> Result<(), StoreError> {
        if self.forgotten == 0 {
            return Ok(());
        }
        // In this order: a connected receiver was stored before.
        let connected = context.handle.status().await.map(|status| status.receivers);
        let connected = connected.unwrap_or_default();
        let mut missing: BTreeSet<Uuid> = connected
            .iter()
            .filter_map(|receiver| receiver.id.parse().ok())
            .collect();
        if !missing.is_empty() {
            for known in answer(context.store.receivers().list()).await? {
                missing.remove(&known.id);
            }
        }
        self.forgotten -= 1;
        for id in missing {
            info!(receiver = %id, "forgotten receiver disconnected");
            context.handle.eject(id).await;
        }
        Ok(())
    }
}
