//! A flow's tunnels through AMT relays (rung 2): when they are opened, retried and closed
//! (protocol.md section 8.5). There is a second one where the legs of the flow are merged and
//! native multicast does not work (section 8.10).

use std::time::{Duration, Instant};

use super::FlowDriver;
use super::backoff::{Backoff, REJOIN_FIRST};
use super::probe::Probe;
use super::replication::STAGGER;
use crate::control::{Action, Leg, LegState};
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

/// One of the relays by which a flow may come at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::receiver) enum RelayLeg {
    /// The relay of a receiver that takes one leg, too.
    First,
    /// Another relay, in place of native multicast that does not work.
    Second,
}

impl RelayLeg {
    const ALL: [RelayLeg; 2] = [RelayLeg::First, RelayLeg::Second];

    /// Returns the relay with this number among the legs of rung 2.
    pub(in crate::receiver) fn of_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|relay| relay.number() == number)
    }

    fn number(self) -> u64 {
        self.leg().number
    }

    fn leg(self) -> Leg {
        match self {
            RelayLeg::First => Leg::RELAY,
            RelayLeg::Second => Leg::SECOND_RELAY,
        }
    }

    fn other(self) -> Self {
        match self {
            RelayLeg::First => RelayLeg::Second,
            RelayLeg::Second => RelayLeg::First,
        }
    }
}

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
        /// Whether the flow came by it until the receiver fell back, and the cause of that may be
        /// the loss of its relay.
        fell: bool,
    },
}

/// The tunnels of a flow.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    first: Tunnel,
    second: Tunnel,
}

impl Tunnels {
    fn get(&self, relay: RelayLeg) -> &Tunnel {
        match relay {
            RelayLeg::First => &self.first,
            RelayLeg::Second => &self.second,
        }
    }

    fn get_mut(&mut self, relay: RelayLeg) -> &mut Tunnel {
        match relay {
            RelayLeg::First => &mut self.first,
            RelayLeg::Second => &mut self.second,
        }
    }

    /// Whether the flow is wanted through a relay: the first tunnel is open, and perhaps the
    /// second.
    pub(super) fn is_open(&self) -> bool {
        self.first.is_open()
    }

    /// Whether the second tunnel is open.
    pub(super) fn has_second(&self) -> bool {
        self.second.is_open()
    }

    /// Returns whether the receiver fell back from this one, and forgets that of both.
    fn take_fell(&mut self, relay: RelayLeg) -> bool {
        let fell = self.get(relay).fell();
        if fell {
            self.forget_fall_back();
        }
        fell
    }

    fn forget_fall_back(&mut self) {
        for relay in RelayLeg::ALL {
            self.get_mut(relay).set_fell(false);
        }
    }

    /// Returns the probe of rung 2, if the first tunnel is open.
    pub(super) fn probe(&mut self) -> Option<&mut Probe> {
        self.first.probe()
    }
}

/// A tunnel of a flow.
#[derive(Debug)]
struct Tunnel {
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
    fn is_open(&self) -> bool {
        matches!(self.state, TunnelState::Open { .. })
    }

    /// Whether it is open, and has brought a packet or was given up as one that brings none.
    fn is_settled(&self) -> bool {
        match &self.state {
            TunnelState::Open { probe, .. } => matches!(probe, Probe::Settled),
            TunnelState::Closed | TunnelState::Wanted { .. } => false,
        }
    }

    /// Returns the probe of an open tunnel.
    fn probe(&mut self) -> Option<&mut Probe> {
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

    /// Whether the receiver fell back from it.
    fn fell(&self) -> bool {
        matches!(self.state, TunnelState::Open { fell: true, .. })
    }

    fn set_fell(&mut self, falls: bool) {
        if let TunnelState::Open { fell, .. } = &mut self.state {
            *fell = falls;
        }
    }
}

impl FlowDriver<'_> {
    fn set_tunnel(&mut self, relay: RelayLeg, timer: TunnelTimer, at: Instant) {
        self.timers.set(Timer::Tunnel(self.id, relay, timer), at);
    }

    fn stop_tunnel(&mut self, relay: RelayLeg, timer: TunnelTimer) {
        self.timers.stop(Timer::Tunnel(self.id, relay, timer));
    }

