//! The sender's cost of a flow's packets with everything that is sent, against the least that they
//! can cost, and against unicast quiche.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boring::aead::{AeadCtx, Algorithm as Aead};
use bytes::Bytes;
use flexicast::flow::{FlowConfig, FlowSender, RateControl};
use flexicast::frame::{Frame, Frames};
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, PacketKey, TAG_LEN};
use flexicast::{FlowId, PathId, Rung, ack::PathAck};
use netio::direct::{GroupPort, Inbox};
use netio::{MulticastSender, Packets};
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Runtime;

use crate::cpu::Stopwatch;
use crate::figures::{Figures, median};
use crate::pair::{Maker, Pair, send, to_client, to_server};
use crate::parcel::UDP_PAYLOAD;
use crate::processor::OneProcessor;
use crate::segments::let_kernel_segment;

/// All figures of this file.
pub const NAMES: [&str; 5] = [
    "flow_send_vs_floor",
    "quiche_send_vs_floor",
    "flow_send_ns",
    "quiche_send_ns",
    "send_floor_ns",
];

/// Packets that one system call sends, on all sides.
const TRAIN: usize = 40;
/// Bytes of an update: as many packets as a train has, the last one not full.
const UPDATE: usize = 46_000;
/// Bytes of a full packet of the flow.
const SEGMENT: usize = 1197;
/// Updates of a run.
const UPDATES: u64 = 2_000;
const RUNS: usize = 7;

const GROUP: Ipv4Addr = Ipv4Addr::new(232, 70, 71, 1);
/// The first stream that a server opens.
const STREAM: u64 = 3;
/// Time limit for the arrival of a train, which crosses the loopback interface at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// CPU time of a side, and its packets.
#[derive(Debug, Clone, Copy)]
struct Cost {
    time: Duration,
    packets: u64,
}

impl Cost {
    fn ns(self) -> f64 {
        self.time.as_nanos() as f64 / self.packets as f64
    }
}

/// The costs of one run.
struct Run {
    flow: Cost,
    quiche: Cost,
    floor: Cost,
}

/// Measures what is asked for.
///
/// # Errors
/// When what arrives is not what was sent.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let mut taken = NAMES.map(|_| Vec::new());
    for run in 1..=RUNS {
        let seen = side_by_side(UPDATES)?;
        let [flow, quiche, floor] = [seen.flow, seen.quiche, seen.floor].map(Cost::ns);
        eprintln!(
            "sending, run {run} of {RUNS}, ns per packet: flow {flow:.0}, quiche {quiche:.0}, \
             floor {floor:.0}"
        );
        let values = [flow / floor, quiche / floor, flow, quiche, floor];
        taken.iter_mut().zip(values).for_each(|(t, v)| t.push(v));
    }
    let units = ["ratio", "ratio", "ns", "ns", "ns"];
    for ((name, values), unit) in NAMES.into_iter().zip(taken).zip(units) {
        figures.take(name, median(values), unit);
    }
    Ok(())
}

/// The three sides, an update each in turn, from one multicast socket to one receiver.
fn side_by_side(updates: u64) -> Result<Run> {
    let _one = OneProcessor::begin().context("keeping to one processor")?;
    // Sockets of this crate belong to a runtime.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _inside = runtime.enter();
    let mut group = Group::join()?;
    let (pair, algorithm) = Maker::new()?.connect()?;
    let mut flow = FlowSide::new(algorithm, &runtime)?;
    let mut quiche = QuicheSide::new(pair, &runtime)?;
    let mut floor = Floor::new()?;
    let mut random = SmallRng::seed_from_u64(7);
    for seq in 1..=updates {
        let mut update = vec![0; UPDATE];
        random.fill_bytes(&mut update);
        let update = Bytes::from(update);
        flow.send(seq, &update, &mut group)?;
        quiche.send(seq, &update, &mut group)?;
        floor.send(seq, &update, &mut group)?;
    }
    Ok(Run {
        flow: flow.cost(),
        quiche: quiche.cost(),
        floor: floor.cost(),
    })
}

/// The receiver's socket.
struct Group {
    port: GroupPort,
    inbox: Inbox,
    address: SocketAddr,
}

impl Group {
    fn join() -> Result<Self> {
        // A free port, so that runs do not meet.
        let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddr::from((GROUP, free.local_addr()?.port()));
        let mut port = GroupPort::open(address, netio::find_interface("lo")?)?;
        port.join(Some(Ipv4Addr::LOCALHOST.into()))?;
        Ok(Group {
            port,
            inbox: Inbox::new(4),
            address,
        })
    }

