//! The receiver's state machine: what it says on the control stream, which flow packets it takes, what it acknowledges, and the updates that come out.
//!
//! It lives as long as the receiver does, across connections: [`Receiver::connected`] and [`Receiver::disconnected`] mark their ends, and what is delivered or
//! half received stays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::ack::AckTracker;
use crate::control::{
    Action, Announce, CAPABILITY_MULTICAST_IPV4, Control, ControlReader, Credential, Endpoint,
    Hello, Key, RungNotice, State, WelcomeChannel,
};
use crate::frame::{Frame, Frames};
use crate::merge::{Delivered, Merge, Origin};
use crate::protect::{Algorithm, PacketKey, peek_flow_id};
use crate::unicast::{Piece, StreamReader};
use crate::{Cause, Cursor, FlowId, PathId, Rung, WireError};

/// A receiver leaves a flow after so many verified packets with invalid frames.
const MAX_INVALID: u64 = 100;
/// Most flows that a source may announce on one connection.
const MAX_FLOWS: usize = 256;
/// Cursors are reported at most so often (design section 5).
const CURSOR_EVERY: Duration = Duration::from_secs(1);
/// Missed heartbeats that mean the flow is gone.
const HEARTBEATS: u32 = 3;
/// A join by which nothing arrives is made anew after this time, doubling up to the maximum.
const REJOIN_FIRST: Duration = Duration::from_secs(3);
const REJOIN_MAX: Duration = Duration::from_secs(300);

/// What a receiver is made with.
#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    /// Made once and kept.
    pub receiver: Uuid,
    /// For people.
    pub name: String,
    /// Program and version.
    pub software: String,
    /// Why it may receive.
    pub credential: Credential,
    /// The channels, each with how far the outputs are.
    pub channels: Vec<(String, Option<Cursor>)>,
    /// Whether to try the flow by IPv4 multicast.
    pub multicast: bool,
    /// For the jitter of acknowledgements.
    pub seed: u64,
    /// Test-only: what arrives twice is delivered twice.
    pub dedupe_off: bool,
}

/// What the owner of a receiver should know or do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// The source serves this channel.
    Welcome {
        /// The channel's name.
        channel: String,
        /// Its incarnation.
        incarnation: Uuid,
        /// The source's last `seq`.
        head: u64,
        /// Where delivery begins.
        first: u64,
        /// The incarnation is not the one of the cursor: delivery starts over.
        resync: bool,
    },
    /// These updates are gone for good: older than the source's retention.
    Gap {
        /// The channel's name.
        channel: String,
        /// First `seq` that is missing.
        from: u64,
        /// Last `seq` that is missing.
        to: u64,
    },
    /// The source turned the receiver away.
    Refused {
        /// A [`crate::control::Refusal`] number.
        code: u64,
        /// In the source's words.
        reason: String,
    },
    /// Listen to this flow by one of its endpoints.
    Join {
        /// The flow.
        flow: FlowId,
        /// Where it can be had.
        endpoints: Vec<Endpoint>,
    },
    /// Nothing arrives by the join: leave and join again.
    Rejoin {
        /// The flow.
        flow: FlowId,
    },
    /// Stop listening to this flow.
    Leave {
        /// The flow.
        flow: FlowId,
    },
    /// The source moved the receiver.
    Moved {
        /// The channel's name.
        channel: String,
        /// Where it stands now.
        rung: Rung,
        /// Why.
        cause: Cause,
    },
}

/// What became of a flow packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowInput {
    /// Its frames were taken.
    Accepted,
    /// It arrived before by the same path.
    Duplicate,
    /// No flow with this ID is known, or its key is not here yet.
    UnknownFlow,
    /// It did not verify under the flow's key.
    Unverified,
    /// It verified, but its frames make no sense.
    Invalid,
    /// There is no room for its updates; it is not acknowledged, so the source repairs it on the unicast path.
    NoRoom,
}

/// Counters of one channel, since the receiver's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelStats {
    /// The largest `seq` that the source is known to have.
    pub head: u64,
    /// Flow packets that were taken.
    pub flow_packets: u64,
    /// Flow packets that did not verify, or whose frames made no sense.
    pub flow_invalid: u64,
    /// Flow packets that arrived twice, and pieces of updates that were whole already.
    pub duplicates: u64,
    /// Times that flow and unicast bytes contradicted each other.
    pub mismatches: u64,
}

