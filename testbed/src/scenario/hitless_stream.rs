//! A stream of 200 messages a second to receivers that lose a leg in the middle: one with multicast
//! and a relay and one with one leg lose multicast, one with two relays loses one of them.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::require_no_panic;
use super::tunnel::RelaySeat;
use crate::binaries::Binaries;
use crate::lab::{Lab, Multicast};
use crate::process::{Launch, Service};
use crate::run_dir::RunDir;
use crate::stream::{Arrival, Route, StreamReport, now_ns, read_arrivals};
use crate::waiting::{pause, wait_for};

const GROUP: &str = "232.70.70.1:4434";
const SIZE: usize = 1_100;
const PER_S: u64 = 200;
/// Time before multicast is cut, in which both legs are proved.
const BEFORE: Duration = Duration::from_secs(6);
/// Time after the cut in which gaps are looked for, and before it, undisturbed.
const LOOK: Duration = Duration::from_secs(5);
/// Time limit for the start, and for deliveries after the last message.
const PATIENCE: Duration = Duration::from_secs(60);

/// The receivers: the name of each, its legs, and its relays by their places.
const SEATS: [(&str, &str, &[usize]); 3] = [
    ("two", "two", &[0]),
    ("one", "one", &[0]),
    ("relays", "two", &[1, 2]),
];
/// The relay that dies.
const KILLED: usize = 1;

/// Effect of the loss on a receiver.
#[derive(Debug, Clone, Copy)]
pub struct Noticed {
    /// The longest time between two messages from the cut on, in intervals of the stream.
    pub gap_intervals: f64,
    /// The end of that time, in milliseconds after the cut.
    pub gap_at_ms: i64,
    /// The longest one in as long a time before the cut, in intervals: the share of the machine's
    /// scheduling.
    pub calm_gap_intervals: f64,
    /// Messages from the second before the cut on that did not come by the flow alone.
    pub repairs: usize,
}

/// Plays it. Returns what the receiver with multicast and a relay noticed, the one with one leg,
/// and the one with two relays.
///
/// # Errors
/// The lab cannot be made, or a message did not arrive once and in order.
pub fn play_hitless() -> Result<[Noticed; 3]> {
    let mut run = RunDir::new("hitless")?;
    let played = play(&run);
    if played.is_ok() {
        require_no_panic(&run.path().join("logs"))?;
        run.discard();
    }
    played
}

fn play(run: &RunDir) -> Result<[Noticed; 3]> {
    let mut lab = Lab::new()?;
    let bins = Binaries::find()?.reachable(lab.rootless(), run)?;
    let logs = run.path().join("logs");
    std::fs::create_dir(&logs)?;
    let source_node = lab.add_node("source", 2)?;
    let mut relays = Vec::new();
    for (name, host) in ["relay1", "relay2", "relay3"].into_iter().zip(3..) {
        let mut relay = RelaySeat::new(lab.add_node(name, host)?, name, &bins, &[], None);
        relay.start(&logs)?;
        relays.push(relay);
    }
    let mut nodes = Vec::new();
    for ((name, ..), host) in SEATS.into_iter().zip(11..) {
        nodes.push(lab.add_node(name, host)?);
    }
    lab.set_multicast(&nodes[2], Multicast::Cut)?;
    let folder = |name: &str| run.path().join(name);
    for node in nodes.iter().chain([&source_node]) {
        std::fs::create_dir(folder(node.name()))?;
        node.hand_over(&folder(node.name()))?;
    }
    let report = folder("source").join("report.json");
    let count = (BEFORE + LOOK).as_secs() * PER_S;
    let source = format!(
        "source --group {GROUP} --interface {} --receivers 3 --count {count} --size {SIZE} --rate \
         {} --report {}",
        source_node.address(),
        PER_S * SIZE as u64 * 8,
        report.display()
    );
    let mut source = start(&source_node, &bins, &source, &logs)?;
    let mut receivers = Vec::new();
    for (node, (_, redundancy, own)) in nodes.iter().zip(SEATS) {
        let own = own
            .iter()
            .map(|at| relays[*at].node().address().to_string());
        let own: Vec<_> = own.collect();
        let records = folder(node.name()).join("arrivals");
        let receiver = format!(
            "receiver --server {}:4433 --name {} --records {} --relay {} \
             --redundancy {redundancy}",
            source_node.address(),
            node.name(),
            records.display(),
            own.join(",")
        );
        receivers.push(start(node, &bins, &receiver, &logs)?);
    }
    let start_ns = wait_for("all receivers on the flow", PATIENCE, || {
        source.check_running()?;
        Ok(StreamReport::read(&report)?.map(|report| report.start_ns))
    })?;
    let cut_ns = start_ns + u64::try_from(BEFORE.as_nanos())?;
    pause(Duration::from_nanos(cut_ns.saturating_sub(now_ns())));
    for node in &nodes[..2] {
        lab.set_multicast(node, Multicast::Cut)?;
    }
    relays[KILLED].kill()?;
    let ended = source.wait_end(PATIENCE)?;
    ensure!(
        ended.success(),
        "the source ended with {ended}: {}",
        source.log_tail()
    );
    let mut noticed = Vec::new();
    for (node, receiver) in nodes.iter().zip(&mut receivers) {
        let ended = receiver.terminate(PATIENCE)?;
        ensure!(ended.success(), "{} ended with {ended}", receiver.name());
        let arrivals = read_arrivals(&folder(node.name()).join("arrivals"))?;
        noticed.push(judge(&arrivals, count, cut_ns).context(receiver.name().to_owned())?);
    }
    noticed.try_into().ok().context("three receivers")
}

