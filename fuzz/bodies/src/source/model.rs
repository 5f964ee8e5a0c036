//! Model of a source's owner, with invariants that hold for any behaviour of receivers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::ack::PathAck;
use flexicast::control::{Action, Control, ControlReader, Endpoint};
use flexicast::fec::{FecConfig, FecPolicy, SymbolPath};
use flexicast::feedback::FeedbackSealer;
use flexicast::flow::FlowConfig;
use flexicast::protect::{Algorithm, FlowSecret};
use flexicast::range::RangeSet;
use flexicast::source::{
    ChannelConfig, Limits, SessionId, Source, SourceConfig, SourceEvent, Unicast,
};
use flexicast::trace::TracedFrame;
use flexicast::unicast::{Piece, StreamReader};
use flexicast::{FlowId, PathId, Rung};
use uuid::Uuid;

pub const CHANNELS: usize = 2;
pub const SESSIONS: u8 = 4;
pub const NAMES: [&str; CHANNELS] = ["lore", "news"];
pub const INCARNATIONS: [Uuid; CHANNELS] = [Uuid::from_u128(1), Uuid::from_u128(2)];
/// Updates that are stored before the source starts: a few, or more than fit a live backlog.
const STORED: [u64; 2] = [3, 300];
const RECEIVERS: usize = 3;
const COPIES: usize = 1;

/// The bytes of an update.
pub fn content(channel: usize, seq: u64, len: usize) -> Bytes {
    crate::content_of(channel, seq, len)
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![Endpoint {
        group: "232.70.70.1:4434".parse().expect("an address"),
        source: None,
    }]
}

/// Messages and data given to one session.
#[derive(Default)]
pub struct Peer {
    pub open: bool,
    pub validated: bool,
    pub blocked: bool,
    pub state_sequence: u64,
    pub window_sequence: u64,
    /// The newest key of each flow that it was given.
    pub keys: BTreeMap<FlowId, u64>,
    /// Its feedback packets for the flow that it was given a key for last.
    feedback: Option<FeedbackSealer>,
    control: ControlReader,
    /// Reads what it says itself.
    says: ControlReader,
    closing: bool,
    ejected: bool,
    /// Channel to where delivery begins.
    first: BTreeMap<usize, u64>,
    announced: BTreeMap<usize, (FlowId, u64)>,
    /// Flows that it asked to join, and the next packet number when it first did.
    asked: BTreeMap<FlowId, u64>,
    catch_up: BTreeMap<usize, StreamReader>,
    /// Ranges received of each update, by either path.
    have: BTreeMap<(usize, u64), RangeSet>,
}

/// A range of an update in a packet: seq, offset, length.
type SentRange = (u64, u64, u64);

pub struct Model {
    pub source: Source,
    pub now: Instant,
    /// Virtual time left to the input: one that only waits is not worth running.
    time_left: Duration,
    pub store: [Vec<Bytes>; CHANNELS],
    pub fetches_fail: bool,
    pub gives_secrets: bool,
    /// Flows that were made so far.
    pub flows: u64,
    /// Numbers of receivers that were given keys for tags.
    tagged: BTreeSet<(FlowId, u32)>,
    peers: BTreeMap<SessionId, Peer>,
    /// The oldest update that is stored.
    first: [u64; CHANNELS],
    /// Contents of each packet of each flow.
    sent: BTreeMap<(FlowId, u64), Vec<SentRange>>,
    secrets: u8,
    private: bool,
}

