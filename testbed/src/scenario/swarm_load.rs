//! Swarms under load: random churn, a mass fall-back, an overloaded source.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::swarm::{Swarm, flow_members, wait_members};
use super::{Fault, PATIENCE, Plan, Stage};
use crate::lab::Multicast;
use crate::status::LoadStatus;
use crate::waiting::wait_for;

/// Updates a second.
const RATE: f64 = 10.0;

/// Receivers that come and go.
const CHURNING: u64 = 200;
/// Returns in the end, at least: six a second leave or crash for ten seconds.
const RETURNED: u64 = 30;

/// sw2: 200 receivers, each with 1 % loss of its own, leave, crash and come back at random, with
/// the source's default timing. Every update comes to every receiver, once; the source repairs what
/// is lost before receivers have to ask for it, as they do after three seconds; and an ordinary
/// receiver beside them stays on the flow.
///
/// # Errors
/// One of these does not hold.
pub fn receivers_come_and_go(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("churn", fault).with_default_timing();
    plan.seats.truncate(1);
    plan.new_at_once = 25;
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1"], "multicast")?;
        stage.set_rate(RATE)?;
        let more = "--duration 10s --warm-up 2s --loss 1 --churn 4/s --crashes 2/s";
        let more: Vec<&str> = more.split(' ').collect();
        let mut swarm = Swarm::start(stage, "swarm", CHURNING, 2, &more)?;
        let summary = swarm.finish(stage)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        ensure!(
            summary.receivers.returned >= RETURNED,
            "{} receivers came back",
            summary.receivers.returned
        );
        ensure!(
            summary.via.flow > summary.via.unicast,
            "the flow brought less than the receivers' own connections: {:?}",
            summary.via
        );
        let needs = Counters::of(stage)?.needs_missing;
        let repaired = summary.via.repaired;
        println!("{repaired} updates were repaired, {needs} requests for bytes");
        ensure!(
            repaired > 0 && needs * 5 <= repaired,
            "receivers had to ask for what they lost: {needs} requests for bytes, {repaired} \
             updates repaired"
        );
        let status = stage.source_status_now()?;
        let moves = status.moves_of("r1");
        let left = moves.iter().filter(|step| step.to == "unicast").count();
        // On a busy machine an acknowledgement is late, once in a while.
        ensure!(left <= 1, "r1 left the flow {left} times: {moves:?}");
        stage.wait_rung(&["r1"], "multicast")
    })
}

/// Receivers of each half.
const HALF: u64 = 100;
/// Limit of all receivers' own connections together, in Mbit/s.
const UNICAST_MBIT: u64 = 20;
/// Time within which the members without it fall back: heartbeats would show it after three
/// seconds.
const FALLEN: Duration = Duration::from_secs(20);
/// Time that multicast is away.
const AWAY: Duration = Duration::from_secs(6);

/// sw3: half of the members lose multicast at once. It is one event; they get everything by unicast
/// within its rate, the other half stays where it is, and all are back on the flow in the end.
///
/// # Errors
/// One of these does not hold.
pub fn half_of_the_members_lose_multicast(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("half", fault);
    plan.seats.truncate(1);
    plan.new_at_once = 25;
    plan.source_args = vec!["--unicast-rate", "20M"];
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1"], "multicast")?;
        stage.set_rate(RATE)?;
        let more = ["--duration", "25s", "--warm-up", "3s"];
        let mut here = Swarm::start(stage, "here", HALF, 3, &more)?;
        let mut there = Swarm::start(stage, "there", HALF, 4, &more)?;
        let all = 2 * HALF + 1;
        wait_members(stage, "all are members", all)?;

        let before = Counters::of(stage)?;
        let cut = Instant::now();
        stage.lab().set_multicast(&there.node, Multicast::Cut)?;
        stage.wait("the fall-back of one half", FALLEN, |stage| {
            let events = Counters::of(stage)?.mass_fall_backs - before.mass_fall_backs;
            Ok((events > 0).then_some(()))
        })?;
        crate::waiting::pause(AWAY.saturating_sub(cut.elapsed()));
        let members = flow_members(stage)?;
        ensure!(
            (HALF..all).contains(&members),
            "{members} members are left after multicast to {HALF} of {all} was cut"
        );
        let spent = Counters::of(stage)?.unicast_bytes - before.unicast_bytes;
        let bound = UNICAST_MBIT * 125_000 * (cut.elapsed().as_secs() + 2);
        ensure!(
            spent > 0 && spent <= bound,
            "{spent} bytes went to own connections; {bound} are allowed"
        );
        stage.lab().set_multicast(&there.node, Multicast::Open)?;

        let fell = there.finish(stage)?;
        let stayed = here.finish(stage)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        let dismissed: u64 = fell.fall_backs.values().sum();
        ensure!(dismissed >= HALF, "{dismissed} receivers fell back");
        ensure!(
            fell.via.unicast > 0,
            "nothing came by unicast: {:?}",
            fell.via
        );
        ensure!(
            fell.on_multicast() >= HALF * 9 / 10,
            "the cut receivers did not return: {:?}",
            fell.rungs
        );
        ensure!(
            stayed.fall_backs.values().sum::<u64>() <= HALF / 20,
            "the others fell back: {:?}",
            stayed.fall_backs
        );
        Ok(())
    })
}

