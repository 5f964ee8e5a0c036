//! Cost of the gateway inside a receiver: packets of a tunnel against packets of a join.

use anyhow::{Context, Result, ensure};

use crate::figures::{Figures, median};
use crate::processor::OneProcessor;
use crate::relay::Machine;

/// All figures of this file.
pub const NAMES: [&str; 3] = [
    "gateway_cpu_vs_direct",
    "gateway_cpu_ns",
    "gateway_direct_ns",
];

/// Each has both ways, one right after the other.
const RUNS: usize = 15;
/// Measurement time of a path in one run, in ms.
const TIME: u64 = 1000;

/// Measures what is asked for.
///
/// # Errors
/// When packets are lost, or are not what was sent.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let _one = OneProcessor::begin().context("keeping to one processor")?;
    let mut machine = Machine::new()?;
    let relay = machine.relay_at().to_string();
    let mut cost = |how: &[&str]| -> Result<f64> {
        let send = ["--rate", "20000", "--train", "10"];
        let (sent, drained) = machine.pass(how, &send, TIME)?;
        // A busy machine may lose some of either.
        let arrived = drained.total();
        ensure!(
            arrived * 100 > sent.packets * 80,
            "{arrived} of {} packets arrived",
            sent.packets
        );
        Ok(drained.cpu_ns as f64 / arrived as f64)
    };
    let mut seen: [Vec<f64>; 3] = Default::default();
    for run in 1..=RUNS {
        let tunnel = ["--relay", relay.as_str()];
        // Each goes first in every other run: what the machine does otherwise comes and goes.
        let (gateway, direct) = if run % 2 == 0 {
            let direct = cost(&[])?;
            (cost(&tunnel)?, direct)
        } else {
            (cost(&tunnel)?, cost(&[])?)
        };
        eprintln!(
            "gateway, run {run} of {RUNS}: {gateway:.0} ns by the tunnel, {direct:.0} ns by the \
             join"
        );
        for (all, value) in seen.iter_mut().zip([gateway / direct, gateway, direct]) {
            all.push(value);
        }
    }
    let [ratio, gateway, direct] = seen.map(median);
    let [name, of_gateway, of_direct] = NAMES;
    figures.take(name, ratio, "ratio");
    figures.take(of_gateway, gateway, "ns");
    figures.take(of_direct, direct, "ns");
    machine.done();
    Ok(())
}
