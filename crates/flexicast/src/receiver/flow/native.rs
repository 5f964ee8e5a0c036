//! The native join of a flow's groups (rung 1), and the announcements that begin and change it.

use std::time::{Duration, Instant};

use super::FlowDriver;
use super::backoff::{Backoff, REJOIN_FIRST};
use super::probe::Probe;
use super::replication::STAGGER;
use crate::control::{Action, Announce, Leg};
use crate::receiver::ReceiverEvent;
use crate::receiver::timer::FlowTimer;
use crate::{PathId, Rung};

/// State of a native join.
#[derive(Debug)]
enum JoinState {
    /// Not joined.
    Idle,
    /// The owner was asked to listen.
    Joined(Probe),
}

/// The native join of a flow.
#[derive(Debug)]
pub(super) struct NativeJoin {
    state: JoinState,
    rejoin: Backoff,
    /// When the last packet arrived.
    last_packet: Option<Instant>,
}

impl Default for NativeJoin {
    fn default() -> Self {
        NativeJoin {
            state: JoinState::Idle,
            // The first repetition comes after `REJOIN_FIRST`; these delays follow it.
            rejoin: Backoff::new(REJOIN_FIRST * 2),
            last_packet: None,
        }
    }
}

impl NativeJoin {
    pub(super) fn is_joined(&self) -> bool {
        matches!(self.state, JoinState::Joined(_))
    }

    /// Ends the join. Returns whether there was one.
    pub(super) fn leave(&mut self) -> bool {
        self.last_packet = None;
        let was = std::mem::replace(&mut self.state, JoinState::Idle);
        matches!(was, JoinState::Joined(_))
    }

    /// Returns the probe of a join.
    pub(super) fn probe(&mut self) -> Option<&mut Probe> {
        match &mut self.state {
            JoinState::Joined(probe) => Some(probe),
            JoinState::Idle => None,
        }
    }

    /// Notes that a packet has arrived. Returns whether it is the first one at this time: those of
    /// a batch arrive together.
    pub(super) fn arrived(&mut self, now: Instant) -> bool {
        self.rejoin.reset();
        if let Some(probe) = self.probe() {
            *probe = Probe::Settled;
        }
        self.last_packet.replace(now) != Some(now)
    }
}

impl FlowDriver<'_> {
    /// Whether this receiver can join one of the endpoints.
    fn can_join(&self) -> bool {
        let mut endpoints = self.flow.announce.endpoints.iter();
        endpoints.any(|endpoint| match endpoint.group.is_ipv4() {
            true => self.rungs.multicast_v4,
            false => self.rungs.multicast_v6,
        })
    }

    /// Follows a newer announcement.
    pub(super) fn announced(&mut self, announce: Announce, now: Instant) {
        let known = &self.flow.announce;
        let moved = known.endpoints != announce.endpoints;
        let relays = known.relays != announce.relays;
        let offered = announce.copies && !known.copies;
        self.flow.announce = announce;
        if offered && !moved && self.flow.membership.path().is_none() {
            self.want_replication(now + STAGGER);
        } else if moved && self.flow.participation.is_active() {
            if let Some(merged) = &mut self.flow.merged {
                merged.end(Leg::NATIVE);
            }
            if self.flow.native.leave() {
                self.stop(FlowTimer::Rejoin);
                self.events
                    .push_back(ReceiverEvent::Leave { flow: self.id });
                if !self.can_join() {
                    self.report(Action::Leave, PathId::UNICAST, None);
                }
            }
            self.join(now);
        }
        if relays && !moved {
            self.announced_tunnel(now);
        }
    }

    /// Begins to listen to the flow by the rungs that there are.
    pub(super) fn join(&mut self, now: Instant) {
        if self.stay_off(now) {
            return;
        }
        if self.can_join() {
            self.flow.native.state = JoinState::Joined(Probe::begin(now));
            self.set(FlowTimer::Rejoin, now + REJOIN_FIRST);
            self.report(Action::Join, PathId::UNICAST, None);
            self.events.push_back(ReceiverEvent::Join {
                flow: self.id,
                endpoints: self.flow.announce.endpoints.clone(),
            });
        }
        self.announced_tunnel(now);
        self.want_replication(now + self.head_start());
    }

    /// Returns the time that the better rungs get before replication is requested.
    fn head_start(&self) -> Duration {
        match self.flow.native.is_joined() || self.awaits_tunnel() {
            true => STAGGER,
            false => Duration::ZERO,
        }
    }

    /// Repeats a join that brings nothing, after longer and longer.
    pub(super) fn rejoin(&mut self, now: Instant) {
        let delay = self.flow.native.rejoin.next_delay();
        let delay = delay.mul_f64(self.jitter());
        self.set(FlowTimer::Rejoin, now + delay);
        if self.flow.native.is_joined() {
            self.judge_probe(Rung::Multicast, now);
            self.events
                .push_back(ReceiverEvent::Rejoin { flow: self.id });
        }
    }

    /// Retries every rung at once after a change of the host's network.
    pub(super) fn network_changed(&mut self, now: Instant) {
        self.flow.native.rejoin.reset();
        self.flow.replication.backoff.reset();
        if self.flow.native.is_joined() {
            self.set(FlowTimer::Rejoin, now + REJOIN_FIRST);
            self.events
                .push_back(ReceiverEvent::Rejoin { flow: self.id });
        }
        self.reopen_tunnels(now);
        if self.flow.membership.path().is_none() {
            self.want_replication(now + self.head_start());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_join_has_a_probe_and_can_be_left() {
        let mut native = NativeJoin::default();
        assert!(native.probe().is_none() && !native.leave());
        native.state = JoinState::Joined(Probe::begin(Instant::now()));
        native.arrived(Instant::now());
        assert!(matches!(native.probe(), Some(Probe::Settled)));
        assert!(native.leave() && !native.is_joined());
    }
}
