//! A source and its receivers in virtual time: seeded links, no sockets, no clock.
//!
//! The unicast path is modelled as what QUIC gives: an ordered control stream, ordered server
//! streams and unreliable datagrams, all with a delay. The flow's packets take a link per receiver
//! that can lose, reorder and be cut.

pub mod forger;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{Control, ControlReader, Credential, Endpoint, Refusal, RelayHint, State};
use flexicast::flow::FlowConfig;
use flexicast::protect::FlowSecret;
use flexicast::receiver::{
    Check, Distrust, FlowInput, Output, Receiver, ReceiverConfig, ReceiverEvent, Rungs,
};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, SourceEvent, Unicast, close};
use flexicast::{Cause, Cursor, FlowId, Rung, Via};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

pub const CHANNEL: &str = "lore";
pub const INCARNATION: Uuid = Uuid::from_u128(42);

#[derive(Debug)]
enum Event {
    ToReceiver { node: usize, life: u64, what: Down },
    ToSource { node: usize, life: u64, what: Up },
    Wake,
}

#[derive(Debug)]
enum Down {
    Control(Vec<u8>),
    Stream { id: u64, bytes: Vec<u8>, fin: bool },
    Flow(Rung, Vec<u8>),
}

#[derive(Debug)]
enum Up {
    Control(Vec<u8>),
    Datagram(Vec<u8>),
}

pub struct Node {
    pub core: Receiver,
    pub connected: bool,
    /// Flow packets get through.
    pub multicast: bool,
    /// A relay that brings flow packets can be reached.
    pub relay: bool,
    /// Tunnel requests to its owner, with their times.
    pub asked: Vec<(Duration, Asked)>,
    /// Of flow packets, in percent.
    pub loss: u32,
    pub got: Vec<(u64, Via, Duration)>,
    pub moves: Vec<(Duration, Rung, Cause)>,
    /// Which rungs do not hold, where it stands meanwhile, and why.
    pub explained: Vec<(Duration, Rung, Rung, Cause)>,
    /// Its FC_STATEs.
    pub said: Vec<(Duration, State)>,
    /// Number of leaves of the flow's group followed by a join.
    pub rejoins: usize,
    /// Its acknowledgements are sent.
    pub acks: bool,
    /// Which of its control frames are sent; all of them where there is no filter.
    pub says: Option<fn(&Control) -> bool>,
    /// Codes with which the source closed its connections; [`VIOLATION`] where it broke a rule.
    pub closes: Vec<u64>,
    /// Updates that were handed out and are not what was stored, where that is tolerated.
    pub forged: Vec<u64>,
    /// Updates that the flow brought wrong.
    pub distrusted: Vec<Distrust>,
    /// Requests of the state machine to connect again.
    pub reconnects: usize,
    must_reconnect: bool,
    joined: bool,
    tunnel: bool,
    life: u64,
    next_stream: u64,
    catch_up: Option<u64>,
}

/// A receiver's relay request to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Tunnel(Vec<RelayHint>),
    Again,
    End,
}

/// Stands among [`Node::closes`] for a connection that ended with a violation.
pub const VIOLATION: u64 = close::PROTOCOL_VIOLATION;

pub struct Lab {
    pub source: Source,
    pub nodes: Vec<Node>,
    pub store: Vec<Bytes>,
    pub start: Instant,
    pub now: Instant,
    pub published: Vec<Duration>,
    pub delay: Duration,
    pub jitter: Duration,
    pub flow_packets: u64,
    /// Fall-backs of many at once: how many, and why.
    pub mass: Vec<(usize, Cause)>,
    /// Acknowledgements that all receivers have sent.
    pub acks: u64,
    /// The same as reported by the source.
    pub explained: Vec<(u64, Rung, Rung, Cause)>,
    pub datagram_loss: u32,
    pub fetch_fails: bool,
    pub config: FlowConfig,
    /// Rungs of receivers added from now on.
    pub rungs: Rungs,
    /// The validity check of receivers that are added from now on.
    pub check: Option<Check>,
    /// Somebody forges or misbehaves here: packets that are not taken and connections that are
    /// closed are part of the test.
    pub hostile: bool,
    /// Whole forged updates may be handed out; they are listed.
    pub tolerates_forgery: bool,
    /// The source is of a version that does not know NEED.
    pub old_source: bool,
    /// The flow's packets are kept in `recorded`.
    pub recording: bool,
    pub recorded: Vec<Vec<u8>>,
    queue: BTreeMap<(Instant, u64), Event>,
    serial: u64,
    rng: SmallRng,
    pub steps: u64,
    secrets: u8,
}

