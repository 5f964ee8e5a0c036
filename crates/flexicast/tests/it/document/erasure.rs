//! Vectors of repair symbols.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use erasure::{Decoder, Encoder, Event, Parameters, RepairHeader, Scheme};

use crate::document::Vector;

/// Multiplication in the field, as section 5.6 defines it: of polynomials, bit by bit.
fn product(a: u8, b: u8) -> u8 {
    let mut product = 0;
    for bit in (0..8).rev() {
        let carry = product & 0x80 != 0;
        product = product << 1 ^ if carry { 0x1d } else { 0 };
        product ^= if b >> bit & 1 == 1 { a } else { 0 };
    }
    product
}

/// Holds the crate to a repair symbol: its header, its coefficients, and its sum by the definition.
pub fn check_repair(vector: &Vector, scheme: Scheme) {
    let packets: BTreeMap<u64, Vec<u8>> = (3_150..3_155)
        .filter_map(|pn| Some((pn, vector.optional_bytes(&format!("packet-{pn}"))?)))
        .collect();
    let number = |key| vector.optional(key).map_or(0, |text| text.parse().unwrap());
    let parameters = Parameters {
        key: number("key"),
        density: number("density").try_into().unwrap(),
    };
    let mut encoder = Encoder::new(scheme, 64).with_density(parameters.density);
    for (pn, packet) in &packets {
        encoder.push(*pn, packet).unwrap();
    }
    let mut repair = Vec::new();
    for _ in 0..=parameters.key {
        repair.clear();
        encoder.repair(&mut repair).unwrap();
    }
    assert_eq!(HEXLOWER.encode(&repair), vector.text("hex"));

    let (header, symbol) = RepairHeader::parse(&repair).unwrap();
    assert_eq!((header.scheme, header.parameters), (scheme, parameters));
    assert!(header.window.packets().eq(packets.keys().copied()));
    let mut coefficients = vec![0; header.window.span()];
    let code = scheme.code();
    code.write_coefficients(parameters, &mut coefficients);
    assert_eq!(HEXLOWER.encode(&coefficients), vector.text("coefficients"));
    let mut sum = vec![0; symbol.len()];
    for (pn, packet) in &packets {
        let coefficient = coefficients[(pn - header.window.first()) as usize];
        let source = [&[0, packet.len() as u8], &packet[..]].concat();
        for (sum, byte) in sum.iter_mut().zip(source) {
            *sum ^= product(coefficient, byte);
        }
    }
    assert_eq!(HEXLOWER.encode(&sum), HEXLOWER.encode(symbol));

    // Each packet with a coefficient is rebuilt from the others.
    for (lost, packet) in &packets {
        let mut decoder = Decoder::new(64, 3_150);
        for (pn, packet) in packets.iter().filter(|(pn, _)| *pn != lost) {
            decoder.on_packet(*pn, packet);
        }
        decoder.on_repair(&vector.hex()).unwrap();
        let rebuilt = Event::Rebuilt {
            pn: *lost,
            packet: packet.clone(),
        };
        let is_solved = coefficients[(lost - 3_150) as usize] != 0;
        assert_eq!(decoder.poll_event(), is_solved.then_some(rebuilt));
    }
}
