//! A receiver's flows: joins, keys, packets, proofs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::RngExt;
use zeroize::Zeroizing;

use super::keys::Keys;
use super::probe::{self, Probe};
use super::tunnel::{self, Tunnel};
use super::{FlowInput, REJOIN_MAX, Receiver, ReceiverEvent};
use crate::ack::AckTracker;
use crate::control::{Action, Anchor, Announce, Control, Key, RungNotice, State, Window};
use crate::frame::{Frame, Frames};
use crate::protect::peek_flow_id;
use crate::range::RangeSet;
use crate::trace::{Outcome, PacketTrace, TracedFrame};
use crate::wire::VARINT_MAX;
use crate::{Cause, FlowId, PathId, Rung, WireError};

/// A receiver leaves a flow after so many verified packets with invalid frames.
const MAX_INVALID: u64 = 100;
/// Most flows that a source may announce on one connection.
const MAX_FLOWS: usize = 256;
/// Missed heartbeats that mean the flow is gone.
const HEARTBEATS: u32 = 3;
/// Time after which a silent join is repeated, doubling up to the maximum.
pub(super) const REJOIN_FIRST: Duration = Duration::from_secs(3);

/// Copies are asked for so long after the native join, so that they are not sent where that works.
pub(super) const STAGGER: Duration = Duration::from_secs(1);
/// Behind a fall-back the flow may come back by itself; copies are asked for after this time.
const COPIES_AFTER_FALL_BACK: Duration = Duration::from_secs(3);
/// Copies that do not arrive are asked for again after this time, doubling up to the maximum.
const COPIES_AGAIN: Duration = Duration::from_secs(5);
/// Interval at which a READY for a better rung is repeated, should the source not have moved this
/// receiver to it.
const READY_AGAIN: Duration = Duration::from_secs(5);
/// Bytes that the flow may send beyond those handed out.
const WINDOW: u64 = 16 << 20;
/// Bound on remembered packets with messages; those below the lowest count as delivered.
const MAX_TOLD: usize = 256;
/// Messages that wait for the application.
const MAX_DATAGRAMS: usize = 64;

/// A receiver's grant for a flow (protocol.md section 4.8).
#[derive(Debug)]
struct Grant {
    anchor: Anchor,
    /// Bytes of updates from the anchor on that were handed out.
    consumed: u64,
    told: u64,
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) announce: Announce,
    pub(super) channel: usize,
    pub(super) joined: bool,
    pub(super) keys: Keys,
    pub(super) trackers: BTreeMap<PathId, AckTracker>,
    /// The path by which the source counts on acknowledgements.
    pub(super) member: Option<PathId>,
    pub(super) notice_sequence: Option<u64>,
    pub(super) state_sequence: u64,
    /// Packets from here on prove that the flow arrives.
    pub(super) proof_from: u64,
    /// Paths proved since then, and the time of the last READY.
    pub(super) ready_sent: BTreeMap<PathId, Instant>,
    pub(super) last_packet: Instant,
    /// When this receiver was found to have been away itself. It counts until a packet has come, and once until then.
    back: Option<Instant>,
    /// Since when it has a key.
    pub(super) keyed: Option<Instant>,
    pub(super) invalid: u64,
    /// Whether it was left for good.
    pub(super) left: bool,
    /// The source keeps this receiver off it for now.
    pub(super) held: bool,
    /// This receiver keeps off it until then.
    pub(super) off_until: Option<Instant>,
    /// The next update to be delivered when invalid packets were last forgotten.
    forgiven_at: u64,
    pub(super) rejoin_after: Duration,
    pub(super) rejoin_at: Option<Instant>,
    /// Probe of the native join.
    pub(super) native: Probe,
    pub(super) tunnel: Tunnel,
    /// When copies are asked for.
    pub(super) copies_at: Option<Instant>,
    copies_after: Duration,
    /// Whether replication was requested since the last fall-back.
    asked: bool,
    /// Newest key sequence reported to the source.
    told_key: u64,
    grant: Option<Grant>,
    window_sequence: u64,
    /// The packets whose messages the application has.
    told: RangeSet,
    told_floor: u64,
}