impl Model {
    /// `kind` chooses between private and public channels, paced and free unicast paths, long and
    /// short epochs, copies or none, a short or a long past.
    pub fn new(kind: u8) -> Self {
        let is = |bit: u8| kind >> bit & 1 == 1;
        let stored = STORED[usize::from(is(6))];
        let channel = |c: usize| {
            let mut flow = FlowConfig::new(
                FlowId([c as u8 + 100; 8]),
                FlowSecret::from([c as u8 + 100; 32]),
            );
            if is(2) {
                flow.epoch_packets = 64;
            }
            flow.fec = [None, Some(FecConfig::default())][c % 2];
            if is(5)
                && let Some(fec) = &mut flow.fec
            {
                fec.policy = FecPolicy::Reactive;
                if is(1) {
                    fec.path = SymbolPath::Unicast;
                }
            }
            ChannelConfig {
                name: NAMES[c].into(),
                incarnation: INCARNATIONS[c],
                head: if c == 0 { stored } else { 0 },
                first: 1,
                private: is(0),
                endpoints: if is(4) { vec![] } else { endpoints() },
                replicate: is(3),
                flow: (c == 0 || is(5)).then_some(flow),
            }
        };
        let limits = Limits {
            receivers: RECEIVERS,
            replicas: COPIES,
            control_per_s: 40,
            acks_per_s: 40,
            ..Limits::default()
        };
        let mut source = Source::new(SourceConfig {
            channels: (0..CHANNELS).map(channel).collect(),
            unicast_rate: is(1).then_some(2_000_000),
            limits,
            seed: 1,
        })
        .expect("keys");
        source.set_tracing(true);
        source.enable_feedback(FlowSecret::from([200; 32]), 0);
        Model {
            source,
            now: Instant::now(),
            time_left: Duration::from_secs(60),
            store: [
                (1..=stored).map(|seq| content(0, seq, 5)).collect(),
                Vec::new(),
            ],
            fetches_fail: false,
            gives_secrets: true,
            tagged: BTreeSet::new(),
            flows: 0,
            peers: BTreeMap::new(),
            first: [1; CHANNELS],
            sent: BTreeMap::new(),
            secrets: 0,
            private: is(0),
        }
    }

    pub fn peer(&mut self, s: SessionId) -> &mut Peer {
        self.peers.entry(s).or_default()
    }

    pub fn accept(&mut self, s: SessionId) {
        // An owner gives a session number once.
        if self.peer(s).open {
            self.closed(s);
        }
        *self.peer(s) = Peer {
            open: true,
            validated: true,
            ..Peer::default()
        };
        self.source.accept(s, self.now);
    }

    pub fn closed(&mut self, s: SessionId) {
        self.source.closed(s, self.now);
        self.peer(s).open = false;
    }

    pub fn eject(&mut self, s: SessionId) {
        // Messages already sent to it belong to it.
        self.pump_control(s);
        let peer = self.peer(s);
        peer.ejected |= peer.open;
        self.source.eject(s, self.now);
    }

