//! Multicast to one receiver comes and goes.

use anyhow::{Result, bail, ensure};

use super::checks::{RATE, check_moves, check_outputs};
use super::cut::RARE_HEARTBEATS;
use super::{Fault, PATIENCE, Plan, Stage};
use crate::lab::Multicast;
use crate::status::Move;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// Minimum wait of each return after the first, in ms, by the protocol's rules: the first back-off
/// of a second, less a quarter of jitter.
const BACK_OFF_MS: f64 = 700.0;

/// A fall so soon after a return, in ms, makes the next return wait: a second less than by the
/// protocol's rules, for the way from the one clock to the other.
const SOON_MS: f64 = 9_000.0;
/// Number of cuts until one is soon enough and causes a duplicate, which is the first unless the
/// machine stalls.
const TRIES: u32 = 3;

/// g: a receiver whose multicast is cut again soon after it returned is not let back at once. Until
/// it is, it hears the flow and gets everything by unicast too; each update still leaves it once.
///
/// # Errors
/// When one of these does not hold.
pub fn flapping_backs_off(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("flapping", fault);
    plan.source_args = RARE_HEARTBEATS.to_vec();
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 5)?;
        cut_for_a_moment(stage)?;
        let mut cuts = 1;
        for _ in 0..TRIES {
            cut_for_a_moment(stage)?;
            cuts += 1;
            let status = stage.source_status_now()?;
            let (soon, wait) = last_times(&status.moves_of("r1"))?;
            // Each of them is judged: the later ones wait longer by the rules, and so would hide
            // that the first did not.
            ensure!(
                soon >= SOON_MS || wait >= BACK_OFF_MS,
                "r1: let back {wait:.0} ms after its last fall-back, although it had just returned"
            );
            let duplicates = stage.seat("r1")?.channel_now()?.duplicates;
            if duplicates > 0 && soon < SOON_MS {
                break;
            }
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
        let mut expected = vec![up];
        for _ in 0..cuts {
            expected.extend([down, up]);
        }
        check_moves("r1", &moves, &expected)?;
        let (soon, _) = last_times(&moves)?;
        ensure!(
            soon < SOON_MS,
            "r1: it took {soon:.0} ms to cut it off again, {TRIES} times"
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

/// Cuts r1 off until it falls back, and waits for its return.
fn cut_for_a_moment(stage: &mut Stage) -> Result<()> {
    let falls = falls(stage)?;
    stage.set_multicast("r1", Multicast::Cut)?;
    stage.wait("the fall-back of r1", PATIENCE, |stage| {
        Ok((self::falls(stage)? > falls).then_some(()))
    })?;
    stage.set_multicast("r1", Multicast::Open)?;
    stage.wait_rung(&["r1"], "multicast")
}

/// Returns the times from a return to the last fall-back, and from there to the last return, in ms.
fn last_times(moves: &[&Move]) -> Result<(f64, f64)> {
    let [.., before, fall, back] = moves else {
        bail!("r1 did not fall back and return: {moves:?}")
    };
    Ok((fall.at_ms - before.at_ms, back.at_ms - fall.at_ms))
}

/// Returns the number of r1's fall-backs.
fn falls(stage: &mut Stage) -> Result<usize> {
    let status = stage.source_status();
    Ok(status.map_or(0, |status| {
        let moves = status.moves_of("r1");
        moves.iter().filter(|step| step.to == "unicast").count()
    }))
}
