//! Addresses that change while updates flow: a receiver's, and the source's.

use std::net::IpAddr;

use anyhow::{Result, ensure};

use super::checks::{RATE, check_outputs};
use super::{Fault, PATIENCE, Plan, Stage};

const ALL: [&str; 3] = ["r1", "r2", "r3"];
/// Places on the switch of the addresses that come.
const OTHER_CABLE: u8 = 120;
const OTHER_SOURCE: u8 = 121;

/// j2: a receiver moves to another interface, and the source to another address, which it announces
/// before the old one goes. Nothing is lost or repeated, all receivers hear the flow again, and one
/// that is restarted finds the source where it is now, although its link has the old address.
///
/// # Errors
/// When one of these does not hold.
pub fn addresses_change(fault: Option<Fault>) -> Result<()> {
    Stage::play(Plan::new("roaming", fault), |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(RATE)?;
        stage.wait_cursor(&ALL, before + 5)?;

        let outside = stage
            .lab()
            .change_cable(stage.seat("r3")?.node(), OTHER_CABLE)?;
        stage.wait("r3 seen at its other interface", PATIENCE, |stage| {
            let status = stage.source_status_now()?;
            let seen = status.receivers.iter().find(|one| one.name == "r3");
            let seen = seen.map(|one| one.addr.ip().to_canonical());
            Ok((seen == Some(IpAddr::from(outside))).then_some(()))
        })?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 5)?;
        stage.wait_rung(&ALL, "multicast")?;

        let address = stage.lab().add_address(&stage.source_node, OTHER_SOURCE)?;
        stage.lab().deprecate_address(&stage.source_node)?;
        stage.wait(
            "all receivers at the source's new address",
            PATIENCE,
            |stage| {
                for name in ALL {
                    let status = stage.seat(name)?.status()?;
                    let connected = status.and_then(|status| status.address);
                    if connected.is_none_or(|at| at.ip().to_canonical() != address) {
                        return Ok(None);
                    }
                }
                Ok(Some(()))
            },
        )?;
        stage.lab().remove_address(&stage.source_node)?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 20)?;
        stage.wait_rung(&ALL, "multicast")?;
        let moved = stage.settle()?;

        // By the flow again, from the new address.
        let arrived = |stage: &Stage, name| -> Result<u64> {
            let channel = stage.seat(name)?.channel()?;
            Ok(channel.map_or(0, |channel| channel.flow_packets))
        };
        let packets = ALL.map(|name| arrived(stage, name).unwrap_or_default());
        stage.wait_cursor(&ALL, moved + 20)?;
        for (name, packets) in ALL.iter().zip(packets) {
            let more = arrived(stage, name)?.saturating_sub(packets);
            ensure!(
                more > 0,
                "{name} hears nothing from the source's new address"
            );
        }

        // Its link has the address that is gone.
        stage.seat_mut("r1")?.kill()?;
        stage.restart_seat("r1")?;
        let what = "r1 at the source's new address after its restart";
        stage.wait(what, PATIENCE, |stage| {
            let status = stage.source_status_now()?;
            let seen = status.receivers.iter().any(|one| one.name == "r1");
            let connected = stage
                .seat("r1")?
                .status()?
                .and_then(|status| status.address);
            let there = connected.is_some_and(|at| at.ip().to_canonical() == address);
            Ok((seen && there).then_some(()))
        })?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 10)?;
        stage.wait_rung(&ALL, "multicast")?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        check_outputs(stage, &ALL)
    })
}