fn start(
    node: &crate::lab::Node,
    bins: &Binaries,
    arguments: &str,
    logs: &std::path::Path,
) -> Result<Service> {
    let launch = Launch {
        name: node.name().to_owned(),
        program: bins.stream.clone(),
        args: arguments.split_whitespace().map(str::to_owned).collect(),
        env: Vec::new(),
    };
    Service::start(node, &launch, logs)
}

/// Judges what arrived from a second before the cut on.
fn judge(arrivals: &[Arrival], count: u64, cut_ns: u64) -> Result<Noticed> {
    let seqs = arrivals.iter().map(|arrival| arrival.seq);
    ensure!(
        seqs.eq(1..=count),
        "not every message came once and in order"
    );
    let interval_ns = 1_000_000_000 / PER_S;
    let look_ns = u64::try_from(LOOK.as_nanos())?;
    // The last message before the cut is the beginning of a gap that it makes.
    let sent = arrivals.iter().map(|arrival| arrival.sent_ns);
    let from = sent.filter(|sent| *sent < cut_ns).max();
    let from = from.context("nothing before the cut")?;
    let (gap_ns, at_ns) = longest_gap(arrivals, from..u64::MAX).context("nothing after the cut")?;
    let calm = from.saturating_sub(look_ns)..from;
    let (calm_ns, _) = longest_gap(arrivals, calm).context("nothing before the cut")?;
    let from = cut_ns.saturating_sub(1_000_000_000);
    let around = arrivals.iter().filter(|arrival| arrival.sent_ns >= from);
    Ok(Noticed {
        gap_intervals: gap_ns as f64 / interval_ns as f64,
        gap_at_ms: (at_ns as i64 - cut_ns as i64) / 1_000_000,
        calm_gap_intervals: calm_ns as f64 / interval_ns as f64,
        repairs: around.filter(|a| a.way != Route::Flow).count(),
    })
}

/// Returns the longest time between two messages that were sent within a time, and its end.
fn longest_gap(arrivals: &[Arrival], within: Range<u64>) -> Option<(u64, u64)> {
    let sent = arrivals
        .iter()
        .filter(|arrival| within.contains(&arrival.sent_ns));
    let times: Vec<_> = sent.map(|arrival| arrival.received_ns).collect();
    let gaps = times
        .windows(2)
        .map(|pair| (pair[1].saturating_sub(pair[0]), pair[1]));
    gaps.max()
}
