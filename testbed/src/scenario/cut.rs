//! Multicast to one of three receivers is cut in mid-stream and restored.

use anyhow::{Result, ensure};

use super::checks::{check_all_by_flow, check_moves, check_outputs};
use super::{PATIENCE, Plan, Sabotage, Stage};
use crate::delivery::longest_gap_ms;
use crate::lab::Multicast;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// Why a member that hears nothing any more is taken off while updates flow.
const CUT_OFF: &[&str] = &["ack-timeout"];

/// Why it comes back.
const PROOF: &[&str] = &["joined"];

/// The longest silence allowed at a receiver that is not touched while ten updates a second flow, in ms. Polls are 200 ms apart; the rest is for a busy machine.
const NO_GAP_MS: f64 = 2_500.0;

/// b: the receiver that is cut off falls back once and returns once; the others see no gap; everything arrives once, in order.
///
/// # Errors
/// When one of these does not hold.
pub fn a_cut_receiver_falls_back_and_returns(sabotage: Option<Sabotage>) -> Result<()> {
    Stage::play(Plan::new("cut", sabotage), |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(10.0)?;
        stage.wait_cursor(&ALL, before + 10)?;

        stage.set_multicast("r1", Multicast::Cut)?;
        stage.wait("the fall-back of r1", PATIENCE, |stage| {
            let status = stage.source_status();
            let fallen = status.is_some_and(|status| {
                status
                    .moves_of("r1")
                    .last()
                    .is_some_and(|step| step.to == "unicast")
            });
            Ok(fallen.then_some(()))
        })?;
        let fallen = stage.source_status_now()?.head;
        stage.wait_cursor(&["r1"], fallen + 15)?;

        stage.set_multicast("r1", Multicast::Open)?;
        stage.wait_rung(&["r1"], "multicast")?;
        let returned = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, returned + 10)?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        check_outputs(stage, &ALL)?;
        let status = stage.source_status_now()?;
        check_moves(
            "r1",
            &status.moves_of("r1"),
            &[
                ("multicast", PROOF),
                ("unicast", CUT_OFF),
                ("multicast", PROOF),
            ],
        )?;
        let deliveries = stage.seat("r1")?.deliveries()?;
        ensure!(
            deliveries
                .iter()
                .any(|one| one.seq > fallen && one.seq <= fallen + 15 && one.via == "unicast"),
            "r1: nothing came by unicast while multicast was cut"
        );
        check_all_by_flow("r1", &deliveries, returned)?;
        for name in ["r2", "r3"] {
            check_moves(name, &status.moves_of(name), &[("multicast", PROOF)])?;
            let deliveries = stage.seat(name)?.deliveries()?;
            check_all_by_flow(name, &deliveries, before)?;
            // The first update after the quiet beginning ends a gap that is none.
            let gap = longest_gap_ms(&deliveries, before + 1);
            ensure!(
                gap < NO_GAP_MS,
                "{name}: {gap:.0} ms without an update while r1 was cut off"
            );
        }
        Ok(())
    })
}
