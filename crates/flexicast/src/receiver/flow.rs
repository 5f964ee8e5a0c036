//! What a receiver does about flows: joins, keys, packets, proofs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rand::RngExt;

use super::{FlowInput, Receiver, ReceiverEvent};
use crate::ack::AckTracker;
use crate::control::{Action, Announce, Control, Key, RungNotice, State};
use crate::frame::{Frame, Frames};
use crate::merge::Origin;
use crate::protect::{Algorithm, PacketKey, peek_flow_id};
use crate::{Cause, FlowId, PathId, Rung, WireError};

/// A receiver leaves a flow after so many verified packets with invalid frames.
const MAX_INVALID: u64 = 100;
/// Most flows that a source may announce on one connection.
const MAX_FLOWS: usize = 256;
/// Missed heartbeats that mean the flow is gone.
const HEARTBEATS: u32 = 3;
/// A join by which nothing arrives is made anew after this time, doubling up to the maximum.
const REJOIN_FIRST: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) announce: Announce,
    pub(super) channel: usize,
    pub(super) joined: bool,
    pub(super) key: Option<(Key, PacketKey)>,
    pub(super) trackers: BTreeMap<PathId, AckTracker>,
    /// The path by which the source counts on acknowledgements.
    pub(super) member: Option<PathId>,
    pub(super) notice_sequence: Option<u64>,
    pub(super) state_sequence: u64,
    /// Packets from here on prove that the flow arrives.
    pub(super) proof_from: u64,
    /// The paths by which it was proved since then, each told once.
    pub(super) ready_sent: BTreeSet<PathId>,
    pub(super) last_packet: Instant,
    pub(super) invalid: u64,
    pub(super) rejoin_after: Duration,
    pub(super) rejoin_at: Option<Instant>,
}

impl Flow {
    fn largest(&self) -> Option<u64> {
        self.trackers.values().filter_map(AckTracker::largest).max()
    }
}

