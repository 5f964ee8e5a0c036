//! Windows that slide, packets in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Random, rebuilt};
use crate::{Decoder, Encoder, Intake, Scheme, SourceError};

/// Packet or repair symbol on its way.
#[derive(Debug, Clone)]
enum Sent {
    Packet(u64, Vec<u8>),
    Repair(Vec<u8>),
}

/// A stream of packets with a repair symbol behind every fourth, whose window slides.
fn stream(random: &mut Random, count: u64, span: usize) -> Vec<Sent> {
    let mut encoder = Encoder::new(Scheme::Rlc, span);
    let mut sent = Vec::new();
    for pn in 0..count {
        if pn % 5 == 4 {
            // A repair symbol takes a packet number and is no source symbol.
            let mut repair = Vec::new();
            let window = encoder.repair(&mut repair).unwrap();
            assert!(window.span() <= span && window.last() == pn - 1);
            sent.push(Sent::Repair(repair));
        } else {
            let len = 1 + random.below(80) as usize;
            let packet = random.bytes(len);
            encoder.push(pn, &packet).unwrap();
            sent.push(Sent::Packet(pn, packet));
        }
    }
    sent
}

fn take(decoder: &mut Decoder, sent: &Sent) {
    match sent {
        Sent::Packet(pn, packet) => assert_ne!(decoder.on_packet(*pn, packet), Intake::Refused),
        Sent::Repair(repair) => assert!(decoder.on_repair(repair).is_ok()),
    }
    let (unknowns, equations) = decoder.unknowns();
    assert!(equations <= unknowns && unknowns <= crate::MAX_UNKNOWNS);
}

/// Bursts of up to three losses, wherever they begin, are rebuilt across all windows.
#[test]
fn a_sliding_window_rebuilds_bursts_anywhere() {
    for (seed, span) in [(1, 20), (2, 33), (3, 64), (4, 128)] {
        let mut random = Random(seed);
        let sent = stream(&mut random, if cfg!(miri) { 60 } else { 4_000 }, span);
        let mut decoder = Decoder::new(span, 0);
        let (mut lost, mut found) = (BTreeMap::new(), BTreeMap::new());
        let mut burst = 0;
        let mut next = 10;
        for (i, sent) in sent.iter().enumerate() {
            if i == next {
                burst = 1 + random.below(3);
                next += 20 + random.below(10) as usize;
            }
            if burst == 0 {
                take(&mut decoder, sent);
            } else if let Sent::Packet(pn, packet) = sent {
                lost.insert(*pn, packet.clone());
            }
            burst = burst.saturating_sub(1);
            found.extend(rebuilt(&mut decoder));
        }
        lost.retain(|pn, _| *pn + 30 < sent.len() as u64);
        assert!(
            lost.iter().all(|lost| found.get(lost.0) == Some(lost.1)),
            "span {span}"
        );
        assert!(decoder.held() <= (2 * span).next_power_of_two());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]

    /// The last packets and all repair symbols in any order, some twice, with no more missing than
    /// a decoder solves at once: the same packets are rebuilt.
    #[test]
    fn order_does_not_matter(seed: u64, lost in 0_usize..6, repeated in 0_usize..10) {
        let mut random = Random(seed);
        let sent = stream(&mut random, 60, 64);
        let all: Vec<usize> = (0..sent.len()).collect();
        let lost: BTreeSet<usize> = random.choose(&all, lost).into_iter().collect();
        let kept: Vec<usize> = all.into_iter().filter(|i| !lost.contains(i)).collect();
        let packets: BTreeMap<u64, Vec<u8>> = sent
            .iter()
            .filter_map(|sent| match sent {
                Sent::Packet(pn, packet) => Some((*pn, packet.clone())),
                Sent::Repair(_) => None,
            })
            .collect();
        let mut known = Vec::new();
        for _ in 0..2 {
            let (shuffled, repairs): (Vec<usize>, Vec<usize>) =
                kept.iter().partition(|i| matches!(sent[**i], Sent::Packet(..)));
            let shuffled = random.choose(&shuffled, shuffled.len());
            let (early, late) = shuffled.split_at(shuffled.len() - 8);
            let late = [late, &repairs, &random.choose(&kept, repeated)].concat();
            let late = random.choose(&late, late.len());
            let mut decoder = Decoder::new(64, 0);
            let mut found = BTreeMap::new();
            for i in early.iter().chain(&late) {
                take(&mut decoder, &sent[*i]);
                found.extend(rebuilt(&mut decoder));
            }
            for (pn, packet) in &found {
                prop_assert_eq!(&packets[pn], packet);
            }
            let arrived = kept.iter().filter_map(|i| match &sent[*i] {
                Sent::Packet(pn, _) => Some(*pn),
                Sent::Repair(_) => None,
            });
            known.push(arrived.chain(found.into_keys()).collect::<BTreeSet<u64>>());
        }
        prop_assert_eq!(&known[0], &known[1]);
    }
}

