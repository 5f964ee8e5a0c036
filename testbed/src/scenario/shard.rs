//! A shard of the source that is killed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::{check_all_by_flow, check_moves, check_outputs};
use super::plan::{PORT, SeatPlan};
use super::{Fault, PATIENCE, Plan, Stage};

/// Receivers that are left alone.
const STEADY: [&str; 3] = ["r1", "r2", "r3"];
/// Restarted until no shard is without a receiver.
const SPARE: &str = "r4";
const RATE: f64 = 3.0;
const HEARTBEAT_MS: &str = "10000";
/// Time for the receivers of the shard to be served again: less than they take to give up by
/// themselves.
const BACK_WITHIN: Duration = Duration::from_secs(20);
/// Awaited after the poison.
const NO_FAILURE: &str = "the failure to be counted (flexicast-tokio of the source needs its \
                          feature `fault-injection`, which it has when it is built with the testbed)";
/// Time for a receiver to be seen by the source.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// sh: one of two shards of the source is killed: the receivers of it connect again and miss
/// nothing, and the others notice nothing.
///
/// # Errors
/// One of these does not hold.
pub fn a_killed_shard_is_replaced(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("shard", fault);
    plan.seats.push(SeatPlan::new(SPARE));
    // A receiver gives a silent source up after three heartbeats.
    plan.source_args = vec!["--shards", "2", "--heartbeat-ms", HEARTBEAT_MS];
    Stage::play(plan, |stage| {
        let before = spread(stage)?;
        stage.wait_rung(&[STEADY[0], STEADY[1], STEADY[2], SPARE], "multicast")?;
        let settled = stage.settle()?;
        let addresses = addresses(stage)?;

        stage.set_rate(RATE)?;
        stage.wait_cursor(&STEADY, settled + 2)?;
        kill_a_shard(stage)?;
        stage.wait(NO_FAILURE, PATIENCE, |stage| {
            let (_, failures) = stage.shards()?;
            Ok((failures == 1 || fault.is_some()).then_some(()))
        })?;
        let head = stage.source_status_now()?.head + 3;
        stage.wait("all to be served again", BACK_WITHIN, |stage| {
            let status = stage.source_status_now()?;
            let served = |r: &&_| is_served(r, head);
            let back = status.receivers.iter().filter(served).count();
            Ok((back == addresses.len() && status.receivers.len() == back).then_some(()))
        })?;
        stage.wait_rung(&[STEADY[0], STEADY[1], STEADY[2], SPARE], "multicast")?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        check_outputs(stage, &STEADY)?;

        let now = self::addresses(stage)?;
        let reconnected: Vec<_> = addresses
            .iter()
            .filter(|(name, address)| now.get(*name) != Some(address))
            .map(|(name, _)| name.as_str())
            .collect();
        ensure!(
            before.contains(&(reconnected.len() as u64)),
            "{reconnected:?} have connected again, of shards with {before:?} receivers"
        );
        let status = stage.source_status_now()?;
        for name in STEADY
            .into_iter()
            .filter(|name| !reconnected.contains(name))
        {
            check_moves(name, &status.moves_of(name), &[("multicast", &["joined"])])?;
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, settled)?;
        }
        Ok(())
    })
}

fn is_served(receiver: &crate::status::SourceReceiver, head: u64) -> bool {
    receiver.cursor.is_some_and(|cursor| cursor >= head)
}

/// Has receivers in both shards; returns their numbers.
fn spread(stage: &mut Stage) -> Result<Vec<u64>> {
    let mut left = None;
    loop {
        let shards = stage.wait("all to be connected", SEEN_WITHIN, |stage| {
            let (addresses, count) = (addresses(stage)?, stage.seats().len());
            let (shards, _) = stage.shards()?;
            let all = addresses.len() == count && shards.iter().sum::<u64>() == count as u64;
            Ok((all && addresses.get(SPARE) != left.as_ref()).then_some(shards))
        })?;
        if shards.iter().all(|count| *count > 0) {
            return Ok(shards);
        }
        // From another port, it may come to the other one.
        left = addresses(stage)?.remove(SPARE);
        stage.seat_mut(SPARE)?.kill()?;
        stage.restart_seat(SPARE)?;
    }
}

fn addresses(stage: &Stage) -> Result<BTreeMap<String, SocketAddr>> {
    let receivers = stage.source_status_now()?.receivers;
    Ok(receivers.into_iter().map(|r| (r.name, r.addr)).collect())
}

fn kill_a_shard(stage: &mut Stage) -> Result<()> {
    let stranger = stage.add_node("mallory")?;
    let to = SocketAddr::new(stage.source_node().ip(), PORT).to_string();
    let output = stranger
        .command(&stage.bins().probe)?
        .args(["poison", "--to", &to])
        .output()
        .context("starting flexfeed-probe")?;
    ensure!(
        output.status.success(),
        "killing a shard: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
