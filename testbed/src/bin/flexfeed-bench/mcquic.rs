//! Experiments of the MCQUIC paper in virtual time, of which figures are taken.

use std::time::Duration;

use anyhow::Result;
use flexicast::fec::FecConfig;
use simulation::mcquic::{FILE, Report, file_transfer};

use crate::figures::Figures;
use crate::plots::parallel::play_all;

/// All figures of this file.
pub const NAMES: [&str; 1] = ["mcquic_fig12_ratio_et200"];

/// Loss on the links to the leaves, and expiration timer.
const LOSS: f64 = 0.05;
const LIFETIME: Duration = Duration::from_millis(200);
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];

/// Measures what is asked for.
///
/// # Errors
/// When an update is neither delivered nor expired.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let reports = play_all("file", &SEEDS, |seed| {
        let fec = Some(FecConfig::default());
        Ok(file_transfer(FILE, LOSS, LIFETIME, fec, *seed)?)
    })?;
    for (seed, report) in SEEDS.iter().zip(&reports) {
        eprintln!(
            "seed {seed}: {} of {} receivers have all of {} updates, {} expired; {} repairs",
            report.complete, report.receivers, report.updates, report.expired, report.repairs
        );
    }
    let sum: f64 = reports.iter().map(Report::ratio).sum();
    figures.take(NAMES[0], sum / reports.len() as f64, "ratio");
    Ok(())
}