#[test]
fn windows_end_where_the_source_says() {
    let mut encoder = Encoder::new(Scheme::Rlc, 10);
    assert_eq!(
        (encoder.window(), encoder.repair(&mut Vec::new())),
        (None, None)
    );
    let window = |encoder: &Encoder| {
        encoder
            .window()
            .map(|window| (window.first(), window.last()))
    };
    for pn in 0..30 {
        encoder.push(pn, b"packet").unwrap();
    }
    assert_eq!(window(&encoder), Some((20, 29)));
    // Numbers that are skipped count.
    encoder.push(35, b"packet").unwrap();
    assert_eq!(window(&encoder), Some((26, 35)));
    encoder.settle(29);
    assert_eq!(window(&encoder), Some((29, 35)));
    encoder.push(1_000, b"packet").unwrap();
    assert_eq!(window(&encoder), Some((1_000, 1_000)));
    encoder.clear();
    assert_eq!((window(&encoder), encoder.repair_len()), (None, None));
}

#[test]
fn encoders_refuse_packets_that_no_decoder_takes() {
    let mut encoder = Encoder::new(Scheme::Rlc, 64);
    assert_eq!(encoder.push(3, &[]), Err(SourceError::Length(0)));
    assert_eq!(
        encoder.push(4, &[0; 1_499]),
        Err(SourceError::Length(1_499))
    );
    assert_eq!(
        encoder.push(1 << 62, &[0]),
        Err(SourceError::Order(1 << 62))
    );
    encoder.push(5, &[0; 1_498]).unwrap();
    assert_eq!(encoder.push(5, &[0]), Err(SourceError::Order(5)));
    assert_eq!(encoder.push(4, &[0]), Err(SourceError::Order(4)));
    encoder.push((1 << 62) - 1, &[0]).unwrap();
    assert!(encoder.repair(&mut Vec::new()).is_some());
}

/// Packets that are written in place are protected as those that are copied.
#[test]
fn packets_are_written_in_place() {
    let packets = Random(17).packets(2, 10, 1_498);
    let [mut copied, mut written] = [(); 2].map(|()| Encoder::new(Scheme::Rlc, 64));
    let refused = written.push_with(0, |_| 1_499);
    assert_eq!(refused, Err(SourceError::Length(1_499)));
    assert_eq!(written.push_with(1, |_| 0), Err(SourceError::Length(0)));
    for (pn, packet) in &packets {
        copied.push(*pn, packet).unwrap();
        let bytes = written.push_with(*pn, |room| {
            assert_eq!(room.len(), crate::MAX_PACKET);
            room[..packet.len()].copy_from_slice(packet);
            packet.len()
        });
        assert_eq!(bytes, Ok(&packet[..]));
    }
    let numbers = packets.keys().copied();
    assert!(written.window().unwrap().packets().eq(numbers));
    let repairs = [&mut copied, &mut written].map(|encoder| super::repairs_of(encoder, 3));
    assert_eq!(repairs[0], repairs[1]);
}

/// A window never reaches into an older key epoch, at either end.
#[test]
fn epochs_are_apart() {
    let mut random = Random(8);
    let packets = random.packets(0, 20, 50);
    let mut encoder = Encoder::new(Scheme::Rlc, 64);
    let mut decoder = Decoder::new(64, 0);
    let mut old = Vec::new();
    for (pn, packet) in packets.range(..10) {
        encoder.push(*pn, packet).unwrap();
        decoder.on_packet(*pn, packet);
    }
    encoder.repair(&mut old).unwrap();
    encoder.clear();
    decoder.begin_epoch(10);
    assert_eq!((decoder.held(), decoder.unknowns()), (0, (0, 0)));
    let mut new = Vec::new();
    for (pn, packet) in packets.range(10..) {
        encoder.push(*pn, packet).unwrap();
    }
    assert_eq!(encoder.repair(&mut new).unwrap().first(), 10);
    assert_eq!(decoder.on_repair(&old), Err(crate::RepairError::Epoch(0)));
    assert_eq!(decoder.on_packet(9, &packets[&9]), Intake::Refused);
    for (pn, packet) in packets.range(11..) {
        assert_eq!(decoder.on_packet(*pn, packet), Intake::New);
    }
    decoder.on_repair(&new).unwrap();
    assert_eq!(rebuilt(&mut decoder), [(10, packets[&10].clone())].into());
}

/// Repair symbols of successive blocks are different, and those of one block too.
#[test]
fn keys_differ() {
    for (scheme, keys) in [
        (Scheme::Rlc, 65_536),
        (Scheme::ReedSolomon, 128),
        (Scheme::Xor, 1),
    ] {
        let mut encoder = Encoder::new(scheme, 64);
        encoder.push(0, b"packet").unwrap();
        let mut symbols = BTreeSet::new();
        let mut bytes = Vec::new();
        while encoder.repair(&mut bytes).is_some() {
            symbols.insert(bytes[1..3].to_vec());
            bytes.clear();
        }
        assert_eq!(symbols.len(), keys, "{scheme:?}");
    }
}
