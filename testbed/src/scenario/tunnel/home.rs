//! Receivers on a network without multicast, behind one translated address.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lab::{Multicast, Rebinding};
use crate::scenario::checks::{RATE, check_all_by_flow, check_moves, check_outputs};
use crate::scenario::plan::{FALL_BACK_MS, Place, Plan, SeatPlan};
use crate::scenario::{Fault, PATIENCE, Stage};

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// Longer than flow data may stay unacknowledged.
const OUTAGE: Duration = Duration::from_millis(FALL_BACK_MS as u64 + 500);

/// Cause of a fall-back after the relay is gone.
const RELAY_LOST: &str = "relay-lost";

/// The relay that all use, and the one that they turn to without it.
const FIRST: usize = 0;
const SECOND: usize = 1;

/// Three receivers behind one translated address beyond the border, and relays.
fn plan(name: &'static str, relays: u8, fault: Option<Fault>) -> Plan {
    let mut plan = Plan::new(name, fault);
    for seat in &mut plan.seats {
        seat.place = Place::BehindOneNat;
    }
    plan.relays = relays;
    plan
}

/// Returns the number of tunnels a relay has.
fn tunnels(stage: &mut Stage, relay: usize) -> Result<u64> {
    Ok(stage.relay(relay)?.status()?.gateways.count)
}

/// Waits until a relay has so many tunnels.
fn wait_tunnels(stage: &mut Stage, relay: usize, count: u64) -> Result<()> {
    let what = format!("{count} tunnels at relay {}", relay + 1);
    stage.wait(&what, PATIENCE, |stage| {
        Ok((tunnels(stage, relay)? == count).then_some(()))
    })
}

/// Waits until everybody is at the first relay, and starts the second: a gateway that had to wait
/// for the first a little too long would take the second, and stay there.
fn all_at_first(stage: &mut Stage) -> Result<()> {
    stage.wait_rung(&ALL, "amt")?;
    wait_tunnels(stage, FIRST, 3)?;
    stage.start_relay(SECOND)
}

/// o: three receivers behind one translated address, where there is no multicast, all stand on the
/// flow by a relay that their source announces, each with a tunnel of its own; one leaves, and the
/// others go on; it comes back and has everything.
///
/// # Errors
/// When one of these does not hold.
pub fn three_behind_one_address(fault: Option<Fault>) -> Result<()> {
    Stage::play(plan("home", 1, fault), |stage| {
        stage.wait_rung(&ALL, "amt")?;
        wait_tunnels(stage, FIRST, 3)?;
        let before = stage.settle()?;
        for step in [1, 7, 10] {
            stage.grow(step)?;
            stage.settle()?;
        }
        for name in ALL {
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
        }
        let seen: Vec<IpAddr> = stage
            .source_status_now()?
            .receivers
            .iter()
            .map(|one| one.addr.ip().to_canonical())
            .collect();
        ensure!(
            seen.windows(2).all(|pair| pair.first() == pair.last()),
            "the receivers are not behind one address: {seen:?}"
        );

        let mut leaver = stage.seat_mut("r2")?.take().context("r2 runs")?;
        leaver.terminate(Duration::from_secs(20))?;
        wait_tunnels(stage, FIRST, 2)?;
        let left = stage.source_status_now()?.head;
        stage.grow(10)?;
        stage.wait_cursor(&["r1", "r3"], left + 10)?;
        for name in ["r1", "r3"] {
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
        }
        stage.restart_seat("r2")?;
        stage.wait_rung(&ALL, "amt")?;
        stage.grow(3)?;
        stage.settle()?;
        check_outputs(stage, &ALL)
    })
}

/// p: the relay that all three use is killed in mid-stream: they go to the second; that is killed
/// too: they get everything on their own connections; the first is back: so are they. Nothing is
/// lost or repeated.
///
/// # Errors
/// When one of these does not hold.
pub fn relays_fail_in_turn(fault: Option<Fault>) -> Result<()> {
    Stage::play(plan("relays", 2, fault), |stage| {
        all_at_first(stage)?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 4)?;

        stage.relay(FIRST)?.kill()?;
        wait_tunnels(stage, SECOND, 3)?;
        stage.wait_rung(&ALL, "amt")?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 4)?;

        stage.relay(SECOND)?.kill()?;
        stage.wait_rung(&ALL, "unicast")?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 4)?;

        stage.start_relay(FIRST)?;
        stage.wait_rung(&ALL, "amt")?;
        let returned = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, returned + 4)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        check_outputs(stage, &ALL)
    })
}

/// x: the relay that all three use answers as before, but the flow does not come to it any more:
/// they do not stay with it, but go to the second. Nothing is lost or repeated.
///
/// # Errors
/// When one of these does not hold.
pub fn a_deaf_relay_is_left(fault: Option<Fault>) -> Result<()> {
    Stage::play(plan("deaf", 2, fault), |stage| {
        all_at_first(stage)?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 4)?;
        stage.set_relay_multicast(FIRST, Multicast::Cut)?;
        wait_tunnels(stage, SECOND, 3)?;
        stage.wait_rung(&ALL, "amt")?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 4)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        check_outputs(stage, &ALL)
    })
}

