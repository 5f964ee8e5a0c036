//! One of three receivers never gets multicast.

use anyhow::{Context, Result, ensure};

use super::checks::{check_all_by_flow, check_moves, check_outputs};
use super::{Fault, Plan, Stage};
use crate::lab::Multicast;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// d: a receiver whose multicast is blocked from the start is never a member and gets everything by
/// unicast, while the others get everything by the flow.
///
/// # Errors
/// When one of these does not hold.
pub fn a_blocked_receiver_gets_all_by_unicast(fault: Option<Fault>) -> Result<()> {
    let plan = Plan::new("blocked", fault).with_port("r3", Multicast::Cut);
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2"], "multicast")?;
        let before = stage.settle()?;
        for step in [1, 10, 5, 10, 10] {
            stage.grow(step)?;
            stage.settle()?;
        }
        check_outputs(stage, &ALL)?;

        let status = stage.source_status_now()?;
        let members = status
            .flow
            .as_ref()
            .context("the source has no flow")?
            .members;
        ensure!(members == 2, "the flow has {members} members, not 2");
        check_moves("r3", &status.moves_of("r3"), &[])?;
        let channel = stage.seat("r3")?.channel_now()?;
        ensure!(
            channel.via.flow == 0 && channel.via.repaired == 0 && channel.flow_packets == 0,
            "r3 got something by multicast although it was blocked: {channel:?}"
        );
        ensure!(
            channel.rung == "unicast",
            "r3 says that it is on {}",
            channel.rung
        );
        for name in ["r1", "r2"] {
            check_moves(name, &status.moves_of(name), &[("multicast", &["joined"])])?;
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
        }
        Ok(())
    })
}
