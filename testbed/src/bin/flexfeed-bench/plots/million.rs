//! The curve to a million members.

use anyhow::Result;

use super::chart::{Axis, Chart, Line, short};
use super::document::Document;
use crate::crowd::{Cell, Outcome, RATE, run};

const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const LOSSES: [f64; 3] = [0.001, 0.01, 0.05];
/// Members of a shard.
const SHARD: usize = 10_000;
const SMALL_SHARD: usize = 1_000;
/// A loss and a number of members that are enough to compare shards by.
const USUAL: f64 = 0.01;
/// Most members of a shard that is alone.
const ALONE: usize = 100_000;

/// Runs all cells.
///
/// # Errors
/// When a receiver did not get every update.
pub fn measure() -> Result<Vec<Outcome>> {
    let mut cells = Vec::new();
    for members in SIZES {
        for loss in LOSSES {
            let cell = Cell {
                members,
                shard: SHARD.min(members),
                loss,
            };
            cells.push(cell);
            if loss == USUAL && members > SMALL_SHARD {
                cells.push(Cell {
                    shard: SMALL_SHARD,
                    ..cell
                });
            }
            if loss == USUAL && members == ALONE {
                cells.push(Cell {
                    shard: members,
                    ..cell
                });
            }
        }
    }
    cells.into_iter().map(run).collect()
}

fn percent(loss: f64) -> String {
    format!("{} %", loss * 100.0)
}

/// Draws the curves and writes the tables.
///
/// # Errors
/// When the document cannot be written.
pub fn publish(outcomes: &[Outcome], document: &mut Document) -> Result<()> {
    let curve = |name: String, colour: usize, shard: usize, loss: f64, value: &Value| Line {
        name,
        colour,
        dashed: shard == SMALL_SHARD,
        marked: true,
        points: outcomes
            .iter()
            .filter(|o| o.cell.loss == loss && o.cell.shard == shard.min(o.cell.members))
            .map(|o| (o.cell.members as f64, value(o)))
            .collect(),
    };
    let by_loss = |value: &Value| {
        let mut lines: Vec<Line> = LOSSES
            .into_iter()
            .zip(0..)
            .map(|(loss, colour)| {
                let name = format!("loss {}", percent(loss));
                curve(name, colour, SHARD, loss, value)
            })
            .collect();
        let name = "1 %, shards of 1,000".to_owned();
        lines.push(curve(name, 1, SMALL_SHARD, USUAL, value));
        lines
    };
    let chart = |title: &str, label: &str, range: (f64, f64), value: &Value| Chart {
        title: title.to_owned(),
        x: Axis::log("members (shards of at most 10,000)", (1e3, 1e6)),
        y: Axis::log(label, range),
        lines: by_loss(value),
    };
    let load = [
        chart(
            "Acknowledgements",
            "acknowledgements a second",
            (1e4, 1e8),
            &|o| o.acks,
        ),
        chart(
            "CPU of all shards, without connections",
            "cores",
            (1e-3, 1e2),
            &|o| o.total_cores(),
        ),
        chart(
            "Memory, without connections",
            "bytes for each member",
            (1e3, 1e4),
            &|o| o.memory,
        ),
    ];
    document.draw("million-load", &load)?;
    let repairs = [
        chart(
            "Repairs on unicast paths",
            "bit/s to all members",
            (1e4, 1e12),
            &|o| o.repair_bytes * 8.0,
        ),
        chart(
            "A tenth of the members loses multicast",
            "fall-backs a second, at most",
            (1e2, 1e6),
            &|o| o.surge.sessions,
        ),
        chart(
            "A tenth of the members loses multicast",
            "bit/s on unicast paths, at most",
            (1e7, 1e12),
            &|o| o.surge.bytes * 8.0,
        ),
    ];
    document.draw("million-repairs", &repairs)?;
    document.set_table("million", &load_rows(outcomes))?;
    document.set_table("million parts", &part_rows(outcomes))?;
    document.set_table("million repairs", &repair_rows(outcomes))
}

type Value = dyn Fn(&Outcome) -> f64;

fn head(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Members, shards and loss.
fn names(outcome: &Outcome) -> Vec<String> {
    let Cell {
        members,
        shard,
        loss,
    } = outcome.cell;
    vec![
        short(members as f64),
        format!("{} × {}", members / shard, short(shard as f64)),
        percent(loss),
    ]
}

fn load_rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![head(&[
        "Members",
        "Shards",
        "Loss",
        "Ack delay (ms)",
        "Acks/s",
        "Mbit/s",
        "Cores",
        "ns per ack",
        "Bytes per member",
    ])];
    for o in outcomes {
        let mut row = names(o);
        row.extend([
            format!("{:.0}", o.ack_delay_ms),
            short(o.acks),
            short(o.ack_bytes * 8.0 / 1e6),
            format!("{:.3}", o.total_cores()),
            format!("{:.0}", o.ack_ns),
            format!("{:.0}", o.memory),
        ]);
        rows.push(row);
    }
    rows
}

fn part_rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![head(&[
        "Members", "Shards", "Loss", "Publish", "Packets", "Acks", "Frames", "Timers", "Unicast",
    ])];
    for o in outcomes {
        let mut row = names(o);
        row.extend(o.cores.map(|cores| format!("{cores:.3}")));
        rows.push(row);
    }
    rows
}

fn repair_rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![head(&[
        "Members",
        "Shards",
        "Loss",
        "Repairs/s by unicast",
        "Mbit/s",
        "Sent again on the flow, of its packets",
        "Fell back without cause, per hour and member",
        "Tenth cut: time (ms)",
        "Fall-backs/s, at most",
        "Mbit/s, at most",
        "Mbit/s afterwards",
    ])];
    for o in outcomes {
        let mut row = names(o);
        row.extend([
            short(o.repairs),
            short(o.repair_bytes * 8.0 / 1e6),
            format!("{:.0} %", o.shared_repairs / f64::from(RATE) * 100.0),
            short(o.lost_members * 3_600.0 / o.cell.members as f64),
            format!("{:.0}", o.surge.time_ms),
            short(o.surge.sessions),
            short(o.surge.bytes * 8.0 / 1e6),
            short(o.surge.bytes_after * 8.0 / 1e6),
        ]);
        rows.push(row);
    }
    rows
}