/// y: a relay that is asked to end drains its gateways first: they are with the second before it is
/// gone, without a missed packet or a receiver off the flow.
///
/// # Errors
/// One of these does not hold.
pub fn a_draining_relay_costs_nothing(fault: Option<Fault>) -> Result<()> {
    let mut plan = plan("draining", 2, fault);
    plan.relay_args = vec!["--drain-time", "60s", "--query-interval", "5s"];
    Stage::play(plan, |stage| {
        all_at_first(stage)?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 4)?;
        let mut leaving = stage.relay(FIRST)?.dismiss()?;
        leaving.signal_end()?;
        wait_tunnels(stage, SECOND, 3)?;
        let ended = leaving.wait_end(PATIENCE)?;
        ensure!(ended.success(), "the draining relay ended with {ended}");
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 4)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        let status = stage.source_status_now()?;
        for name in ALL {
            check_moves(name, &status.moves_of(name), &[("amt", &["joined"])])?;
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
        }
        check_outputs(stage, &ALL)
    })
}

/// p2: the only relay is killed in mid-stream while the source offers copies: receivers go by
/// copies, and back when the relay is back; each move has its cause. Nothing is lost or repeated.
///
/// # Errors
/// When one of these does not hold.
pub fn relays_fail_to_copies(fault: Option<Fault>) -> Result<()> {
    let mut plan = plan("copies", 1, fault);
    plan.replicate = true;
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "amt")?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 4)?;
        let begun = moves_so_far(stage)?;
        stage.relay(FIRST)?.kill()?;
        stage.wait_rung(&ALL, "replicated")?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 4)?;
        // Copies come before the gateways have given the relay up: until then it is not lost, but
        // slow.
        stage.wait("the loss of the relay", PATIENCE, |stage| {
            let Some(status) = stage.source_status() else {
                return Ok(None);
            };
            let lost = |name: &&str| {
                let moves = status.moves_of(name);
                let fall = moves.iter().rfind(|step| step.to == "unicast");
                fall.is_some_and(|fall| fall.cause == RELAY_LOST)
            };
            Ok(ALL.iter().all(lost).then_some(()))
        })?;
        stage.start_relay(FIRST)?;
        stage.wait_rung(&ALL, "amt")?;
        let returned = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, returned + 4)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        let status = stage.source_status_now()?;
        for (name, begun) in ALL.into_iter().zip(begun) {
            // Earlier moves are the climb at the start, which may include replication.
            let moves = status.moves_of(name);
            let since = moves.get(begun..).unwrap_or_default();
            check_moves(
                name,
                since,
                &[
                    ("unicast", &[RELAY_LOST]),
                    ("replicated", &["joined"]),
                    ("amt", &["joined"]),
                ],
            )?;
        }
        check_outputs(stage, &ALL)
    })
}

/// Returns the number of moves of each receiver.
fn moves_so_far(stage: &mut Stage) -> Result<[usize; 3]> {
    let status = stage.source_status_now()?;
    Ok(ALL.map(|name| status.moves_of(name).len()))
}

/// u: the router forgets its translations in mid-stream, and comes back with other ports, then with
/// another address: receivers notice, end their old tunnels, and stand on the flow by the relay
/// again. Nothing is lost or repeated.
///
/// # Errors
/// When one of these does not hold.
pub fn translations_change(fault: Option<Fault>) -> Result<()> {
    let mut plan = plan("translations", 1, fault);
    // Old tunnels expire only long after the end of this: their owners have to end them.
    plan.relay_args = vec!["--gateway-address-in-query", "always"];
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "amt")?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 4)?;
        for to in [Rebinding::Port, Rebinding::Address] {
            let outside = stage.rebind_home(to, OUTAGE)?;
            let head = stage.source_status_now()?.head;
            stage.wait_cursor(&ALL, head + 4)?;
            stage.wait_rung(&ALL, "amt")?;
            wait_tunnels(stage, FIRST, 3)?;
            stage.wait("the new address at the source", PATIENCE, |stage| {
                let status = stage.source_status_now()?;
                let there = status
                    .receivers
                    .iter()
                    .filter(|one| one.addr.ip().to_canonical() == outside);
                Ok((there.count() == ALL.len()).then_some(()))
            })?;
        }
        let returned = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, returned + 4)?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        for name in ALL {
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, returned)?;
        }
        check_outputs(stage, &ALL)
    })
}

/// v2: a receiver beyond the border gets everything by a relay that is not ours. `Ok(false)` when
/// there is none on this machine.
///
/// # Errors
/// When they do not understand each other.
pub fn by_a_relay_of_others(fault: Option<Fault>) -> Result<bool> {
    use crate::process::Service;
    use crate::tunnel::Peer;

    let Some(peer) = Peer::find() else {
        ensure!(!Peer::required(), "{}", Peer::remedy());
        return Ok(false);
    };
    let mut plan = Plan::new("peer", fault);
    plan.seats = vec![SeatPlan {
        place: Place::Beyond,
        args: vec!["--relay", "10.77.0.9:2268"],
        ..SeatPlan::new("r1")
    }];
    Stage::play(plan, |stage| {
        let node = stage.add_between("peer", 9)?;
        let launch = peer.relay((node.ip(), amt::PORT).into(), node.ip());
        let logs = stage.logs();
        let _relay = Service::start_as_owner(&node, &launch, &logs)?;
        stage.wait_rung(&["r1"], "amt")?;
        let before = stage.settle()?;
        for step in [1, 10] {
            stage.grow(step)?;
            stage.settle()?;
        }
        check_all_by_flow("r1", &stage.seat("r1")?.deliveries()?, before)?;
        check_outputs(stage, &["r1"])
    })?;
    Ok(true)
}
