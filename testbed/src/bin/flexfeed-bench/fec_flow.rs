//! Repair symbols on a flow: what they save, in virtual time, and what they cost its source.

use anyhow::{Result, ensure};
use flexicast::fec::{FecConfig, FecPolicy};
use flexicast::protect::Algorithm;
use simulation::fec::{recovered_share, tail_delays, unicast_repairs};

use crate::figures::{Figures, median};
use crate::flow;
use crate::parcel::Parcel;

/// All figures of this file.
pub const NAMES: [&str; 6] = [
    "fec_recovered_share",
    "fec_overhead",
    "fec_unicast_repairs_ratio",
    "fec_added_delay_p99_ratio",
    "fec_off_cost",
    "fec_on_cost",
];

/// Packets in a second of the scenarios with losses.
const RATE: u64 = 1_000;
/// Members that lose 5 %, and packets sent to them.
const LOSSY: (usize, u64) = (100, 20_000);
/// Members, bytes and runs of the costs.
const MEMBERS: usize = 10;
const BYTES: usize = 20_000_000;
const RUNS: usize = 15;

/// Measures what is asked for.
///
/// # Errors
/// When a packet is rebuilt wrongly, or a member does not get everything.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [share, overhead, repairs, delay, off, on] = NAMES;
    if figures.wants(&[share, overhead]) {
        let seen = recovered_share(RATE, 1)?;
        eprintln!("1 %: {:?}, without symbols {:?}", seen.with, seen.without);
        figures.take(share, seen.with.without_repair(), "ratio");
        figures.take(overhead, seen.overhead(), "ratio");
    }
    if figures.wants(&[repairs]) {
        let (members, packets) = LOSSY;
        let seen = unicast_repairs(members, RATE, 0.05, packets, 1)?;
        eprintln!("5 %: {:?}, without symbols {:?}", seen.with, seen.without);
        figures.take(repairs, seen.ratio(), "ratio");
    }
    if figures.wants(&[delay]) {
        let seen = tail_delays(1)?;
        eprintln!("delays beyond the way, in ms: {seen:?}");
        figures.take(
            delay,
            seen.with as f64 / seen.without.max(1) as f64,
            "ratio",
        );
    }
    if figures.wants(&[off, on]) {
        let proactive = FecPolicy::Proactive {
            symbols: 1,
            packets: 20,
        };
        let configs = [FecPolicy::Adaptive, proactive].map(|policy| FecConfig {
            policy,
            ..FecConfig::default()
        });
        let mut taken = [Vec::new(), Vec::new()];
        let parcel = Parcel::new(BYTES);
        for _ in 0..RUNS {
            let cost = |fec| flow::deliver_with(MEMBERS, fec, Algorithm::default(), &parcel);
            let without = cost(None)?;
            for (taken, fec) in taken.iter_mut().zip(configs) {
                let with = cost(Some(fec))?;
                let has_symbols = with.packets > without.packets;
                ensure!(
                    has_symbols == (fec.policy != FecPolicy::Adaptive),
                    "{fec} sent {} packets, and {} without symbols",
                    with.packets,
                    without.packets
                );
                taken.push(without.generate.as_secs_f64() / with.generate.as_secs_f64());
            }
        }
        for (name, values) in [off, on].into_iter().zip(taken) {
            figures.take(name, median(values), "ratio");
        }
    }
    Ok(())
}
