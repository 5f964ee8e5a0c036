//! A run by a flow: a source, and the receivers in the tree.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::Endpoint as GroupEndpoint;
use flexicast::flow::{FlowConfig, RateControl};
use flexicast::protect::FlowSecret;
use flexicast::source::{
    ChannelConfig, Limits, SessionId, Source, SourceConfig, SourceEvent, Unicast,
};
use flexicast::{FlowId, signing};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use signing::{Era, Lineage, SALT_LEN, Signer, Statement};

use super::peer::{CHANNEL, CONTROL, INCARNATION, Peer};
use super::quic::{Item, Packet, UDP_PAYLOAD};
use super::report::{Lateness, Report};
use super::schedule::Schedule;
use super::tree::{Tree, above};
use super::{McquicFailure, Plan, failed};

/// Unix time at the beginning.
const UNIX: Duration = Duration::from_secs(1_800_000_000);
/// Highest rate of the flow in bit/s: it leaves some of the links to what goes by unicast.
const RATE: u64 = 90_000_000;
/// Time within which all receivers become members.
const JOINING: Duration = Duration::from_secs(20);
/// Time after the last update, beyond its lifetime.
const SETTLES: Duration = Duration::from_secs(2);

/// A datagram on its way to the source.
#[derive(Debug, Clone)]
enum Up {
    Quic(Packet),
    Feedback(Vec<u8>),
}

impl Up {
    fn len(&self) -> usize {
        match self {
            Up::Quic(packet) => packet.len,
            Up::Feedback(packet) => packet.len(),
        }
    }
}

#[derive(Debug)]
enum Event {
    Publish(usize),
    Flow {
        to: usize,
        packet: Rc<[u8]>,
    },
    Down {
        to: usize,
        packet: Packet,
    },
    /// A datagram of a receiver has arrived at a node of the tree, or at the source.
    Climb {
        at: Option<usize>,
        of: usize,
        what: Up,
    },
    WakePeer(usize),
    WakeServer(usize),
    WakeSource,
}

struct Group<'a> {
    plan: &'a Plan,
    source: Source,
    signer: Signer,
    peers: Vec<Peer>,
    tree: Tree,
    schedule: Schedule<Event>,
    start: Instant,
    now: Instant,
    source_armed: Option<Instant>,
    published: Vec<(Instant, Bytes)>,
    rng: SmallRng,
    report: Report,
    secrets: u8,
}

/// Plays a run by a flow.
///
/// # Errors
/// A receiver does not become a member, an end does not understand the other, or an update is
/// neither delivered nor expired.
pub fn play(plan: &Plan) -> Result<Report, McquicFailure> {
    let mut group = Group::new(plan)?;
    let mut end = group.now + JOINING;
    while group.peers.iter().any(|peer| !peer.is_member) {
        if !group.step(end)? {
            let members = group.peers.iter().filter(|peer| peer.is_member).count();
            return Err(failed(format!("{members} receivers became members")));
        }
    }
    let begun = group.now;
    group.report = Report::default();
    let before = group.counters();
    for (number, (at, _)) in plan.traffic.iter().enumerate() {
        group.schedule.push(begun + *at, Event::Publish(number));
    }
    let last = plan.traffic.last().map_or(Duration::ZERO, |(at, _)| *at);
    end = begun + last + plan.lifetime + SETTLES;
    while group.step(end)? {}
    group.finish(before)
}

