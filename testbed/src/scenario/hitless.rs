//! A receiver that takes the flow by multicast and by a relay at once.

use anyhow::{Result, ensure};

use super::checks::{check_all_by_flow, check_outputs};
use super::{Fault, PATIENCE, Plan, Stage};
use crate::lab::Multicast;

const ALL: [&str; 3] = ["r1", "r2", "r3"];
/// New entries of the feed per second.
const RATE: f64 = 25.0;
/// Updates that are to come while a leg is dead: enough for it to be known as lost.
const MEANWHILE: u64 = 100;

/// ht: a receiver with two legs loses multicast, gets it back, and loses its relay: it never falls
/// back, and everything comes by the flow alone. Source and receiver know both legs.
///
/// # Errors
/// One of these does not hold.
pub fn either_leg_is_lost(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("hitless", fault).with_seat("r1", |seat| {
        seat.args.extend(["--redundancy", "two"]);
    });
    plan.relays = 1;
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        wait_legs(stage, ["working", "working"])?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 25)?;

        stage.set_multicast("r1", Multicast::Cut)?;
        let cut = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, cut + MEANWHILE)?;
        check_hitless(stage, before)?;
        wait_legs(stage, ["lost", "working"])?;
        stage.wait_rung(&["r1"], "amt")?;

        stage.set_multicast("r1", Multicast::Open)?;
        wait_legs(stage, ["working", "working"])?;
        stage.wait_rung(&["r1"], "multicast")?;

        stage.relay(0)?.kill()?;
        let killed = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, killed + MEANWHILE)?;
        wait_legs(stage, ["working", "lost"])?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        check_hitless(stage, before)?;
        check_outputs(stage, &ALL)?;
        let metrics = stage.source_metrics()?;
        let lost = metrics.lines().find_map(|line| {
            let value = line.strip_prefix("flexfeed_source_legs_lost_total ")?;
            value.parse::<f64>().ok()
        });
        ensure!(lost >= Some(2.0), "{lost:?} lost legs counted, not two");
        Ok(())
    })
}

/// Waits until r1's legs, multicast and relay, have these states, by its own account and by the
/// source's.
fn wait_legs(stage: &mut Stage, states: [&str; 2]) -> Result<()> {
    let wanted = [("multicast", states[0]), ("amt", states[1])];
    stage.wait(&format!("legs {states:?}"), PATIENCE, |stage| {
        let status = stage.source_status();
        let there = status.is_some_and(|status| {
            let mut receivers = status.receivers.iter();
            receivers.any(|one| {
                let legs = one.channels.iter().flat_map(|channel| &channel.legs);
                let legs: Vec<_> = legs.map(|leg| (&*leg.leg, &*leg.state)).collect();
                one.name == "r1" && legs == wanted
            })
        });
        let here = stage.seat("r1")?.channel()?.is_some_and(|channel| {
            let legs = channel.legs.iter();
            let legs: Vec<_> = legs.map(|leg| (&*leg.leg, &*leg.state)).collect();
            legs == wanted
        });
        Ok((there && here).then_some(()))
    })
}

/// Checks that since an update, everything came to r1 by the flow, and it stayed on it.
fn check_hitless(stage: &Stage, before: u64) -> Result<()> {
    check_all_by_flow("r1", &stage.seat("r1")?.deliveries()?, before)?;
    let status = stage.source_status_now()?;
    let moves = status.moves_of("r1");
    let fall_backs = moves.iter().filter(|step| step.to == "unicast").count();
    ensure!(fall_backs == 0, "r1 fell back: {moves:?}");
    Ok(())
}
