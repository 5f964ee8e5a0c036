//! Tables and charts of `docs/benchmarks.md`, from runs of their own.
//!
//! Results are kept next to the program, so that charts can be drawn again without a run.

mod authentication;
mod chart;
mod document;
mod failures;
mod goodput;
mod mcquic_fec;
mod mcquic_file;
mod mcquic_video;
mod million;
pub mod parallel;
mod thesis_codes;
mod thesis_losses;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use document::Document;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::figures::target;

/// Names of the charts.
const NAMES: [&str; 9] = [
    "million",
    "goodput",
    "failures",
    "authentication",
    "codes",
    "losses",
    "mcquic-fec",
    "mcquic-video",
    "mcquic-file",
];

/// Measures, draws and writes what begins with `prefix`.
///
/// # Errors
/// When a measured program did not do its work, or nothing begins with that.
pub fn run(docs: &Path, prefix: &str, redraw: bool) -> Result<()> {
    let wanted = |name: &str| name.starts_with(prefix);
    let names = NAMES.join(", ");
    ensure!(
        NAMES.into_iter().any(wanted),
        "no plot begins with \"{prefix}\"; there are {names}"
    );
    let mut document = Document::open(docs)?;
    if wanted("million") {
        let outcomes = kept("million", redraw, million::measure)?;
        million::publish(&outcomes, &mut document)?;
    }
    if wanted("goodput") {
        let points = kept("goodput", redraw, goodput::measure)?;
        goodput::publish(&points, &mut document)?;
    }
    if wanted("failures") {
        let runs = kept("failures", redraw, failures::measure)?;
        failures::publish(&runs, &mut document)?;
    }
    if wanted("authentication") {
        let points = kept("authentication", redraw, authentication::measure)?;
        authentication::publish(&points, &mut document)?;
    }
    if wanted("codes") {
        let times = kept("codes", redraw, thesis_codes::measure)?;
        thesis_codes::publish(&times, &mut document)?;
    }
    if wanted("losses") {
        let results = kept("losses", redraw, thesis_losses::measure)?;
        thesis_losses::publish(&results, &mut document)?;
    }
    if wanted("mcquic-fec") {
        let points = kept("mcquic-fec", redraw, mcquic_fec::measure)?;
        mcquic_fec::publish(&points, &mut document)?;
    }
    if wanted("mcquic-video") {
        let points = kept("mcquic-video", redraw, mcquic_video::measure)?;
        mcquic_video::publish(&points, &mut document)?;
    }
    if wanted("mcquic-file") {
        let points = kept("mcquic-file", redraw, mcquic_file::measure)?;
        mcquic_file::publish(&points, &mut document)?;
    }
    Ok(())
}

/// Measures and keeps the results, or reads those that were kept.
fn kept<T: Serialize + DeserializeOwned>(
    name: &str,
    redraw: bool,
    measure: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let path: PathBuf = target()?.join(format!("bench-{name}.json"));
    if redraw {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading the last results, {}", path.display()))?;
        return Ok(serde_json::from_str(&text)?);
    }
    let results = measure()?;
    std::fs::write(&path, serde_json::to_string(&results)?)?;
    Ok(results)
}
