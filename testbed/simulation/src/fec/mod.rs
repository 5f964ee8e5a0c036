//! A flow with repair symbols over modelled paths, in virtual time: what receivers rebuild, what is
//! repaired by unicast all the same, and how late updates are.
//!
//! Real are [`flexicast::flow::FlowSender`] with everything in it, its packets and keys, and of
//! each receiver its acknowledgements ([`flexicast::ack::AckTracker`]) and its
//! [`erasure::Decoder`]. Each packet is opened once for all receivers. A receiver that misses none
//! of a repair symbol's packets passes over it, and its decoder gets packets only when it needs
//! them. Modelled are the paths, and the unicast path, which loses nothing.

mod figures;
mod member;
mod report;
pub mod thesis;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::ack::PathAck;
use flexicast::fec::FecConfig;
use flexicast::flow::ledger::StreamRange;
use flexicast::flow::{FlowConfig, FlowEvent, FlowSender, RateControl};
use flexicast::frame::{Frame, Frames, read_apart_symbol};
use flexicast::protect::{FlowSecret, PacketKey};
use flexicast::{FlowId, PathId, Rung};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::agenda::Agenda;
use crate::link::{Link, Loss, Quality};
pub use figures::{TailDelays, UnicastRepairs, recovered_share, tail_delays, unicast_repairs};
use member::Member;
pub use report::{Delays, FecReport};

/// Time between two looks at everything.
const TICK: Duration = Duration::from_millis(1);
/// Acknowledgements of all members together in a second, as a source has it.
const ACKS_PER_S: u32 = 20_000;
/// Packets that are kept: more than decoders hold while one is on its way.
const KEPT: usize = 4096;
/// Time after the last update.
const SETTLES: Duration = Duration::from_secs(2);
/// Bytes of a unicast packet that are none of the update's: headers, tag and frame header.
const UNICAST_OVERHEAD: u64 = 50;
const UNICAST_PAYLOAD: u64 = 1_150;

/// Traffic of a flow: bursts of updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// Number of bursts.
    pub bursts: u64,
    /// Time between two of them.
    pub every: Duration,
    /// Updates of a burst, at least and at most.
    pub updates: (u64, u64),
    /// Bytes of an update.
    pub len: usize,
}

/// Parameters of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FecPlan {
    /// Members of the flow.
    pub members: usize,
    /// Those of them that rebuild nothing.
    pub plain: usize,
    /// Erasure coding.
    pub fec: Option<FecConfig>,
    /// Least and largest one-way delay of members.
    pub delays: (Duration, Duration),
    /// Jitter on top of it.
    pub jitter: Duration,
    /// Losses of each member's path, in both directions.
    pub loss: Loss,
    /// Losses of the part of the path that all share.
    pub shared_loss: Loss,
    /// Probability that a member loses one packet of a burst, and no more.
    pub single_loss: f64,
    /// Traffic.
    pub traffic: Traffic,
    /// Time at the beginning that does not count: the source does not know the losses yet.
    pub warm_up: Duration,
    /// Rate control of the flow.
    pub control: RateControl,
    /// Highest rate in bit/s.
    pub rate: u64,
    /// Seed of everything.
    pub seed: u64,
}

/// Failure of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FecFailure(pub String);

impl std::fmt::Display for FecFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FecFailure {}

fn failed(text: impl std::fmt::Display) -> FecFailure {
    FecFailure(text.to_string())
}

/// A packet of the flow, opened.
#[derive(Debug)]
struct Packet {
    pn: u64,
    frames: Vec<u8>,
    /// Ranges of updates in it.
    pieces: Vec<StreamRange>,
    /// Repair symbol in it.
    symbol: Option<Symbol>,
    /// Whether it repairs what was sent before.
    repairs: bool,
}

/// A repair symbol.
#[derive(Debug)]
struct Symbol {
    /// Packets of its window.
    window: Vec<u64>,
    bytes: Vec<u8>,
}