impl<'a> Group<'a> {
    fn new(plan: &'a Plan) -> Result<Group<'a>, McquicFailure> {
        let now = Instant::now();
        let mut rng = SmallRng::seed_from_u64(plan.seed);
        let flow = FlowConfig {
            udp_payload: UDP_PAYLOAD,
            max_udp_payload: UDP_PAYLOAD,
            rate: Some(RATE),
            control: RateControl::fixed(),
            ack_delay: plan.ack_delay,
            fec: plan.fec,
            ..FlowConfig::new(
                FlowId(plan.seed.to_be_bytes()),
                FlowSecret::from([plan.seed as u8; 32]),
            )
        };
        let endpoint = GroupEndpoint {
            group: ([232, 70, 70, 1], 4434).into(),
            source: Some([10, 0, 0, 1].into()),
        };
        let mut source = Source::new(SourceConfig {
            channels: vec![ChannelConfig {
                name: CHANNEL.to_owned(),
                incarnation: INCARNATION,
                head: 0,
                first: 1,
                private: false,
                endpoints: vec![endpoint],
                replicate: false,
                flow: Some(flow),
            }],
            unicast_rate: None,
            limits: Limits::default(),
            seed: plan.seed,
        })
        .map_err(failed)?;
        source.enable_feedback(FlowSecret::from([77; 32]), 0);
        let signer = Signer::from_seed(&[plan.seed as u8; 32]).map_err(failed)?;
        if plan.signed {
            source.set_clock(now, UNIX);
            let era = Era {
                first: 1,
                last: None,
                incarnation: INCARNATION,
                key: signer.key(),
            };
            source.set_lineage(0, Lineage::new(vec![era]).map_err(failed)?);
        }
        let peer = |number| Peer::new(number, Tree::round_trip(number));
        let peers: Vec<Peer> = (0..plan.receivers).map(peer).collect();
        for number in 0..peers.len() {
            source.accept(number as SessionId, now);
            source.set_rtt(number as SessionId, Tree::round_trip(number));
        }
        let mut schedule = Schedule::new();
        for number in 0..peers.len() {
            // Receivers do not all begin at the same instant.
            let at = now + Duration::from_micros(rng.random_range(0..100_000));
            schedule.push(at, Event::WakePeer(number));
        }
        Ok(Group {
            plan,
            source,
            signer,
            peers,
            tree: Tree::new(plan.receivers, plan.lossy, plan.loss, now),
            schedule,
            start: now,
            now,
            source_armed: None,
            published: Vec::new(),
            rng,
            report: Report::default(),
            secrets: 100,
        })
    }

    /// Lets the next event happen; returns whether there was one until then.
    fn step(&mut self, end: Instant) -> Result<bool, McquicFailure> {
        let Some((at, event)) = self.schedule.pop(end) else {
            self.now = end;
            return Ok(false);
        };
        self.now = at;
        match event {
            Event::Publish(number) => self.publish(number)?,
            Event::Flow { to, packet } => {
                self.peers[to].on_flow(&packet, at)?;
                self.pump_peer(to)?;
            }
            Event::Down { to, packet } => {
                self.peers[to].on_packet(packet, at)?;
                self.pump_peer(to)?;
            }
            Event::Climb {
                at: Some(node),
                of,
                what,
            } => {
                if let Some(at) = self.tree.climb(node, at, what.len(), &mut self.rng) {
                    let at_node = above(node);
                    let climb = Event::Climb {
                        at: at_node,
                        of,
                        what,
                    };
                    self.schedule.push(at, climb);
                }
            }
            Event::Climb { at: None, of, what } => self.hear(of, what)?,
            Event::WakePeer(number) => {
                let armed = self.peers[number].armed;
                if armed.is_none_or(|armed| armed <= at) {
                    self.peers[number].armed = None;
                    self.pump_peer(number)?;
                }
            }
            Event::WakeServer(number) => {
                let peer = &mut self.peers[number];
                if peer.server_armed.is_some_and(|armed| armed <= at) {
                    peer.server_armed = None;
                    if peer.server.poll_timeout().is_some_and(|due| due <= at) {
                        peer.server.handle_timeout(at);
                    }
                    self.send_down(number);
                }
            }
            Event::WakeSource => {
                if self.source_armed.is_some_and(|armed| armed <= at) {
                    self.source_armed = None;
                    self.source.handle_timeout(at);
                    self.pump_source()?;
                }
            }
        }
        Ok(true)
    }

    fn publish(&mut self, number: usize) -> Result<(), McquicFailure> {
        let (_, len) = self.plan.traffic[number];
        let seq = number as u64 + 1;
        let mut content = vec![0; len];
        rand::Rng::fill_bytes(&mut self.rng, &mut content);
        let update = match self.plan.signed {
            true => self.sign(seq, &content)?,
            false => content.into(),
        };
        self.published.push((self.now, update.clone()));
        self.source.publish(0, seq, update);
        self.pump_source()
    }

    /// Returns an update with its header, in which the deadline is.
    fn sign(&mut self, seq: u64, content: &[u8]) -> Result<Bytes, McquicFailure> {
        let deadline = UNIX + (self.now - self.start) + self.plan.lifetime;
        let statement = Statement {
            channel: CHANNEL,
            incarnation: INCARNATION,
            seq,
            deadline_ms: deadline.as_millis() as u64,
        };
        let mut salt = [0; SALT_LEN];
        rand::Rng::fill_bytes(&mut self.rng, &mut salt);
        let update = self.signer.sign(&statement, &salt, content);
        Ok(update.map_err(failed)?.into())
    }

    /// Takes what a receiver has sent.
    fn hear(&mut self, of: usize, what: Up) -> Result<(), McquicFailure> {
        let (now, session) = (self.now, of as SessionId);
        match what {
            Up::Feedback(mut packet) => {
                self.source
                    .on_feedback(&mut packet, now, |id| id == session);
            }
            Up::Quic(packet) => {
                let peer = &mut self.peers[of];
                for item in peer.server.on_packet(packet, now) {
                    match item {
                        Item::Stream {
                            id,
                            offset,
                            data,
                            fin,
                        } => {
                            let taken = peer.server_inbox.take(id, offset, data, fin);
                            let (bytes, _) = taken.unwrap_or_default();
                            self.source
                                .on_control(session, &bytes, now)
                                .map_err(failed)?;
                        }
                        Item::Datagram(data) => {
                            self.source
                                .on_datagram(session, &data, now)
                                .map_err(failed)?;
                        }
                        Item::Ping => {}
                    }
                }
            }
        }
        self.source.handle_timeout(now);
        self.pump_source()?;
        self.send_down(of);
        Ok(())
    }

    /// Moves everything that is ready at the source.
    fn pump_source(&mut self) -> Result<(), McquicFailure> {
        let now = self.now;
        let mut touched = BTreeSet::new();
        let mut packet = Vec::new();
        loop {
            let mut idle = true;
            while let Some(event) = self.source.poll_event() {
                idle = false;
                self.follow(event)?;
            }
            while let Some(session) = self.source.poll_dirty() {
                idle = false;
                touched.insert(session as usize);
                self.fill(session);
            }
            while self.source.poll_transmit(now, &mut packet).is_some() {
                idle = false;
                self.report.source_bytes += packet.len() as u64;
                let arrivals = self.tree.multicast(now, packet.len(), &mut self.rng);
                let packet: Rc<[u8]> = packet.as_slice().into();
                for (to, at) in arrivals.into_iter().enumerate() {
                    if let Some(at) = at {
                        let packet = packet.clone();
                        self.schedule.push(at, Event::Flow { to, packet });
                    }
                }
            }
            if idle {
                break;
            }
        }
        for number in touched {
            self.send_down(number);
        }
        if let Some(at) = self.source.poll_timeout(now)
            && self.source_armed.is_none_or(|armed| at < armed)
        {
            let at = at.max(now);
            self.source_armed = Some(at);
            self.schedule.push(at, Event::WakeSource);
        }
        Ok(())
    }

    fn follow(&mut self, event: SourceEvent) -> Result<(), McquicFailure> {
        match event {
            SourceEvent::Authorise { session, .. } => {
                self.source.authorised(session, Ok(()), self.now);
            }
            SourceEvent::SecretWanted { channel } => {
                self.secrets += 1;
                let secret = FlowSecret::from([self.secrets; 32]);
                self.source.rekey(channel, secret, self.now);
            }
            SourceEvent::Close { reason, .. } => return Err(failed(reason)),
            _ => {}
        }
        Ok(())
    }

    /// Hands what a session has to say to its connection.
    fn fill(&mut self, session: SessionId) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(session as usize) else {
            return;
        };
        let control = self.source.take_control(session);
        if !control.is_empty() {
            let control = Bytes::copy_from_slice(&control);
            peer.server.send_stream(CONTROL, control, false);
        }
        loop {
            match self.source.poll_unicast(session, now) {
                Unicast::Stream {
                    mut head,
                    body,
                    is_repair,
                } => {
                    if is_repair {
                        peer.server.follow_repairs();
                    }
                    head.extend_from_slice(&body);
                    peer.server.send_stream(peer.next_stream, head.into(), true);
                    peer.next_stream += 4;
                }
                Unicast::CatchUp { mut head, body, .. } => {
                    head.extend_from_slice(&body);
                    let next = &mut peer.next_stream;
                    let stream = peer
                        .catch_up
                        .get_or_insert_with(|| std::mem::replace(next, *next + 4));
                    peer.server.send_stream(*stream, head.into(), false);
                }
                Unicast::CatchUpEnd { .. } => {
                    if let Some(stream) = peer.catch_up.take() {
                        peer.server.send_stream(stream, Bytes::new(), true);
                    }
                }
                Unicast::Fetch {
                    channel,
                    from,
                    limit,
                } => {
                    let stored = (1..).zip(&self.published).skip(from as usize - 1);
                    let found = stored.take(limit).map(|(seq, (_, it))| (seq, it.clone()));
                    let answer = Some(found.collect());
                    self.source.provide(session, channel, from, answer, now);
                }
                Unicast::Idle => return,
            }
        }
    }

