//! Experiments of chapter 5 of "Improving QUIC" (F. Michel, 2018), in virtual time, with the
//! policies and schemes of flows beside the thesis's.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use simulation::Loss;
use simulation::fec::FecFailure;
use simulation::fec::thesis::{
    self, Conditions, Course, Model, Outcome, Reading, Sender, space, space_with_rates, univariate,
};

use super::chart::{Axis, Chart, Line};
use super::document::Document;
use super::parallel;
use crate::figures::median;

/// Conditions of each loss model.
const POINTS: usize = 32;
/// Runs at each, of which the median counts, as in the thesis.
const SEEDS: u64 = 3;
/// Conditions with many receivers, and the receivers.
const MANY: (usize, usize) = (5, 10);
/// Packets of files, of 1,000 bytes each, and conditions of each size.
const FILES: [u64; 3] = [10, 100, 1_000];
const FILE_POINTS: usize = 32;
/// Rates of files in bit/s.
const RATES: (f64, f64) = (1e6, 50e6);
/// Steps of the one-way delay in the univariate analysis, and their length in ms.
const DELAYS: std::ops::RangeInclusive<u64> = 0..=13;
const DELAY_STEP: u64 = 15;
/// Buffers of the thesis, in messages.
const WIDE: Reading = Reading { buffer: 4 };
const NARROW: Reading = Reading { buffer: 2 };

/// Failure of a run in which a receiver left the flow: its conditions do not count, in any way.
const LEFT: &str = "a receiver left the flow";

/// Way of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    name: &'static str,
    fec: Option<&'static str>,
    is_reliable: bool,
}

const fn way(name: &'static str, fec: Option<&'static str>, is_reliable: bool) -> Way {
    Way {
        name,
        fec,
        is_reliable,
    }
}

/// The thesis's UDP, its three codes with unreliable streams, and reliable QUIC; and symbols by
/// another path than packets.
const PLAIN: Way = way("datagrams", None, false);
const SOLOMON: Way = way("Reed–Solomon", Some("proactive:10/20,reed-solomon"), false);
const RLC: Way = way("RLC", Some("proactive:1/2"), false);
const XOR: Way = way("XOR", Some("proactive:1/2,xor"), false);
const OFF: Way = way("off", None, true);
const APART: Way = way(
    "Reed–Solomon, symbols by another path",
    Some("proactive:10/20,reed-solomon,unicast"),
    false,
);
const OF_THESIS: [Way; 6] = [PLAIN, SOLOMON, RLC, XOR, OFF, APART];

/// Policies of a flow, each with each scheme.
const POLICIES: [Way; 12] = [
    way("tail", Some("tail"), true),
    way("tail,reed-solomon", Some("tail,reed-solomon"), true),
    way("tail,xor", Some("tail,xor"), true),
    way("proactive:1/2", Some("proactive:1/2"), true),
    way(
        "proactive:10/20,reed-solomon",
        Some("proactive:10/20,reed-solomon"),
        true,
    ),
    way("proactive:1/2,xor", Some("proactive:1/2,xor"), true),
    way("reactive", Some("reactive"), true),
    way("reactive,reed-solomon", Some("reactive,reed-solomon"), true),
    way("reactive,xor", Some("reactive,xor"), true),
    way("adaptive", Some("adaptive"), true),
    way("adaptive,reed-solomon", Some("adaptive,reed-solomon"), true),
    way("adaptive,xor", Some("adaptive,xor"), true),
];
/// Those of them that are drawn.
const DRAWN: [&str; 4] = ["tail", "proactive:1/2", "reactive", "adaptive"];

/// Figures of a run with one buffer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Figures {
    received: f64,
    rebuffering: f64,
}

/// Run, the median of several.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Run {
    model: String,
    way: String,
    point: usize,
    delay_ms: f64,
    /// Probability of a transition from bad to good.
    r: Option<f64>,
    wide: Figures,
    narrow: Figures,
    sent: f64,
    mean_ms: f64,
    p99_ms: f64,
}

