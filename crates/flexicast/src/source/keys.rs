//! Distribution of keys: those in use to receivers that join, and those of new epochs to all
//! listeners (protocol.md section 5.3).

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::ladder::KeyState;
use super::scope::ChannelScope;
use super::timer::{ChannelTimer, Timer};
use super::types::{SessionId, SourceEvent};
use crate::FlowId;
use crate::control::{Control, Key, TagKey};
use crate::flow::{Epoch, FlowSender};
use crate::protect::FlowSecret;

/// Time within which receivers that left are locked out together.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);

fn key(flow: FlowId, algorithm: u64, epoch: &Epoch) -> Control {
    Control::Key(Key {
        flow,
        sequence: epoch.sequence,
        first_pn: epoch.first_pn,
        secret: epoch.secret.clone(),
        algorithm,
    })
}

impl ChannelScope<'_> {
    /// Answers a JOIN: with the keys that are in use, or on a private channel with one that
    /// protects only what follows, unless the receiver had it before.
    pub(super) fn give_key(&mut self, id: SessionId, now: Instant) {
        self.give_tag_key(id);
        let (Some(flow), Some(session)) = (&self.channel.flow, self.sessions.get_mut(id)) else {
            return;
        };
        let (flow_id, algorithm) = (flow.config().flow, flow.config().algorithm as u64);
        let unused = flow.next_pn() == flow.epoch().first_pn;
        let subscription = session.subscription(self.index);
        let known = subscription.is_some_and(|s| s.ladder.key.is_newest(flow.epoch().sequence));
        let mut epochs = Vec::new();
        if !self.channel.private || unused || known {
            epochs.push(flow.epoch());
        }
        epochs.extend(flow.next_epoch());
        let newest = epochs.last().map(|e| e.sequence);
        for epoch in epochs {
            session.say(&key(flow_id, algorithm, epoch));
        }
        self.give_feedback_key(id);
        let Some(subscription) = self.subscription(id) else {
            return;
        };
        match newest {
            Some(sequence) => subscription.ladder.key.send(sequence),
            None => {
                subscription.ladder.key = KeyState::Awaited;
                let timer = self.timer(ChannelTimer::JoinRekey);
                let at = self.channel.rekeying.join_at(now);
                self.timers.bring_forward(timer, at);
                self.rekey_if_due(now);
            }
        }
    }

    /// Gives a receiver a key for its tags, where packets are authenticated: before the flow's, so
    /// that the first packet that it can open can be judged.
    pub(super) fn give_tag_key(&mut self, id: SessionId) {
        let (Some(flow), Some(session)) = (&mut self.channel.flow, self.sessions.get_mut(id))
        else {
            return;
        };
        if let Some((receiver, secret)) = flow.admit_to_tags(id) {
            let flow = flow.config().flow;
            session.say(&Control::TagKey(TagKey {
                flow,
                receiver,
                secret,
            }));
        }
    }

    fn timer(&self, timer: ChannelTimer) -> Timer {
        Timer::Channel(self.index, timer)
    }

    /// Notes that a receiver that holds the key is gone: it is locked out soon, unless it comes
    /// back.
    pub(super) fn note_leaver(&mut self, receiver: Option<Uuid>, now: Instant) {
        if self.channel.flow.is_none() {
            return;
        }
        self.channel.rekeying.note_leaver(receiver);
        let timer = self.timer(ChannelTimer::LeaveRekey);
        self.timers.set_once(timer, now + LEAVES_WITHIN);
    }

    /// Asks for a secret if it is time for another epoch.
    pub(super) fn rekey_if_due(&mut self, now: Instant) {
        let (join, leave) = (
            self.timer(ChannelTimer::JoinRekey),
            self.timer(ChannelTimer::LeaveRekey),
        );
        if self.timers.take_expired(join, now) {
            self.want_secret();
        }
        if self.timers.take_expired(leave, now) && self.channel.rekeying.has_leavers() {
            self.want_secret();
        }
    }

    /// Asks for a secret if the current epoch has protected nearly as many packets as it may.
    pub(super) fn check_worn_out(&mut self) {
        let worn = |f: &FlowSender| f.is_worn_out() && f.next_epoch().is_none();
        if self.channel.flow.as_ref().is_some_and(worn) {
            self.want_secret();
        }
    }

    /// Asks the owner for the secret of another epoch, now or as soon as one can begin.
    pub(super) fn want_secret(&mut self) {
        let Some(flow) = &self.channel.flow else {
            return;
        };
        let is_announced = flow.next_epoch().is_some();
        if self.channel.rekeying.request(is_announced) {
            let channel = self.index;
            self.out.push(SourceEvent::SecretWanted { channel });
        }
    }

    /// Announces a key epoch to all listeners.
    pub(super) fn rekey(&mut self, secret: FlowSecret, now: Instant) {
        self.channel.rekeying.answered();
        let Some(flow) = &mut self.channel.flow else {
            return;
        };
        if flow.announce_epoch(secret, now).is_err() {
            return;
        }
        self.channel.rekeying.announced(now);
        let epoch = flow.next_epoch().unwrap_or(flow.epoch());
        let (sequence, flow_id) = (epoch.sequence, flow.config().flow);
        let frame = key(flow_id, flow.config().algorithm as u64, epoch);
        self.stop_rekey_timers();
        self.out.counters.rekeys += 1;
        for (id, session) in self.sessions.iter_mut() {
            if session.is_closing() {
                continue;
            }
            let Some(subscription) = session.subscription(self.index) else {
                continue;
            };
            if subscription.ladder.key != KeyState::None {
                subscription.ladder.key.send(sequence);
                session.say(&frame);
                self.out.mark_dirty(*id);
            }
        }
        self.flow_events(now);
    }

    /// Stops the timers of key epochs, which have no meaning for another flow or epoch.
    pub(super) fn stop_rekey_timers(&mut self) {
        for timer in [ChannelTimer::JoinRekey, ChannelTimer::LeaveRekey] {
            self.timers.stop(self.timer(timer));
        }
    }
}
