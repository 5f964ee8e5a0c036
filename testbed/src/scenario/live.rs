//! A live channel: updates with a deadline.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Fault, Plan, Stage};
use crate::lab::Multicast;
use crate::waiting::pause;

/// Deadline of the channel's updates, as its setting and as a time.
const DEADLINE: &str = "3s";
const EXPIRES_AFTER: Duration = Duration::from_secs(3);

/// li: a receiver that was away for longer than the deadline gets nothing that expired meanwhile
/// and passes over it; those that stayed, one of them behind a lossy link, got it in time, and what
/// comes afterwards reaches all.
///
/// # Errors
/// One of these does not hold.
pub fn a_live_channel_delivers_nothing_late(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("live", fault).with_port("r2", Multicast::Loss(10));
    plan.channel_settings.push(("deadline", DEADLINE));
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2", "r3"], "multicast")?;
        stage.grow(20)?;
        let left = stage.settle()?;
        stage.seat_mut("r3")?.kill()?;
        stage.grow(100)?;
        let back = left + 100;
        stage.wait_head(back)?;
        stage.wait_cursor(&["r1", "r2"], back)?;
        pause(EXPIRES_AFTER + Duration::from_secs(1));
        stage.restart_seat("r3")?;
        stage.wait_cursor(&["r3"], back)?;
        stage.wait_rung(&["r3"], "multicast")?;
        stage.grow(10)?;
        let end = stage.settle()?;
        ensure!(end == back + 10, "the feed has {end} updates");

        let late = count(stage, "r3", left + 1, back)?;
        ensure!(late == 0, "r3: {late} updates delivered late");
        for (name, first) in [("r1", left + 1), ("r2", left + 1), ("r3", back + 1)] {
            let (got, all) = (count(stage, name, first, end)?, end - first + 1);
            // On a busy machine one or another may take longer than the deadline.
            ensure!(got * 10 >= all * 9, "{name} got {got} of {all} updates");
        }
        println!("live_late_share 0: 100 updates expired while r3 was away");
        Ok(())
    })
}

/// Returns the number of updates from `first` to `last` that a receiver delivered.
fn count(stage: &Stage, name: &str, first: u64, last: u64) -> Result<u64> {
    let deliveries = stage.seat(name)?.deliveries()?;
    let wanted = deliveries
        .iter()
        .filter(|one| (first..=last).contains(&one.seq));
    Ok(wanted.count() as u64)
}
