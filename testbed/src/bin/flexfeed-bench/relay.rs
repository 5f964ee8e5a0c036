//! Capacity and cost of a relay: the real `flexfeed-relay`, on one machine with sender and
//! receivers.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use testbed::binaries::Binaries;
use testbed::lab::{Lab, Node};
use testbed::pump::{DrainReport, SendReport};
use testbed::run_dir::RunDir;
use testbed::scenario::RelaySeat;
use testbed::waiting::pause;

use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 7] = [
    "relay_lossless_pps",
    "relay_fanout_vs_sendmmsg_n100",
    "relay_fanout_trains_vs_sendmmsg_n100",
    "relay_fanout_ns_n100",
    "relay_overload_rss_mib",
    "relay_latency_vs_udp",
    "relay_latency_added_us",
];

const GROUP: &str = "232.70.70.1:4434";
const SIZE: u32 = 1200;
/// An IPv4 and a UDP header, and the two bytes of AMT.
const AROUND: u32 = 20 + 8 + 2;
const GATEWAYS: u32 = 100;
const RUNS: usize = 3;
/// Time to join before the packets, and for late packets after them, in ms.
const BEFORE: u64 = 600;
const AFTER: u64 = 400;

/// A machine with a relay.
pub struct Machine {
    // The relay ends before the network.
    relay: RelaySeat,
    node: Node,
    bins: Binaries,
    run: RunDir,
    _lab: Lab,
}

impl Machine {
    /// Makes a node with a relay that takes what is sent in the same node.
    pub fn new() -> Result<Machine> {
        let mut lab = Lab::new()?;
        let node = lab.add_node("machine", 2)?;
        let run = RunDir::new("bench-relay")?;
        let bins = Binaries::find()?.reachable(lab.rootless(), &run)?;
        let logs = run.path().join("logs");
        std::fs::create_dir(&logs)?;
        // All gateways have one address.
        let often = ["--requests-per-second-per-address", "1000"];
        let args = [&["--native-interface", "eth0"], &often[..]].concat();
        let mut relay = RelaySeat::new(node.clone(), "relay", &bins, &args, None);
        relay.start(&logs)?;
        Ok(Machine {
            relay,
            node,
            bins,
            run,
            _lab: lab,
        })
    }

    /// Says that nothing went wrong.
    pub fn done(mut self) {
        self.run.discard();
    }

    fn source(&self) -> IpAddr {
        self.node.ip()
    }

    /// Address of the relay.
    pub fn relay_at(&self) -> SocketAddr {
        SocketAddr::new(self.node.ip(), amt::PORT)
    }

    /// Starts `flexfeed-pump`.
    fn pump(&self, what: &str, to: &str, ms: u64, more: &[&str]) -> Result<Child> {
        let mut command = self.node.owner_command(PathBuf::from(&self.bins.pump))?;
        command
            .args([what, "--to", to, "--from", &self.source().to_string()])
            .args(["--for-ms", &ms.to_string()])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting flexfeed-pump")
    }

    /// Receives as `drain` says while `send` sends for a time. Both are what was asked for, or it
    /// is an error.
    pub fn pass(
        &mut self,
        drain: &[&str],
        send: &[&str],
        ms: u64,
    ) -> Result<(SendReport, DrainReport)> {
        self.pass_to(GROUP, drain, send, ms)
    }

    fn pass_to(
        &mut self,
        to: &str,
        drain: &[&str],
        send: &[&str],
        ms: u64,
    ) -> Result<(SendReport, DrainReport)> {
        let drain = self.pump("drain", to, BEFORE + ms + AFTER, drain)?;
        pause(Duration::from_millis(BEFORE));
        let sent: SendReport = report_of(self.pump("send", to, ms, send)?)?;
        let drained: DrainReport = report_of(drain)?;
        ensure!(
            drained.wrong == 0,
            "{} packets came changed, twice or too late",
            drained.wrong
        );
        Ok((sent, drained))
    }
}

fn report_of<T: DeserializeOwned>(child: Child) -> Result<T> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "flexfeed-pump failed");
    serde_json::from_slice(&output.stdout).context("reading the report of flexfeed-pump")
}

