//! The failure experiment of the Flexicast QUIC paper (CCR): a stream to 20 receivers while
//! multicast to one after the other fails.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Fault;
use super::ccr_figures::{Cut, Observations};
use super::checks::require_no_panic;
use super::plan::FALL_BACK_MS;
use crate::binaries::Binaries;
use crate::lab::{Lab, Multicast, Node};
use crate::process::{Launch, Service};
use crate::run_dir::RunDir;
use crate::stream::{StreamReport, interval, now_ns, read_arrivals};
use crate::waiting::{pause, wait_for};

const GROUP: &str = "232.70.70.1:4434";
/// One way; a round trip takes twice as long.
const ONE_WAY: Duration = Duration::from_millis(10);
const SIZE: usize = 1_100;
const RATE: u64 = 5_000_000;
/// Less than half of what a `D_fb` of 50 ms leaves after a round trip: an acknowledgement that is a
/// little late is no failure.
const ACK_DELAY_MS: u32 = 10;
/// Time limit for the start, and for deliveries after the last message.
const PATIENCE: Duration = Duration::from_secs(90);

/// Parameters of the experiment.
#[derive(Debug, Clone, Copy)]
pub struct CcrPlan {
    /// Number of receivers, at most 200.
    pub receivers: u8,
    /// Duration of publishing.
    pub time: Duration,
    /// Time between two failures, and before the first.
    pub every: Duration,
    /// Duration of a link failure.
    pub cut: Duration,
    /// Time at the end in which no further link fails.
    pub rest: Duration,
    /// Probability that the chosen link fails.
    pub chance: f64,
    /// Seed of the failures.
    pub seed: u64,
    /// `D_fb`, in ms.
    pub fall_back_ms: u32,
    /// Maximum acknowledgement delay, in ms.
    pub ack_delay_ms: u32,
    /// A promise to break.
    pub fault: Option<Fault>,
}

impl CcrPlan {
    /// As in the paper: 20 receivers, 180 s; every 5 s one link is picked and, with probability
    /// 0.5, fails for 15 s.
    pub fn paper(fall_back_ms: u32) -> CcrPlan {
        CcrPlan {
            receivers: 20,
            time: Duration::from_secs(180),
            every: Duration::from_secs(5),
            cut: Duration::from_secs(15),
            rest: Duration::from_secs(5),
            chance: 0.5,
            seed: 2,
            fall_back_ms,
            ack_delay_ms: ACK_DELAY_MS,
            fault: None,
        }
    }

    /// The links that fail: when after the start, and which.
    fn failures(&self) -> Vec<(Duration, usize)> {
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut failures = Vec::new();
        let mut at = self.every;
        while at + self.rest <= self.time {
            let link = random.random_range(0..usize::from(self.receivers));
            if random.random_bool(self.chance) {
                failures.push((at, link));
            }
            at += self.every;
        }
        failures
    }
}

/// k: 20 receivers of a stream, 40 s, links that fail and come back; nothing is lost, those whose
/// link holds notice nothing, and what a failure delays is bounded.
///
/// # Errors
/// When one of these does not hold.
pub fn links_fail_in_turn(fault: Option<Fault>) -> Result<()> {
    let plan = CcrPlan {
        time: Duration::from_secs(39),
        every: Duration::from_secs(3),
        cut: CUT,
        // A receiver that is cut off falls back before its link returns, also on a stalled machine.
        rest: CUT,
        chance: 0.7,
        fall_back_ms: FALL_BACK_MS,
        fault,
        ..CcrPlan::paper(0)
    };
    let seen = play(&plan)?;
    seen.require(&plan.failures(), SHORT_LIMIT_MS)
}

/// Duration of a link failure in the short version.
const CUT: Duration = Duration::from_secs(12);
/// The longest extra delay allowed in it on a busy machine, in ms: what is lost until a link works
/// again is delayed by more.
const SHORT_LIMIT_MS: f64 = 10_500.0;

/// Plays a plan and judges that every message arrived at every receiver, once and in order.
///
/// # Errors
/// When the lab cannot be made, or a message did not arrive once and in order.
pub fn play(plan: &CcrPlan) -> Result<Observations> {
    let mut run = RunDir::new("ccr")?;
    let played = Network::up(plan, &run).and_then(|network| network.play(plan, &run));
    let result = played.and_then(|seen| {
        require_no_panic(&run.path().join("logs"))?;
        Ok(seen)
    });
    if result.is_ok() || plan.fault.is_some() {
        run.discard();
    }
    result
}

struct Network {
    // Services end before their lab.
    source: Service,
    receivers: Vec<Service>,
    cable: crate::lab::Cable,
    nodes: Vec<Node>,
    lab: Lab,
    count: u64,
}

