//! Start of key epochs, and distribution of their keys (protocol.md section 5.3).

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::ladder::KeyState;
use super::{ChannelIndex, SessionId, Source, SourceEvent};
use crate::FlowId;
use crate::control::{Control, Key};
use crate::flow::{Epoch, FlowSender};
use crate::protect::FlowSecret;

/// Time within which receivers that left are locked out together (design section 5).
const LEAVES_WITHIN: Duration = Duration::from_secs(10);
/// Joins of a private channel are let in together, once in this time.
const JOINS_WITHIN: Duration = Duration::from_secs(1);
/// Bound on remembered leavers; beyond it, the rekey happens even if some return.
const MAX_LEAVERS: usize = 1024;

fn key(flow: FlowId, algorithm: u64, epoch: &Epoch) -> Control {
    Control::Key(Key {
        flow,
        sequence: epoch.sequence,
        first_pn: epoch.first_pn,
        secret: FlowSecret::clone(&epoch.secret),
        algorithm,
    })
}

impl Source {
    /// Answers a JOIN: with the keys that are in use, or on a private channel with one that
    /// protects only what follows.
    pub(super) fn give_key(&mut self, id: SessionId, c: ChannelIndex, now: Instant) {
        let channel = &mut self.channels[c];
        let (Some(flow), Some(session)) = (&channel.flow, self.sessions.get_mut(&id)) else {
            return;
        };
        let (flow_id, algorithm) = (flow.config().flow, flow.config().algorithm as u64);
        let unused = flow.next_pn() == flow.epoch().first_pn;
        let mut epochs = Vec::new();
        if !channel.private || unused {
            epochs.push(flow.epoch());
        }
        epochs.extend(flow.next_epoch());
        let newest = epochs.last().map(|e| e.sequence);
        for epoch in epochs {
            session.say(&key(flow_id, algorithm, epoch));
        }
        let Some(subscription) = session.subscription(c) else {
            return;
        };
        match newest {
            Some(sequence) => subscription.ladder.key.send(sequence),
            None => {
                subscription.ladder.key = KeyState::Awaited;
                let earliest = channel.last_rekey.map_or(now, |at| at + JOINS_WITHIN);
                let at = earliest.max(now);
                channel.join_rekey_at = Some(channel.join_rekey_at.map_or(at, |a| a.min(at)));
                self.rekey_if_due(c, now);
            }
        }
    }

    /// A receiver that holds a channel's key is gone: it is locked out soon, unless it comes back.
    pub(super) fn note_leaver(&mut self, c: ChannelIndex, receiver: Option<Uuid>, now: Instant) {
        let channel = &mut self.channels[c];
        if channel.flow.is_none() {
            return;
        }
        let known = channel.leavers.len() < MAX_LEAVERS;
        channel.leavers.insert(receiver.filter(|_| known));
        channel.leave_rekey_at.get_or_insert(now + LEAVES_WITHIN);
    }

    /// Asks for a secret if it is time for another epoch.
    pub(super) fn rekey_if_due(&mut self, c: ChannelIndex, now: Instant) {
        let channel = &mut self.channels[c];
        if channel.join_rekey_at.is_some_and(|at| at <= now) {
            channel.join_rekey_at = None;
            self.want_secret(c);
        }
        let channel = &mut self.channels[c];
        if channel.leave_rekey_at.is_some_and(|at| at <= now) {
            channel.leave_rekey_at = None;
            if !channel.leavers.is_empty() {
                self.want_secret(c);
            }
        }
    }

    pub(super) fn check_worn_out(&mut self, c: ChannelIndex) {
        let worn = |f: &FlowSender| f.is_worn_out() && f.next_epoch().is_none();
        if self.channels[c].flow.as_ref().is_some_and(worn) {
            self.want_secret(c);
        }
    }

    pub(super) fn want_secret(&mut self, c: ChannelIndex) {
        let Some(channel) = self.channels.get_mut(c) else {
            return;
        };
        let Some(flow) = &channel.flow else {
            return;
        };
        if flow.next_epoch().is_some() {
            // A third epoch would have to push the announced one into use before the members have
            // confirmed it, and so throw them all off.
            channel.rekey_again = true;
            return;
        }
        if !std::mem::replace(&mut channel.secret_wanted, true) {
            self.events
                .push_back(SourceEvent::SecretWanted { channel: c });
        }
    }

    /// Announces a key epoch with a fresh random secret to all listeners; it is in use once all
    /// members have confirmed it, or after a second. The answer to [`SourceEvent::SecretWanted`]. A
    /// secret that the cryptographic library refuses leaves everything as it is.
    pub fn rekey(&mut self, c: ChannelIndex, secret: FlowSecret, now: Instant) {
        let Some(channel) = self.channels.get_mut(c) else {
            return;
        };
        channel.secret_wanted = false;
        let Some(flow) = &mut channel.flow else {
            return;
        };
        if flow.announce_epoch(secret, now).is_err() {
            return;
        }
        channel.last_rekey = Some(now);
        channel.leavers.clear();
        channel.leave_rekey_at = None;
        channel.join_rekey_at = None;
        self.counters.rekeys += 1;
        let epoch = flow.next_epoch().unwrap_or(flow.epoch());
        let (sequence, flow_id) = (epoch.sequence, flow.config().flow);
        let frame = key(flow_id, flow.config().algorithm as u64, epoch);
        for (id, session) in &mut self.sessions {
            if session.is_closing() {
                continue;
            }
            let Some(subscription) = session.subscription(c) else {
                continue;
            };
            if subscription.ladder.key != KeyState::None {
                subscription.ladder.key.send(sequence);
                session.say(&frame);
                self.dirty.insert(*id);
            }
        }
        self.flow_events(c, now);
    }

    /// Begins another key epoch although none is due.
    pub fn request_rekey(&mut self, c: ChannelIndex, _now: Instant) {
        self.want_secret(c);
    }
}