/// Measures what is asked for.
///
/// # Errors
/// When the relay does not do its work, or what arrives is not what was sent.
pub fn measure(figures: &mut Figures) -> Result<()> {
    if !figures.wants(&NAMES) {
        return Ok(());
    }
    let mut machine = Machine::new()?;
    let [lossless, single, trains, ns, rss, latency, added] = NAMES;
    if figures.wants(&[latency, added]) {
        let (ratio, us) = measure_latency(&mut machine)?;
        figures.take(latency, ratio, "ratio");
        figures.take(added, us, "us");
    }
    if figures.wants(&[single, trains, ns]) {
        let (floor, one, many) = measure_fanout(&mut machine)?;
        figures.take(single, one / floor, "ratio");
        figures.take(trains, many / floor, "ratio");
        figures.take(ns, one, "ns");
    }
    if figures.wants(&[lossless]) {
        figures.take(lossless, measure_lossless(&mut machine)?, "packets/s");
    }
    if figures.wants(&[rss]) {
        figures.take(rss, measure_overload(&mut machine)?, "MiB");
    }
    machine.done();
    Ok(())
}

/// The highest rate at which everything arrived at one gateway, by doubling and halving.
fn measure_lossless(machine: &mut Machine) -> Result<f64> {
    let mut good = 0_u32;
    let mut next = 20_000_u32;
    let mut bad = None;
    // Within 5 %.
    while bad.is_none_or(|bad| f64::from(bad) > f64::from(good) * 1.05) {
        if passes(machine, next)? {
            good = next;
        } else {
            bad = Some(next);
        }
        next = match bad {
            None => good * 2,
            Some(bad) if good == 0 => bad / 2,
            Some(bad) => good.midpoint(bad),
        };
        ensure!(next > 1000, "packets are lost even at {next} a second");
    }
    Ok(f64::from(good))
}

