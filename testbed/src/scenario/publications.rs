//! Entries that are published from the command line while the source is killed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{CHANNEL, Fault, Plan, Stage};
use crate::waiting::pause;

const ALL: [&str; 3] = ["r1", "r2", "r3"];
/// Times between the last publication and the kill: before the source has noticed it, meanwhile,
/// and after.
const KILLED_AFTER_MS: [u64; 4] = [0, 200, 450, 1_200];
/// Entries that are published before each kill, and while no source runs.
const BEFORE: usize = 5;
const MEANWHILE: usize = 3;

/// pb: entries are published while the source runs, is killed, and does not run: each receiver gets
/// each of them once, also those that were published twice.
///
/// # Errors
/// One of these does not hold.
pub fn published_entries_survive_the_source(fault: Option<Fault>) -> Result<()> {
    Stage::play(Plan::new("publications", fault), |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        let mut number = 0;
        for killed_after in KILLED_AFTER_MS {
            for _ in 0..BEFORE {
                number += 1;
                publish(stage, number)?;
            }
            pause(Duration::from_millis(killed_after));
            stage.kill_source()?;
            publish(stage, number)?;
            for _ in 0..MEANWHILE {
                number += 1;
                publish(stage, number)?;
            }
            stage.restart_source()?;
        }
        // Behind the publications, so that what is not there by then is lost.
        let last = format!("published-{number}");
        stage.wait("the last entry", Duration::from_secs(60), |stage| {
            let text = std::fs::read_to_string(stage.seat("r1")?.atom_file())?;
            Ok(text.contains(&last).then_some(()))
        })?;
        // A second update of an entry would take the place of the first in the files.
        let head = stage.source_status_now()?.head;
        let updates = head - before;
        ensure!(
            updates == number as u64,
            "{updates} updates of {number} published entries"
        );
        stage.wait_cursor(&ALL, head)?;
        for name in ALL {
            let entries = stage.seat(name)?.read_atom()?;
            for number in 1..=number {
                let id = format!("published-{number}");
                let count = entries.iter().filter(|entry| entry.id == id).count();
                ensure!(
                    count == 1,
                    "{name} has the published entry {id} {count} times"
                );
            }
        }
        Ok(())
    })
}

/// Publishes an entry.
fn publish(stage: &Stage, number: usize) -> Result<()> {
    let text = format!("The entry {number}");
    publish_text(stage, &format!("published-{number}"), &text)
}

/// Publishes a text as an operator does.
///
/// # Errors
/// The command fails.
pub(super) fn publish_text(stage: &Stage, id: &str, text: &str) -> Result<()> {
    let file = stage.run_folder().join("published.txt");
    std::fs::write(&file, text)?;
    let mut command = stage.source_node().command(&stage.bins().source)?;
    command
        .args(["publish", CHANNEL])
        .arg(&file)
        .args(["--id", id])
        .arg("--data")
        .arg(stage.source_data());
    let output = command.output().context("starting flexfeed-source")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{id} was not published: {said}");
    Ok(())
}
