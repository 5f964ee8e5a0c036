//! A thousand receivers in one process beside a real source.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::plan::switch;
use super::{CHANNEL, Fault, Plan, Side, Stage};
use crate::process::{Launch, Service};

/// Number of receivers.
const RECEIVERS: u64 = 1_000;
/// Updates a second.
const RATE: f64 = 10.0;
/// Updates of the measurement that every receiver gets, at least: for a busy machine.
const UPDATES: u64 = 30;
/// Receivers on multicast in the end, at least: one that loses a whole tail of the flow falls back,
/// once in a while.
const ON_MULTICAST: u64 = 950;
/// Time that flow data may stay unacknowledged, in ms: with a thousand receivers on two cores that
/// also run other tests, each fall-back would cost time that the next receiver lacks.
const PATIENT_MS: u32 = 5_000;
/// Time limit for the whole run of the swarm.
const BOUND: Duration = Duration::from_secs(240);

/// Summary of `flexfeed-swarm --json`, as far as it is judged here.
#[derive(Debug, Deserialize)]
struct Summary {
    failures: Vec<String>,
    receivers: Receivers,
    rungs: BTreeMap<String, BTreeMap<String, u64>>,
    updates: Updates,
    via: Via,
}

#[derive(Debug, Deserialize)]
struct Receivers {
    served: u64,
}

#[derive(Debug, Deserialize)]
struct Updates {
    min: u64,
    max: u64,
}

#[derive(Debug, Deserialize)]
struct Via {
    flow: u64,
    repaired: u64,
}

impl Summary {
    /// Reads the JSON out of a log, which may have lines before and after it.
    fn of_log(log: &str) -> Result<Summary> {
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
}

/// sw: 1,000 receivers of `flexfeed-swarm`, each with 1 % loss of its own, get every update of 10 s
/// once, in order and with the same bytes, on the flow but for repairs; so does an ordinary receiver
/// beside them.
///
/// # Errors
/// One of these does not hold.
pub fn a_thousand_receivers_get_every_update(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("swarm", fault);
    plan.seats.truncate(1);
    plan.new_at_once = 25;
    plan.fall_back_ms = PATIENT_MS;
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1"], "multicast")?;
        stage.set_rate(RATE)?;
        let mut swarm = start(stage, fault)?;
        let status = stage.wait("the end of the swarm", BOUND, |_| swarm.ended())?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        let summary = Summary::of_log(&swarm.log_text()?)?;
        ensure!(
            summary.failures.is_empty() && status.success(),
            "the swarm ended with {status}: {}",
            summary.failures.join("; ")
        );
        ensure!(
            summary.receivers.served == RECEIVERS,
            "{} receivers were served",
            summary.receivers.served
        );
        let Updates { min, max } = summary.updates;
        ensure!(
            min == max && min >= UPDATES,
            "receivers got from {min} to {max} updates"
        );
        let rungs = summary.rungs.get(CHANNEL).cloned().unwrap_or_default();
        let on_multicast = rungs.get("multicast").copied().unwrap_or_default();
        ensure!(on_multicast >= ON_MULTICAST, "the rungs are {rungs:?}");
        let Via { flow, repaired } = summary.via;
        ensure!(
            repaired > 0 && flow > repaired,
            "{flow} updates came by the flow alone, {repaired} with repairs"
        );
        Ok(())
    })
}

fn start(stage: &mut Stage, fault: Option<Fault>) -> Result<Service> {
    let node = stage.add_node("swarm")?;
    let receivers = RECEIVERS.to_string();
    let args = [
        &stage.link()?,
        "--receivers",
        &receivers,
        "--duration",
        "10s",
        "--loss",
        "1",
        "--seed",
        "1",
        "--json",
    ];
    let env = match fault {
        Some(fault) if fault.breaks(Side::Swarm) => vec![switch(fault)],
        _ => Vec::new(),
    };
    let launch = Launch {
        name: "swarm".to_owned(),
        program: stage.bins().swarm.clone(),
        args: args.map(str::to_owned).to_vec(),
        env,
    };
    Service::start(&node, &launch, &stage.logs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_found_among_log_lines() {
        let log = "WARN x\n{\n  \"failures\": [\"a\"],\n  \"receivers\": {\n\"served\": 3\n  },\n  \
                   \"rungs\": {},\n  \"updates\": {\"min\": 1, \"max\": 2},\n  \"via\": {\"flow\": \
                   4, \"repaired\": 5}\n}\nERROR a\n";
        let summary = Summary::of_log(log).unwrap();
        assert_eq!((summary.receivers.served, summary.updates.max), (3, 2));
        assert!(Summary::of_log("ERROR a\n").is_err());
    }
}
