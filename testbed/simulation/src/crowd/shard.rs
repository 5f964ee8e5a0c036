//! One source and its receivers.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{
    Action, CAPABILITY_MULTICAST_IPV4, Control, ControlReader, Credential, Endpoint, Hello, State,
    Window,
};
use flexicast::flow::FlowConfig;
use flexicast::frame::{Frame, Frames};
use flexicast::protect::{Algorithm, FlowSecret, PacketKey};
use flexicast::source::{
    ChannelConfig, Limits, SessionId, Source, SourceConfig, SourceEvent, Unicast,
};
use flexicast::unicast::{Piece as Item, StreamReader};
use flexicast::{Cursor, FlowId, PathId, Rung};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::receiver::{Piece, Receiver};
use super::{Counts, CrowdError, CrowdPlan, Meter, Part, TICK, UPDATE};
use crate::agenda::Agenda;

const CHANNEL: &str = "crowd";
const INCARNATION: Uuid = Uuid::from_u128(7);
/// One-way delays of receivers, in ticks: round trips of 10 to 30 ms.
const DELAYS: Range<u64> = 5..16;
/// Longest acknowledgement delay that an announcement can ask for.
const MAX_ACK_DELAY: Duration = Duration::from_secs(10);
/// Ticks between two cursors of a receiver.
const CURSOR_EVERY: u64 = 1_000;
/// Updates of one answer of the store.
const MOST_FETCHED: usize = 1_024;

/// Acknowledgements that arrive together, in one buffer.
#[derive(Debug, Default)]
struct Mail {
    bytes: Vec<u8>,
    /// Receivers, and where each one's begins.
    from: Vec<(usize, usize)>,
}

/// A packet on its way.
#[derive(Debug)]
struct Packet {
    tick: u64,
    pn: u64,
    pieces: Vec<Piece>,
}

/// One source and its receivers.
#[derive(Debug)]
pub(super) struct Shard {
    source: Source,
    key: PacketKey,
    flow: FlowId,
    path: PathId,
    origin: Instant,
    tick: u64,
    loss: f64,
    receivers: Vec<Receiver>,
    /// Receivers of each one-way delay.
    classes: Vec<Range<usize>>,
    packets: VecDeque<Packet>,
    acks_due: Agenda<usize>,
    mail: Agenda<Mail>,
    frames: Agenda<(usize, Vec<u8>)>,
    pieces: Agenda<(usize, Piece)>,
    /// Streams of receivers that catch up.
    catching_up: BTreeMap<SessionId, StreamReader>,
    rng: SmallRng,
    counts: Counts,
    head: u64,
    update: Bytes,
}

fn failed(text: impl std::fmt::Display) -> CrowdError {
    CrowdError(text.to_string())
}

