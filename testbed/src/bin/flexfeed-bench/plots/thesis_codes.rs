//! Tables 4.1 to 4.10 of "Improving QUIC" (F. Michel, 2018): what it costs to encode and to decode.

use anyhow::{Result, ensure};
use erasure::{Decoder, Encoder, Event, Kernel, MAX_UNKNOWNS, Scheme};
use serde::{Deserialize, Serialize};

use super::document::Document;
use crate::fec::{fastest_of, packets_of};

/// Bytes of a source symbol, and of the packet in it.
const SYMBOL: usize = 1_000;
const PACKET: usize = SYMBOL - 2;
const RUNS: usize = 50;

/// Times of an operation in the thesis, in ns.
#[derive(Debug, Clone, Copy)]
struct Thesis {
    /// As it is meant to be used.
    ns: u32,
    /// Without the optimisation that its section is about: words instead of bytes with XOR, kept
    /// encoders with Reed–Solomon.
    plain: Option<u32>,
}

/// Parameters of a code, with the thesis's times of both operations.
#[derive(Debug, Clone, Copy)]
struct Case {
    scheme: Scheme,
    /// Symbols of a block, or sent for each `k` packets.
    n: usize,
    /// Packets of a block, or between symbols.
    k: usize,
    /// Packets of the window.
    window: usize,
    encode: Thesis,
    decode: Thesis,
}

const fn thesis(ns: u32, plain: u32) -> Thesis {
    let plain = Some(plain);
    Thesis { ns, plain }
}

const fn block(scheme: Scheme, n: usize, k: usize, encode: Thesis, decode: Thesis) -> Case {
    Case {
        scheme,
        n,
        k,
        window: k,
        encode,
        decode,
    }
}

const fn sliding(window: usize, encode: u32, decode: u32) -> Case {
    let (encode, decode) = (
        Thesis {
            ns: encode,
            plain: None,
        },
        Thesis {
            ns: decode,
            plain: None,
        },
    );
    Case {
        scheme: Scheme::Rlc,
        n: 3,
        k: 2,
        window,
        encode,
        decode,
    }
}

const CASES: [Case; 13] = [
    sliding(4, 21_260, 15_332),
    sliding(8, 40_275, 41_986),
    sliding(20, 97_472, 353_654),
    sliding(40, 192_123, 2_211_082),
    block(
        Scheme::Xor,
        5,
        4,
        thesis(2_031, 9_013),
        thesis(1_863, 8_958),
    ),
    block(
        Scheme::Xor,
        9,
        8,
        thesis(4_282, 20_196),
        thesis(3_504, 18_939),
    ),
    block(
        Scheme::Xor,
        21,
        20,
        thesis(11_431, 54_198),
        thesis(8_097, 49_672),
    ),
    block(
        Scheme::Xor,
        41,
        40,
        thesis(23_454, 110_603),
        thesis(16_176, 103_315),
    ),
    block(
        Scheme::ReedSolomon,
        5,
        4,
        thesis(1_757, 4_522),
        thesis(3_287, 8_444),
    ),
    block(
        Scheme::ReedSolomon,
        6,
        4,
        thesis(2_738, 5_756),
        thesis(4_340, 9_660),
    ),
    block(
        Scheme::ReedSolomon,
        13,
        10,
        thesis(6_998, 21_458),
        thesis(8_590, 28_685),
    ),
    block(
        Scheme::ReedSolomon,
        20,
        15,
        thesis(14_923, 54_276),
        thesis(16_239, 66_868),
    ),
    block(
        Scheme::ReedSolomon,
        50,
        30,
        thesis(101_043, 99_370),
        thesis(145_624, 431_735),
    ),
];

impl Case {
    /// Returns the number of packets that are lost, and of symbols that rebuild them.
    fn lost(&self) -> usize {
        match self.scheme {
            Scheme::Rlc => self.window / 3,
            _ => (self.n - self.k).min(MAX_UNKNOWNS),
        }
    }

    fn name(&self) -> String {
        let Case { n, k, window, .. } = self;
        match self.scheme {
            Scheme::Rlc => format!("RLC ({n}, {k}, {window})"),
            Scheme::ReedSolomon => format!("Reed–Solomon ({n}, {k})"),
            Scheme::Xor => format!("XOR ({n}, {k})"),
        }
    }

    /// Returns the ns of an encoding: of a block, or with RLC of the `k` packets between symbols
    /// and the symbols behind them, of a window that is full.
    fn encode_ns(&self, kernel: Kernel, runs: usize) -> Result<f64> {
        let Case { n, k, window, .. } = *self;
        let packets = packets_of(window, PACKET);
        let mut encoder = Encoder::new(self.scheme, window).with_kernel(kernel);
        let mut numbered = (0..).zip(packets.iter().cycle());
        for (pn, packet) in numbered.by_ref().take(window) {
            encoder.push(pn, packet)?;
        }
        let mut made = vec![Vec::new(); n - k];
        let mut is_whole = true;
        let time = fastest_of(runs, || {
            if self.scheme != Scheme::Rlc {
                encoder.clear();
            }
            for (pn, packet) in numbered.by_ref().take(k) {
                is_whole &= encoder.push(pn, packet).is_ok();
            }
            for symbol in &mut made {
                symbol.clear();
                is_whole &= encoder.repair(symbol).is_some();
            }
        });
        ensure!(is_whole, "{}: not all symbols were made", self.name());
        Ok(time)
    }

