//! Admission: HELLOs, the owner's verdicts on them, and two receivers with one id.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::overdue::Outputs;
use super::session::Session;
use super::subscription::Subscription;
use super::types::channel_number;
use super::{FIRST_UPDATES, SessionId, Source, SourceEvent, close};
use crate::Cursor;
use crate::control::{Control, Hello, Refusal, SOURCE_ANSWERS_NEED, Welcome, WelcomeChannel};

/// Time for the current holder of an id to show that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// A newcomer whose id is taken, until it is known whether its owner lives.
#[derive(Debug)]
pub(super) struct IdDispute {
    /// Current holder of the id.
    holder: SessionId,
    pub(super) until: Instant,
    /// By how much it may still be put off, since this source was away itself.
    grace: Duration,
}

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
        let Some(session) = self.sessions.get_mut(&id) else {
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
        let session = self.sessions.get(&id);
        if !session.is_some_and(Session::awaits_verdict) || self.disputes.contains_key(&id) {
            return;
        }
        match verdict {
            Ok(()) => self.admit(id, now),
            Err((refusal, reason)) => self.refuse(id, refusal, reason),
        }
    }

    /// Serves a receiver that may receive, if nothing else stands in its way.
    fn admit(&mut self, id: SessionId, now: Instant) {
        let session = self.sessions.get(&id).filter(|s| s.awaits_verdict());
        let Some(hello) = session.and_then(Session::hello).cloned() else {
            return;
        };
        // Only admitted receivers learn which channels exist.
        let absent = hello.channels.iter().filter_map(|(n, _)| self.absence(n));
        // A permanent refusal outweighs a temporary one.
        let absent = absent.min_by_key(|(refusal, _)| *refusal as u64);
        if let Some((refusal, reason)) = absent {
            return self.refuse(id, refusal, reason);
        }
        let holder = self.by_receiver.get(&hello.receiver).copied();
        if let Some(holder) = holder.filter(|holder| self.is_a_copy(id, *holder)) {
            let until = now + SIGN_OF_LIFE;
            let doubt = IdDispute {
                holder,
                until,
                grace: SIGN_OF_LIFE / 2,
            };
            self.disputes.insert(id, doubt);
            let probe = SourceEvent::Probe { session: holder };
            return self.events.push_back(probe);
        }
        // Verdicts come in any order: an older connection does not throw out a newer one.
        if holder.is_some_and(|newer| newer > id) {
            let reason = "the same receiver has connected anew".into();
            return self.close(id, close::SUPERSEDED, reason);
        }
        let replaces = usize::from(self.by_receiver.contains_key(&hello.receiver));
        if self.served - replaces >= self.limits.receivers {
            self.counters.too_many += 1;
            let reason = format!("{} receivers are served already", self.served);
            return self.refuse(id, Refusal::TooMany, reason);
        }
        self.supersede(id, hello.receiver, now);
        let mut welcome = Vec::new();
        let mut subscriptions = Vec::new();
        for (name, cursor) in &hello.channels {
            let Some(index) = self.channel_named(name) else {
                continue;
            };
            let channel = &self.channels[index];
            // A cursor beyond the head is from a history that this store does not have: the
            // receiver sees that by the head, and starts over.
            let known = |c: &&Cursor| c.incarnation == channel.incarnation && c.seq <= channel.head;
            let asked = cursor.and_then(|cursor| cursor.asked());
            let cursor = cursor.as_ref().filter(|c| c.asked().is_none());
            let said = cursor.map_or(0, |c| c.seq);
            let same = |c: &&Cursor| c.incarnation == channel.incarnation;
            if let Some(ahead) = cursor.filter(same).filter(|c| !known(c)) {
                self.counters.hellos_ahead += 1;
                self.events.push_back(SourceEvent::Ahead {
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
            let mut subscription = Subscription::new(index, outputs, now);
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
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        self.served += 1;
        session.say(&Control::Welcome(Welcome {
            channels: welcome,
            capabilities: vec![SOURCE_ANSWERS_NEED],
        }));
        for subscription in &subscriptions {
            let index = subscription.channel;
            if let Some(announce) = self.channels[index].announcement(index) {
                session.say(&Control::Announce(announce));
            }
        }
        session.serve(self.held.contains(&hello.receiver), subscriptions);
        self.dirty.insert(id);
        self.send_held_to(id);
    }

    /// Closes the older connection of a receiver that reconnects.
    fn supersede(&mut self, id: SessionId, receiver: Uuid, now: Instant) {
        let old = self.by_receiver.insert(receiver, id);
        if let Some(session) = old.filter(|old| *old != id) {
            self.closed(session, now);
            let reason = "the same receiver has connected anew".to_owned();
            self.events.push_back(SourceEvent::Close {
                session,
                code: close::SUPERSEDED,
                reason,
            });
        }
    }

    /// Whether both sessions said which run of the program they belong to, and these differ: a copy
    /// and its original, if both live.
    fn is_a_copy(&self, id: SessionId, holder: SessionId) -> bool {
        let instance = |id| self.sessions.get(&id).and_then(Session::instance);
        let (its, ours) = (instance(id), instance(holder));
        let closing = self.sessions.get(&holder).is_none_or(Session::is_closing);
        !closing && its.is_some() && ours.is_some() && its != ours
    }

    /// Whether it matters that something arrives from this session: see [`SourceEvent::Probe`].
    pub fn is_probed(&self, session: SessionId) -> bool {
        self.disputes.values().any(|doubt| doubt.holder == session)
    }

    /// Reports an authentic packet of a probed session from this address: the session is alive, and
    /// the newcomer with its id is refused.
    pub fn heard(&mut self, session: SessionId, from: SocketAddr) {
        let copies = self.disputes.iter().filter(|(_, d)| d.holder == session);
        let copies: Vec<_> = copies.map(|(id, _)| *id).collect();
        for id in copies {
            self.disputes.remove(&id);
            self.counters.ids_in_use += 1;
            let name = self.receiver(id).map_or("", |(_, name)| name);
            let reason = format!(
                "a receiver with the id of \"{name}\" is connected from {from} already; \
                 give each receiver a data folder of its own"
            );
            self.refuse(id, Refusal::IdInUse, reason);
        }
    }

    /// This source was away itself: what shows that the owner of an id lives may still be to be
    /// read, or under way.
    pub(super) fn extend_id_disputes(&mut self, away: Duration, now: Instant) {
        for doubt in self.disputes.values_mut() {
            let more = away.min(doubt.grace);
            doubt.grace -= more;
            doubt.until = doubt.until.max(now) + more;
        }
    }

    /// Gives the id of a holder that has not shown to be alive to the newcomer.
    pub(super) fn settle_disputes(&mut self, now: Instant) {
        let due = |doubt: &&IdDispute| doubt.until <= now;
        while let Some(session) = self.disputes.values().find(due).map(|doubt| doubt.holder) {
            // This admits all that wait for it.
            self.closed(session, now);
            self.events.push_back(SourceEvent::Close {
                session,
                code: close::SUPERSEDED,
                reason: "the same receiver has connected anew".into(),
            });
        }
    }

    /// Ends a session: receivers waiting for its id wait no longer.
    pub(super) fn end_disputes(&mut self, session: SessionId, now: Instant) {
        self.disputes.remove(&session);
        let waiting = self.disputes.iter().filter(|(_, d)| d.holder == session);
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            self.disputes.remove(&id);
            self.admit(id, now);
        }
    }
}
