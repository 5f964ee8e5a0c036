//! Any input at all.

use proptest::prelude::*;

use super::Random;
use crate::{
    Decoder, Encoder, Event, HeaderError, MAX_EVENTS, MAX_HELD, MAX_PACKET, MAX_SPAN, MAX_SYMBOL,
    MAX_UNKNOWNS, Parameters, RepairError, RepairHeader, Scheme,
};

/// Header of a repair symbol, with its fields as they come.
fn header(scheme: u8, key: u16, first: u64, span: u8, mask: &[u8]) -> Vec<u8> {
    let mut bytes = vec![scheme];
    bytes.extend(key.to_be_bytes());
    bytes.extend((0xc0 << 56 | first).to_be_bytes());
    bytes.push(span);
    bytes.extend_from_slice(mask);
    bytes
}

#[test]
fn headers_that_are_invalid_are_refused() {
    let symbol = [0, 1, 7];
    let parse =
        |header: Vec<u8>| RepairHeader::parse(&[&header[..], &symbol].concat()).map(|(h, _)| h);
    let parameters = |key, density| HeaderError::Parameters(Parameters { key, density });
    assert_eq!(
        parse(header(0x00, 0, 0, 0, &[])),
        Err(HeaderError::Scheme(0))
    );
    assert_eq!(
        parse(header(0x40, 0, 0, 0, &[])),
        Err(HeaderError::Scheme(4))
    );
    assert_eq!(parse(header(0x11, 0, 0, 0, &[])), Err(parameters(0, 1)));
    assert_eq!(parse(header(0x10, 1, 0, 0, &[])), Err(parameters(1, 0)));
    assert_eq!(parse(header(0x20, 128, 0, 0, &[])), Err(parameters(128, 0)));
    assert_eq!(parse(header(0x2f, 0, 0, 0, &[])), Err(parameters(0, 15)));
    let last = (1 << 62) - 1;
    assert_eq!(
        parse(header(0x3f, 9, last, 1, &[])),
        Err(HeaderError::Window)
    );
    assert!(parse(header(0x3f, 9, last, 0, &[])).is_ok());
    assert!(parse(header(0x30, 65_535, last - 127, 127, &[])).is_ok());
    // The first and the last packet are in the mask, and nothing behind.
    for (span, mask, is_valid) in [
        (0x80, &[1][..], true),
        (0x80, &[0], false),
        (0x80, &[3], false),
        (0x82, &[5], true),
        (0x82, &[7], true),
        (0x82, &[4], false),
        (0x82, &[1], false),
        (0x82, &[13], false),
        (0x88, &[1, 1], true),
        (0x88, &[1, 2], false),
        (0xff, &[255; 16], true),
    ] {
        let parsed = parse(header(0x10, 0, 3, span, mask));
        assert_eq!(parsed.is_ok(), is_valid, "{span:#x} {mask:?}: {parsed:?}");
    }
    let whole = [&header(0x10, 0, 3, 0x88, &[1, 1])[..], &symbol].concat();
    for end in 0..whole.len() {
        let cut = RepairHeader::parse(&whole[..end]);
        let expected = match end {
            14.. => HeaderError::Length(end - 14),
            _ => HeaderError::Cut,
        };
        assert_eq!(cut, Err(expected), "{end} bytes");
    }
    for len in [MAX_SYMBOL, MAX_SYMBOL + 1] {
        let bytes = [header(0x10, 0, 3, 0, &[]), vec![0; len]].concat();
        assert_eq!(RepairHeader::parse(&bytes).is_ok(), len == MAX_SYMBOL);
    }
}

fn check_bounds(decoder: &Decoder) {
    let (unknowns, equations) = decoder.unknowns();
    assert!(unknowns <= MAX_UNKNOWNS && equations <= unknowns);
    assert!(decoder.held() <= MAX_HELD);
}

/// Valid headers in front of random symbols, over few packets, so that equations meet: they
/// contradict each other all the time.
#[test]
fn contradicting_symbols_stay_within_bounds() {
    let mut random = Random(15);
    let mut decoder = Decoder::new(MAX_SPAN, 0);
    let mut reached = [0; 5];
    let mut last = Vec::new();
    for _ in 0..if cfg!(miri) { 200 } else { 60_000 } {
        let pn = random.below(300);
        if random.below(3) == 0 {
            let len = 1 + random.below(100) as usize;
            decoder.on_packet(pn, &random.bytes(len));
        } else {
            let mut mask = random.next() & random.next() & random.next() | 1;
            if random.below(4) == 0 {
                mask |= random.next();
            }
            let span = 0x80 | (63 - mask.leading_zeros() as u8);
            let scheme = [0x10, 0x20, 0x30, 0x37, 0x3f][random.below(5) as usize];
            let key = if scheme == 0x10 {
                0
            } else {
                random.below(128) as u16
            };
            let bytes = usize::from(span & 0x7f) / 8 + 1;
            let mut repair = header(scheme, key, pn, span, &mask.to_le_bytes()[..bytes]);
            // Some are longer than all packets, and some are genuine where nothing is missing.
            let len = 3 + random.below(120) as usize;
            repair.extend(if random.below(2) == 0 {
                vec![0; len]
            } else {
                random.bytes(len)
            });
            // The same equation with another result.
            if random.below(4) == 0 && !last.is_empty() {
                repair = std::mem::take(&mut last);
                *repair.last_mut().unwrap() ^= 1;
            }
            last.clone_from(&repair);
            reached[match decoder.on_repair(&repair) {
                Ok(_) => 0,
                Err(RepairError::Short(_)) => 1,
                Err(RepairError::Unknowns) => 2,
                Err(RepairError::Contradiction) => 3,
                Err(error) => panic!("{error}"),
            }] += 1;
        }
        check_bounds(&decoder);
        while let Some(event) = decoder.poll_event() {
            match event {
                Event::Rebuilt { packet, .. } => assert!((1..=MAX_PACKET).contains(&packet.len())),
                Event::Invalid { .. } => reached[4] += 1,
            }
        }
    }
    assert!(
        cfg!(miri) || reached.iter().all(|count| *count > 20),
        "{reached:?}"
    );
}

