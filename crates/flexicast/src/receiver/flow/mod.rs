//! A receiver's flows.
//!
//! [`Flow`] is composed of parts, each with its own state: whether the receiver takes part at all
//! ([`participation`]), the rungs by which it listens ([`native`], [`tunnel`], [`replication`]),
//! where the source believes it to be ([`membership`]), and what it needs to read packets
//! ([`keys`], [`packet`], [`proof`]). What a flow does changes its channel, timers and events as
//! well; [`FlowDriver`] lends it those.

mod backoff;
mod feedback;
mod keys;
mod legs;
mod membership;
mod native;
mod packet;
mod participation;
mod probe;
mod proof;
mod rebuilding;
mod replication;
mod suspicion;
mod tunnel;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;
use zeroize::Zeroizing;

use super::deadlines::SourceClock;
use super::timer::{FlowTimer, Timer, TimerTable, TunnelTimer};
use super::{Channel, Receiver, ReceiverEvent, Rungs};
use crate::ack::{AckTracker, PathAck};
use crate::authentication::{FlowAuthentication, Opener, PublicKey};
use crate::control::{
    Action, Announce, Control, FeedbackKey, Key, RungNotice, State, TagKey, Window,
};
use crate::{Cause, FlowId, PathId, Rung, WireError};
use feedback::Feedback;
use keys::Keys;
use legs::Merged;
use membership::{Heard, Membership};
use native::NativeJoin;
use packet::{Arrival, InvalidPackets};
use participation::Participation;
use proof::Proof;
use rebuilding::Rebuilding;
use replication::Replication;
use suspicion::Suspicion;
pub(super) use tunnel::RelayLeg;
use tunnel::Tunnels;

/// Maximum number of flows that a source may announce on one connection.
const MAX_FLOWS: usize = 256;

/// A flow that the source has announced.
#[derive(Debug)]
pub(super) struct Flow {
    announce: Announce,
    /// Index of its channel.
    channel: usize,
    participation: Participation,
    suspicion: Suspicion,
    membership: Membership,
    native: NativeJoin,
    tunnels: Tunnels,
    replication: Replication,
    proof: Proof,
    keys: Keys,
    /// Authentication of its packets, as the flow was first announced: it does not change.
    opener: Option<Opener<Arrival>>,
    /// Key that signs its streams, if they are signed; it does not change either.
    stream_key: Option<PublicKey>,
    /// Packets and repair symbols, if the flow may send such.
    rebuilding: Option<Rebuilding>,
    /// Its legs, if the packets of several are merged.
    merged: Option<Merged>,
    /// Whether what the second leg brings counts for nothing.
    #[cfg(feature = "fault-injection")]
    legs_unmerged: bool,
    feedback: Feedback,
    trackers: BTreeMap<PathId, AckTracker>,
    invalid: InvalidPackets,
    sequences: Sequences,
}

/// Sequence numbers of the control frames about a flow.
#[derive(Debug, Default)]
struct Sequences {
    /// Last FC_STATE sent.
    state: u64,
    /// Last FC_WINDOW sent.
    window: u64,
    /// Last FC_RUNG received.
    rung: Option<u64>,
    /// Newest key that an FC_STATE has reported.
    reported_key: u64,
}

impl Flow {
    /// A flow that `rebuilds` lost packets, if it has repair symbols, and `merges` its legs.
    fn new(announce: Announce, channel: usize, next: u64, rebuilds: bool, merges: bool) -> Self {
        let fec = announce.fec.filter(|_| rebuilds);
        let (opener, stream_key) = match announce.authentication {
            Some(FlowAuthentication::Packets(parameters)) => (Some(Opener::new(parameters)), None),
            Some(FlowAuthentication::Streams(key)) => (None, Some(key)),
            None => (None, None),
        };
        Flow {
            opener,
            stream_key,
            rebuilding: fec.and_then(Rebuilding::new),
            merged: merges.then(Merged::default),
            #[cfg(feature = "fault-injection")]
            legs_unmerged: false,
            announce,
            channel,
            participation: Participation::default(),
            suspicion: Suspicion::default(),
            membership: Membership::Unicast,
            native: NativeJoin::default(),
            tunnels: Tunnels::default(),
            replication: Replication::default(),
            proof: Proof::default(),
            keys: Keys::default(),
            feedback: Feedback::default(),
            trackers: BTreeMap::new(),
            invalid: InvalidPackets::since(next),
            sequences: Sequences::default(),
        }
    }

