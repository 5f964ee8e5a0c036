//! Receivers that are away for thousands of updates.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::check_moves;
use super::{Fault, Plan, Stage};
use crate::delivery::{Delivery, check_once_in_order};
use crate::lore::Line;

/// Number of updates the source keeps.
const KEPT: u64 = 10_500;
/// The same as an argument.
const KEPT_TEXT: &str = "10500";
/// Entries that appear while one receiver is away, all still kept by the source; later ones push
/// some out for another receiver.
const AWAY: u32 = 10_000;
const MORE: u32 = 1_500;
/// Number of entries an Atom file keeps.
const IN_FILE: usize = 500;
/// Thousands of entries pass the feed's window of 25 in hundreds of polls.
const GROWING: Duration = Duration::from_secs(400);
/// Thousands of updates are delivered in seconds.
const CATCHING_UP: Duration = Duration::from_secs(120);

/// l: a receiver that was away for 10,000 updates gets them all, once and in order; one that was
/// away for longer than the source keeps updates is notified of the exact gap and gets everything
/// after it; the third, which stayed, gets everything by the flow.
///
/// # Errors
/// One of these does not hold.
pub fn away_for_thousands_of_updates(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("away", fault);
    plan.poll_interval = 0.05;
    plan.new_at_once = 25;
    plan.source_args = vec!["--retention", KEPT_TEXT];
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2", "r3"], "multicast")?;
        stage.grow(20)?;
        let left = stage.settle()?;
        stage.seat_mut("r1")?.kill()?;
        stage.seat_mut("r2")?.kill()?;

        let back = grow_without(stage, AWAY)?;
        ensure!(
            back - left == u64::from(AWAY),
            "the feed has {back} changes"
        );
        stage.restart_seat("r1")?;
        catch_up(stage, "r1", back)?;

        let last = grow_without(stage, MORE)?;
        stage.restart_seat("r2")?;
        catch_up(stage, "r2", last)?;
        catch_up(stage, "r1", last)?;
        // Live again: the next ones come by the flow.
        stage.wait_rung(&["r1", "r2", "r3"], "multicast")?;
        stage.grow(10)?;
        let end = stage.settle()?;

        let ledger = stage.ledger()?;
        for name in ["r1", "r3"] {
            let deliveries = logged(stage, name, end)?;
            check_once_in_order(&deliveries, end).with_context(|| name.to_owned())?;
            check_ids(name, &deliveries, &ledger)?;
            let gaps = stage.seat(name)?.channel_now()?.gaps;
            ensure!(
                gaps.is_empty(),
                "{name} missed nothing and reports {gaps:?}"
            );
        }
        check_gap(stage, left, last, end, &ledger)?;
        for name in ["r1", "r2", "r3"] {
            check_file(stage, name, &ledger)?;
        }
        let status = stage.source_status_now()?;
        check_moves("r3", &status.moves_of("r3"), &[("multicast", &["joined"])])
    })
}

/// Lets the feed grow while not everybody is there; returns the number of the last change, once the
/// source and the receiver that stayed have it.
fn grow_without(stage: &mut Stage, count: u32) -> Result<u64> {
    stage.grow(count)?;
    let total = stage.wait("the feed shown as far as asked for", GROWING, |stage| {
        let state = stage.feed_state()?;
        Ok((state.pending == 0 && state.unseen == 0).then_some(state.entries))
    })?;
    stage.wait_head(total)?;
    stage.wait_cursor(&["r3"], total)?;
    Ok(total)
}

fn catch_up(stage: &mut Stage, name: &str, seq: u64) -> Result<()> {
    let what = format!("update {seq} delivered to {name}, who was away");
    stage.wait(&what, CATCHING_UP, |stage| {
        let channel = stage.seat(name)?.channel()?;
        Ok(channel
            .is_some_and(|channel| channel.cursor >= seq)
            .then_some(()))
    })
}

/// The delivery log of a receiver, once it has its last line: that is written after the output.
fn logged(stage: &mut Stage, name: &str, last: u64) -> Result<Vec<Delivery>> {
    stage.wait(&format!("the log of {name}"), CATCHING_UP, |stage| {
        let deliveries = stage.seat(name)?.deliveries()?;
        let there = deliveries.last().is_some_and(|one| one.seq >= last);
        Ok(there.then_some(deliveries))
    })
}

/// The receiver that was away for too long has everything before, nothing of what was gone,
/// everything after, and the right range in its status.
fn check_gap(stage: &mut Stage, left: u64, last: u64, end: u64, ledger: &[Line]) -> Result<()> {
    let first = last - KEPT + 1;
    let gaps: Vec<(u64, u64)> = stage
        .seat("r2")?
        .channel_now()?
        .gaps
        .iter()
        .map(|gap| (gap.from, gap.to))
        .collect();
    ensure!(
        gaps == [(left + 1, first - 1)],
        "r2 should report the gap {} to {}, and reports {gaps:?}",
        left + 1,
        first - 1
    );
    let deliveries = logged(stage, "r2", end)?;
    let seqs: Vec<u64> = deliveries.iter().map(|one| one.seq).collect();
    let expected: Vec<u64> = (1..=left).chain(first..=end).collect();
    let differs = seqs
        .iter()
        .zip(&expected)
        .position(|(is, should)| is != should);
    ensure!(
        seqs == expected,
        "r2: {} updates were delivered instead of {}; they differ first at delivery {differs:?}",
        seqs.len(),
        expected.len()
    );
    check_ids("r2", &deliveries, ledger)
}

/// Each update is the entry that the feed had under this number.
fn check_ids(name: &str, deliveries: &[Delivery], ledger: &[Line]) -> Result<()> {
    for one in deliveries {
        let line = usize::try_from(one.seq - 1)
            .ok()
            .and_then(|at| ledger.get(at));
        ensure!(
            line.is_some_and(|line| line.id == one.id),
            "{name}: update {} is entry {}, but in the feed it was {line:?}",
            one.seq,
            one.id
        );
    }
    Ok(())
}

/// The Atom file, which keeps so many entries, has the newest.
fn check_file(stage: &Stage, name: &str, ledger: &[Line]) -> Result<()> {
    let newest: HashSet<&str> = ledger
        .iter()
        .rev()
        .take(IN_FILE)
        .map(|line| line.id.as_str())
        .collect();
    let found = stage.seat(name)?.read_atom()?;
    let strangers = found
        .iter()
        .filter(|entry| !newest.contains(entry.id.as_str()))
        .count();
    ensure!(
        found.len() == newest.len() && strangers == 0,
        "{name}: its Atom file has {} entries, {strangers} of them not among the newest {}",
        found.len(),
        newest.len()
    );
    Ok(())
}
