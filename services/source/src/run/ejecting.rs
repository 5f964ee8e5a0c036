//! Receivers that were revoked or forgotten, and may be connected still.

use std::collections::{BTreeMap, BTreeSet};

use flexicast_tokio::source::SourceHandle;
use store::{Store, StoreError};
use tracing::info;
use uuid::Uuid;

use super::supervisor::answer;

/// A receiver is looked for in so many ticks: its admission may have been under way.
const EJECTIONS: u8 = 3;

/// Receivers still to be disconnected.
#[derive(Debug, Default)]
pub(super) struct Ejecting {
    /// Revoked receivers, and in how many ticks they still have to be looked for.
    revoked: BTreeMap<Uuid, u8>,
    /// In how many ticks it still has to be looked for those that the database does not know.
    forgotten: u8,
}

impl Ejecting {
    /// Something was changed in the database.
    pub(super) async fn read(&mut self, store: &Store, is_first: bool) -> Result<(), StoreError> {
        let ids = answer(store.receivers().revoked()).await?;
        let before = std::mem::take(&mut self.revoked);
        // At the start no receiver is connected.
        let fresh = if is_first { 0 } else { EJECTIONS };
        let ids = ids.into_iter();
        let ids = ids.map(|id| (id, before.get(&id).copied().unwrap_or(fresh)));
        self.revoked = ids.collect();
        self.forgotten = fresh;
        Ok(())
    }

    /// Removes them: what follows is encrypted with keys that they do not get.
    pub(super) async fn eject(
        &mut self,
        store: &Store,
        handle: &SourceHandle,
    ) -> Result<(), StoreError> {
        #[cfg(feature = "fault-injection")]
        if crate::faults::Fault::RevocationOff.is_injected() {
            return Ok(());
        }
        for (id, left) in self.revoked.iter_mut().filter(|(_, left)| **left > 0) {
            if *left == EJECTIONS {
                info!(receiver = %id, "revoked receiver disconnected");
            }
            *left -= 1;
            handle.eject(*id).await;
        }
        self.eject_forgotten(store, handle).await
    }

    /// Forgotten receivers leave no trace in the database but their absence.
    async fn eject_forgotten(
        &mut self,
        store: &Store,
        handle: &SourceHandle,
    ) -> Result<(), StoreError> {
        if self.forgotten == 0 {
            return Ok(());
        }
        // In this order: a connected receiver was stored before.
        let connected = handle.status().await.map(|status| status.receivers);
        let connected = connected.unwrap_or_default();
        let mut missing: BTreeSet<Uuid> = connected
            .iter()
            .filter_map(|receiver| receiver.id.parse().ok())
            .collect();
        if !missing.is_empty() {
            for known in answer(store.receivers().list()).await? {
                missing.remove(&known.id);
            }
        }
        self.forgotten -= 1;
        for id in missing {
            info!(receiver = %id, "forgotten receiver disconnected");
            handle.eject(id).await;
        }
        Ok(())
    }
}
