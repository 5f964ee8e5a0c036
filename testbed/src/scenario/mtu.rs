//! A line that takes no packet above 1,280 bytes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::checks::check_outputs;
use super::{Fault, Plan, Stage};

const ALL: [&str; 3] = ["r1", "r2", "r3"];
const WIDE: [&str; 2] = ["r2", "r3"];

/// MTU of the narrow line.
const MTU: u16 = 1_280;
/// The flow's packet size that fits it, with the headers of IPv4 and UDP.
const NARROW_SIZE: usize = 1_232;
/// The same of lines that are as wide as Ethernet.
const WIDE_SIZE: usize = 1_472;
/// Bound of a search: it takes five probes a second apart where a size fails.
const SEARCH: Duration = Duration::from_secs(60);
/// Time for which a size has to stay: several probes long.
const HOLD: Duration = Duration::from_secs(5);
/// Updates a second.
const RATE: f64 = 10.0;

/// mt: the flow's packets are as large as all members take: they grow to the size of Ethernet,
/// shrink when one line becomes narrow in the middle of the flow, grow when that receiver is gone,
/// and shrink when it comes back. Every update arrives, and no receiver leaves the flow for it.
///
/// # Errors
/// When one of these does not hold.
pub fn one_narrow_path_decides_the_packet_size(fault: Option<Fault>) -> Result<()> {
    let plan = Plan::new("mtu", fault);
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        wait_size(stage, WIDE_SIZE, 0)?;
        stage.set_rate(RATE)?;
        stage.set_mtu("r1", MTU)?;
        wait_size(stage, NARROW_SIZE, 1)?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 10)?;
        check_members(stage, &ALL)?;

        stage.seat_mut("r1")?.kill()?;
        wait_size(stage, WIDE_SIZE, 0)?;
        stage.restart_seat("r1")?;
        wait_size(stage, NARROW_SIZE, 1)?;
        stage.wait_rung(&ALL, "multicast")?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 10)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        check_members(stage, &WIDE)?;
        check_outputs(stage, &ALL)
    })
}

/// Waits until the flow's packets have this size, with so many members that take no more, and keep
/// it.
fn wait_size(stage: &mut Stage, bytes: usize, narrow: usize) -> Result<()> {
    let what = format!("packets of {bytes} bytes, as all members take them");
    let mut since = None;
    stage.wait(&what, SEARCH, |stage| {
        let flow = stage.source_status().and_then(|status| status.flow);
        let there =
            flow.is_some_and(|flow| (flow.packet_size, flow.narrow_members) == (bytes, narrow));
        if !there {
            since = None;
            return Ok(None);
        }
        let since = *since.get_or_insert_with(Instant::now);
        Ok((since.elapsed() >= HOLD).then_some(()))
    })
}

/// Checks that these receivers have been members all the time.
fn check_members(stage: &Stage, names: &[&str]) -> Result<()> {
    let status = stage.source_status_now()?;
    for name in names {
        let moves = status.moves_of(name);
        ensure!(moves.len() == 1, "{name} left the flow: {moves:?}");
    }
    Ok(())
}