    /// Returns the index of the flow's channel.
    pub(super) fn channel(&self) -> usize {
        self.channel
    }

    /// Returns the announced heartbeat interval.
    pub(super) fn heartbeat(&self) -> Duration {
        self.announce.heartbeat
    }

    /// Whether its updates are signed as a whole.
    pub(super) fn signs_streams(&self) -> bool {
        self.stream_key.is_some()
    }

    /// Takes back invalid updates that were found to be valid.
    pub(super) fn clear_invalid(&mut self, cleared: u64) {
        self.invalid.clear(cleared);
    }

    /// Counts bytes of updates that were handed out or passed over, so that the flow may send on.
    /// `end` is the last end of expired updates up to there, as the source said it.
    pub(super) fn consumed(
        &mut self,
        seq: u64,
        bytes: u64,
        end: Option<(u64, u64)>,
        out: &mut Zeroizing<Vec<u8>>,
    ) {
        let Some(grant) = self.membership.grant() else {
            return;
        };
        let before = end.filter(|(last, _)| *last < seq);
        let mut counts = before.is_some_and(|(last, offset)| grant.passed(last, offset));
        counts |= grant.consumed(seq, bytes);
        let at = end.filter(|(last, _)| *last == seq);
        counts |= at.is_some_and(|(last, offset)| grant.passed(last, offset));
        if counts {
            self.extend_window(out);
        }
    }

    /// Reports a larger window once a good part of the last one is used up.
    fn extend_window(&mut self, out: &mut Zeroizing<Vec<u8>>) {
        let Some(offset) = self.membership.grant().and_then(|grant| grant.extend()) else {
            return;
        };
        self.sequences.window += 1;
        let window = Window {
            flow: self.announce.flow,
            sequence: self.sequences.window,
            offset,
        };
        Control::Window(window).encode(out);
    }

    /// Returns the Flow ID of its packets of tags.
    fn tag_flow(&self) -> Option<FlowId> {
        self.opener.as_ref().map(Opener::tag_flow)
    }

    /// Returns the path under which the numbers of arrived packets are kept: one for all legs,
    /// where they are merged.
    fn tracked(&self, path: PathId) -> PathId {
        #[cfg(feature = "fault-injection")]
        if self.legs_unmerged {
            return path;
        }
        match path.rung() {
            Some(Rung::Amt) if self.merged.is_some() => self.path(Rung::Multicast),
            _ => path,
        }
    }

    fn path(&self, rung: Rung) -> PathId {
        PathId::new(self.announce.flow_index, rung)
    }

    fn rung(&self) -> Rung {
        self.membership.rung()
    }

    /// Returns the inputs of the timers of acknowledgements and of silence.
    fn timing(&self) -> Timing {
        let path = self.membership.path();
        let tracker = path.and_then(|path| self.trackers.get(&self.tracked(path)));
        Timing {
            ack: tracker.and_then(AckTracker::deadline),
            heard: self.membership.heard(),
            heartbeat: self.announce.heartbeat,
        }
    }

    /// Returns the silence after which the flow counts as not arriving.
    fn quiet_span(&self) -> Duration {
        membership::quiet_span(self.announce.heartbeat)
    }
}

/// Inputs of a flow's timers of acknowledgements and of silence. Few packets change them, and to
/// compare them is cheaper than to compute the timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Timing {
    /// When an acknowledgement is due.
    ack: Option<Instant>,
    heard: Option<Heard>,
    heartbeat: Duration,
}

