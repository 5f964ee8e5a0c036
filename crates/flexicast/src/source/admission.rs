//! Admission: HELLOs, the owner's verdicts on them, and two receivers with one id.

use std::net::SocketAddr;
use std::time::Instant;

use uuid::Uuid;

use super::Source;
use super::outputs::Outputs;
use super::session::Session;
use super::subscription::Subscription;
use super::types::{FIRST_UPDATES, SessionId, SourceEvent, channel_number, close};
use crate::Cursor;
use crate::control::{
    Control, Hello, Refusal, SOURCE_ANSWERS_NEED, SOURCE_KEEPS_TIME, SOURCE_SENDS_KEYS,
    SOURCE_TAKES_LEGS, Welcome, WelcomeChannel,
};

impl Source {
    /// Whether a HELLO makes sense here.
    pub(super) fn examine(&self, hello: &Hello) -> Result<(), (Refusal, String)> {
        if hello.channels.is_empty() {
            return Err((Refusal::BadHello, "no channel is asked for".into()));
        }
        for (at, (name, _)) in hello.channels.iter().enumerate() {
            if hello.channels[..at].iter().any(|(other, _)| other == name) {
                let reason = format!("the channel \"{name}\" is asked for twice");
                return Err((Refusal::BadHello, reason));
            }
        }
        Ok(())
    }

