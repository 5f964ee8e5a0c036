//! Receivers that the operator keeps on their unicast paths (protocol.md section 8.7).

use std::collections::BTreeSet;
use std::time::Instant;

use uuid::Uuid;

use super::session::Session;
use super::{ChannelIndex, SessionId, Source};
use crate::control::Control;
use crate::{Cause, PathId};

impl Source {
    /// Holds exactly these receivers on their unicast paths until the next call. Members among them
    /// fall back with the cause [`Cause::Held`]; a released receiver may prove itself again.
    /// Receivers that are not connected count as well: they are held when they connect.
    pub fn set_held(&mut self, held: BTreeSet<Uuid>, now: Instant) {
        if held == self.held {
            return;
        }
        self.held = held;
        let mut changed = Vec::new();
        for (id, session) in &mut self.sessions {
            let receiver = session.receiver();
            let is = receiver.is_some_and(|receiver| self.held.contains(&receiver));
            if session.set_held(is) {
                changed.push((*id, is));
            }
        }
        for (id, held) in changed {
            match held {
                true => self.hold(id, now),
                false => self.release(id),
            }
        }
    }

    /// The receivers that are kept on their unicast paths, connected or not.
    pub fn held(&self) -> &BTreeSet<Uuid> {
        &self.held
    }

    fn channels_of(&self, id: SessionId) -> Vec<ChannelIndex> {
        let session = self.sessions.get(&id);
        session.map(Session::channels).unwrap_or_default()
    }

    fn hold(&mut self, id: SessionId, now: Instant) {
        for c in self.channels_of(id) {
            let flow = self.channels[c].flow.as_mut();
            match flow.and_then(|f| f.dismiss(id)) {
                // This says so, too.
                Some(departure) => self.fell_back(id, c, Cause::Held, departure, now),
                None => self.send_path(id, c, Cause::Held),
            }
            let session = self.sessions.get_mut(&id);
            if let Some(subscription) = session.and_then(|s| s.subscription(c)) {
                subscription.ladder.hold();
            }
            self.recount(id, c);
            self.flow_events(c, now);
        }
    }

    fn release(&mut self, id: SessionId) {
        for c in self.channels_of(id) {
            let session = self.sessions.get_mut(&id);
            if let Some(subscription) = session.and_then(|s| s.subscription(c)) {
                subscription.ladder.release();
            }
            self.send_path(id, c, Cause::Left);
            self.recount(id, c);
        }
    }

    /// Sends a receiver its move to unicast with the cause: packets from now on prove that the flow
    /// arrives.
    fn send_path(&mut self, id: SessionId, c: ChannelIndex, cause: Cause) {
        let (Some(flow), Some(session)) = (&self.channels[c].flow, self.sessions.get_mut(&id))
        else {
            return;
        };
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        let (flow, next) = (flow.config().flow, flow.next_pn());
        let notice = subscription
            .ladder
            .notice(flow, PathId::UNICAST, next, cause, None);
        session.say(&Control::Rung(notice));
        self.dirty.insert(id);
    }

    /// Notifies a receiver that has just connected whether it is held.
    pub(super) fn send_held_to(&mut self, id: SessionId) {
        if self.sessions.get(&id).is_some_and(Session::is_held) {
            for c in self.channels_of(id) {
                self.send_path(id, c, Cause::Held);
            }
        }
    }

    /// Notifies the held receivers of a channel that they are held from its new flow, too.
    pub(super) fn send_held(&mut self, c: ChannelIndex) {
        let held = self.sessions.iter().filter(|(_, s)| s.is_held());
        let held: Vec<_> = held.map(|(id, _)| *id).collect();
        for id in held {
            self.send_path(id, c, Cause::Held);
        }
    }
}
