//! The cost of losing one of two legs, multicast or one of two relays, beside a receiver with one
//! leg in the same run.

use anyhow::{Context, Result};
use testbed::scenario::play_hitless;
use testbed::urgent::RealTime;

use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 9] = [
    "hitless_gap_intervals",
    "hitless_calm_gap_intervals",
    "hitless_repairs",
    "hitless_one_leg_gap_intervals",
    "hitless_one_leg_calm_gap_intervals",
    "hitless_one_leg_repairs",
    "hitless_relays_gap_intervals",
    "hitless_relays_calm_gap_intervals",
    "hitless_relays_repairs",
];

const RUNS: usize = 5;

/// Measures what is asked for.
///
/// # Errors
/// The network cannot be made, or a message did not arrive once and in order.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let mut values: [Vec<f64>; 9] = Default::default();
    for _ in 0..RUNS {
        let urgent = RealTime::begin(RealTime::MEASURED);
        if let Err(error) = &urgent {
            eprintln!("what else this machine does will show in the figures: {error}");
        }
        let seen = play_hitless().context("two legs")?;
        eprintln!("two legs, one, two relays: {seen:?}");
        let seen = seen.map(|noticed| {
            let repairs = noticed.repairs as f64;
            [noticed.gap_intervals, noticed.calm_gap_intervals, repairs]
        });
        for (all, value) in values.iter_mut().zip(seen.into_iter().flatten()) {
            all.push(value);
        }
    }
    for (name, values) in NAMES.iter().zip(values) {
        let unit = match name.ends_with("repairs") {
            true => "messages",
            false => "intervals",
        };
        figures.take(name, median(values), unit);
    }
    Ok(())
}