/// Transfer of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Transfer {
    packets: u64,
    way: String,
    point: usize,
    ms: f64,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    runs: Vec<Run>,
    /// The same with many receivers.
    many: Vec<Run>,
    /// Those that differ in the delay alone.
    delays: Vec<Run>,
    transfers: Vec<Transfer>,
}

fn title(model: Model) -> &'static str {
    match model {
        Model::Uniform => "independent",
        Model::TwoStates => "two states",
        Model::GilbertElliott => "Gilbert–Elliott",
    }
}

fn sender(way: Way, receivers: usize) -> Result<Sender> {
    let fec = way.fec.map(str::parse).transpose();
    Ok(Sender {
        fec: fec.with_context(|| format!("policy of {}", way.name))?,
        is_reliable: way.is_reliable,
        receivers,
    })
}

/// Plays runs, and keeps those of conditions in which no receiver left, whichever way was used.
fn play_all(jobs: &[Job]) -> Result<Vec<Run>> {
    let runs = parallel::play_all("losses", jobs, Job::run)?;
    let left: BTreeSet<usize> = jobs
        .iter()
        .zip(&runs)
        .filter(|(_, run)| run.is_none())
        .map(|(job, _)| job.point)
        .collect();
    if !left.is_empty() {
        eprintln!("losses: receivers left in {} conditions", left.len());
    }
    let stayed = runs.into_iter().flatten();
    Ok(stayed.filter(|run| !left.contains(&run.point)).collect())
}

/// Run to be made.
#[derive(Debug, Clone, Copy)]
struct Job {
    model: &'static str,
    point: usize,
    conditions: Conditions,
    way: Way,
    receivers: usize,
    seeds: u64,
}

impl Job {
    fn run(&self) -> Result<Option<Run>> {
        let sender = sender(self.way, self.receivers)?;
        let seeds = (1..=self.seeds).map(|seed| seed + 1_000 * self.point as u64);
        let courses = seeds.map(|seed| thesis::play(self.conditions, sender, seed));
        let courses = courses.collect::<Result<Vec<Course>, _>>();
        let courses = match courses {
            Err(failure) if failure.0 == LEFT => return Ok(None),
            courses => courses.with_context(|| format!("{self:?}"))?,
        };
        let of = |reading: Reading, value: fn(Outcome) -> f64| {
            median(
                courses
                    .iter()
                    .map(|it| value(it.outcome(reading)))
                    .collect(),
            )
        };
        let figures = |reading: Reading| Figures {
            received: of(reading, |it| it.received),
            rebuffering: of(reading, |it| it.rebuffering),
        };
        let r = match self.conditions.loss {
            Loss::GilbertElliott(model) => Some(model.r),
            Loss::Uniform(_) => None,
        };
        Ok(Some(Run {
            model: self.model.to_owned(),
            way: self.way.name.to_owned(),
            point: self.point,
            delay_ms: self.conditions.delay.as_secs_f64() * 1e3,
            r,
            wide: figures(WIDE),
            narrow: figures(NARROW),
            sent: of(WIDE, |it| it.sent as f64),
            mean_ms: of(WIDE, |it| it.mean_ms),
            p99_ms: of(WIDE, |it| it.p99_ms),
        }))
    }
}

fn jobs(model: Model, ways: &[Way], points: usize, receivers: usize, seeds: u64) -> Vec<Job> {
    let space = space(model, points, 1);
    let each = space.iter().enumerate().flat_map(|(point, conditions)| {
        ways.iter().map(move |way| Job {
            model: title(model),
            point,
            conditions: *conditions,
            way: *way,
            receivers,
            seeds,
        })
    });
    each.collect()
}

