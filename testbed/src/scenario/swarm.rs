//! A swarm: many receivers in one process beside a real source.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::plan::switch;
use super::{CHANNEL, Fault, PATIENCE, Plan, Side, Stage};
use crate::lab::Node;
use crate::process::{Launch, Service};
use crate::status::ViaCounts;

/// Number of receivers.
const RECEIVERS: u64 = 1_000;
/// Updates a second: at 10, a slow machine with unoptimised programs is too late for
/// acknowledgements, and this is no measurement of its speed.
const RATE: f64 = 5.0;
/// Updates of the measurement that every receiver gets, at least: for a busy machine.
const UPDATES: u64 = 20;
/// Receivers on multicast in the end, at least: one that loses a whole tail of the flow, or is late
/// on a busy machine, falls back once in a while.
const ON_MULTICAST: u64 = 950;
/// Time limit for the whole run of a swarm.
pub(super) const BOUND: Duration = Duration::from_secs(240);

/// Summary of `flexfeed-swarm --json`, as far as it is judged here.
#[derive(Debug, Deserialize)]
pub struct SwarmSummary {
    failures: Vec<String>,
    pub(super) receivers: Receivers,
    pub(super) rungs: BTreeMap<String, BTreeMap<String, u64>>,
    pub(super) updates: Updates,
    /// Updates of the whole run at all receivers, by path.
    pub via: ViaCounts,
    /// By rungs and cause, such as `multicast to unicast: ack-timeout`.
    pub fall_backs: BTreeMap<String, u64>,
    /// From storing at the source to delivery.
    pub latency_ms: Percentiles,
}

#[derive(Debug, Deserialize)]
pub(super) struct Receivers {
    pub(super) served: u64,
    /// Left or crashed, and came back.
    pub(super) returned: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Updates {
    pub(super) min: u64,
    pub(super) max: u64,
}

/// Latency figures in ms.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl SwarmSummary {
    /// Reads the JSON out of a log, which may have lines before and after it.
    fn of_log(log: &str) -> Result<SwarmSummary> {
        let lines = log.lines().skip_while(|line| *line != "{");
        let mut json = String::new();
        for line in lines {
            json.push_str(line);
            if line == "}" {
                break;
            }
        }
        serde_json::from_str(&json).with_context(|| format!("reading the swarm's summary: {log}"))
    }

    /// Returns the number of receivers on multicast in the end.
    pub(super) fn on_multicast(&self) -> u64 {
        let rungs = self.rungs.get(CHANNEL);
        let count = rungs.and_then(|rungs| rungs.get("multicast"));
        count.copied().unwrap_or_default()
    }
}

/// A running swarm in a node of its own.
#[derive(Debug)]
pub struct Swarm {
    name: &'static str,
    receivers: u64,
    pub(super) node: Node,
    service: Service,
}

impl Swarm {
    /// Starts so many receivers with the ids of `seed`.
    ///
    /// # Errors
    /// When there is no link, or the program does not start.
    pub fn start(
        stage: &mut Stage,
        name: &'static str,
        receivers: u64,
        seed: u64,
        more: &[&str],
    ) -> Result<Swarm> {
        let node = stage.add_node(name)?;
        let (count, seed) = (receivers.to_string(), seed.to_string());
        let args = [
            &stage.link()?,
            "--receivers",
            &count,
            "--seed",
            &seed,
            "--json",
        ];
        let env = match stage.fault() {
            Some(fault) if fault.breaks(Side::Swarm) => vec![switch(fault)],
            _ => Vec::new(),
        };
        let launch = Launch {
            name: name.to_owned(),
            program: stage.bins().swarm.clone(),
            args: args.iter().chain(more).map(ToString::to_string).collect(),
            env,
        };
        let service = Service::start(&node, &launch, &stage.logs())?;
        Ok(Swarm {
            name,
            receivers,
            node,
            service,
        })
    }

    /// Waits for its end. Every receiver was served and got every update, once.
    ///
    /// # Errors
    /// When one was not, or did not.
    pub fn finish(&mut self, stage: &mut Stage) -> Result<SwarmSummary> {
        let name = self.name;
        let status = stage.wait(&format!("the end of the {name}"), BOUND, |_| {
            self.service.ended()
        })?;
        let summary = SwarmSummary::of_log(&self.service.log_text()?)?;
        ensure!(
            summary.failures.is_empty() && status.success(),
            "the {name} ended with {status}: {}",
            summary.failures.join("; ")
        );
        ensure!(
            summary.receivers.served == self.receivers,
            "{} receivers of the {name} were served",
            summary.receivers.served
        );
        Ok(summary)
    }
}

/// Returns the number of members of the flow.
pub(super) fn flow_members(stage: &Stage) -> Result<u64> {
    let status = stage.source_status_now()?;
    Ok(status.flow.context("there is no flow")?.members)
}

/// Waits until the flow has so many members.
pub(super) fn wait_members(stage: &mut Stage, what: &str, members: u64) -> Result<()> {
    stage.wait(what, PATIENCE, |stage| {
        Ok((flow_members(stage)? >= members).then_some(()))
    })
}

/// sw: 1,000 receivers of `flexfeed-swarm`, each with 1 % loss of its own, get every update of 10 s
/// once, in order and with the same bytes, on the flow but for repairs; so does an ordinary receiver
/// beside them. The timing is the source's default: on two busy cores hundreds of acknowledgements
/// are too late while so many connect, and those receivers are back on the flow in the end.
///
/// # Errors
/// One of these does not hold.
pub fn a_thousand_receivers_get_every_update(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("swarm", fault).with_default_timing();
    plan.seats.truncate(1);
    plan.new_at_once = 25;
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1"], "multicast")?;
        stage.set_rate(RATE)?;
        let more = ["--duration", "10s", "--loss", "1"];
        let mut swarm = Swarm::start(stage, "swarm", RECEIVERS, 1, &more)?;
        let summary = swarm.finish(stage)?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        let Updates { min, max } = summary.updates;
        ensure!(
            min == max && min >= UPDATES,
            "receivers got from {min} to {max} updates"
        );
        ensure!(
            summary.on_multicast() >= ON_MULTICAST,
            "the rungs are {:?}",
            summary.rungs
        );
        let ViaCounts { flow, repaired, .. } = summary.via;
        ensure!(
            repaired > 0 && flow > repaired,
            "{flow} updates came by the flow alone, {repaired} with repairs"
        );
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_found_among_log_lines() {
        let log = "WARN x\n{\n  \"failures\": [\"a\"],\n  \"receivers\": {\n\"served\": 3,\n\
                   \"returned\": 0\n  },\n  \"rungs\": {\"lore\": {\"multicast\": 2}},\n  \
                   \"updates\": {\"min\": 1, \"max\": 2},\n  \"via\": {\"flow\": 4, \
                   \"repaired\": 5, \"unicast\": 1},\n  \"fall_backs\": {},\n  \"latency_ms\": \
                   {\"p50\": 1, \"p99\": 2, \"max\": 3}\n}\nERROR a\n";
        let summary = SwarmSummary::of_log(log).unwrap();
        assert_eq!((summary.receivers.served, summary.updates.max), (3, 2));
        assert_eq!((summary.on_multicast(), summary.via.by_flow()), (2, 0.4));
        assert!(SwarmSummary::of_log("ERROR a\n").is_err());
    }
}
