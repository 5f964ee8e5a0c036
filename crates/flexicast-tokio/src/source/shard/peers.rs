//! The connections of a shard, by session and by connection ID.

use std::collections::HashMap;

use super::peer::Peer;
use crate::reset::ConnectionIds;

/// All connections of a shard, admitted or not.
#[derive(Default)]
pub(super) struct Peers {
    /// Boxed: a connection takes 9 KB, and a table is filled by half to seven eighths.
    by_session: HashMap<u64, Box<Peer>>,
    by_id: HashMap<Vec<u8>, u64>,
}

impl Peers {
    pub(super) fn session_of(&self, id: &[u8]) -> Option<u64> {
        self.by_id.get(id).copied()
    }

    pub(super) fn get_mut(&mut self, session: u64) -> Option<&mut Peer> {
        self.by_session.get_mut(&session).map(Box::as_mut)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = u64> {
        self.by_session.keys().copied()
    }

    pub(super) fn add(&mut self, session: u64, peer: Peer) {
        let ids = peer.ids.iter().map(|id| (id.clone(), session));
        self.by_id.extend(ids);
        self.by_session.insert(session, Box::new(peer));
    }

    /// Gives the receiver spare connection IDs, and forgets those that it has retired.
    pub(super) fn renew_ids(&mut self, session: u64, ids: &ConnectionIds) {
        let Some(peer) = self.by_session.get_mut(&session) else {
            return;
        };
        let changes = peer.renew_ids(ids);
        for id in changes.gone {
            self.by_id.remove(&id);
        }
        let added = changes.added.into_iter().map(|id| (id, session));
        self.by_id.extend(added);
    }

    pub(super) fn remove(&mut self, session: u64) -> Option<Peer> {
        let peer = self.by_session.remove(&session)?;
        for id in &peer.ids {
            self.by_id.remove(id);
        }
        Some(*peer)
    }
}
