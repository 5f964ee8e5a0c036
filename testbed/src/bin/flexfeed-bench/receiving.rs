//! The receiver's cost of the same bytes: packets of a flow, against unicast quiche, on both sides
//! from the datagram to the application's bytes, without sockets.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use flexicast::authentication::{AuthenticationConfig, PacketAuthentication};
use flexicast::control::{Credential, Endpoint};
use flexicast::fec::FecConfig;
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

pub(super) const CHANNEL: &str = "bench";
const INCARNATION: Uuid = Uuid::from_u128(7);
/// The first stream that a server opens.
pub(super) const FIRST_STREAM: u64 = 3;
/// Packets with which quiche's client may answer a train.
const ANSWERS: usize = 4;
/// Time between two trains: 49 Mbit/s.
const STEP: Duration = Duration::from_millis(10);
/// Time that fills a flow's token bucket.
pub(super) const BURST_TIME: Duration = Duration::from_micros(10);
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
        by_flow(Ends::joined(Setup::plain(algorithm))?, parcel, PIECE, 1)?.received,
        by_quiche(pair, parcel)?,
    ))
}

/// Delivers the parcel as updates of `size` bytes by a flow, `batch` of them at a time. Timed are
/// the source, as it makes the packets, and one receiver: its packets, its timers, the updates that
/// it hands out and its acknowledgements.
pub(super) fn by_flow(
    mut ends: Ends,
    parcel: &Parcel,
    size: usize,
    batch: usize,
) -> Result<FlowCost> {
    let (mut watch, mut making) = (Stopwatch::new(), Stopwatch::new());
    let (mut offered, mut seq, mut packets) = (0, 0, 0);
    let mut train = vec![vec![0; UDP_PAYLOAD]; TRAIN];
    loop {
        let mut updates = Vec::with_capacity(batch);
        while updates.len() < batch
            && let Some(update) = parcel.piece_of(offered, size)
        {
            offered += update.len();
            seq += 1;
            // An update is signed when it is stored, long before.
            updates.push((seq, ends.sign(seq, update)?));
        }
        if updates.is_empty() {
            break;
        }
        let (source, mut now) = (&mut ends.source, ends.now);
        let sent = making.time(|| {
            for (seq, update) in &updates {
                source.publish(0, *seq, update.clone());
            }
            let mut sent = 0;
            loop {
                if sent == train.len() {
                    train.push(Vec::with_capacity(UDP_PAYLOAD));
                }
                if source.poll_transmit(now, &mut train[sent]).is_some() {
                    sent += 1;
                } else if now < ends.now + STEP / 2
                    && source.flow(0).is_some_and(|flow| flow.queued_bytes() > 0)
                {
                    // The token bucket of a flow without a limit is not without an end.
                    now += BURST_TIME;
                } else {
                    break sent;
                }
            }
        });
        ensure!(sent > 0, "an update is no packet");
        packets += sent as u64;
        let sent = train.get_mut(..sent).unwrap_or_default();
        let (first, others) = ends.receivers.split_at_mut(1);
        for receiver in others {
            let mut copies = sent.to_vec();
            receive(receiver, &mut copies, &updates, now)?;
        }
        let mut got = Ok(());
        for receiver in first {
            got = watch.time(|| receive(receiver, sent, &updates, now));
        }
        got?;
        ends.step()?;
    }
    Ok(FlowCost {
        made: making.total(),
        received: Cost {
            time: watch.total(),
            packets,
        },
    })
}

/// Has a receiver take the packets of these updates, which it has to hand out then.
fn receive(
    receiver: &mut Receiver,
    packets: &mut [Vec<u8>],
    updates: &[(u64, Bytes)],
    now: Instant,
) -> Result<()> {
    for packet in packets {
        let input = receiver.on_flow_datagram(Rung::Multicast, packet, now);
        let is_taken = matches!(input, FlowInput::Accepted | FlowInput::Held);
        ensure!(is_taken, "a packet of the flow is {input:?}");
    }
    receiver.handle_timeout(now);
    for (seq, update) in updates {
        let Some((_, incarnation, output)) = receiver.poll_update() else {
            bail!("the flow's receiver did not get update {seq}");
        };
        let Output::Update(got) = output else {
            bail!("the flow's receiver got {output:?}");
        };
        ensure!(
            (got.seq, &got.encoded, got.via) == (*seq, update, Via::Flow),
            "what the flow's receiver got is not what was sent"
        );
        let cursor = Cursor {
            incarnation,
            seq: *seq,
        };
        receiver.confirm(CHANNEL, cursor, now);
    }
    ensure!(receiver.poll_update().is_none(), "an update came twice");
    Ok(())
}

