//! Three receivers on native multicast.

use anyhow::{Context, Result, ensure};

use super::checks::{check_all_by_flow, check_moves, check_outputs};
use super::{Fault, FeedPlan, Plan, Stage, recorded_feed};

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// Moves that a member may show that was promoted once and stayed.
const JOINED_ONCE: &[(&str, &[&str])] = &[("multicast", &["joined"])];

/// a: three receivers on source-specific multicast get every entry of a feed that grows in steps,
/// once, in order, by the flow.
///
/// # Errors
/// When they do not.
pub fn everything_by_multicast(fault: Option<Fault>) -> Result<()> {
    Stage::play(Plan::new("multicast", fault), |stage| {
        grow_in_steps(stage, &[1, 7, 10, 2, 9])
    })
}

/// a2: the same with a flow announced for any source.
///
/// # Errors
/// When they do not.
pub fn any_source_multicast(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("any-source", fault);
    plan.asm = true;
    Stage::play(plan, |stage| grow_in_steps(stage, &[3, 10, 4]))
}

/// a with a recorded feed of the real archive, revealed entry by entry. `Ok(false)` when the
/// recording is not on this machine.
///
/// # Errors
/// When they do not get everything.
pub fn recorded_feed_by_multicast(fault: Option<Fault>) -> Result<bool> {
    let Some(path) = recorded_feed() else {
        return Ok(false);
    };
    let mut plan = Plan::new("recorded", fault);
    plan.feed = FeedPlan::Recorded(path);
    Stage::play(plan, |stage| grow_in_steps(stage, &[3, 1, 10, 8, 3]))?;
    Ok(true)
}

/// Lets the feed grow, and checks that three receivers get everything by the flow.
///
/// # Errors
/// When they do not.
pub(super) fn grow_in_steps(stage: &mut Stage, steps: &[u32]) -> Result<()> {
    let generated = stage.feed_state()?.entries > 0;
    stage.wait_rung(&ALL, "multicast")?;
    let before = stage.settle()?;
    for step in steps {
        stage.grow(*step)?;
        stage.settle()?;
    }
    if generated {
        stage.edit(2)?;
        stage.settle()?;
    }
    let total = stage.settle()?;
    let asked: u32 = steps.iter().sum();
    ensure!(
        total >= before + u64::from(asked),
        "the feed showed {total} updates, {before} of them before the {asked} asked for"
    );
    check_outputs(stage, &ALL)?;
    let status = stage.source_status_now()?;
    let flow = status.flow.as_ref().context("the source has no flow")?;
    ensure!(
        flow.members == 3,
        "the flow has {} members, not 3",
        flow.members
    );
    for name in ALL {
        check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
        check_moves(name, &status.moves_of(name), JOINED_ONCE)?;
        let channel = stage.seat(name)?.channel_now()?;
        ensure!(
            channel.mismatches == 0,
            "{name}: {} mismatches between flow and unicast",
            channel.mismatches
        );
    }
    Ok(())
}