pub fn flow_config(seed: u64) -> FlowConfig {
    FlowConfig::new(
        FlowId(seed.to_be_bytes()),
        FlowSecret::from([seed as u8; 32]),
    )
}

fn source_config(seed: u64, head: u64, config: FlowConfig) -> SourceConfig {
    let endpoint = Endpoint {
        group: "232.70.70.1:4434".parse().unwrap(),
        source: Some("10.0.0.1".parse().unwrap()),
    };
    let channel = ChannelConfig {
        name: CHANNEL.into(),
        incarnation: INCARNATION,
        head,
        first: 1,
        private: false,
        endpoints: vec![endpoint],
        replicate: false,
        flow: Some(config),
    };
    SourceConfig {
        channels: vec![channel],
        unicast_rate: None,
        limits: Limits::default(),
        seed,
    }
}

fn new_source(seed: u64, head: u64, config: FlowConfig) -> Source {
    Source::new(source_config(seed, head, config)).unwrap()
}

impl Lab {
    pub fn new(seed: u64, nodes: usize) -> Self {
        Self::with_config(seed, nodes, flow_config(seed))
    }

    pub fn with_config(seed: u64, nodes: usize, config: FlowConfig) -> Self {
        let start = Instant::now();
        let mut lab = Lab {
            source: new_source(seed, 0, config.clone()),
            nodes: Vec::new(),
            store: Vec::new(),
            start,
            now: start,
            published: Vec::new(),
            delay: Duration::from_millis(5),
            jitter: Duration::from_micros(200),
            flow_packets: 0,
            mass: Vec::new(),
            acks: 0,
            explained: Vec::new(),
            datagram_loss: 0,
            fetch_fails: false,
            config,
            rungs: Rungs::default(),
            check: None,
            hostile: false,
            tolerates_forgery: false,
            old_source: false,
            recording: false,
            recorded: Vec::new(),
            queue: BTreeMap::new(),
            serial: 0,
            rng: SmallRng::seed_from_u64(seed),
            steps: 0,
            secrets: 100,
        };
        for i in 0..nodes {
            lab.add_node(i, None);
        }
        lab
    }

