//! A source and its receivers in virtual time: seeded links, no sockets, no clock.
//!
//! The unicast path is modelled as what QUIC gives: an ordered control stream, ordered server
//! streams and unreliable datagrams, all with a delay. The flow's packets take a link per receiver
//! that can lose, reorder and be cut.

pub mod forger;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{Control, Credential, Endpoint, Leg, LegState, RelayHint, State};
use flexicast::fec::FecConfig;
use flexicast::flow::{BreakerState, FlowConfig};
use flexicast::protect::FlowSecret;
use flexicast::receiver::{Check, DistrustedUpdate, Receiver, ReceiverConfig, Redundancy, Rungs};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, close};
use flexicast::{Cause, Cursor, Ecn, FlowId, Rung, Via};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use signing::{Era, Lineage, SALT_LEN, Signer, Statement};
use uuid::Uuid;

pub const CHANNEL: &str = "lore";
pub const INCARNATION: Uuid = Uuid::from_u128(42);
/// Unix time of a lab's start.
pub const UNIX: Duration = Duration::from_secs(1_800_000_000);

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
    Flow(Leg, Ecn, Vec<u8>),
    Datagram(Vec<u8>),
}

#[derive(Debug)]
enum Up {
    Control(Vec<u8>),
    Datagram(Vec<u8>),
    Feedback(Vec<u8>),
}

pub struct Node {
    pub core: Receiver,
    pub connected: bool,
    /// Flow packets get through.
    pub multicast: bool,
    /// A relay that brings flow packets can be reached.
    pub relay: bool,
    /// So can another one, for a second tunnel.
    pub second_relay: bool,
    /// Additional losses of the native path and of the relays', in percent, each by itself.
    pub leg_loss: [u32; 3],
    /// Additional delays of these.
    pub leg_delay: [Duration; 3],
    /// Tunnel requests to its owner, with their times.
    pub asked: Vec<(Duration, Asked)>,
    /// The same for a second relay.
    pub asked_second: Vec<(Duration, Asked)>,
    /// Of flow packets, in percent.
    pub loss: u32,
    /// Share of flow packets that its path marks with CE, in percent; `None` without ECN.
    pub marks: Option<u32>,
    /// Jitter of its path beyond that of all.
    pub jitter: Duration,
    /// Largest UDP payload of flow packets that gets through, if there is a limit.
    pub max_payload: Option<usize>,
    /// The last link to the receiver, if it is slower than the others.
    pub bottleneck: Option<Bottleneck>,
    pub got: Vec<(u64, Via, Duration)>,
    /// Updates with a deadline that were handed out as soon as they were whole.
    pub live: Vec<(u64, Duration)>,
    /// Messages, by number.
    pub messages: Vec<(u64, Bytes)>,
    /// Updates that were passed over because they had expired.
    pub expired: Vec<u64>,
    pub moves: Vec<(Duration, Rung, Cause)>,
    /// Rungs that do not hold, its rung meanwhile, and the causes.
    pub explained: Vec<(Duration, Rung, Rung, Cause)>,
    /// States of its legs.
    pub legs: Vec<(Duration, Leg, LegState)>,
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
    pub distrusted: Vec<DistrustedUpdate>,
    /// Requests of the state machine to connect again.
    pub reconnects: usize,
    must_reconnect: bool,
    joined: bool,
    tunnels: [bool; 2],
    life: u64,
    next_stream: u64,
    catch_up: Option<u64>,
}

impl Node {
    /// Returns the requests about one of its tunnels.
    fn requests(&mut self, number: u64) -> &mut Vec<(Duration, Asked)> {
        match number {
            0 => &mut self.asked,
            _ => &mut self.asked_second,
        }
    }
}

/// A link with a rate and a queue each for flow packets and for unicast streams, as a router with
/// fair queues has them.
pub struct Bottleneck {
    bits_per_s: u64,
    /// Bytes that may wait; flow packets beyond are dropped, and streams wait as QUIC's would.
    queue: u64,
    /// When the link has sent all flow packets, and all bytes of streams.
    free_at: [Option<Instant>; 2],
}