    /// Returns the ns of a decoding: of all packets and symbols of a window, from which every lost
    /// packet is rebuilt.
    fn decode_ns(&self, kernel: Kernel, runs: usize) -> Result<f64> {
        let packets = packets_of(self.window, PACKET);
        let mut encoder = Encoder::new(self.scheme, self.window).with_kernel(kernel);
        let numbered = || (0..).zip(&packets);
        for (pn, packet) in numbered() {
            encoder.push(pn, packet)?;
        }
        let mut symbols = vec![Vec::new(); self.lost()];
        for symbol in &mut symbols {
            ensure!(
                encoder.repair(symbol).is_some(),
                "{}: too few symbols",
                self.name()
            );
        }
        // Losses are spread over the window.
        let is_lost = |pn: u64| {
            let share = |pn: u64| pn as usize * self.lost() / self.window;
            share(pn + 1) > share(pn)
        };
        let mut decoder = Decoder::new(self.window, 0).with_kernel(kernel);
        let mut rebuilt = Vec::new();
        let time = fastest_of(runs, || {
            rebuilt.clear();
            decoder.begin_epoch(0);
            for (pn, packet) in numbered().filter(|(pn, _)| !is_lost(*pn)) {
                decoder.on_packet(pn, packet);
            }
            for symbol in &symbols {
                let _ = decoder.on_repair(symbol);
            }
            rebuilt.extend(std::iter::from_fn(|| decoder.poll_event()));
        });
        let lost = numbered().filter(|(pn, _)| is_lost(*pn));
        let missing = lost
            .map(|(pn, packet)| Event::Rebuilt {
                pn,
                packet: packet.clone(),
            })
            .filter(|event| !rebuilt.contains(event));
        let missing = missing.count();
        ensure!(
            missing == 0 && rebuilt.len() == self.lost(),
            "{}: {missing} packets were not rebuilt",
            self.name()
        );
        Ok(time)
    }
}

/// Times of one kernel, in ns, in the order of the cases.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Times {
    kernel: String,
    encode: Vec<f64>,
    decode: Vec<f64>,
}

/// Measures all kernels of this processor.
///
/// # Errors
/// A packet was not rebuilt.
pub fn measure() -> Result<Vec<Times>> {
    Kernel::available()
        .map(|kernel| measure_cases(&CASES, kernel, RUNS))
        .collect()
}

fn measure_cases(cases: &[Case], kernel: Kernel, runs: usize) -> Result<Times> {
    eprintln!("codes, {}", kernel.name());
    let encode = cases.iter().map(|case| case.encode_ns(kernel, runs));
    let decode = cases.iter().map(|case| case.decode_ns(kernel, runs));
    Ok(Times {
        kernel: kernel.name().to_owned(),
        encode: encode.collect::<Result<_>>()?,
        decode: decode.collect::<Result<_>>()?,
    })
}

/// Writes the tables.
///
/// # Errors
/// The document cannot be written.
pub fn publish(times: &[Times], document: &mut Document) -> Result<()> {
    let rows = |encodes: bool| {
        let mut head: Vec<String> = ["Code", "Lost", "Thesis, plain", "Thesis"]
            .map(str::to_owned)
            .to_vec();
        if encodes {
            head.remove(1);
        }
        head.extend(times.iter().map(|times| times.kernel.clone()));
        head.push("Thesis over fastest".to_owned());
        let mut rows = vec![head];
        for (case, at) in CASES.iter().zip(0..) {
            let (thesis, of) = match encodes {
                true => (
                    case.encode,
                    (|times| &times.encode) as fn(&Times) -> &Vec<f64>,
                ),
                false => (
                    case.decode,
                    (|times| &times.decode) as fn(&Times) -> &Vec<f64>,
                ),
            };
            let mut row = vec![case.name()];
            if !encodes {
                row.push(case.lost().to_string());
            }
            let plain = thesis.plain.map(|ns| ns.to_string());
            row.extend([plain.unwrap_or_default(), thesis.ns.to_string()]);
            let all: Vec<f64> = times
                .iter()
                .filter_map(|times| of(times).get(at).copied())
                .collect();
            row.extend(all.iter().map(|ns| format!("{ns:.0}")));
            let fastest = all.last().copied().unwrap_or(f64::NAN);
            row.push(format!("{:.1}", f64::from(thesis.ns) / fastest));
            rows.push(row);
        }
        rows
    };
    document.set_table("codes encoding", &rows(true))?;
    document.set_table("codes decoding", &rows(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of the tables: costs grow with the window, those of decoding by RLC faster than
    /// those of encoding, and vectors pay.
    #[test]
    fn costs_have_the_shape_of_the_thesis() {
        let [small, large] = [CASES[0], CASES[3]];
        let solomon = CASES[11];
        let cases = [small, large, solomon];
        let fastest = measure_cases(&cases, Kernel::detect(), 20).unwrap();
        let portable = measure_cases(&cases, Kernel::PORTABLE, 20).unwrap();
        let growth = |times: &[f64]| times[1] / times[0];
        let [encode, decode] = [growth(&portable.encode), growth(&portable.decode)];
        assert!((4.0..25.0).contains(&encode), "{encode}");
        assert!(decode > 3.0 * encode, "{decode} and {encode}");
        if Kernel::detect() != Kernel::PORTABLE {
            assert!(fastest.encode[2] * 1.5 < portable.encode[2], "{fastest:?}");
            assert!(fastest.decode[2] * 1.5 < portable.decode[2], "{fastest:?}");
        }
    }

    /// More losses than a decoder has unknowns are not rebuilt, and the measurement says so.
    #[test]
    fn a_window_that_cannot_be_decoded_is_an_error() {
        let case = sliding(60, 0, 0);
        assert_eq!(case.lost(), 20);
        let error = case.decode_ns(Kernel::PORTABLE, 1).unwrap_err();
        assert!(error.to_string().contains("not rebuilt"), "{error}");
        assert_eq!(CASES[12].lost(), MAX_UNKNOWNS);
    }
}