impl Symbol {
    fn parse(bytes: &[u8]) -> Result<Symbol, FecFailure> {
        let (header, _) = erasure::RepairHeader::parse(bytes).map_err(failed)?;
        Ok(Symbol {
            window: header.window.packets().collect(),
            bytes: bytes.to_vec(),
        })
    }
}

/// An update that was published.
#[derive(Debug)]
struct Update {
    bytes: Bytes,
    /// Bytes of it that were sent on the flow, and when the last of them were.
    sent: u64,
    sent_at: u64,
}

/// Plays a run.
///
/// # Errors
/// Something was rebuilt wrongly, or a member lacks updates at the end.
pub fn play(plan: &FecPlan) -> Result<FecReport, FecFailure> {
    let mut simulation = Simulation::new(plan)?;
    simulation.run()?;
    // A low rate, and losses of the last packets.
    let patience = simulation.tick + 120_000;
    while simulation.is_behind() && simulation.tick < patience {
        simulation.tick += 1;
        simulation.advance()?;
    }
    if simulation.is_behind() {
        return Err(failed("some members lack updates"));
    }
    Ok(simulation.finish())
}

/// Returns the tick at which a burst is published, with this time between two of them.
fn tick_of_burst(burst: u64, every: Duration) -> u64 {
    let every = every.max(TICK).as_nanos();
    (every * u128::from(burst)).div_ceil(TICK.as_nanos()) as u64
}

struct Simulation {
    plan: FecPlan,
    flow: FlowSender,
    key: PacketKey,
    path: PathId,
    origin: Instant,
    tick: u64,
    members: Vec<Member>,
    shared: Link,
    packets: VecDeque<Packet>,
    updates: Vec<Update>,
    arrivals: Agenda<(u32, u64)>,
    /// Repair symbols on the members' connections.
    apart: Agenda<(usize, Rc<Symbol>)>,
    acks_due: Agenda<usize>,
    acks: Agenda<(usize, PathAck)>,
    repairs: Agenda<(usize, StreamRange)>,
    /// Whether repairs by unicast reach the members.
    is_repaired: bool,
    /// Ticks at which each member had the whole of each update, if these are wanted.
    arrived: Option<Vec<Vec<Option<u64>>>>,
    rng: SmallRng,
    report: FecReport,
}

impl Simulation {
    fn new(plan: &FecPlan) -> Result<Simulation, FecFailure> {
        let secret = FlowSecret::from([plan.seed as u8; 32]);
        let config = FlowConfig {
            rate: Some(plan.rate),
            control: plan.control,
            fec: plan.fec,
            ..FlowConfig::new(FlowId(plan.seed.to_be_bytes()), secret.clone())
        };
        let delay = config.ack_delay;
        let ack_delay = delay.max(Duration::from_secs(plan.members as u64) / ACKS_PER_S);
        let key = PacketKey::new(config.algorithm, &secret).map_err(failed)?;
        let (origin, path) = (Instant::now(), PathId::new(1, Rung::Multicast));
        let mut flow = FlowSender::new(config).map_err(failed)?;
        flow.set_ack_delay(ack_delay, origin);
        flow.set_listeners(plan.members, origin);
        let (least, most) = plan.delays;
        let quality = |delay, jitter, loss| Quality {
            delay,
            jitter,
            loss,
            duplicates: 0.0,
        };
        let mut members = Vec::with_capacity(plan.members);
        for index in 0..plan.members {
            let part = (index as f64 + 0.5) / plan.members as f64;
            let delay = least + (most - least).mul_f64(part);
            let id = index as u64;
            flow.admit(id, path, delay * 2, 1, origin);
            flow.on_window(id, u64::MAX);
            let fec = plan.fec.filter(|_| index >= plan.plain);
            if fec.is_some() {
                flow.set_rebuilding(id);
            }
            let span = fec.map(|fec| fec.parameters().span);
            let link = |jitter| Link::new(quality(delay, jitter, plan.loss));
            let links = [plan.jitter, Duration::ZERO, Duration::ZERO].map(link);
            members.push(Member::new(span, links));
        }
        let ahead = (most + plan.jitter + ack_delay * 2).as_millis() as usize + 8;
        Ok(Simulation {
            plan: *plan,
            flow,
            key,
            path,
            origin,
            tick: 0,
            members,
            shared: Link::new(quality(Duration::ZERO, Duration::ZERO, plan.shared_loss)),
            packets: VecDeque::new(),
            updates: Vec::new(),
            arrivals: Agenda::new(ahead),
            apart: Agenda::new(ahead),
            acks_due: Agenda::new(ahead),
            acks: Agenda::new(ahead),
            repairs: Agenda::new(ahead),
            is_repaired: true,
            arrived: None,
            rng: SmallRng::seed_from_u64(plan.seed),
            report: FecReport::default(),
        })
    }

