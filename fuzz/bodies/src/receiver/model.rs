//! Model of a receiver's owner, with invariants that hold for any input.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::ack::{MAX_RANGES, PathAck};
use flexicast::authentication::{
    AuthenticationParameters, PACKET_TAG_LEN, PacketSigner, TagKey, put_tags,
};
use flexicast::control::{self, Control, ControlReader, Credential, Endpoint};
use flexicast::merge::MAX_BUFFERED;
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, OVERHEAD, PacketKey};
use flexicast::receiver::{
    ChannelStats, FlowInput, Output, Receiver, ReceiverConfig, ReceiverEvent, Rungs, Validity,
};
use flexicast::{Cursor, FlowId, MAX_UPDATE, PathId, Rung};
use uuid::Uuid;

pub const NAMES: [&str; 2] = ["lore", "news"];
pub const INCARNATIONS: [Uuid; 2] = [Uuid::from_u128(1), Uuid::from_u128(2)];
pub const FLOWS: [FlowId; 3] = [FlowId([0x40; 8]), FlowId([0x41; 8]), FlowId([0x42; 8])];
/// The flow whose packets are authenticated.
pub const AUTHENTICATED: usize = 2;
const TAG_FLOW: FlowId = FlowId([0x43; 8]);
/// The most messages and other events that wait, with room for a few of each.
const MAX_EVENTS: usize = 4_000;

/// The bytes of an update, many of them small and some of several packets.
fn is_content(seq: u64, encoded: &[u8]) -> Validity {
    let mut channels = 0..NAMES.len();
    channels
        .any(|channel| content(channel, seq) == encoded)
        .into()
}

pub fn content(channel: usize, seq: u64) -> Bytes {
    let len = if seq.is_multiple_of(4) {
        5_000
    } else {
        seq % 900
    };
    crate::content_of(channel, seq, len as usize)
}

pub fn secret(sequence: u64) -> FlowSecret {
    FlowSecret::from([sequence as u8; 32])
}

pub fn algorithm(sequence: u64) -> Algorithm {
    if sequence < 4 {
        Algorithm::Aes128Gcm
    } else {
        Algorithm::ChaCha20Poly1305
    }
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![Endpoint {
        group: "232.70.70.1:4434".parse().expect("an address"),
        source: None,
    }]
}

/// Proof that a packet is the source's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    None,
    Signature,
    /// A signature by another key.
    WrongSignature,
    /// Tags of the packet at this place among those that were sent.
    TagsOf(usize),
    /// Tags of no packet.
    WrongTags,
}

/// Packet that was sent.
#[derive(Clone)]
struct Sent {
    packet: Vec<u8>,
    flow: usize,
    pn: u64,
    proof: Proof,
    /// Whether its tags have come.
    is_tagged: bool,
}

pub struct Model {
    pub receiver: Receiver,
    pub now: Instant,
    /// Virtual time left to the input: one that only waits is not worth running.
    time_left: Duration,
    pub announce_sequence: u64,
    pub notice_sequence: u64,
    pub next_pn: [u64; 3],
    /// The next update of each channel that the application waits for.
    pub expected: [u64; 2],
    /// Something false was said of a channel's updates: only their order is checked from then on.
    pub lied: [bool; 2],
    control: ControlReader,
    state_sequences: BTreeMap<FlowId, u64>,
    keys: Vec<PacketKey>,
    sent: Vec<Sent>,
    signers: [PacketSigner; 2],
    /// Number and key of the receiver's tags.
    tagged: Option<(u32, TagKey)>,
    tag_packets: u64,
    /// The source said something that this model does not know.
    raw: bool,
    /// Packets that were taken by their signature, and packets of tags by which others were.
    pub proved: (u64, u64),
    /// Packets that were taken, by path.
    taken: BTreeMap<PathId, Vec<u64>>,
    /// Requests of this connection: channel, seq, reason.
    asked: BTreeSet<(u64, u64, u64)>,
    next_stream: u64,
    incarnations: [Option<Uuid>; 2],
}

