//! Operations on a running source: other endpoints, another flow or none, removal of receivers,
//! messages to all.

use std::time::Instant;

use bytes::Bytes;
use uuid::Uuid;

use super::audience::{Audience, Reception};
use super::session::Session;
use super::{ChannelIndex, SessionId, Source, close};
use crate::Cause;
use crate::control::{Announce, Control, Endpoint, MAX_RELAYS, RelayHint};
use crate::flow::FlowConfig;
use crate::protect::KeyError;

impl Source {
    fn announce_to_all(&mut self, c: ChannelIndex, announce: &Announce) {
        for (id, session) in &mut self.sessions {
            if session.subscription(c).is_some() {
                session.say(&Control::Announce(announce.clone()));
                self.dirty.insert(*id);
            }
        }
    }

    /// Announces the flow's current endpoints and relays to all receivers.
    pub(super) fn announce(&mut self, c: ChannelIndex) {
        if let Some(announce) = self.channels[c].announcement(c) {
            self.announce_to_all(c, &announce);
        }
    }

    /// The flow is sent to other multicast groups from now on: receivers join them; what is lost
    /// meanwhile is repaired.
    pub fn set_endpoints(&mut self, c: ChannelIndex, endpoints: Vec<Endpoint>, _now: Instant) {
        let Some(channel) = self.channels.get_mut(c) else {
            return;
        };
        channel.endpoints = endpoints;
        channel.announce_sequence += 1;
        self.announce(c);
    }

    /// Replaces the announced AMT relays, at most [`MAX_RELAYS`]; those that cannot be announced
    /// ([`RelayHint::is_valid`]) are left out. A receiver on a relay that is removed stays there as
    /// long as it works.
    pub fn set_relays(&mut self, relays: Vec<RelayHint>, _now: Instant) {
        let mut relays = relays;
        relays.retain(RelayHint::is_valid);
        relays.sort();
        relays.dedup();
        relays.truncate(MAX_RELAYS);
        if relays == self.relays {
            return;
        }
        self.relays = relays;
        for c in 0..self.channels.len() {
            let channel = &mut self.channels[c];
            channel.relays.clone_from(&self.relays);
            channel.announce_sequence += 1;
            self.announce(c);
        }
    }

