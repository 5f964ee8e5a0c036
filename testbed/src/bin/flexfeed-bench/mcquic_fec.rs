//! Cost of repair symbols at both ends, as in section 4.1 of the MCQUIC paper: a long stream of
//! which every so many-th packet is lost, without sockets.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use flexicast::fec::{FecConfig, FecPolicy};
use flexicast::protect::Algorithm;
use flexicast::receiver::{FlowInput, Output, Receiver};
use flexicast::source::{SessionId, Unicast};
use flexicast::{Cursor, Rung};
use serde::{Deserialize, Serialize};

use crate::cpu::Stopwatch;
use crate::pair::Maker;
use crate::parcel::{Parcel, TRAIN, UDP_PAYLOAD};
use crate::receiving::{BURST_TIME, CHANNEL, Ends, FIRST_STREAM, Setup, by_quiche};
use crate::unicast;

/// The only session.
const SESSION: SessionId = 0;
/// Time between two trains: each is acknowledged before the next one, so that what is lost of it is
/// in the window of the symbols that follow.
const STEP: Duration = Duration::from_millis(32);
/// Trains after the last one, in which the last losses are repaired.
const SETTLES: usize = 10;
/// Bytes of the longest packet that carries a PING alone.
const PING_LEN: usize = 64;

/// CPU time of a run at both ends, and what was repaired.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Recovery {
    /// To make the packets, repair symbols among them.
    pub made: Duration,
    /// To take in the acknowledgements.
    pub acks: Duration,
    /// To receive the packets, rebuild those that are missing, and acknowledge.
    pub received: Duration,
    /// Packets.
    pub packets: u64,
    /// Packets that were lost, those of them that were rebuilt, and those that were repaired on the
    /// unicast path.
    pub lost: u64,
    pub rebuilt: u64,
    pub repairs: u64,
    /// Repair symbols.
    pub symbols: u64,
}

/// Packets that get lost.
struct Losses {
    /// Packets of which one is lost.
    every: Option<u64>,
    /// Packets since the last one that was lost.
    since: u64,
    lost: u64,
}

impl Losses {
    /// Whether the next packet gets lost. The last one of a train is spared: only what follows
    /// would show that it was lost.
    fn loses(&mut self, is_last: bool) -> bool {
        self.since += 1;
        let is_lost = !is_last && self.every.is_some_and(|every| self.since >= every);
        if is_lost {
            (self.since, self.lost) = (0, self.lost + 1);
        }
        is_lost
    }
}

/// Sends the parcel by a flow, as updates of `size` bytes that are acknowledged one by one; where
/// it has repair symbols, as many as the receiver asks for (Listing 1 of the paper). One of `every`
/// packets with data does not arrive.
///
/// # Errors
/// When the receiver did not get the bytes.
pub fn by_flow(fec: bool, every: Option<u64>, size: usize, parcel: &Parcel) -> Result<Recovery> {
    let policy = FecPolicy::Reactive;
    let fec = fec.then(|| FecConfig {
        policy,
        ..FecConfig::default()
    });
    let mut ends = Ends::joined(Setup {
        fec,
        ..Setup::plain(Algorithm::Aes128Gcm)
    })?;
    let mut awaited = VecDeque::new();
    let mut losses = Losses {
        every,
        since: 0,
        lost: 0,
    };
    let (mut making, mut taking, mut acks) = (Stopwatch::new(), Stopwatch::new(), Stopwatch::new());
    let mut train = vec![vec![0; UDP_PAYLOAD]; TRAIN];
    let (mut offered, mut seq, mut packets, mut stream) = (0, 0, 0, FIRST_STREAM);
    let mut settles = SETTLES;
    while settles > 0 {
        let update = parcel.piece_of(offered, size);
        match &update {
            Some(update) => {
                offered += update.len();
                seq += 1;
                awaited.push_back((seq, update.clone()));
            }
            None => settles -= 1,
        }
        let before = symbols(&ends);
        let (source, mut now) = (&mut ends.source, ends.now);
        let sent = making.time(|| {
            source.handle_timeout(now);
            if let Some(update) = update {
                source.publish(0, seq, update);
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
                    now += BURST_TIME;
                } else {
                    break sent;
                }
            }
        });
        packets += sent as u64;
        // Symbols that are due go before everything else.
        let repairs = (symbols(&ends) - before) as usize;
        let mut arriving: Vec<&mut Vec<u8>> = Vec::with_capacity(sent);
        for (at, packet) in train.iter_mut().take(sent).enumerate() {
            let has_data = at >= repairs && packet.len() > PING_LEN;
            if !has_data || !losses.loses(at + 1 == sent) {
                arriving.push(packet);
            }
        }
        let receiver = ends.receivers.first_mut().context("no receiver")?;
        taking.time(|| receive(receiver, arriving, &mut awaited, now))?;
        ends.now += STEP;
        answer(&mut ends, &mut stream, &mut taking, &mut acks)?;
    }
    ensure!(awaited.is_empty(), "{} updates are missing", awaited.len());
    let flow = ends.source.flow(0).context("no flow")?;
    let stats = flow.stats();
    ensure!(flow.members() == 1, "the receiver has left the flow");
    Ok(Recovery {
        made: making.total(),
        acks: acks.total(),
        received: taking.total(),
        packets,
        lost: losses.lost,
        rebuilt: stats.rebuilt,
        repairs: ends.source.counters().repairs,
        symbols: stats.repair_symbols,
    })
}

