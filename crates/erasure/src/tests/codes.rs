//! Losses of one window.

use std::collections::BTreeMap;

use super::{Random, encoder_of, rebuilt, repairs_of};
use crate::kernel::Kernel;
use crate::{Decoder, Encoder, Gain, MAX_PACKET, MAX_SPAN, Scheme, Window};

/// Brings all packets but the lost ones, then repair symbols; returns what was rebuilt.
fn receive(
    packets: &BTreeMap<u64, Vec<u8>>,
    lost: &[u64],
    repairs: &[Vec<u8>],
) -> BTreeMap<u64, Vec<u8>> {
    let mut decoder = Decoder::new(MAX_SPAN, 0);
    for (pn, packet) in packets {
        if !lost.contains(pn) {
            decoder.on_packet(*pn, packet);
        }
    }
    for repair in repairs {
        decoder.on_repair(repair).unwrap();
    }
    rebuilt(&mut decoder)
}

fn of(packets: &BTreeMap<u64, Vec<u8>>, lost: &[u64]) -> BTreeMap<u64, Vec<u8>> {
    lost.iter().map(|pn| (*pn, packets[pn].clone())).collect()
}

#[test]
fn xor_rebuilds_any_one_packet() {
    let packets = Random(2).packets(100, 64, 300);
    let mut encoder = encoder_of(Scheme::Xor, &packets);
    let repairs = repairs_of(&mut encoder, 1);
    for pn in packets.keys() {
        assert_eq!(receive(&packets, &[*pn], &repairs), of(&packets, &[*pn]));
    }
    assert!(receive(&packets, &[100, 101], &repairs).is_empty());
    // Nothing more can be said of this window.
    assert_eq!(
        (encoder.repair_len(), encoder.repair(&mut Vec::new())),
        (None, None)
    );
    encoder.push(164, &[1]).unwrap();
    assert!(encoder.repair(&mut Vec::new()).is_some());
}

/// Every pattern of at most as many losses as repair symbols, the latter's losses included.
#[test]
fn reed_solomon_rebuilds_every_pattern() {
    let (k, n) = if cfg!(miri) { (3, 5) } else { (10, 15) };
    let packets = Random(3).packets(7, k, 40);
    let repairs = repairs_of(
        &mut encoder_of(Scheme::ReedSolomon, &packets),
        (n - k) as usize,
    );
    let mut patterns = 0;
    for pattern in 0..1_u32 << n {
        if u64::from(pattern.count_ones()) > n - k {
            continue;
        }
        patterns += 1;
        let is_lost = |i: u64| pattern >> i & 1 == 1;
        let lost: Vec<u64> = (0..k).filter(|i| is_lost(*i)).map(|i| 7 + i).collect();
        let arrived: Vec<_> = (k..n)
            .filter(|i| !is_lost(*i))
            .map(|i| repairs[(i - k) as usize].clone())
            .collect();
        assert_eq!(receive(&packets, &lost, &arrived), of(&packets, &lost));
    }
    assert_eq!(patterns, if cfg!(miri) { 16 } else { 4_944 });
}

/// Random patterns of the largest block and of the most losses that a decoder solves.
#[test]
fn reed_solomon_rebuilds_sixteen_of_the_longest_block() {
    let mut random = Random(4);
    let packets = random.packets(0, MAX_SPAN as u64, 100);
    let repairs = repairs_of(&mut encoder_of(Scheme::ReedSolomon, &packets), 128);
    let numbers: Vec<u64> = packets.keys().copied().collect();
    for _ in 0..if cfg!(miri) { 1 } else { 200 } {
        let lost = random.choose(&numbers, 16);
        let chosen = random.choose(&(0..128).collect::<Vec<usize>>(), 16);
        let arrived: Vec<_> = chosen.iter().map(|i| repairs[*i].clone()).collect();
        assert_eq!(receive(&packets, &lost, &arrived), of(&packets, &lost));
    }
}

/// The probability that a random square matrix over GF(2⁸) is regular is 0.996, and more with
/// each further row.
#[test]
#[cfg_attr(miri, ignore)]
fn rlc_rebuilds_with_the_expected_probability() {
    const TRIALS: usize = 4_000;
    let mut random = Random(5);
    let packets = random.packets(50, 64, 20);
    let numbers: Vec<u64> = packets.keys().copied().collect();
    for (lost, repairs, most, least) in [(1, 1, 0, 0), (4, 4, 32, 4), (16, 16, 32, 4), (8, 9, 1, 0)]
    {
        let mut encoder = encoder_of(Scheme::Rlc, &packets);
        let failures = (0..TRIALS)
            .filter(|_| {
                let lost = random.choose(&numbers, lost);
                let arrived = repairs_of(&mut encoder, repairs);
                receive(&packets, &lost, &arrived) != of(&packets, &lost)
            })
            .count();
        assert!(
            (least..=most).contains(&failures),
            "{lost} by {repairs}: {failures} failures"
        );
    }
}

