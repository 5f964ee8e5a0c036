//! A flow's tunnel through an AMT relay (rung 2): when it is opened, retried and closed
//! (protocol.md section 8.5).

use std::time::{Duration, Instant};

use super::FlowDriver;
use super::backoff::{Backoff, REJOIN_FIRST};
use super::probe::Probe;
use super::replication::STAGGER;
use crate::control::{Action, Leg};
use crate::receiver::timer::{Timer, TunnelTimer};
use crate::receiver::{Receiver, ReceiverEvent};
use crate::{Cause, FlowId, Rung};

/// Time that the native join has after the flow's key to bring a packet before a relay is asked:
/// where multicast works, no relay is bothered.
const NATIVE_FIRST: Duration = Duration::from_millis(300);
/// Maximum time between the native join and the request to a relay.
const AT_THE_LATEST: Duration = Duration::from_secs(1);
/// Time for which native packets that do not make this receiver a member keep a relay away.
const NATIVE_PATIENCE: Duration = Duration::from_secs(3);
/// Time for which the tunnel of a receiver that has come to native multicast stays open: the flow
/// may yet be lost there.
const HOLD: Duration = Duration::from_secs(10);

/// State of a tunnel.
#[derive(Debug)]
enum TunnelState {
    /// Not wanted. [`TunnelTimer`]s are stopped.
    Closed,
    /// To be opened when [`TunnelTimer::Retry`] expires.
    Wanted {
        /// When it was first wanted; `None` if native packets are not to keep the relay away.
        since: Option<Instant>,
    },
    /// The owner was asked for it. [`TunnelTimer::Retry`] doubts it, unless native multicast works;
    /// then [`TunnelTimer::Close`] closes it.
    Open {
        probe: Probe,
        retry: Backoff,
        /// Whether the receiver fell back from it without knowing whether its relay is to blame.
        fell: bool,
    },
}

/// The tunnel of a flow.
#[derive(Debug)]
pub(super) struct Tunnel {
    state: TunnelState,
    /// When the last packet came natively.
    last_native: Option<Instant>,
}

impl Default for Tunnel {
    fn default() -> Self {
        Tunnel {
            state: TunnelState::Closed,
            last_native: None,
        }
    }
}

impl Tunnel {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, TunnelState::Open { .. })
    }

    /// Returns the probe of an open tunnel.
    pub(super) fn probe(&mut self) -> Option<&mut Probe> {
        match &mut self.state {
            TunnelState::Open { probe, .. } => Some(probe),
            TunnelState::Closed | TunnelState::Wanted { .. } => None,
        }
    }

    /// Opens the tunnel, unless it is open.
    fn open(&mut self, now: Instant) {
        if !self.is_open() {
            self.state = TunnelState::Open {
                probe: Probe::begin(now),
                retry: Backoff::new(REJOIN_FIRST),
                fell: false,
            };
        }
    }

    /// Closes the tunnel. Returns whether it was open.
    fn close(&mut self) -> bool {
        let was = std::mem::replace(&mut self.state, TunnelState::Closed);
        matches!(was, TunnelState::Open { .. })
    }

    /// Notes that a tunnel that is not open is wanted.
    fn want(&mut self, now: Instant) {
        match &mut self.state {
            TunnelState::Closed => self.state = TunnelState::Wanted { since: Some(now) },
            TunnelState::Wanted { since } => *since = since.or(Some(now)),
            TunnelState::Open { .. } => {}
        }
    }

    /// Wants another relay in place of the one that is lost.
    fn lost(&mut self) {
        match &mut self.state {
            TunnelState::Closed => self.state = TunnelState::Wanted { since: None },
            TunnelState::Wanted { .. } => {}
            TunnelState::Open { retry, .. } => retry.reset(),
        }
    }

    /// Whether a relay is not asked for now, because packets come natively.
    fn waits_for_native(&self, now: Instant) -> bool {
        let TunnelState::Wanted { since: Some(since) } = self.state else {
            return false;
        };
        let native = self.last_native.is_some_and(|at| now < at + NATIVE_FIRST);
        native && now < since + NATIVE_PATIENCE
    }

    /// Returns whether the receiver fell back from it, and forgets that.
    fn take_fell(&mut self) -> bool {
        match &mut self.state {
            TunnelState::Open { fell, .. } => std::mem::take(fell),
            TunnelState::Closed | TunnelState::Wanted { .. } => false,
        }
    }
}