/// A flow together with the parts of its receiver that it acts on.
pub(super) struct FlowDriver<'a> {
    id: FlowId,
    flow: &'a mut Flow,
    channel: &'a mut Channel,
    timers: &'a mut TimerTable,
    events: &'a mut VecDeque<ReceiverEvent>,
    out: &'a mut Zeroizing<Vec<u8>>,
    rng: &'a mut SmallRng,
    rungs: Rungs,
    clock: &'a SourceClock,
}

impl FlowDriver<'_> {
    fn set(&mut self, timer: FlowTimer, at: Instant) {
        self.timers.set(Timer::Flow(self.id, timer), at);
    }

    fn stop(&mut self, timer: FlowTimer) {
        self.timers.stop(Timer::Flow(self.id, timer));
    }

    fn is_set(&self, timer: FlowTimer) -> bool {
        self.timers.is_set(Timer::Flow(self.id, timer))
    }

    /// Puts off a timer that is set until `at`, unless it is later anyway.
    fn put_off(&mut self, timer: Timer, at: Instant) {
        if let Some(known) = self.timers.get(timer) {
            self.timers.set(timer, known.max(at));
        }
    }

    /// Sets the timers that follow from the membership, where they have changed.
    #[inline]
    fn rearm(&mut self, before: Timing) {
        let timing = self.flow.timing();
        if timing.ack != before.ack {
            let timer = Timer::Flow(self.id, FlowTimer::Ack);
            self.timers.put(timer, timing.ack);
        }
        if (timing.heard, timing.heartbeat) != (before.heard, before.heartbeat) {
            let timer = Timer::Flow(self.id, FlowTimer::Silence);
            let silence = self.flow.membership.silent_at(timing.heartbeat);
            self.timers.put(timer, silence);
        }
    }

    /// Returns a factor of a quarter more or less, so that receivers do not act in chorus.
    fn jitter(&mut self) -> f64 {
        self.rng.random_range(0.75..1.25)
    }

    /// Returns the delay of the next acknowledgement: the announced delay, with jitter.
    fn hold(&mut self) -> Duration {
        let jitter = self.jitter();
        self.flow.announce.ack_delay.mul_f64(jitter)
    }

    /// Sends an FC_STATE.
    fn report(&mut self, action: Action, path: PathId, cause: Option<Cause>) {
        let flow = &mut *self.flow;
        flow.sequences.state += 1;
        let key_sequence = flow.keys.sequence().unwrap_or(0);
        flow.sequences.reported_key = key_sequence;
        let tracker = flow.trackers.get(&flow.tracked(path));
        let largest = tracker.filter(|_| action == Action::Ready);
        let largest = largest.and_then(AckTracker::largest);
        let state = State {
            flow: flow.announce.flow,
            sequence: flow.sequences.state,
            action,
            path,
            key_sequence,
            cause,
            largest,
        };
        Control::State(state).encode(self.out);
    }

    /// Reports the key that this receiver holds, by the action with which it began to listen: a
    /// READY would claim a proof.
    fn confirm_key(&mut self) {
        let flow = &*self.flow;
        let replicated = flow.replication.requested || flow.rung() == Rung::Replicated;
        let path = match flow.native.is_joined() {
            true => PathId::UNICAST,
            false if flow.tunnels.is_open() => flow.path(Rung::Amt),
            false if replicated => flow.path(Rung::Replicated),
            false => return,
        };
        self.report(Action::Join, path, None);
    }

    fn on_key(&mut self, key: Key, now: Instant) {
        let first = self.flow.keys.is_empty();
        // One that crosses a LEAVE is given again.
        if !self.flow.participation.reads() || !self.flow.keys.insert(key, now) {
            return;
        }
        self.stop(FlowTimer::KeyDiscard);
        self.channel.stats.keys += 1;
        // A proof counts only with the current key, so READY is repeated.
        self.flow.proof.forget_reports();
        // The source uses a key only after all members have reported that they hold it.
        self.confirm_key();
        if first {
            self.on_first_key(now);
        }
    }

    /// Queues the event of a move to another rung.
    fn moved(&mut self, rung: Rung, cause: Cause) {
        self.events.push_back(ReceiverEvent::Moved {
            channel: self.channel.name.clone(),
            rung,
            cause,
        });
    }

    /// Cleans up after a flow that the source has withdrawn.
    fn withdraw(&mut self) {
        self.forget_legs();
        self.drop_tunnels();
        if self.flow.native.leave() {
            self.events
                .push_back(ReceiverEvent::Leave { flow: self.id });
        }
        if self.flow.membership.path().is_some() {
            self.moved(Rung::Unicast, Cause::FlowInvalid);
        }
    }

    /// Cleans up after a flow whose connection is gone.
    pub(super) fn disconnect(&mut self) {
        if self.flow.native.leave() {
            self.events
                .push_back(ReceiverEvent::Leave { flow: self.id });
        }
        self.drop_tunnels();
    }

    fn on_timer(&mut self, timer: FlowTimer, now: Instant) {
        match timer {
            FlowTimer::KeyDiscard => self.flow.keys.discard_old(),
            FlowTimer::Silence => self.on_silence(now),
            FlowTimer::Replication => self.request_replication(now),
            FlowTimer::Rejoin => self.rejoin(now),
            FlowTimer::Legs => self.on_legs_timer(now),
            // `Receiver::poll_datagram` takes what is due.
            FlowTimer::Ack => {}
        }
    }
}