impl Flow {
    fn new(announce: Announce, channel: usize, now: Instant) -> Self {
        Flow {
            announce,
            channel,
            joined: false,
            keys: Keys::default(),
            trackers: BTreeMap::new(),
            member: None,
            notice_sequence: None,
            state_sequence: 0,
            proof_from: 0,
            ready_sent: BTreeMap::new(),
            last_packet: now,
            back: None,
            keyed: None,
            invalid: 0,
            left: false,
            held: false,
            off_until: None,
            forgiven_at: 0,
            rejoin_after: REJOIN_FIRST,
            rejoin_at: None,
            native: Probe::default(),
            tunnel: Tunnel::new(),
            copies_at: None,
            copies_after: COPIES_AGAIN,
            asked: false,
            told_key: 0,
            grant: None,
            window_sequence: 0,
            told: RangeSet::new(),
            told_floor: 0,
        }
    }

    /// Nothing is done to get it.
    pub(super) fn is_off(&self) -> bool {
        self.left || self.held || self.off_until.is_some()
    }

    fn largest(&self) -> Option<u64> {
        self.trackers.values().filter_map(AckTracker::largest).max()
    }

    /// Stops rejoining and requesting replication.
    pub(super) fn stop_asking(&mut self) {
        (self.rejoin_at, self.copies_at) = (None, None);
        self.asked = false;
    }

    /// Copies are to be asked for later, and were not yet.
    pub(super) fn awaits_replication(&self) -> bool {
        self.copies_at.is_some() && !self.asked
    }

    pub(super) fn rung(&self) -> Rung {
        self.member.and_then(PathId::rung).unwrap_or(Rung::Unicast)
    }

    /// When this receiver was found to have been away since the last packet.
    fn back(&self) -> Option<Instant> {
        self.back.filter(|back| *back > self.last_packet)
    }

    /// The receiver itself was away: what the flow has sent meanwhile is still under way, or was never sent, if its source stood still, too.
    fn grant_grace(&mut self, now: Instant) {
        let heartbeat = self.announce.heartbeat;
        let in_time = silent_at(self) >= now + heartbeat_and_jitter(heartbeat);
        if self.member.is_none() || self.back().is_some() || in_time {
            return;
        }
        self.back = Some(now);
        // The ways that bring it are missed before they are doubted.
        let later = now + heartbeat * 2;
        self.rejoin_at = self.rejoin_at.map(|at| at.max(later));
        self.tunnel.trust(later);
    }

    /// When something has to be done for it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let ack = |path| self.trackers.get(&path).and_then(AckTracker::deadline);
        let member = [
            self.member.and_then(ack),
            self.member.map(|_| silent_at(self)),
        ];
        let own = [
            self.rejoin_at,
            self.copies_at,
            self.keys.deadline(),
            self.tunnel.deadline(),
            self.off_until,
        ];
        member.into_iter().chain(own).flatten().min()
    }

    /// Lets the flow send further once a good part of what was granted is used up.
    fn grant(&mut self, out: &mut Zeroizing<Vec<u8>>) {
        let Some(grant) = &mut self.grant else {
            return;
        };
        let offset = grant.anchor.offset.saturating_add(grant.consumed);
        let offset = offset.saturating_add(WINDOW).min(VARINT_MAX);
        if offset < grant.told.saturating_add(WINDOW / 4) {
            return;
        }
        grant.told = offset;
        self.window_sequence += 1;
        let window = Window {
            flow: self.announce.flow,
            sequence: self.window_sequence,
            offset,
        };
        say(out, &Control::Window(window));
    }
}

impl Receiver {
    /// Whether this receiver can join one of the endpoints.
    pub(super) fn can_join(&self, announce: &Announce) -> bool {
        let rungs = &self.config.rungs;
        announce.endpoints.iter().any(|e| match e.group.is_ipv4() {
            true => rungs.multicast_v4,
            false => rungs.multicast_v6,
        })
    }