impl FlowDriver<'_> {
    fn set_tunnel(&mut self, timer: TunnelTimer, at: Instant) {
        self.timers.set(Timer::Tunnel(self.id, timer), at);
    }

    fn stop_tunnel(&mut self, timer: TunnelTimer) {
        self.timers.stop(Timer::Tunnel(self.id, timer));
    }

    pub(super) fn is_tunnel_set(&self, timer: TunnelTimer) -> bool {
        self.timers.is_set(Timer::Tunnel(self.id, timer))
    }

    /// Whether one of the endpoints can be had through a relay.
    fn can_tunnel(&self) -> bool {
        let mut groups = self.flow.announce.endpoints.iter();
        groups.any(|e| self.rungs.tunnels(e.group.is_ipv4()))
    }

    /// Follows an announcement with other endpoints or relays.
    pub(super) fn announced_tunnel(&mut self, now: Instant) {
        let possible = self.can_tunnel() && self.flow.participation.is_active();
        if self.flow.tunnel.is_open() {
            match possible {
                true => self.open_tunnel(now),
                false => self.close_tunnel(),
            }
        } else if possible && (self.flow.rung() != Rung::Multicast || self.flow.merged.is_some()) {
            let wait = match self.flow.native.is_joined() {
                // The key, or a packet, comes first.
                true => AT_THE_LATEST,
                false => Duration::ZERO,
            };
            self.want_tunnel(now + wait, now);
        }
    }

    /// Opens the tunnel at `at`, unless it is open.
    pub(super) fn want_tunnel(&mut self, at: Instant, now: Instant) {
        let possible = self.can_tunnel() && self.flow.participation.is_active();
        if possible && !self.flow.tunnel.is_open() {
            self.hasten_tunnel(at, now);
        }
    }

    /// Opens a tunnel that is not open by `at`.
    fn hasten_tunnel(&mut self, at: Instant, now: Instant) {
        self.flow.tunnel.want(now);
        let timer = Timer::Tunnel(self.id, TunnelTimer::Retry);
        let known = self.timers.get(timer);
        self.timers
            .set(timer, known.map_or(at, |known| known.min(at)));
    }

    /// Gives the native join its chance: with the flow's first key, its packets are on their way.
    pub(super) fn on_first_key(&mut self, now: Instant) {
        if !self.flow.tunnel.is_open() && self.is_tunnel_set(TunnelTimer::Retry) {
            self.hasten_tunnel(now + NATIVE_FIRST, now);
        }
    }

    /// Notes a native packet. It keeps a relay away for a moment, or, where this receiver is a
    /// member by native multicast, for good.
    pub(super) fn on_native_packet(&mut self, member: bool, now: Instant) {
        let tunnel = &mut self.flow.tunnel;
        tunnel.last_native = Some(now);
        let is_alone = self.flow.merged.is_none();
        if member && is_alone && matches!(tunnel.state, TunnelState::Wanted { .. }) {
            tunnel.close();
            self.stop_tunnel(TunnelTimer::Retry);
        }
    }

    /// Notes a packet that came through the relay.
    pub(super) fn on_tunnelled_packet(&mut self, now: Instant) {
        let TunnelState::Open { probe, retry, fell } = &mut self.flow.tunnel.state else {
            return;
        };
        retry.reset();
        (*probe, *fell) = (Probe::Settled, false);
        if self.is_tunnel_set(TunnelTimer::Retry) {
            let quiet = self.flow.quiet_span();
            self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST.max(quiet));
        }
    }

    /// Follows a move from `was` to the current rung, by the source or by the receiver itself.
    pub(super) fn tunnel_after_move(&mut self, was: Rung, now: Instant) {
        let rung = self.flow.rung();
        let retries = self.is_tunnel_set(TunnelTimer::Retry);
        if rung == Rung::Multicast && self.flow.merged.is_some() {
            // The tunnel is the other leg.
            self.stop_tunnel(TunnelTimer::Close);
            if !self.flow.tunnel.is_open() {
                self.want_tunnel(now, now);
            } else if !retries {
                self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST);
            }
            return;
        }
        match (&mut self.flow.tunnel.state, rung) {
            (TunnelState::Open { fell, .. }, Rung::Multicast) => {
                *fell = false;
                self.stop_tunnel(TunnelTimer::Retry);
                self.set_tunnel(TunnelTimer::Close, now + HOLD);
            }
            (state, Rung::Multicast) => {
                *state = TunnelState::Closed;
                self.stop_tunnel(TunnelTimer::Retry);
            }
            (TunnelState::Open { fell, retry, .. }, Rung::Unicast) if was == Rung::Amt => {
                *fell = true;
                retry.reset();
                self.stop_tunnel(TunnelTimer::Close);
                // Perhaps the relay is dead: the owner asks it.
                self.set_tunnel(TunnelTimer::Retry, now);
            }
            (TunnelState::Open { .. }, _) => {
                self.stop_tunnel(TunnelTimer::Close);
                if !retries {
                    self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST);
                }
            }
            _ if was == Rung::Multicast || !retries => {
                let wait = match self.flow.native.is_joined() {
                    true => NATIVE_FIRST,
                    false => Duration::ZERO,
                };
                self.want_tunnel(now + wait, now);
            }
            _ => {}
        }
    }

    /// Requests a tunnel from the owner, with the flow's endpoints and relays.
    fn open_tunnel(&mut self, now: Instant) {
        self.flow.tunnel.open(now);
        self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST);
        self.report(Action::Join, self.flow.path(Rung::Amt), None);
        let announce = &self.flow.announce;
        let endpoints = announce.endpoints.iter();
        let endpoints = endpoints.filter(|e| self.rungs.tunnels(e.group.is_ipv4()));
        self.events.push_back(ReceiverEvent::Tunnel {
            flow: self.id,
            channel: self.channel.name.clone(),
            endpoints: endpoints.copied().collect(),
            relays: announce.relays.clone(),
        });
    }

    /// Closes the tunnel and reports that to the source.
    pub(super) fn close_tunnel(&mut self) {
        self.end_tunnel(|flow| flow.report(Action::Leave, flow.flow.path(Rung::Amt), None));
    }

    /// Closes the tunnel of a flow that is given up as a whole.
    pub(super) fn drop_tunnel(&mut self) {
        self.end_tunnel(|_| ());
    }

    fn end_tunnel(&mut self, was_open: impl FnOnce(&mut Self)) {
        self.stop_tunnel(TunnelTimer::Close);
        self.stop_tunnel(TunnelTimer::Retry);
        if let Some(merged) = &mut self.flow.merged {
            merged.end(Leg::RELAY);
        }
        if self.flow.tunnel.close() {
            was_open(self);
            self.events
                .push_back(ReceiverEvent::EndTunnel { flow: self.id });
        }
    }

    /// Handles an expired timer of the tunnel.
    pub(super) fn on_tunnel_timer(&mut self, timer: TunnelTimer, now: Instant) {
        let jitter = self.jitter();
        match timer {
            TunnelTimer::Close => self.close_tunnel(),
            TunnelTimer::Retry => self.retry_tunnel(jitter, now),
        }
    }

    /// Doubts a tunnel that is open, and opens one that is not.
    fn retry_tunnel(&mut self, jitter: f64, now: Instant) {
        if let TunnelState::Open { retry, .. } = &mut self.flow.tunnel.state {
            let delay = retry.next_delay().mul_f64(jitter);
            self.set_tunnel(TunnelTimer::Retry, now + delay);
            self.judge_probe(Rung::Amt, now);
            let flow = self.id;
            self.events.push_back(ReceiverEvent::Retunnel { flow });
        } else if self.flow.merged.is_none() && self.flow.tunnel.waits_for_native(now) {
            self.set_tunnel(TunnelTimer::Retry, now + NATIVE_FIRST);
        } else {
            self.open_tunnel(now);
        }
    }

    /// Follows a change of the host's network: a relay may be near now, or the one in use far.
    pub(super) fn reopen_tunnel(&mut self, now: Instant) {
        if let TunnelState::Open { retry, .. } = &mut self.flow.tunnel.state {
            retry.reset();
            if self.is_tunnel_set(TunnelTimer::Retry) {
                self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST);
            }
            self.events
                .push_back(ReceiverEvent::Retunnel { flow: self.id });
            return;
        }
        // Packets that came natively before say nothing about this network.
        self.flow.tunnel.last_native = None;
        let wait = match (self.flow.rung(), self.flow.native.is_joined()) {
            // The next packet shows whether multicast still works.
            (Rung::Multicast, _) => self.flow.announce.heartbeat + NATIVE_FIRST,
            (_, true) => NATIVE_FIRST,
            (_, false) => Duration::ZERO,
        };
        self.want_tunnel(now + wait, now);
    }

    fn relay_lost(&mut self, now: Instant) {
        let legs = self.flow.merged.as_ref();
        if self.flow.rung() <= Rung::Amt && legs.is_some_and(|l| l.works_without(Leg::RELAY)) {
            // The other leg goes on.
            self.lose_leg(Leg::RELAY, now);
            self.flow.tunnel.lost();
            return self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST);
        }
        if self.flow.rung() < Rung::Amt {
            return;
        }
        let path = self.flow.path(Rung::Amt);
        let was_member = self.flow.rung() == Rung::Amt;
        let fell = self.flow.tunnel.take_fell();
        // Packets by the next relay are a proof at once.
        let proved = !was_member && self.flow.proof.forget_report(path);
        if !was_member && !fell && !proved {
            return;
        }
        let cause = Cause::RelayLost;
        if was_member {
            self.flow.membership.leave();
        }
        self.report(Action::Leave, path, Some(cause));
        self.flow.tunnel.lost();
        self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST);
        if was_member {
            self.moved(Rung::Unicast, cause);
            self.want_replication(now + STAGGER);
        } else if fell {
            // Replication was put off, for the flow might have come back by itself. It does not.
            self.hasten_replication(now + STAGGER);
            self.events.push_back(ReceiverEvent::Explained {
                channel: self.channel.name.clone(),
                rung: Rung::Amt,
                on: self.flow.rung(),
                cause,
            });
        }
    }

    fn relay_found(&mut self, now: Instant) {
        if (self.flow.rung() >= Rung::Amt || self.flow.merged.is_some())
            && let TunnelState::Open { retry, .. } = &mut self.flow.tunnel.state
        {
            retry.reset();
            self.set_tunnel(TunnelTimer::Retry, now + REJOIN_FIRST);
        }
    }

    fn no_relay(&mut self, now: Instant) {
        self.relay_lost(now);
        if !self.flow.native.is_joined() && self.awaits_replication() {
            self.want_replication(now);
        }
    }
}

