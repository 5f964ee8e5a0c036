//! Figures 7 and 8 of the MCQUIC paper: authentication types by receivers, and by the size of a
//! stream.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::chart::{Axis, Chart, Line, short};
use super::document::Document;
use crate::authentication::{Ratios, Type, ratios};
use crate::parcel::PIECE;

/// Numbers of receivers.
const RECEIVERS: [usize; 8] = [1, 2, 5, 10, 20, 30, 50, 100];
/// Bytes of an update.
const SIZES: [usize; 6] = [100, 1_000, 10_000, 65_536, 100_000, 1_000_000];
const RUNS: usize = 3;

/// The paper's figure 7a in the words of its section 4.2: goodput of the server by receivers, as a
/// part of that of unicast to one client.
const PAPER_PLAIN: [(f64, f64); 2] = [(1.0, 1.0), (40.0, 1.0)];
const PAPER_SIGNATURE: [(f64, f64); 2] = [(1.0, 0.05), (40.0, 0.05)];
const PAPER_TAGS: [(f64, f64); 3] = [(1.0, 0.33), (5.0, 0.2), (30.0, 0.05)];
/// Of figure 7b: at a client.
const PAPER_CLIENT_TAGS: [(f64, f64); 1] = [(1.0, 0.6)];
/// Of figure 8: 400 to 500 % more than with signatures of packets.
const PAPER_STREAM: [(f64, f64); 2] = [(1e3, 0.25), (1e6, 0.3)];

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Point {
    kind: Type,
    receivers: usize,
    size: usize,
    ratios: Ratios,
}

/// Measures all points.
///
/// # Errors
/// When a receiver did not get the bytes.
pub fn measure() -> Result<Vec<Point>> {
    let by_receivers = RECEIVERS.map(|receivers| (Type::Tags, receivers, PIECE));
    let few = RECEIVERS.into_iter().filter(|n| [1, 10, 100].contains(n));
    let signatures = few.map(|receivers| (Type::Signature, receivers, PIECE));
    let by_size = [Type::Signature, Type::Stream];
    let by_size = by_size
        .into_iter()
        .flat_map(|kind| SIZES.map(|size| (kind, 1, size)));
    let mut all: Vec<_> = by_receivers.into_iter().chain(signatures).collect();
    // The default size is among those by receivers.
    all.extend(by_size.filter(|cell| *cell != (Type::Signature, 1, PIECE)));
    let points = all.into_iter().map(|(kind, receivers, size)| {
        Ok(Point {
            kind,
            receivers,
            size,
            ratios: ratios(kind, receivers, size, RUNS)?,
        })
    });
    points.collect()
}

/// Draws the curves and writes the tables.
///
/// # Errors
/// When the document cannot be written.
pub fn publish(points: &[Point], document: &mut Document) -> Result<()> {
    let by_receivers = |kind, value: fn(&Ratios) -> f64| -> Vec<(f64, f64)> {
        let its = points.iter().filter(|p| p.kind == kind && p.size == PIECE);
        let mut its: Vec<_> = its
            .map(|p| (p.receivers as f64, value(&p.ratios)))
            .collect();
        its.sort_by(|a, b| a.0.total_cmp(&b.0));
        its
    };
    let by_size = |kind, value: fn(&Ratios) -> f64| -> Vec<(f64, f64)> {
        let its = points.iter().filter(|p| p.kind == kind && p.receivers == 1);
        let mut its: Vec<_> = its.map(|p| (p.size as f64, value(&p.ratios))).collect();
        its.sort_by(|a, b| a.0.total_cmp(&b.0));
        its
    };
    let made: fn(&Ratios) -> f64 = |ratios| ratios.made;
    let received: fn(&Ratios) -> f64 = |ratios| ratios.received;
    let receivers = || Axis::log("receivers", (1.0, 100.0));
    let part = || Axis::log("goodput, as a part", (0.004, 1.2));
    let charts = [
        Chart {
            title: "Source, by receivers (figure 7a)".into(),
            x: receivers(),
            y: part(),
            lines: vec![
                ours("signatures", 1, by_receivers(Type::Signature, made)),
                ours("tags", 2, by_receivers(Type::Tags, made)),
                paper("MC_N", 0, &PAPER_PLAIN),
                paper("MC_A: signatures", 1, &PAPER_SIGNATURE),
                paper("MC_Y: tags", 2, &PAPER_TAGS),
            ],
        },
        Chart {
            title: "Receiver, by receivers (figure 7b)".into(),
            x: receivers(),
            y: part(),
            lines: vec![
                ours("signatures", 1, by_receivers(Type::Signature, received)),
                ours("tags", 2, by_receivers(Type::Tags, received)),
                paper("MC_Y: tags, one client", 2, &PAPER_CLIENT_TAGS),
            ],
        },
        Chart {
            title: "Source, by the size of an update (figure 8)".into(),
            x: Axis::log("bytes", (100.0, 1e6)),
            y: part(),
            lines: vec![
                ours("signatures of packets", 1, by_size(Type::Signature, made)),
                ours("of whole updates", 4, by_size(Type::Stream, made)),
                paper("MC_A", 1, &[(100.0, 0.05), (1e6, 0.05)]),
                paper("MC_S", 4, &PAPER_STREAM),
            ],
        },
        Chart {
            title: "Receiver, by the size of an update (figure 8)".into(),
            x: Axis::log("bytes", (100.0, 1e6)),
            y: part(),
            lines: vec![
                ours(
                    "signatures of packets",
                    1,
                    by_size(Type::Signature, received),
                ),
                ours("of whole updates", 4, by_size(Type::Stream, received)),
            ],
        },
    ];
    document.draw("authentication", &charts)?;
    document.set_table("authentication", &rows(points))
}

/// A line of what was measured here.
pub(super) fn ours(name: &str, colour: usize, points: Vec<(f64, f64)>) -> Line {
    Line {
        name: name.to_owned(),
        colour,
        dashed: false,
        marked: true,
        points,
    }
}

/// A line of what the paper says.
pub(super) fn paper(name: &str, colour: usize, points: &[(f64, f64)]) -> Line {
    Line {
        name: format!("paper, {name}"),
        colour,
        dashed: true,
        // A single point makes no line.
        marked: points.len() == 1,
        points: points.to_vec(),
    }
}

fn rows(points: &[Point]) -> Vec<Vec<String>> {
    let head = ["Type", "Receivers", "Bytes", "Source", "Receiver"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        let kind = match point.kind {
            Type::Signature => "signature",
            Type::Tags => "tags",
            Type::Stream => "stream",
        };
        rows.push(vec![
            kind.to_owned(),
            point.receivers.to_string(),
            short(point.size as f64),
            format!("{:.3}", point.ratios.made),
            format!("{:.3}", point.ratios.received),
        ]);
    }
    rows
}
