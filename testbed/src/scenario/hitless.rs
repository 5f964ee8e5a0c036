//! Receivers that take the flow by multicast and by a relay, or by two relays, at once.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::checks::{check_all_by_flow, check_outputs};
use super::{Fault, PATIENCE, Place, Plan, Stage};
use crate::lab::Multicast;
use crate::status::Leg;

const ALL: [&str; 3] = ["r1", "r2", "r3"];
/// New entries of the feed per second.
const RATE: f64 = 25.0;
/// Updates that are to come while a leg is dead: enough for it to be known as lost.
const MEANWHILE: u64 = 100;
/// The legs of either scenario.
const NATIVE_AND_RELAY: [&str; 2] = ["multicast", "amt"];
const TWO_RELAYS: [&str; 2] = ["amt", "amt-2"];

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
        wait_legs(stage, NATIVE_AND_RELAY, ["working", "working"])?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 25)?;

        stage.set_multicast("r1", Multicast::Cut)?;
        let cut = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, cut + MEANWHILE)?;
        check_hitless(stage, before)?;
        wait_legs(stage, NATIVE_AND_RELAY, ["lost", "working"])?;
        stage.wait_rung(&["r1"], "amt")?;

        stage.set_multicast("r1", Multicast::Open)?;
        wait_legs(stage, NATIVE_AND_RELAY, ["working", "working"])?;
        stage.wait_rung(&["r1"], "multicast")?;

        stage.relay(0)?.kill()?;
        let killed = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, killed + MEANWHILE)?;
        wait_legs(stage, NATIVE_AND_RELAY, ["working", "lost"])?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        check_hitless(stage, before)?;
        check_outputs(stage, &ALL)?;
        check_lost_legs(stage)
    })
}

/// ht2: a receiver without multicast is on two relays at once. Either of them is killed and comes
/// back: it never falls back, and everything comes by the flow alone, once.
///
/// # Errors
/// One of these does not hold.
pub fn either_relay_is_lost(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("two-relays", fault).with_seat("r1", |seat| {
        seat.place = Place::Beyond;
        seat.args.extend(["--redundancy", "two"]);
    });
    plan.relays = 2;
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL[1..], "multicast")?;
        stage.wait_rung(&["r1"], "amt")?;
        stage.start_relay(1)?;
        wait_legs(stage, TWO_RELAYS, ["working", "working"])?;
        check_relays(stage)?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 25)?;

        stage.relay(0)?.kill()?;
        let killed = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, killed + MEANWHILE)?;
        check_hitless(stage, before)?;
        wait_legs(stage, TWO_RELAYS, ["lost", "working"])?;

        stage.start_relay(0)?;
        wait_legs(stage, TWO_RELAYS, ["working", "working"])?;
        check_relays(stage)?;

        stage.relay(1)?.kill()?;
        let killed = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, killed + MEANWHILE)?;
        wait_legs(stage, TWO_RELAYS, ["working", "lost"])?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        check_hitless(stage, before)?;
        check_outputs(stage, &ALL)?;
        check_lost_legs(stage)
    })
}

/// Checks that the source has counted two lost legs.
fn check_lost_legs(stage: &mut Stage) -> Result<()> {
    let metrics = stage.source_metrics()?;
    let lost = metrics.lines().find_map(|line| {
        let value = line.strip_prefix("flexfeed_source_legs_lost_total ")?;
        value.parse::<f64>().ok()
    });
    ensure!(lost >= Some(2.0), "{lost:?} lost legs counted, not two");
    Ok(())
}

/// Checks that r1's legs have relays, and not the same one.
fn check_relays(stage: &mut Stage) -> Result<()> {
    let channel = stage.seat("r1")?.channel()?;
    let channel = channel.context("r1 reports no channel")?;
    let relays = channel.legs.iter().filter_map(|leg| leg.relay);
    let relays: BTreeSet<_> = relays.map(|relay| relay.ip()).collect();
    ensure!(relays.len() == 2, "r1 is on the relays {relays:?}");
    Ok(())
}

/// Waits until these legs of r1's have these states, by its own account and by the source's.
fn wait_legs(stage: &mut Stage, legs: [&str; 2], states: [&str; 2]) -> Result<()> {
    let wanted: Vec<_> = legs.into_iter().zip(states).collect();
    let are_so = |found: &[Leg]| {
        let found = found.iter().filter(|leg| legs.contains(&&*leg.leg));
        let found: Vec<_> = found.map(|leg| (&*leg.leg, &*leg.state)).collect();
        found == wanted
    };
    stage.wait(&format!("legs {wanted:?}"), PATIENCE, |stage| {
        let status = stage.source_status();
        let there = status.is_some_and(|status| {
            let mut receivers = status.receivers.iter();
            receivers.any(|one| {
                let mut channels = one.channels.iter();
                one.name == "r1" && channels.any(|channel| are_so(&channel.legs))
            })
        });
        let here = stage.seat("r1")?.channel()?;
        let here = here.is_some_and(|channel| are_so(&channel.legs));
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
