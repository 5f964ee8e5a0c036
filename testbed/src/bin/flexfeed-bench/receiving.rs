//! The receiver's cost of the same bytes: packets of a flow, against unicast quiche, on both sides
//! from the datagram to the application's bytes, without sockets.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use flexicast::control::{Credential, Endpoint};
use flexicast::flow::{FlowConfig, RateControl};
use flexicast::protect::{Algorithm, FlowSecret};
use flexicast::receiver::{FlowInput, Output, Receiver, ReceiverConfig, ReceiverEvent};
use flexicast::signing::{Era, Lineage, Signer, Statement};
use flexicast::source::{
    ChannelConfig, Limits, SessionId, Source, SourceConfig, SourceEvent, Unicast,
};
use flexicast::{Cursor, FlowId, Rung, Via};
use rand::RngExt;
use uuid::Uuid;

use crate::cpu::Stopwatch;
use crate::figures::{Figures, median};
use crate::pair::{Maker, Pair, send, to_client, to_server};
use crate::parcel::{PIECE, Parcel, TRAIN, UDP_PAYLOAD};

/// All figures of this file.
pub const NAMES: [&str; 3] = ["recv_vs_quiche_recv", "recv_flow_ns", "recv_quiche_ns"];

/// Bytes that each side receives in a run.
const STREAM: usize = 50_000_000;
const RUNS: usize = 7;

const CHANNEL: &str = "bench";
const INCARNATION: Uuid = Uuid::from_u128(7);
const SESSION: SessionId = 1;
/// The first stream that a server opens.
const FIRST_STREAM: u64 = 3;
/// Packets with which quiche's client may answer a train.
const ANSWERS: usize = 4;
/// Time between two trains: 49 Mbit/s.
const STEP: Duration = Duration::from_millis(10);
/// Steps within which a receiver becomes a member.
const PATIENCE: usize = 1_000;

/// CPU time of a receiver, and its packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) time: Duration,
    packets: u64,
}

/// Cost of a flow at both ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowCost {
    /// CPU time in which the source made the packets.
    pub(super) made: Duration,
    pub(super) received: Cost,
}

impl Cost {
    fn ns(self) -> f64 {
        self.time.as_nanos() as f64 / self.packets as f64
    }
}

/// Measures what is asked for.
///
/// # Errors
/// When a receiver did not get the bytes.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let parcel = Parcel::new(STREAM);
    let mut taken = NAMES.map(|_| Vec::new());
    for run in 1..=RUNS {
        let (flow, quiche) = side_by_side(&parcel)?;
        eprintln!(
            "receiving, run {run} of {RUNS}, ns per packet: flow {:.0}, quiche {:.0}",
            flow.ns(),
            quiche.ns()
        );
        let values = [flow.ns() / quiche.ns(), flow.ns(), quiche.ns()];
        taken.iter_mut().zip(values).for_each(|(t, v)| t.push(v));
    }
    for ((name, values), unit) in NAMES.into_iter().zip(taken).zip(["ratio", "ns", "ns"]) {
        figures.take(name, median(values), unit);
    }
    Ok(())
}

/// The flow's receiver, and then quiche's client, with the same AEAD.
fn side_by_side(parcel: &Parcel) -> Result<(Cost, Cost)> {
    let (pair, algorithm) = Maker::new()?.connect()?;
    Ok((
        by_flow(Ends::joined(algorithm, None)?, parcel)?.received,
        by_quiche(pair, parcel)?,
    ))
}