/// Plays all runs.
///
/// # Errors
/// Something was rebuilt wrongly, or a receiver lacks data that is sent reliably.
pub fn measure() -> Result<Results> {
    let all: Vec<Way> = OF_THESIS.into_iter().chain(POLICIES).collect();
    let mut runs = Vec::new();
    for model in Model::ALL {
        eprintln!("losses, {}", title(model));
        let jobs = jobs(model, &all, POINTS, 1, SEEDS);
        runs.extend(play_all(&jobs)?);
    }
    eprintln!("losses, {} receivers", MANY.1);
    let reliable: Vec<Way> = [OFF].into_iter().chain(POLICIES).collect();
    let many = jobs(Model::GilbertElliott, &reliable, MANY.0, MANY.1, 1);
    let many = play_all(&many)?;
    let delays: Vec<Job> = DELAYS
        .zip(0..)
        .flat_map(|(step, point)| {
            let conditions = univariate(Duration::from_millis(step * DELAY_STEP));
            OF_THESIS.map(|way| Job {
                model: "delay",
                point,
                conditions,
                way,
                receivers: 1,
                seeds: SEEDS,
            })
        })
        .collect();
    let delays = play_all(&delays)?;
    eprintln!("losses, files");
    let space = space_with_rates(Model::TwoStates, RATES, FILE_POINTS, 1);
    let mut files = Vec::new();
    for packets in FILES {
        for (point, at) in space.iter().enumerate() {
            files.extend(reliable.iter().map(|way| (packets, point, *at, *way)));
        }
    }
    let transfers = parallel::play_all(
        "files",
        &files,
        |(packets, point, (conditions, rate), way)| {
            let sender = sender(*way, 1)?;
            let times = (1..=SEEDS).map(|seed| {
                let seed = seed + 1_000 * *point as u64;
                let course = thesis::play_file(*conditions, sender, (*packets, *rate), seed)?;
                Ok(course.outcome(WIDE).mean_ms)
            });
            let times = match times.collect::<Result<_, FecFailure>>() {
                Err(failure) if failure.0 == LEFT => return Ok(None),
                times => times?,
            };
            Ok(Some(Transfer {
                packets: *packets,
                way: way.name.to_owned(),
                point: *point,
                ms: median(times),
            }))
        },
    )?;
    let left = files.iter().zip(&transfers);
    let left: BTreeSet<(u64, usize)> = left
        .filter(|(_, transfer)| transfer.is_none())
        .map(|((packets, point, ..), _)| (*packets, *point))
        .collect();
    eprintln!("losses: receivers left in {} transfers", left.len());
    let mut transfers: Vec<Transfer> = transfers.into_iter().flatten().collect();
    transfers.retain(|it| !left.contains(&(it.packets, it.point)));
    Ok(Results {
        runs,
        many,
        delays,
        transfers,
    })
}

/// Returns the value that this share of all does not exceed.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}

/// Returns the share of values that fulfil something, in %.
fn percent(values: &[f64], is: impl Fn(f64) -> bool) -> f64 {
    let count = values.iter().filter(|value| is(**value)).count();
    count as f64 * 100.0 / values.len().max(1) as f64
}

impl Results {
    /// Returns the runs of a way, by their points.
    fn of(&self, model: Model, way: &str) -> Vec<&Run> {
        select(&self.runs, title(model), way)
    }

    fn values(&self, model: Model, way: &str, value: impl Fn(&Run) -> f64) -> Vec<f64> {
        let runs = self.of(model, way);
        runs.into_iter().map(value).collect()
    }

    /// Returns the ratios of two ways at the same points.
    fn ratios(
        &self,
        model: Model,
        (one, other): (&str, &str),
        value: impl Fn(&Run) -> f64,
    ) -> Vec<f64> {
        ratios(self.of(model, one), self.of(model, other), value)
    }

    /// Returns the ratios of the completion of files of this size to that without symbols.
    fn file_ratios(&self, packets: u64, way: &str) -> Vec<f64> {
        let of = |way: &str| {
            let all = self.transfers.iter();
            all.filter(|it| it.packets == packets && it.way == way)
                .map(|it| it.ms)
                .collect::<Vec<f64>>()
        };
        of(way)
            .iter()
            .zip(of(OFF.name))
            .map(|(a, b)| a / b)
            .collect()
    }
}

