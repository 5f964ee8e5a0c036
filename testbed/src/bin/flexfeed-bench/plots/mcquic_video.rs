//! Figures 10, 11, 14 and 15 of the MCQUIC paper: lateness of video frames, and bytes sent, by
//! losses.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use simulation::mcquic::{Kind, LossyLinks, Report, video_call};

use super::authentication::{ours, paper};
use super::chart::{Axis, Chart, Line, short};
use super::document::Document;
use super::parallel::play_all;

/// Losses on the lossy links.
const LOSSES: [f64; 4] = [0.0, 0.01, 0.03, 0.05];
/// Length of the call: a fifth of the paper's.
const SPAN: Duration = Duration::from_secs(60);
const SEED: u64 = 1;
/// Shares of the distribution that are kept: each hundredth, then each thousandth.
const FINE: usize = 900;
/// The paper's text at 5 %: "~96 % of the frames are not impacted by the losses with MCQUIC,
/// whereas it reaches almost 50 ms for unicast".
const PAPER_UNICAST: [(f64, f64); 1] = [(50.0, 0.96)];
const PAPER_MCQUIC: [(f64, f64); 1] = [(2.0, 0.96)];

/// Links with losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Where {
    Leaves,
    LeftBranch,
}

/// Transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Transport {
    Plain,
    Signed,
    Unicast,
}

impl Transport {
    const ALL: [Transport; 3] = [Transport::Plain, Transport::Signed, Transport::Unicast];

    fn name(self) -> &'static str {
        match self {
            Transport::Plain => "flow",
            Transport::Signed => "flow, signed updates",
            Transport::Unicast => "unicast",
        }
    }
}

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    lossy: Where,
    transport: Transport,
    loss: f64,
    /// Lateness in ms by the share of frames that it is not exceeded for.
    lateness: Vec<(f64, f64)>,
    /// Share of frames that are no more than 2 ms late, which the largest are without losses.
    prompt: f64,
    expired: f64,
    source_bytes: u64,
    receiver_bytes: u64,
    symbols: u64,
    repairs: u64,
}

/// Plays all runs.
///
/// # Errors
/// When a frame is neither delivered nor expired.
pub fn measure() -> Result<Vec<Point>> {
    let mut cells = Vec::new();
    for lossy in [Where::Leaves, Where::LeftBranch] {
        for transport in Transport::ALL {
            cells.extend(LOSSES.map(|loss| (lossy, transport, loss)));
        }
    }
    play_all("video", &cells, |(lossy, transport, loss)| {
        let kind = match transport {
            Transport::Plain => Kind::Plain,
            Transport::Signed => Kind::Signed,
            Transport::Unicast => Kind::Unicast,
        };
        let links = match lossy {
            Where::Leaves => LossyLinks::Leaves,
            Where::LeftBranch => LossyLinks::LeftBranch,
        };
        let report = video_call(kind, links, *loss, SPAN, SEED)?;
        Ok(Point::new((*lossy, *transport, *loss), &report))
    })
}

impl Point {
    fn new((lossy, transport, loss): (Where, Transport, f64), report: &Report) -> Point {
        let shares = (0..FINE).step_by(10).chain(FINE..=1_000);
        let quantile = |thousandths: usize| {
            let share = thousandths as f64 / 1e3;
            (share, report.lateness.quantile(share))
        };
        let all = report.updates * report.receivers as u64;
        Point {
            lossy,
            transport,
            loss,
            lateness: shares.map(quantile).collect(),
            prompt: report.lateness.share_within(2.0),
            expired: report.expired as f64 / all.max(1) as f64,
            source_bytes: report.source_bytes,
            receiver_bytes: report.receiver_bytes,
            symbols: report.symbols,
            repairs: report.repairs,
        }
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut its = self.lateness.iter();
        let at = its.find(|(at, _)| *at >= share - 1e-9);
        at.map_or(0.0, |(_, ms)| *ms)
    }
}

/// Draws the curves and writes the tables.
///
/// # Errors
/// When the document cannot be written.
pub fn publish(points: &[Point], document: &mut Document) -> Result<()> {
    for (lossy, number, bytes, name) in [
        (Where::Leaves, "10", "11", "mcquic-video"),
        (Where::LeftBranch, "14", "15", "mcquic-shared"),
    ] {
        let its: Vec<&Point> = points.iter().filter(|p| p.lossy == lossy).collect();
        document.draw(name, &charts(&its, number, bytes))?;
        document.set_table(&format!("{name} lateness"), &lateness(&its))?;
        document.set_table(&format!("{name} bytes"), &bytes_sent(&its))?;
    }
    Ok(())
}