    pub fn add_node(&mut self, i: usize, cursor: Option<Cursor>) {
        let mut config = ReceiverConfig::new(
            Uuid::from_u128(i as u128 + 1),
            Credential::Token(b"t".to_vec()),
            vec![(CHANNEL.into(), cursor)],
        );
        config.name = format!("r{i}");
        config.software = "lab".into();
        config.rungs = self.rungs;
        config.seed = i as u64;
        config.check = self.check;
        let node = Node {
            core: Receiver::new(config),
            connected: false,
            multicast: true,
            relay: false,
            asked: Vec::new(),
            loss: 0,
            got: Vec::new(),
            moves: Vec::new(),
            explained: Vec::new(),
            said: Vec::new(),
            rejoins: 0,
            acks: true,
            says: None,
            closes: Vec::new(),
            forged: Vec::new(),
            distrusted: Vec::new(),
            reconnects: 0,
            must_reconnect: false,
            joined: false,
            tunnel: false,
            life: 0,
            next_stream: 3,
            catch_up: None,
        };
        self.nodes.push(node);
    }

    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.serial += 1;
        self.queue.insert((at, self.serial), event);
    }

    pub fn connect(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        (node.connected, node.next_stream, node.catch_up) = (true, 3, None);
        node.core.connected();
        self.source.accept(self.session(i), self.now);
        self.pump();
    }

    /// The connection breaks without a word: both ends notice at once here, what was under way is
    /// lost.
    pub fn disconnect(&mut self, i: usize) {
        let session = self.session(i);
        self.source.closed(session, self.now);
        let node = &mut self.nodes[i];
        node.connected = false;
        node.life += 1;
        node.core.disconnected();
    }

    fn session(&self, i: usize) -> u64 {
        i as u64 + self.nodes[i].life * 1000
    }

    fn node_of(&self, session: u64) -> Option<usize> {
        let i = (session % 1000) as usize;
        // Others are of no node: a test speaks for them itself.
        self.nodes.get(i)?;
        (self.session(i) == session && self.nodes[i].connected).then_some(i)
    }

    /// The source dies and comes back with its store, a fresh flow and no sessions.
    pub fn restart_source(&mut self, seed: u64) {
        (0..self.nodes.len())
            .filter(|i| self.nodes[*i].connected)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|i| self.disconnect(i));
        self.config = FlowConfig {
            flow: FlowId(seed.to_be_bytes()),
            secret: FlowSecret::from([seed as u8; 32]),
            ..self.config.clone()
        };
        self.source = new_source(seed, self.store.len() as u64, self.config.clone());
    }

    /// Stores and publishes an update of `len` bytes.
    pub fn publish(&mut self, len: usize) {
        let seq = self.store.len() as u64 + 1;
        let bytes = Bytes::from(Self::content(seq, len));
        self.store.push(bytes.clone());
        self.published.push(self.elapsed());
        self.source.publish(0, seq, bytes);
        self.pump();
    }

    fn send_down(&mut self, i: usize, what: Down) {
        let (at, life) = (self.now + self.delay, self.nodes[i].life);
        self.schedule(
            at,
            Event::ToReceiver {
                node: i,
                life,
                what,
            },
        );
    }

    /// Moves everything that is ready at this instant, until nothing is.
    fn pump(&mut self) {
        let mut packet = Vec::new();
        for round in 0.. {
            assert!(round < 100_000, "a busy loop at {:?}", self.elapsed());
            let mut idle = true;
            while let Some(event) = self.source.poll_event() {
                idle = false;
                match event {
                    SourceEvent::Authorise { session, hello } => {
                        let good = hello.credential == Credential::Token(b"t".to_vec());
                        let verdict = if good {
                            Ok(())
                        } else {
                            Err((Refusal::BadCredential, "no such token".into()))
                        };
                        self.source.authorised(session, verdict, self.now);
                    }
                    SourceEvent::Explained {
                        session,
                        rung,
                        on,
                        cause,
                        ..
                    } => self.explained.push((session, rung, on, cause)),
                    SourceEvent::MassFallBack { members, cause, .. } => {
                        self.mass.push((members, cause));
                    }
                    SourceEvent::Ahead { .. }
                    | SourceEvent::Moved { .. }
                    | SourceEvent::Probe { .. } => {}
                    SourceEvent::SecretWanted { channel } => {
                        self.secrets += 1;
                        let secret = FlowSecret::from([self.secrets; 32]);
                        self.source.rekey(channel, secret, self.now);
                    }
                    SourceEvent::Close { session, code, .. } => {
                        if let Some(i) = self.node_of(session) {
                            self.nodes[i].closes.push(code);
                            self.disconnect(i);
                        }
                    }
                }
            }
            while let Some(session) = self.source.poll_dirty() {
                idle = false;
                self.flush_session(session);
            }
            while self.source.poll_transmit(self.now, &mut packet).is_some() {
                idle = false;
                self.flow_packets += 1;
                self.send_flow(&packet);
            }
            for i in 0..self.nodes.len() {
                idle &= !self.flush_node(i);
            }
            if idle {
                break;
            }
        }
        let mut deadlines: Vec<_> = self
            .nodes
            .iter()
            .filter(|n| n.connected)
            .filter_map(|n| n.core.poll_timeout())
            .collect();
        deadlines.extend(self.source.poll_timeout(self.now));
        if let Some(at) = deadlines.into_iter().min() {
            self.schedule(at, Event::Wake);
        }
    }

    fn send_flow(&mut self, packet: &[u8]) {
        if self.recording {
            self.recorded.push(packet.to_vec());
        }
        for i in 0..self.nodes.len() {
            let jitter = self.jitter.mul_f64(self.rng.random_range(0.0..1.0));
            let node = &self.nodes[i];
            let lost = node.loss > 0 && self.rng.random_range(0..100) < node.loss;
            let (at, life) = (self.now + self.delay + jitter, node.life);
            let native = node.joined && node.multicast;
            let relayed = node.tunnel && node.relay;
            let ways = [(native, Rung::Multicast), (relayed, Rung::Amt)];
            for (_, rung) in ways.into_iter().filter(|(on, _)| *on && !lost) {
                let what = Down::Flow(rung, packet.to_vec());
                self.schedule(
                    at,
                    Event::ToReceiver {
                        node: i,
                        life,
                        what,
                    },
                );
            }
        }
    }

    fn flush_session(&mut self, session: u64) {
        let control = self.source.take_control(session);
        let Some(i) = self.node_of(session) else {
            return;
        };
        if !control.is_empty() {
            let said = match self.old_source {
                true => without_capabilities(&control),
                false => control.to_vec(),
            };
            self.send_down(i, Down::Control(said));
        }
        loop {
            match self.source.poll_unicast(session, self.now) {
                Unicast::Stream { mut head, body } => {
                    head.extend_from_slice(&body);
                    let id = self.nodes[i].next_stream;
                    self.nodes[i].next_stream += 4;
                    self.send_down(
                        i,
                        Down::Stream {
                            id,
                            bytes: head,
                            fin: true,
                        },
                    );
                }
                Unicast::CatchUp { mut head, body, .. } => {
                    head.extend_from_slice(&body);
                    let node = &mut self.nodes[i];
                    let next = &mut node.next_stream;
                    let id = *node
                        .catch_up
                        .get_or_insert_with(|| std::mem::replace(next, *next + 4));
                    self.send_down(
                        i,
                        Down::Stream {
                            id,
                            bytes: head,
                            fin: false,
                        },
                    );
                }
                Unicast::CatchUpEnd { .. } => {
                    if let Some(id) = self.nodes[i].catch_up.take() {
                        self.send_down(
                            i,
                            Down::Stream {
                                id,
                                bytes: vec![],
                                fin: true,
                            },
                        );
                    }
                }
                Unicast::Fetch { from, limit, .. } => {
                    let from_index = from as usize - 1;
                    let found = self
                        .store
                        .iter()
                        .enumerate()
                        .skip(from_index)
                        .take(limit)
                        .map(|(i, b)| (i as u64 + 1, b.clone()))
                        .collect();
                    let answer = (!self.fetch_fails).then_some(found);
                    self.source.provide(session, 0, from, answer, self.now);
                    if self.fetch_fails {
                        return;
                    }
                }
                Unicast::Idle => return,
            }
        }
    }

    fn flush_node(&mut self, i: usize) -> bool {
        let now = self.now;
        let at = now + self.delay;
        let elapsed = self.elapsed();
        let node = &mut self.nodes[i];
        let life = node.life;
        let mut busy = false;
        let mut up = Vec::new();
        while let Some((channel, incarnation, update)) = node.core.poll_update() {
            let Output::Update(update) = update else {
                panic!("{update:?}: nothing is gone in these tests");
            };
            busy = true;
            assert_eq!((channel, incarnation), (CHANNEL, INCARNATION));
            let stored = self.store.get(update.seq as usize - 1);
            if self.tolerates_forgery && stored != Some(&update.encoded) {
                node.forged.push(update.seq);
            } else {
                let seq = update.seq;
                assert_eq!(
                    Some(&update.encoded),
                    stored,
                    "update {seq} is not what was stored"
                );
            }
            node.got.push((update.seq, update.via, elapsed));
            let cursor = Cursor {
                incarnation,
                seq: update.seq,
            };
            node.core.confirm(CHANNEL, cursor, now);
        }
        while let Some(event) = node.core.poll_event() {
            busy = true;
            match event {
                ReceiverEvent::Join { .. } => node.joined = true,
                ReceiverEvent::Leave { .. } => node.joined = false,
                ReceiverEvent::Rejoin { .. } => node.rejoins += 1,
                ReceiverEvent::Tunnel { relays, .. } => {
                    node.tunnel = true;
                    node.asked.push((elapsed, Asked::Tunnel(relays)));
                }
                ReceiverEvent::Retunnel { .. } => {
                    assert!(node.tunnel, "there is no tunnel to be looked at");
                    node.asked.push((elapsed, Asked::Again));
                }
                ReceiverEvent::EndTunnel { .. } => {
                    assert!(node.tunnel, "there is no tunnel to be ended");
                    node.tunnel = false;
                    node.asked.push((elapsed, Asked::End));
                }
                ReceiverEvent::Explained {
                    rung, on, cause, ..
                } => node.explained.push((elapsed, rung, on, cause)),
                ReceiverEvent::Moved { rung, cause, .. } => node.moves.push((elapsed, rung, cause)),
                ReceiverEvent::Distrusted { found, .. } => node.distrusted.push(found),
                ReceiverEvent::Reconnect { .. } => node.must_reconnect = true,
                _ => {}
            }
        }
        if node.connected {
            let mut control = node.core.take_control().to_vec();
            let mut reader = ControlReader::new();
            reader.push(&std::mem::take(&mut control));
            while let Some(frame) = reader.next_frame().unwrap() {
                if node.says.is_none_or(|says| says(&frame)) {
                    frame.encode(&mut control);
                    if let Control::State(state) = frame {
                        node.said.push((elapsed, state));
                    }
                }
            }
            if !control.is_empty() {
                up.push(Up::Control(control));
            }
            while let Some((_, ack)) = node.core.poll_datagram(now) {
                busy = true;
                self.acks += 1;
                if !node.acks {
                    continue;
                }
                if self.datagram_loss == 0 || self.rng.random_range(0..100) >= self.datagram_loss {
                    up.push(Up::Datagram(ack));
                }
            }
        }
        busy |= !up.is_empty();
        up.into_iter().for_each(|what| {
            self.schedule(
                at,
                Event::ToSource {
                    node: i,
                    life,
                    what,
                },
            )
        });
        busy
    }

    /// The source offers copies of the flow's packets, which get lost here. Before anybody
    /// connects.
    pub fn offer_replication(&mut self, seed: u64) {
        let mut config = source_config(seed, 0, self.config.clone());
        config.channels[0].replicate = true;
        self.source = Source::new(config).unwrap();
    }

    /// The owner of a receiver has a relay that answers, after none did.
    pub fn relay_found(&mut self, i: usize) {
        let (flow, now) = (self.config.flow, self.now);
        self.nodes[i].core.relay_found(flow, now);
        self.pump();
    }

    /// The owner of a receiver has found out that its relay is gone.
    pub fn relay_lost(&mut self, i: usize) {
        let (flow, now) = (self.config.flow, self.now);
        self.nodes[i].core.relay_lost(flow, now);
        self.pump();
    }

    /// Bytes that a receiver's own state machine would not say on its control stream.
    pub fn say(&mut self, i: usize, bytes: Vec<u8>) {
        self.send_up(i, Up::Control(bytes));
    }

    /// A DATAGRAM that a receiver's own state machine would not send.
    pub fn send_datagram(&mut self, i: usize, bytes: Vec<u8>) {
        self.send_up(i, Up::Datagram(bytes));
    }

    fn send_up(&mut self, node: usize, what: Up) {
        let (at, life) = (self.now + self.delay, self.nodes[node].life);
        self.schedule(at, Event::ToSource { node, life, what });
    }

    /// Delivers a datagram to a receiver as if it were of the flow.
    pub fn inject(&mut self, i: usize, packet: Vec<u8>) {
        self.send_down(i, Down::Flow(Rung::Multicast, packet));
    }

    /// Lets virtual time pass.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.pump();
        while let Some(((at, _), event)) = self
            .queue
            .first_key_value()
            .filter(|((at, _), _)| *at <= end)
            .map(|(k, _)| *k)
            .and_then(|k| self.queue.remove_entry(&k))
        {
            self.steps += 1;
            self.now = self.now.max(at);
            match event {
                Event::ToReceiver {
                    node: i,
                    life,
                    what,
                } => {
                    let now = self.now;
                    let node = &mut self.nodes[i];
                    if node.life == life && node.connected {
                        match what {
                            Down::Control(bytes) => node.core.on_control(&bytes, now).unwrap(),
                            Down::Stream { id, bytes, fin } => {
                                assert!(node.core.wants_unicast());
                                node.core.on_unicast(id, &bytes, fin).unwrap();
                            }
                            Down::Flow(rung, mut packet) => {
                                let input = node.core.on_flow_datagram(rung, &mut packet, now);
                                assert!(
                                    self.hostile
                                        || !matches!(
                                            input,
                                            FlowInput::Unverified
                                                | FlowInput::Invalid
                                                | FlowInput::NoRoom
                                        ),
                                    "{input:?}"
                                );
                            }
                        }
                    }
                }
                Event::ToSource {
                    node: i,
                    life,
                    what,
                } => {
                    let session = self.session(i);
                    if self.nodes[i].life == life && self.nodes[i].connected {
                        let taken = match what {
                            Up::Control(bytes) => self.source.on_control(session, &bytes, self.now),
                            Up::Datagram(bytes) => {
                                self.source.on_datagram(session, &bytes, self.now)
                            }
                        };
                        if let Err(error) = taken {
                            assert!(self.hostile, "{error}");
                            self.nodes[i].closes.push(VIOLATION);
                            self.disconnect(i);
                        }
                    }
                }
                Event::Wake => {
                    // Several wake-ups may stand for the same instant; one does.
                    while self
                        .queue
                        .first_key_value()
                        .is_some_and(|((next, _), e)| *next <= self.now && matches!(e, Event::Wake))
                    {
                        self.queue.pop_first();
                    }
                }
            }
            let now = self.now;
            self.source.handle_timeout(now);
            self.nodes
                .iter_mut()
                .filter(|n| n.connected)
                .for_each(|n| n.core.handle_timeout(now));
            self.pump();
            for i in 0..self.nodes.len() {
                if std::mem::take(&mut self.nodes[i].must_reconnect) {
                    self.nodes[i].reconnects += 1;
                    self.disconnect(i);
                    self.connect(i);
                }
            }
        }
        self.now = end;
    }

    /// The bytes of an update that is stored or will be.
    pub fn content(seq: u64, len: usize) -> Vec<u8> {
        let bytes = (0..len as u64).map(|i| (i * 7 + seq * 13) as u8);
        bytes.collect()
    }

    /// Every connected receiver has every update from `first` on, once and in order.
    pub fn assert_complete(&self, first: u64) {
        let expected: Vec<u64> = (first..=self.store.len() as u64).collect();
        for (i, node) in self.nodes.iter().enumerate() {
            let got: Vec<u64> = node.got.iter().map(|(seq, ..)| *seq).collect();
            let missing: BTreeSet<_> = expected.iter().filter(|seq| !got.contains(seq)).collect();
            assert_eq!(got, expected, "receiver {i} misses {missing:?}");
        }
    }

    /// Moves of a receiver without their times.
    pub fn moves(&self, i: usize) -> Vec<(Rung, Cause)> {
        self.nodes[i]
            .moves
            .iter()
            .map(|(_, rung, cause)| (*rung, *cause))
            .collect()
    }
}

/// The same frames as from a source of an earlier version.
fn without_capabilities(control: &[u8]) -> Vec<u8> {
    let (mut reader, mut said) = (ControlReader::new(), Vec::new());
    reader.push(control);
    while let Some(mut frame) = reader.next_frame().unwrap() {
        if let Control::Welcome(welcome) = &mut frame {
            welcome.capabilities.clear();
        }
        frame.encode(&mut said);
    }
    said
}