impl Bottleneck {
    pub fn new(bits_per_s: u64, queue: u64) -> Self {
        Bottleneck {
            bits_per_s,
            queue,
            free_at: [None; 2],
        }
    }

    /// Returns when a packet has passed the link; `None` if the queue is full.
    fn pass(&mut self, now: Instant, bytes: usize, droppable: bool) -> Option<Instant> {
        let span =
            |bytes: u64| Duration::from_secs_f64(bytes as f64 * 8.0 / self.bits_per_s as f64);
        let free_at = &mut self.free_at[usize::from(droppable)];
        let free = free_at.map_or(now, |at| at.max(now));
        if droppable && free - now > span(self.queue) {
            return None;
        }
        *free_at = Some(free + span(bytes as u64));
        *free_at
    }
}

/// The path of feedback packets to the source, and what passes it.
#[derive(Default)]
pub struct FeedbackPath {
    /// Whether receivers that are added from now on can send them.
    pub on: bool,
    /// Of the packets, in percent.
    pub loss: u32,
    /// Packets that arrive twice, in percent.
    pub copies: u32,
    /// Longest additional delay of each.
    pub jitter: Duration,
    /// The packets come from another address than the connection has.
    pub elsewhere: bool,
    /// An observer sends a copy of each packet from its own address, which arrives first.
    pub raced: bool,
    /// All packets that were sent.
    pub sent: Vec<Vec<u8>>,
    /// Number of packets that arrived, copies included.
    pub arrived: u64,
    /// Notices of another address.
    pub notices: u64,
}

/// A receiver's relay request to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Tunnel(Vec<RelayHint>),
    Again,
    End,
}

/// Entry of [`Node::closes`] for a connection that ended with a violation.
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
    /// Every so many flow packets, one is lost on the way that all receivers share; 0 for none.
    pub shared_loss: u64,
    /// Bytes that were lost there.
    pub lost_bytes: u64,
    /// Fall-backs of many at once: how many, and why.
    pub mass: Vec<(usize, Cause)>,
    /// States of the flow's circuit breaker, in order.
    pub breakers: Vec<BreakerState>,
    /// Acknowledgements that all receivers have sent in DATAGRAM frames.
    pub acks: u64,
    pub feedback: FeedbackPath,
    /// The same as reported by the source.
    pub explained: Vec<(u64, Rung, Rung, Cause)>,
    /// States of receivers' legs as the source knows them.
    pub legs: Vec<(u64, Leg, LegState)>,
    /// Reports of forged packets that moved no receiver: session, its rung, and their number.
    pub forgeries: Vec<(u64, Rung, u64)>,
    pub datagram_loss: u32,
    pub fetch_fails: bool,
    pub config: FlowConfig,
    /// Rungs of receivers added from now on.
    pub rungs: Rungs,
    /// Whether receivers that are added from now on take flows whose packets are authenticated.
    pub authenticates: bool,
    /// Whether receivers that are added from now on rebuild packets.
    pub rebuilds: bool,
    /// Capabilities that no receiver lists.
    pub hides: Vec<u64>,
    /// Number of legs of receivers that are added from now on.
    pub redundancy: Redundancy,
    /// The validity check of receivers that are added from now on.
    pub check: Option<Check>,
    /// An attacker forges or misbehaves here: packets that are not taken and connections that are
    /// closed are part of the test.
    pub hostile: bool,
    /// Whole forged updates may be handed out; they are listed.
    pub tolerates_forgery: bool,
    /// The source is of a version that does not know NEED.
    pub old_source: bool,
    /// Lifetime of the updates that are published, which need a signer.
    pub lifetime: Option<Duration>,
    /// Whether receivers that are added from now on keep deadlines.
    pub deadlines: bool,
    /// Key that signs the updates that are published.
    pub signer: Option<Signer>,
    pub lineage: Vec<Era>,
    /// Packets of the flow that do not reach a receiver, by its number.
    pub drops: Option<fn(usize, &[u8]) -> bool>,
    /// The flow's packets are kept in `recorded`.
    pub recording: bool,
    pub recorded: Vec<Vec<u8>>,
    queue: BTreeMap<(Instant, u64), Event>,
    serial: u64,
    rng: SmallRng,
    pub steps: u64,
    secrets: u8,
}