/// Counters of the source, from its metrics.
struct Counters {
    mass_fall_backs: u64,
    unicast_bytes: u64,
    overloaded: u64,
    fall_backs: u64,
    /// Requests of receivers for bytes that did not arrive in time.
    needs_missing: u64,
}

impl Counters {
    fn of(stage: &Stage) -> Result<Counters> {
        let response = stage.source_metrics()?;
        let values: BTreeMap<&str, f64> = response
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
            .collect();
        let of = |name: &str| -> Result<u64> {
            let full = format!("flexfeed_source_{name}");
            let value = values.get(full.as_str());
            let value = value.with_context(|| format!("there is no metric {full}"))?;
            Ok(*value as u64)
        };
        Ok(Counters {
            mass_fall_backs: of("mass_fall_backs_total")?,
            unicast_bytes: of("unicast_bytes_total")?,
            overloaded: of("overloaded")?,
            fall_backs: of("fall_backs_total")?,
            needs_missing: of("needs_missing_total")?,
        })
    }
}

/// Receivers of an overloaded source: so many that their acknowledgements are not all read in one
/// turn of it.
const CROWD: u64 = 400;
/// Time that flow data may stay unacknowledged, in ms: less than [`STOPPED`].
const FALL_BACK_MS: u32 = 1_000;
const ACK_MS: u32 = 50;
/// The source is stopped and runs in turn: it is always late.
const STOPPED: Duration = Duration::from_millis(1_300);
const RUNNING: Duration = Duration::from_millis(500);
const OVERLOADED: Duration = Duration::from_secs(14);
/// Time within which a member that has gone falls back although the source is overloaded: the delay
/// of a fall-back and two seconds, and the times in which nothing can happen.
const FOUND: Duration = Duration::from_secs(12);

/// sw4: a source that cannot keep up says so on its pages and in its log, and blames no member for
/// it; one that is gone falls back all the same.
///
/// # Errors
/// One of these does not hold.
pub fn an_overloaded_source_blames_no_member(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("overload", fault);
    plan.seats.truncate(2);
    plan.new_at_once = 25;
    (plan.fall_back_ms, plan.ack_delay_ms) = (FALL_BACK_MS, ACK_MS);
    // Receivers that miss heartbeats would leave by themselves.
    plan.source_args = super::cut::RARE_HEARTBEATS.to_vec();
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2"], "multicast")?;
        stage.set_rate(RATE)?;
        let more = ["--duration", "30s", "--warm-up", "2s"];
        let mut swarm = Swarm::start(stage, "swarm", CROWD, 5, &more)?;
        wait_members(stage, "all are members", CROWD + 2)?;
        // So many handshakes at once can be too much for a busy machine.
        let before = stage.wait("the end of the start's load", PATIENCE, |stage| {
            let now = Counters::of(stage)?;
            Ok((now.overloaded == 0).then_some(now))
        })?;

        let begun = Instant::now();
        let mut gone = None;
        let mut said = false;
        while begun.elapsed() < OVERLOADED {
            stage.source_service()?.pause()?;
            crate::waiting::pause(STOPPED);
            stage.source_service()?.resume()?;
            crate::waiting::pause(RUNNING);
            if gone.is_none() {
                stage.seat_mut("r2")?.kill()?;
                gone = Some(Instant::now());
            }
            said |= load(stage)?.overloaded && Counters::of(stage)?.overloaded == 1;
        }
        blames_only_the_gone(stage, &before)?;
        ensure!(said, "the source did not say that it is overloaded");
        let log = stage.source_service()?.log_text()?;
        ensure!(
            log.contains("source overloaded"),
            "the log says nothing of the overload"
        );
        let fell = |stage: &Stage, name: &str| -> Result<bool> {
            let status = stage.source_status_now()?;
            let moves = status.moves_of(name);
            Ok(moves.iter().any(|step| step.cause == "ack-timeout"))
        };
        let bound = gone.map_or(FOUND, |at| FOUND.saturating_sub(at.elapsed()));
        wait_for("the fall-back of a receiver that is gone", bound, || {
            Ok(fell(stage, "r2")?.then_some(()))
        })?;
        stage.restart_seat("r2")?;
        ensure!(!fell(stage, "r1")?, "r1 was blamed");

        stage.wait("the end of the overload", PATIENCE, |stage| {
            let now = load(stage)?;
            let ended = now.overloads.last().is_some_and(|o| o.until_ms.is_some());
            Ok((!now.overloaded && ended).then_some(()))
        })?;
        blames_only_the_gone(stage, &before)?;
        // Four hundred connections are closed one by one: those that wait for it are silent.
        let fell_back = swarm.finish(stage)?.fall_backs;
        ensure!(fell_back.is_empty(), "receivers fell back: {fell_back:?}");
        stage.set_rate(0.0)
    })
}

/// Fails where more than one member fell back.
fn blames_only_the_gone(stage: &Stage, before: &Counters) -> Result<()> {
    let fell_back = Counters::of(stage)?.fall_backs - before.fall_backs;
    ensure!(
        fell_back <= 1,
        "{fell_back} members were blamed for the source's own lateness"
    );
    Ok(())
}

fn load(stage: &Stage) -> Result<LoadStatus> {
    Ok(stage.source_status_now()?.load)
}