/// Delivers the parcel as updates of [`PIECE`] bytes by quiche, a stream each, a train at a time.
/// Timed is the client: its packets, the streams' bytes that it hands out and its acknowledgements.
pub(super) fn by_quiche(mut pair: Pair, parcel: &Parcel) -> Result<Cost> {
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

/// Signatures of updates.
pub(super) enum Signing {
    /// None.
    Off,
    /// A header in front of each, made when it is stored.
    Header(Box<Signer>),
}

/// Ends of a flow, before they are joined.
pub(super) struct Setup {
    pub(super) algorithm: Algorithm,
    pub(super) signing: Signing,
    /// Authentication of the flow.
    pub(super) packets: Option<PacketAuthentication>,
    /// Its erasure coding.
    pub(super) fec: Option<FecConfig>,
    pub(super) receivers: usize,
}

impl Setup {
    /// A receiver, and nothing that is signed.
    pub(super) fn plain(algorithm: Algorithm) -> Self {
        Setup {
            algorithm,
            signing: Signing::Off,
            packets: None,
            fec: None,
            receivers: 1,
        }
    }
}

/// The state machines of a source and of its receivers, joined in memory.
pub(super) struct Ends {
    pub(super) source: Source,
    signing: Signing,
    pub(super) receivers: Vec<Receiver>,
    pub(super) now: Instant,
    members: BTreeSet<usize>,
}

impl Ends {
    /// Ends whose receivers are members of the source's flow.
    pub(super) fn joined(setup: Setup) -> Result<Self> {
        let mut random = rand::rng();
        let (id, mut secret) = (FlowId(random.random()), FlowSecret::default());
        random.fill(secret.as_mut_bytes());
        let authentication = setup.packets.map(|packets| {
            let mut secret = FlowSecret::default();
            random.fill(secret.as_mut_bytes());
            AuthenticationConfig { packets, secret }
        });
        let flow = FlowConfig {
            algorithm: setup.algorithm,
            udp_payload: UDP_PAYLOAD,
            rate: None,
            control: RateControl::fixed(),
            authentication,
            fec: setup.fec,
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
        let now = Instant::now();
        if let Signing::Header(signer) = &setup.signing {
            let era = Era {
                first: 1,
                last: None,
                incarnation: INCARNATION,
                key: signer.key(),
            };
            source.set_lineage(0, Lineage::new(vec![era])?);
        }
        let receivers = (0..setup.receivers).map(|number| {
            let mut receiver = Receiver::new(ReceiverConfig::new(
                Uuid::from_u128(number as u128 + 1),
                Credential::Token(Vec::new()),
                vec![(CHANNEL.to_owned(), None)],
            ));
            source.accept(number as SessionId, now);
            receiver.connected();
            receiver
        });
        let receivers = receivers.collect();
        let mut ends = Ends {
            source,
            signing: setup.signing,
            receivers,
            now,
            members: BTreeSet::new(),
        };
        for _ in 0..PATIENCE {
            ends.step()?;
            if ends.members.len() == ends.receivers.len() {
                return Ok(ends);
            }
        }
        bail!("the receivers did not become members of the flow")
    }

    /// Returns an update as the source stores it.
    fn sign(&self, seq: u64, content: Bytes) -> Result<Bytes> {
        let Signing::Header(signer) = &self.signing else {
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

    /// Lets all ends say what they have to say, and the clock go on.
    fn step(&mut self) -> Result<()> {
        let now = self.now;
        while let Some(event) = self.source.poll_event() {
            if let SourceEvent::Authorise { session, .. } = event {
                self.source.authorised(session, Ok(()), now);
            }
        }
        while let Some(session) = self.source.poll_dirty() {
            let said = self.source.take_control(session);
            let receiver = self.receivers.get_mut(session as usize);
            receiver
                .context("a session without a receiver")?
                .on_control(&said, now)?;
            let sent = self.source.poll_unicast(session, now);
            ensure!(
                sent == Unicast::Idle,
                "an update was sent on the unicast path"
            );
        }
        let mut packet = Vec::new();
        while self.source.poll_transmit(now, &mut packet).is_some() {
            for receiver in &mut self.receivers {
                receiver.on_flow_datagram(Rung::Multicast, &mut packet.clone(), now);
            }
        }
        for (number, receiver) in self.receivers.iter_mut().enumerate() {
            while let Some(event) = receiver.poll_event() {
                if let ReceiverEvent::Moved { rung, .. } = event {
                    match rung {
                        Rung::Multicast => self.members.insert(number),
                        _ => self.members.remove(&number),
                    };
                }
            }
            let said = receiver.take_control();
            self.source.on_control(number as SessionId, &said, now)?;
            while let Some((_, ack)) = receiver.poll_datagram(now) {
                self.source.on_datagram(number as SessionId, &ack, now)?;
            }
        }
        self.now += STEP;
        self.source.handle_timeout(self.now);
        for receiver in &mut self.receivers {
            receiver.handle_timeout(self.now);
        }
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
