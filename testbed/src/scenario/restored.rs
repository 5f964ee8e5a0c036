//! The source's store is restored from a backup.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Fault, PATIENCE, Plan, Stage};
use crate::delivery::Delivery;
use crate::lore::Line;

const ALL: [&str; 3] = ["r1", "r2", "r3"];
/// The files of an SQLite database in use.
const DATABASE: [&str; 3] = ["flexfeed.db", "flexfeed.db-wal", "flexfeed.db-shm"];
/// Entries that appear before the backup, between it and the crash, during the downtime, and after
/// it.
const BEFORE: u32 = 15;
const LOST: u32 = 20;
const DOWN: u64 = 10;
const AFTER: u32 = 30;
/// Number of entries in the feed's window. At most 10 at once are new.
const WINDOW: u64 = 25;

/// m: the source's database is lost, and a backup taken while it ran is put back; by the time that
/// receivers return, the source has given the lost updates' numbers to others, and more. Receivers
/// start over with the channel's new incarnation: each gets all that the source has, once and in
/// order, and keeps what the source has lost.
///
/// # Errors
/// When one of these does not hold.
pub fn a_restored_backup_is_noticed(fault: Option<Fault>) -> Result<()> {
    Stage::play(Plan::new("restored", fault), |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        stage.grow(BEFORE)?;
        let kept = stage.settle()?;
        let backup = back_up(stage)?;
        stage.grow(LOST)?;
        let old = stage.settle()?;
        let old_incarnation = stage.source_status_now()?.incarnation;
        for name in ["r1", "r2"] {
            stage.seat_mut(name)?.kill()?;
        }
        stage.kill_source()?;
        put_back(stage, &backup)?;
        // These push some lost entries out of the feed's window, where they cannot be fetched
        // again; so later entries get other numbers than before.
        stage.grow(u32::try_from(DOWN)?)?;
        let gone = old + DOWN - WINDOW;
        stage.restart_source()?;
        // One receiver was there all the time and comes back at once; the others come when the
        // source is past them.
        stage.grow(AFTER)?;
        let ledger_end = stage.wait("the feed shown as far as asked for", PATIENCE, |stage| {
            let state = stage.feed_state()?;
            Ok((state.pending == 0 && state.unseen == 0).then_some(state.entries))
        })?;
        let new = kept + (ledger_end - gone);
        ensure!(
            new > old,
            "the new numbers have to reach past the old ones: {new}, {old}"
        );
        stage.wait_head(new)?;
        for name in ["r1", "r2"] {
            stage.restart_seat(name)?;
        }
        stage.wait_cursor(&ALL, new)?;

        let status = stage.source_status_now()?;
        ensure!(
            status.head == new,
            "the source has {} updates and should have {new}",
            status.head
        );
        let ledger = stage.ledger()?;
        // Entries at the source: those of the backup, and those in the feed since.
        let has: Vec<&Line> = ledger
            .iter()
            .filter(|line| line.n <= kept || line.n > gone)
            .collect();
        for name in ALL {
            let deliveries = stage.wait(&format!("the log of {name}"), PATIENCE, |stage| {
                let deliveries = stage.seat(name)?.deliveries()?;
                let there = deliveries.last().is_some_and(|one| one.seq == new);
                Ok(there.then_some(deliveries))
            })?;
            check_both_lives(&deliveries, &ledger, old, &has).with_context(|| name.to_owned())?;
            check_file(stage, name, &ledger)?;
            require_incarnation(stage, name, &status.incarnation, new)?;
        }
        ensure!(
            status.incarnation != old_incarnation,
            "the source did not notice that its database was set back: its incarnation is still \
             {old_incarnation}"
        );
        // And it goes on.
        stage.wait_rung(&ALL, "multicast")?;
        stage.grow(5)?;
        stage.wait_cursor(&ALL, new + 5)
    })
}

fn data_folder(stage: &Stage) -> PathBuf {
    stage.run_folder().join("source")
}

/// Copies the database as it is; while nothing new comes, its files agree with each other.
fn back_up(stage: &Stage) -> Result<PathBuf> {
    let backup = stage.run_folder().join("backup");
    std::fs::create_dir(&backup)?;
    copy(&data_folder(stage), &backup)?;
    Ok(backup)
}

/// Puts the copy in the place of the database.
fn put_back(stage: &Stage, backup: &Path) -> Result<()> {
    let data = data_folder(stage);
    for name in DATABASE {
        let path = data.join(name);
        if path.exists() {
            std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    for path in copy(backup, &data)? {
        stage.source_node().hand_over(&path)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    let mut copies = Vec::new();
    for name in DATABASE {
        let (from, to) = (from.join(name), to.join(name));
        // The smaller two are there only while a program has the database open.
        if from.exists() {
            std::fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
            copies.push(to);
        }
    }
    ensure!(
        !copies.is_empty(),
        "there is no database in {}",
        from.display()
    );
    Ok(copies)
}

/// A receiver's cursor file.
#[derive(Debug, Deserialize)]
struct CursorFile {
    incarnation: String,
    seq: u64,
}

fn require_incarnation(stage: &Stage, name: &str, incarnation: &str, seq: u64) -> Result<()> {
    let path = stage.seat(name)?.cursor_file();
    let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let cursor: CursorFile = serde_json::from_slice(&text)
        .with_context(|| format!("{}: {}", path.display(), String::from_utf8_lossy(&text)))?;
    ensure!(
        (cursor.incarnation.as_str(), cursor.seq) == (incarnation, seq),
        "{name} stands at {cursor:?}, the source at {seq} of {incarnation}"
    );
    Ok(())
}

/// A delivery log has the old life up to some update, without holes, and then the new one from the
/// first to the last; each update is the entry that it was in its life.
fn check_both_lives(
    deliveries: &[Delivery],
    ledger: &[Line],
    old: u64,
    has: &[&Line],
) -> Result<()> {
    let first_life = usize::try_from(old)?;
    ensure!(
        deliveries.len() == first_life + has.len(),
        "{} updates were delivered; {old} before the crash and all {} after it should have been",
        deliveries.len(),
        has.len()
    );
    let expected = ledger.iter().take(first_life).chain(has.iter().copied());
    let numbers = (1..=old).chain(1..);
    for ((one, seq), line) in deliveries.iter().zip(numbers).zip(expected) {
        ensure!(
            one.seq == seq && one.id == line.id,
            "update {} (entry {}) was delivered where {seq} (entry {}) should have been",
            one.seq,
            one.id,
            line.id
        );
    }
    Ok(())
}

/// The Atom file has every entry that the feed ever had, also those that the source has lost.
fn check_file(stage: &Stage, name: &str, ledger: &[Line]) -> Result<()> {
    let found = stage.seat(name)?.read_atom()?;
    let lost: Vec<u64> = ledger
        .iter()
        .filter(|line| found.iter().all(|entry| entry.id != line.id))
        .map(|line| line.n)
        .collect();
    ensure!(
        lost.is_empty() && found.len() == ledger.len(),
        "{name}: its Atom file has {} of {} entries; lost are numbers {lost:?}",
        found.len(),
        ledger.len()
    );
    Ok(())
}