/// With a low density some packets are in no equation, and others need no more than one.
#[test]
fn sparse_rlc_rebuilds_too() {
    let mut random = Random(6);
    let packets = random.packets(0, 32, 20);
    let numbers: Vec<u64> = packets.keys().copied().collect();
    for density in [0, 3, 7, 14] {
        let mut encoder = Encoder::new(Scheme::Rlc, 64).with_density(density);
        for (pn, packet) in &packets {
            encoder.push(*pn, packet).unwrap();
        }
        let lost = random.choose(&numbers, 5);
        let arrived = repairs_of(&mut encoder, 60);
        assert_eq!(
            receive(&packets, &lost, &arrived),
            of(&packets, &lost),
            "{density}"
        );
    }
}

/// A repair symbol is as long as the longest packet of its window, and no padding comes out.
#[test]
fn lengths_differ() {
    for scheme in Scheme::ALL {
        for lens in [
            [1, 2, 3],
            [61, 62, 63],
            [125, 126, 127],
            [1, MAX_PACKET, 1],
            [9; 3],
        ] {
            let packets: BTreeMap<u64, Vec<u8>> = (0..3)
                .zip(lens)
                .map(|(pn, len)| (pn, vec![0; len]))
                .collect();
            let mut encoder = encoder_of(scheme, &packets);
            let most = encoder.repair_len().unwrap();
            let repairs = repairs_of(&mut encoder, 1);
            let longest = 2 + lens.iter().max().unwrap();
            assert_eq!(repairs[0].len(), 5 + longest);
            assert!(repairs[0].len() <= most);
            for pn in 0..3 {
                assert_eq!(receive(&packets, &[pn], &repairs), of(&packets, &[pn]));
            }
        }
    }
}

/// Packet numbers that are no symbols: repair symbols, probes.
#[test]
fn windows_have_gaps() {
    let packets: BTreeMap<u64, Vec<u8>> = [3, 4, 9, 64, 127, 130]
        .map(|pn| (pn, vec![pn as u8; 30]))
        .into();
    for scheme in Scheme::ALL {
        let mut encoder = encoder_of(scheme, &packets);
        let window = encoder.window().unwrap();
        assert_eq!(
            (window.first(), window.last(), window.span()),
            (3, 130, 128)
        );
        assert!(window.packets().eq(packets.keys().copied()));
        assert_eq!(Window::of(window.packets()), Some(window));
        let repairs = repairs_of(&mut encoder, 1);
        // Scheme and key, first, span, mask.
        assert_eq!(repairs[0].len(), 3 + 1 + 1 + 16 + 32);
        for pn in packets.keys() {
            assert_eq!(receive(&packets, &[*pn], &repairs), of(&packets, &[*pn]));
        }
    }
    for unordered in [&[][..], &[4, 3], &[0, 128], &[0, u64::MAX]] {
        assert_eq!(Window::of(unordered.iter().copied()), None);
    }
    let highest = Window::of([u64::MAX - 1, u64::MAX]).unwrap();
    assert_eq!(
        (highest.last(), highest.packets().last()),
        (u64::MAX, Some(u64::MAX))
    );
}

#[test]
fn encoders_and_decoders_agree_on_all_kernels() {
    let mut random = Random(7);
    let packets = random.packets(0, 20, MAX_PACKET as u64);
    for scheme in Scheme::ALL {
        let mut expected = None;
        for kernel in Kernel::available() {
            let mut encoder = encoder_of(scheme, &packets).with_kernel(kernel);
            let repairs = repairs_of(&mut encoder, 1);
            assert_eq!(
                *expected.get_or_insert(repairs.clone()),
                repairs,
                "{kernel:?}"
            );
            let mut decoder = Decoder::new(64, 0).with_kernel(kernel);
            for (pn, packet) in packets.range(1..) {
                decoder.on_packet(*pn, packet);
            }
            assert_eq!(decoder.on_repair(&repairs[0]), Ok(Gain::New));
            assert_eq!(rebuilt(&mut decoder), of(&packets, &[0]));
        }
    }
}