impl Receiver {
    pub(super) fn on_announce(
        &mut self,
        announce: Announce,
        now: Instant,
    ) -> Result<(), WireError> {
        let id = announce.flow;
        if let Some(known) = self.flows.get_mut(&id) {
            if announce.sequence <= known.announce.sequence {
                return Ok(());
            }
            if announce.endpoints.is_empty() {
                let joined = known.joined;
                self.flows.remove(&id);
                if joined {
                    self.events.push_back(ReceiverEvent::Leave { flow: id });
                }
                return Ok(());
            }
            let moved = known.announce.endpoints != announce.endpoints;
            known.announce = announce;
            if moved && known.joined {
                self.events.push_back(ReceiverEvent::Leave { flow: id });
                self.events.push_back(ReceiverEvent::Join {
                    flow: id,
                    endpoints: known.announce.endpoints.clone(),
                });
            }
            return Ok(());
        }
        let Some(channel) = self
            .channels
            .iter()
            .position(|c| c.number == Some(announce.channel))
        else {
            return Ok(());
        };
        if announce.endpoints.is_empty() {
            return Ok(());
        }
        if self.flows.len() >= MAX_FLOWS {
            return Err(WireError::invalid(
                "FC_ANNOUNCE",
                "more flows than a receiver takes",
            ));
        }
        let joined = self.config.multicast && announce.endpoints.iter().any(|e| e.group.is_ipv4());
        let mut flow = Flow {
            channel,
            joined,
            key: None,
            trackers: BTreeMap::new(),
            member: None,
            notice_sequence: None,
            state_sequence: 0,
            proof_from: 0,
            ready_sent: BTreeSet::new(),
            last_packet: now,
            invalid: 0,
            rejoin_after: REJOIN_FIRST,
            rejoin_at: joined.then(|| now + REJOIN_FIRST),
            announce,
        };
        if joined {
            send_state(
                &mut flow,
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
        self.flows.insert(id, flow);
        Ok(())
    }

    pub(super) fn on_key(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(&key.flow) else {
            return;
        };
        if flow
            .key
            .as_ref()
            .is_some_and(|(known, _)| key.sequence <= known.sequence)
        {
            return;
        }
        // An algorithm that this receiver does not know leaves it on unicast: nothing verifies, nothing is proved.
        let Some(algorithm) = Algorithm::from_suite(key.algorithm) else {
            return;
        };
        if let Ok(made) = PacketKey::new(algorithm, &key.secret) {
            flow.key = Some((key, made));
        }
    }

    pub(super) fn on_rung(&mut self, notice: RungNotice, now: Instant) {
        let hold = self.hold(notice.flow);
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
        let was = flow.member;
        if rung == Rung::Unicast {
            flow.member = None;
            flow.proof_from = notice.first_pn;
            flow.ready_sent.clear();
            // What arrived before proves nothing any more and is acknowledged no more: should a forged number have been among it, it is forgotten here.
            for tracker in flow.trackers.values_mut() {
                *tracker = AckTracker::starting_at(notice.first_pn);
            }
        } else {
            flow.member = Some(notice.path);
            // The heartbeats are counted from here: the proof came by a packet, but perhaps a while ago.
            flow.last_packet = now;
            let tracker = flow.trackers.entry(notice.path).or_default();
            if tracker.largest().is_some_and(|pn| pn >= notice.first_pn) {
                tracker.owe(now, hold);
            }
        }
        if was != flow.member {
            let channel = self.channels[flow.channel].name.clone();
            self.events.push_back(ReceiverEvent::Moved {
                channel,
                rung,
                cause: notice.cause,
            });
        }
    }

    /// How long the next acknowledgement waits: the announced delay with a quarter of jitter, so that members do not answer in chorus.
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
        let hold = self.hold(id);
        let Some(flow) = self.flows.get_mut(&id) else {
            return FlowInput::UnknownFlow;
        };
        let largest = flow.largest();
        let Some((key, packet_key)) = &mut flow.key else {
            return FlowInput::UnknownFlow;
        };
        let channel = &mut self.channels[flow.channel];
        let expected = largest.map_or(key.first_pn, |pn| pn + 1);
        let Ok(packet) = packet_key.open(expected, datagram) else {
            channel.stats.flow_invalid += 1;
            return FlowInput::Unverified;
        };
        if packet.pn < key.first_pn || packet.key_phase != (key.sequence & 1 == 1) {
            channel.stats.flow_invalid += 1;
            return FlowInput::Unverified;
        }
        let path = PathId::new(flow.announce.flow_index, rung);
        let tracker = flow.trackers.entry(path).or_default();
        if tracker.is_duplicate(packet.pn) {
            channel.stats.duplicates += 1;
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
                        return FlowInput::NoRoom;
                    }
                }
                Err(_) => {
                    channel.stats.flow_invalid += 1;
                    flow.invalid += 1;
                    if flow.invalid == MAX_INVALID {
                        self.leave(id, Cause::FlowInvalid);
                    }
                    return FlowInput::Invalid;
                }
            }
        }
        for frame in Frames::new(packet.frames).flatten() {
            if let Frame::Stream {
                seq,
                offset,
                data,
                fin,
            } = frame
            {
                let total = fin.then_some(offset + data.len() as u64);
                channel.stats.head = channel.stats.head.max(seq);
                channel.merge.add(seq, offset, data, total, Origin::Flow);
            }
        }
        channel.stats.flow_packets += 1;
        tracker.on_packet(
            packet.pn,
            now,
            hold,
            ack_eliciting,
            flow.member == Some(path),
        );
        if flow.member.is_none_or(|member| member == path) {
            flow.last_packet = now;
        }
        flow.rejoin_after = REJOIN_FIRST;
        flow.rejoin_at = Some(now + REJOIN_FIRST.max(flow.announce.heartbeat * (HEARTBEATS + 1)));
        let proves = flow.member.is_none() && packet.pn >= flow.proof_from;
        if proves && flow.ready_sent.insert(path) {
            send_state(flow, &mut self.control_out, Action::Ready, path, None);
        }
        FlowInput::Accepted
    }

    /// Leaves a flow for good: its packets make no sense to this receiver.
    fn leave(&mut self, id: FlowId, cause: Cause) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        flow.joined = false;
        flow.key = None;
        flow.rejoin_at = None;
        send_state(
            flow,
            &mut self.control_out,
            Action::Leave,
            PathId::UNICAST,
            Some(cause),
        );
        self.events.push_back(ReceiverEvent::Leave { flow: id });
    }
}

/// When a member that hears nothing more knows that the flow is gone: three heartbeats, and a quarter of one for their jitter on the way.
pub(super) fn silent_at(flow: &Flow) -> Instant {
    flow.last_packet + flow.announce.heartbeat * HEARTBEATS + flow.announce.heartbeat / 4
}

pub(super) fn send_state(
    flow: &mut Flow,
    out: &mut Vec<u8>,
    action: Action,
    path: PathId,
    cause: Option<Cause>,
) {
    flow.state_sequence += 1;
    let key_sequence = flow.key.as_ref().map_or(0, |(key, _)| key.sequence);
    let state = State {
        flow: flow.announce.flow,
        sequence: flow.state_sequence,
        action,
        path,
        key_sequence,
        cause,
    };
    Control::State(state).encode(out);
}
