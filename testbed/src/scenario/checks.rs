//! The judgements that all scenarios share.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::Stage;
use crate::delivery::{Delivery, check_once_in_order};
use crate::lore::Line;
use crate::status::Move;
use crate::waiting::wait_for;

/// Number of entries a receiver's Atom file keeps.
const KEPT: usize = 500;

/// Updates a second while something is waited for that may take minutes on a busy machine: slow
/// enough that what comes meanwhile can be judged (see [`KEPT`]).
pub(super) const RATE: f64 = 3.0;

/// Checks the outputs of every receiver against the generator's ledger: the Atom file, read by an
/// independent reader, holds every entry once, in its last version; the delivery logs of the
/// receivers named in `unbroken` (those that were never killed) hold every update once, in the
/// ledger's order.
///
/// # Errors
/// Says which receiver lacks or repeats what.
pub fn check_outputs(stage: &mut Stage, unbroken: &[&str]) -> Result<()> {
    let ledger = stage.ledger()?;
    ensure!(!ledger.is_empty(), "the generator's ledger is empty");
    ensure!(
        ledger.len() <= KEPT,
        "a scenario of more than {KEPT} entries cannot be judged by the Atom files"
    );
    for name in stage.names() {
        check_atom(stage, &name, &ledger)?;
    }
    for name in unbroken {
        check_log(stage, name, &ledger).with_context(|| format!("delivery log of {name}"))?;
    }
    Ok(())
}

/// Checks that a receiver's Atom file, read by an independent reader, holds every entry of the
/// ledger once, in its last version, and nothing else.
///
/// # Errors
/// Says what it lacks, or has too much.
pub fn check_atom(stage: &Stage, name: &str, ledger: &[Line]) -> Result<()> {
    // The last line of an entry is its last version.
    let expected: HashMap<&str, &Line> =
        ledger.iter().map(|line| (line.id.as_str(), line)).collect();
    let found = stage.seat(name)?.read_atom()?;
    for entry in &found {
        let Some(line) = expected.get(entry.id.as_str()) else {
            bail!(
                "{name}: its Atom file has an entry {} that the feed never had",
                entry.id
            );
        };
        if let Some(title) = &line.title {
            ensure!(
                entry.title == *title,
                "{name}: entry {} is called {:?} in its Atom file and {title:?} (version {}) in \
                 the feed",
                entry.id,
                entry.title,
                line.version
            );
        }
    }
    // The reader has made sure that no entry is in the file twice.
    if found.len() != expected.len() {
        let missing: Vec<u64> = ledger
            .iter()
            .filter(|line| found.iter().all(|entry| entry.id != line.id))
            .map(|line| line.n)
            .collect();
        bail!(
            "{name}: its Atom file has {} of {} entries; lost are numbers {missing:?}",
            found.len(),
            expected.len()
        );
    }
    Ok(())
}

fn check_log(stage: &Stage, name: &str, ledger: &[Line]) -> Result<()> {
    let last = u64::try_from(ledger.len())?;
    let seat = stage.seat(name)?;
    // The log is written after the output, so that it may be a moment behind the cursor.
    let deliveries = wait_for("the last line", super::PATIENCE, || {
        let deliveries = seat.deliveries()?;
        let there = deliveries.last().is_some_and(|one| one.seq >= last);
        Ok(there.then_some(deliveries))
    })?;
    check_once_in_order(&deliveries, last)?;
    for (delivery, line) in deliveries.iter().zip(ledger) {
        ensure!(
            delivery.id == line.id,
            "update {} is entry {}, but the feed's change number {} was of entry {}",
            delivery.seq,
            delivery.id,
            line.n,
            line.id
        );
    }
    Ok(())
}

/// Checks that from one update on, each came by the flow alone.
///
/// # Errors
/// Names the first that did not.
pub fn check_all_by_flow(name: &str, deliveries: &[Delivery], after: u64) -> Result<()> {
    match deliveries
        .iter()
        .find(|delivery| delivery.seq > after && delivery.via != "flow")
    {
        None => Ok(()),
        Some(delivery) => bail!(
            "{name}: update {} came by {} although the receiver stood on multicast since update \
             {after}",
            delivery.seq,
            delivery.via
        ),
    }
}

/// Checks a receiver's changes of rung: `(to, one of these causes)` each, in order, and no others.
///
/// # Errors
/// Shows the moves that there were.
pub fn check_moves(name: &str, moves: &[&Move], expected: &[(&str, &[&str])]) -> Result<()> {
    let fits = moves.len() == expected.len()
        && moves
            .iter()
            .zip(expected)
            .all(|(step, (to, causes))| step.to == *to && causes.contains(&step.cause.as_str()));
    if fits {
        return Ok(());
    }
    let moved: Vec<String> = moves
        .iter()
        .map(|step| format!("{} → {} ({})", step.from, step.to, step.cause))
        .collect();
    bail!("{name}: moves were {moved:?}; expected {expected:?}");
}

/// Fails if any log of a run contains a panic.
///
/// # Errors
/// Names the log and quotes the line.
pub fn require_no_panic(logs: &Path) -> Result<()> {
    for entry in std::fs::read_dir(logs).with_context(|| format!("reading {}", logs.display()))? {
        let path = entry?.path();
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        if let Some(line) = text.lines().find(|line| line.contains("panicked at")) {
            bail!("{} tells of a panic: {line}", path.display());
        }
    }
    Ok(())
}