    /// Moves all members to their unicast paths and says that the flow is gone.
    fn end_flow(&mut self, c: ChannelIndex, now: Instant) {
        let Some(channel) = self.channels.get_mut(c) else {
            return;
        };
        let Some(mut withdrawn) = channel.announcement(c) else {
            return;
        };
        channel.announce_sequence += 1;
        withdrawn.sequence = channel.announce_sequence;
        withdrawn.withdrawn = true;
        withdrawn.endpoints.clear();
        withdrawn.relays.clear();
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            let flow = self.channels[c].flow.as_mut();
            if let Some(departure) = flow.and_then(|f| f.dismiss(id)) {
                self.fell_back(id, c, Cause::FlowInvalid, departure, now);
            }
        }
        self.flow_events(c, now);
        self.announce_to_all(c, &withdrawn);
        let channel = &mut self.channels[c];
        channel.drop_flow();
        channel.audience = Audience::default();
        channel.secret_wanted = false;
        (channel.leave_rekey_at, channel.join_rekey_at) = (None, None);
        for session in self.sessions.values_mut() {
            if let Some(subscription) = session.subscription(c) {
                subscription.ladder.forget_flow();
                subscription.counted = Reception::default();
            }
        }
    }

    /// Withdraws a channel's flow: all its receivers are served on their unicast paths until
    /// [`Source::replace_flow`].
    pub fn withdraw(&mut self, c: ChannelIndex, now: Instant) {
        self.end_flow(c, now);
    }

    /// Withdraws a channel's flow, if it has one, and starts another one with a fresh Flow ID and
    /// secret: members go to unicast and prove themselves again.
    ///
    /// # Errors
    /// The cryptographic library refuses the key; the old flow, if there is one, goes on.
    pub fn replace_flow(
        &mut self,
        c: ChannelIndex,
        config: FlowConfig,
        now: Instant,
    ) -> Result<(), KeyError> {
        if c >= self.channels.len() {
            return Ok(());
        }
        // A key that cannot be made is found before anything is torn down.
        crate::protect::PacketKey::new(config.algorithm, &config.secret)?;
        self.end_flow(c, now);
        // Path ids of its own: acknowledgements of the old flow that are under way mean nothing for
        // this one.
        let index = self.next_flow_index;
        self.next_flow_index += 1;
        self.channels[c].begin_flow(config, index)?;
        let tracing = self.tracer.is_on();
        if let Some(flow) = &mut self.channels[c].flow {
            flow.set_tracing(tracing);
            #[cfg(feature = "fault-injection")]
            flow.set_fall_back_off(self.faults.fall_back_off);
        }
        self.announce(c);
        self.send_held(c);
        Ok(())
    }

    /// Removes a receiver: its connection is closed, and its channels begin another key epoch at
    /// once, so that it can read nothing that follows.
    pub fn eject(&mut self, id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let mut keyed = Vec::new();
        for subscription in session.subscriptions_mut() {
            // Later announcements are not for it.
            if subscription.ladder.key.revoke() {
                keyed.push(subscription.channel);
            }
        }
        for c in session.channels() {
            self.take_off_flow(id, c, Cause::Ejected, now);
            let session = self.sessions.get_mut(&id);
            if let Some(subscription) = session.and_then(|s| s.subscription(c)) {
                subscription.ladder.stop_listening(None);
            }
            self.recount(id, c);
        }
        self.close(id, close::EJECTED, "removed by the operator".into());
        for c in keyed {
            self.want_secret(c);
        }
    }

    /// Removes a receiver wherever it stands: each of its connections, and the keys that it still
    /// has of one that has just ended.
    pub fn eject_receiver(&mut self, receiver: Uuid, now: Instant) {
        let said = |s: &Session| s.receiver() == Some(receiver);
        let its = self.sessions.iter().filter(|(_, s)| said(s));
        let ids: Vec<_> = its.map(|(id, _)| *id).collect();
        for id in ids {
            self.eject(id, now);
        }
        for c in 0..self.channels.len() {
            let leavers = &self.channels[c].leavers;
            if leavers.contains(&Some(receiver)) || leavers.contains(&None) {
                self.want_secret(c);
            }
        }
    }

    /// Ends the connections of a receiver, which is welcome to come back at once. Returns how many
    /// there were.
    pub fn disconnect_receiver(&mut self, receiver: Uuid, now: Instant) -> usize {
        let its = |s: &Session| s.receiver() == Some(receiver) && !s.is_closing();
        let ids = self.sessions.iter().filter(|(_, s)| its(s));
        let ids: Vec<_> = ids.map(|(id, _)| *id).collect();
        for id in &ids {
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            // Its silence from here on is no fall-back.
            for subscription in session.subscriptions_mut() {
                subscription.ladder.disconnect();
            }
            for c in session.channels() {
                if let Some(flow) = self.channels[c].flow.as_mut() {
                    flow.dismiss(*id);
                }
                self.recount(*id, c);
                self.flow_events(c, now);
            }
            self.close(*id, close::RECONNECT, "disconnected by the operator".into());
        }
        ids.len()
    }

    /// The store has no updates of a channel before `first` any more.
    pub fn set_first(&mut self, c: ChannelIndex, first: u64) {
        if let Some(channel) = self.channels.get_mut(c) {
            channel.first = channel.first.max(first);
        }
    }

    /// Sends a message to all listeners of a channel's flow. It is neither repaired nor sent on
    /// unicast paths. Returns whether there was room for it.
    pub fn send_datagram(&mut self, c: ChannelIndex, data: Bytes) -> bool {
        let flow = self.channels.get_mut(c).and_then(|c| c.flow.as_mut());
        flow.is_some_and(|f| f.push_datagram(data))
    }

    /// Sends no more of an update on the flow: its members get the rest on their unicast paths.
    pub fn abandon(&mut self, c: ChannelIndex, seq: u64, now: Instant) {
        if let Some(flow) = self.channels.get_mut(c).and_then(|c| c.flow.as_mut()) {
            flow.abandon(seq);
        }
        self.flow_events(c, now);
    }
}