    /// Takes `bytes` bytes of datagrams that were sent.
    fn take(&mut self, bytes: usize, mut each: impl FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
        let (mut taken, begun) = (0, Instant::now());
        while taken < bytes {
            let mut outcome = Ok(());
            self.inbox.receive(&self.port, 4, |message| {
                for datagram in message.datagrams() {
                    taken += datagram.len();
                    if outcome.is_ok() {
                        outcome = each(&mut datagram.to_vec());
                    }
                }
            })?;
            outcome?;
            ensure!(begun.elapsed() < PATIENCE, "{taken} of {bytes} bytes came");
        }
        ensure!(taken == bytes, "{taken} bytes came and {bytes} were sent");
        Ok(())
    }
}

/// A socket as a source has for a group.
fn sender(runtime: &Runtime) -> Result<MulticastSender> {
    let sender = MulticastSender::bind(Ipv4Addr::LOCALHOST.into(), 1, true)?;
    runtime.block_on(sender.writable())?;
    Ok(sender)
}

/// A flow with one member.
struct FlowSide {
    flow: FlowSender,
    path: PathId,
    packets: Packets,
    socket: MulticastSender,
    key: PacketKey,
    now: Instant,
    watch: Stopwatch,
}

impl FlowSide {
    fn new(algorithm: Algorithm, runtime: &Runtime) -> Result<Self> {
        let (now, mut random) = (Instant::now(), rand::rng());
        let (id, mut secret) = (FlowId(random.random()), FlowSecret::default());
        random.fill(secret.as_mut_bytes());
        let key = PacketKey::new(algorithm, &secret)?;
        let mut flow = FlowSender::new(FlowConfig {
            algorithm,
            udp_payload: UDP_PAYLOAD,
            rate: None,
            control: RateControl::fixed(),
            ..FlowConfig::new(id, secret)
        })?;
        let path = PathId::new(1, Rung::Multicast);
        flow.set_listeners(1, now);
        flow.admit(0, path, Duration::from_millis(10), 1, now);
        flow.on_window(0, u64::MAX);
        Ok(FlowSide {
            flow,
            path,
            packets: Packets::default(),
            socket: sender(runtime)?,
            key,
            now,
            watch: Stopwatch::new(),
        })
    }

    /// Sends an update as a source's engine does: makes its packets, and sends them in trains.
    fn send(&mut self, seq: u64, update: &Bytes, group: &mut Group) -> Result<()> {
        let pushed = update.clone();
        let (flow, packets) = (&mut self.flow, &mut self.packets);
        let (socket, now, to) = (&self.socket, self.now, group.address);
        self.watch.time(|| -> Result<()> {
            flow.handle_timeout(now);
            flow.push(seq, pushed);
            while flow.queued_bytes() > 0 && packets.push_with(|out| flow.append_packet(now, out)) {
            }
            for (train, segment) in packets.trains() {
                socket.try_send(to, train, segment)?;
            }
            Ok(())
        })?;
        ensure!(
            self.packets.len() == TRAIN && self.packets.trains().count() == 1,
            "an update is {} packets in {} trains",
            self.packets.len(),
            self.packets.trains().count()
        );
        let bytes = self.packets.trains().map(|(train, _)| train.len()).sum();
        self.packets.clear();
        let mut expected = self.flow.next_pn() - TRAIN as u64;
        let (key, mut got) = (&mut self.key, Vec::with_capacity(UPDATE));
        group.take(bytes, |packet| {
            let opened = key.open(expected, packet)?;
            ensure!(opened.pn == expected, "a packet number is missing");
            expected += 1;
            for frame in Frames::new(opened.frames) {
                if let Frame::Stream { data, .. } = frame.context("reading a packet")? {
                    got.extend_from_slice(data);
                }
            }
            Ok(())
        })?;
        ensure!(got == *update, "the flow's packets are not the update");
        let ack = PathAck {
            path: self.path,
            delay: Duration::ZERO,
            ranges: std::iter::once(0..self.flow.next_pn()).collect(),
            ecn: None,
            rebuilt: Vec::new(),
        };
        self.flow.on_ack(0, &ack, self.now)?;
        self.now += Duration::from_millis(1);
        Ok(())
    }

    fn cost(&self) -> Cost {
        Cost {
            time: self.watch.total(),
            packets: self.flow.stats().packets,
        }
    }
}

/// A server connection of quiche, whose packets leave by the same kind of socket.
struct QuicheSide {
    pair: Pair,
    room: Vec<u8>,
    socket: MulticastSender,
    packets: u64,
    watch: Stopwatch,
}

impl QuicheSide {
    fn new(pair: Pair, runtime: &Runtime) -> Result<Self> {
        Ok(QuicheSide {
            pair,
            room: vec![0; TRAIN * UDP_PAYLOAD],
            socket: sender(runtime)?,
            packets: 0,
            watch: Stopwatch::new(),
        })
    }