    pub(super) fn on_announce(
        &mut self,
        announce: Announce,
        now: Instant,
    ) -> Result<(), WireError> {
        let id = announce.flow;
        let joinable = self.can_join(&announce);
        if let Some(known) = self.flows.get_mut(&id) {
            if announce.sequence <= known.announce.sequence {
                return Ok(());
            }
            if announce.withdrawn {
                if let Some(gone) = self.flows.remove(&id) {
                    self.forget(gone, Cause::FlowInvalid);
                }
                return Ok(());
            }
            let moved = known.announce.endpoints != announce.endpoints;
            let relays = known.announce.relays != announce.relays;
            let offered = announce.copies && !known.announce.copies;
            known.announce = announce;
            if offered && !moved && known.member.is_none() {
                self.want_replication(id, now + STAGGER);
            } else if moved && !known.is_off() {
                if std::mem::take(&mut known.joined) {
                    known.rejoin_at = None;
                    known.native.end();
                    self.events.push_back(ReceiverEvent::Leave { flow: id });
                    if !joinable {
                        let out = &mut self.control_out;
                        send_state(known, out, Action::Leave, PathId::UNICAST, None);
                    }
                }
                self.join(id, joinable, now);
            }
            if relays && !moved {
                self.announced_tunnel(id, now);
            }
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
        let mut flow = Flow::new(announce, channel, now);
        flow.forgiven_at = self.channels[channel].merge.next();
        self.flows.insert(id, flow);
        self.join(id, joinable, now);
        Ok(())
    }

    /// Begins to listen to a flow by the ways that there are.
    pub(super) fn join(&mut self, id: FlowId, joinable: bool, now: Instant) {
        if self.stay_off(id, now) {
            return;
        }
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if joinable {
            flow.joined = true;
            flow.rejoin_at = Some(now + REJOIN_FIRST);
            flow.native.begin(now);
            send_state(
                flow,
                &mut self.control_out,
                Action::Join,
                PathId::UNICAST,
                None,
            );
            self.events.push_back(ReceiverEvent::Join {
                flow: id,
                endpoints: flow.announce.endpoints.clone(),
            });
        }
        self.announced_tunnel(id, now);
        let tunnel = self.flows.get(&id).and_then(|f| f.tunnel.deadline());
        let wait = if joinable || tunnel.is_some() {
            STAGGER
        } else {
            Duration::ZERO
        };
        self.want_replication(id, now + wait);
    }

    /// Asks for copies at `at`, if nothing better comes before.
    pub(super) fn want_replication(&mut self, id: FlowId, at: Instant) {
        if let Some(flow) = self.flows.get_mut(&id)
            && flow.announce.copies
            && self.config.rungs.replicated
            && !flow.is_off()
        {
            flow.copies_at = Some(at);
        }
    }

    /// Cleans up after a flow that is gone.
    pub(super) fn forget(&mut self, mut flow: Flow, cause: Cause) {
        self.events.extend(tunnel::forgotten(&mut flow));
        if flow.joined {
            let id = flow.announce.flow;
            self.events.push_back(ReceiverEvent::Leave { flow: id });
        }
        if flow.member.is_some() {
            let channel = self.channels[flow.channel].name.clone();
            self.events.push_back(ReceiverEvent::Moved {
                channel,
                rung: Rung::Unicast,
                cause,
            });
        }
    }

    pub(super) fn on_key(&mut self, key: Key, now: Instant) {
        let id = key.flow;
        let Some(flow) = self.flows.get_mut(&key.flow) else {
            return;
        };
        let first = flow.keys.is_empty();
        if flow.left || !flow.keys.insert(key) {
            return;
        }
        self.channels[flow.channel].stats.keys += 1;
        // A proof counts only with the current key, so READY is repeated.
        flow.ready_sent.clear();
        // The source waits for all members to say that they hold it before it uses it.
        confirm(flow, &mut self.control_out);
        if first {
            flow.keyed = Some(now);
            self.first_key(id, now);
        }
    }

    pub(super) fn on_rung(&mut self, notice: RungNotice, now: Instant) {
        let hold = self.hold(notice.flow);
        let later = self.rng.random_range(0.75..1.25);
        let Some(flow) = self.flows.get_mut(&notice.flow) else {
            return;
        };
        if flow
            .notice_sequence
            .is_some_and(|known| notice.sequence <= known)
        {
            return;
        }
        flow.notice_sequence = Some(notice.sequence);
        let Some(rung) = notice.path.rung() else {
            return;
        };
        let (was, was_on) = (flow.member, flow.rung());
        if rung == Rung::Unicast {
            flow.member = None;
            flow.proof_from = notice.first_pn;
            flow.ready_sent.clear();
            // Earlier packets prove nothing any more and are not acknowledged again; a forged
            // number among them is forgotten here.
            for tracker in flow.trackers.values_mut() {
                *tracker = AckTracker::starting_at(notice.first_pn);
            }
            flow.grant = None;
            flow.asked = false;
            if was.is_some() && flow.copies_at.is_none() {
                let at = now + COPIES_AFTER_FALL_BACK.mul_f64(later);
                self.want_replication(notice.flow, at);
            }
        } else {
            flow.member = Some(notice.path);
            flow.copies_at = None;
            flow.copies_after = COPIES_AGAIN;
            flow.grant = notice.anchor.map(|anchor| Grant {
                anchor,
                consumed: 0,
                told: anchor.offset,
            });
            flow.grant(&mut self.control_out);
            if flow.keys.sequence() > Some(flow.told_key) {
                // The key and the promotion crossed: the source waits to hear of the key.
                confirm(flow, &mut self.control_out);
            }
            // The heartbeats are counted from here: the proof came by a packet, but perhaps a while ago.
            flow.last_packet = now;
            let tracker = flow.trackers.entry(notice.path).or_default();
            if tracker.largest().is_some_and(|pn| pn >= notice.first_pn) {
                tracker.owe(now, hold);
            }
        }
        let held = rung == Rung::Unicast && notice.cause == Cause::Held;
        self.set_held(notice.flow, held, now);
        self.tunnel_after_move(notice.flow, was_on, now);
        let Some(flow) = self.flows.get(&notice.flow) else {
            return;
        };
        if was != flow.member {
            let channel = self.channels[flow.channel].name.clone();
            self.events.push_back(ReceiverEvent::Moved {
                channel,
                rung,
                cause: notice.cause,
            });
        }
    }

    /// Returns the delay of the next acknowledgement: the announced delay with a quarter of jitter,
    /// so that members do not answer in chorus.
    pub(super) fn hold(&mut self, flow: FlowId) -> Duration {
        let delay = self
            .flows
            .get(&flow)
            .map_or(Duration::ZERO, |f| f.announce.ack_delay);
        delay.mul_f64(self.rng.random_range(0.75..1.25))
    }

    /// Whether a datagram is for a flow that the source announced, and not for the connection (protocol.md section 2).
    pub fn knows_flow(&self, datagram: &[u8]) -> bool {
        peek_flow_id(datagram).is_some_and(|id| self.flows.contains_key(&id))
    }

    /// A datagram that arrived for a flow by `rung`. It is decrypted in place.
    pub fn on_flow_datagram(&mut self, rung: Rung, datagram: &mut [u8], now: Instant) -> FlowInput {
        let Some(id) = peek_flow_id(datagram) else {
            return FlowInput::UnknownFlow;
        };
        let mut seen = PacketFindings::default();
        let len = datagram.len();
        let input = self.take_packet(id, rung, datagram, now, &mut seen);
        if let Some(flow) = self.flows.get(&id) {
            let path = PathId::new(flow.announce.flow_index, rung);
            self.tracer.note(|| PacketTrace {
                at: now,
                flow: id,
                path,
                outcome: match input {
                    FlowInput::Accepted => Outcome::Received,
                    other => Outcome::Dropped(other),
                },
                pn: seen.pn,
                key_sequence: seen.key_sequence,
                len,
                frames: seen.frames,
            });
        }
        input
    }

    fn take_packet(
        &mut self,
        id: FlowId,
        rung: Rung,
        datagram: &mut [u8],
        now: Instant,
        seen: &mut PacketFindings,
    ) -> FlowInput {
        let hold = self.hold(id);
        let readable = |f: &&mut Flow| !f.keys.is_empty() && f.off_until.is_none();
        let Some(flow) = self.flows.get_mut(&id).filter(readable) else {
            return FlowInput::UnknownFlow;
        };
        let channel = &mut self.channels[flow.channel];
        let expected = flow.largest().map_or(flow.keys.first_pn(), |pn| pn + 1);
        let Some((packet, sequence)) = flow.keys.open(expected, datagram, now) else {
            channel.stats.flow_invalid += 1;
            return FlowInput::Unverified;
        };
        if self.tracer.is_on() {
            seen.pn = Some(packet.pn);
            seen.key_sequence = sequence;
            seen.frames = crate::trace::frames(packet.frames);
        }
        let path = PathId::new(flow.announce.flow_index, rung);
        // A packet arrives natively and replicated, and received numbers are forgotten at each
        // fall-back: frames that are not merged by their place in an update are delivered once.
        let again = packet.pn < flow.told_floor || flow.told.contains(packet.pn);
        let tracker = flow.trackers.entry(path).or_default();
        let before = channel.merge.stats().distrusted;
        if tracker.is_duplicate(packet.pn) {
            channel.stats.duplicates += 1;
            // The first packet with this number may have been forged by a member: the content of
            // this one is kept, though its number is not acknowledged again.
            for frame in Frames::new(packet.frames).flatten() {
                if let Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin,
                } = frame
                {
                    let end = offset + data.len() as u64;
                    if channel.merge.accepts(seq, offset..end, fin) {
                        let total = fin.then_some(end);
                        channel.merge.add_flow(seq, offset, data, total);
                    }
                }
            }
            self.distrusted_since(id, before, now);
            return FlowInput::Duplicate;
        }
        let mut ack_eliciting = false;
        for frame in Frames::new(packet.frames) {
            match frame {
                Ok(frame) => {
                    ack_eliciting |= frame.is_ack_eliciting();
                    if let Frame::Stream {
                        seq,
                        offset,
                        data,
                        fin,
                    } = frame
                        && !channel
                            .merge
                            .accepts(seq, offset..offset + data.len() as u64, fin)
                    {
                        channel.stats.no_room += 1;
                        return FlowInput::NoRoom;
                    }
                }
                Err(_) => {
                    channel.stats.flow_invalid += 1;
                    flow.invalid += 1;
                    if flow.invalid >= MAX_INVALID && !flow.left {
                        self.leave(id, Cause::FlowInvalid);
                    }
                    return FlowInput::Invalid;
                }
            }
        }
        for frame in Frames::new(packet.frames).flatten() {
            match frame {
                Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin,
                } => {
                    let total = fin.then_some(offset + data.len() as u64);
                    // A source that cannot be asked for an update that is behind is found to be so
                    // by its head. To others, a number of the flow's proves nothing.
                    if !channel.merge.does_source_answer() {
                        channel.stats.head = channel.stats.head.max(seq);
                    }
                    channel.merge.add_flow(seq, offset, data, total);
                }
                Frame::Reset { .. } => channel.stats.resets += 1,
                Frame::Datagram { .. } if again => {}
                Frame::Datagram { data } => {
                    flow.told.insert_one(packet.pn);
                    channel.stats.datagrams += 1;
                    let waiting = self.events.iter().filter(|e| is_datagram(e)).count();
                    if waiting < MAX_DATAGRAMS {
                        self.events.push_back(ReceiverEvent::Datagram {
                            channel: channel.name.clone(),
                            data: Bytes::copy_from_slice(data),
                        });
                    }
                }
                Frame::Padding | Frame::Ping | Frame::Unknown { .. } => {}
            }
        }
        if let Some(floor) = flow.told.truncate_low(MAX_TOLD) {
            flow.told_floor = floor;
        }
        channel.stats.flow_packets += 1;
        if channel.stats.flow_packets.is_multiple_of(1000) {
            // A bad packet now and then, among more that is good, is no reason to leave.
            let next = channel.merge.next();
            if next.saturating_sub(flow.forgiven_at) > flow.invalid {
                (flow.invalid, flow.forgiven_at) = (0, next);
            }
        }
        channel.stats.copied_packets += u64::from(rung == Rung::Replicated);
        channel.stats.tunnelled_packets += u64::from(rung == Rung::Amt);
        let owes = flow.member == Some(path);
        tracker.on_packet(packet.pn, now, hold, ack_eliciting, owes);
        if flow.member.is_none_or(|member| member == path) {
            flow.last_packet = now;
        }
        let quiet = quiet_span(flow);
        match rung {
            Rung::Multicast => {
                flow.native.end();
                flow.rejoin_after = REJOIN_FIRST;
                flow.rejoin_at = Some(now + REJOIN_FIRST.max(quiet));
                flow.tunnel.native(owes, now);
            }
            Rung::Amt => flow.tunnel.works(quiet, now),
            Rung::Replicated | Rung::Unicast => {}
        }
        if rung < flow.rung() && packet.pn >= flow.proof_from && !flow.held {
            let told = flow.ready_sent.get(&path);
            if told.is_none_or(|at| *at + READY_AGAIN <= now) {
                flow.ready_sent.insert(path, now);
                send_state(flow, &mut self.control_out, Action::Ready, path, None);
            }
        }
        self.distrusted_since(id, before, now);
        FlowInput::Accepted
    }

    /// Counts each update that this packet made suspect like an invalid packet: a flow that does
    /// nothing else is left.
    fn distrusted_since(&mut self, id: FlowId, before: u64, now: Instant) {
        let Some(channel) = self.flows.get(&id).map(|f| f.channel) else {
            return;
        };
        self.wake_for_needs(channel, now);
        let found = self.channels[channel].merge.stats().distrusted - before;
        let Some(flow) = self.flows.get_mut(&id).filter(|_| found > 0) else {
            return;
        };
        flow.invalid += found;
        if flow.invalid >= MAX_INVALID && !flow.left {
            self.leave(id, Cause::FlowInvalid);
        }
    }

    /// Leaves a flow for good: its packets make no sense to this receiver.
    fn leave(&mut self, id: FlowId, cause: Cause) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        let was_joined = std::mem::take(&mut flow.joined);
        flow.left = true;
        flow.keys.clear();
        (flow.rejoin_at, flow.copies_at) = (None, None);
        self.events.extend(tunnel::forgotten(flow));
        send_state(
            flow,
            &mut self.control_out,
            Action::Leave,
            PathId::UNICAST,
            Some(cause),
        );
        if was_joined {
            self.events.push_back(ReceiverEvent::Leave { flow: id });
        }
    }

    /// An update of a channel was handed out: its flow may send further.
    pub(super) fn consumed(&mut self, channel: usize, seq: u64, len: usize) {
        for flow in self.flows.values_mut().filter(|f| f.channel == channel) {
            if let Some(grant) = &mut flow.grant
                && seq >= grant.anchor.seq
            {
                grant.consumed = grant.consumed.saturating_add(len as u64);
                flow.grant(&mut self.control_out);
            }
        }
    }

    /// Handles the flows' timers: missed heartbeats, silent joins, replication, old keys.
    pub(super) fn flow_timeouts(&mut self, now: Instant) {
        self.trust_again(now);
        let mut silent = Vec::new();
        for (id, flow) in &mut self.flows {
            flow.keys.handle_timeout(now);
            if flow.member.is_some() && silent_at(flow) <= now {
                // The source's FC_RUNG answers this; until then nothing is owed, for nothing arrives.
                silent.push((*id, flow.rung()));
                let path = flow.member.take().unwrap_or(PathId::UNICAST);
                send_state(
                    flow,
                    &mut self.control_out,
                    Action::Leave,
                    path,
                    Some(Cause::HeartbeatLost),
                );
                if flow.announce.copies && self.config.rungs.replicated {
                    flow.copies_at = Some(now + COPIES_AFTER_FALL_BACK);
                }
                let channel = self.channels[flow.channel].name.clone();
                self.events.push_back(ReceiverEvent::Moved {
                    channel,
                    rung: Rung::Unicast,
                    cause: Cause::HeartbeatLost,
                });
            }
            if flow.copies_at.is_some_and(|at| at <= now) {
                let path = PathId::new(flow.announce.flow_index, Rung::Replicated);
                flow.copies_at =
                    Some(now + flow.copies_after.mul_f64(self.rng.random_range(0.75..1.25)));
                flow.copies_after = (flow.copies_after * 2).min(REJOIN_MAX);
                flow.asked = true;
                send_state(flow, &mut self.control_out, Action::Join, path, None);
            }
            if flow.rejoin_at.is_some_and(|at| at <= now) {
                flow.rejoin_after = (flow.rejoin_after * 2).min(REJOIN_MAX);
                flow.rejoin_at =
                    Some(now + flow.rejoin_after.mul_f64(self.rng.random_range(0.75..1.25)));
                if flow.joined {
                    let channel = &self.channels[flow.channel].name;
                    let (out, events) = (&mut self.control_out, &mut self.events);
                    probe::judge(flow, Rung::Multicast, channel, out, events, now);
                    self.events.push_back(ReceiverEvent::Rejoin { flow: *id });
                }
            }
        }
        for (id, was) in silent {
            self.tunnel_after_move(id, was, now);
        }
        let due = |flow: &Flow| flow.tunnel.deadline().is_some_and(|at| at <= now);
        let due = self.flows.iter().filter(|(_, flow)| due(flow));
        let due: Vec<_> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.tunnel_timeout(id, now);
        }
    }

    /// The caller itself was away, and has read what came meanwhile: no flow that should have been heard is given up before it had the time for one more
    /// heartbeat. It counts once until something of the flow arrives: a receiver that is always late leaves in the end.
    pub fn grant_grace(&mut self, now: Instant) {
        for flow in self.flows.values_mut() {
            flow.grant_grace(now);
        }
    }

    /// The host's network changed: whatever did not work may work now, and is tried at once.
    pub fn network_changed(&mut self, now: Instant) {
        let ids: Vec<_> = self.flows.keys().copied().collect();
        for id in ids {
            let Some(flow) = self.flows.get_mut(&id) else {
                continue;
            };
            (flow.rejoin_after, flow.copies_after) = (REJOIN_FIRST, COPIES_AGAIN);
            if flow.joined {
                flow.rejoin_at = Some(now + REJOIN_FIRST);
                self.events.push_back(ReceiverEvent::Rejoin { flow: id });
            }
            let (none, joined) = (flow.member.is_none(), flow.joined);
            self.reopen_tunnel(id, now);
            if none {
                let tunnel = self.flows.get(&id).and_then(|f| f.tunnel.deadline());
                let wait = if joined || tunnel.is_some() {
                    STAGGER
                } else {
                    Duration::ZERO
                };
                self.want_replication(id, now + wait);
            }
        }
    }
}

