//! Receivers that the operator keeps on their unicast paths (protocol.md section 8.7).

use std::collections::BTreeSet;
use std::time::Instant;

use uuid::Uuid;

use super::Source;
use super::scope::ChannelScope;
use super::session::Session;
use super::types::SessionId;
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
        for (id, session) in self.sessions.iter_mut() {
            let receiver = session.receiver();
            let is = receiver.is_some_and(|receiver| self.held.contains(&receiver));
            if session.set_held(is) {
                changed.push((*id, is));
            }
        }
        for (id, held) in changed {
            for c in self.sessions.channels(id) {
                let Some(mut scope) = self.scope(c) else {
                    continue;
                };
                match held {
                    true => scope.hold(id, now),
                    false => scope.release(id),
                }
            }
        }
    }

    /// The receivers that are kept on their unicast paths, connected or not.
    pub fn held(&self) -> &BTreeSet<Uuid> {
        &self.held
    }

    /// Notifies a receiver that has just connected whether it is held.
    pub(super) fn send_held_to(&mut self, id: SessionId) {
        if !self.sessions.get(id).is_some_and(Session::is_held) {
            return;
        }
        for c in self.sessions.channels(id) {
            if let Some(mut scope) = self.scope(c) {
                scope.send_path(id, Cause::Held);
            }
        }
    }
}

impl ChannelScope<'_> {
    fn hold(&mut self, id: SessionId, now: Instant) {
        let flow = self.channel.flow.as_mut();
        match flow.and_then(|f| f.dismiss(id)) {
            // This says so, too.
            Some(departure) => self.end_membership(id, Cause::Held, departure, now),
            None => self.send_path(id, Cause::Held),
        }
        if let Some(subscription) = self.subscription(id) {
            subscription.ladder.hold();
        }
        self.recount(id);
        self.flow_events(now);
    }

    fn release(&mut self, id: SessionId) {
        if let Some(subscription) = self.subscription(id) {
            subscription.ladder.release();
        }
        self.send_path(id, Cause::Left);
        self.recount(id);
    }

    /// Sends a receiver its move to unicast with the cause: packets from now on prove that the flow
    /// arrives.
    fn send_path(&mut self, id: SessionId, cause: Cause) {
        let (Some(flow), Some(session)) = (&self.channel.flow, self.sessions.get_mut(id)) else {
            return;
        };
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        let (flow, next) = (flow.config().flow, flow.next_pn());
        let ladder = &mut subscription.ladder;
        let notice = ladder.notice(flow, PathId::UNICAST, next, cause, None);
        session.say(&Control::Rung(notice));
        self.out.mark_dirty(id);
    }

    /// Notifies the held receivers of a channel that they are held from its new flow, too.
    pub(super) fn send_held(&mut self) {
        for id in self.sessions.select(Session::is_held) {
            self.send_path(id, Cause::Held);
        }
    }
}