impl Shard {
    /// A source whose `size` receivers all are members of its flow.
    pub(super) fn new(plan: &CrowdPlan, number: u64, size: usize) -> Result<Shard, CrowdError> {
        let flow = FlowId(plan.seed.to_be_bytes());
        let secret = FlowSecret::from([plan.seed as u8; 32]);
        let key = PacketKey::new(Algorithm::default(), &secret).map_err(failed)?;
        let group = ([232, 70, 70, 1], 4434).into();
        let channel = ChannelConfig {
            name: CHANNEL.to_owned(),
            incarnation: INCARNATION,
            head: 0,
            first: 1,
            private: false,
            endpoints: vec![Endpoint {
                group,
                source: None,
            }],
            replicate: false,
            flow: Some(FlowConfig::new(flow, secret)),
        };
        let mut source = Source::new(SourceConfig {
            channels: vec![channel],
            unicast_rate: None,
            limits: Limits {
                receivers: usize::MAX,
                ..Limits::default()
            },
            seed: plan.seed + number,
        })
        .map_err(failed)?;
        source.inject_faults(plan.faults);
        let count = (DELAYS.end - DELAYS.start) as usize;
        let class = |n| (size * n / count)..(size * (n + 1) / count);
        let mut shard = Shard {
            source,
            key,
            flow,
            path: PathId::UNICAST,
            origin: Instant::now(),
            tick: 0,
            loss: plan.loss,
            receivers: Vec::with_capacity(size),
            classes: (0..count).map(class).collect(),
            packets: VecDeque::new(),
            acks_due: Agenda::new(1),
            mail: Agenda::new(DELAYS.end as usize),
            frames: Agenda::new(DELAYS.end as usize),
            pieces: Agenda::new(DELAYS.end as usize),
            catching_up: BTreeMap::new(),
            rng: SmallRng::seed_from_u64(plan.seed << 20 | number),
            counts: Counts::default(),
            head: 0,
            update: Bytes::new(),
        };
        for receiver in 0..size {
            shard.join(number << 32 | receiver as u64, receiver)?;
        }
        if shard.members() != size {
            let members = shard.members();
            return Err(CrowdError(format!("{members} of {size} became members")));
        }
        // Longer than a delay with its jitter; members only leave from now on.
        let longest = shard.ack_delay() * 5 / 4;
        let ahead = longest.as_millis() as usize + 4;
        shard.acks_due = Agenda::new(ahead);
        Ok(shard)
    }

    fn now(&self) -> Instant {
        self.origin + TICK * self.tick as u32
    }

    fn delay_of(&self, receiver: usize) -> u64 {
        let class = self.classes.partition_point(|class| class.end <= receiver);
        DELAYS.start + class as u64
    }

    /// A receiver connects, joins the flow and proves it.
    fn join(&mut self, id: u64, receiver: usize) -> Result<(), CrowdError> {
        let (now, session) = (self.now(), receiver as SessionId);
        self.source.accept(session, now);
        let round_trip = TICK * 2 * self.delay_of(receiver) as u32;
        self.source.set_rtt(session, round_trip);
        let hello = Control::Hello(Hello {
            receiver: Uuid::from_u128(u128::from(id) + 1),
            name: format!("receiver-{id}"),
            software: "flexfeed-receiver".to_owned(),
            credential: Credential::None,
            channels: vec![(CHANNEL.to_owned(), None)],
            capabilities: vec![CAPABILITY_MULTICAST_IPV4],
        });
        let said = self.say(session, &hello)?;
        for frame in said {
            if let Control::Announce(announce) = frame {
                self.path = PathId::new(announce.flow_index, Rung::Multicast);
            }
        }
        let state = |action, sequence, path, key_sequence| {
            Control::State(State {
                flow: self.flow,
                sequence,
                action,
                path,
                key_sequence,
                cause: None,
                largest: None,
            })
        };
        let (join, path) = (state(Action::Join, 1, PathId::UNICAST, 0), self.path);
        let ready = |key| state(Action::Ready, 2, path, key);
        let ready_by_key: Vec<Control> = (0..4).map(ready).collect();
        let said = self.say(session, &join)?;
        let key = said.iter().find_map(|frame| match frame {
            Control::Key(key) => Some(key.sequence),
            _ => None,
        });
        let key = key.ok_or_else(|| failed("a receiver got no key"))?;
        let ready = ready_by_key
            .get(key as usize)
            .ok_or_else(|| failed("keys are not numbered from 1"))?;
        self.say(session, ready)?;
        self.receivers.push(Receiver::new());
        Ok(())
    }

    /// Passes on a frame of a receiver that joins; returns the answers.
    fn say(&mut self, session: SessionId, frame: &Control) -> Result<Vec<Control>, CrowdError> {
        let (now, mut bytes) = (self.now(), Vec::new());
        frame.encode(&mut bytes);
        self.source
            .on_control(session, &bytes, now)
            .map_err(failed)?;
        while let Some(event) = self.source.poll_event() {
            if let SourceEvent::Authorise { session, .. } = event {
                self.source.authorised(session, Ok(()), now);
            }
        }
        let mut answers = Vec::new();
        while let Some(dirty) = self.source.poll_dirty() {
            let control = self.source.take_control(dirty);
            while self.source.poll_unicast(dirty, now) != Unicast::Idle {}
            if dirty != session {
                continue;
            }
            let mut reader = ControlReader::new();
            reader.push(&control);
            while let Some(frame) = reader.next_frame().map_err(failed)? {
                answers.push(frame);
            }
        }
        Ok(answers)
    }

