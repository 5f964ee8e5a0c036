//! Our side: one flow sends the parcel once, as updates, for all its members.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use flexicast::ack::PathAck;
use flexicast::fec::FecConfig;
use flexicast::feedback::{FeedbackOpener, FeedbackSealer};
use flexicast::flow::{FlowConfig, FlowSender, RateControl};
use flexicast::frame::{Frame, Frames};
use flexicast::protect::{Algorithm, FlowSecret, PacketKey};
use flexicast::{FlowId, PathId, Rung};
use rand::RngExt;
use ring::digest::{self, SHA256};

use crate::cpu::Stopwatch;
use crate::generation::Cost;
use crate::parcel::{Parcel, TRAIN, UDP_PAYLOAD};

/// The flow's clock moves on by this much with each train: 61 Gbit/s, so that nothing waits for the
/// token bucket.
const TRAIN_TIME: Duration = Duration::from_micros(10);

/// The number of a flow's first key.
const FIRST_KEY: u64 = 1;

/// Opens the flow's packets and reassembles the updates.
struct Opener {
    key: PacketKey,
    next_pn: u64,
    seq: u64,
    offset: u64,
    received: usize,
    hash: digest::Context,
}

/// Sends the parcel to its members, a train of packets at a time. Timed are the flow's calls that
/// make the packets, and apart from them everything that the members' acknowledgements cost: each
/// comes in a feedback packet, as in a source.
///
/// # Errors
/// When a packet does not open, the parcel did not arrive, or a member fell back.
pub fn deliver(members: usize, algorithm: Algorithm, parcel: &Parcel) -> Result<Cost> {
    deliver_with(members, None, algorithm, parcel)
}

/// The same with repair symbols, for members that rebuild.
///
/// # Errors
/// As above.
pub fn deliver_with(
    members: usize,
    fec: Option<FecConfig>,
    algorithm: Algorithm,
    parcel: &Parcel,
) -> Result<Cost> {
    let members = (0..members).map(|_| Member::new(algorithm));
    let mut members = members.collect::<Result<Vec<_>>>()?;
    let mut now = Instant::now();
    let mut random = rand::rng();
    let (id, mut secret) = (FlowId(random.random()), FlowSecret::default());
    random.fill(secret.as_mut_bytes());
    let mut opener = Opener {
        key: PacketKey::new(algorithm, &secret)?,
        next_pn: 0,
        seq: 1,
        offset: 0,
        received: 0,
        hash: digest::Context::new(&SHA256),
    };
    let mut flow = FlowSender::new(FlowConfig {
        algorithm,
        udp_payload: UDP_PAYLOAD,
        rate: None,
        control: RateControl::fixed(),
        fec,
        ..FlowConfig::new(id, secret)
    })?;
    let path = PathId::new(1, Rung::Multicast);
    flow.set_listeners(members.len(), now);
    for member in 0..members.len() as u64 {
        flow.admit(member, path, Duration::from_millis(10), FIRST_KEY, now);
        // One small frame per MiB would not show in these figures.
        flow.on_window(member, u64::MAX);
        flow.set_rebuilding(member);
    }
    let mut packets = Vec::with_capacity(TRAIN * UDP_PAYLOAD);
    let mut lengths = Vec::with_capacity(TRAIN);
    let (mut generate, mut acks) = (Stopwatch::new(), Acks::new());
    let (mut offered, mut seq) = (0, 0);
    let mut pieces = Vec::new();
    let mut recent = VecDeque::new();
    while opener.received < parcel.len() {
        while offered - opener.received < TRAIN * UDP_PAYLOAD
            && let Some(piece) = parcel.piece(offered)
        {
            offered += piece.len();
            seq += 1;
            // As in a source: it keeps what it published for repairs, so the flow never frees an
            // update's bytes.
            recent.push_back(piece.clone());
            pieces.push((seq, piece));
        }
        generate.time(|| {
            flow.handle_timeout(now);
            for (seq, piece) in pieces.drain(..) {
                flow.push(seq, piece);
            }
            for _ in 0..TRAIN {
                let start = packets.len();
                if flow.queued_bytes() == 0 || !flow.append_packet(now, &mut packets) {
                    break;
                }
                lengths.push(packets.len() - start);
            }
        });
        ensure!(!lengths.is_empty(), "the flow has stopped sending");
        let mut rest = packets.as_mut_slice();
        for len in lengths.drain(..) {
            let (packet, after) = rest.split_at_mut(len);
            opener.open(packet)?;
            rest = after;
        }
        packets.clear();
        let ack = PathAck {
            path,
            delay: Duration::ZERO,
            ranges: std::iter::once(0..flow.next_pn()).collect(),
            ecn: None,
            rebuilt: Vec::new(),
        };
        for member in (0..).zip(&mut members) {
            acks.take(&mut flow, member, &ack, now)?;
        }
        while recent.len() > 4 {
            recent.pop_front();
        }
        now += TRAIN_TIME;
    }
    ensure!(
        parcel.arrived(opener.hash),
        "what the flow's members received is not what was sent"
    );
    ensure!(
        flow.members() == members.len() && flow.poll_event().is_none() && flow.outstanding() == 0,
        "a member of the flow fell back or something was repaired, although nothing was lost"
    );
    Ok(Cost {
        generate: generate.total(),
        acks: acks.watch.total(),
        packets: flow.stats().packets,
        ack_packets: acks.packets,
        ack_bytes: acks.bytes,
    })
}

