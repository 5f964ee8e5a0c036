//! Multicast to one of three receivers is cut in mid-stream and restored.

use anyhow::{Result, ensure};

use super::checks::{RATE, check_all_by_flow, check_moves, check_outputs};
use super::{Fault, PATIENCE, Plan, Stage};
use crate::delivery::longest_gap_ms;
use crate::lab::Multicast;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// Heartbeats so far apart that a receiver which stood still for a while together with the machine
/// does not say first that they stay away.
pub(super) const RARE_HEARTBEATS: [&str; 2] = ["--heartbeat-ms", "5000"];

/// Causes of dismissing a member that receives nothing while updates flow.
const CUT_OFF: &[&str] = &["ack-timeout"];

/// Causes of its return.
const PROOF: &[&str] = &["joined"];

/// The longest silence allowed at a receiver that is not touched while updates flow at [`RATE`], in
/// ms: for a busy machine. That such a receiver does not wait for the one that is cut off is seen
/// by its getting everything before that one is let back.
const NO_GAP_MS: f64 = 20_000.0;

/// b: the receiver that is cut off falls back once and returns once; the others see no gap;
/// everything arrives once, in order.
///
/// # Errors
/// When one of these does not hold.
pub fn a_cut_receiver_falls_back_and_returns(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("cut", fault);
    plan.source_args = RARE_HEARTBEATS.to_vec();
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        cut_and_restore(stage, "r1", &["r2", "r3"])
    })
}

/// Cuts one receiver of a stage whose receivers are all on multicast, with [`RARE_HEARTBEATS`], and
/// restores it; judges everybody.
///
/// # Errors
/// When the receiver or the others do not take it as they should.
pub(super) fn cut_and_restore(stage: &mut Stage, cut: &str, others: &[&str]) -> Result<()> {
    let all: Vec<&str> = others.iter().copied().chain([cut]).collect();
    let before = stage.settle()?;
    stage.set_rate(RATE)?;
    stage.wait_cursor(&all, before + 5)?;

    stage.set_multicast(cut, Multicast::Cut)?;
    stage.wait(&format!("the fall-back of {cut}"), PATIENCE, |stage| {
        let status = stage.source_status();
        let fallen = status.is_some_and(|status| {
            status
                .moves_of(cut)
                .last()
                .is_some_and(|step| step.to == "unicast")
        });
        Ok(fallen.then_some(()))
    })?;
    let fallen = stage.source_status_now()?.head;
    stage.wait_cursor(&all, fallen + 8)?;

    stage.set_multicast(cut, Multicast::Open)?;
    stage.wait_rung(&[cut], "multicast")?;
    let returned = stage.source_status_now()?.head;
    stage.wait_cursor(&all, returned + 5)?;
    stage.set_rate(0.0)?;
    stage.settle()?;

    check_outputs(stage, &all)?;
    let status = stage.source_status_now()?;
    check_moves(
        cut,
        &status.moves_of(cut),
        &[
            ("multicast", PROOF),
            ("unicast", CUT_OFF),
            ("multicast", PROOF),
        ],
    )?;
    let deliveries = stage.seat(cut)?.deliveries()?;
    ensure!(
        deliveries
            .iter()
            .any(|one| one.seq > fallen && one.seq <= fallen + 8 && one.via == "unicast"),
        "{cut}: nothing came by unicast while multicast was cut"
    );
    check_all_by_flow(cut, &deliveries, returned)?;
    for name in others {
        check_moves(name, &status.moves_of(name), &[("multicast", PROOF)])?;
        let deliveries = stage.seat(name)?.deliveries()?;
        check_all_by_flow(name, &deliveries, before)?;
        // The first update after the quiet beginning ends a gap that is none.
        let gap = longest_gap_ms(&deliveries, before + 1);
        ensure!(
            gap < NO_GAP_MS,
            "{name}: {gap:.0} ms without an update while {cut} was cut off"
        );
    }
    Ok(())
}
