//! Operations on a running source: other endpoints, another flow or none, removal of receivers,
//! messages to all.

use std::time::Instant;

use signing::{Endorsement, Lineage, MAX_ENDORSEMENTS};
use uuid::Uuid;

use super::Source;
use super::audience::Reception;
use super::scope::ChannelScope;
use super::session::Session;
use super::types::{ChannelIndex, SessionId, close};
use crate::Cause;
use crate::control::{
    Control, Endpoint, MAX_RELAYS, MAX_SOURCE_ADDRESSES, RelayHint, SourceAddress,
};
use crate::flow::FlowConfig;
use crate::protect::{FlowSecret, KeyError};

impl Source {
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
            if let Some(channel) = self.channels.get_mut(c) {
                channel.relays.clone_from(&self.relays);
                channel.announce_sequence += 1;
                self.announce(c);
            }
        }
    }

    /// Announces where receivers reach the source, at most [`MAX_SOURCE_ADDRESSES`]; those that
    /// cannot be announced ([`SourceAddress::is_valid`]) are left out. A receiver on one that is
    /// leaving moves to one that is not, and one that loses its connection tries all.
    pub fn set_addresses(&mut self, mut addresses: Vec<SourceAddress>) {
        addresses.retain(SourceAddress::is_valid);
        addresses.sort_by_key(|address| (address.at, address.leaving));
        addresses.dedup_by_key(|address| address.at);
        // One that leaves goes last. Half of the places are for these, if there are so many.
        addresses.sort_by_key(|address| address.leaving);
        let staying = addresses.partition_point(|address| !address.leaving);
        let leaving = addresses.len() - staying;
        let kept = MAX_SOURCE_ADDRESSES - leaving.min(MAX_SOURCE_ADDRESSES / 2);
        addresses.drain(kept.min(staying)..staying);
        addresses.truncate(MAX_SOURCE_ADDRESSES);
        if addresses == self.addresses {
            return;
        }
        self.addresses = addresses;
        for id in self.sessions.select(Session::is_served) {
            self.send_addresses_to(id);
        }
    }

    pub(super) fn send_addresses_to(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.say(&Control::Addresses(self.addresses.clone()));
            self.out.mark_dirty(id);
        }
    }

    fn announce(&mut self, c: ChannelIndex) {
        if let Some(mut scope) = self.scope(c) {
            scope.announce();
        }
    }

    /// Announces a key epoch with a fresh random secret to all listeners; it is in use once all
    /// members have confirmed it, or after a second. The answer to
    /// [`super::SourceEvent::SecretWanted`]. A secret that the cryptographic library refuses leaves
    /// everything as it is.
    pub fn rekey(&mut self, c: ChannelIndex, secret: FlowSecret, now: Instant) {
        if let Some(mut scope) = self.scope(c) {
            scope.rekey(secret, now);
        }
    }

    /// Begins another key epoch although none is due.
    pub fn request_rekey(&mut self, c: ChannelIndex, _now: Instant) {
        if let Some(mut scope) = self.scope(c) {
            scope.want_secret();
        }
    }

    /// Withdraws a channel's flow: all its receivers are served on their unicast paths until
    /// [`Source::replace_flow`].
    pub fn withdraw(&mut self, c: ChannelIndex, now: Instant) {
        if let Some(mut scope) = self.scope(c) {
            scope.end_flow(now);
        }
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
        let Some(mut scope) = self.scope(c) else {
            return Ok(());
        };
        // A key that cannot be made is found before anything is torn down.
        crate::protect::PacketKey::new(config.algorithm, &config.secret)?;
        scope.end_flow(now);
        let index = self.channels.take_flow_index();
        if let Some(channel) = self.channels.get_mut(c) {
            channel.begin_flow(config, index)?;
        }
        self.set_up_flow(c);
        if let Some(mut scope) = self.scope(c) {
            scope.announce();
            scope.send_held();
        }
        Ok(())
    }

    /// Passes the settings that all flows of the source share on to a new one.
    pub(super) fn set_up_flow(&mut self, c: ChannelIndex) {
        let channel = self.channels.get_mut(c);
        if let Some(flow) = channel.and_then(|c| c.flow.as_mut()) {
            flow.set_tracing(self.tracer.is_on());
            #[cfg(feature = "fault-injection")]
            {
                flow.set_fall_back_off(self.faults.fall_back_off);
                flow.set_eviction_off(self.faults.eviction_off);
                flow.set_sizes_unconfirmed(self.faults.sizes_unconfirmed);
            }
        }
    }

    /// Removes a receiver: its connection is closed, and its channels begin another key epoch at
    /// once, so that it can read nothing that follows.
    pub fn eject(&mut self, id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let receiver = session.receiver();
        let mut keyed = Vec::new();
        for subscription in session.subscriptions_mut() {
            // Later announcements are not for it.
            if subscription.ladder.key.revoke() {
                keyed.push(subscription.channel);
            }
        }
        for c in self.sessions.channels(id) {
            if let Some(mut scope) = self.scope(c) {
                scope.eject(id, now);
            }
        }
        self.close(id, close::EJECTED, "removed by the operator".into());
        for c in keyed {
            self.request_rekey(c, now);
        }
        if let Some(receiver) = receiver {
            self.lock_out(receiver);
        }
    }

    /// Begins another key epoch in the channels whose key a receiver that is gone, or that does
    /// without the flow, still has.
    fn lock_out(&mut self, receiver: Uuid) {
        for c in 0..self.channels.len() {
            if let Some(mut scope) = self.scope(c)
                && scope.channel.rekeying.has_leaver(receiver)
            {
                scope.want_secret();
            }
        }
    }

    /// Removes a receiver wherever it is: each of its connections, and the keys that it still has
    /// of one that has just ended.
    pub fn eject_receiver(&mut self, receiver: Uuid, now: Instant) {
        let is_its = |s: &Session| s.receiver() == Some(receiver);
        for id in self.sessions.select(is_its) {
            self.eject(id, now);
        }
        self.lock_out(receiver);
    }

    /// Ends the connections of a receiver, which is welcome to come back at once. Returns how many
    /// there were.
    pub fn disconnect_receiver(&mut self, receiver: Uuid, now: Instant) -> usize {
        let is_its = |s: &Session| s.receiver() == Some(receiver) && !s.is_closing();
        let ids = self.sessions.select(is_its);
        for id in &ids {
            for c in self.sessions.channels(*id) {
                if let Some(mut scope) = self.scope(c) {
                    scope.disconnect(*id, now);
                }
            }
            self.close(*id, close::RECONNECT, "disconnected by the operator".into());
        }
        ids.len()
    }

    /// Sets which keys sign a channel's updates, before the first update that a new one signs is
    /// published. Receivers that verify are notified. Returns false, and changes nothing, where a
    /// channel that is served would begin or end to have keys: receivers that do not verify may
    /// have its flow.
    pub fn set_lineage(&mut self, c: ChannelIndex, lineage: Lineage) -> bool {
        let is_on = |s: &Session| s.subscriptions().iter().any(|s| s.channel == c);
        let is_served = !self.sessions.select(is_on).is_empty();
        let Some(channel) = self.channels.get_mut(c) else {
            return false;
        };
        let is_other = channel.lineage.eras().is_empty() != lineage.eras().is_empty();
        if is_other && is_served {
            return false;
        }
        channel.lineage = lineage;
        for (id, session) in self.sessions.iter_mut().filter(|(_, s)| is_on(s)) {
            if let Some(frame) = channel.lineage_frame(c).filter(|_| session.verifies()) {
                session.say(&frame);
                self.out.mark_dirty(*id);
            }
        }
        true
    }

    /// Sets which signing keys vouch for which others; call it before [`Source::set_lineage`] with
    /// a key that is new. The last [`MAX_ENDORSEMENTS`] count. Receivers that verify are notified.
    pub fn set_endorsements(&mut self, mut endorsements: Vec<Endorsement>) {
        endorsements.drain(..endorsements.len().saturating_sub(MAX_ENDORSEMENTS));
        if endorsements == self.endorsements {
            return;
        }
        self.endorsements = endorsements;
        let served = |(_, session): &(_, &mut Session)| session.is_served() && session.verifies();
        for (id, session) in self.sessions.iter_mut().filter(served) {
            session.say(&Control::Keys(self.endorsements.clone()));
            self.out.mark_dirty(*id);
        }
    }

    /// The store has no updates of a channel before `first` any more.
    pub fn set_first(&mut self, c: ChannelIndex, first: u64) {
        if let Some(channel) = self.channels.get_mut(c) {
            channel.first = channel.first.max(first);
        }
    }

    /// Sends no more of an update on the flow: its members get the rest on their unicast paths.
    pub fn abandon(&mut self, c: ChannelIndex, seq: u64, now: Instant) {
        let Some(mut scope) = self.scope(c) else {
            return;
        };
        if let Some(flow) = &mut scope.channel.flow {
            flow.abandon(seq);
        }
        scope.flow_events(now);
    }
}