impl Receiver {
    /// Acts on a flow, if it is known, and sets the timers that follow from its membership.
    pub(super) fn drive<R>(
        &mut self,
        id: FlowId,
        act: impl FnOnce(&mut FlowDriver<'_>) -> R,
    ) -> Option<R> {
        let flow = self.flows.get_mut(&id)?;
        let before = flow.timing();
        let mut driver = FlowDriver {
            id,
            channel: &mut self.channels[flow.channel],
            flow,
            timers: &mut self.timers,
            events: &mut self.events,
            out: &mut self.control_out,
            rng: &mut self.rng,
            rungs: self.config.rungs,
            clock: &self.clock,
        };
        let result = act(&mut driver);
        driver.rearm(before);
        Some(result)
    }

    /// Acts on all flows.
    pub(super) fn drive_all(&mut self, mut act: impl FnMut(&mut FlowDriver<'_>)) {
        let ids: Vec<_> = self.flows.keys().copied().collect();
        for id in ids {
            self.drive(id, &mut act);
        }
    }

    pub(super) fn on_announce(
        &mut self,
        announce: Announce,
        now: Instant,
    ) -> Result<(), WireError> {
        let id = announce.flow;
        if let Some(known) = self.flows.get(&id) {
            if announce.sequence <= known.announce.sequence {
                return Ok(());
            }
            if announce.withdrawn {
                self.drive(id, |flow| flow.withdraw());
                self.flows.remove(&id);
                self.timers.retain(|timer| timer.flow() != Some(id));
                return Ok(());
            }
            self.drive(id, |flow| flow.announced(announce, now));
            return Ok(());
        }
        let number = Some(announce.channel);
        let channel = self.channels.iter().position(|c| c.number == number);
        let Some(channel) = channel.filter(|_| !announce.withdrawn) else {
            return Ok(());
        };
        if self.flows.len() >= MAX_FLOWS {
            return Err(WireError::invalid(
                "FC_ANNOUNCE",
                "more flows than a receiver takes",
            ));
        }
        let merge = &mut self.channels[channel].merge;
        let next = merge.next();
        let flow = Flow::new(announce, channel, next, self.config.fec, self.merges_legs);
        #[cfg(feature = "fault-injection")]
        let flow = Flow {
            legs_unmerged: self.legs_unmerged,
            ..flow
        };
        merge.set_signed_streams(flow.signs_streams());
        self.flows.insert(id, flow);
        self.drive(id, |flow| flow.join(now));
        Ok(())
    }

    pub(super) fn on_key(&mut self, key: Key, now: Instant) {
        self.drive(key.flow, |flow| flow.on_key(key, now));
    }

    /// Takes the key of this receiver's tags.
    pub(super) fn on_tag_key(&mut self, key: &TagKey) {
        self.drive(key.flow, |flow| {
            if let Some(opener) = &mut flow.flow.opener {
                opener.take_key(key.receiver, &key.secret);
            }
        });
    }

    /// Takes a key for feedback packets.
    pub(super) fn on_feedback_key(&mut self, key: &FeedbackKey) {
        if self.config.feedback {
            self.drive(key.flow, |flow| flow.flow.feedback.take_key(key));
        }
    }

    /// Whether a datagram that came on the connection's path is the source's notice that feedback
    /// packets come from another address than the connection has: the connection has to send
    /// something.
    pub fn is_feedback_returned(&self, datagram: &[u8]) -> bool {
        let mut flows = self.flows.values();
        flows.any(|flow| flow.feedback.is_returned(datagram))
    }

    /// Takes note that feedback packets arrive at the source.
    pub(super) fn on_heard(&mut self, flow: FlowId, now: Instant) {
        self.drive(flow, |flow| flow.flow.feedback.heard(now));
    }

    pub(super) fn on_rung(&mut self, notice: RungNotice, now: Instant) {
        let jitter = self.rng.random_range(0.75..1.25);
        self.drive(notice.flow, |flow| flow.on_rung(&notice, jitter, now));
    }

    /// Handles an expired timer of a flow.
    pub(super) fn on_flow_timer(&mut self, id: FlowId, timer: FlowTimer, now: Instant) {
        self.drive(id, |flow| flow.on_timer(timer, now));
    }

    /// Handles an expired timer of one of a flow's tunnels.
    pub(super) fn on_tunnel_timer(
        &mut self,
        id: FlowId,
        relay: RelayLeg,
        timer: TunnelTimer,
        now: Instant,
    ) {
        self.drive(id, |flow| flow.on_tunnel_timer(relay, timer, now));
    }

    /// Takes the next acknowledgement that is due, and its flow.
    pub(super) fn take_due_ack(&mut self, now: Instant) -> Option<(FlowId, PathAck)> {
        let id = self.timers.expired(now).find_map(|timer| match timer {
            Timer::Flow(id, FlowTimer::Ack) => Some(id),
            _ => None,
        })?;
        let taken = self.drive(id, |flow| {
            let hold = flow.hold();
            let path = flow.flow.membership.path()?;
            let tracked = flow.flow.tracked(path);
            let tracker = flow.flow.trackers.get_mut(&tracked)?;
            tracker.take_due(path, now, hold)
        });
        Some((id, taken.flatten()?))
    }

    /// Queues an acknowledgement as feedback packet. Returns whether that suffices.
    pub(super) fn send_feedback(&mut self, id: FlowId, payload: &[u8]) -> bool {
        let sealed = self.drive(id, |flow| flow.flow.feedback.seal(payload));
        let Some(sealed) = sealed.flatten() else {
            return false;
        };
        // An older one that is still here is obsolete.
        self.feedback_out.retain(|(flow, _)| *flow != id);
        self.feedback_out.push_back((id, sealed.packet));
        sealed.suffices
    }

    /// Grants every flow time for one more heartbeat, because the caller itself was away.
    ///
    /// Call this after reading what arrived meanwhile. A grace counts once until something of the
    /// flow arrives: a receiver that is always late leaves in the end.
    pub fn grant_grace(&mut self, now: Instant) {
        self.drive_all(|flow| flow.grant_grace(now));
    }

    /// Retries at once whatever did not work, because the host's network has changed.
    pub fn network_changed(&mut self, now: Instant) {
        self.drive_all(|flow| flow.network_changed(now));
    }
}
