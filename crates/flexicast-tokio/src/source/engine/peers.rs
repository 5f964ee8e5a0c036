//! The connections of the engine, by session and by connection ID.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::reset::Resets;
use crate::source::peer::Peer;

/// All connections, admitted or not.
#[derive(Default)]
pub(super) struct Peers {
    by_session: HashMap<u64, Peer>,
    by_id: HashMap<Vec<u8>, u64>,
    last_session: u64,
    /// Admitted connections: WELCOME is sent.
    served: usize,
    /// Connections that are not admitted yet, by network.
    unserved_by: HashMap<IpAddr, usize>,
    /// Changes of the paths that connections use.
    switches: u64,
}

impl Peers {
    pub(super) fn len(&self) -> usize {
        self.by_session.len()
    }

    /// Returns the number of connections that are not admitted yet.
    pub(super) fn unserved(&self) -> usize {
        self.by_session.len() - self.served
    }

    /// Returns the number of connections from one network that are not admitted yet.
    pub(super) fn unserved_of(&self, network: IpAddr) -> usize {
        self.unserved_by.get(&network).copied().unwrap_or(0)
    }

    /// Returns a number that grows whenever a connection uses another path.
    pub(super) fn switches(&self) -> u64 {
        self.switches
    }

    /// Notes that a connection uses another path.
    pub(super) fn note_switch(&mut self) {
        self.switches += 1;
    }

    pub(super) fn session_of(&self, id: &[u8]) -> Option<u64> {
        self.by_id.get(id).copied()
    }

    pub(super) fn get(&self, session: u64) -> Option<&Peer> {
        self.by_session.get(&session)
    }

    pub(super) fn get_mut(&mut self, session: u64) -> Option<&mut Peer> {
        self.by_session.get_mut(&session)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = u64> {
        self.by_session.keys().copied()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Peer)> {
        let peers = self.by_session.iter_mut();
        peers.map(|(session, peer)| (*session, peer))
    }

    /// Adds a connection and returns its session.
    pub(super) fn add(&mut self, peer: Peer) -> u64 {
        self.last_session += 1;
        let session = self.last_session;
        let ids = peer.ids.iter().map(|id| (id.clone(), session));
        self.by_id.extend(ids);
        *self.unserved_by.entry(peer.ip).or_default() += 1;
        self.by_session.insert(session, peer);
        session
    }

    /// Counts a connection as served.
    pub(super) fn serve(&mut self, session: u64) -> Option<&mut Peer> {
        let peer = self.by_session.get_mut(&session)?;
        peer.served = true;
        self.served += 1;
        leave_unserved(&mut self.unserved_by, peer.ip);
        Some(peer)
    }

    /// Gives the receiver spare connection IDs, and forgets those that it has retired.
    pub(super) fn renew_ids(&mut self, session: u64, resets: &Resets) {
        let Some(peer) = self.by_session.get_mut(&session) else {
            return;
        };
        let ids = peer.renew_ids(resets);
        for id in ids.gone {
            self.by_id.remove(&id);
        }
        let added = ids.added.into_iter().map(|id| (id, session));
        self.by_id.extend(added);
    }

    pub(super) fn remove(&mut self, session: u64) -> Option<Peer> {
        let peer = self.by_session.remove(&session)?;
        if peer.served {
            self.served -= 1;
        } else {
            leave_unserved(&mut self.unserved_by, peer.ip);
        }
        for id in &peer.ids {
            self.by_id.remove(id);
        }
        Some(peer)
    }

    pub(super) fn clear(&mut self) {
        *self = Peers::default();
    }
}

/// Stops counting a connection among those of its network that are not served yet.
fn leave_unserved(unserved_by: &mut HashMap<IpAddr, usize>, network: IpAddr) {
    if let Some(count) = unserved_by.get_mut(&network) {
        *count -= 1;
        if *count == 0 {
            unserved_by.remove(&network);
        }
    }
}