/// Intermediate results about a packet.
#[derive(Default)]
struct PacketFindings {
    pn: Option<u64>,
    key_sequence: u64,
    frames: Vec<TracedFrame>,
}

fn is_datagram(event: &ReceiverEvent) -> bool {
    matches!(event, ReceiverEvent::Datagram { .. })
}

/// A flow that is silent for longer than this does not arrive.
pub(super) fn quiet_span(flow: &Flow) -> Duration {
    flow.announce.heartbeat * (HEARTBEATS + 1)
}

/// A heartbeat, and a quarter of one for its jitter on the way.
fn heartbeat_and_jitter(heartbeat: Duration) -> Duration {
    heartbeat + heartbeat / 4
}

/// When a member that hears nothing more knows that the flow is gone: three heartbeats behind the last packet, with their jitter, but no sooner than one behind its
/// own absence.
pub(super) fn silent_at(flow: &Flow) -> Instant {
    let heartbeat = flow.announce.heartbeat;
    let at = flow.last_packet + heartbeat * (HEARTBEATS - 1) + heartbeat_and_jitter(heartbeat);
    let back = flow.back().map(|at| at + heartbeat_and_jitter(heartbeat));
    back.map_or(at, |back| back.max(at))
}

pub(super) fn send_state(
    flow: &mut Flow,
    out: &mut Zeroizing<Vec<u8>>,
    action: Action,
    path: PathId,
    cause: Option<Cause>,
) {
    flow.state_sequence += 1;
    let key_sequence = flow.keys.sequence().unwrap_or(0);
    flow.told_key = key_sequence;
    let state = State {
        flow: flow.announce.flow,
        sequence: flow.state_sequence,
        action,
        path,
        key_sequence,
        cause,
    };
    say(out, &Control::State(state));
}

/// Says which key this receiver holds, in the words by which it came to listen: a READY would be a proof that it is not.
fn confirm(flow: &mut Flow, out: &mut Zeroizing<Vec<u8>>) {
    let copied = flow.asked || flow.rung() == Rung::Replicated;
    let path = match flow.joined {
        true => PathId::UNICAST,
        false if flow.tunnel.is_open() => PathId::new(flow.announce.flow_index, Rung::Amt),
        false if copied => PathId::new(flow.announce.flow_index, Rung::Replicated),
        false => return,
    };
    send_state(flow, out, Action::Join, path, None);
}

/// Appends a frame to the control stream.
fn say(out: &mut Zeroizing<Vec<u8>>, frame: &Control) {
    frame.encode(out);
}
