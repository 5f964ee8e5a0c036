//! Whether a timed demo showed what it promises.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};

use super::{BLOCKED, CUT, GOOD};
use crate::scenario::{PATIENCE, Stage};

/// Waits until everything has arrived everywhere. Returns how many updates there are: by the
/// generator's count, or for a live feed by the source's.
pub fn settle(stage: &mut Stage, generated: bool) -> Result<u64> {
    if generated {
        return stage.settle();
    }
    let head = stage.source_status_now()?.head;
    stage.wait_cursor(&[GOOD, BLOCKED, CUT], head)?;
    Ok(head)
}

/// Judges the outputs: enough updates, all in every receiver's Atom file, and each receiver on the
/// path that it should have been on.
///
/// `before` is the update at which the multicast receivers were on their rung, `updates` the last
/// one.
pub fn judge(stage: &mut Stage, before: u64, updates: u64, least: u64) -> Result<String> {
    ensure!(
        updates >= least,
        "only {updates} updates came in the time; at least {least} are expected"
    );
    let expected: HashSet<String> = stage.ledger()?.into_iter().map(|line| line.id).collect();
    let mut common: Option<HashSet<String>> = None;
    for name in [GOOD, BLOCKED, CUT] {
        let found: HashSet<String> = stage
            .seat(name)?
            .read_atom()?
            .into_iter()
            .map(|entry| entry.id)
            .collect();
        let missing = expected.difference(&found).count();
        // The file keeps the newest 500.
        ensure!(
            missing == 0 || found.len() >= 500,
            "{name}: {missing} of {} entries are not in its Atom file",
            expected.len()
        );
        ensure!(
            u64::try_from(found.len())? >= least,
            "{name}: its Atom file has {} entries; at least {least} are expected",
            found.len()
        );
        let others = common.get_or_insert_with(|| found.clone());
        ensure!(
            *others == found,
            "{name}: its Atom file has other entries than that of {GOOD}"
        );
    }
    let entries = common.map_or(0, |found| found.len());
    paths(stage, before)?;
    let moves = returns(stage)?;
    let share = flow_share(stage)?;
    let reader = crate::readers::Reader::find()?.name();
    Ok(format!(
        "proven: {updates} updates; {entries} entries in each of three Atom files, read by \
         {reader}; {GOOD}: {:.0} % by the flow; {BLOCKED}: none by the flow; \
         {CUT}: fell back and returned {moves} times",
        share * 100.0
    ))
}

fn paths(stage: &Stage, before: u64) -> Result<()> {
    let share = flow_share(stage)?;
    let via = stage.seat(GOOD)?.channel_now()?.via;
    ensure!(
        share >= 0.9,
        "{GOOD}: only {:.0} % of its updates came by the flow ({via:?}; the first {before} came \
         before it was a member)",
        share * 100.0
    );
    let via = stage.seat(BLOCKED)?.channel_now()?.via;
    ensure!(
        via.flow == 0 && via.repaired == 0,
        "{BLOCKED}: something came by the flow although multicast is blocked ({via:?})"
    );
    Ok(())
}

fn flow_share(stage: &Stage) -> Result<f64> {
    let via = stage.seat(GOOD)?.channel_now()?.via;
    let all = via.flow + via.repaired + via.unicast;
    ensure!(all > 0, "{GOOD}: nothing was delivered");
    let share = |count: u64| count as f64 / all as f64;
    Ok(share(via.flow))
}

/// Counts the third receiver's fall-backs and returns.
fn returns(stage: &mut Stage) -> Result<usize> {
    let count = stage
        .wait(
            "the return of the receiver that was cut off",
            PATIENCE,
            |stage| {
                let Some(status) = stage.source_status() else {
                    return Ok(None);
                };
                let moves = status.moves_of(CUT);
                let returned = moves.last().is_some_and(|step| step.to == "multicast");
                let falls = moves.iter().filter(|step| step.to == "unicast").count();
                Ok((returned && falls > 0).then_some(falls))
            },
        )
        .with_context(|| format!("{CUT} should have fallen back and returned at least once"))?;
    Ok(count)
}
