//! Figures 7 to 10 of the paper: links that fail, at three fall-back delays.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use testbed::scenario::CcrObservations;
use testbed::stream::Route;

use super::chart::{Axis, Chart, Line};
use super::document::Document;
use crate::ccr::{FALL_BACK_MS, play};
use crate::figures::median;

/// Bits of a message.
const MESSAGE_BITS: f64 = 1_100.0 * 8.0;
/// The paper's playback buffers, in ms.
const BUFFERS: [f64; 3] = [50.0, 100.0, 150.0];
/// Duration of a run in s.
const TIME: f64 = 180.0;
/// The round trip in ms: the paper's bound of a return.
const ROUND_TRIP: f64 = 20.0;

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    fall_back_ms: u32,
    /// Share of messages and the delay in ms that no more of them exceed.
    delays: Vec<(f64, f64)>,
    /// By second: bit/s of the flow to each receiver on average, and of unicast to all.
    flow: Vec<(f64, f64)>,
    unicast: Vec<(f64, f64)>,
    /// By second: the longest delay of a message in ms.
    worst: Vec<(f64, f64)>,
    /// By second: links that failed at its beginning.
    failing: Vec<(f64, f64)>,
    /// Of each failure, in ms.
    fall_backs: Vec<f64>,
    returns: Vec<f64>,
    /// Share of messages that come later than each playback buffer allows.
    late: [f64; 3],
}

/// Plays all runs.
///
/// # Errors
/// When a message did not arrive once and in order.
pub fn measure() -> Result<Vec<Run>> {
    let runs = FALL_BACK_MS.into_iter();
    runs.map(|ms| Ok(digest(ms, &play(ms)?))).collect()
}

fn digest(fall_back_ms: u32, seen: &CcrObservations) -> Run {
    let start = seen.report.start_ns;
    let second = |ns: u64| ns.saturating_sub(start) as f64 / 1e9;
    let seconds = TIME as usize;
    let zero = || -> Vec<(f64, f64)> { (0..seconds).map(|s| (s as f64, 0.0)).collect() };
    let (mut flow, mut unicast, mut worst, mut failing) = (zero(), zero(), zero(), zero());
    let mut delays = Vec::new();
    let receivers = seen.arrivals().len() as f64;
    for arrival in seen.arrivals().iter().flatten() {
        let delay = arrival.delay_ms();
        delays.push(delay);
        if let Some((_, most)) = worst.get_mut(second(arrival.sent_ns) as usize) {
            *most = delay.max(*most);
        }
        let at = second(arrival.received_ns) as usize;
        let (series, bits) = match arrival.way {
            Route::Flow => (&mut flow, MESSAGE_BITS / receivers),
            _ => (&mut unicast, MESSAGE_BITS),
        };
        if let Some((_, sum)) = series.get_mut(at) {
            *sum += bits;
        }
    }
    for (at, failing) in &mut failing {
        let fails = seen
            .link_failures()
            .iter()
            .filter(|cut| (second(cut.from_ns)..second(cut.until_ns)).contains(at));
        *failing = fails.count() as f64;
    }
    let failures = seen.failures();
    let late = BUFFERS.map(|buffer| {
        let late = delays.iter().filter(|delay| **delay > buffer);
        late.count() as f64 / delays.len() as f64
    });
    Run {
        fall_back_ms,
        delays: quantiles(delays),
        flow,
        unicast,
        worst,
        failing,
        fall_backs: failures.iter().filter_map(|f| f.fallback_ms).collect(),
        returns: failures.iter().filter_map(|f| f.return_ms).collect(),
        late,
    }
}

/// Returns shares, nearer to each other towards 1, with their quantiles.
fn quantiles(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let tail = (0..=120).map(|n| 1.0 - 10f64.powf(-f64::from(n) / 20.0));
    let mut out = Vec::new();
    for share in tail.chain([1.0]) {
        let rank = (values.len() as f64 * share).ceil() as usize;
        if let Some(value) = values.get(rank.saturating_sub(1)) {
            out.push((share, *value));
        }
    }
    out
}

/// Returns the steps of a distribution.
fn steps(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let step = |(value, n): (f64, f64)| [(value, n / count), (value, (n + 1.0) / count)];
    let numbers = (0..).map(f64::from);
    sorted.into_iter().zip(numbers).flat_map(step).collect()
}

fn line(name: String, colour: usize, points: Vec<(f64, f64)>) -> Line {
    Line {
        name,
        colour,
        dashed: false,
        marked: false,
        points,
    }
}

fn dashed(name: &str, colour: usize, points: Vec<(f64, f64)>) -> Line {
    Line {
        dashed: true,
        ..line(name.to_owned(), colour, points)
    }
}

fn of_each(runs: &[Run], points: impl Fn(&Run) -> Vec<(f64, f64)>) -> Vec<Line> {
    let named = |(run, colour): (&Run, usize)| {
        let name = format!("D_fb {} ms", run.fall_back_ms);
        line(name, colour, points(run))
    };
    runs.iter().zip(0..).map(named).collect()
}