    /// An update as a stream of its own, in one train.
    fn send(&mut self, seq: u64, update: &Bytes, group: &mut Group) -> Result<()> {
        let (server, room) = (&mut self.pair.server, &mut self.room);
        let (socket, to, stream) = (&self.socket, group.address, STREAM + 4 * (seq - 1));
        let len = self.watch.time(|| -> Result<usize> {
            let taken = server.stream_send(stream, update, true)?;
            ensure!(taken == update.len(), "quiche's windows are not wide open");
            let mut len = 0;
            while let Some(place) = room.get_mut(len..len + UDP_PAYLOAD) {
                match send(server, place)? {
                    Some(made) => len += made,
                    None => break,
                }
            }
            let train = room.get(..len).unwrap_or_default();
            socket.try_send(to, train, Some(UDP_PAYLOAD))?;
            Ok(len)
        })?;
        self.packets += len.div_ceil(UDP_PAYLOAD) as u64;
        let client = &mut self.pair.client;
        group.take(len, |packet| {
            client.recv(packet, to_client())?;
            Ok(())
        })?;
        let mut got = vec![0; update.len()];
        let mut received = 0;
        while let Some(rest) = got.get_mut(received..).filter(|rest| !rest.is_empty()) {
            received += client.stream_recv(stream, rest)?.0;
        }
        ensure!(got == *update, "quiche's packets are not the update");
        let mut answer = [0; UDP_PAYLOAD];
        while let Some(len) = send(client, &mut answer)? {
            let answer = answer.get_mut(..len).unwrap_or_default();
            self.pair.server.recv(answer, to_server())?;
        }
        Ok(())
    }

    fn cost(&self) -> Cost {
        Cost {
            time: self.watch.total(),
            packets: self.packets,
        }
    }
}

/// The least that packets of this size can cost: their bytes stand where they leave from, are
/// sealed there by the AEAD alone, and sent by one call.
struct Floor {
    key: AeadCtx,
    socket: UdpSocket,
    room: Vec<u8>,
    watch: Stopwatch,
    packets: u64,
}

impl Floor {
    fn new() -> Result<Self> {
        let secret: [u8; 16] = rand::rng().random();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket2::SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
        let_kernel_segment(&socket, SEGMENT)?;
        Ok(Floor {
            key: AeadCtx::new(&Aead::aes_128_gcm(), &secret, TAG_LEN)?,
            socket,
            room: Vec::new(),
            watch: Stopwatch::new(),
            packets: 0,
        })
    }

    fn send(&mut self, seq: u64, update: &Bytes, group: &mut Group) -> Result<()> {
        const FRAMES: usize = SEGMENT - HEADER_LEN - TAG_LEN;
        self.room.clear();
        for piece in update.chunks(FRAMES) {
            self.room.extend_from_slice(&[0; HEADER_LEN]);
            self.room.extend_from_slice(piece);
            self.room.extend_from_slice(&[0; TAG_LEN]);
        }
        let nonce = |n: usize| {
            let mut nonce = [0; 12];
            let number = seq * TRAIN as u64 + n as u64;
            nonce[4..].copy_from_slice(&number.to_be_bytes());
            nonce
        };
        let (key, room, socket) = (&mut self.key, &mut self.room, &self.socket);
        let to = group.address;
        self.watch.time(|| -> Result<()> {
            for (n, packet) in room.chunks_mut(SEGMENT).enumerate() {
                let (header, body) = packet.split_at_mut(HEADER_LEN);
                let (frames, tag) = body.split_at_mut(body.len() - TAG_LEN);
                key.seal_scatter_mut(&nonce(n), frames, tag, None, header)?;
            }
            ensure!(socket.send_to(room, to)? == room.len(), "half a train");
            Ok(())
        })?;
        self.packets += self.room.len().div_ceil(SEGMENT) as u64;
        let (mut n, mut got) = (0, Vec::with_capacity(UPDATE));
        group.take(self.room.len(), |packet| {
            let (header, body) = packet.split_at_mut(HEADER_LEN);
            let (frames, tag) = body.split_at_mut(body.len() - TAG_LEN);
            key.open_gather_mut(&nonce(n), frames, tag, header)?;
            n += 1;
            got.extend_from_slice(frames);
            Ok(())
        })?;
        ensure!(got == *update, "what was sent is not the update");
        Ok(())
    }

    fn cost(&self) -> Cost {
        Cost {
            time: self.watch.total(),
            packets: self.packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sides_send_as_many_packets() {
        let run = side_by_side(5).unwrap();
        for cost in [run.flow, run.quiche, run.floor] {
            assert_eq!(cost.packets, 5 * TRAIN as u64, "{cost:?}");
            assert!(cost.time > Duration::ZERO);
        }
    }
}