/// Acknowledgements that were taken in.
struct Acks {
    watch: Stopwatch,
    packets: u64,
    bytes: u64,
}

impl Acks {
    fn new() -> Self {
        Acks {
            watch: Stopwatch::new(),
            packets: 0,
            bytes: 0,
        }
    }
}

/// A member, as far as its acknowledgements go.
struct Member {
    sealer: FeedbackSealer,
    /// The source's end.
    opener: FeedbackOpener,
}

impl Member {
    fn new(algorithm: Algorithm) -> Result<Self> {
        let mut random = rand::rng();
        let (id, mut secret) = (FlowId(random.random()), FlowSecret::default());
        random.fill(secret.as_mut_bytes());
        Ok(Member {
            sealer: FeedbackSealer::new(id, algorithm, &secret)?,
            opener: FeedbackOpener::new(algorithm, &secret)?,
        })
    }
}

impl Acks {
    /// Takes one member's acknowledgement, from its feedback packet on.
    fn take(
        &mut self,
        flow: &mut FlowSender,
        (id, member): (u64, &mut Member),
        ack: &PathAck,
        now: Instant,
    ) -> Result<()> {
        let packet = member.sealer.seal(&ack.encode());
        let mut packet = packet.context("a feedback packet cannot be made")?;
        self.packets += 1;
        self.bytes += packet.len() as u64;
        self.watch.time(|| {
            let opened = member.opener.open(&mut packet);
            let (_, payload) = opened.context("a feedback packet does not verify")?;
            flow.on_ack(id, &PathAck::decode(payload)?, now)?;
            Ok(())
        })
    }
}

impl Opener {
    fn open(&mut self, packet: &mut [u8]) -> Result<()> {
        let opened = self.key.open(self.next_pn, packet)?;
        ensure!(opened.pn == self.next_pn, "a packet number is missing");
        self.next_pn += 1;
        for frame in Frames::new(opened.frames) {
            match frame.context("reading a packet of the flow")? {
                Frame::Stream {
                    seq,
                    offset,
                    data,
                    fin,
                } => {
                    ensure!(
                        (seq, offset) == (self.seq, self.offset),
                        "the flow's bytes are out of order"
                    );
                    self.hash.update(data);
                    self.received += data.len();
                    self.offset += data.len() as u64;
                    if fin {
                        (self.seq, self.offset) = (seq + 1, 0);
                    }
                }
                Frame::Ping | Frame::Repair { .. } => {}
                other => bail!("the flow sent {other:?}"),
            }
        }
        Ok(())
    }
}