/// Delivers the parcel as updates of [`PIECE`] bytes by a flow, a train at a time. Timed is the
/// receiver: its packets, its timers, the updates that it hands out and its acknowledgements.
pub(super) fn by_flow(mut ends: Ends, parcel: &Parcel) -> Result<FlowCost> {
    let (mut watch, mut making) = (Stopwatch::new(), Stopwatch::new());
    let (mut offered, mut seq, mut received, mut packets) = (0, 0, 0, 0);
    let mut train = vec![vec![0; UDP_PAYLOAD]; TRAIN];
    while let Some(update) = parcel.piece(offered) {
        offered += update.len();
        seq += 1;
        // An update is signed when it is stored, long before.
        let update = ends.sign(seq, update)?;
        let (source, now) = (&mut ends.source, ends.now);
        let sent = making.time(|| {
            source.publish(0, seq, update.clone());
            let mut sent = 0;
            while let Some(packet) = train.get_mut(sent)
                && source.poll_transmit(now, packet).is_some()
            {
                sent += 1;
            }
            sent
        });
        ensure!((1..TRAIN).contains(&sent), "an update is {sent} packets");
        packets += sent as u64;
        let (now, receiver) = (ends.now, &mut ends.receiver);
        let mut got = Vec::new();
        let acks = watch.time(|| {
            let taken = train.iter_mut().take(sent).all(|packet| {
                receiver.on_flow_datagram(Rung::Multicast, packet, now) == FlowInput::Accepted
            });
            receiver.handle_timeout(now);
            while let Some((_, incarnation, output)) = receiver.poll_update() {
                got.push((incarnation, output));
            }
            taken.then(|| receiver.poll_datagram(now))
        });
        let ack = acks.context("a packet of the flow was not taken")?;
        for (incarnation, output) in got {
            let Output::Update(got) = output else {
                bail!("the flow's receiver got {output:?}");
            };
            ensure!(
                (got.seq, &got.encoded, got.via) == (seq, &update, Via::Flow),
                "what the flow's receiver got is not what was sent"
            );
            received += 1;
            let cursor = Cursor { incarnation, seq };
            ends.receiver.confirm(CHANNEL, cursor, now);
        }
        if let Some((_, ack)) = ack {
            ends.source.on_datagram(SESSION, &ack, now)?;
        }
        ends.step()?;
    }
    ensure!(received == seq, "{received} of {seq} updates were received");
    Ok(FlowCost {
        made: making.total(),
        received: Cost {
            time: watch.total(),
            packets,
        },
    })
}

/// Delivers the parcel as updates of [`PIECE`] bytes by quiche, a stream each, a train at a time.
/// Timed is the client: its packets, the streams' bytes that it hands out and its acknowledgements.
fn by_quiche(mut pair: Pair, parcel: &Parcel) -> Result<Cost> {
    let mut watch = Stopwatch::new();
    let (mut offered, mut stream, mut packets) = (0, FIRST_STREAM, 0);
    let (mut train, mut got) = (vec![[0; UDP_PAYLOAD]; TRAIN], vec![0; PIECE]);
    let mut lengths = Vec::with_capacity(TRAIN);
    let (mut answers, mut answered) = ([[0; UDP_PAYLOAD]; ANSWERS], Vec::with_capacity(ANSWERS));
    while let Some(piece) = parcel.piece(offered) {
        offered += piece.len();
        let taken = pair.server.stream_send(stream, &piece, true)?;
        ensure!(taken == piece.len(), "quiche's windows are not wide open");
        lengths.clear();
        for packet in &mut train {
            match send(&mut pair.server, packet)? {
                Some(len) => lengths.push(len),
                None => break,
            }
        }
        packets += lengths.len() as u64;
        answered.clear();
        let client = &mut pair.client;
        let received = watch.time(|| -> Result<usize> {
            for (packet, len) in train.iter_mut().zip(&lengths) {
                let packet = packet.get_mut(..*len).unwrap_or_default();
                client.recv(packet, to_client())?;
            }
            let mut received = 0;
            while let Some(rest) = got.get_mut(received..).filter(|rest| !rest.is_empty()) {
                let (len, fin) = client.stream_recv(stream, rest)?;
                received += len;
                if fin {
                    break;
                }
            }
            for answer in &mut answers {
                match send(client, answer)? {
                    Some(len) => answered.push(len),
                    None => break,
                }
            }
            Ok(received)
        })?;
        ensure!(
            got.get(..received) == Some(&piece[..]),
            "what quiche's client received is not what was sent"
        );
        for (answer, len) in answers.iter_mut().zip(&answered) {
            let answer = answer.get_mut(..*len).unwrap_or_default();
            pair.server.recv(answer, to_server())?;
        }
        stream += 4;
    }
    Ok(Cost {
        time: watch.total(),
        packets,
    })
}