impl Network {
    fn up(plan: &CcrPlan, run: &RunDir) -> Result<Network> {
        let mut lab = Lab::new()?;
        let bins = Binaries::of_testbed()?.reachable(lab.rootless(), run)?;
        let logs = run.path().join("logs");
        std::fs::create_dir(&logs)?;
        let source_node = lab.add_node("source", 2)?;
        let cable = lab.slow_down(&source_node, ONE_WAY, &bins.delay)?;
        let nodes = (1..=plan.receivers)
            .map(|n| lab.add_node(&format!("r{n}"), 10 + n))
            .collect::<Result<Vec<Node>>>()?;
        let step = interval(SIZE, RATE);
        let count = u64::try_from(plan.time.as_nanos() / step.as_nanos())?;
        let data = |node: &Node| -> Result<String> {
            let folder = run.path().join(node.name());
            std::fs::create_dir(&folder)?;
            node.hand_over(&folder)?;
            Ok(folder.display().to_string())
        };
        let source_data = data(&source_node)?;
        let mut launch = Launch {
            name: "source".to_owned(),
            program: bins.stream.clone(),
            args: arguments(&[
                ("source", ""),
                ("--group", GROUP),
                ("--interface", &source_node.address().to_string()),
                ("--receivers", &plan.receivers.to_string()),
                ("--count", &count.to_string()),
                ("--size", &SIZE.to_string()),
                ("--rate", &RATE.to_string()),
                ("--fall-back-ms", &plan.fall_back_ms.to_string()),
                ("--ack-delay-ms", &plan.ack_delay_ms.to_string()),
                ("--report", &format!("{source_data}/report.json")),
            ]),
            env: Vec::new(),
        };
        match plan.fault {
            Some(Fault::FallbackOff) => launch.args.push("--fallback-off".to_owned()),
            Some(Fault::RepairOff) => launch.args.push("--repair-off".to_owned()),
            _ => {}
        }
        let source = Service::start(&source_node, &launch, &logs)?;
        let receivers = nodes
            .iter()
            .map(|node| {
                let mut launch = Launch {
                    name: node.name().to_owned(),
                    program: bins.stream.clone(),
                    args: arguments(&[
                        ("receiver", ""),
                        ("--server", &format!("{}:4433", source_node.address())),
                        ("--name", node.name()),
                        ("--records", &format!("{}/arrivals", data(node)?)),
                    ]),
                    env: Vec::new(),
                };
                if plan.fault == Some(Fault::DedupeOff) {
                    launch.args.push("--dedupe-off".to_owned());
                }
                Service::start(node, &launch, &logs)
            })
            .collect::<Result<Vec<Service>>>()?;
        Ok(Network {
            source,
            receivers,
            cable,
            nodes,
            lab,
            count,
        })
    }

    fn play(mut self, plan: &CcrPlan, run: &RunDir) -> Result<Observations> {
        let report = run.path().join("source").join("report.json");
        let start_ns = wait_for("all receivers on multicast", PATIENCE, || {
            self.check_running()?;
            Ok(StreamReport::read(&report)?.map(|report| report.start_ns))
        })?;
        let cuts = self.fail_links(plan, start_ns)?;
        let ended = self.source.wait_end(PATIENCE)?;
        ensure!(
            ended.success(),
            "the source ended with {ended}; its log ends:\n{}",
            self.source.log_tail()
        );
        let report = StreamReport::read(&report)?.context("the source left no report")?;
        for receiver in &mut self.receivers {
            let ended = receiver.terminate(PATIENCE)?;
            ensure!(
                ended.success(),
                "{} ended with {ended}; its log ends:\n{}",
                receiver.name(),
                receiver.log_tail()
            );
        }
        let arrivals = self
            .nodes
            .iter()
            .map(|node| read_arrivals(&run.path().join(node.name()).join("arrivals")))
            .collect::<Result<Vec<_>>>()?;
        let names = self.nodes.iter().map(|node| node.name().to_owned());
        let cable = self.cable.end()?;
        ensure!(
            cable.there.dropped == 0 && cable.back.dropped == 0,
            "the slow cable itself lost frames: {cable:?}"
        );
        Observations::new(names.collect(), arrivals, self.count, cuts, report, cable)
    }

    /// Cuts links and restores them, until the last message is published.
    fn fail_links(&mut self, plan: &CcrPlan, start_ns: u64) -> Result<Vec<Cut>> {
        let mut failures = plan.failures().into_iter().peekable();
        let mut cuts: Vec<Cut> = Vec::new();
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let end = start_ns + ns(plan.time);
        loop {
            self.check_running()?;
            let now = now_ns();
            // A link that is picked again while it fails does so for longer.
            if let Some((_, link)) = failures.next_if(|(at, _)| start_ns + ns(*at) <= now) {
                let until = now + ns(plan.cut);
                if let Some(cut) = cuts.iter_mut().find(|cut| cut.link == link && cut.open()) {
                    cut.until_ns = until;
                } else {
                    self.lab.set_multicast(&self.nodes[link], Multicast::Cut)?;
                    cuts.push(Cut::new(link, now, now_ns(), until));
                }
                continue;
            }
            let over = cuts
                .iter_mut()
                .find(|cut| cut.open() && (cut.until_ns <= now || end <= now));
            if let Some(cut) = over {
                self.lab
                    .set_multicast(&self.nodes[cut.link], Multicast::Open)?;
                cut.restored(now, now_ns());
                continue;
            }
            if end <= now {
                return Ok(cuts);
            }
            let next = failures.peek().map(|(at, _)| start_ns + ns(*at));
            let restore = cuts.iter().filter(|cut| cut.open()).map(|cut| cut.until_ns);
            let wake = restore.chain(next).chain([end]).min().unwrap_or(end);
            let rest = Duration::from_nanos(wake.saturating_sub(now_ns()));
            pause(rest.min(Duration::from_millis(500)));
        }
    }

    fn check_running(&mut self) -> Result<()> {
        for receiver in &mut self.receivers {
            receiver.check_running()?;
        }
        match self.source.ended()? {
            Some(status) if !status.success() => bail!(
                "the source ended with {status}; its log ends:\n{}",
                self.source.log_tail()
            ),
            _ => Ok(()),
        }
    }
}

/// Options and their values, or a word alone.
fn arguments(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs
        .iter()
        .flat_map(|(option, value)| [*option, *value])
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_failures() {
        let plan = CcrPlan::paper(50);
        let failures = plan.failures();
        assert_eq!(failures, plan.failures());
        // 35 links are picked, and about half of them fail.
        assert!((10..=25).contains(&failures.len()), "{failures:?}");
        let other = CcrPlan { seed: 3, ..plan };
        assert_ne!(failures, other.failures());
    }
}
