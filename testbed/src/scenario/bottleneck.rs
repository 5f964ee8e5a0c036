//! Receivers behind slow lines: rate control keeps the flow fast for the others.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::checks::check_outputs;
use super::plan::QUICK_ACK_MS;
use super::{Fault, PATIENCE, Plan, Stage};

const ALL: [&str; 3] = ["r1", "r2", "r3"];
const FAST: [&str; 2] = ["r2", "r3"];

/// Capacity of the slow receiver's line in kbit/s.
const SLOW: u32 = 64;
/// Updates a second: several times what the slow line carries.
const RATE: f64 = 30.0;
/// Updates in all: more than a minute's work for the slow line.
const UPDATES: u64 = 300;
/// Time within which the fast receivers have everything that was published.
const PROMPT: Duration = Duration::from_secs(20);

/// c2: a receiver whose line is too slow for the channel is moved to unicast, the others get
/// everything promptly by the flow, and it returns once it keeps up.
///
/// # Errors
/// When one of these does not hold.
pub fn a_slow_receiver_holds_up_only_itself(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("bottleneck", fault);
    plan.ack_delay_ms = QUICK_ACK_MS;
    plan.new_at_once = 25;
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_bandwidth("r1", Some(SLOW))?;
        stage.set_rate(RATE)?;
        stage.wait_head(before + UPDATES)?;
        stage.set_rate(0.0)?;
        let published = Instant::now();
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&FAST, head)?;
        ensure!(
            published.elapsed() <= PROMPT,
            "the slow receiver held the flow up: the others had the last update after {:?}",
            published.elapsed()
        );
        let status = stage.source_status_now()?;
        let evicted = |step: &&crate::status::Move| {
            step.to == "unicast" && matches!(step.cause.as_str(), "too-slow" | "loss-too-high")
        };
        ensure!(
            status.moves_of("r1").iter().any(evicted),
            "r1 was not evicted from the flow"
        );
        for name in FAST {
            let moves = status.moves_of(name);
            ensure!(moves.len() == 1, "{name} left the flow: {moves:?}");
        }
        // The slow line is busy with what r1 still has to get: too early to return.
        ensure!(
            status
                .moves_of("r1")
                .last()
                .is_some_and(|step| step.to == "unicast"),
            "r1 returned to the flow before it could keep up"
        );
        stage.set_bandwidth("r1", None)?;
        stage.settle()?;
        stage.wait("the return of r1", PATIENCE, |stage| {
            let status = stage.source_status();
            let back = status.is_some_and(|status| {
                let last = status.moves_of("r1").last().map(|step| step.to.clone());
                last.as_deref() == Some("multicast")
            });
            Ok(back.then_some(()))
        })?;
        check_outputs(stage, &ALL)
    })
}
