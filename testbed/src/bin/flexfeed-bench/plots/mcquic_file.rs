//! Figure 12 of the MCQUIC paper: share of receivers that have all of a file, by the expiration
//! timer.

use std::time::Duration;

use anyhow::Result;
use flexicast::fec::{FecConfig, FecPolicy};
use serde::{Deserialize, Serialize};
use simulation::mcquic::{FILE, file_transfer};

use super::authentication::{ours, paper};
use super::chart::{Axis, Chart, Line};
use super::document::Document;
use super::parallel::play_all;

/// Expiration timers in ms, and those with which other policies than the default are compared.
const TIMERS: [u64; 7] = [50, 75, 100, 150, 200, 300, 500];
const FEW_TIMERS: [u64; 3] = [100, 200, 500];
/// Loss on the links to the leaves.
const LOSS: f64 = 0.05;
/// The timer of which the paper's text has a result, and the seeds of its runs; of all others there
/// is a run of the first seed.
const SAID: u64 = 200;
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];
/// The paper's text (section 5.2).
const PAPER: [(f64, f64); 1] = [(SAID as f64, 1.0)];

/// When repair symbols are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Policy {
    Adaptive,
    Reactive,
    Off,
}

impl Policy {
    const ALL: [Policy; 3] = [Policy::Adaptive, Policy::Reactive, Policy::Off];

    fn name(self) -> &'static str {
        match self {
            Policy::Adaptive => "adaptive",
            Policy::Reactive => "reactive",
            Policy::Off => "no symbols",
        }
    }

    fn config(self) -> Option<FecConfig> {
        let policy = match self {
            Policy::Adaptive => FecPolicy::Adaptive,
            Policy::Reactive => FecPolicy::Reactive,
            Policy::Off => return None,
        };
        Some(FecConfig {
            policy,
            ..FecConfig::default()
        })
    }
}

/// The runs of one set of parameters.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Point {
    policy: Policy,
    timer_ms: u64,
    /// Number of runs.
    runs: usize,
    /// Share of receivers that have everything: the mean and the least of the runs.
    ratio: f64,
    least: f64,
    /// Updates that expired, of all receivers in all runs.
    expired: u64,
    /// Bytes that the source sent for each byte of the file.
    cost: f64,
}

/// Plays all runs.
///
/// # Errors
/// When an update is neither delivered nor expired.
pub fn measure() -> Result<Vec<Point>> {
    let mut cells = Vec::new();
    for policy in Policy::ALL {
        let is_wanted = |timer: &u64| policy == Policy::Adaptive || FEW_TIMERS.contains(timer);
        let timers = TIMERS.into_iter().filter(is_wanted);
        cells.extend(timers.map(|timer_ms| (policy, timer_ms)));
    }
    let mut runs = Vec::new();
    for cell in &cells {
        let many = *cell == (Policy::Adaptive, SAID);
        let count = if many { SEEDS.len() } else { 1 };
        runs.extend(SEEDS.into_iter().take(count).map(|seed| (*cell, seed)));
    }
    let reports = play_all("file", &runs, |((policy, timer_ms), seed)| {
        let lifetime = Duration::from_millis(*timer_ms);
        Ok(file_transfer(FILE, LOSS, lifetime, policy.config(), *seed)?)
    })?;
    let points = cells.into_iter().map(|cell| {
        let its = runs.iter().zip(&reports).filter(|((of, _), _)| *of == cell);
        let its: Vec<_> = its.map(|(_, report)| report).collect();
        let count = its.len().max(1) as f64;
        let ratios = its.iter().map(|report| report.ratio());
        let bytes: u64 = its.iter().map(|report| report.source_bytes).sum();
        let (policy, timer_ms) = cell;
        Point {
            policy,
            timer_ms,
            runs: its.len(),
            ratio: ratios.clone().sum::<f64>() / count,
            least: ratios.fold(1.0, f64::min),
            expired: its.iter().map(|report| report.expired).sum(),
            cost: bytes as f64 / count / FILE.bytes as f64,
        }
    });
    Ok(points.collect())
}

/// Draws the curves and writes the table.
///
/// # Errors
/// When the document cannot be written.
pub fn publish(points: &[Point], document: &mut Document) -> Result<()> {
    let mut lines: Vec<Line> = Policy::ALL
        .into_iter()
        .zip(0..)
        .map(|(policy, colour)| {
            let its = points.iter().filter(|p| p.policy == policy);
            let values = its.map(|p| (p.timer_ms as f64, p.ratio)).collect();
            ours(policy.name(), colour, values)
        })
        .collect();
    lines.push(paper("5 %", 0, &PAPER));
    let charts = [Chart {
        title: "Receivers that have the whole file (figure 12)".into(),
        x: Axis::linear("expiration timer (ms)", (0.0, 520.0)),
        y: Axis::linear("share of receivers", (0.4, 1.02)),
        lines,
    }];
    document.draw("mcquic-file", &charts)?;
    document.set_table("mcquic-file", &rows(points))
}

fn rows(points: &[Point]) -> Vec<Vec<String>> {
    let head = [
        "Expiration timer (ms)",
        "Symbols",
        "Runs",
        "Receivers with everything",
        "least",
        "Paper",
        "Expired",
        "Bytes sent, of the file's",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        rows.push(vec![
            point.timer_ms.to_string(),
            point.policy.name().to_owned(),
            point.runs.to_string(),
            format!("{:.3}", point.ratio),
            format!("{:.2}", point.least),
            match point.timer_ms {
                50 => "below 1".to_owned(),
                SAID => "1.0".to_owned(),
                _ => "picture".to_owned(),
            },
            point.expired.to_string(),
            format!("{:.2}", point.cost),
        ]);
    }
    rows
}