fn symbols(ends: &Ends) -> u64 {
    let flow = ends.source.flow(0);
    flow.map_or(0, |flow| flow.stats().repair_symbols)
}

/// Has the receiver take packets, and hand out updates that are whole.
fn receive(
    receiver: &mut Receiver,
    packets: Vec<&mut Vec<u8>>,
    awaited: &mut VecDeque<(u64, Bytes)>,
    now: Instant,
) -> Result<()> {
    for packet in packets {
        let input = receiver.on_flow_datagram(Rung::Multicast, packet, now);
        let is_taken = matches!(input, FlowInput::Accepted | FlowInput::Held);
        ensure!(is_taken, "a packet of the flow is {input:?}");
    }
    receiver.handle_timeout(now);
    while let Some((_, incarnation, output)) = receiver.poll_update() {
        let Output::Update(got) = output else {
            bail!("the flow's receiver got {output:?}");
        };
        let expected = awaited.pop_front();
        ensure!(
            expected == Some((got.seq, got.encoded)),
            "what the flow's receiver got is not what was sent"
        );
        let cursor = Cursor {
            incarnation,
            seq: got.seq,
        };
        receiver.confirm(CHANNEL, cursor, now);
    }
    Ok(())
}

/// Lets the receiver acknowledge, and the source hear it. What no symbol brought goes by unicast.
fn answer(
    ends: &mut Ends,
    stream: &mut u64,
    taking: &mut Stopwatch,
    acks: &mut Stopwatch,
) -> Result<()> {
    let (now, source) = (ends.now, &mut ends.source);
    let receiver = ends.receivers.first_mut().context("no receiver")?;
    let said = taking.time(|| {
        receiver.handle_timeout(now);
        std::iter::from_fn(|| receiver.poll_datagram(now)).collect::<Vec<_>>()
    });
    acks.time(|| {
        let mut said = said.iter();
        said.try_for_each(|(_, ack)| source.on_datagram(SESSION, ack, now))
    })?;
    source.on_control(SESSION, &receiver.take_control(), now)?;
    while receiver.poll_event().is_some() {}
    while source.poll_event().is_some() {}
    while source.poll_dirty().is_some() {
        receiver.on_control(&source.take_control(SESSION), now)?;
        loop {
            match source.poll_unicast(SESSION, now) {
                Unicast::Stream { mut head, body, .. } => {
                    head.extend_from_slice(&body);
                    receiver.on_unicast(*stream, &head, true)?;
                    *stream += 4;
                }
                Unicast::Idle => break,
                other => bail!("the unicast path has {other:?}"),
            }
        }
    }
    Ok(())
}

/// CPU times in which quiche makes the packets for one client, and in which that receives them:
/// the paper's baseline.
///
/// # Errors
/// When the client did not get the bytes.
pub fn by_unicast(parcel: &Parcel) -> Result<(Duration, Duration)> {
    let mut maker = Maker::new()?;
    let (one, _) = maker.connect()?;
    let (other, _) = maker.connect()?;
    let made = unicast::deliver(vec![one], parcel)?.generate;
    Ok((made, by_quiche(other, parcel)?.time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parcel::PIECE;

    /// Bytes of some thirty trains.
    const BYTES: usize = 32 * PIECE;

    #[test]
    fn what_is_lost_is_rebuilt_by_as_many_symbols() {
        for size in [PIECE, PIECE / 4] {
            let parcel = Parcel::new(BYTES / PIECE * size);
            let none = by_flow(true, None, size, &parcel).unwrap();
            let repaired = (none.lost, none.rebuilt, none.repairs, none.symbols);
            assert_eq!(repaired, (0, 0, 0, 0), "{none:?}");
            let mut costs = Vec::new();
            for every in [100, 20, 10] {
                let some = by_flow(true, Some(every), size, &parcel).unwrap();
                assert!(some.lost >= none.packets * 4 / 5 / every, "{some:?}");
                assert_eq!((some.rebuilt, some.repairs), (some.lost, 0), "{some:?}");
                let range = some.lost..some.lost * 3 / 2 + 2;
                assert!(range.contains(&some.symbols), "{some:?}");
                costs.push(some.symbols);
            }
            assert!(costs.is_sorted(), "{costs:?}");
        }
    }

    #[test]
    fn without_symbols_losses_are_repaired_by_unicast() {
        let parcel = Parcel::new(BYTES);
        let some = by_flow(false, Some(100), PIECE, &parcel).unwrap();
        assert_eq!((some.rebuilt, some.symbols), (0, 0), "{some:?}");
        assert!(some.lost > 0 && some.repairs >= some.lost, "{some:?}");
        let none = by_flow(false, None, PIECE, &parcel).unwrap();
        assert_eq!((none.lost, none.repairs), (0, 0), "{none:?}");
    }
}
