//! Cost of erasure codes: beside a plain XOR of the same bytes, and beside another implementation
//! of Reed–Solomon.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use erasure::{Decoder, Encoder, Event, Scheme};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use crate::figures::Figures;

/// All figures of this file.
pub const NAMES: [&str; 6] = [
    "fec_rlc_ns_per_symbol",
    "fec_xor_ns_per_symbol",
    "fec_rlc_vs_xor",
    "fec_push_ns",
    "fec_rs_vs_crate",
    "fec_rs_rebuild_vs_crate",
];

/// Length of a symbol, and of the packet in it.
const SYMBOL: usize = 1_200;
const PACKET: usize = SYMBOL - 2;
/// Packets of a sliding window.
const WINDOW: usize = 100;
/// Packets and repair symbols of a block.
const BLOCK: (usize, usize) = (20, 4);
const RUNS: usize = 50;
/// Time of one run, roughly: short enough that some are not interrupted.
const RUN: Duration = Duration::from_millis(2);

/// Bytes that no vector load splits between cache lines, as in the codes.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned([u8; SYMBOL.next_multiple_of(64)]);

/// Measures what is asked for.
///
/// # Errors
/// When a side did not rebuild the packets.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let [rlc, xor, ratio, push, encode, rebuild] = NAMES;
    if figures.wants(&[rlc, xor, ratio]) {
        let (of_rlc, of_xor) = (rlc_ns()?, xor_ns());
        figures.take(rlc, of_rlc, "ns");
        figures.take(xor, of_xor, "ns");
        figures.take(ratio, of_rlc / of_xor, "ratio");
    }
    if figures.wants(&[push]) {
        let (packets, mut pn) = (packets(WINDOW), 0);
        let mut encoder = Encoder::new(Scheme::Rlc, erasure::DEFAULT_SPAN);
        let each = fastest(|| {
            for packet in &packets {
                let _ = encoder.push(pn, packet);
                pn += 1;
            }
        });
        figures.take(push, each / WINDOW as f64, "ns");
    }
    if figures.wants(&[encode, rebuild]) {
        let [ours, theirs] = [block_ns()?, crate_ns()?];
        eprintln!("blocks, encoding and rebuilding, in ns: {ours:.0?}, the crate {theirs:.0?}");
        figures.take(encode, theirs[0] / ours[0], "ratio");
        figures.take(rebuild, theirs[1] / ours[1], "ratio");
    }
    Ok(())
}

/// Returns the nanoseconds of a piece of work: the least of several runs.
fn fastest(work: impl FnMut()) -> f64 {
    fastest_of(RUNS, work)
}

/// Returns the nanoseconds of a piece of work: the least of so many runs.
pub fn fastest_of(runs: usize, mut work: impl FnMut()) -> f64 {
    let begun = Instant::now();
    work();
    let times = (RUN.as_nanos() / begun.elapsed().as_nanos().max(1)).clamp(1, 100_000) as u32;
    let run = |_| {
        let begun = Instant::now();
        (0..times).for_each(|_| work());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(times)
    };
    (0..runs).map(run).fold(f64::INFINITY, f64::min)
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    packets_of(count, PACKET)
}

/// Returns so many different packets of so many bytes.
pub fn packets_of(count: usize, len: usize) -> Vec<Vec<u8>> {
    let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 11) as u8;
    (0..count)
        .map(|n| (0..len).map(|i| byte(n * len + i)).collect())
        .collect()
}

/// Nanoseconds for each packet of the window of a repair symbol by RLC, each behind another packet.
fn rlc_ns() -> Result<f64> {
    let packets = packets(WINDOW);
    let mut encoder = Encoder::new(Scheme::Rlc, WINDOW);
    let mut numbered = (0..).zip(packets.iter().cycle());
    for (pn, packet) in numbered.by_ref().take(WINDOW) {
        encoder.push(pn, packet)?;
    }
    let mut repair = Vec::new();
    let each = fastest(|| {
        if let Some((pn, packet)) = numbered.next() {
            let _ = encoder.push(pn, packet);
        }
        repair.clear();
        encoder.repair(&mut repair);
    });
    let window = encoder.window().context("an empty window")?;
    let mut decoder = Decoder::new(WINDOW, window.first());
    for pn in window.packets().skip(1) {
        decoder.on_packet(pn, &packets[pn as usize % WINDOW]);
    }
    decoder.on_repair(&repair)?;
    let packet = packets[window.first() as usize % WINDOW].clone();
    let pn = window.first();
    let rebuilt = decoder.poll_event() == Some(Event::Rebuilt { pn, packet });
    ensure!(rebuilt, "a packet was not rebuilt by RLC");
    Ok(each / WINDOW as f64)
}

