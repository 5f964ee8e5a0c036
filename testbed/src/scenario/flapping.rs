//! Multicast to one receiver comes and goes.

use anyhow::{Result, ensure};

use super::checks::{check_moves, check_outputs};
use super::{PATIENCE, Plan, Sabotage, Stage};
use crate::lab::Multicast;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// What the second return waits at least, in ms, by the protocol's rules: the first back-off of a second, less a quarter of jitter.
const BACK_OFF_MS: f64 = 700.0;

/// g: a receiver whose multicast is cut again soon after it returned is not let back at once. Until it is, it hears the flow and gets everything by unicast too;
/// each update still leaves it once.
///
/// # Errors
/// When one of these does not hold.
pub fn flapping_backs_off(sabotage: Option<Sabotage>) -> Result<()> {
    Stage::play(Plan::new("flapping", sabotage), |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(5.0)?;
        stage.wait_cursor(&ALL, before + 5)?;
        for _ in 0..2 {
            let falls = falls(stage)?;
            stage.set_multicast("r1", Multicast::Cut)?;
            stage.wait("the fall-back of r1", PATIENCE, |stage| {
                Ok((self::falls(stage)? > falls).then_some(()))
            })?;
            stage.set_multicast("r1", Multicast::Open)?;
            stage.wait_rung(&["r1"], "multicast")?;
        }
        let returned = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, returned + 5)?;
        stage.set_rate(0.0)?;
        stage.settle()?;

        check_outputs(stage, &ALL)?;
        let status = stage.source_status_now()?;
        let moves = status.moves_of("r1");
        let down: (&str, &[&str]) = ("unicast", &["ack-timeout"]);
        let up: (&str, &[&str]) = ("multicast", &["joined"]);
        check_moves("r1", &moves, &[up, down, up, down, up])?;
        let wait = moves[4].at_ms - moves[3].at_ms;
        ensure!(
            wait >= BACK_OFF_MS,
            "r1: let back {wait:.0} ms after its second fall-back, although it had just returned"
        );
        let duplicates = stage.seat("r1")?.channel_now()?.duplicates;
        ensure!(
            duplicates > 0,
            "r1: nothing came twice, so that this shows nothing about what does"
        );
        for name in ["r2", "r3"] {
            check_moves(name, &status.moves_of(name), &[up])?;
        }
        Ok(())
    })
}

/// How often r1 fell back.
fn falls(stage: &mut Stage) -> Result<usize> {
    let status = stage.source_status();
    Ok(status.map_or(0, |status| {
        let moves = status.moves_of("r1");
        moves.iter().filter(|step| step.to == "unicast").count()
    }))
}