    fn is_tunnel_set(&self, relay: RelayLeg, timer: TunnelTimer) -> bool {
        self.timers.is_set(Timer::Tunnel(self.id, relay, timer))
    }

    /// Whether one of the endpoints can be had through a relay.
    fn can_tunnel(&self) -> bool {
        let mut groups = self.flow.announce.endpoints.iter();
        groups.any(|e| self.rungs.tunnels(e.group.is_ipv4()))
    }

    /// Whether a relay is asked for the flow, or is to be.
    pub(super) fn awaits_tunnel(&self) -> bool {
        let mut timers = [TunnelTimer::Close, TunnelTimer::Retry].into_iter();
        timers.any(|timer| self.is_tunnel_set(RelayLeg::First, timer))
    }

    /// Puts off doubts about relays.
    pub(super) fn put_off_tunnels(&mut self, later: Instant) {
        for relay in RelayLeg::ALL {
            if self.flow.tunnels.get(relay).is_open() {
                let timer = Timer::Tunnel(self.id, relay, TunnelTimer::Retry);
                self.put_off(timer, later);
            }
        }
    }

    /// Follows an announcement with other endpoints or relays.
    pub(super) fn announced_tunnel(&mut self, now: Instant) {
        let possible = self.can_tunnel() && self.flow.participation.is_active();
        if self.flow.tunnels.is_open() {
            if !possible {
                return self.close_tunnels();
            }
            for relay in RelayLeg::ALL {
                if self.flow.tunnels.get(relay).is_open() {
                    self.open_tunnel(relay, now);
                }
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

    /// Opens the first tunnel at `at`, unless it is open.
    pub(super) fn want_tunnel(&mut self, at: Instant, now: Instant) {
        let possible = self.can_tunnel() && self.flow.participation.is_active();
        if possible && !self.flow.tunnels.is_open() {
            self.hasten_tunnel(RelayLeg::First, at, now);
        }
    }

    /// Opens a tunnel that is not open by `at`.
    fn hasten_tunnel(&mut self, relay: RelayLeg, at: Instant, now: Instant) {
        self.flow.tunnels.get_mut(relay).want(now);
        let timer = Timer::Tunnel(self.id, relay, TunnelTimer::Retry);
        let known = self.timers.get(timer);
        self.timers
            .set(timer, known.map_or(at, |known| known.min(at)));
    }

    /// Opens the second tunnel where native multicast does not work, and closes it later where it
    /// does.
    pub(super) fn follow_second_tunnel(&mut self, now: Instant) {
        let Some(legs) = self.flow.merged.as_ref() else {
            return;
        };
        let (native, relay) = (legs.state(Leg::NATIVE), legs.state(Leg::RELAY));
        let Tunnels { first, second } = &self.flow.tunnels;
        let is_open = second.is_open();
        let works = native == LegState::Working;
        if works && (relay == LegState::Working || !is_open) {
            if !is_open {
                self.end_tunnel(RelayLeg::Second);
            } else if !self.is_tunnel_set(RelayLeg::Second, TunnelTimer::Close) {
                self.stop_tunnel(RelayLeg::Second, TunnelTimer::Retry);
                self.set_tunnel(RelayLeg::Second, TunnelTimer::Close, now + HOLD);
            }
        } else if is_open {
            self.stop_tunnel(RelayLeg::Second, TunnelTimer::Close);
            if !self.is_tunnel_set(RelayLeg::Second, TunnelTimer::Retry) {
                self.set_tunnel(RelayLeg::Second, TunnelTimer::Retry, now + REJOIN_FIRST);
            }
        } else if first.is_settled() {
            let may_work = self.flow.native.is_joined() && native == LegState::Trying;
            let wait = match may_work {
                true => NATIVE_PATIENCE,
                false => Duration::ZERO,
            };
            self.hasten_tunnel(RelayLeg::Second, now + wait, now);
        }
    }

    /// Gives the native join its chance: with the flow's first key, its packets are on their way.
    pub(super) fn on_first_key(&mut self, now: Instant) {
        if !self.flow.tunnels.is_open() && self.is_tunnel_set(RelayLeg::First, TunnelTimer::Retry) {
            self.hasten_tunnel(RelayLeg::First, now + NATIVE_FIRST, now);
        }
    }

    /// Notes a native packet. It keeps a relay away for a moment, or, where this receiver is a
    /// member by native multicast, for good.
    pub(super) fn on_native_packet(&mut self, member: bool, now: Instant) {
        let tunnel = &mut self.flow.tunnels.first;
        tunnel.last_native = Some(now);
        let is_alone = self.flow.merged.is_none();
        if member && is_alone && matches!(tunnel.state, TunnelState::Wanted { .. }) {
            tunnel.close();
            self.stop_tunnel(RelayLeg::First, TunnelTimer::Retry);
        }
    }

    /// Notes a packet that came through a relay.
    pub(super) fn on_tunnelled_packet(&mut self, relay: RelayLeg, now: Instant) {
        let tunnel = self.flow.tunnels.get_mut(relay);
        let TunnelState::Open { probe, retry, fell } = &mut tunnel.state else {
            return;
        };
        retry.reset();
        *fell = false;
        let was = std::mem::replace(probe, Probe::Settled);
        if self.is_tunnel_set(relay, TunnelTimer::Retry) {
            let quiet = self.flow.quiet_span();
            self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST.max(quiet));
        }
        if relay == RelayLeg::First && !matches!(was, Probe::Settled) {
            self.follow_second_tunnel(now);
        }
    }

    /// Follows a move from `was` to the current rung, by the source or by the receiver itself.
    pub(super) fn tunnels_after_move(&mut self, was: Rung, now: Instant) {
        let rung = self.flow.rung();
        let relay = RelayLeg::First;
        let retries = self.is_tunnel_set(relay, TunnelTimer::Retry);
        if rung <= Rung::Amt {
            self.flow.tunnels.forget_fall_back();
        }
        if self.flow.merged.is_some() {
            self.doubt_second_tunnel(was, now);
            self.follow_second_tunnel(now);
        }
        if rung == Rung::Multicast && self.flow.merged.is_some() {
            // The tunnel is the other leg.
            self.stop_tunnel(relay, TunnelTimer::Close);
            if !self.flow.tunnels.is_open() {
                self.want_tunnel(now, now);
            } else if !retries {
                self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST);
            }
            return;
        }
        match (&mut self.flow.tunnels.first.state, rung) {
            (TunnelState::Open { .. }, Rung::Multicast) => {
                self.stop_tunnel(relay, TunnelTimer::Retry);
                self.set_tunnel(relay, TunnelTimer::Close, now + HOLD);
            }
            (state, Rung::Multicast) => {
                *state = TunnelState::Closed;
                self.stop_tunnel(relay, TunnelTimer::Retry);
            }
            (TunnelState::Open { retry, .. }, Rung::Unicast) if was == Rung::Amt => {
                retry.reset();
                self.stop_tunnel(relay, TunnelTimer::Close);
                // Perhaps the relay is dead: the owner asks it.
                self.set_tunnel(relay, TunnelTimer::Retry, now);
            }
            (TunnelState::Open { .. }, _) => {
                self.stop_tunnel(relay, TunnelTimer::Close);
                if !retries {
                    self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST);
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

    /// Notes from which relays the receiver is about to fall back: those by which the flow came
    /// until now. One that was lost before has no part in it.
    pub(super) fn note_fall_back(&mut self) {
        if self.flow.rung() != Rung::Amt {
            return;
        }
        for relay in RelayLeg::ALL {
            let legs = self.flow.merged.as_ref();
            let came = legs.map_or(relay == RelayLeg::First, |l| l.is_expected(relay.leg()));
            self.flow.tunnels.get_mut(relay).set_fell(came);
        }
    }

    /// Doubts the second relay after a fall-back from rung 2.
    fn doubt_second_tunnel(&mut self, was: Rung, now: Instant) {
        let fell_back = was == Rung::Amt && self.flow.rung() == Rung::Unicast;
        if let TunnelState::Open { retry, .. } = &mut self.flow.tunnels.second.state
            && fell_back
        {
            retry.reset();
            self.set_tunnel(RelayLeg::Second, TunnelTimer::Retry, now);
        }
    }

    /// Requests a tunnel from the owner, with the flow's endpoints and relays.
    fn open_tunnel(&mut self, relay: RelayLeg, now: Instant) {
        self.flow.tunnels.get_mut(relay).open(now);
        self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST);
        // Both relays are the same rung to the source.
        if relay == RelayLeg::First {
            self.report(Action::Join, self.flow.path(Rung::Amt), None);
        }
        let announce = &self.flow.announce;
        let endpoints = announce.endpoints.iter();
        let endpoints = endpoints.filter(|e| self.rungs.tunnels(e.group.is_ipv4()));
        self.events.push_back(ReceiverEvent::Tunnel {
            flow: self.id,
            number: relay.number(),
            channel: self.channel.name.clone(),
            endpoints: endpoints.copied().collect(),
            relays: announce.relays.clone(),
        });
    }

    /// Closes the tunnels and reports that to the source.
    pub(super) fn close_tunnels(&mut self) {
        self.close_leg(RelayLeg::Second);
        if self.close_leg(RelayLeg::First) {
            self.report(Action::Leave, self.flow.path(Rung::Amt), None);
        }
    }

    /// Closes the tunnels of a flow that is given up as a whole.
    pub(super) fn drop_tunnels(&mut self) {
        for relay in RelayLeg::ALL {
            self.end_tunnel(relay);
        }
    }

    /// Closes a tunnel, and shows that its leg is given up. Returns whether it was open.
    fn close_leg(&mut self, relay: RelayLeg) -> bool {
        let legs = self.flow.merged.as_ref();
        let was = legs.map_or(LegState::Trying, |legs| legs.state(relay.leg()));
        if was != LegState::Trying {
            self.show_leg(relay.leg(), LegState::Trying);
        }
        self.end_tunnel(relay)
    }

    /// Closes a tunnel. Returns whether it was open.
    fn end_tunnel(&mut self, relay: RelayLeg) -> bool {
        self.stop_tunnel(relay, TunnelTimer::Close);
        self.stop_tunnel(relay, TunnelTimer::Retry);
        if let Some(merged) = &mut self.flow.merged {
            merged.end(relay.leg());
        }
        let was_open = self.flow.tunnels.get_mut(relay).close();
        if was_open {
            self.events.push_back(ReceiverEvent::EndTunnel {
                flow: self.id,
                number: relay.number(),
            });
        }
        was_open
    }

    /// Handles an expired timer of a tunnel.
    pub(super) fn on_tunnel_timer(&mut self, relay: RelayLeg, timer: TunnelTimer, now: Instant) {
        let jitter = self.jitter();
        match (timer, relay) {
            (TunnelTimer::Close, RelayLeg::First) => self.close_tunnels(),
            (TunnelTimer::Close, RelayLeg::Second) => {
                self.close_leg(relay);
                self.announce_legs(now);
            }
            (TunnelTimer::Retry, _) => self.retry_tunnel(relay, jitter, now),
        }
    }

    /// Doubts a tunnel that is open, and opens one that is not.
    fn retry_tunnel(&mut self, relay: RelayLeg, jitter: f64, now: Instant) {
        let merges = self.flow.merged.is_some();
        let tunnel = self.flow.tunnels.get_mut(relay);
        if let TunnelState::Open { retry, .. } = &mut tunnel.state {
            let delay = retry.next_delay().mul_f64(jitter);
            self.set_tunnel(relay, TunnelTimer::Retry, now + delay);
            if relay == RelayLeg::First {
                self.judge_probe(Rung::Amt, now);
                self.follow_second_tunnel(now);
            }
            self.events.push_back(ReceiverEvent::Retunnel {
                flow: self.id,
                number: relay.number(),
            });
        } else if !merges && tunnel.waits_for_native(now) {
            self.set_tunnel(relay, TunnelTimer::Retry, now + NATIVE_FIRST);
        } else {
            self.open_tunnel(relay, now);
        }
    }

    /// Follows a change of the host's network: a relay may be near now, or the one in use far.
    pub(super) fn reopen_tunnels(&mut self, now: Instant) {
        for relay in RelayLeg::ALL {
            let tunnel = self.flow.tunnels.get_mut(relay);
            let TunnelState::Open { retry, .. } = &mut tunnel.state else {
                continue;
            };
            retry.reset();
            if self.is_tunnel_set(relay, TunnelTimer::Retry) {
                self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST);
            }
            self.events.push_back(ReceiverEvent::Retunnel {
                flow: self.id,
                number: relay.number(),
            });
        }
        if self.flow.tunnels.is_open() {
            return;
        }
        // Packets that came natively before say nothing about this network.
        self.flow.tunnels.first.last_native = None;
        let wait = match (self.flow.rung(), self.flow.native.is_joined()) {
            // The next packet shows whether multicast still works.
            (Rung::Multicast, _) => self.flow.announce.heartbeat + NATIVE_FIRST,
            (_, true) => NATIVE_FIRST,
            (_, false) => Duration::ZERO,
        };
        self.want_tunnel(now + wait, now);
    }

    fn relay_lost(&mut self, relay: RelayLeg, now: Instant) {
        let legs = self.flow.merged.as_ref();
        // A leg that is known to be lost is lost no more by each search that finds nothing, and a
        // second relay that never brought a packet was no leg.
        let is_new = legs.map_or(relay == RelayLeg::First, |l| l.may_lose(relay.leg()));
        if !is_new && !self.flow.tunnels.get(relay).fell() {
            return;
        }
        // Another relay proves the same rung.
        let is_proved = legs.is_some_and(|l| l.state(relay.other().leg()) == LegState::Working);
        let others = legs.is_some_and(|l| l.works_without(relay.leg()));
        if is_proved || (self.flow.rung() <= Rung::Amt && others) {
            // The other leg goes on.
            if is_new {
                self.lose_leg(relay.leg(), now);
                self.flow.tunnels.get_mut(relay).lost();
                self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST);
            }
            return;
        }
        if self.flow.rung() < Rung::Amt {
            return;
        }
        let path = self.flow.path(Rung::Amt);
        let was_member = self.flow.rung() == Rung::Amt;
        // Of a fall-back from two relays, the first that is known to be lost is the cause.
        let fell = self.flow.tunnels.take_fell(relay);
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
        self.flow.tunnels.get_mut(relay).lost();
        self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST);
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

    fn relay_found(&mut self, relay: RelayLeg, now: Instant) {
        let tunnel = self.flow.tunnels.get_mut(relay);
        if let TunnelState::Open { retry, .. } = &mut tunnel.state
            && (self.flow.membership.rung() >= Rung::Amt || self.flow.merged.is_some())
        {
            retry.reset();
            self.set_tunnel(relay, TunnelTimer::Retry, now + REJOIN_FIRST);
        }
    }

    fn no_relay(&mut self, relay: RelayLeg, now: Instant) {
        self.relay_lost(relay, now);
        let is_last = relay == RelayLeg::First;
        if is_last && !self.flow.native.is_joined() && self.awaits_replication() {
            self.want_replication(now);
        }
    }
}

impl Receiver {
    /// Reports that the relay by which the flow came is lost: the one with the number of its
    /// [`ReceiverEvent::Tunnel`].
    ///
    /// The owner goes on looking for another; packets that come by that one prove it. Where the
    /// flow was missed before its relay was, this explains why.
    pub fn relay_lost(&mut self, id: FlowId, number: u64, now: Instant) {
        self.drive_tunnel(id, number, |flow, relay| flow.relay_lost(relay, now));
    }

    /// Reports that a relay answers, after none did for a while: what was put off for longer and
    /// longer is tried soon.
    pub fn relay_found(&mut self, id: FlowId, number: u64, now: Instant) {
        self.drive_tunnel(id, number, |flow, relay| flow.relay_found(relay, now));
    }

    /// Reports that there is no relay for the tunnel, or none that answers: the worse rungs need
    /// not wait for one.
    pub fn no_relay(&mut self, id: FlowId, number: u64, now: Instant) {
        self.drive_tunnel(id, number, |flow, relay| flow.no_relay(relay, now));
    }

    fn drive_tunnel(
        &mut self,
        id: FlowId,
        number: u64,
        act: impl FnOnce(&mut FlowDriver<'_>, RelayLeg),
    ) {
        if let Some(relay) = RelayLeg::of_number(number) {
            self.drive(id, |flow| act(flow, relay));
        }
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
        assert!(tunnel.probe().is_some() && !tunnel.fell());
        assert!(tunnel.close() && !tunnel.is_open());
    }
}
