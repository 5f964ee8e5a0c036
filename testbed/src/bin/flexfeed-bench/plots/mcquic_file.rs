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
const SEED: u64 = 1;
/// The paper's text (section 5.2).
const PAPER: [(f64, f64); 1] = [(200.0, 1.0)];

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

/// A run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Point {
    policy: Policy,
    timer_ms: u64,
    /// Share of receivers that have everything.
    ratio: f64,
    /// Updates that expired, of all receivers.
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
    play_all("file", &cells, |(policy, timer_ms)| {
        let lifetime = Duration::from_millis(*timer_ms);
        let report = file_transfer(FILE, LOSS, lifetime, policy.config(), SEED)?;
        Ok(Point {
            policy: *policy,
            timer_ms: *timer_ms,
            ratio: report.ratio(),
            expired: report.expired,
            cost: report.source_bytes as f64 / FILE.bytes as f64,
        })
    })
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
        "Receivers with everything",
        "Paper",
        "Expired",
        "Bytes sent, of the file's",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        let said = PAPER.iter().any(|(at, _)| *at == point.timer_ms as f64);
        rows.push(vec![
            point.timer_ms.to_string(),
            point.policy.name().to_owned(),
            format!("{:.2}", point.ratio),
            match point.timer_ms {
                50 => "below 1".to_owned(),
                _ if said => "1.0".to_owned(),
                _ => "picture".to_owned(),
            },
            point.expired.to_string(),
            format!("{:.2}", point.cost),
        ]);
    }
    rows
}