    /// Lets the next tick happen, in which `fresh` updates are published.
    pub(super) fn advance(
        &mut self,
        tick: u64,
        fresh: u64,
        update: &Bytes,
        meter: &mut impl Meter,
    ) -> Result<(), CrowdError> {
        self.tick = tick;
        let now = self.now();
        self.update = update.clone();
        self.arrive();
        self.acknowledge();
        self.confirm();
        let (source, head) = (&mut self.source, self.head);
        if fresh > 0 {
            meter.time(Part::Publish, || {
                (1..=fresh).for_each(|n| source.publish(0, head + n, update.clone()));
            });
            self.head += fresh;
            self.counts.updates += fresh;
        }
        for mail in self.mail.take(tick) {
            meter.time(Part::Acks, || deliver(source, &mail, now))?;
        }
        let frames = self.frames.take(tick);
        if !frames.is_empty() {
            meter
                .time(Part::Frames, || {
                    let mut frames = frames.iter();
                    frames.try_for_each(|(session, bytes)| {
                        source.on_control(*session as SessionId, bytes, now)
                    })
                })
                .map_err(failed)?;
        }
        meter.time(Part::Timers, || {
            if source.poll_timeout(now).is_some_and(|at| at <= now) {
                source.handle_timeout(now);
            }
        });
        self.transmit(meter)?;
        self.hand_out(meter)?;
        self.follow();
        Ok(())
    }

    /// Sends what is due on the flow.
    fn transmit(&mut self, meter: &mut impl Meter) -> Result<(), CrowdError> {
        let (now, mut packet) = (self.now(), Vec::new());
        let source = &mut self.source;
        while meter.time(Part::Packets, || {
            source.poll_transmit(now, &mut packet).is_some()
        }) {
            self.counts.packets += 1;
            self.counts.packet_bytes += packet.len() as u64;
            let expected = self.packets.back().map_or(0, |packet| packet.pn + 1);
            let opened = self.key.open(expected, &mut packet).map_err(failed)?;
            let mut pieces = Vec::new();
            for frame in Frames::new(opened.frames) {
                if let Frame::Stream {
                    seq, offset, data, ..
                } = frame.map_err(failed)?
                {
                    let range = offset..offset + data.len() as u64;
                    pieces.push(Piece { seq, range });
                }
            }
            self.packets.push_back(Packet {
                tick: self.tick,
                pn: opened.pn,
                pieces,
            });
        }
        Ok(())
    }

    /// Packets and streams arrive at receivers.
    fn arrive(&mut self) {
        let (tick, now) = (self.tick, self.now());
        for (receiver, piece) in self.pieces.take(tick) {
            if let Some(receiver) = self.receivers.get_mut(receiver) {
                receiver.take(&piece);
            }
        }
        let delay = self.ack_delay();
        for (class, members) in (DELAYS.start..).zip(self.classes.clone()) {
            let first = self.packets.partition_point(|p| p.tick + class < tick);
            for at in first..self.packets.len() {
                let packet = &self.packets[at];
                if packet.tick + class > tick {
                    break;
                }
                for (index, receiver) in members.clone().zip(&mut self.receivers[members.clone()]) {
                    if !receiver.reached || self.rng.random_bool(self.loss) {
                        self.counts.lost += 1;
                        continue;
                    }
                    packet.pieces.iter().for_each(|piece| receiver.take(piece));
                    let hold = delay.mul_f64(self.rng.random_range(0.75..1.25));
                    let owes = receiver.is_member;
                    receiver.tracker.on_packet(packet.pn, now, hold, true, owes);
                    plan(receiver, index, self.origin, &mut self.acks_due);
                }
            }
        }
        let longest = DELAYS.end;
        // The newest one tells the next packet number.
        while self.packets.len() > 1
            && self
                .packets
                .front()
                .is_some_and(|p| p.tick + longest < tick)
        {
            self.packets.pop_front();
        }
    }

