//! The two rungs that are compared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flexicast::ack::PathAck;
use flexicast::flow::{FlowConfig, FlowSender, RateControl};
use flexicast::frame::{Frame, Frames};
use flexicast::protect::{Algorithm, FlowSecret, PacketKey};
use flexicast::{FlowId, PathId, Rung};
use netio::direct::{Destination, Destinations, Replicator, Target};
use netio::{Packets, UdpSocket};
use rand::RngExt;
use testbed::waiting::pause;
use tokio::runtime::Runtime;

use super::receivers::Receivers;
use super::{BATCH, Cost, Load, Updates};
use crate::cpu::{Stopwatch, thread_time_of};
use crate::pair::{Pair, send, to_client, to_server};
use crate::parcel::UDP_PAYLOAD;

/// Packets that a source's unicast session sends in one system call (`flexicast_tokio`'s `link`).
const UNICAST_TRAIN: usize = 10;
/// The first stream that a server opens.
const STREAM: u64 = 3;
/// The number of a flow's first key.
const FIRST_KEY: u64 = 1;
/// Threads of a source that only send, by default.
const THREADS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN;

/// Delivers the updates of a load by a flow whose packets are replicated, as a source does: made
/// once, handed over, and sent by a thread of its own.
///
/// # Errors
/// When a receiver did not get exactly the packets, or they do not contain the updates.
pub fn replicate(load: Load, algorithm: Algorithm, receivers: &mut Receivers) -> Result<Cost> {
    let mut now = Instant::now();
    let mut random = rand::rng();
    let (id, mut secret) = (FlowId(random.random()), FlowSecret::default());
    random.fill(secret.as_mut_bytes());
    let mut key = PacketKey::new(algorithm, &secret)?;
    let mut flow = FlowSender::new(FlowConfig {
        algorithm,
        udp_payload: UDP_PAYLOAD,
        rate: None,
        control: RateControl::fixed(),
        ..FlowConfig::new(id, secret)
    })?;
    let path = PathId::new(1, Rung::Replicated);
    flow.set_listeners(receivers.len(), now);
    for member in 0..receivers.len() as u64 {
        flow.admit(member, path, Duration::from_millis(10), FIRST_KEY, now);
        flow.on_window(member, u64::MAX);
    }
    let socket = UdpSocket::bind(([127, 0, 0, 1], 0).into())?;
    let replicator = Replicator::new(&socket, THREADS, |_| {})?;
    let sets: Vec<Destinations> = (0..receivers.len())
        .step_by(BATCH)
        .map(|first| {
            let mut set = Destinations::default();
            let destinations = (0..).zip(receivers.addresses()).skip(first).take(BATCH);
            let destinations = destinations.map(|(id, to)| {
                let target = Target { to, from: None };
                Arc::new(Destination::new(id, target))
            });
            replicator.assign(&mut set, destinations);
            set
        })
        .collect();
    let mut updates = Updates::of(load);
    let (mut generation, mut handover) = (Stopwatch::new(), Stopwatch::new());
    let (mut packet, mut wire) = (Vec::new(), Vec::new());
    let mut first = 0;
    for seq in 1..=load.updates as u64 {
        let update = updates.next();
        let pushed = update.clone();
        let packets = generation.time(|| {
            let mut packets = Packets::default();
            flow.handle_timeout(now);
            flow.push(seq, pushed);
            while flow.queued_bytes() > 0 && flow.poll_transmit(now, &mut packet) {
                packets.push(&packet);
            }
            packets
        });
        ensure!(flow.queued_bytes() == 0, "the flow has stopped sending");
        let packets = Arc::new(packets);
        wire.clear();
        packets
            .trains()
            .for_each(|(train, _)| wire.extend_from_slice(train));
        for (set, first) in sets.iter().zip((0..).step_by(BATCH)) {
            handover.time(|| replicator.send(&packets, set));
            while replicator.queued() > 0 {
                pause(Duration::from_millis(1));
            }
            receivers.take_from(first..first + set.len(), &wire)?;
        }
        let mut got = Vec::new();
        for (train, segment) in packets.trains() {
            for packet in train.chunks(segment.unwrap_or(train.len())) {
                open(&mut key, first, packet, &mut got)?;
                first += 1;
            }
        }
        ensure!(got == update, "the packets do not contain the update");
        let ack = PathAck {
            path,
            delay: Duration::ZERO,
            ranges: std::iter::once(0..flow.next_pn()).collect(),
            ecn: None,
            rebuilt: Vec::new(),
        };
        for member in 0..receivers.len() as u64 {
            flow.on_ack(member, &ack, now)?;
        }
        now += Duration::from_millis(1);
    }
    ensure!(replicator.dropped() == 0, "packets were dropped");
    Ok(Cost {
        engine: generation.total() + handover.total(),
        generation: generation.total(),
        threads: thread_time_of("replication-0")?,
        packets: flow.stats().packets * receivers.len() as u64,
    })
}