fn select<'a>(runs: &'a [Run], model: &str, way: &str) -> Vec<&'a Run> {
    let mine = runs
        .iter()
        .filter(|run| run.model == model && run.way == way);
    mine.collect()
}

fn ratios(one: Vec<&Run>, other: Vec<&Run>, value: impl Fn(&Run) -> f64) -> Vec<f64> {
    let pairs = one.into_iter().zip(other);
    pairs
        .map(|(one, other)| value(one) / value(other))
        .collect()
}

/// Empirical distribution: shares of values that do not exceed each.
fn ecdf(name: &str, colour: usize, mut values: Vec<f64>) -> Line {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let count = values.len().max(1) as f64;
    let steps = values.iter().zip(0..).flat_map(|(value, at)| {
        let share = |at: u32| f64::from(at) / count;
        [(*value, share(at)), (*value, share(at + 1))]
    });
    Line {
        name: name.to_owned(),
        colour,
        dashed: false,
        marked: false,
        points: steps.collect(),
    }
}

fn distribution(title: String, x: Axis, lines: Vec<Line>) -> Chart {
    Chart {
        title,
        x,
        y: Axis::linear("share of the conditions", (0.0, 1.0)),
        lines,
    }
}

/// Draws the distributions and writes the tables.
///
/// # Errors
/// The document cannot be written.
pub fn publish(results: &Results, document: &mut Document) -> Result<()> {
    document.draw("losses-thesis", &thesis_charts(results))?;
    document.draw("losses-delay", &delay_charts(results))?;
    document.draw("losses-policies", &policy_charts(results))?;
    document.set_table("losses thesis", &claim_rows(results))?;
    document.set_table("losses codes", &way_rows(results, &OF_THESIS))?;
    document.set_table("losses policies", &policy_rows(results))?;
    document.set_table("losses many", &many_rows(results))?;
    document.set_table("losses files", &file_rows(results))
}

fn thesis_charts(results: &Results) -> Vec<Chart> {
    let lines = |model: Model, ways: &[Way], value: &dyn Fn(&Run) -> f64| {
        let each = OF_THESIS.iter().zip(0..);
        each.filter(|(way, _)| ways.contains(way))
            .map(|(way, colour)| ecdf(way.name, colour, results.values(model, way.name, value)))
            .collect::<Vec<Line>>()
    };
    let codes = [PLAIN, SOLOMON, RLC, XOR];
    let received = |from: f64| Axis::linear("share of the data received", (from, 1.0));
    let waited = |to: f64| Axis::linear("re-buffering (s of 25)", (0.0, to));
    let (bursts, uniform) = (Model::GilbertElliott, Model::Uniform);
    vec![
        distribution(
            "Gilbert–Elliott: data received (figures 5.7, 5.13)".into(),
            received(0.7),
            lines(bursts, &OF_THESIS, &|run| run.wide.received),
        ),
        distribution(
            "Gilbert–Elliott: re-buffering (figures 5.8, 5.14)".into(),
            waited(20.0),
            lines(bursts, &OF_THESIS, &|run| run.wide.rebuffering),
        ),
        distribution(
            "Independent: data received (figure 5.11)".into(),
            received(0.97),
            lines(uniform, &codes, &|run| run.wide.received),
        ),
        distribution(
            "Independent: re-buffering (figure 5.12)".into(),
            waited(6.0),
            lines(uniform, &codes, &|run| run.wide.rebuffering),
        ),
        distribution(
            "Independent, buffer of 2: re-buffering (figure 5.17)".into(),
            waited(6.0),
            lines(uniform, &codes, &|run| run.narrow.rebuffering),
        ),
        distribution(
            "Gilbert–Elliott, buffer of 2: re-buffering (figure 5.19)".into(),
            waited(20.0),
            lines(bursts, &codes, &|run| run.narrow.rebuffering),
        ),
    ]
}