    /// Receivers send the acknowledgements that are due.
    fn acknowledge(&mut self) {
        let (tick, now, delay) = (self.tick, self.now(), self.ack_delay());
        for index in self.acks_due.take(tick) {
            let one_way = self.delay_of(index);
            let Some(receiver) = self.receivers.get_mut(index) else {
                continue;
            };
            if receiver.planned != tick {
                continue;
            }
            receiver.planned = 0;
            let hold = delay.mul_f64(self.rng.random_range(0.75..1.25));
            let ack = receiver.tracker.take_due(self.path, now, hold);
            plan(receiver, index, self.origin, &mut self.acks_due);
            let Some(ack) = ack.filter(|_| receiver.is_member) else {
                continue;
            };
            let bytes = ack.encode();
            self.counts.acks += 1;
            self.counts.ack_bytes += bytes.len() as u64;
            if self.rng.random_bool(self.loss) {
                continue;
            }
            let slot = self.mail.slot(tick + one_way);
            if slot.is_empty() {
                slot.push(Mail::default());
            }
            if let Some(mail) = slot.last_mut() {
                mail.from.push((index, mail.bytes.len()));
                mail.bytes.extend_from_slice(&bytes);
            }
        }
    }

    /// Receivers send cursors and windows.
    fn confirm(&mut self) {
        let tick = self.tick;
        // Each has its turn once in the interval.
        let first = (tick % CURSOR_EVERY) as usize;
        for index in (first..self.receivers.len()).step_by(CURSOR_EVERY as usize) {
            let one_way = self.delay_of(index);
            let receiver = &mut self.receivers[index];
            let mut bytes = Vec::new();
            let seq = receiver.cursor();
            if seq > receiver.confirmed {
                receiver.confirmed = seq;
                let cursor = Cursor {
                    incarnation: INCARNATION,
                    seq,
                };
                Control::Cursors(vec![cursor]).encode(&mut bytes);
                self.counts.frames += 1;
            }
            if let Some(offset) = receiver.extend_window() {
                let window = Window {
                    flow: self.flow,
                    sequence: receiver.windows,
                    offset,
                };
                Control::Window(window).encode(&mut bytes);
                self.counts.frames += 1;
            }
            if !bytes.is_empty() {
                self.frames.push(tick + one_way, (index, bytes));
            }
        }
    }

    /// Sessions send what they have to, without limit.
    fn hand_out(&mut self, meter: &mut impl Meter) -> Result<(), CrowdError> {
        let (now, source) = (self.now(), &mut self.source);
        let mut items = Vec::new();
        let (head, update) = (self.head, &self.update);
        meter.time(Part::Unicast, || {
            while let Some(session) = source.poll_dirty() {
                drop(source.take_control(session));
                loop {
                    match source.poll_unicast(session, now) {
                        Unicast::Idle => break,
                        Unicast::Fetch {
                            channel,
                            from,
                            limit,
                        } => {
                            let last = head.min(from + limit.min(MOST_FETCHED) as u64 - 1);
                            let stored = (from..=last).map(|seq| (seq, update.clone()));
                            let answer = Some(stored.collect());
                            source.provide(session, channel, from, answer, now);
                        }
                        item => items.push((session, item)),
                    }
                }
            }
        });
        for (session, item) in items {
            let index = session as usize;
            let arrival = self.tick + self.delay_of(index);
            for piece in self.read(session, item)? {
                self.pieces.push(arrival, (index, piece));
            }
        }
        Ok(())
    }