#[derive(Debug)]
struct Channel {
    name: String,
    incarnation: Option<Uuid>,
    merge: Merge,
    /// Its number on this connection.
    number: Option<u64>,
    stats: ChannelStats,
    cursor: Option<Cursor>,
    cursor_due: bool,
}

#[derive(Debug)]
struct Flow {
    announce: Announce,
    channel: usize,
    joined: bool,
    key: Option<(Key, PacketKey)>,
    trackers: BTreeMap<PathId, AckTracker>,
    /// The path by which the source counts on acknowledgements.
    member: Option<PathId>,
    notice_sequence: Option<u64>,
    state_sequence: u64,
    /// Packets from here on prove that the flow arrives.
    proof_from: u64,
    /// The paths by which it was proved since then, each told once.
    ready_sent: BTreeSet<PathId>,
    last_packet: Instant,
    invalid: u64,
    rejoin_after: Duration,
    rejoin_at: Option<Instant>,
}

impl Flow {
    fn largest(&self) -> Option<u64> {
        self.trackers.values().filter_map(AckTracker::largest).max()
    }
}

/// The state machine.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    channels: Vec<Channel>,
    flows: BTreeMap<FlowId, Flow>,
    connected: bool,
    welcomed: bool,
    control: ControlReader,
    control_out: Vec<u8>,
    streams: BTreeMap<u64, StreamReader>,
    events: VecDeque<ReceiverEvent>,
    next_cursor: Option<Instant>,
    last_cursor: Option<Instant>,
    rng: SmallRng,
}

impl Receiver {
    /// A receiver that is not connected yet.
    pub fn new(config: ReceiverConfig) -> Self {
        let channels = config.channels.iter().map(|(name, cursor)| Channel {
            name: name.clone(),
            incarnation: cursor.map(|c| c.incarnation),
            merge: Merge::new(cursor.map_or(1, |c| c.seq + 1), config.dedupe_off),
            number: None,
            stats: ChannelStats::default(),
            cursor: None,
            cursor_due: false,
        });
        Receiver {
            channels: channels.collect(),
            flows: BTreeMap::new(),
            connected: false,
            welcomed: false,
            control: ControlReader::new(),
            control_out: Vec::new(),
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            next_cursor: None,
            last_cursor: None,
            rng: SmallRng::seed_from_u64(config.seed),
            config,
        }
    }

    /// The handshake is complete and the source verified: says HELLO.
    pub fn connected(&mut self) {
        self.connected = true;
        let hello = Hello {
            receiver: self.config.receiver,
            name: self.config.name.clone(),
            software: self.config.software.clone(),
            credential: self.config.credential.clone(),
            channels: self
                .channels
                .iter()
                .map(|c| (c.name.clone(), Self::position(c)))
                .collect(),
            capabilities: if self.config.multicast {
                vec![CAPABILITY_MULTICAST_IPV4]
            } else {
                vec![]
            },
        };
        Control::Hello(hello).encode(&mut self.control_out);
    }

    /// What was handed over in order, as a cursor to go on from.
    fn position(channel: &Channel) -> Option<Cursor> {
        channel.incarnation.map(|incarnation| Cursor {
            incarnation,
            seq: channel.merge.next() - 1,
        })
    }