/// The state machines of a source and of a receiver, joined in memory.
pub(super) struct Ends {
    source: Source,
    signer: Option<Signer>,
    receiver: Receiver,
    now: Instant,
    member: bool,
}

impl Ends {
    /// Ends whose receiver is a member of the source's flow; the source signs with this key.
    pub(super) fn joined(algorithm: Algorithm, signer: Option<Signer>) -> Result<Self> {
        let mut random = rand::rng();
        let (id, mut secret) = (FlowId(random.random()), FlowSecret::default());
        random.fill(secret.as_mut_bytes());
        let flow = FlowConfig {
            algorithm,
            udp_payload: UDP_PAYLOAD,
            rate: None,
            control: RateControl::fixed(),
            ..FlowConfig::new(id, secret)
        };
        let endpoint = Endpoint {
            group: ([232, 70, 70, 1], 4434).into(),
            source: Some([127, 0, 0, 1].into()),
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
            seed: 1,
        })?;
        let receiver = Receiver::new(ReceiverConfig::new(
            Uuid::from_u128(1),
            Credential::Token(Vec::new()),
            vec![(CHANNEL.to_owned(), None)],
        ));
        let now = Instant::now();
        if let Some(signer) = &signer {
            let era = Era {
                first: 1,
                last: None,
                incarnation: INCARNATION,
                key: signer.key(),
            };
            source.set_lineage(0, Lineage::new(vec![era])?);
        }
        let mut ends = Ends {
            source,
            signer,
            receiver,
            now,
            member: false,
        };
        ends.source.accept(SESSION, ends.now);
        ends.receiver.connected();
        for _ in 0..PATIENCE {
            ends.step()?;
            if ends.member {
                return Ok(ends);
            }
        }
        bail!("the receiver did not become a member of the flow")
    }

    /// Returns an update as the source stores it.
    fn sign(&self, seq: u64, content: Bytes) -> Result<Bytes> {
        let Some(signer) = &self.signer else {
            return Ok(content);
        };
        let statement = Statement {
            channel: CHANNEL,
            incarnation: INCARNATION,
            seq,
            deadline_ms: 0,
        };
        let signed = signer.sign(&statement, &rand::random(), &content)?;
        Ok(signed.into())
    }

    /// Lets both ends say what they have to say, and the clock go on.
    fn step(&mut self) -> Result<()> {
        let now = self.now;
        while let Some(event) = self.source.poll_event() {
            if let SourceEvent::Authorise { session, .. } = event {
                self.source.authorised(session, Ok(()), now);
            }
        }
        while self.source.poll_dirty().is_some() {
            let said = self.source.take_control(SESSION);
            self.receiver.on_control(&said, now)?;
            let sent = self.source.poll_unicast(SESSION, now);
            ensure!(
                sent == Unicast::Idle,
                "an update was sent on the unicast path"
            );
        }
        let mut packet = Vec::new();
        while self.source.poll_transmit(now, &mut packet).is_some() {
            self.receiver
                .on_flow_datagram(Rung::Multicast, &mut packet, now);
        }
        while let Some(event) = self.receiver.poll_event() {
            if let ReceiverEvent::Moved { rung, .. } = event {
                self.member = rung == Rung::Multicast;
            }
        }
        let said = self.receiver.take_control();
        self.source.on_control(SESSION, &said, now)?;
        while let Some((_, ack)) = self.receiver.poll_datagram(now) {
            self.source.on_datagram(SESSION, &ack, now)?;
        }
        self.now += STEP;
        self.source.handle_timeout(self.now);
        self.receiver.handle_timeout(self.now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_receivers_get_the_bytes() {
        let parcel = Parcel::new(1_500_000);
        let (flow, quiche) = side_by_side(&parcel).unwrap();
        for cost in [flow, quiche] {
            assert!(cost.packets >= 1_500_000 / 1200, "{cost:?}");
            assert!(cost.time > Duration::ZERO);
        }
    }
}