fn delay_charts(results: &Results) -> Vec<Chart> {
    let by_delay = |way: Way, colour: usize| {
        let runs = select(&results.delays, "delay", way.name);
        let points = runs.iter().map(|run| (run.delay_ms, run.wide.rebuffering));
        Line {
            name: way.name.to_owned(),
            colour,
            dashed: false,
            marked: true,
            points: points.collect(),
        }
    };
    let sent = |way: Way, colour: usize| {
        let pair = (way.name, PLAIN.name);
        ecdf(
            way.name,
            colour,
            results.ratios(Model::TwoStates, pair, |run| run.sent),
        )
    };
    vec![
        Chart {
            title: "Gilbert–Elliott: re-buffering by the delay (figure 5.10)".into(),
            x: Axis::linear("one-way delay (ms)", (0.0, 200.0)),
            y: Axis::linear("re-buffering (s of 25)", (0.0, 25.0)),
            lines: vec![by_delay(SOLOMON, 1), by_delay(RLC, 2), by_delay(OFF, 4)],
        },
        distribution(
            "Two states: bytes sent over those of datagrams (figure 5.6)".into(),
            Axis::linear("ratio", (0.95, 1.7)),
            vec![sent(SOLOMON, 1), sent(RLC, 2), sent(XOR, 3), sent(OFF, 4)],
        ),
    ]
}

fn policy_charts(results: &Results) -> Vec<Chart> {
    let bursts = Model::GilbertElliott;
    let drawn = |values: &dyn Fn(&str) -> Vec<f64>| {
        let each = DRAWN.iter().zip(0..);
        each.map(|(way, colour)| ecdf(way, colour, values(way)))
            .collect::<Vec<Line>>()
    };
    let ratio = || Axis::linear("with symbols over without", (0.0, 1.4));
    let mut charts = vec![
        distribution(
            "Gilbert–Elliott, 1 receiver: 99th percentile of a message's completion".into(),
            ratio(),
            drawn(&|way| results.ratios(bursts, (way, OFF.name), |run| run.p99_ms)),
        ),
        distribution(
            "Gilbert–Elliott, 10 receivers: 99th percentile of a message's completion".into(),
            ratio(),
            drawn(&|way| {
                let of = |way| select(&results.many, title(bursts), way);
                ratios(of(way), of(OFF.name), |run| run.p99_ms)
            }),
        ),
    ];
    for packets in FILES {
        charts.push(distribution(
            format!("Two states, 1 receiver: completion of a file of {packets} kB"),
            ratio(),
            drawn(&|way| results.file_ratios(packets, way)),
        ));
    }
    charts
}

