//! Power cuts of a receiver and of the source.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::checks::check_outputs;
use super::{Fault, PATIENCE, Plan, Seat, Stage};
use crate::waiting::pause;

/// Between two writes of the feed files of the receiver that is killed, as by default, and how long
/// the last one takes at most.
const FILE_INTERVAL: &str = "5s";
const FILES_WRITTEN: Duration = Duration::from_secs(8);

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// e: a receiver is killed again and again, each time right after its journal has moved on, with
/// feed files that lag behind it, and then the source twice, while updates flow; nothing is lost,
/// and nothing is in a file twice.
///
/// # Errors
/// When one of these does not hold.
pub fn crashes_lose_nothing_and_repeat_nothing(fault: Option<Fault>) -> Result<()> {
    let plan = Plan::new("crash", fault).with_seat("r1", |seat| {
        // Its files lag behind its journal when it is killed.
        seat.args = vec!["--file-interval", FILE_INTERVAL];
    });
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(3.0)?;
        stage.wait_cursor(&ALL, before + 3)?;

        for _ in 0..4 {
            kill_after_progress(stage.seat_mut("r1")?)?;
            pause(Duration::from_millis(300));
            stage.restart_seat("r1")?;
            let head = stage.source_status_now()?.head;
            stage.wait_cursor(&["r1"], head)?;
        }
        for _ in 0..2 {
            stage.kill_source()?;
            pause(Duration::from_millis(500));
            stage.restart_source()?;
            let head = stage.source_status_now()?.head;
            stage.wait_cursor(&ALL, head + 3)?;
        }
        stage.set_rate(0.0)?;
        stage.settle()?;
        // After all this the flow is in use again.
        stage.wait_rung(&ALL, "multicast")?;

        // Also with the fault, where nothing says how far the files are: only what is lost may
        // lack.
        pause(FILES_WRITTEN);
        check_outputs(stage, &["r2", "r3"])?;
        check_between_crashes(stage.seat("r1")?)
    })
}

/// Kills a receiver at the moment when it is known durably how far it is: when its journal has
/// grown, or its cursor file has changed. Everything up to there must be kept.
fn kill_after_progress(seat: &mut Seat) -> Result<()> {
    let (cursor, journal) = (seat.cursor_file(), seat.journal_folder());
    let progress = || (std::fs::read(&cursor).unwrap_or_default(), size(&journal));
    let first = progress();
    let start = Instant::now();
    while progress() == first {
        if start.elapsed() > PATIENCE {
            bail!("{}: its journal does not grow", seat.name());
        }
        pause(Duration::from_millis(1));
    }
    seat.kill()
}

/// The files of a folder together, in bytes.
fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let lengths = files.filter_map(|file| file.metadata().ok());
    lengths.map(|meta| meta.len()).sum()
}

/// A killed receiver may repeat in its log what it had put out but not yet counted; it goes back
/// over a crash only, by little, and leaves nothing out.
fn check_between_crashes(seat: &Seat) -> Result<()> {
    let mut highest = 0;
    let mut setbacks = 0;
    for delivery in seat.deliveries()? {
        if delivery.seq <= highest {
            setbacks += 1;
        }
        highest = highest.max(delivery.seq);
    }
    ensure!(
        setbacks <= 200,
        "{}: {setbacks} updates were delivered again after 4 crashes",
        seat.name()
    );
    Ok(())
}