    pub fn frame(&mut self, s: SessionId, frame: &Control) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.control(s, &bytes);
    }

    pub fn control(&mut self, s: SessionId, bytes: &[u8]) {
        let reader = &mut self.peer(s).says;
        reader.push(bytes);
        let said: Vec<_> = std::iter::from_fn(|| reader.next_frame().ok().flatten()).collect();
        for frame in said {
            if let Control::State(state) = frame
                && state.action == Action::Join
            {
                let flows = (0..CHANNELS).filter_map(|c| self.source.flow(c));
                let next = flows
                    .filter(|f| f.config().flow == state.flow)
                    .map(|f| f.next_pn())
                    .next();
                let asked = &mut self.peer(s).asked;
                next.map(|next| *asked.entry(state.flow).or_insert(next));
            }
        }
        if self.source.on_control(s, bytes, self.now).is_err() {
            self.closed(s);
        }
    }

    pub fn datagram(&mut self, s: SessionId, bytes: &[u8]) {
        // The model believes more acknowledgements than the source may: those of paths on which the
        // session is no member change nothing at the source.
        if let Ok(ack) = PathAck::decode(bytes) {
            self.credit(s, &ack);
        }
        if s % 2 == 1 && self.feedback(s, bytes) {
            return;
        }
        if self.source.on_datagram(s, bytes, self.now).is_err() {
            self.closed(s);
        }
    }

    /// Sends a payload as feedback packet, twice, if the session has a key; returns whether it has.
    fn feedback(&mut self, s: SessionId, payload: &[u8]) -> bool {
        let sealer = self.peer(s).feedback.as_mut();
        let Some(packet) = sealer.and_then(|sealer| sealer.seal(payload)) else {
            return false;
        };
        for copy in 0..2 {
            let before = self.source.counters().feedback;
            let notice = self
                .source
                .on_feedback(&mut packet.clone(), self.now, |id| id == s);
            let after = self.source.counters().feedback;
            assert!(notice.is_none(), "an address that is known");
            assert!(
                copy == 0 || after.packets == before.packets,
                "a packet twice"
            );
        }
        true
    }

    fn credit(&mut self, s: SessionId, ack: &PathAck) {
        let Some(peer) = self.peers.get_mut(&s) else {
            return;
        };
        for (c, (flow, index)) in &peer.announced {
            if *index != ack.path.flow_index() {
                continue;
            }
            for range in &ack.ranges {
                let packets = self.sent.range((*flow, range.start)..(*flow, range.end));
                for (seq, offset, len) in packets.flat_map(|(_, carried)| carried) {
                    peer.have
                        .entry((*c, *seq))
                        .or_default()
                        .insert(*offset..offset + len);
                }
            }
        }
    }

    /// The flow that a channel has now; another ID if it has none.
    pub fn flow_id(&self, c: usize) -> FlowId {
        self.source
            .flow(c)
            .map_or(FlowId([0; 8]), |f| f.config().flow)
    }

    pub fn flow_index(&mut self, s: SessionId, c: usize) -> u64 {
        self.peer(s)
            .announced
            .get(&c)
            .map_or(c as u64 + 1, |(_, index)| *index)
    }

    /// Acknowledges the newest sixteen packets but the last `skip` and those whose bit in `holes`
    /// is set.
    pub fn acknowledge(&mut self, s: SessionId, c: usize, rung: Rung, skip: u64, holes: u8) {
        let Some(next) = self.source.flow(c).map(|f| f.next_pn()) else {
            return;
        };
        let mut set = RangeSet::new();
        let end = next.saturating_sub(skip);
        for pn in end.saturating_sub(16)..end {
            if holes >> (pn % 8) & 1 == 0 {
                set.insert_one(pn);
            }
        }
        let ranges: Vec<_> = set.iter().rev().cloned().collect();
        let gaps = set.gaps(end.saturating_sub(16)..set.max().unwrap_or(0));
        let mut rebuilt: Vec<_> = gaps.filter(|_| holes & 1 == 1).collect();
        rebuilt.reverse();
        if !ranges.is_empty() {
            let path = PathId::new(self.flow_index(s, c), rung);
            self.datagram(
                s,
                &PathAck {
                    path,
                    delay: Duration::from_millis(20),
                    ranges,
                    ecn: None,
                    rebuilt,
                }
                .encode(),
            );
        }
    }

    pub fn set_first(&mut self, c: usize, first: u64) {
        self.first[c] = self.first[c].max(first);
        self.source.set_first(c, self.first[c]);
    }

    /// Lets time pass, deadline by deadline.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span.min(self.time_left);
        self.time_left -= end - self.now;
        let mut at_once = 0;
        loop {
            self.pump();
            let Some(at) = self.source.poll_timeout(self.now).filter(|at| *at <= end) else {
                break;
            };
            at_once = if at > self.now { 0 } else { at_once + 1 };
            assert!(at_once < 100, "a timer that is always due");
            self.now = self.now.max(at);
            self.source.handle_timeout(self.now);
        }
        self.now = end;
        self.pump();
    }

    /// Everything that an owner does at once.
    pub fn pump(&mut self) {
        let mut packet = Vec::new();
        for round in 0.. {
            assert!(round < 10_000, "a source that is never done");
            let mut idle = true;
            while let Some(event) = self.source.poll_event() {
                idle = false;
                match event {
                    SourceEvent::SecretWanted { channel } if self.gives_secrets => {
                        self.secrets = self.secrets.wrapping_add(1);
                        self.source
                            .rekey(channel, FlowSecret::from([self.secrets; 32]), self.now);
                    }
                    SourceEvent::Close { session, .. } => {
                        self.peer(session).closing = true;
                    }
                    _ => {}
                }
            }
            while let Some(s) = self.source.poll_dirty() {
                idle = false;
                self.pump_control(s);
                self.pump_unicast(s);
            }
            while self.source.poll_transmit(self.now, &mut packet).is_some() {
                idle = false;
                assert!((30..=1500).contains(&packet.len()));
            }
            self.note_packets();
            if idle {
                break;
            }
        }
        self.check();
    }

    fn note_packets(&mut self) {
        for packet in self.source.take_trace() {
            let carried = packet.frames.iter().filter_map(|frame| match frame {
                TracedFrame::Stream {
                    seq, offset, len, ..
                } => Some((*seq, *offset, *len as u64)),
                _ => None,
            });
            let Some(pn) = packet.pn else { continue };
            let before = self.sent.insert((packet.flow, pn), carried.collect());
            assert!(before.is_none(), "packet number {pn} is used twice");
        }
    }

    fn check(&self) {
        assert!(self.source.sessions().count() <= RECEIVERS);
        for c in 0..CHANNELS {
            let replicas = self.source.replicas(c);
            assert!(replicas.len() <= COPIES);
            for s in replicas {
                assert!(
                    self.peers
                        .get(s)
                        .is_some_and(|p| p.open && p.validated && !p.ejected),
                    "copies to {s}"
                );
            }
        }
    }

    fn pump_control(&mut self, s: SessionId) {
        let bytes = self.source.take_control(s);
        let Some(peer) = self.peers.get_mut(&s).filter(|p| p.open) else {
            assert!(bytes.is_empty(), "bytes for a session that is gone");
            return;
        };
        peer.control.push(&bytes);
        while let Some(frame) = peer.control.next_frame().expect("a source writes frames") {
            match frame {
                Control::Welcome(welcome) => {
                    for w in welcome.channels {
                        assert!(w.first >= 1 && w.first <= w.head + 1);
                        peer.first.insert(w.channel as usize - 1, w.first);
                    }
                }
                Control::Announce(a) => {
                    let c = a.channel as usize - 1;
                    if a.withdrawn {
                        if peer
                            .announced
                            .get(&c)
                            .is_some_and(|(flow, _)| *flow == a.flow)
                        {
                            peer.announced.remove(&c);
                        }
                    } else {
                        peer.announced.insert(c, (a.flow, a.flow_index));
                    }
                }
                Control::Key(key) => {
                    assert!(!peer.ejected, "a key for a receiver that was removed");
                    let asked = peer.asked.get(&key.flow);
                    assert!(asked.is_some(), "a key without a request");
                    assert!(
                        !self.private || asked.is_some_and(|next| key.first_pn >= *next),
                        "a key of what went before"
                    );
                    // A member that leaves and joins again is given the current key again.
                    let known = peer.keys.entry(key.flow).or_default();
                    *known = key.sequence.max(*known);
                }
                Control::Feedback(key) => {
                    assert!(
                        peer.asked.contains_key(&key.flow),
                        "a key without a request"
                    );
                    let algorithm = Algorithm::from_suite(key.algorithm).expect("an algorithm");
                    let sealer = FeedbackSealer::new(key.id, algorithm, &key.secret);
                    peer.feedback = Some(sealer.expect("a key"));
                }
                Control::TagKey(key) => {
                    let is_new = self.tagged.insert((key.flow, key.receiver));
                    assert!(is_new && peer.asked.contains_key(&key.flow));
                }
                Control::Heard(flow) => {
                    assert!(peer.feedback.is_some() && peer.asked.contains_key(&flow));
                }
                Control::Gap {
                    channel,
                    first,
                    last,
                } => {
                    assert!(
                        first <= last && last < self.first[channel as usize - 1],
                        "a gap of what is stored"
                    );
                    for seq in first..=last {
                        peer.have
                            .entry((channel as usize - 1, seq))
                            .or_default()
                            .insert(0..u64::MAX);
                    }
                }
                Control::Refused { .. } | Control::Rung(_) => {}
                other => panic!("a source says {other:?}"),
            }
        }
    }

    fn pump_unicast(&mut self, s: SessionId) {
        for round in 0.. {
            assert!(round < 10_000, "a unicast path that is never done");
            if self.peers.get(&s).is_none_or(|p| p.blocked || !p.open) {
                return;
            }
            match self.source.poll_unicast(s, self.now) {
                Unicast::Stream { head, body, .. } => {
                    let mut reader = StreamReader::new();
                    self.arrives(s, &mut reader, &[&head[..], &body].concat());
                    assert!(reader.may_end());
                }
                Unicast::CatchUp {
                    channel,
                    head,
                    body,
                } => {
                    let mut reader = self.peer(s).catch_up.remove(&channel).unwrap_or_default();
                    self.arrives(s, &mut reader, &[&head[..], &body].concat());
                    self.peer(s).catch_up.insert(channel, reader);
                }
                Unicast::CatchUpEnd { channel } => {
                    let reader = self.peer(s).catch_up.remove(&channel);
                    assert!(reader.is_some_and(|reader| reader.may_end()));
                }
                Unicast::Fetch {
                    channel,
                    from,
                    limit,
                } => {
                    let found = (self.first[channel].max(from)..)
                        .take(limit)
                        .map_while(|seq| {
                            let bytes = self.store[channel].get(seq as usize - 1)?;
                            Some((seq, bytes.clone()))
                        });
                    let answer = (!self.fetches_fail).then(|| found.collect());
                    self.source.provide(s, channel, from, answer, self.now);
                    self.pump_control(s);
                }
                Unicast::Idle => break,
            }
        }
        self.pump_control(s);
    }

    fn arrives(&mut self, s: SessionId, reader: &mut StreamReader, bytes: &[u8]) {
        reader.push(bytes);
        while let Some(piece) = reader.next_piece().expect("a source writes streams") {
            let (channel, seq, offset, data) = match piece {
                Piece::Range { header, data } => (header.channel, header.seq, header.offset, data),
                Piece::Update { channel, seq, data } => (channel, seq, 0, data),
            };
            let c = channel as usize - 1;
            let stored = self.store[c][seq as usize - 1].clone();
            let (start, end) = (offset as usize, offset as usize + data.len());
            assert_eq!(
                stored[start..end],
                data,
                "update {seq} is not what was stored"
            );
            let peer = self.peer(s);
            assert!(
                peer.first.contains_key(&c),
                "an update of a channel that it does not get"
            );
            let have = peer.have.entry((c, seq)).or_default();
            have.insert(offset..offset + data.len() as u64);
            if stored.is_empty() {
                have.insert(0..1);
            }
        }
    }

    /// Drains the unicast paths: every remaining receiver has everything from the start of its
    /// delivery, by one path or the other.
    pub fn settle(&mut self) {
        (self.fetches_fail, self.gives_secrets) = (false, true);
        self.peers.values_mut().for_each(|p| p.blocked = false);
        for c in 0..CHANNELS {
            self.source.withdraw(c, self.now);
        }
        self.time_left = Duration::from_secs(60);
        for _ in 0..60 {
            let open: Vec<_> = self
                .peers
                .iter()
                .filter(|(_, p)| p.open)
                .map(|(s, _)| *s)
                .collect();
            open.into_iter().for_each(|s| self.pump_unicast(s));
            self.pass(Duration::from_secs(1));
        }
        let served: Vec<_> = self.source.sessions().collect();
        for status in served {
            let peer = &self.peers[&status.session];
            if peer.closing {
                continue;
            }
            for channel in &status.channels {
                let c = channel.channel;
                assert_eq!((channel.rung, channel.backlog), (Rung::Unicast, 0));
                for seq in peer.first[&c]..=self.source.head(c) {
                    let len = self.store[c][seq as usize - 1].len() as u64;
                    let have = peer.have.get(&(c, seq));
                    let whole = have.is_some_and(|have| have.contains_range(0..len.max(1)));
                    // An empty update that came by the flow leaves no range.
                    assert!(
                        whole || len == 0,
                        "session {} misses of update {seq}: has {have:?} of {len}",
                        status.session
                    );
                }
            }
        }
        for c in 0..CHANNELS {
            assert!(self.source.flow(c).is_none());
            assert!(self.source.replicas(c).is_empty());
        }
    }
}