impl Model {
    /// `kind` chooses the ways that the receiver tries.
    pub fn new(kind: u8) -> Self {
        let cursor = (kind & 8 == 0).then_some(Cursor {
            incarnation: INCARNATIONS[0],
            seq: 20,
        });
        let mut config = ReceiverConfig::new(
            Uuid::from_u128(5),
            Credential::None,
            vec![(NAMES[0].into(), cursor), (NAMES[1].into(), None)],
        );
        config.name = "r".into();
        config.software = "fuzz".into();
        config.feedback = true;
        config.rungs = Rungs {
            multicast_v4: kind & 1 == 0,
            multicast_v6: kind & 2 == 0,
            amt_v4: kind & 32 == 32,
            amt_v6: kind & 32 == 32,
            replicated: kind & 4 == 0,
        };
        config.seed = 1;
        config.check = (kind & 64 == 64).then_some(is_content);
        let mut receiver = Receiver::new(config);
        receiver.connected();
        receiver.set_tracing(kind & 16 == 16);
        Model {
            receiver,
            now: Instant::now(),
            time_left: Duration::from_secs(60),
            announce_sequence: 0,
            notice_sequence: 0,
            next_pn: [u64::from(kind) << 26, 0, 0],
            expected: [if cursor.is_some() { 21 } else { 1 }, 1],
            lied: [false; 2],
            control: ControlReader::new(),
            state_sequences: BTreeMap::new(),
            keys: (0..8)
                .map(|n| PacketKey::new(algorithm(n), &secret(n)).expect("a key"))
                .collect(),
            sent: Vec::new(),
            signers: [9, 10]
                .map(|seed| PacketSigner::new(&FlowSecret::from([seed; 32])).expect("a key")),
            tagged: None,
            tag_packets: 0,
            raw: false,
            proved: (0, 0),
            taken: BTreeMap::new(),
            asked: BTreeSet::new(),
            next_stream: 1003,
            incarnations: [cursor.map(|c| c.incarnation), None],
        }
    }

