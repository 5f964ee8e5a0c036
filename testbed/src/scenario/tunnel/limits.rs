//! End of tunnels, and the limit on their number.

use anyhow::{Context, Result, ensure};

use super::site::{Pending, Site};
use crate::lab::{Families, Node};
use crate::scenario::{Fault, PATIENCE, SSM_GROUP};
use crate::tunnel::GatewaysReport;
use crate::waiting::wait_for;

/// r: gateways behind one translated address that leave by a Teardown, by a report or by silence
/// get nothing any more, and the others go on; a relay that has as many as it may have says so to
/// new ones, serves those that it has, and takes a new one when one has gone.
///
/// # Errors
/// When one of these does not hold.
pub fn tunnels_end_and_are_limited(fault: Option<Fault>) -> Result<()> {
    // Behind a translation a gateway can end its tunnel only if it knows its address as seen by the
    // relay.
    let options = ["--gateway-address-in-query", "always"];
    let relay = [
        // A gateway that repeats its request each second keeps its slot on a stalling machine.
        &["--query-interval", "5s", "--max-gateways", "3"],
        &options[..],
    ]
    .concat();
    Site::play("limits", Families::V4, &relay, fault, |site| {
        let mut nat = site.beyond.add_nat(&mut site.lab, "nat", 10, 110)?;
        let home = nat.add_node(&mut site.lab, "home")?;
        let mut sender = site.send(SSM_GROUP, 100)?;

        for (leave, listens) in [("teardown", 4000), ("update", 4000), ("vanish", 5500)] {
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
            // A vanished gateway is sent data until its tunnel expires; the expiry is checked
            // below.
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

        // The gateways stay until asked for their results.
        let stay = |count: &str| -> Result<Pending<GatewaysReport>> {
            let args = ["join", "--until-closed", "--for-ms", "600000"];
            let relay = site.relay.address(site.source.ip());
            let wanted = site.wanted(SSM_GROUP, false)?;
            site.tunnel(
                &home,
                relay,
                wanted,
                &[&args[..], &["--count", count]].concat(),
            )
        };
        let (first, others) = (stay("1")?, stay("2")?);
        wait_for("three gateways", PATIENCE, || {
            Ok((site.relay.status()?.gateways.count == 3).then_some(()))
        })?;
        let seen = join(site, &home, 2, 2500, &[])?;
        for late in &seen.gateways {
            ensure!(
                late.limited > 0 && late.data == 0,
                "a relay that is full took another gateway: {late:?}"
            );
        }
        let first = first.finish()?;
        wait_for("a place that is free", PATIENCE, || {
            Ok((site.relay.status()?.gateways.count < 3).then_some(()))
        })?;
        let seen = join(site, &home, 1, 30_000, &["--enough", "50"])?;
        let late = seen.gateways.first().context("no gateway")?;
        ensure!(
            late.data > 0,
            "there was a place, and it was not given: {late:?}"
        );
        let others = others.finish()?;
        let last = first.gateways.first().and_then(|one| one.last);
        let last = last.context("the gateway that left first got nothing")?;
        for one in &others.gateways {
            ensure!(
                one.last.is_some_and(|number| number > last + 20) && one.limited == 0,
                "a gateway that the full relay had was not served on: {first:?}, {others:?}"
            );
        }
        sender.wait()?;
        Ok(())
    })
}

fn join(site: &Site, node: &Node, count: u32, ms: u32, more: &[&str]) -> Result<GatewaysReport> {
    let (count, ms) = (count.to_string(), ms.to_string());
    let args = ["join", "--count", &count, "--for-ms", &ms];
    let relay = site.relay.address(site.source.ip());
    let wanted = site.wanted(SSM_GROUP, false)?;
    site.tunnel(node, relay, wanted, &[&args[..], more].concat())?
        .finish()
}

/// All tunnels are gone, and with them the join on the native side.
fn none_left(site: &mut Site) -> Result<()> {
    wait_for("the end of all tunnels", PATIENCE, || {
        site.relay.running()?.check_running()?;
        let status = site.relay.status()?;
        Ok((status.gateways.count == 0 && status.groups.count == 0).then_some(()))
    })
}