    pub(super) fn refuse(&mut self, id: SessionId, refusal: Refusal, reason: String) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.say(&Control::Refused {
            code: refusal as u64,
            reason: reason.clone(),
        });
        self.close(id, close::REFUSED, reason);
    }

    /// The decision about a HELLO: serves the receiver or turns it away.
    pub fn authorised(
        &mut self,
        id: SessionId,
        verdict: Result<(), (Refusal, String)>,
        now: Instant,
    ) {
        let session = self.sessions.get(id);
        if !session.is_some_and(Session::awaits_verdict) || self.disputes.has_newcomer(id) {
            return;
        }
        match verdict {
            Ok(()) => self.admit(id, now),
            Err((refusal, reason)) => self.refuse(id, refusal, reason),
        }
    }

    /// Serves a receiver that may receive, if nothing else prevents it.
    fn admit(&mut self, id: SessionId, now: Instant) {
        let session = self.sessions.get(id).filter(|s| s.awaits_verdict());
        let Some(hello) = session.and_then(Session::hello).cloned() else {
            return;
        };
        // Only admitted receivers learn which channels exist.
        let absent = hello
            .channels
            .iter()
            .filter_map(|(n, _)| self.channels.absence(n));
        // A permanent refusal outweighs a temporary one.
        let absent = absent.min_by_key(|(refusal, _)| *refusal as u64);
        if let Some((refusal, reason)) = absent {
            return self.refuse(id, refusal, reason);
        }
        let holder = self.sessions.holder(hello.receiver);
        if let Some(holder) = holder.filter(|holder| self.is_a_copy(id, *holder)) {
            self.disputes.open(id, holder, now, &mut self.timers);
            let probe = SourceEvent::Probe { session: holder };
            return self.out.push(probe);
        }
        // Verdicts come in any order: an older connection does not throw out a newer one.
        if holder.is_some_and(|newer| newer > id) {
            let reason = "the same receiver has connected again".into();
            return self.close(id, close::SUPERSEDED, reason);
        }
        let served = self.sessions.served();
        if served - usize::from(holder.is_some()) >= self.limits.receivers {
            self.out.counters.too_many += 1;
            let reason = format!("{served} receivers are served already");
            return self.refuse(id, Refusal::TooMany, reason);
        }
        self.supersede(id, hello.receiver, now);
        let verifies = self.sessions.get(id).is_some_and(Session::verifies);
        let mut welcome = Vec::new();
        let mut subscriptions = Vec::new();
        for (name, cursor) in &hello.channels {
            let Some(index) = self.channels.named(name) else {
                continue;
            };
            let Some(channel) = self.channels.get(index) else {
                continue;
            };
            // A cursor beyond the head is from a history that this store does not have: the
            // receiver sees that by the head, and starts over.
            let known = |c: &&Cursor| c.incarnation == channel.incarnation && c.seq <= channel.head;
            let asked = cursor.and_then(|cursor| cursor.asked());
            let cursor = cursor.as_ref().filter(|c| c.asked().is_none());
            let said = cursor.map_or(0, |c| c.seq);
            let same = |c: &&Cursor| c.incarnation == channel.incarnation;
            if let Some(ahead) = cursor.filter(same).filter(|c| !known(c)) {
                self.out.counters.hellos_ahead += 1;
                self.out.push(SourceEvent::Ahead {
                    session: id,
                    channel: index,
                    seq: ahead.seq,
                });
            }
            let cursor = cursor.filter(known);
            let first = match cursor {
                Some(cursor) => cursor.seq + 1,
                None => (channel.head + 1).saturating_sub(asked.unwrap_or(FIRST_UPDATES)),
            };
            let first = first.max(channel.first).min(channel.head + 1);
            let outputs = Outputs::new(first, cursor.copied(), said);
            let mut subscription = Subscription::new(index, !verifies, outputs, now);
            subscription.delivery.backlog.start(first, channel.head);
            subscriptions.push(subscription);
            welcome.push(WelcomeChannel {
                channel: channel_number(index),
                name: name.clone(),
                incarnation: channel.incarnation,
                head: channel.head,
                first,
            });
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let mut capabilities = vec![SOURCE_ANSWERS_NEED, SOURCE_SENDS_KEYS];
        capabilities.extend(self.clock.map(|_| SOURCE_KEEPS_TIME));
        capabilities.push(SOURCE_TAKES_LEGS);
        session.say(&Control::Welcome(Welcome {
            channels: welcome,
            capabilities,
        }));
        let indices = || {
            subscriptions
                .iter()
                .map(|subscription| subscription.channel)
        };
        if session.verifies() {
            let channels = indices().filter_map(|index| Some((index, self.channels.get(index)?)));
            let lineages = channels.filter_map(|(index, channel)| channel.lineage_frame(index));
            lineages.for_each(|lineage| session.say(&lineage));
            // Behind all of them: a receiver that pins a key waits for it.
            session.say(&Control::Keys(self.endorsements.clone()));
        }
        for index in indices() {
            let Some(channel) = self.channels.get_mut(index) else {
                continue;
            };
            channel.direct.insert(id);
            let announce = channel.announcement(index);
            if let Some(announce) = announce.filter(|_| channel.is_for(session)) {
                session.say(&Control::Announce(announce));
            }
        }
        // There will be no more of them; most receivers have one, and a new list has room for four.
        subscriptions.shrink_to_fit();
        let held = self.held.contains(&hello.receiver);
        self.sessions.serve(id, held, subscriptions);
        self.out.mark_dirty(id);
        if !self.addresses.is_empty() {
            self.send_addresses_to(id);
        }
        self.send_held_to(id);
    }

    /// Closes the older connection of a receiver that reconnects.
    fn supersede(&mut self, id: SessionId, receiver: Uuid, now: Instant) {
        let old = self.sessions.set_holder(receiver, id);
        if let Some(session) = old.filter(|old| *old != id) {
            self.closed(session, now);
            let reason = "the same receiver has connected again".to_owned();
            self.out.push(SourceEvent::Close {
                session,
                code: close::SUPERSEDED,
                reason,
            });
        }
    }

    /// Whether both sessions said which run of the program they belong to, and these differ: a copy
    /// and its original, if both live.
    fn is_a_copy(&self, id: SessionId, holder: SessionId) -> bool {
        let instance = |id| self.sessions.get(id).and_then(Session::instance);
        let (its, ours) = (instance(id), instance(holder));
        let closing = self.sessions.get(holder).is_none_or(Session::is_closing);
        !closing && its.is_some() && ours.is_some() && its != ours
    }

    /// Whether it matters that something arrives from this session: see [`SourceEvent::Probe`].
    pub fn is_probed(&self, session: SessionId) -> bool {
        self.disputes.has_holder(session)
    }

    /// Reports an authentic packet of a probed session from this address: the session is alive, and
    /// the newcomer with its id is refused.
    pub fn heard(&mut self, session: SessionId, from: SocketAddr) {
        for id in self.disputes.newcomers(session) {
            self.disputes.end(id, &mut self.timers);
            self.out.counters.ids_in_use += 1;
            let name = self.receiver(id).map_or("", |(_, name)| name);
            let reason = format!(
                "a receiver with the id of \"{name}\" is connected from {from} already; \
                 give each receiver a data folder of its own"
            );
            self.refuse(id, Refusal::IdInUse, reason);
        }
    }

    /// Gives the id of a holder that has not shown to be alive to the newcomer.
    pub(super) fn settle_disputes(&mut self, now: Instant) {
        while let Some(session) = self.disputes.silent_holder(now, &self.timers) {
            // This admits all that wait for it.
            self.closed(session, now);
            self.out.push(SourceEvent::Close {
                session,
                code: close::SUPERSEDED,
                reason: "the same receiver has connected again".into(),
            });
        }
    }

    /// Ends a session: receivers waiting for its id wait no longer.
    pub(super) fn end_disputes(&mut self, session: SessionId, now: Instant) {
        self.disputes.end(session, &mut self.timers);
        for id in self.disputes.newcomers(session) {
            self.disputes.end(id, &mut self.timers);
            self.admit(id, now);
        }
    }
}