impl Receiver {
    /// Reports that the relay by which the flow came is lost.
    ///
    /// The owner goes on looking for another; packets that come by that one prove it. Where the
    /// flow was missed before its relay was, this explains why.
    pub fn relay_lost(&mut self, id: FlowId, now: Instant) {
        self.drive(id, |flow| flow.relay_lost(now));
    }

    /// Reports that a relay answers, after none did for a while: what was put off for longer and
    /// longer is tried soon.
    pub fn relay_found(&mut self, id: FlowId, now: Instant) {
        self.drive(id, |flow| flow.relay_found(now));
    }

    /// Reports that there is no relay for the flow, or none that answers: the worse rungs need not
    /// wait for one.
    pub fn no_relay(&mut self, id: FlowId, now: Instant) {
        self.drive(id, |flow| flow.no_relay(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_packets_keep_a_relay_away_for_a_bounded_time() {
        let start = Instant::now();
        let mut tunnel = Tunnel::default();
        tunnel.want(start);
        assert!(!tunnel.waits_for_native(start), "none has come");
        tunnel.last_native = Some(start);
        assert!(tunnel.waits_for_native(start));
        assert!(
            !tunnel.waits_for_native(start + NATIVE_FIRST),
            "the last one is long ago"
        );
        tunnel.want(start + NATIVE_PATIENCE);
        tunnel.last_native = Some(start + NATIVE_PATIENCE);
        assert!(
            !tunnel.waits_for_native(start + NATIVE_PATIENCE),
            "wanted since the start"
        );
    }

    #[test]
    fn a_relay_that_was_lost_is_replaced_whatever_comes_natively() {
        let start = Instant::now();
        let mut tunnel = Tunnel::default();
        tunnel.lost();
        tunnel.last_native = Some(start);
        assert!(!tunnel.waits_for_native(start));
    }

    #[test]
    fn only_an_open_tunnel_is_probed_and_closed() {
        let start = Instant::now();
        let mut tunnel = Tunnel::default();
        tunnel.want(start);
        assert!(tunnel.probe().is_none() && !tunnel.close());
        tunnel.open(start);
        assert!(tunnel.probe().is_some() && !tunnel.take_fell());
        assert!(tunnel.close() && !tunnel.is_open());
    }
}
