//! A thousand receivers of `flexfeed-swarm` over real sockets, with the source's default timing.

use std::time::Duration;

use anyhow::{Context, Result};
use testbed::scenario::{Plan, Stage, Swarm, SwarmSummary};
use testbed::waiting::pause;

use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 2] = ["swarm_1000_p99_ms", "swarm_1000_by_flow"];

const RUNS: usize = 3;
const RECEIVERS: u64 = 1_000;
/// Updates per second, and how often the source looks for them, in seconds: as often as it may.
const RATE: f64 = 50.0;
const POLL_INTERVAL: f64 = 0.05;
/// Between two runs.
const QUIET: Duration = Duration::from_secs(2);

/// Measures what is asked for.
///
/// # Errors
/// When the scenario cannot be played, or an update did not arrive everywhere, once and in order.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let (mut p99, mut by_flow) = (Vec::new(), Vec::new());
    for run in 1..=RUNS {
        let seen = play().context("a swarm of 1,000 receivers")?;
        eprintln!(
            "swarm, run {run} of {RUNS}: {:?}, {:?}, fall-backs {:?}",
            seen.latency_ms, seen.via, seen.fall_backs
        );
        p99.push(seen.latency_ms.p99);
        by_flow.push(seen.via.by_flow());
        pause(QUIET);
    }
    let [latency, flow] = NAMES;
    figures.take(latency, median(p99), "ms");
    figures.take(flow, median(by_flow), "ratio");
    Ok(())
}

fn play() -> Result<SwarmSummary> {
    let mut plan = Plan::new("bench-swarm", None).with_default_timing();
    plan.seats.clear();
    plan.poll_interval = POLL_INTERVAL;
    plan.new_at_once = 25;
    let mut seen = None;
    Stage::play(plan, |stage| {
        stage.set_rate(RATE)?;
        let more = ["--duration", "10s"];
        let mut swarm = Swarm::start(stage, "swarm", RECEIVERS, 1, &more)?;
        seen = Some(swarm.finish(stage)?);
        stage.set_rate(0.0)
    })?;
    seen.context("the scenario ended without a result")
}
