//! How tunnels end, and what happens when there are as many as there may be.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::site::Site;
use crate::lab::{Families, Node};
use crate::scenario::{PATIENCE, SSM_GROUP, Sabotage};
use crate::tunnel::Seen;
use crate::waiting::wait_for;

/// r: gateways behind one translated address that leave by a Teardown, by a report or by silence get nothing any more, and the others go on; a relay that has as
/// many as it may have says so to new ones, serves those that it has, and takes a new one when one has gone.
///
/// # Errors
/// When one of these does not hold.
pub fn tunnels_end_and_are_limited(sabotage: Option<Sabotage>) -> Result<()> {
    // Behind a translation a gateway can end its tunnel only if it is told how the relay sees it.
    let told = ["--gateway-address-in-query", "always"];
    let relay = [
        &["--query-interval", "1s", "--max-gateways", "3"],
        &told[..],
    ]
    .concat();
    Site::play("limits", Families::V4, &relay, sabotage, |site| {
        let mut nat = site.beyond.add_nat(&mut site.lab, "nat", 10, 110)?;
        let home = nat.add_node(&mut site.lab, "home")?;
        let mut sender = site.send(SSM_GROUP, 100, Duration::from_secs(18))?;

        for (leave, listens) in [("teardown", 3000), ("update", 3000), ("vanish", 5500)] {
            let seen = join(
                site,
                &home,
                3,
                listens,
                &["--first-leaves-after-ms", "1000", "--leave", leave],
            )?;
            let [first, others @ ..] = seen.gateways.as_slice() else {
                anyhow::bail!("no gateways")
            };
            ensure!(first.data > 0, "the first gateway got nothing: {first:?}");
            // Who vanishes is sent to until its tunnel expires; that it does is seen below.
            ensure!(
                leave == "vanish" || first.after_leaving == 0,
                "after it left by {leave}, a gateway still got {} datagrams",
                first.after_leaving
            );
            let until_it_left = first.data - first.after_leaving;
            for other in others {
                ensure!(
                    other.data > until_it_left + 20 && other.data == other.distinct,
                    "one left by {leave}, and another did not go on: {seen:?}"
                );
            }
            none_left(site)?;
        }

        let full = site.tunnel::<Seen>(
            &home,
            site.relay.address(site.source.ip()),
            site.wanted(SSM_GROUP, false)?,
            &[
                "join",
                "--count",
                "3",
                "--for-ms",
                "5000",
                "--first-leaves-after-ms",
                "3000",
            ],
        )?;
        wait_for("three gateways", PATIENCE, || {
            Ok((site.relay.status()?.gateways.count == 3).then_some(()))
        })?;
        let seen = join(site, &home, 2, 1000, &[])?;
        for late in &seen.gateways {
            ensure!(
                late.limited > 0 && late.data == 0,
                "a relay that is full took another gateway: {late:?}"
            );
        }
        // One of the three has left by now, or soon will have.
        wait_for("a place that is free", PATIENCE, || {
            Ok((site.relay.status()?.gateways.count < 3).then_some(()))
        })?;
        let seen = join(site, &home, 1, 1500, &[])?;
        let late = seen.gateways.first().context("no gateway")?;
        ensure!(
            late.data > 0,
            "there was a place, and it was not given: {late:?}"
        );
        let full = full.told()?;
        let [first, others @ ..] = full.gateways.as_slice() else {
            anyhow::bail!("no gateways")
        };
        for one in others {
            ensure!(
                one.data > first.data + 20 && one.limited == 0,
                "a gateway that the full relay had was not served on: {full:?}"
            );
        }
        sender.kill()?;
        sender.wait()?;
        Ok(())
    })
}

fn join(site: &Site, node: &Node, count: u32, ms: u32, more: &[&str]) -> Result<Seen> {
    let (count, ms) = (count.to_string(), ms.to_string());
    let args = ["join", "--count", &count, "--for-ms", &ms];
    let relay = site.relay.address(site.source.ip());
    let wanted = site.wanted(SSM_GROUP, false)?;
    site.tunnel(node, relay, wanted, &[&args[..], more].concat())?
        .told()
}

/// All tunnels are gone, and with them the join on the native side.
fn none_left(site: &mut Site) -> Result<()> {
    wait_for("the end of all tunnels", PATIENCE, || {
        site.relay.running()?.check_running()?;
        let status = site.relay.status()?;
        Ok((status.gateways.count == 0 && status.groups.count == 0).then_some(()))
    })
}