    /// Publishes everything, and goes on until the last of it has settled.
    fn run(&mut self) -> Result<(), FecFailure> {
        let Traffic { bursts, every, .. } = self.plan.traffic;
        let last = tick_of_burst(bursts, every) + SETTLES.as_millis() as u64;
        let mut published = 0;
        for tick in 0..last {
            self.tick = tick;
            if TICK * tick as u32 == self.plan.warm_up {
                self.begin_counting();
            }
            if published < bursts && tick == tick_of_burst(published, every) {
                published += 1;
                self.publish();
            }
            self.advance()?;
        }
        Ok(())
    }

    fn begin_counting(&mut self) {
        self.report = FecReport::default();
        self.members.iter_mut().for_each(Member::forget_losses);
    }

    fn now(&self) -> Instant {
        self.origin + TICK * self.tick as u32
    }

    fn tick_of(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.origin);
        (after.as_nanos().div_ceil(TICK.as_nanos()) as u64).max(self.tick + 1)
    }

    fn publish(&mut self) {
        let (least, most) = self.plan.traffic.updates;
        let count = self.rng.random_range(least..most + 1);
        for _ in 0..count {
            let mut bytes = vec![0; self.plan.traffic.len];
            rand::Rng::fill_bytes(&mut self.rng, &mut bytes);
            let bytes = Bytes::from(bytes);
            self.flow.push(self.updates.len() as u64 + 1, bytes.clone());
            self.updates.push(Update {
                bytes,
                sent: 0,
                sent_at: 0,
            });
        }
        self.report.updates += count;
        if self.plan.single_loss > 0.0 {
            for member in &mut self.members {
                let hit = self.rng.random_bool(self.plan.single_loss);
                member.loses = hit.then(|| self.rng.random_range(0..count));
            }
        }
    }

    fn advance(&mut self) -> Result<(), FecFailure> {
        let (tick, now) = (self.tick, self.now());
        for (index, range) in self.repairs.take(tick) {
            self.take_piece(index, &range);
        }
        self.arrive()?;
        self.acknowledge();
        for (index, ack) in self.acks.take(tick) {
            self.flow.on_ack(index as u64, &ack, now).map_err(failed)?;
        }
        if self.flow.poll_timeout(now).is_some_and(|at| at <= now) {
            self.flow.handle_timeout(now);
        }
        self.follow()?;
        self.transmit()
    }

    /// Sends what is due on the flow.
    fn transmit(&mut self) -> Result<(), FecFailure> {
        let (now, mut bytes) = (self.now(), Vec::new());
        while self.flow.poll_transmit(now, &mut bytes) {
            self.report.packets += 1;
            self.report.bytes += bytes.len() as u64;
            let expected = self.packets.back().map_or(0, |packet| packet.pn + 1);
            let opened = self.key.open(expected, &mut bytes).map_err(failed)?;
            let mut packet = Packet {
                pn: opened.pn,
                frames: opened.frames.to_vec(),
                pieces: Vec::new(),
                symbol: None,
                repairs: false,
            };
            for frame in Frames::new(opened.frames) {
                match frame.map_err(failed)? {
                    Frame::Stream {
                        seq, offset, data, ..
                    } => {
                        let range = offset..offset + data.len() as u64;
                        packet.pieces.push(StreamRange { seq, range });
                    }
                    Frame::Repair { symbol } => {
                        packet.symbol = Some(Symbol::parse(symbol)?);
                    }
                    _ => {}
                }
            }
            self.note_sent(&mut packet);
            self.pass(&packet);
            self.packets.push_back(packet);
            if self.packets.len() > KEPT {
                self.packets.pop_front();
            }
        }
        Ok(())
    }

    fn note_sent(&mut self, packet: &mut Packet) {
        self.report.symbols += u64::from(packet.symbol.is_some());
        for piece in &packet.pieces {
            let Some(update) = self.updates.get_mut(piece.seq as usize - 1) else {
                continue;
            };
            if piece.range.end <= update.sent {
                packet.repairs = true;
            } else {
                (update.sent, update.sent_at) = (piece.range.end, self.tick);
            }
        }
        self.report.shared_repairs += u64::from(packet.repairs);
    }

    /// Sends a packet down all paths.
    fn pass(&mut self, packet: &Packet) {
        let now = self.now();
        let shared = self.shared.arrivals(now, &mut self.rng)[0].is_none();
        let has_data = !packet.pieces.is_empty();
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if !member.is_member {
                continue;
            }
            let single = has_data && !packet.repairs && member.loses_next();
            let arrival = member.there.arrivals(now, &mut self.rng)[0];
            match arrival.filter(|_| !shared && !single) {
                Some(at) => {
                    let tick = self.tick_of(at);
                    self.arrivals.push(tick, (index as u32, packet.pn));
                }
                None if has_data => {
                    self.report.lost += 1;
                    self.members[index].lose(packet.pn, &packet.pieces, &mut self.report);
                }
                None => {}
            }
        }
    }

    /// Packets of the flow arrive.
    fn arrive(&mut self) -> Result<(), FecFailure> {
        let now = self.now();
        let delay = self.flow.config().ack_delay;
        for (index, pn) in self.arrivals.take(self.tick) {
            let index = index as usize;
            let hold = delay.mul_f64(self.rng.random_range(0.75..1.25));
            let member = &mut self.members[index];
            let rebuilt = member.take_packet(pn, &self.packets, now, hold)?;
            let Some(rebuilt) = rebuilt else { continue };
            self.take_pieces(index, pn);
            self.take_rebuilt(index, rebuilt);
        }
        for (index, symbol) in self.apart.take(self.tick) {
            let hold = delay.mul_f64(self.rng.random_range(0.75..1.25));
            let member = &mut self.members[index];
            let rebuilt = member.take_symbol(&symbol, &self.packets, now, hold)?;
            self.take_rebuilt(index, rebuilt);
        }
        Ok(())
    }

    fn take_rebuilt(&mut self, index: usize, rebuilt: Vec<u64>) {
        for pn in rebuilt {
            self.members[index].note_rebuilt(pn);
            self.take_pieces(index, pn);
        }
        self.plan_ack(index);
    }

    /// Sends a repair symbol to members on their connections.
    fn send_apart(&mut self, members: &[u64], datagram: &[u8]) -> Result<(), FecFailure> {
        let symbol = read_apart_symbol(datagram).ok_or_else(|| failed("no repair symbol"))?;
        let symbol = Rc::new(Symbol::parse(symbol.1)?);
        self.report.symbols += members.len() as u64;
        self.report.bytes += (members.len() * datagram.len()) as u64;
        let now = self.now();
        for index in members.iter().map(|id| *id as usize) {
            let Some(member) = self.members.get_mut(index) else {
                continue;
            };
            if let Some(at) = member.apart.arrivals(now, &mut self.rng)[0] {
                let tick = self.tick_of(at);
                self.apart.push(tick, (index, symbol.clone()));
            }
        }
        Ok(())
    }

    fn take_pieces(&mut self, index: usize, pn: u64) {
        let at = self.packets.partition_point(|packet| packet.pn < pn);
        let packet = self.packets.get(at).filter(|packet| packet.pn == pn);
        let Some((pieces, repairs)) = packet.map(|it| (it.pieces.clone(), it.repairs)) else {
            return;
        };
        for piece in &pieces {
            if repairs {
                self.members[index].note_shared(piece);
            }
            self.take_piece(index, piece);
        }
    }

    fn take_piece(&mut self, index: usize, piece: &StreamRange) {
        let Some(update) = self.updates.get(piece.seq as usize - 1) else {
            return;
        };
        let member = &mut self.members[index];
        let Some(is_late) = member.take(piece, update.bytes.len() as u64) else {
            return;
        };
        if is_late {
            let arrival = update.sent_at + member.one_way().as_millis() as u64;
            self.report.delays.add(self.tick.saturating_sub(arrival));
        }
        let arrived = self.arrived.as_mut().and_then(|all| all.get_mut(index));
        if let Some(arrived) = arrived {
            let at = piece.seq as usize - 1;
            if arrived.len() <= at {
                arrived.resize(at + 1, None);
            }
            arrived[at] = Some(self.tick);
        }
    }

    fn plan_ack(&mut self, index: usize) {
        let member = &self.members[index];
        let Some(at) = member.tracker.deadline().filter(|_| member.is_member) else {
            return;
        };
        let tick = self.tick_of(at);
        let member = &mut self.members[index];
        if member.planned == 0 || tick < member.planned {
            member.planned = tick;
            self.acks_due.push(tick, index);
        }
    }

    fn acknowledge(&mut self) {
        let (tick, now) = (self.tick, self.now());
        let delay = self.flow.config().ack_delay;
        for index in self.acks_due.take(tick) {
            let member = &mut self.members[index];
            if member.planned != tick {
                continue;
            }
            member.planned = 0;
            let hold = delay.mul_f64(self.rng.random_range(0.75..1.25));
            let ack = member.tracker.take_due(self.path, now, hold);
            let arrival = member.back.arrivals(now, &mut self.rng)[0];
            if let (Some(ack), Some(at)) = (ack, arrival) {
                let tick = self.tick_of(at);
                self.acks.push(tick, (index, ack));
            }
            self.plan_ack(index);
        }
    }

    /// Does what the flow asks for.
    fn follow(&mut self) -> Result<(), FecFailure> {
        while let Some(event) = self.flow.poll_event() {
            match event {
                FlowEvent::Repair { member, range } => self.repair(member as usize, range),
                FlowEvent::Symbol { members, symbol } => self.send_apart(&members, &symbol)?,
                FlowEvent::Wanted { packet, ranges } => {
                    let update = |range: &StreamRange| {
                        let update = self.updates.get(range.seq as usize - 1)?;
                        Some(update.bytes.clone())
                    };
                    let updates = ranges.iter().map(update).collect();
                    self.flow.provide(packet, updates);
                }
                FlowEvent::FellBack { member, .. } => {
                    self.report.fall_backs += 1;
                    if let Some(member) = self.members.get_mut(member as usize) {
                        member.is_member = false;
                    }
                }
                FlowEvent::Switched { .. } | FlowEvent::Breaker(_) => {}
            }
        }
        Ok(())
    }

    fn repair(&mut self, index: usize, range: StreamRange) {
        let Some(member) = self.members.get_mut(index) else {
            return;
        };
        let bytes = range.range.end - range.range.start;
        self.report.repairs += 1;
        let packets = bytes.div_ceil(UNICAST_PAYLOAD);
        self.report.repair_bytes += bytes + packets * UNICAST_OVERHEAD;
        self.report.needless += u64::from(member.has(&range));
        member.note_repaired(&range);
        if !self.is_repaired {
            return;
        }
        let tick = self.tick + member.one_way().as_millis().max(1) as u64;
        self.repairs.push(tick, (index, range));
    }

    fn is_behind(&self) -> bool {
        let head = self.updates.len() as u64;
        let mut members = self.members.iter();
        members.any(|member| member.is_member && member.cursor() < head)
    }

    fn finish(mut self) -> FecReport {
        for member in &mut self.members {
            member.finish(&mut self.report);
        }
        self.report.time = TICK * self.tick as u32;
        self.report
    }
}