/// Draws the figures and writes the tables.
///
/// # Errors
/// When the document cannot be written.
pub fn publish(runs: &[Run], document: &mut Document) -> Result<()> {
    for run in runs {
        let time = || Axis::linear("time (s)", (0.0, TIME));
        let chart = |title: String, y: Axis, lines: Vec<Line>| Chart {
            title,
            x: time(),
            y,
            lines,
        };
        let ms = run.fall_back_ms;
        let charts = [
            chart(
                format!("Rates, D_fb {ms} ms"),
                Axis::linear("bit/s", (0.0, 32e6)),
                vec![
                    line("flow, to each receiver".into(), 0, run.flow.clone()),
                    line("unicast, to all".into(), 1, run.unicast.clone()),
                ],
            ),
            chart(
                "Longest delay of a message".to_owned(),
                Axis::linear("delay (ms)", (0.0, 200.0)),
                vec![line("any receiver".into(), 4, run.worst.clone())],
            ),
            chart(
                "Failing links of 20".to_owned(),
                Axis::linear("links", (0.0, 6.0)),
                vec![line("failing".into(), 7, run.failing.clone())],
            ),
        ];
        document.draw(&format!("failures-{ms}"), &charts)?;
    }
    document.draw("failures-delay", &delay_charts(runs))?;
    document.draw("failures-reaction", &reaction_charts(runs))?;
    let head = ["D_fb (ms)", "buffer 50 ms", "100 ms", "150 ms"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for run in runs {
        let mut row = vec![run.fall_back_ms.to_string()];
        row.extend(run.late.map(|late| format!("{:.4} %", late * 100.0)));
        rows.push(row);
    }
    document.set_table("failures late", &rows)?;
    let head = [
        "D_fb (ms)",
        "delay p50 (ms)",
        "p99",
        "p99.9",
        "p99.99",
        "most",
        "fall-back p50 (ms)",
        "most",
        "return p50 (ms)",
        "most",
        "failures",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for run in runs {
        let delay = |share: f64| {
            let found = run.delays.iter().find(|(s, _)| *s >= share - 1e-9);
            found.map_or(0.0, |(_, delay)| *delay)
        };
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let mut row = vec![run.fall_back_ms.to_string()];
        row.extend([0.5, 0.99, 0.999, 0.9999, 1.0].map(|s| format!("{:.1}", delay(s))));
        for values in [&run.fall_backs, &run.returns] {
            row.push(format!("{:.0}", median(values.clone())));
            row.push(format!("{:.0}", most(values)));
        }
        row.push(run.fall_backs.len().to_string());
        rows.push(row);
    }
    document.set_table("failures", &rows)
}

fn delay_charts(runs: &[Run]) -> [Chart; 2] {
    let swap = |run: &Run| run.delays.iter().map(|(share, ms)| (*ms, *share)).collect();
    let beyond = |run: &Run| {
        let points = run.delays.iter();
        points
            .map(|(share, ms)| (*ms, (1.0 - share).max(1e-7)))
            .collect()
    };
    let mut tail = of_each(runs, beyond);
    // Figure 9 of the paper: 0.2 % of the frames up to 50 ms, 0.01 % above 150 ms at 150.
    let read = [
        ("paper: 0.2 % to 50 ms", 50.0, 0.002),
        ("paper: 0.01 % to 150 ms", 150.0, 1e-4),
    ];
    for ((name, ms, share), colour) in read.into_iter().zip([7, 6]) {
        tail.push(dashed(name, colour, vec![(ms, 1e-6), (ms, share)]));
    }
    [
        Chart {
            title: "Delay of messages".to_owned(),
            x: Axis::linear("delay (ms)", (9.0, 14.0)),
            y: Axis::linear("share of messages", (0.0, 1.0)),
            lines: of_each(runs, swap),
        },
        Chart {
            title: "Delay of messages: the tail".to_owned(),
            x: Axis::linear("delay (ms)", (0.0, 200.0)),
            y: Axis::log("share that is longer", (1e-6, 1.0)),
            lines: tail,
        },
    ]
}

fn reaction_charts(runs: &[Run]) -> [Chart; 2] {
    let share = || Axis::linear("share of failures", (0.0, 1.0));
    let mut falls = of_each(runs, |run| steps(&run.fall_backs));
    for (ms, colour) in FALL_BACK_MS.into_iter().zip(0..) {
        let at = f64::from(ms);
        let name = format!("{ms} ms after the failure");
        falls.push(dashed(&name, colour, vec![(at, 0.0), (at, 1.0)]));
    }
    let mut returns = of_each(runs, |run| steps(&run.returns));
    let bound = vec![(ROUND_TRIP, 0.0), (ROUND_TRIP, 1.0)];
    returns.push(dashed("paper: up to a round trip", 7, bound));
    [
        Chart {
            title: "From a failure to the fall-back".to_owned(),
            x: Axis::linear("time (ms)", (0.0, 220.0)),
            y: share(),
            lines: falls,
        },
        Chart {
            title: "From a repair to the return".to_owned(),
            x: Axis::linear("time (ms)", (0.0, 60.0)),
            y: share(),
            lines: returns,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_end_at_one() {
        let values: Vec<f64> = (1..=1_000).map(f64::from).collect();
        let quantiles = quantiles(values.clone());
        assert_eq!(quantiles.first(), Some(&(0.0, 1.0)));
        assert_eq!(quantiles.last(), Some(&(1.0, 1_000.0)));
        assert!(quantiles.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        assert_eq!(
            steps(&[3.0, 1.0]),
            [(1.0, 0.0), (1.0, 0.5), (3.0, 0.5), (3.0, 1.0)]
        );
    }
}
