//! Receivers behind routers that change their translations.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::{RATE, check_all_by_flow, check_moves, check_outputs};
use super::plan::{FALL_BACK_MS, Place};
use super::{Fault, PATIENCE, Plan, Stage};
use crate::lab::Rebinding;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// Outage of a router that changes its translations: longer than flow data may stay unacknowledged,
/// so that replicated packets in flight are surely lost.
const OUTAGE: Duration = Duration::from_millis(FALL_BACK_MS as u64 + 500);

/// j: one receiver behind a router gets everything by unicast and one by copies of the flow; each
/// is seen from another port, then from another address, while updates flow. Both go on, nothing is
/// lost or repeated, and a native member notices nothing.
///
/// # Errors
/// When one of these does not hold.
pub fn nat_rebinding(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("nat", fault)
        .with_seat("r1", |seat| {
            seat.place = Place::BehindNat;
            seat.args = vec!["--no-replicate"];
        })
        .with_seat("r2", |seat| seat.place = Place::BehindNat);
    plan.replicate = true;
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r3"], "multicast")?;
        stage.wait_rung(&["r2"], "replicated")?;
        stage.wait_rung(&["r1"], "unicast")?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 5)?;
        check_all_by_flow("r2", &stage.seat("r2")?.deliveries()?, before)?;

        for to in [Rebinding::Port, Rebinding::Address, Rebinding::Port] {
            for name in ["r1", "r2"] {
                let old = seen_from(stage, name)?;
                let outside = stage.rebind(name, to, OUTAGE)?;
                let head = stage.source_status_now()?.head;
                stage.wait_cursor(&ALL, head + 5)?;
                let new = seen_from(stage, name)?;
                ensure!(
                    new != old && new.0 == outside,
                    "{name}: seen from {new:?} after its router went from {old:?} to {outside}"
                );
            }
        }
        stage.wait_rung(&["r2"], "replicated")?;
        let returned = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, returned + 5)?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        check_outputs(stage, &ALL)?;
        check_all_by_flow("r2", &stage.seat("r2")?.deliveries()?, returned)?;
        let r1 = stage.seat("r1")?.deliveries()?;
        if let Some(other) = r1.iter().find(|one| one.via != "unicast") {
            anyhow::bail!(
                "r1: update {} came by {} although it wants no copies and hears no multicast",
                other.seq,
                other.via
            );
        }
        let status = stage.source_status_now()?;
        check_moves("r1", &status.moves_of("r1"), &[])?;
        check_moves("r3", &status.moves_of("r3"), &[("multicast", &["joined"])])?;
        check_all_by_flow("r3", &stage.seat("r3")?.deliveries()?, before)?;
        let down = |one: &&crate::status::Move| one.to == "multicast";
        ensure!(
            !status.moves_of("r2").iter().any(down),
            "r2 was taken for a native member behind a router that forwards no multicast"
        );
        Ok(())
    })
}

/// The address and port that the source sees a receiver with.
fn seen_from(stage: &mut Stage, name: &str) -> Result<(IpAddr, u16)> {
    stage.wait(&format!("{name} connected"), PATIENCE, |stage| {
        let status = stage.source_status_now().context("the source's status")?;
        let receiver = status.receivers.iter().find(|one| one.name == name);
        Ok(receiver.map(|one| (one.addr.ip().to_canonical(), one.addr.port())))
    })
}