impl ChannelScope<'_> {
    /// Moves all members to their unicast paths and announces that the flow is gone.
    fn end_flow(&mut self, now: Instant) {
        let Some(mut withdrawn) = self.channel.announcement(self.index) else {
            return;
        };
        self.channel.announce_sequence += 1;
        withdrawn.sequence = self.channel.announce_sequence;
        withdrawn.withdrawn = true;
        withdrawn.endpoints.clear();
        withdrawn.relays.clear();
        for id in self.sessions.select(|_| true) {
            let flow = self.channel.flow.as_mut();
            if let Some(departure) = flow.and_then(|f| f.dismiss(id)) {
                self.end_membership(id, Cause::FlowInvalid, departure, now);
            }
        }
        self.flow_events(now);
        self.announce_to_all(&withdrawn);
        self.channel.drop_flow();
        self.feedback.forget_channel(self.index);
        self.stop_rekey_timers();
        for (_, session) in self.sessions.iter_mut() {
            if let Some(subscription) = session.subscription(self.index) {
                subscription.ladder.forget_flow();
                subscription.counted = Reception::default();
            }
        }
    }

    fn eject(&mut self, id: SessionId, now: Instant) {
        self.take_off_flow(id, Cause::Ejected, now);
        if let Some(flow) = &mut self.channel.flow {
            flow.remove_from_tags(id);
        }
        if let Some(subscription) = self.subscription(id) {
            subscription.ladder.stop_listening(None);
        }
        self.recount(id);
    }

    /// Takes a receiver off the flow without a fall-back, of which its silence from here on is
    /// none.
    fn disconnect(&mut self, id: SessionId, now: Instant) {
        if let Some(subscription) = self.subscription(id) {
            subscription.ladder.disconnect();
        }
        if let Some(flow) = &mut self.channel.flow {
            flow.dismiss(id);
        }
        self.recount(id);
        self.flow_events(now);
    }
}
