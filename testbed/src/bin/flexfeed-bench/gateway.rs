//! What the gateway inside a receiver costs: packets of a tunnel against packets of a join.

use anyhow::{Result, ensure};

use crate::figures::{Figures, median};
use crate::relay::Machine;

/// All figures of this file.
pub const NAMES: [&str; 3] = [
    "gateway_cpu_vs_direct",
    "gateway_cpu_ns",
    "gateway_direct_ns",
];

const RUNS: usize = 5;

/// Measures what is asked for.
///
/// # Errors
/// When packets are lost, or are not what was sent.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let mut machine = Machine::new()?;
    let relay = machine.relay_at().to_string();
    let send = ["--rate", "20000", "--train", "10"];
    let mut seen: [Vec<f64>; 2] = Default::default();
    for run in 1..=RUNS {
        for (how, all) in [&["--relay", &relay][..], &[]].into_iter().zip(&mut seen) {
            let (sent, drained) = machine.pass(how, &send, 2000)?;
            // A busy machine may lose some of either.
            let arrived = drained.total();
            ensure!(
                arrived * 100 > sent.packets * 95,
                "{arrived} of {} packets arrived",
                sent.packets
            );
            all.push(drained.cpu_ns as f64 / arrived as f64);
        }
        eprintln!(
            "gateway, run {run} of {RUNS}: {:.0} ns by the tunnel, {:.0} ns by the join",
            seen[0][run - 1],
            seen[1][run - 1]
        );
    }
    let [gateway, direct] = seen.map(median);
    let [ratio, cost, plain] = NAMES;
    figures.take(ratio, gateway / direct, "ratio");
    figures.take(cost, gateway, "ns");
    figures.take(plain, direct, "ns");
    machine.done();
    Ok(())
}