    /// Reads what goes out on a unicast path.
    fn read(&mut self, session: SessionId, item: Unicast) -> Result<Vec<Piece>, CrowdError> {
        let mut stream = StreamReader::new();
        let (reader, head, body) = match item {
            Unicast::Stream { head, body, .. } => {
                self.counts.streams += 1;
                (&mut stream, head, body)
            }
            Unicast::CatchUp { head, body, .. } => {
                (self.catching_up.entry(session).or_default(), head, body)
            }
            _ => {
                self.catching_up.remove(&session);
                return Ok(Vec::new());
            }
        };
        self.counts.stream_bytes += (head.len() + body.len()) as u64;
        reader.push(&head);
        reader.push(&body);
        let mut pieces = Vec::new();
        while let Some(item) = reader.next_piece().map_err(failed)? {
            let (seq, start, len) = match item {
                Item::Range { header, data } => (header.seq, header.offset, data.len()),
                Item::Update { seq, data, .. } => (seq, 0, data.len()),
            };
            let range = start..start + len as u64;
            pieces.push(Piece { seq, range });
        }
        Ok(pieces)
    }

    /// Does what the source asks for.
    fn follow(&mut self) {
        while let Some(event) = self.source.poll_event() {
            if let SourceEvent::Moved {
                session,
                to: Rung::Unicast,
                ..
            } = event
                && let Some(receiver) = self.receivers.get_mut(session as usize)
            {
                receiver.is_member = false;
            }
        }
        let counters = self.source.counters();
        self.counts.fall_backs = counters.fall_backs;
        self.counts.shared_repairs = counters.shared_repairs;
    }

    /// Takes multicast from every so many-th receiver.
    pub(super) fn cut(&mut self, share: f64) {
        let mut sum = 0.0;
        for receiver in &mut self.receivers {
            sum += share;
            if sum >= 1.0 {
                sum -= 1.0;
                receiver.reached = false;
            }
        }
    }

    /// Receivers that lack updates.
    pub(super) fn behind(&self) -> usize {
        let behind = self.receivers.iter().filter(|r| r.cursor() < self.head);
        behind.count()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Acknowledgement delay that receivers know.
    pub(super) fn ack_delay(&self) -> Duration {
        let flow = self.source.flow(0);
        flow.map_or(Duration::ZERO, |f| f.config().ack_delay.min(MAX_ACK_DELAY))
    }

    pub(super) fn members(&self) -> usize {
        self.source.flow(0).map_or(0, |flow| flow.members())
    }

    /// Drops the receivers with all that is modelled.
    pub(super) fn drop_receivers(&mut self) {
        self.receivers = Vec::new();
        self.classes = vec![0..0; self.classes.len()];
        self.packets = VecDeque::new();
        self.acks_due.clear();
        self.mail.clear();
        self.frames.clear();
        self.pieces.clear();
    }
}

/// Reads acknowledgements.
fn deliver(source: &mut Source, mail: &Mail, now: Instant) -> Result<(), CrowdError> {
    let ends = mail.from.iter().skip(1).map(|(_, start)| *start);
    for ((receiver, start), end) in mail.from.iter().zip(ends.chain([mail.bytes.len()])) {
        let bytes = mail.bytes.get(*start..end).unwrap_or_default();
        source
            .on_datagram(*receiver as SessionId, bytes, now)
            .map_err(failed)?;
    }
    Ok(())
}

/// Plans a receiver's next acknowledgement.
fn plan(receiver: &mut Receiver, index: usize, origin: Instant, agenda: &mut Agenda<usize>) {
    let Some(at) = receiver.deadline() else {
        return;
    };
    let after = at.saturating_duration_since(origin);
    let tick = after.as_nanos().div_ceil(TICK.as_nanos()) as u64;
    if receiver.planned == 0 || tick < receiver.planned {
        receiver.planned = tick;
        agenda.push(tick, index);
    }
}

const _: () = assert!(UPDATE < flexicast::DEFAULT_UDP_PAYLOAD);
