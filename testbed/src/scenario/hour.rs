//! An hour of a busy archive, sixty times faster.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::check_atom;
use super::{Fault, FeedPlan, Plan, Stage};
use crate::delivery::check_once_in_order;
use crate::lore::WINDOW;
use crate::waiting::pause;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

const SPEED: f64 = 60.0;
/// Interval of the source's own polls, 20 s of the hour, in s.
const POLLS: f64 = 20.0 / SPEED;
/// The hour, and as much again for machines that are slow.
const BOUND: Duration = Duration::from_secs(180);

/// n: an hour of a busy archive: a window of 25 entries, a mail every 20 s on average, patch
/// series, one of them larger than the window within one poll, changed mails, re-dated mails, mails
/// dated hours before they arrive. Every mail that there ever was is in every receiver's Atom file,
/// in its last version; every update was delivered once and in order; a new date alone was no
/// update.
///
/// # Errors
/// One of these does not hold.
pub fn an_hour_of_a_busy_archive(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("hour", fault);
    plan.feed = FeedPlan::Hour {
        seed: 7,
        speed: SPEED,
    };
    plan.poll_interval = POLLS;
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        stage.play_hour()?;
        let shown = stage.wait("the end of the hour", BOUND, |stage| {
            let state = stage.feed_state()?;
            Ok((state.left == 0).then_some(state))
        })?;
        ensure!(
            shown.entries > 4 * WINDOW as u64,
            "the hour had only {} entries",
            shown.entries
        );
        stage.wait("the last poll", BOUND, |stage| {
            Ok((stage.feed_state()?.unseen == 0).then_some(()))
        })?;
        let head = stage.wait("a source that has taken everything in", BOUND, |stage| {
            let before = stage.source_status_now()?.head;
            pause(Duration::from_secs(2));
            let head = stage.source_status_now()?.head;
            Ok((head == before).then_some(head))
        })?;
        stage.wait_cursor(&ALL, head)?;

        let ledger = stage.ledger()?;
        for name in ALL {
            check_atom(stage, name, &ledger)?;
            let deliveries = stage.wait(&format!("the log of {name}"), BOUND, |stage| {
                let deliveries = stage.seat(name)?.deliveries()?;
                let there = deliveries.last().is_some_and(|one| one.seq >= head);
                Ok(there.then_some(deliveries))
            })?;
            check_once_in_order(&deliveries, head).with_context(|| name.to_owned())?;
        }
        // Changes of one entry between two polls are one update; dates alone are none.
        ensure!(
            head <= ledger.len() as u64,
            "the source made {head} updates of {} new and changed entries",
            ledger.len()
        );
        let entries: HashSet<&str> = ledger.iter().map(|line| line.id.as_str()).collect();
        ensure!(
            head > entries.len() as u64,
            "of {} changed entries none became an update",
            ledger.len() - entries.len()
        );
        Ok(())
    })
}