#[test]
fn events_that_are_not_taken_stay_within_bounds() {
    let mut decoder = Decoder::new(64, 0);
    for pn in 0..1_000 {
        let repair = [&header(0x10, 0, pn, 0, &[])[..], &[0, 1, 7]].concat();
        decoder.on_repair(&repair).unwrap();
    }
    let events = std::iter::from_fn(|| decoder.poll_event());
    let numbers: Vec<u64> = events
        .map(|event| match event {
            Event::Rebuilt { pn, .. } => pn,
            event => panic!("{event:?}"),
        })
        .collect();
    assert!(numbers.iter().copied().eq(1_000 - MAX_EVENTS as u64..1_000));
    assert_eq!(decoder.held(), 128);
}

/// A forged packet number far ahead costs one packet, and nothing that comes behind it.
#[test]
fn gaps_of_packet_numbers_block_nothing() {
    let mut random = Random(16);
    let packets = random.packets(1_000, 64, 50);
    let mut encoder = Encoder::new(Scheme::Rlc, 64);
    let mut decoder = Decoder::new(64, 0);
    for (pn, packet) in &packets {
        encoder.push(*pn, packet).unwrap();
        if *pn != 1_007 {
            decoder.on_packet(*pn, packet);
        }
        if *pn == 1_030 {
            decoder.on_packet((1 << 62) - 1, b"forged");
            let far = header(0x3f, 1, 1 << 61, 15, &[]);
            decoder.on_repair(&[far, vec![7; 50]].concat()).unwrap();
        }
    }
    // The forged packet is in the place of packet 1,023.
    let mut rebuilt = Vec::new();
    for _ in 0..2 {
        let mut repair = Vec::new();
        encoder.repair(&mut repair).unwrap();
        decoder.on_repair(&repair).unwrap();
    }
    while let Some(event) = decoder.poll_event() {
        rebuilt.push(event);
    }
    let expected = [1_007, 1_023].map(|pn| Event::Rebuilt {
        pn,
        packet: packets[&pn].clone(),
    });
    assert!(rebuilt.len() == 2 && expected.iter().all(|event| rebuilt.contains(event)));
}

/// Bytes, and the packet number that they come with.
fn any_input() -> impl Strategy<Value = (Option<u64>, Vec<u8>)> {
    (
        any::<Option<u64>>(),
        prop::collection::vec(any::<u8>(), 0..60),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 500 }))]

    #[test]
    fn any_bytes_are_survived(
        inputs in prop::collection::vec(any_input(), 0..60),
        span in 0..200_usize,
        first: u64,
    ) {
        let mut decoder = Decoder::new(span, first >> 32);
        for (pn, bytes) in inputs {
            if let Some(pn) = pn {
                decoder.on_packet(pn, &bytes);
            }
            let _ = decoder.on_repair(&bytes);
            check_bounds(&decoder);
        }
        decoder.begin_epoch(first);
        prop_assert_eq!((decoder.held(), decoder.unknowns()), (0, (0, 0)));
    }

    /// A header reads as it was written.
    #[test]
    fn headers_are_read_as_written(
        density in 0..16_u8,
        key: u16,
        first in 0..1_u64 << 61,
        mask: u128,
        symbol in prop::collection::vec(any::<u8>(), 3..10),
    ) {
        let packets = (0..128).filter(|i| mask >> i & 1 == 1).map(|i| first + i);
        let Some(window) = crate::Window::of(packets) else {
            return Ok(());
        };
        let parameters = Parameters { key, density };
        let header = RepairHeader { scheme: Scheme::Rlc, parameters, window };
        let mut bytes = Vec::new();
        header.append_to(&mut bytes);
        prop_assert!(bytes.len() <= crate::MAX_REPAIR_HEADER);
        bytes.extend_from_slice(&symbol);
        prop_assert_eq!(RepairHeader::parse(&bytes), Ok((header, &symbol[..])));
    }
}
