//! Delays of a receiver whose multicast is cut in mid-stream: scenario b of the testbed, with the
//! real services and the default fall-back delay.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use testbed::delivery::{check_once_in_order, longest_gap_ms};
use testbed::lab::Multicast;
use testbed::scenario::{PATIENCE, Plan, QUICK_ACK_MS, Stage};
use testbed::status::Move;
use testbed::waiting::pause;

use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 4] = [
    "fallback_ms",
    "fallback_flaps",
    "largest_gap_ms",
    "return_ms",
];

const RUNS: usize = 3;
/// Updates per second while it happens, and how often the source looks for them, in seconds: as
/// often as it may.
const RATE: f64 = 40.0;
const POLL_INTERVAL: f64 = 0.05;
/// `D_fb`, the default.
const FALL_BACK_MS: u32 = 150;
/// Quiet times before the cut, between cut and restoration, and after it. The middle one exceeds
/// the back-off after a short membership.
const QUIET: Duration = Duration::from_secs(2);
const CUT: Duration = Duration::from_secs(3);

/// Result of one run.
#[derive(Debug)]
struct Observations {
    fallback_ms: f64,
    /// Moves beyond one down and one up, of any receiver.
    flaps: f64,
    largest_gap_ms: f64,
    return_ms: f64,
}

/// Measures what is asked for.
///
/// # Errors
/// When the scenario cannot be played, or an update did not arrive once and in order.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let mut runs = Vec::new();
    for run in 1..=RUNS {
        let seen = play().context("the scenario of a receiver that is cut off")?;
        eprintln!("cut receiver, run {run} of {RUNS}: {seen:.0?}");
        runs.push(seen);
    }
    let taken = |value: fn(&Observations) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    let worst = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    let [fallback, flaps, gap, back] = NAMES;
    figures.take(fallback, median(taken(|s| s.fallback_ms)), "ms");
    figures.take(flaps, worst(taken(|s| s.flaps)), "moves");
    figures.take(gap, median(taken(|s| s.largest_gap_ms)), "ms");
    figures.take(back, median(taken(|s| s.return_ms)), "ms");
    Ok(())
}

fn play() -> Result<Observations> {
    let mut plan = Plan::new("bench-cut", None);
    plan.poll_interval = POLL_INTERVAL;
    plan.fall_back_ms = FALL_BACK_MS;
    plan.ack_delay_ms = QUICK_ACK_MS;
    let mut seen = None;
    Stage::play(plan, |stage| {
        seen = Some(cut_and_restore(stage)?);
        Ok(())
    })?;
    seen.context("the scenario ended without a result")
}

fn cut_and_restore(stage: &mut Stage) -> Result<Observations> {
    const ALL: [&str; 3] = ["r1", "r2", "r3"];
    stage.wait_rung(&ALL, "multicast")?;
    let before = stage.settle()?;
    let moves_before = stage.source_status_now()?.moves.len();
    stage.set_rate(RATE)?;
    pause(QUIET);

    // From before the port is closed or opened, so that no figure is better than it was: this
    // includes the few milliseconds that the command takes.
    let cut_at = unix_ms();
    stage.set_multicast("r1", Multicast::Cut)?;
    let fallen_at = stage.wait("the fall-back of r1", PATIENCE, |stage| {
        Ok(move_after(stage, "unicast", cut_at))
    })?;
    pause(CUT);

    let restored_at = unix_ms();
    stage.set_multicast("r1", Multicast::Open)?;
    let returned_at = stage.wait("the return of r1", PATIENCE, |stage| {
        Ok(move_after(stage, "multicast", restored_at))
    })?;
    pause(QUIET);
    stage.set_rate(0.0)?;
    let last = stage.settle()?;

    let moves = stage.source_status_now()?.moves.len() - moves_before;
    ensure!(moves >= 2, "{moves} moves, but r1 fell back and returned");
    for name in ALL {
        check_once_in_order(&stage.seat(name)?.deliveries()?, last).context(name)?;
    }
    // The first update of the stream ends a silence that is none.
    let gap = longest_gap_ms(&stage.seat("r1")?.deliveries()?, before + 1);
    Ok(Observations {
        fallback_ms: fallen_at - cut_at,
        flaps: (moves - 2) as f64,
        largest_gap_ms: gap,
        return_ms: returned_at - restored_at,
    })
}

/// When the source moved r1 to `rung`, after a moment.
fn move_after(stage: &Stage, rung: &str, after_ms: f64) -> Option<f64> {
    let status = stage.source_status()?;
    let is_it = |step: &&&Move| step.to == rung && step.at_ms >= after_ms;
    let moves = status.moves_of("r1");
    moves.iter().find(is_it).map(|step| step.at_ms)
}

fn unix_ms() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |age| age.as_secs_f64() * 1000.0)
}
