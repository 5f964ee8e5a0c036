//! Figure 6 of the MCQUIC paper: cost of its recovery by repair symbols, by losses and by the
//! window of a symbol.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::authentication::{ours, paper};
use super::chart::{Axis, Chart, Line};
use super::document::Document;
use crate::figures::median;
use crate::mcquic_fec::{Recovery, by_flow, by_unicast};
use crate::parcel::{PIECE, Parcel, UDP_PAYLOAD};

/// Bytes of the stream: the paper's.
const BYTES: usize = 100_000_000;
/// Runs of each point.
const RUNS: usize = 5;
/// Packets of which one is lost.
const LOSES: [Option<u64>; 7] = [
    None,
    Some(1_000),
    Some(200),
    Some(100),
    Some(50),
    Some(20),
    Some(10),
];
/// Bytes after which the receiver acknowledges: what is sent since is the window of a symbol.
const SIZES: [usize; 2] = [PIECE, PIECE / 4];
/// Below 1 % (section 4.1): a plateau at 60 % of the unicast baseline.
const PAPER: [(f64, f64); 2] = [(0.1, 0.6), (1.0, 0.6)];

/// Parameters of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Cell {
    /// Whether the flow protects its packets.
    fec: bool,
    every: Option<u64>,
    size: usize,
}

/// Medians of the runs of one point.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Point {
    cell: Cell,
    /// Goodput of source and receiver as a part of that of unicast.
    ratios: [f64; 2],
    /// Their standard deviations.
    deviations: [f64; 2],
    /// The same of the source with what acknowledgements cost it.
    with_acks: f64,
    lost: u64,
    symbols: u64,
    repairs: u64,
    /// Goodput of source and receiver in Gbit/s.
    goodput: [f64; 2],
}

/// Measures all points.
///
/// # Errors
/// When a receiver did not get the bytes.
pub fn measure() -> Result<Vec<Point>> {
    let parcel = Parcel::new(BYTES);
    let mut baseline = [Vec::new(), Vec::new()];
    let mut cells = Vec::new();
    for size in SIZES {
        let cell = |fec, every| Cell { fec, every, size };
        cells.push(cell(false, None));
        cells.extend(LOSES.map(|every| cell(true, every)));
    }
    let mut runs: Vec<Vec<Recovery>> = vec![Vec::new(); cells.len()];
    for run in 1..=RUNS {
        let (made, received) = by_unicast(&parcel)?;
        baseline[0].push(made.as_secs_f64());
        baseline[1].push(received.as_secs_f64());
        for (cell, runs) in cells.iter().zip(&mut runs) {
            runs.push(by_flow(cell.fec, cell.every, cell.size, &parcel)?);
        }
        eprintln!("recovery: run {run} of {RUNS}");
    }
    let baseline = baseline.map(median);
    let points = cells.into_iter().zip(runs).map(|(cell, runs)| {
        let part = |whole: f64, seconds: &dyn Fn(&Recovery) -> f64| {
            let ratios: Vec<f64> = runs.iter().map(|run| whole / seconds(run)).collect();
            (median(ratios.clone()), deviation(&ratios))
        };
        let (made, made_deviation) = part(baseline[0], &|run| run.made.as_secs_f64());
        let (received, received_deviation) = part(baseline[1], &|run| run.received.as_secs_f64());
        let (with_acks, _) = part(baseline[0], &|run| (run.made + run.acks).as_secs_f64());
        let gbits = BYTES as f64 * 8.0 / 1e9;
        Point {
            cell,
            ratios: [made, received],
            deviations: [made_deviation, received_deviation],
            with_acks,
            lost: runs.first().map_or(0, |run| run.lost),
            symbols: runs.first().map_or(0, |run| run.symbols),
            repairs: runs.iter().map(|run| run.repairs).max().unwrap_or(0),
            goodput: [gbits / baseline[0] * made, gbits / baseline[1] * received],
        }
    });
    Ok(points.collect())
}

fn deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    (squares.sum::<f64>() / count).sqrt()
}

/// Packets after which the receiver acknowledges.
fn train(size: usize) -> usize {
    size.div_ceil(UDP_PAYLOAD)
}

/// Draws the curves and writes the table.
///
/// # Errors
/// When the document cannot be written.
pub fn publish(points: &[Point], document: &mut Document) -> Result<()> {
    let line = |side: usize, size: usize| -> Vec<(f64, f64)> {
        let its = points.iter().filter(|point| point.cell.size == size);
        let mut its: Vec<_> = its
            .filter_map(|point| Some((100.0 / point.cell.every? as f64, point.ratios[side])))
            .collect();
        its.sort_by(|a, b| a.0.total_cmp(&b.0));
        its
    };
    let mut lines: Vec<Line> = Vec::new();
    for (side, name) in ["source", "receiver"].into_iter().enumerate() {
        for size in SIZES {
            let name = format!("{name}, trains of {}", train(size));
            lines.push(ours(&name, lines.len(), line(side, size)));
        }
    }
    lines.push(paper("below 1 %", 0, &PAPER));
    let highest = points.iter().flat_map(|point| point.ratios);
    let highest = highest.fold(1.0, f64::max);
    let charts = [Chart {
        title: "Goodput with repair symbols (figure 6)".into(),
        x: Axis::log("loss (%)", (0.1, 10.0)),
        y: Axis::linear("of unicast without loss", (0.0, highest.ceil())),
        lines,
    }];
    document.draw("mcquic-fec", &charts)?;
    document.set_table("mcquic-fec", &rows(points))
}

fn rows(points: &[Point]) -> Vec<Vec<String>> {
    let head = [
        "Train",
        "Loss",
        "Lost",
        "Symbols",
        "Repairs by unicast",
        "Source, of unicast",
        "with acks",
        "Receiver, of unicast",
        "Source (Gbit/s)",
        "Receiver (Gbit/s)",
        "Paper",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        let cell = point.cell;
        let loss = cell.every.map_or(0.0, |every| 100.0 / every as f64);
        let [made, received] = point.ratios;
        let [made_deviation, received_deviation] = point.deviations;
        rows.push(vec![
            train(cell.size).to_string(),
            match cell.fec {
                true => format!("{loss:.1} %"),
                false => "0, not protected".into(),
            },
            point.lost.to_string(),
            point.symbols.to_string(),
            point.repairs.to_string(),
            format!("{made:.2} ± {made_deviation:.2}"),
            format!("{:.2}", point.with_acks),
            format!("{received:.2} ± {received_deviation:.2}"),
            format!("{:.1}", point.goodput[0]),
            format!("{:.1}", point.goodput[1]),
            match cell.fec {
                true if loss < 1.0 => "0.6".into(),
                true => "picture".into(),
                false => "-".into(),
            },
        ]);
    }
    rows
}