fn charts(points: &[&Point], number: &str, bytes: &str) -> [Chart; 4] {
    let by_loss = |transport, value: &dyn Fn(&Point) -> f64| -> Vec<(f64, f64)> {
        let its = points.iter().filter(|p| p.transport == transport);
        its.map(|p| (p.loss * 100.0, value(p))).collect()
    };
    let loss = || Axis::linear("loss (%)", (-0.1, 5.1));
    let lines = |value: &dyn Fn(&Point) -> f64| -> Vec<Line> {
        Transport::ALL
            .into_iter()
            .zip(0..)
            .map(|(transport, colour)| ours(transport.name(), colour, by_loss(transport, value)))
            .collect()
    };
    let mut late = Vec::new();
    for (transport, colour) in Transport::ALL.into_iter().zip(0..) {
        for (share, name) in [(0.5, "p50"), (0.975, "p97.5")] {
            let values = by_loss(transport, &|p| p.quantile(share));
            let mut line = ours(&format!("{}, {name}", transport.name()), colour, values);
            line.marked = share > 0.9;
            late.push(line);
        }
    }
    let mut distribution: Vec<Line> = Transport::ALL
        .into_iter()
        .zip(0..)
        .map(|(transport, colour)| {
            let worst = points
                .iter()
                .find(|p| p.transport == transport && p.loss == 0.05);
            let values = worst.map_or(Vec::new(), |p| {
                p.lateness.iter().map(|(share, ms)| (*ms, *share)).collect()
            });
            Line {
                marked: false,
                ..ours(transport.name(), colour, values)
            }
        })
        .collect();
    if number == "10" {
        distribution.push(paper("MCQUIC", 0, &PAPER_MCQUIC));
        distribution.push(paper("unicast", 2, &PAPER_UNICAST));
    }
    let panel = |part: &str| match number {
        "10" => format!("{number}{part}"),
        _ => number.to_owned(),
    };
    [
        Chart {
            title: format!("Lateness of frames (figure {})", panel("a and b")),
            x: loss(),
            y: Axis::linear("ms", (-2.0, 150.0)),
            lines: late,
        },
        Chart {
            title: format!("Lateness with 5 % loss (figure {})", panel("c")),
            x: Axis::linear("ms", (-2.0, 200.0)),
            y: Axis::linear("share of frames", (0.5, 1.005)),
            lines: distribution,
        },
        Chart {
            title: format!("Bytes sent by the source (figure {bytes}, left)"),
            x: loss(),
            y: Axis::log("MB", (5.0, 1_000.0)),
            lines: lines(&|p| p.source_bytes as f64 / 1e6),
        },
        Chart {
            title: format!("Bytes sent by the receivers (figure {bytes}, right)"),
            x: loss(),
            y: Axis::log("MB", (0.5, 100.0)),
            lines: lines(&|p| p.receiver_bytes as f64 / 1e6),
        },
    ]
}

fn lateness(points: &[&Point]) -> Vec<Vec<String>> {
    let head = [
        "Loss",
        "Transport",
        "p25 (ms)",
        "p50",
        "p75",
        "p92.5",
        "p95",
        "p97.5",
        "p99.9",
        "within 2 ms",
        "expired",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for loss in LOSSES {
        for point in points.iter().filter(|p| p.loss == loss) {
            let mut row = vec![
                format!("{:.0} %", loss * 100.0),
                point.transport.name().to_owned(),
            ];
            let shares = [0.25, 0.5, 0.75, 0.925, 0.95, 0.975, 0.999];
            row.extend(shares.map(|share| format!("{:.1}", point.quantile(share))));
            row.push(format!("{:.1} %", point.prompt * 100.0));
            row.push(format!("{:.3} %", point.expired * 100.0));
            rows.push(row);
        }
    }
    rows
}

fn bytes_sent(points: &[&Point]) -> Vec<Vec<String>> {
    let head = [
        "Loss",
        "Transport",
        "Source",
        "of that without loss",
        "Receivers",
        "Repair symbols",
        "Repairs by unicast",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for loss in LOSSES {
        for point in points.iter().filter(|p| p.loss == loss) {
            let lossless = points
                .iter()
                .find(|p| p.transport == point.transport && p.loss == 0.0)
                .map_or(1, |p| p.source_bytes.max(1));
            rows.push(vec![
                format!("{:.0} %", loss * 100.0),
                point.transport.name().to_owned(),
                format!("{}B", short(point.source_bytes as f64)),
                format!("{:.3}", point.source_bytes as f64 / lossless as f64),
                format!("{}B", short(point.receiver_bytes as f64)),
                short(point.symbols as f64),
                short(point.repairs as f64),
            ]);
        }
    }
    rows
}
