//! A network without IPv4.

use anyhow::{Context, Result, ensure};

use super::checks::{check_all_by_flow, check_moves, check_outputs};
use super::loss::check_repaired;
use super::multicast::grow_in_steps;
use super::{Fault, Plan, Stage};
use crate::lab::{Families, Multicast};

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// h: on a network with IPv6 alone, three receivers of a source-specific flow get everything once,
/// in order; what one of them loses is repaired.
///
/// # Errors
/// When one of these does not hold.
pub fn ipv6_only(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("ipv6", fault).with_port("r3", Multicast::Loss(15));
    plan.families = Families::V6;
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        for step in [1, 7, 10] {
            stage.grow(step)?;
            stage.settle()?;
        }
        stage.set_rate(12.0)?;
        stage.wait_head(before + 110)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        stage.edit(2)?;
        stage.settle()?;
        check_outputs(stage, &ALL)?;

        let status = stage.source_status_now()?;
        ensure!(
            status.receivers.iter().all(|one| one.addr.is_ipv6()),
            "not everybody came by IPv6: {:?}",
            status.receivers
        );
        let flow = status.flow.as_ref().context("the source has no flow")?;
        ensure!(flow.packets > 0, "nothing was sent on the flow");
        for name in ["r1", "r2"] {
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
            check_moves(name, &status.moves_of(name), &[("multicast", &["joined"])])?;
        }
        check_repaired(stage, "r3", &status, before)
    })
}

/// h2: the same network with a flow announced for any source.
///
/// # Errors
/// When the receivers do not get everything by it.
pub fn ipv6_any_source(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("ipv6-any", fault);
    plan.families = Families::V6;
    plan.asm = true;
    Stage::play(plan, |stage| grow_in_steps(stage, &[3, 10, 4]))
}