    /// Sends what the source's end of a connection has to send.
    fn send_down(&mut self, to: usize) {
        let (now, peer) = (self.now, &mut self.peers[to]);
        while let Some(packet) = peer.server.poll_transmit(now) {
            self.report.source_bytes += packet.len as u64;
            self.report.unicast_bytes += packet.len as u64;
            let arrival = self.tree.unicast(to, now, packet.len, &mut self.rng);
            if let Some(at) = arrival {
                self.schedule.push(at, Event::Down { to, packet });
            }
        }
        if let Some(at) = peer.server.poll_timeout()
            && peer.server_armed.is_none_or(|armed| at < armed)
        {
            peer.server_armed = Some(at);
            self.schedule.push(at.max(now), Event::WakeServer(to));
        }
    }

    /// Moves everything that is ready at a receiver.
    fn pump_peer(&mut self, number: usize) -> Result<(), McquicFailure> {
        let (now, peer) = (self.now, &mut self.peers[number]);
        let mut sent: Vec<Up> = peer.pump(now)?.into_iter().map(Up::Feedback).collect();
        sent.extend(std::iter::from_fn(|| peer.client.poll_transmit(now)).map(Up::Quic));
        for what in sent {
            self.report.receiver_bytes += what.len() as u64;
            let at = Some(number);
            let climb = Event::Climb {
                at,
                of: number,
                what,
            };
            self.schedule.push(now, climb);
        }
        let peer = &mut self.peers[number];
        if let Some(at) = peer.poll_timeout()
            && peer.armed.is_none_or(|armed| at < armed)
        {
            let at = at.max(now);
            peer.armed = Some(at);
            self.schedule.push(at, Event::WakePeer(number));
        }
        Ok(())
    }

