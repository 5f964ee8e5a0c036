//! The failure experiment of the Flexicast QUIC paper, in full, at three fall-back delays: scenario
//! k of the testbed.

use anyhow::{Context, Result};
use testbed::scenario::{CcrObservations, CcrPlan, Failure, play_ccr};
use testbed::urgent::RealTime;

use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 27] = [
    "ccr_extra_p99_ms_d50",
    "ccr_extra_max_ms_d50",
    "ccr_failed_p50_ms_d50",
    "ccr_failed_p99_ms_d50",
    "ccr_others_p99_ms_d50",
    "ccr_others_max_ms_d50",
    "ccr_fallback_ms_d50",
    "ccr_return_ms_d50",
    "ccr_failures_d50",
    "ccr_extra_p99_ms_d100",
    "ccr_extra_max_ms_d100",
    "ccr_failed_p50_ms_d100",
    "ccr_failed_p99_ms_d100",
    "ccr_others_p99_ms_d100",
    "ccr_others_max_ms_d100",
    "ccr_fallback_ms_d100",
    "ccr_return_ms_d100",
    "ccr_failures_d100",
    "ccr_extra_p99_ms_d150",
    "ccr_extra_max_ms_d150",
    "ccr_failed_p50_ms_d150",
    "ccr_failed_p99_ms_d150",
    "ccr_others_p99_ms_d150",
    "ccr_others_max_ms_d150",
    "ccr_fallback_ms_d150",
    "ccr_return_ms_d150",
    "ccr_failures_d150",
];

/// The values of `D_fb`, in ms.
pub const FALL_BACK_MS: [u32; 3] = [50, 100, 150];

/// Measures what is asked for.
///
/// # Errors
/// When the experiment cannot be played, or a message did not arrive once and in order.
pub fn measure(figures: &mut Figures) -> Result<()> {
    for (fall_back_ms, names) in FALL_BACK_MS.into_iter().zip(NAMES.chunks_exact(9)) {
        if !figures.wants(names) {
            continue;
        }
        let seen = play(fall_back_ms)?;
        let failures = seen.failures();
        let of = |value: fn(&Failure) -> Option<f64>| {
            median(failures.iter().filter_map(value).collect())
        };
        let values = [
            (seen.extra_ms(99.0), "ms"),
            (seen.extra_ms(100.0), "ms"),
            (seen.touched_ms(50.0), "ms"),
            (seen.touched_ms(99.0), "ms"),
            (seen.untouched_ms(99.0), "ms"),
            (seen.untouched_ms(100.0), "ms"),
            (of(|failure| failure.fallback_ms), "ms"),
            (of(|failure| failure.return_ms), "ms"),
            (failures.len() as f64, "failures"),
        ];
        for (name, (value, unit)) in names.iter().zip(values) {
            figures.take(name, value, unit);
        }
    }
    Ok(())
}

/// Plays the experiment.
///
/// # Errors
/// When it cannot be played, or a message did not arrive once and in order.
pub fn play(fall_back_ms: u32) -> Result<CcrObservations> {
    let plan = CcrPlan::paper(fall_back_ms);
    // Both ends and all that is between them, as on machines that have nothing else to do.
    let urgent = RealTime::begin(RealTime::MEASURED);
    if let Err(error) = &urgent {
        eprintln!("what else this machine does will show in the figures: {error}");
    }
    let seen = play_ccr(&plan).context("the failure experiment")?;
    drop(urgent);
    eprintln!("failure experiment, D_fb {fall_back_ms} ms: {seen}");
    Ok(seen)
}
