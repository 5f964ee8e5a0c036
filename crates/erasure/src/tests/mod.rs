//! Tests of the codes, and what they share.

mod codes;
mod decoding;
mod field;
mod hostile;
mod streams;

use std::collections::BTreeMap;

use crate::{Decoder, Encoder, Event, Scheme};

/// Generator of test data (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes())
            .take(len.div_ceil(8))
            .flatten()
            .take(len)
            .collect()
    }

    /// `count` packets of up to `longest` bytes, from packet number `first` on.
    fn packets(&mut self, first: u64, count: u64, longest: u64) -> BTreeMap<u64, Vec<u8>> {
        (first..first + count)
            .map(|pn| {
                let len = 1 + self.below(longest) as usize;
                (pn, self.bytes(len))
            })
            .collect()
    }

    /// Some `count` of these values, in random order.
    fn choose<T: Copy>(&mut self, of: &[T], count: usize) -> Vec<T> {
        let mut left = of.to_vec();
        (0..count)
            .map(|_| left.swap_remove(self.below(left.len() as u64) as usize))
            .collect()
    }
}

/// An encoder with these packets.
fn encoder_of(scheme: Scheme, packets: &BTreeMap<u64, Vec<u8>>) -> Encoder {
    let mut encoder = Encoder::new(scheme, crate::MAX_SPAN);
    for (pn, packet) in packets {
        encoder.push(*pn, packet).unwrap();
    }
    encoder
}

fn repairs_of(encoder: &mut Encoder, count: usize) -> Vec<Vec<u8>> {
    let repair = |_| {
        let mut repair = Vec::new();
        encoder.repair(&mut repair).expect("a repair symbol");
        repair
    };
    (0..count).map(repair).collect()
}

/// Everything that was rebuilt; nothing else may have happened.
fn rebuilt(decoder: &mut Decoder) -> BTreeMap<u64, Vec<u8>> {
    let mut packets = BTreeMap::new();
    while let Some(event) = decoder.poll_event() {
        let Event::Rebuilt { pn, packet } = event else {
            panic!("{event:?}");
        };
        assert_eq!(packets.insert(pn, packet), None, "packet {pn} twice");
    }
    packets
}