    /// Repair symbols, repairs, rebuilt packets and fall-backs so far.
    fn counters(&self) -> [u64; 4] {
        let counters = self.source.counters();
        let flow = self.source.flow(0).map(|flow| flow.stats());
        let flow = flow.unwrap_or_default();
        [
            flow.repair_symbols,
            counters.repairs,
            flow.rebuilt,
            counters.fall_backs,
        ]
    }

    fn finish(mut self, before: [u64; 4]) -> Result<Report, McquicFailure> {
        let updates = self.published.len() as u64;
        for (number, peer) in self.peers.iter().enumerate() {
            let (got, expired) = (peer.got, peer.expired);
            if got + expired != updates {
                return Err(failed(format!(
                    "receiver {number} got {got} of {updates} updates, and passed over {expired}"
                )));
            }
            self.report.expired += peer.expired;
            self.report.complete += usize::from(peer.expired == 0);
        }
        let published = &self.published;
        let delays = |peer: &Peer| {
            let live = peer.live.iter();
            live.map(|(seq, at)| *at - published[*seq as usize - 1].0)
                .collect()
        };
        self.report.lateness = Lateness::of(self.peers.iter().map(delays));
        (self.report.updates, self.report.receivers) = (updates, self.peers.len());
        let now = self.counters();
        let grown: Vec<u64> = now
            .iter()
            .zip(before)
            .map(|(now, then)| now - then)
            .collect();
        if let [symbols, repairs, rebuilt, fall_backs] = grown[..] {
            (self.report.symbols, self.report.repairs) = (symbols, repairs);
            (self.report.rebuilt, self.report.fall_backs) = (rebuilt, fall_backs);
        }
        Ok(self.report)
    }
}
