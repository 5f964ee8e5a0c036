//! A receiver behind a slow line among many: rate control keeps the flow fast for the others.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::checks::check_outputs;
use super::plan::QUICK_ACK_MS;
use super::swarm::{Swarm, wait_members};
use super::{Fault, PATIENCE, Plan, Stage};
use crate::status::Move;

const BOTH: [&str; 2] = ["r1", "r2"];

/// Receivers of the swarm.
const CROWD: u64 = 500;
/// Capacity of the slow receiver's line in kbit/s.
const SLOW: u32 = 100;
/// Updates a second: several times what the slow line carries.
const RATE: f64 = 30.0;
/// Updates in all: most of a minute's work for the slow line.
const UPDATES: u64 = 300;
/// Time within which the fast receivers have everything that was published.
const PROMPT: Duration = Duration::from_secs(20);
/// Longest delay of 99 of 100 updates at the crowd, in ms. The slow receiver may hold the flow for
/// two seconds before it is evicted.
const CROWD_P99_MS: f64 = 6_000.0;

/// c2: the line of one receiver among hundreds is throttled to 100 kbit/s. It is moved to unicast,
/// where it stays while it cannot keep up; the others get everything promptly by the flow; and it
/// returns once its line is wide again.
///
/// # Errors
/// When one of these does not hold.
pub fn a_slow_receiver_holds_up_only_itself(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("bottleneck", fault);
    plan.seats.truncate(BOTH.len());
    plan.ack_delay_ms = QUICK_ACK_MS;
    plan.new_at_once = 25;
    Stage::play(plan, |stage| {
        stage.wait_rung(&BOTH, "multicast")?;
        let more = ["--duration", "20s", "--warm-up", "0.5s"];
        let mut swarm = Swarm::start(stage, "swarm", CROWD, 6, &more)?;
        wait_members(stage, "all are members", CROWD + 2)?;
        let before = stage.settle()?;
        stage.set_bandwidth("r1", Some(SLOW))?;
        stage.set_rate(RATE)?;
        stage.wait_head(before + UPDATES)?;
        stage.set_rate(0.0)?;
        let published = Instant::now();
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&["r2"], head)?;
        ensure!(
            published.elapsed() <= PROMPT,
            "the slow receiver held the flow up: the others had the last update after {:?}",
            published.elapsed()
        );
        let status = stage.source_status_now()?;
        check_eviction(&status.moves_of("r1"))?;
        stage.set_bandwidth("r1", None)?;

        let summary = swarm.finish(stage)?;
        println!(
            "crowd: {:?}, {:?}, fall-backs {:?}",
            summary.latency_ms, summary.via, summary.fall_backs
        );
        let (p99, fall_backs) = (summary.latency_ms.p99, &summary.fall_backs);
        ensure!(
            p99 <= CROWD_P99_MS,
            "the slow receiver held the flow up: p99 of {CROWD} others is {p99} ms"
        );
        ensure!(
            fall_backs.values().sum::<u64>() <= CROWD / 20,
            "others than r1 left the flow: {fall_backs:?}"
        );
        ensure!(
            summary.via.flow > summary.via.unicast,
            "the flow brought less than the receivers' own connections: {:?}",
            summary.via
        );
        let status = stage.source_status_now()?;
        let moves = status.moves_of("r2");
        let left = moves.iter().any(|step| step.to == "unicast");
        ensure!(!left, "r2 left the flow: {moves:?}");
        stage.settle()?;
        stage.wait("the return of r1", PATIENCE, |stage| {
            let status = stage.source_status();
            let back = status.is_some_and(|status| {
                let last = status.moves_of("r1").last().map(|step| step.to.clone());
                last.as_deref() == Some("multicast")
            });
            Ok(back.then_some(()))
        })?;
        check_outputs(stage, &BOTH)
    })
}

/// Checks that a receiver was evicted, and has not tried the flow again.
fn check_eviction(moves: &[&Move]) -> Result<()> {
    let evicted = |step: &Move| {
        step.to == "unicast" && matches!(step.cause.as_str(), "too-slow" | "loss-too-high")
    };
    let at = moves.iter().position(|step| evicted(step));
    let Some(at) = at else {
        anyhow::bail!("r1 was not evicted from the flow: {moves:?}");
    };
    // The slow line is busy with what r1 still has to get: too early to return.
    ensure!(
        at + 1 == moves.len(),
        "r1 returned to the flow before it could keep up: {moves:?}"
    );
    Ok(())
}
