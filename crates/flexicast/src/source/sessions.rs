//! All sessions of a source, and which of them serves each receiver.

use std::collections::{BTreeMap, HashMap, btree_map};

use uuid::Uuid;

use super::session::Session;
use super::subscription::Subscription;
use super::types::{ChannelIndex, SessionId};

/// Sessions of a source.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    /// The session of each receiver that is served.
    by_receiver: HashMap<Uuid, SessionId>,
    served: usize,
}

impl Sessions {
    pub(super) fn insert(&mut self, id: SessionId, session: Session) {
        self.all.insert(id, session);
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.all.get_mut(&id)
    }

    /// Returns a session's subscription to a channel.
    pub(super) fn subscription(
        &mut self,
        id: SessionId,
        channel: ChannelIndex,
    ) -> Option<&mut Subscription> {
        self.get_mut(id)?.subscription(channel)
    }

    /// Returns the channels of a session.
    pub(super) fn channels(&self, id: SessionId) -> Vec<ChannelIndex> {
        self.get(id).map(Session::channels).unwrap_or_default()
    }

    pub(super) fn iter(&self) -> btree_map::Iter<'_, SessionId, Session> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> btree_map::IterMut<'_, SessionId, Session> {
        self.all.iter_mut()
    }

    /// Returns the sessions for which `is` holds.
    pub(super) fn select(&self, is: impl Fn(&Session) -> bool) -> Vec<SessionId> {
        let selected = self.all.iter().filter(|(_, session)| is(session));
        selected.map(|(id, _)| *id).collect()
    }

    /// Returns the number of served receivers.
    pub(super) fn served(&self) -> usize {
        self.served
    }

    /// Returns the session that serves a receiver.
    pub(super) fn holder(&self, receiver: Uuid) -> Option<SessionId> {
        self.by_receiver.get(&receiver).copied()
    }

    /// Makes a session the one of a receiver; returns the one before.
    pub(super) fn set_holder(&mut self, receiver: Uuid, id: SessionId) -> Option<SessionId> {
        self.by_receiver.insert(receiver, id)
    }

    /// Begins to serve a session that said HELLO.
    pub(super) fn serve(&mut self, id: SessionId, held: bool, subscriptions: Vec<Subscription>) {
        if let Some(session) = self.all.get_mut(&id) {
            session.serve(held, subscriptions);
            self.served += 1;
        }
    }

    /// Removes a session, and its receiver unless another session serves it.
    pub(super) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.all.remove(&id)?;
        self.served -= usize::from(session.is_served());
        if let Some(receiver) = session.receiver()
            && self.holder(receiver) == Some(id)
        {
            self.by_receiver.remove(&receiver);
        }
        Some(session)
    }
}
