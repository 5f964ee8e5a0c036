//! One channel of a source together with everything that a change of its receivers touches.

use std::time::Instant;

use rand::rngs::SmallRng;

use super::audience::Reception;
use super::channel::Channel;
use super::feedback::Feedback;
use super::mass::MASS_WITHIN;
use super::outbox::Outbox;
use super::sessions::Sessions;
use super::subscription::Subscription;
use super::timer::{ChannelTimer, Timer, TimerTable};
#[cfg(feature = "fault-injection")]
use super::types::Faults;
use super::types::{ChannelIndex, Limits, SessionId, SourceEvent};
use crate::Cause;
use crate::control::{Announce, Control};
use crate::deadline::UnixClock;

/// A channel, its receivers, and the source's output, timers and limits. The moves of receivers,
/// the distribution of keys and the announcements are methods of it.
pub(super) struct ChannelScope<'a> {
    pub(super) index: ChannelIndex,
    pub(super) channel: &'a mut Channel,
    pub(super) sessions: &'a mut Sessions,
    pub(super) feedback: &'a mut Feedback,
    pub(super) out: &'a mut Outbox,
    pub(super) timers: &'a mut TimerTable,
    pub(super) rng: &'a mut SmallRng,
    pub(super) limits: &'a Limits,
    /// Clock by which deadlines run, if they are kept.
    pub(super) clock: Option<UnixClock>,
    #[cfg(feature = "fault-injection")]
    pub(super) faults: Faults,
}

impl ChannelScope<'_> {
    /// Returns a receiver's subscription to the channel.
    pub(super) fn subscription(&mut self, id: SessionId) -> Option<&mut Subscription> {
        self.sessions.subscription(id, self.index)
    }

    /// Whether members get what they lost, as they always do but for an injected fault.
    pub(super) fn repairs(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.faults.repair_off;
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    /// Notes that the reception of a session may have changed: it is counted before anything else
    /// is sent, once for all changes of an instant.
    pub(super) fn recount(&mut self, id: SessionId) {
        self.channel.audience.mark_stale(id);
    }

    /// Counts the receptions that may have changed.
    pub(super) fn settle(&mut self, now: Instant) {
        let stale = self.channel.audience.take_stale();
        if stale.is_empty() {
            return;
        }
        for id in stale {
            self.count_reception(id);
        }
        if let Some(flow) = &mut self.channel.flow {
            flow.set_listeners(self.channel.audience.listeners(), now);
        }
        self.retune(now);
    }

    /// Adjusts the members' acknowledgement delay, and announces it.
    pub(super) fn retune(&mut self, now: Instant) {
        if self.channel.retune(self.limits.channel_acks_per_s, now) {
            self.announce();
        }
    }

    /// Brings the audience up to date with one session, which may be gone.
    fn count_reception(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let held = session.is_held();
        let reachable = session.validated && !session.is_closing();
        let Some(subscription) = session.subscription(self.index) else {
            return;
        };
        // Several may have asked before they were counted, or one may be back whose place was given
        // away. Those beyond the limit get no copies, and so prove nothing.
        let audience = &self.channel.audience;
        let has_place =
            subscription.counted.replicated || audience.replicas().len() < self.limits.replicas;
        // Nothing is sent for the sake of a receiver that takes nothing from the flow.
        let is = Reception {
            listens: !held && !subscription.ladder.is_paused() && subscription.ladder.listens(),
            replicated: !held && reachable && has_place && subscription.ladder.is_replicated(),
        };
        let was = std::mem::replace(&mut subscription.counted, is);
        self.channel.audience.count(id, was, is);
    }

    /// Sends an announcement to all receivers of the channel.
    pub(super) fn announce_to_all(&mut self, announce: &Announce) {
        for (id, session) in self.sessions.iter_mut() {
            if self.channel.is_for(session) && session.subscription(self.index).is_some() {
                session.say(&Control::Announce(announce.clone()));
                self.out.mark_dirty(*id);
            }
        }
    }

    /// Announces the flow's current endpoints and relays to all receivers.
    pub(super) fn announce(&mut self) {
        if let Some(announce) = self.channel.announcement(self.index) {
            self.announce_to_all(&announce);
        }
    }

    /// Counts a member that fell back by the flow's own timers.
    pub(super) fn count_fall_back(&mut self, cause: Cause, now: Instant) {
        let flow = self.channel.flow.as_ref();
        let members = flow.map_or(0, |flow| flow.members());
        if self.channel.mass.count(cause, members) {
            let timer = Timer::Channel(self.index, ChannelTimer::MassFallBack);
            self.timers.set(timer, now + MASS_WITHIN);
        }
    }

    /// Reports fall-backs that began together, if they are many and their time is over.
    pub(super) fn report_mass_fall_back(&mut self, now: Instant) {
        let timer = Timer::Channel(self.index, ChannelTimer::MassFallBack);
        if self.timers.take_expired(timer, now)
            && let Some((members, cause)) = self.channel.mass.take()
        {
            self.out.counters.mass_fall_backs += 1;
            self.out.push(SourceEvent::MassFallBack {
                channel: self.index,
                members,
                cause,
            });
        }
    }
}