    /// The connection is gone: forgets everything that belongs to it.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.welcomed = false;
        self.control = ControlReader::new();
        self.control_out.clear();
        self.streams.clear();
        for (id, flow) in std::mem::take(&mut self.flows) {
            if flow.joined {
                self.events.push_back(ReceiverEvent::Leave { flow: id });
            }
        }
        for channel in &mut self.channels {
            channel.number = None;
        }
    }

    /// Whether unicast streams may be read: the source said which channel is which, and there is room for what they carry.
    pub fn wants_unicast(&self) -> bool {
        self.welcomed && self.channels.iter().all(|c| !c.merge.is_full())
    }

    /// Whether the source has answered the HELLO of this connection.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    /// How often the source's flows show that they are alive; 1 s before any was announced.
    pub fn heartbeat(&self) -> Duration {
        self.flows
            .values()
            .map(|f| f.announce.heartbeat)
            .max()
            .unwrap_or(Duration::from_secs(1))
    }

    /// Bytes for the control stream.
    pub fn take_control(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.control_out)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// The next update in order, with its channel's name and incarnation.
    pub fn poll_update(&mut self) -> Option<(&str, Uuid, Delivered)> {
        let channel = self.channels.iter_mut().find_map(|c| {
            c.merge
                .pop()
                .map(|update| (c.name.as_str(), c.incarnation, update))
        });
        channel.and_then(|(name, incarnation, update)| Some((name, incarnation?, update)))
    }

    /// Counters of a channel.
    pub fn stats(&self, channel: &str) -> Option<ChannelStats> {
        let channel = self.channels.iter().find(|c| c.name == channel)?;
        let merge = channel.merge.stats();
        let mut stats = channel.stats;
        stats.duplicates += merge.duplicates;
        stats.mismatches += merge.mismatches;
        stats.head = stats.head.max(channel.merge.next() - 1);
        Some(stats)
    }

    /// The outputs hold everything up to `cursor`, durably: the source is told within a second.
    pub fn confirm(&mut self, channel: &str, cursor: Cursor, now: Instant) {
        let Some(channel) = self.channels.iter_mut().find(|c| c.name == channel) else {
            return;
        };
        channel.cursor = Some(cursor);
        channel.cursor_due = true;
        let at = self
            .last_cursor
            .map_or(now, |last| last + CURSOR_EVERY)
            .max(now);
        self.next_cursor.get_or_insert(at);
    }

    /// Bytes of the control stream. An error is a violation by the source: close the connection.
    pub fn on_control(&mut self, bytes: &[u8], now: Instant) -> Result<(), WireError> {
        self.control.push(bytes);
        while let Some(frame) = self.control.next_frame()? {
            match frame {
                Control::Welcome(channels) => self.on_welcome(channels)?,
                Control::Refused { code, reason } => self
                    .events
                    .push_back(ReceiverEvent::Refused { code, reason }),
                Control::Announce(announce) => self.on_announce(announce, now)?,
                Control::Key(key) => self.on_key(key),
                Control::Rung(notice) => self.on_rung(notice, now),
                Control::Hello(_) | Control::Cursors(_) | Control::State(_) => {
                    return Err(WireError::invalid(
                        "control stream",
                        "a frame that only receivers send",
                    ));
                }
            }
        }
        Ok(())
    }

    fn on_welcome(&mut self, welcome: Vec<WelcomeChannel>) -> Result<(), WireError> {
        if self.welcomed {
            return Err(WireError::invalid("WELCOME", "a second one"));
        }
        self.welcomed = true;
        for w in welcome {
            let Some(channel) = self.channels.iter_mut().find(|c| c.name == w.name) else {
                continue;
            };
            if w.first == 0 {
                return Err(WireError::invalid(
                    "WELCOME",
                    "a delivery that begins at seq 0",
                ));
            }
            channel.number = Some(w.channel);
            channel.stats.head = w.head;
            let resync = channel
                .incarnation
                .is_some_and(|known| known != w.incarnation);
            if channel.incarnation != Some(w.incarnation) {
                channel.incarnation = Some(w.incarnation);
                channel.merge = Merge::new(w.first, self.config.dedupe_off);
            }
            let next = channel.merge.next();
            if w.first > next {
                self.events.push_back(ReceiverEvent::Gap {
                    channel: w.name.clone(),
                    from: next,
                    to: w.first - 1,
                });
                channel.merge.skip_to(w.first);
            }
            self.events.push_back(ReceiverEvent::Welcome {
                channel: w.name,
                incarnation: w.incarnation,
                head: w.head,
                first: w.first,
                resync,
            });
        }
        Ok(())
    }

    fn on_announce(&mut self, announce: Announce, now: Instant) -> Result<(), WireError> {
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

    fn on_key(&mut self, key: Key) {
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

    fn on_rung(&mut self, notice: RungNotice, now: Instant) {
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
            flow.trackers.values_mut().for_each(AckTracker::hush);
            let proved = |(path, t): (&PathId, &AckTracker)| {
                t.largest()
                    .is_some_and(|pn| pn >= notice.first_pn)
                    .then_some(*path)
            };
            let paths: Vec<PathId> = flow.trackers.iter().filter_map(proved).collect();
            for path in paths {
                flow.ready_sent.insert(path);
                send_state(flow, &mut self.control_out, Action::Ready, path, None);
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
    fn hold(&mut self, flow: FlowId) -> Duration {
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
        let Some((key, packet_key)) = &flow.key else {
            return FlowInput::UnknownFlow;
        };
        let channel = &mut self.channels[flow.channel];
        let expected = flow.largest().map_or(key.first_pn, |pn| pn + 1);
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
                        seq, offset, data, ..
                    } = frame
                        && !channel.merge.accepts(seq, offset, data.len())
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

    /// Bytes of the server-initiated unicast stream `stream`; `fin` is its end. An error is a violation by the source: close the connection.
    pub fn on_unicast(&mut self, stream: u64, bytes: &[u8], fin: bool) -> Result<(), WireError> {
        let reader = self.streams.entry(stream).or_default();
        reader.push(bytes);
        while let Some(piece) = reader.next_piece()? {
            let (number, seq) = match &piece {
                Piece::Range { header, .. } => (header.channel, header.seq),
                Piece::Update { channel, seq, .. } => (*channel, *seq),
            };
            let Some(channel) = self.channels.iter_mut().find(|c| c.number == Some(number)) else {
                return Err(WireError::invalid(
                    "unicast stream",
                    "a channel that WELCOME did not name",
                ));
            };
            channel.stats.head = channel.stats.head.max(seq);
            match piece {
                Piece::Range { header, data } => {
                    channel.merge.add(
                        seq,
                        header.offset,
                        &data,
                        Some(header.total),
                        Origin::Unicast,
                    );
                }
                Piece::Update { data, .. } => {
                    channel
                        .merge
                        .add(seq, 0, &data, Some(data.len() as u64), Origin::Unicast)
                }
            }
        }
        if fin {
            self.streams.remove(&stream);
        }
        Ok(())
    }

    /// The next PATH_ACK that is due, as a DATAGRAM payload with the path that it is for: an older one for the same path that is still unsent is obsolete.
    pub fn poll_datagram(&mut self, now: Instant) -> Option<(PathId, Vec<u8>)> {
        if !self.connected {
            return None;
        }
        let due = self.flows.iter().find_map(|(id, f)| {
            let path = f.member?;
            f.trackers
                .get(&path)?
                .deadline()
                .filter(|at| *at <= now)
                .map(|_| (*id, path))
        });
        let (id, path) = due?;
        let hold = self.hold(id);
        let ack = self
            .flows
            .get_mut(&id)?
            .trackers
            .get_mut(&path)?
            .take_due(path, now, hold)?;
        Some((path, ack.encode()))
    }

    /// When to call [`Receiver::handle_timeout`] and [`Receiver::poll_datagram`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flows = self.flows.values().flat_map(|f| {
            let ack = f.member.and_then(|path| f.trackers.get(&path)?.deadline());
            let silent = f.member.map(|_| silent_at(f));
            [ack, silent, f.rejoin_at]
        });
        let cursor = self.next_cursor.filter(|_| self.welcomed);
        flows.chain([cursor]).flatten().min()
    }

    /// Does what is due: cursors, missed heartbeats, joins that brought nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.welcomed && self.next_cursor.is_some_and(|at| at <= now) {
            self.next_cursor = None;
            self.last_cursor = Some(now);
            let due = self.channels.iter_mut().filter_map(|c| {
                std::mem::take(&mut c.cursor_due)
                    .then_some(c.cursor)
                    .flatten()
            });
            let cursors: Vec<_> = due.collect();
            Control::Cursors(cursors).encode(&mut self.control_out);
        }
        for (id, flow) in &mut self.flows {
            if flow.member.is_some() && silent_at(flow) <= now {
                // The source's FC_RUNG answers this; until then nothing is owed, for nothing arrives.
                let path = flow.member.take().unwrap_or(PathId::UNICAST);
                send_state(
                    flow,
                    &mut self.control_out,
                    Action::Leave,
                    path,
                    Some(Cause::HeartbeatLost),
                );
                let channel = self.channels[flow.channel].name.clone();
                self.events.push_back(ReceiverEvent::Moved {
                    channel,
                    rung: Rung::Unicast,
                    cause: Cause::HeartbeatLost,
                });
            }
            if flow.rejoin_at.is_some_and(|at| at <= now) {
                flow.rejoin_after = (flow.rejoin_after * 2).min(REJOIN_MAX);
                flow.rejoin_at =
                    Some(now + flow.rejoin_after.mul_f64(self.rng.random_range(0.75..1.25)));
                self.events.push_back(ReceiverEvent::Rejoin { flow: *id });
            }
        }
    }
}

/// When a member that hears nothing more knows that the flow is gone: three heartbeats, and a quarter of one for their jitter on the way.
fn silent_at(flow: &Flow) -> Instant {
    flow.last_packet + flow.announce.heartbeat * HEARTBEATS + flow.announce.heartbeat / 4
}

fn send_state(
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