/// Opens a packet and adds its stream data.
fn open(key: &mut PacketKey, expected: u64, packet: &[u8], got: &mut Vec<u8>) -> Result<()> {
    let mut packet = packet.to_vec();
    let opened = key.open(expected, &mut packet)?;
    ensure!(opened.pn == expected, "a packet number is missing");
    for frame in Frames::new(opened.frames) {
        if let Frame::Stream { data, .. } = frame.context("reading a packet of the flow")? {
            got.extend_from_slice(data);
        }
    }
    Ok(())
}

/// Delivers the updates of a load by quiche, each as a stream of its own on every receiver's
/// connection, sent as a source's unicast sessions send.
///
/// # Errors
/// When a client did not get an update.
pub fn unicast(
    load: Load,
    mut pairs: Vec<Pair>,
    runtime: &Runtime,
    receivers: &mut Receivers,
) -> Result<Cost> {
    let socket = UdpSocket::bind(([127, 0, 0, 1], 0).into())?;
    runtime.block_on(socket.writable())?;
    let mut updates = Updates::of(load);
    let mut watch = Stopwatch::new();
    let mut packets = 0;
    let mut room = vec![0; UNICAST_TRAIN * UDP_PAYLOAD];
    for number in 0..load.updates as u64 {
        let (update, stream) = (updates.next(), STREAM + 4 * number);
        for (receiver, pair) in pairs.iter_mut().enumerate() {
            let to = receivers.at(receiver)?;
            let sent = watch.time(|| -> Result<Sent> {
                let taken = pair.server.stream_send(stream, &update, true)?;
                ensure!(taken == update.len(), "quiche's windows are not wide open");
                let mut sent = Sent::default();
                while let Some((len, segment)) = next_train(pair, &mut room)? {
                    let train = room.get(..len).unwrap_or_default();
                    let taken = socket.try_send_some(to, None, train, Some(segment))?;
                    ensure!(taken == len, "the socket's buffer is full");
                    sent.bytes += len;
                    sent.packets += len.div_ceil(segment);
                }
                Ok(sent)
            })?;
            packets += sent.packets as u64;
            let client = &mut pair.client;
            receivers.take(receiver, sent.bytes, |datagram| {
                client.recv(&mut datagram.to_vec(), to_client())?;
                Ok(())
            })?;
            let mut got = vec![0; update.len()];
            let mut len = 0;
            while let Some(rest) = got.get_mut(len..).filter(|rest| !rest.is_empty()) {
                len += client.stream_recv(stream, rest)?.0;
            }
            ensure!(got == update, "a client got something that was not sent");
            let mut answer = [0; UDP_PAYLOAD];
            while let Some(len) = send(client, &mut answer)? {
                let answer = answer.get_mut(..len).unwrap_or_default();
                pair.server.recv(answer, to_server())?;
            }
        }
    }
    Ok(Cost {
        engine: watch.total(),
        packets,
        ..Cost::default()
    })
}

/// Packets sent to one receiver.
#[derive(Default)]
struct Sent {
    bytes: usize,
    packets: usize,
}

/// Makes the next packets of a connection, all of one size but the last; returns their length and
/// that size.
fn next_train(pair: &mut Pair, room: &mut [u8]) -> Result<Option<(usize, usize)>> {
    let (mut len, mut segment) = (0, 0);
    while let Some(place) = room.get_mut(len..len + UDP_PAYLOAD) {
        let Some(made) = send(&mut pair.server, place)? else {
            break;
        };
        ensure!(
            len == 0 || made <= segment,
            "a packet is longer than the one before it"
        );
        len += made;
        segment = segment.max(made);
        if made < segment {
            break;
        }
    }
    Ok((len > 0).then_some((len, segment)))
}