    pub fn frame(&mut self, frame: Control) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.control(&bytes);
    }

    pub fn control(&mut self, bytes: &[u8]) {
        if self.receiver.on_control(bytes, self.now).is_err() {
            self.reconnect();
        }
    }

    /// Control bytes from anywhere.
    pub fn raw_control(&mut self, bytes: &[u8]) {
        self.raw = true;
        self.control(bytes);
    }

    /// Returns what authenticates the packets of a flow.
    pub fn parameters(&self, f: usize) -> Option<AuthenticationParameters> {
        (f == AUTHENTICATED).then(|| AuthenticationParameters {
            tag_flow: TAG_FLOW,
            key: self.signers[0].key(),
        })
    }

    /// The receiver gets a key for tags, in the place of the one before.
    pub fn give_tag_key(&mut self) {
        let receiver = self.tagged.as_ref().map_or(1, |(number, _)| number + 1);
        let secret = FlowSecret::from([receiver as u8; 32]);
        self.tagged = Some((receiver, TagKey::new(&secret).expect("a key")));
        self.frame(Control::TagKey(control::TagKey {
            flow: FLOWS[AUTHENTICATED],
            receiver,
            secret,
        }));
    }

    /// The connection breaks and another one comes.
    pub fn reconnect(&mut self) {
        self.receiver.disconnected();
        self.control = ControlReader::new();
        self.state_sequences.clear();
        self.taken.clear();
        self.asked.clear();
        self.receiver.connected();
    }

    pub fn stream(&mut self, stream: u64, bytes: &[u8], fin: bool) {
        // An owner reads on only while there is room.
        if !self.receiver.wants_unicast() {
            return;
        }
        if self.receiver.on_unicast(stream, bytes, fin).is_err() {
            self.reconnect();
        }
    }

    pub fn new_stream(&mut self, bytes: &[u8]) {
        self.next_stream += 4;
        self.stream(self.next_stream, bytes, true);
    }

    /// An update and a range of it; a false one differs from what it should be.
    pub fn range(
        &mut self,
        c: usize,
        seq: u64,
        offset: u16,
        len: u16,
        truth: bool,
    ) -> (Vec<u8>, Range<usize>) {
        let mut update = content(c, seq).to_vec();
        if !truth {
            self.lied[c] = true;
            update.iter_mut().for_each(|byte| *byte ^= 0xff);
            update.truncate(update.len().saturating_sub(usize::from(len) % 3));
        }
        let start = usize::from(offset).min(update.len());
        let end = (start + usize::from(len)).min(update.len());
        (update, start..end)
    }

    /// Seals a packet; the key phase bit is right unless `wrong_phase`.
    pub fn seal(&mut self, f: usize, sequence: u64, pn: u64, wrong_phase: bool, frames: &[u8]) {
        let mut packet = vec![0; frames.len() + OVERHEAD];
        let end = HEADER_LEN + frames.len();
        packet[HEADER_LEN..end].copy_from_slice(frames);
        let phase = (sequence & 1 == 1) != wrong_phase;
        let len = self.keys[sequence as usize].seal(FLOWS[f], pn, phase, &mut packet, end);
        assert_eq!(len, Some(packet.len()));
        self.send(packet, (f, pn), Proof::None);
    }

    fn send(&mut self, packet: Vec<u8>, (flow, pn): (usize, u64), proof: Proof) {
        self.sent.push(Sent {
            packet,
            flow,
            pn,
            proof,
            is_tagged: false,
        });
    }

    /// Signs the newest packet, perhaps with another key.
    pub fn sign(&mut self, is_right: bool) {
        if let Some(newest) = self.sent.last_mut() {
            self.signers[usize::from(!is_right)].sign_packet(&mut newest.packet, 0);
            newest.proof = match is_right {
                true => Proof::Signature,
                false => Proof::WrongSignature,
            };
        }
    }

    /// Makes tags of the newest packet, or wrong ones.
    pub fn tag(&mut self, sequence: u64, is_right: bool) {
        let (Some(newest), Some((number, key))) = (self.sent.last(), &mut self.tagged) else {
            return;
        };
        let pn = newest.pn;
        let right = key.tag(pn, &newest.packet).expect("a tag");
        let (tag, proof) = match is_right {
            true => (right, Proof::TagsOf(self.sent.len() - 1)),
            false => ([0xee; PACKET_TAG_LEN], Proof::WrongTags),
        };
        let mut packet = vec![0; HEADER_LEN];
        put_tags(&mut packet, 1_000, pn, &[(*number, tag)]);
        let end = packet.len();
        packet.resize(end + OVERHEAD - HEADER_LEN, 0);
        let mut key = PacketKey::for_tags(algorithm(sequence), &secret(sequence)).expect("a key");
        let phase = sequence & 1 == 1;
        let len = key.seal(TAG_FLOW, self.tag_packets, phase, &mut packet, end);
        assert_eq!(len, Some(packet.len()));
        self.tag_packets += 1;
        self.send(packet, (AUTHENTICATED, pn), proof);
    }

    /// Delivers a packet that was sealed before.
    pub fn again(&mut self, back: usize, copied: bool, damage: Option<(u16, u8)>) {
        let Some(place) = self.sent.len().checked_sub(back + 1) else {
            return;
        };
        let mut packet = self.sent[place].packet.clone();
        let mut intact = true;
        if let Some((at, xor)) = damage {
            let at = usize::from(at) % packet.len();
            packet[at] ^= xor;
            intact = xor == 0;
        }
        let rung = if copied {
            Rung::Replicated
        } else {
            Rung::Multicast
        };
        self.datagram(rung, packet, intact.then_some(place));
    }

    pub fn datagram(&mut self, rung: Rung, mut packet: Vec<u8>, place: Option<usize>) {
        let known = self.receiver.knows_flow(&packet);
        let input = self.receiver.on_flow_datagram(rung, &mut packet, self.now);
        assert!(known || input == FlowInput::UnknownFlow);
        if let Some(Proof::TagsOf(of)) = place.map(|place| self.sent[place].proof) {
            self.sent[of].is_tagged = true;
        }
        if input == FlowInput::Accepted {
            let place = place.expect("only what was sealed is taken");
            self.taken(place, rung);
        }
    }

    /// A packet was taken, or others by a packet of tags: only the source's.
    fn taken(&mut self, place: usize, rung: Rung) {
        let Sent {
            flow,
            pn,
            proof,
            is_tagged,
            ..
        } = self.sent[place];
        // A packet that waited may have come by any path.
        let mut rungs = vec![rung];
        match proof {
            Proof::Signature => self.proved.0 += 1,
            Proof::TagsOf(_) => {
                self.proved.1 += 1;
                rungs = vec![Rung::Multicast, Rung::Replicated];
            }
            _ => assert!(
                self.raw || is_tagged || flow != AUTHENTICATED,
                "a packet without a proof is taken: {proof:?}"
            ),
        }
        for rung in rungs {
            let path = PathId::new(flow as u64 + 1, rung);
            self.taken.entry(path).or_default().push(pn);
        }
    }

    pub fn take_updates(&mut self, most: usize) {
        for _ in 0..most {
            let Some((name, incarnation, output)) = self.receiver.poll_update() else {
                break;
            };
            let c = NAMES.iter().position(|n| *n == name).expect("a channel");
            assert_eq!(Some(incarnation), self.incarnations[c]);
            let next = &mut self.expected[c];
            match output {
                Output::Update(update) => {
                    assert_eq!(update.seq, *next, "updates leave in order, each once");
                    if !self.lied[c] {
                        assert_eq!(update.encoded, content(c, update.seq));
                    }
                    *next += 1;
                }
                Output::Gap { from, to } | Output::Expired { from, to, .. } => {
                    assert!(
                        from == *next && from <= to,
                        "a gap of {from} to {to} before {next}"
                    );
                    *next = to + 1;
                }
            }
        }
    }

    pub fn confirm(&mut self, c: usize) {
        if let (Some(incarnation), Some(seq)) =
            (self.incarnations[c], self.expected[c].checked_sub(1))
        {
            self.receiver
                .confirm(NAMES[c], Cursor { incarnation, seq }, self.now);
        }
    }

    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span.min(self.time_left);
        self.time_left -= end - self.now;
        let mut at_once = 0;
        loop {
            self.pump();
            let Some(at) = self.receiver.poll_timeout().filter(|at| *at <= end) else {
                break;
            };
            at_once = if at > self.now { 0 } else { at_once + 1 };
            assert!(at_once < 600, "a timer that is always due");
            self.now = self.now.max(at);
            self.receiver.handle_timeout(self.now);
        }
        self.now = end;
    }

    /// Everything that an owner does at once, but for taking updates.
    pub fn pump(&mut self) {
        for events in 0.. {
            assert!(events <= MAX_EVENTS, "events without a bound");
            let Some(event) = self.receiver.poll_event() else {
                break;
            };
            if let ReceiverEvent::Welcome {
                channel,
                incarnation,
                first,
                resync,
                ..
            } = event
            {
                let c = NAMES.iter().position(|n| *n == channel).expect("a channel");
                if resync || self.incarnations[c].is_none() {
                    // Pending updates of the old incarnation are dropped.
                    self.expected[c] = first;
                    self.incarnations[c] = Some(incarnation);
                    self.lied[c] = true;
                }
            }
        }
        let bytes = self.receiver.take_control();
        self.control.push(&bytes);
        while let Some(frame) = self.control.next_frame().expect("a receiver writes frames") {
            match frame {
                Control::State(state) => {
                    let last = self.state_sequences.insert(state.flow, state.sequence);
                    // A flow that was withdrawn and announced again restarts its sequence.
                    assert!(last.is_none_or(|last| last < state.sequence) || state.sequence == 1);
                }
                Control::Need(need) => {
                    let c = (need.channel as usize).checked_sub(1).expect("a channel");
                    assert!(
                        need.seq >= self.expected[c],
                        "asks for what it has handed out"
                    );
                    let asked = self.asked.insert((need.channel, need.seq, need.reason));
                    assert!(asked, "asks twice: {need:?}");
                }
                Control::Hello(_) | Control::Cursors(_) | Control::Window(_) => {}
                Control::Clock(question) => assert_eq!(question.time_us, None),
                other => panic!("a receiver says {other:?}"),
            }
        }
        for round in 0.. {
            assert!(round < 100, "acknowledgements without end");
            let Some((path, bytes)) = self.receiver.poll_datagram(self.now) else {
                break;
            };
            let ack = PathAck::decode(&bytes).expect("a receiver writes acknowledgements");
            assert!(ack.path == path && ack.ranges.len() <= MAX_RANGES);
            let taken = self.taken.get(&path).map_or(&[][..], Vec::as_slice);
            for range in &ack.ranges {
                let among = taken
                    .iter()
                    .filter(|pn| range.contains(pn))
                    .collect::<BTreeSet<_>>();
                assert_eq!(
                    among.len() as u64,
                    range.end - range.start,
                    "acknowledges what never arrived"
                );
            }
        }
        for round in 0.. {
            assert!(round <= FLOWS.len(), "feedback packets without a bound");
            if self.receiver.poll_feedback().is_none() {
                break;
            }
        }
        assert!(
            self.receiver.buffered() <= 2 * (4 * MAX_BUFFERED + 3 * MAX_UPDATE),
            "holds {} bytes",
            self.receiver.buffered()
        );
    }

    /// Counters of the channel that has flows.
    pub fn stats(&self) -> ChannelStats {
        self.receiver.stats(NAMES[0]).expect("a channel")
    }

    /// The rest of what is in order leaves, and the timers come to rest.
    pub fn settle(&mut self) {
        self.time_left = Duration::from_secs(30);
        self.pass(self.time_left);
        self.take_updates(1 << 20);
        for (c, name) in NAMES.iter().enumerate() {
            let stats = self.receiver.stats(name).expect("a channel");
            assert!(stats.head + 1 >= self.expected[c]);
        }
    }
}