/// The same for their sum without coefficients, by the compiler's own vectors.
fn xor_ns() -> f64 {
    let mut sources = vec![Aligned([0; _]); WINDOW];
    for (source, packet) in sources.iter_mut().zip(packets(WINDOW)) {
        source.0[2..SYMBOL].copy_from_slice(&packet);
    }
    let mut sum = Aligned([0; _]);
    fastest(|| {
        for source in black_box(&sources) {
            add(&mut sum.0[..SYMBOL], &source.0[..SYMBOL]);
        }
        black_box(&mut sum);
    }) / WINDOW as f64
}

fn add(sum: &mut [u8], source: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the instructions were detected.
        return unsafe { add_avx2(sum, source) };
    }
    add_plain(sum, source);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(sum: &mut [u8], source: &[u8]) {
    add_plain(sum, source);
}

#[inline(always)]
fn add_plain(sum: &mut [u8], source: &[u8]) {
    for (sum, source) in sum.iter_mut().zip(source) {
        *sum ^= source;
    }
}

/// Nanoseconds to encode a block, and to rebuild as many packets of it as it has repair symbols.
fn block_ns() -> Result<[f64; 2]> {
    let (count, repairs) = BLOCK;
    let packets = packets(count);
    let mut encoder = Encoder::new(Scheme::ReedSolomon, count);
    let mut made = vec![Vec::new(); repairs];
    let mut first = 0;
    let encode = fastest(|| {
        encoder.clear();
        first += count as u64;
        for (pn, packet) in (first..).zip(&packets) {
            let _ = encoder.push(pn, packet);
        }
        for repair in &mut made {
            repair.clear();
            encoder.repair(repair);
        }
    });
    let mut decoder = Decoder::new(count, 0);
    let mut rebuilt = Vec::new();
    let rebuild = fastest(|| {
        rebuilt.clear();
        decoder.begin_epoch(first);
        for (pn, packet) in (first..).zip(&packets).skip(repairs) {
            decoder.on_packet(pn, packet);
        }
        for repair in &made {
            let _ = decoder.on_repair(repair);
        }
        rebuilt.extend(std::iter::from_fn(|| decoder.poll_event()));
    });
    let expected = (first..).zip(&packets).take(repairs).map(|(pn, packet)| {
        let packet = packet.clone();
        Event::Rebuilt { pn, packet }
    });
    let missing = expected.filter(|event| !rebuilt.contains(event)).count();
    ensure!(
        missing == 0,
        "{missing} packets of a block were not rebuilt"
    );
    Ok([encode, rebuild])
}

/// The same by the crate `reed-solomon-simd`.
fn crate_ns() -> Result<[f64; 2]> {
    let (count, repairs) = BLOCK;
    let mut symbols = packets(count);
    symbols
        .iter_mut()
        .for_each(|packet| packet.resize(SYMBOL, 0));
    let mut encoder = ReedSolomonEncoder::new(count, repairs, SYMBOL)?;
    let mut made = vec![Vec::new(); repairs];
    let mut failed = None;
    let encode = fastest(|| {
        let mut run = || {
            for symbol in &symbols {
                encoder.add_original_shard(symbol)?;
            }
            for (repair, symbol) in made.iter_mut().zip(encoder.encode()?.recovery_iter()) {
                repair.clear();
                repair.extend_from_slice(symbol);
            }
            Ok::<_, reed_solomon_simd::Error>(())
        };
        failed = failed.take().or(run().err());
    });
    let mut decoder = ReedSolomonDecoder::new(count, repairs, SYMBOL)?;
    let mut rebuilt = Vec::new();
    let rebuild = fastest(|| {
        rebuilt.clear();
        let mut run = || {
            for (i, symbol) in symbols.iter().enumerate().skip(repairs) {
                decoder.add_original_shard(i, symbol)?;
            }
            for (i, repair) in made.iter().enumerate() {
                decoder.add_recovery_shard(i, repair)?;
            }
            let restored = decoder.decode()?;
            rebuilt.extend(
                restored
                    .restored_original_iter()
                    .map(|(i, s)| (i, s.to_vec())),
            );
            Ok::<_, reed_solomon_simd::Error>(())
        };
        failed = failed.take().or(run().err());
    });
    if let Some(error) = failed {
        return Err(error).context("the crate's Reed-Solomon");
    }
    let expected = symbols.iter().take(repairs).enumerate();
    let missing =
        expected.filter(|(i, symbol)| !rebuilt.iter().any(|(j, s)| i == j && s == *symbol));
    ensure!(
        missing.count() == 0,
        "the crate did not rebuild its packets"
    );
    Ok([encode, rebuild])
}