fn head(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn way_rows(results: &Results, ways: &[Way]) -> Vec<Vec<String>> {
    let mut rows = vec![head(&[
        "Losses",
        "Sent by",
        "Received (%): mean",
        "worst tenth",
        "Re-buffering (s): median",
        "worst tenth",
        "With a buffer of 2: received",
        "re-buffering, median",
        "worst tenth",
        "Bytes over datagrams",
    ])];
    for model in Model::ALL {
        for way in ways {
            let of = |value: fn(&Run) -> f64| results.values(model, way.name, value);
            let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
            let sent = results.ratios(model, (way.name, PLAIN.name), |run| run.sent);
            rows.push(vec![
                title(model).to_owned(),
                way.name.to_owned(),
                format!("{:.2}", mean(of(|run| run.wide.received)) * 100.0),
                format!("{:.2}", quantile(of(|run| run.wide.received), 0.1) * 100.0),
                format!("{:.2}", median(of(|run| run.wide.rebuffering))),
                format!("{:.2}", quantile(of(|run| run.wide.rebuffering), 0.9)),
                format!("{:.2}", mean(of(|run| run.narrow.received)) * 100.0),
                format!("{:.2}", median(of(|run| run.narrow.rebuffering))),
                format!("{:.2}", quantile(of(|run| run.narrow.rebuffering), 0.9)),
                format!("{:.3}", median(sent)),
            ]);
        }
    }
    rows
}

/// Columns of the policies, from runs and those without symbols at the same conditions.
fn policy_row(losses: &str, way: &str, runs: &[Run]) -> Vec<String> {
    let of = |way: &str| select(runs, losses, way);
    let values = |value: fn(&Run) -> f64| of(way).into_iter().map(value).collect::<Vec<f64>>();
    let to_off = |value: fn(&Run) -> f64| ratios(of(way), of(OFF.name), value);
    let p99 = to_off(|run| run.p99_ms);
    vec![
        losses.to_owned(),
        way.to_owned(),
        format!("{:.2}", median(values(|run| run.wide.rebuffering))),
        format!("{:.2}", quantile(values(|run| run.wide.rebuffering), 0.9)),
        format!("{:.3}", median(to_off(|run| run.mean_ms))),
        format!("{:.3}", median(p99.clone())),
        format!("{:.0}", percent(&p99, |ratio| ratio > 1.0)),
        format!("{:.3}", median(to_off(|run| run.sent))),
    ]
}

const POLICY_HEAD: [&str; 8] = [
    "Losses",
    "Policy",
    "Re-buffering (s): median",
    "worst tenth",
    "Completion over `off`: mean",
    "99th percentile",
    "slower (% of conditions)",
    "Bytes over `off`",
];

fn policy_rows(results: &Results) -> Vec<Vec<String>> {
    let mut rows = vec![head(&POLICY_HEAD)];
    for model in Model::ALL {
        for way in [OFF].iter().chain(&POLICIES) {
            rows.push(policy_row(title(model), way.name, &results.runs));
        }
    }
    rows
}

fn many_rows(results: &Results) -> Vec<Vec<String>> {
    let losses = title(Model::GilbertElliott);
    let ways = [OFF].into_iter().chain(POLICIES);
    let rows = ways.map(|way| policy_row(losses, way.name, &results.many));
    [head(&POLICY_HEAD)].into_iter().chain(rows).collect()
}

fn file_rows(results: &Results) -> Vec<Vec<String>> {
    let mut rows = vec![head(&[
        "Policy",
        "10 kB: median",
        "best tenth",
        "worst tenth",
        "100 kB: median",
        "best tenth",
        "worst tenth",
        "1 MB: median",
        "best tenth",
        "worst tenth",
    ])];
    for way in POLICIES {
        let mut row = vec![way.name.to_owned()];
        for packets in FILES {
            let ratios = results.file_ratios(packets, way.name);
            let shares = [0.5, 0.1, 0.9];
            row.extend(shares.map(|share| format!("{:.3}", quantile(ratios.clone(), share))));
        }
        rows.push(row);
    }
    rows
}

/// Claims of the thesis about its figures, each with the same here.
fn claim_rows(results: &Results) -> Vec<Vec<String>> {
    let (bursts, uniform) = (Model::GilbertElliott, Model::Uniform);
    let wide = |run: &Run| run.wide.received;
    let waits = |run: &Run| run.wide.rebuffering;
    let range = |values: &[f64]| format!("{:.2} to {:.2}", least(values), largest(values));
    let sent = |way: Way| results.ratios(Model::TwoStates, (way.name, PLAIN.name), |run| run.sent);
    // How often one way waits less than another, and more.
    let contest = |model: Model, one: Way, other: Way, value: &dyn Fn(&Run) -> f64| {
        let (ours, theirs) = (
            results.values(model, one.name, value),
            results.values(model, other.name, value),
        );
        let gaps: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a - b).collect();
        (
            percent(&gaps, |gap| gap < 0.0),
            percent(&gaps, |gap| gap > 0.0),
        )
    };
    let total = |model: Model, way: Way, value: &dyn Fn(&Run) -> f64| {
        let values = results.values(model, way.name, value);
        values.iter().sum::<f64>() / values.len().max(1) as f64
    };
    let gains = results.ratios(bursts, (SOLOMON.name, PLAIN.name), wide);
    let worse: Vec<f64> = results
        .of(bursts, SOLOMON.name)
        .iter()
        .zip(&gains)
        .filter(|(_, gain)| **gain < 1.0)
        .filter_map(|(run, _)| run.r)
        .collect();
    let reliable = contest(bursts, OFF, SOLOMON, &waits);
    let crossing = contest(bursts, OFF, PLAIN, &waits);
    let slow: Vec<f64> = results
        .of(bursts, OFF.name)
        .iter()
        .zip(results.of(bursts, PLAIN.name))
        .filter(|(reliable, plain)| waits(reliable) > waits(plain))
        .map(|(run, _)| run.delay_ms)
        .collect();
    let by_delay = |way: Way| {
        let runs = select(&results.delays, "delay", way.name);
        let at = |ms: f64| {
            let run = runs.iter().find(|run| run.delay_ms == ms);
            run.map_or(f64::NAN, |run| run.wide.rebuffering)
        };
        [0.0, 30.0, 45.0, 60.0, 75.0, 105.0, 195.0].map(|ms| format!("{:.1}", at(ms)))
    };
    let xor = |model: Model| contest(model, XOR, SOLOMON, &|run| -wide(run));
    let less = |(fewer, more): (f64, f64)| {
        format!("in {fewer:.0} % of the conditions, more in {more:.0} %")
    };
    let rlc = contest(bursts, RLC, SOLOMON, &|run| -wide(run));
    let apart = contest(bursts, APART, SOLOMON, &|run| -wide(run));
    let apart_waits = contest(bursts, APART, SOLOMON, &waits);
    let narrow = |run: &Run| run.narrow.rebuffering;
    let three = |model: Model, value: &dyn Fn(&Run) -> f64| {
        let of = |way| total(model, way, value);
        format!(
            "datagrams {:.2} s, Reed–Solomon {:.2} s, RLC {:.2} s",
            of(PLAIN),
            of(SOLOMON),
            of(RLC)
        )
    };
    let claims = [
        (
            "5.2, figure 5.6",
            "Reed–Solomon and RLC send 1.5 to 1.6 times what UDP sends",
            format!(
                "{} and {}; headers are larger without codes too",
                range(&sent(SOLOMON)),
                range(&sent(RLC))
            ),
        ),
        (
            "5.2, figure 5.6",
            "reliable QUIC sends more where bursts are long or frequent (numbers in the picture)",
            format!("repairs by unicast: {}", range(&sent(OFF))),
        ),
        (
            "5.3, figure 5.9",
            "QUIC-FEC receives more than UDP in the vast majority; less only at r ≤ 0.06",
            format!(
                "more in {:.0} %, less in {:.0} %{}",
                percent(&gains, |gain| gain > 1.0),
                percent(&gains, |gain| gain < 1.0),
                match worse.is_empty() {
                    true => String::new(),
                    false => format!(", r up to {:.3}", largest(&worse)),
                }
            ),
        ),
        (
            "5.4, figure 5.8",
            "reliable QUIC re-buffers a lot more than QUIC-FEC",
            format!("more in {:.0} %, less in {:.0} %", reliable.1, reliable.0),
        ),
        (
            "5.4, figure 5.8",
            "the curves of reliable QUIC and UDP cross: more than UDP at high delays",
            format!(
                "more in {:.0} %, at delays of {:.0} ms and above",
                crossing.1,
                least(&slow)
            ),
        ),
        (
            "5.4.1, figure 5.10",
            "above a delay of 45 ms reliable QUIC re-buffers a lot more, QUIC-FEC hardly",
            format!(
                "at 0, 30, 45, 60, 75, 105 and 195 ms: off {}; Reed–Solomon {} s",
                by_delay(OFF).join(", "),
                by_delay(SOLOMON).join(", ")
            ),
        ),
        (
            "5.5.1, figure 5.11",
            "independent: interleaved XOR receives quite less than Reed–Solomon",
            format!("XOR, which is not interleaved here, less {}", {
                let (more, fewer) = xor(uniform);
                less((fewer, more))
            }),
        ),
        (
            "5.5.2, figure 5.13",
            "Gilbert–Elliott: XOR receives less too",
            format!("less {}", {
                let (more, fewer) = xor(bursts);
                less((fewer, more))
            }),
        ),
        (
            "5.6.1, figure 5.11",
            "independent: with both codes almost every lost packet is recovered",
            format!(
                "lost for the reader, without symbols {:.2} %, Reed–Solomon {:.4} %, RLC {:.4} %",
                (1.0 - total(uniform, PLAIN, &wide)) * 100.0,
                (1.0 - total(uniform, SOLOMON, &wide)) * 100.0,
                (1.0 - total(uniform, RLC, &wide)) * 100.0
            ),
        ),
        (
            "5.6.1, figure 5.12",
            "independent: RLC re-buffers less than Reed–Solomon, whose blocks span messages",
            three(uniform, &waits),
        ),
        (
            "5.6.2, figure 5.15",
            "Gilbert–Elliott: Reed–Solomon receives more than RLC in the majority",
            format!("RLC more in {:.0} %, less in {:.0} %", rlc.0, rlc.1),
        ),
        (
            "5.7.1, figure 5.17",
            "independent, buffer of 2: Reed–Solomon is not far from UDP, RLC nearly unaffected",
            three(uniform, &narrow),
        ),
        (
            "5.7.2, figure 5.19",
            "Gilbert–Elliott, buffer of 2: RLC ahead, less clearly",
            three(bursts, &narrow),
        ),
        (
            "5.9.1, figures 5.25 and 5.26",
            "packets and symbols on two equal paths in turn: often more is received, and \
             re-buffering may be longer where bursts are",
            format!(
                "symbols by another path: more is received in {:.0} %, less in {:.0} %; \
                 re-buffering is shorter in {:.0} %, longer in {:.0} %",
                apart.0, apart.1, apart_waits.0, apart_waits.1
            ),
        ),
    ];
    let rows = claims.map(|(place, thesis, here)| vec![place.into(), thesis.into(), here]);
    [head(&["Section", "Thesis", "Here"])]
        .into_iter()
        .chain(rows)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_a_policy_that_flows_have() {
        for way in OF_THESIS.into_iter().chain(POLICIES) {
            let sender = sender(way, 1).unwrap();
            assert_eq!(sender.fec.map(|fec| fec.to_string()).as_deref(), way.fec);
        }
        let drawn = |name: &&str| POLICIES.iter().any(|way| way.name == *name);
        assert!(DRAWN.iter().all(drawn));
    }

    #[test]
    fn distributions_rise_to_one() {
        let line = ecdf("a", 0, vec![3.0, 1.0, f64::NAN, 2.0, 1.0]);
        assert_eq!(line.points.first(), Some(&(1.0, 0.0)));
        assert_eq!(line.points.last(), Some(&(3.0, 1.0)));
        assert!(line.points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
        assert!(line.points.contains(&(1.0, 0.5)));
    }

    /// A few conditions through the whole of it: tables have a row for all that was played.
    #[test]
    fn tables_have_all_ways() {
        let all: Vec<Way> = OF_THESIS.into_iter().chain(POLICIES).collect();
        let runs = jobs(Model::GilbertElliott, &all, 1, 1, 1);
        let runs = play_all(&runs).unwrap();
        let results = Results {
            many: runs.clone(),
            delays: Vec::new(),
            transfers: Vec::new(),
            runs,
        };
        let rows = many_rows(&results);
        assert_eq!(rows.len(), 1 + 1 + POLICIES.len());
        assert_eq!(
            rows[1][1..],
            [
                "off",
                &rows[1][2],
                &rows[1][3],
                "1.000",
                "1.000",
                "0",
                "1.000"
            ]
        );
        assert!(
            rows.iter().flatten().all(|cell| !cell.contains("NaN")),
            "{rows:?}"
        );
    }
}