/// Whether everything arrives at this rate, in the first or the second attempt: other programs of
/// this machine take turns on its processors.
fn passes(machine: &mut Machine, rate: u32) -> Result<bool> {
    let relay = machine.relay_at().to_string();
    let train = (rate / 2000).clamp(1, 40).to_string();
    let text = rate.to_string();
    for _ in 0..2 {
        let drain = ["--urgent", "--relay", &relay, "--count", "1"];
        let send = ["--urgent", "--rate", &text, "--train", &train];
        let (sent, drained) = machine.pass(&drain, &send, 3000)?;
        let lost = sent.packets.saturating_sub(drained.total());
        let reached = sent.packets as f64 * 1000.0 / sent.ms.max(1) as f64;
        eprintln!(
            "relay, one gateway: {reached:.0} packets/s in, {lost} of {} lost",
            sent.packets
        );
        if reached < f64::from(rate) * 0.97 {
            // The sender is at its end, or the relay in its way.
            continue;
        }
        if lost == 0 && sent.refused == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// CPU time in ns per packet and gateway: of `sendmmsg`, of the relay with single packets, of the
/// relay with trains of ten.
fn measure_fanout(machine: &mut Machine) -> Result<(f64, f64, f64)> {
    let relay = machine.relay_at().to_string();
    let count = GATEWAYS.to_string();
    let mut seen: [Vec<f64>; 3] = Default::default();
    for run in 1..=RUNS {
        let ports = format!("{}:20000", machine.source());
        let size = (SIZE + AROUND).to_string();
        let drain = machine.pump(
            "drain",
            &ports,
            BEFORE + 3000 + AFTER,
            &["--count", &count, "--size", &size],
        )?;
        pause(Duration::from_millis(BEFORE));
        let args = ["--count", &count, "--size", &size, "--rate", "200"];
        let sent: SendReport = report_of(machine.pump("floor", &ports, 3000, &args)?)?;
        let drained: DrainReport = report_of(drain)?;
        all_arrived(&sent, &drained)?;
        let floor = sent.cpu_ns as f64 / drained.total() as f64;

        let mut costs = Vec::new();
        for (rate, train) in [("200", "1"), ("2000", "10")] {
            let drain = ["--relay", &relay, "--count", &count];
            let drain = machine.pump("drain", GROUP, BEFORE + 3000 + AFTER, &drain)?;
            pause(Duration::from_millis(BEFORE));
            let before = machine.relay.running()?.cpu_time()?;
            let send = ["--rate", rate, "--train", train];
            let sent: SendReport = report_of(machine.pump("send", GROUP, 3000, &send)?)?;
            let spent = machine.relay.running()?.cpu_time()?.saturating_sub(before);
            let drained: DrainReport = report_of(drain)?;
            all_arrived(&sent, &drained)?;
            costs.push(spent.as_nanos() as f64 / drained.total() as f64);
        }
        let [one, many] = costs.as_slice() else {
            anyhow::bail!("two costs")
        };
        eprintln!(
            "relay, {GATEWAYS} gateways, run {run} of {RUNS}: sendmmsg {floor:.0} ns, relay \
             {one:.0} ns, with trains {many:.0} ns"
        );
        for (all, value) in seen.iter_mut().zip([floor, *one, *many]) {
            all.push(value);
        }
    }
    let [floor, one, many] = seen.map(median);
    Ok((floor, one, many))
}

fn all_arrived(sent: &SendReport, drained: &DrainReport) -> Result<()> {
    let due = sent.packets * u64::from(GATEWAYS);
    ensure!(
        drained.wrong == 0 && drained.total() == due,
        "{} of {due} packets arrived, {} with other content",
        drained.total(),
        drained.wrong
    );
    Ok(())
}

/// Measures the growth of the relay's memory, in MiB, under ten times the load that it can forward.
fn measure_overload(machine: &mut Machine) -> Result<f64> {
    let relay = machine.relay_at().to_string();
    let count = GATEWAYS.to_string();
    let drain = ["--urgent", "--relay", &relay, "--count", &count];
    let drain = machine.pump("drain", GROUP, BEFORE + 10_000 + AFTER, &drain)?;
    pause(Duration::from_millis(BEFORE));
    let before = machine.relay.running()?.resident_kib()?;
    let send = machine.pump("send", GROUP, 10_000, &["--rate", "0", "--train", "40"])?;
    let mut most = before;
    for _ in 0..48 {
        pause(Duration::from_millis(200));
        most = most.max(machine.relay.running()?.resident_kib()?);
    }
    let sent: SendReport = report_of(send)?;
    let drained: DrainReport = report_of(drain)?;
    let passed = drained.total() as f64 / f64::from(GATEWAYS);
    let over = sent.packets as f64 / passed;
    let lost = machine.relay.status()?.lost;
    let dropped: u64 = lost.values().sum();
    eprintln!(
        "relay, overload: {} packets in, {passed:.0} passed on to each of {GATEWAYS}: {over:.1} \
         times as many as it can; {dropped} counted as dropped; {before} to {most} KiB",
        sent.packets
    );
    ensure!(over >= 10.0, "only {over:.1} times as much as it can");
    ensure!(dropped > 0, "packets were lost and none was counted");
    Ok((most - before) as f64 / 1024.0)
}

/// Time on the way that the relay adds, over the time of a plain datagram; and that time in µs.
fn measure_latency(machine: &mut Machine) -> Result<(f64, f64)> {
    let relay = machine.relay_at().to_string();
    let place = format!("{}:21000", machine.source());
    let send = ["--urgent", "--rate", "500"];
    let mut seen: [Vec<f64>; 3] = Default::default();
    for run in 1..=RUNS {
        let mut medians = Vec::new();
        for (to, how) in [
            (place.as_str(), &["--count", "1"][..]),
            (GROUP, &[]),
            (GROUP, &["--relay", &relay, "--count", "1"]),
        ] {
            let drain = [how, &["--urgent", "--latency"]].concat();
            let (sent, drained) = machine.pass_to(to, &drain, &send, 2000)?;
            ensure!(drained.total() == sent.packets, "packets were lost");
            let p50 = drained.p50_ns.context("no packet arrived")?;
            medians.push(p50 as f64 / 1000.0);
        }
        eprintln!(
            "latency, run {run} of {RUNS}, us: UDP, multicast, multicast by the relay: \
             {medians:.1?}"
        );
        for (all, value) in seen.iter_mut().zip(medians) {
            all.push(value);
        }
    }
    let [udp, direct, relayed] = seen.map(median);
    let added = relayed - direct;
    Ok((added / udp, added))
}