/// Returns an update of the channel as a holder of this key signs it.
pub fn signed(signer: &Signer, seq: u64, content: &[u8]) -> Vec<u8> {
    signed_until(signer, seq, content, 0)
}

/// Returns the same with a deadline in Unix ms; 0 for none.
pub fn signed_until(signer: &Signer, seq: u64, content: &[u8], deadline_ms: u64) -> Vec<u8> {
    let statement = Statement {
        channel: CHANNEL,
        incarnation: INCARNATION,
        seq,
        deadline_ms,
    };
    signer
        .sign(&statement, &[seq as u8; SALT_LEN], content)
        .unwrap()
}

pub fn flow_config(seed: u64) -> FlowConfig {
    let (id, secret) = (
        FlowId(seed.to_be_bytes()),
        FlowSecret::from([seed as u8; 32]),
    );
    FlowConfig {
        fec: Some(FecConfig::default()),
        ..FlowConfig::new(id, secret)
    }
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

    /// A lab whose flow sends no repair symbols: what is lost is repaired.
    pub fn without_fec(seed: u64, nodes: usize) -> Self {
        let config = FlowConfig {
            fec: None,
            ..flow_config(seed)
        };
        Self::with_config(seed, nodes, config)
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
            shared_loss: 0,
            lost_bytes: 0,
            mass: Vec::new(),
            breakers: Vec::new(),
            acks: 0,
            feedback: FeedbackPath::default(),
            explained: Vec::new(),
            legs: Vec::new(),
            forgeries: Vec::new(),
            datagram_loss: 0,
            fetch_fails: false,
            config,
            rungs: Rungs::default(),
            authenticates: true,
            rebuilds: true,
            hides: Vec::new(),
            redundancy: Redundancy::One,
            check: None,
            hostile: false,
            tolerates_forgery: false,
            old_source: false,
            lifetime: None,
            deadlines: true,
            signer: None,
            lineage: Vec::new(),
            drops: None,
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
        config.packet_authentication = self.authenticates;
        config.fec = self.rebuilds;
        config.redundancy = self.redundancy;
        config.feedback = self.feedback.on;
        config.deadlines = self.deadlines;
        let node = Node {
            core: Receiver::new(config),
            connected: false,
            multicast: true,
            relay: false,
            second_relay: false,
            leg_loss: [0; 3],
            leg_delay: [Duration::ZERO; 3],
            asked: Vec::new(),
            asked_second: Vec::new(),
            loss: 0,
            marks: None,
            jitter: Duration::ZERO,
            max_payload: None,
            bottleneck: None,
            got: Vec::new(),
            live: Vec::new(),
            messages: Vec::new(),
            expired: Vec::new(),
            moves: Vec::new(),
            explained: Vec::new(),
            legs: Vec::new(),
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
            tunnels: [false; 2],
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

    /// Whether the receiver listens to the flow's group.
    pub fn is_joined(&self, i: usize) -> bool {
        self.nodes[i].joined
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
        let mut bytes = Self::content(seq, len);
        if let Some(signer) = &self.signer {
            let lifetime = self.lifetime.map(|lifetime| self.elapsed() + lifetime);
            let deadline_ms = lifetime.map_or(0, |at| (UNIX + at).as_millis() as u64);
            bytes = signed_until(signer, seq, &bytes, deadline_ms);
        }
        let bytes = Bytes::from(bytes);
        self.store.push(bytes.clone());
        self.published.push(self.elapsed());
        self.source.publish(0, seq, bytes);
        self.pump();
    }

    /// The unicast paths together have this rate. Before any receiver connects.
    pub fn limit_unicast(&mut self, seed: u64, bits_per_s: u64) {
        let mut config = source_config(seed, 0, self.config.clone());
        config.unicast_rate = Some(bits_per_s);
        self.source = Source::new(config).unwrap();
    }

    /// The source offers copies of the flow's packets, which get lost here. Before any receiver
    /// connects.
    pub fn offer_replication(&mut self, seed: u64) {
        let mut config = source_config(seed, 0, self.config.clone());
        config.channels[0].replicate = true;
        self.source = Source::new(config).unwrap();
    }

    /// The owner of a receiver has a relay that answers, after none did.
    pub fn relay_found(&mut self, i: usize) {
        let (flow, now) = (self.config.flow, self.now);
        self.nodes[i].core.relay_found(flow, 0, now);
        self.pump();
    }

    /// The owner of a receiver has found out that its relay is gone.
    pub fn relay_lost(&mut self, i: usize) {
        self.tunnel_lost(i, 0);
    }

    /// The owner of a receiver has found out that the relay of one of its tunnels is gone.
    pub fn tunnel_lost(&mut self, i: usize, number: u64) {
        let (flow, now) = (self.config.flow, self.now);
        self.nodes[i].core.relay_lost(flow, number, now);
        self.pump();
    }

    /// The owner of a receiver has found no relay for one of its tunnels.
    pub fn no_relay(&mut self, i: usize, number: u64) {
        let (flow, now) = (self.config.flow, self.now);
        self.nodes[i].core.no_relay(flow, number, now);
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

    /// A feedback packet from the receiver's address that its state machine would not send.
    pub fn send_feedback(&mut self, i: usize, packet: Vec<u8>) {
        self.send_up(i, Up::Feedback(packet));
    }

    /// The source takes feedback packets, and receivers that are added from now on can send them.
    pub fn enable_feedback(&mut self) {
        self.feedback.on = true;
        self.source.enable_feedback(FlowSecret::from([77; 32]), 0);
    }

    fn send_up(&mut self, node: usize, what: Up) {
        let (at, life) = (self.now + self.delay, self.nodes[node].life);
        self.schedule(at, Event::ToSource { node, life, what });
    }

    /// Delivers a datagram to a receiver as if it were of the flow.
    pub fn inject(&mut self, i: usize, packet: Vec<u8>) {
        self.inject_by(i, Rung::Multicast, packet);
    }

    /// The same by one of its rungs.
    pub fn inject_by(&mut self, i: usize, rung: Rung, packet: Vec<u8>) {
        self.inject_by_leg(i, Leg { rung, number: 0 }, packet);
    }

    /// A packet that a receiver gets by one of several legs.
    pub fn inject_by_leg(&mut self, i: usize, leg: Leg, packet: Vec<u8>) {
        self.send_down(i, Down::Flow(leg, Ecn::NotEct, packet));
    }

    /// From the next update on, the source signs with the key of this seed, as its only one from
    /// then on.
    pub fn sign_with(&mut self, seed: u8) {
        let signer = Signer::from_seed(&[seed; 32]).unwrap();
        let head = self.store.len() as u64;
        let channel = self.lineage.last_mut();
        if let Some(open) = channel.filter(|era| era.last.is_none()) {
            open.last = Some(head);
        }
        self.lineage.push(Era {
            first: head + 1,
            last: None,
            incarnation: INCARNATION,
            key: signer.key(),
        });
        self.signer = Some(signer);
        let lineage = Lineage::new(self.lineage.clone()).unwrap();
        assert!(self.source.set_lineage(0, lineage));
        self.pump();
    }

    /// The source keeps deadlines: it knows the time. Before any receiver connects.
    pub fn keep_deadlines(&mut self, lifetime: Duration) {
        self.source.set_clock(self.start, UNIX);
        self.lifetime = Some(lifetime);
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
