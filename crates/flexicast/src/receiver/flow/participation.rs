//! Whether a receiver takes part in a flow, and how it stops.

use std::time::Instant;

use super::FlowDriver;
use super::packet::InvalidPackets;
use super::proof::Proof;
use super::replication::AFTER_FALL_BACK;
use crate::control::Action;
use crate::receiver::ReceiverEvent;
use crate::receiver::timer::{FlowTimer, Timer};
use crate::{Cause, PathId, Rung};

/// Whether a receiver takes part in a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Participation {
    /// Listens by every rung that it has.
    #[default]
    Active,
    /// Kept on the unicast path by the source (protocol.md section 8.7).
    Held,
    /// Does without the flow for a time, because of what the flow brought. Nothing is read.
    Distrusted {
        /// Whether the source holds the receiver as well.
        held: bool,
    },
}

impl Participation {
    /// Whether anything is done to get the flow.
    pub(super) fn is_active(self) -> bool {
        self == Participation::Active
    }

    /// Whether the source keeps the receiver on the unicast path.
    pub(super) fn is_held(self) -> bool {
        let held = Participation::Distrusted { held: true };
        self == Participation::Held || self == held
    }

    /// Whether packets of the flow are read.
    pub(super) fn reads(self) -> bool {
        matches!(self, Participation::Active | Participation::Held)
    }

    /// Notes whether the source holds the receiver. Returns whether that is a change.
    fn set_held(&mut self, held: bool) -> bool {
        if self.is_held() == held {
            return false;
        }
        *self = match (*self, held) {
            (Participation::Distrusted { .. }, held) => Participation::Distrusted { held },
            (_, true) => Participation::Held,
            (_, false) => Participation::Active,
        };
        true
    }

    /// Notes whether the flow is trusted.
    fn set_trusted(&mut self, trusted: bool) {
        *self = match (trusted, self.is_held()) {
            (false, held) => Participation::Distrusted { held },
            (true, true) => Participation::Held,
            (true, false) => Participation::Active,
        };
    }
}

impl FlowDriver<'_> {
    /// Follows the source's word on whether the receiver does without the flow for now. A held
    /// receiver listens by no rung and proves nothing.
    pub(super) fn set_held(&mut self, held: bool, now: Instant) {
        if !self.flow.participation.set_held(held) {
            return;
        }
        match held {
            true => self.stop_listening(),
            false => self.join(now),
        }
    }

    /// Does without a flow that is not trusted for now. Returns whether that is so.
    pub(in crate::receiver) fn stay_off(&mut self, now: Instant) -> bool {
        let until = self.channel.trust.off_until(now);
        self.timers.put(Timer::Trust(self.id), until);
        self.flow.participation.set_trusted(until.is_none());
        if until.is_some() {
            self.stop_listening();
        }
        until.is_some()
    }

    /// Joins a flow that is trusted again, unless the source holds the receiver.
    pub(in crate::receiver) fn trust_again(&mut self, now: Instant) {
        self.flow.participation.set_trusted(true);
        if self.flow.participation.is_active() {
            self.join(now);
        }
    }

    /// Stops listening by every rung.
    fn stop_listening(&mut self) {
        self.stop(FlowTimer::Rejoin);
        self.stop(FlowTimer::Replication);
        self.flow.replication.requested = false;
        self.forget_legs();
        if self.flow.native.leave() {
            self.events
                .push_back(ReceiverEvent::Leave { flow: self.id });
        }
        self.close_tunnels();
    }

    /// Leaves a flow of which too much is invalid or forged.
    pub(super) fn leave(&mut self, now: Instant) {
        self.flow.invalid = InvalidPackets::since(self.channel.merge.next());
        let is_authenticated = self.flow.opener.is_some() || self.flow.signs_streams();
        match self.channel.merge.is_signed() || is_authenticated {
            true => self.step_back(now),
            false => self.abandon(now),
        }
    }

    /// Ends the membership of a flow that the source signs, whose updates or packets: nothing
    /// forged was handed on. The receiver goes on listening, and proves the flow again once it
    /// brings no more of that.
    fn step_back(&mut self, now: Instant) {
        let Some(path) = self.flow.membership.leave() else {
            return;
        };
        self.report(Action::Leave, path, Some(Cause::Forged));
        self.flow.suspicion.left = Some(path);
        self.moved(Rung::Unicast, Cause::Forged);
        // Other rungs bring what this one brings: they are for later, should it bring nothing.
        let later = now + AFTER_FALL_BACK.mul_f64(self.jitter());
        self.want_replication(later);
        self.want_tunnel(later, now);
        // Packets that carried them may have been acknowledged without having arrived.
        self.channel.merge.request_all_forged();
    }

    /// Leaves the flow of a source that signs nothing for a time, in which nothing of it is read.
    fn abandon(&mut self, now: Instant) {
        let jitter = self.jitter();
        self.channel.trust.lose(0, jitter, now);
        // By a forged number, true ones would be reconstructed wrong after the return.
        self.flow.trackers.clear();
        self.flow.proof = Proof::default();
        // The source gives them again with the next first JOIN.
        self.flow.keys.clear();
        self.stop(FlowTimer::KeyDiscard);
        self.forget_legs();
        self.drop_tunnels();
        self.report(Action::Leave, PathId::UNICAST, Some(Cause::FlowInvalid));
        if self.flow.membership.leave().is_some() {
            self.moved(Rung::Unicast, Cause::FlowInvalid);
        }
        self.stay_off(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_active_only_without_any_reason_to_stay_off() {
        let mut participation = Participation::default();
        assert!(participation.set_held(true) && !participation.is_active());
        assert!(participation.reads(), "packets under way still count");
        participation.set_trusted(false);
        assert_eq!(participation, Participation::Distrusted { held: true });
        assert!(!participation.reads());
        assert!(participation.set_held(false) && !participation.set_held(false));
        participation.set_trusted(true);
        assert!(participation.is_active());
    }
}
