//! Every multicast link loses packets.

use anyhow::{Context, Result, ensure};

use super::checks::check_outputs;
use super::plan::QUICK_ACK_MS;
use super::{Fault, Plan, Stage};
use crate::lab::Multicast;
use crate::status::SourceStatus;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// c: with 10 % loss on all multicast links everything arrives, once, in order; losses are
/// repaired, and no receiver leaves the flow for them.
///
/// # Errors
/// One of these does not hold.
pub fn loss_is_repaired(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("loss", fault);
    plan.ack_delay_ms = QUICK_ACK_MS;
    for seat in &mut plan.seats {
        seat.multicast = Multicast::Loss(10);
    }
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(12.0)?;
        stage.wait_head(before + 100)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        check_outputs(stage, &ALL)?;

        let status = stage.source_status_now()?;
        for name in ALL {
            check_repaired(stage, name, &status, before)?;
        }
        Ok(())
    })
}

/// c4: with 5 % loss on all multicast links, and a repair symbol behind each burst, most lost
/// packets are rebuilt. Everything arrives, once and in order, and the source knows of the losses.
///
/// # Errors
/// One of these does not hold.
pub fn loss_is_rebuilt(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("rebuilt", fault);
    plan.channel_settings.push(("fec", "tail"));
    plan.ack_delay_ms = QUICK_ACK_MS;
    for seat in &mut plan.seats {
        seat.multicast = Multicast::Loss(5);
    }
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(25.0)?;
        stage.wait_head(before + 300)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        check_outputs(stage, &ALL)?;

        let (mut rebuilt, mut repaired) = (0, 0);
        for name in ALL {
            let channel = stage.seat(name)?.channel_now()?;
            rebuilt += channel.rebuilt;
            repaired += channel.via.repaired + channel.via.unicast;
        }
        let status = stage.source_status_now()?;
        let flow = status.flow.context("the source has no flow")?;
        ensure!(
            flow.repair_symbols > 0 && rebuilt >= 10,
            "{rebuilt} rebuilt packets of {} repair symbols",
            flow.repair_symbols
        );
        ensure!(
            flow.rebuilt * 2 > rebuilt,
            "{rebuilt} rebuilt packets, and the source heard of {}",
            flow.rebuilt
        );
        ensure!(
            repaired < rebuilt * 2,
            "{repaired} updates were repaired, beside {rebuilt} rebuilt packets"
        );
        Ok(())
    })
}

/// Checks that a receiver behind a lossy link got updates by the flow and repairs, and stayed on
/// it.
///
/// # Errors
/// When it did not.
pub(super) fn check_repaired(
    stage: &Stage,
    name: &str,
    status: &SourceStatus,
    before: u64,
) -> Result<()> {
    let deliveries = stage.seat(name)?.deliveries()?;
    let count = |via: &str| {
        deliveries
            .iter()
            .filter(|one| one.seq > before && one.via == via)
            .count()
    };
    ensure!(
        count("repaired") > 0,
        "{name}: of {} updates over a lossy link none was repaired",
        deliveries.len()
    );
    ensure!(count("flow") > 0, "{name}: nothing came by the flow alone");
    let falls = status
        .moves_of(name)
        .iter()
        .filter(|step| step.to == "unicast")
        .count();
    // A whole tail and its probes can be lost together, once in a while.
    ensure!(
        falls <= 1,
        "{name} left the flow {falls} times for losses that repairs are for"
    );
    Ok(())
}
