//! Attacks on a relay and its gateways.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::site::Site;
use crate::lab::Families;
use crate::scenario::{Fault, SSM_GROUP};
use crate::tunnel::{AttackReport, FloodReport, ForgeReport, GatewaysReport, JoinPlan};
use crate::waiting::pause;

/// Bound on the growth of a relay's memory, in KiB.
const GROWTH: u64 = 32 * 1024;
/// Addresses of each flood.
const CROWD: &str = "2000";
/// Gateways that the relay may have.
const MOST: u64 = 500;
/// The longest answers that RFC 7450 knows, in bytes: an Advertisement of an IPv6 address; a Query
/// with an IGMPv3 query behind Router Alert, and the gateway's address.
const ADVERTISEMENT: u64 = 24;
const QUERY: u64 = 12 + 36 + 18;
/// Time for which a gateway's forwarded datagrams are counted.
const COUNTED: Duration = Duration::from_secs(3);
/// Accepted count of the 600 datagrams sent meanwhile, on a machine that may stall; forged ones
/// come in addition, at more than twice their rate.
const AS_SENT: RangeInclusive<u64> = 60..=750;

/// s: forged and replayed reports and Teardowns gain nothing and take nothing from others; floods
/// of Discovery, Request and valid reports from thousands of addresses, and garbage, leave a relay
/// within its bounds, are not amplified, and do not disturb an earlier gateway; a gateway accepts
/// data from its relay only.
///
/// # Errors
/// One of these does not hold.
pub fn forged_and_flooding_requests_get_nothing(fault: Option<Fault>) -> Result<()> {
    let relay = ["--max-gateways", "500", "--query-interval", "5s"];
    Site::play("attacks", Families::V4, &relay, fault, |site| {
        let home = site.add_far("home", 20)?;
        let crowd = site.add_far("crowd", 30)?;
        site.beyond.give_crowd(&crowd)?;
        let wanted = site.wanted(SSM_GROUP, false)?;
        let relay = site.relay.address(site.source.ip());
        let mut sender = site.send(SSM_GROUP, 100)?;

        let attacked = site.tunnel::<AttackReport>(&home, relay, wanted, &["attack"])?;
        let attacked = attacked.finish()?;
        ensure!(
            attacked.honest > 0,
            "the honest gateway got nothing: {attacked:?}"
        );
        for (what, brought) in [
            ("a forged MAC", attacked.forged),
            ("a report replayed from another port", attacked.replayed),
            ("a MAC with another nonce", attacked.renonced),
            ("its own Teardown", attacked.after_own_teardown),
        ] {
            ensure!(brought == 0, "{brought} datagrams came by {what}");
        }
        // On a busy machine the two parts may be of different length; an ended tunnel brings next
        // to nothing.
        ensure!(
            attacked.honest_after_teardowns * 10 > attacked.honest,
            "another client ended the honest gateway's tunnel"
        );

        site.start_gateway(&home, relay, wanted)?;
        let there = [
            "join",
            "--count",
            "2",
            "--for-ms",
            "600000",
            "--until-closed",
            "--again-ms",
            "1500",
        ];
        let there = site.tunnel::<GatewaysReport>(&home, relay, wanted, &there)?;
        pause(Duration::from_millis(500));
        let before = site.relay.running()?.resident_kib()?;
        for (wave, longest) in [
            ("discovery", ADVERTISEMENT),
            ("request", QUERY),
            ("join", QUERY),
        ] {
            let args = [
                "flood",
                "--wave",
                wave,
                "--first",
                "10.79.0.1",
                "--addresses",
                CROWD,
            ];
            let flooded = site.tunnel::<FloodReport>(&crowd, relay, wanted, &args)?;
            let flooded = flooded.finish()?;
            ensure!(
                flooded.answers <= flooded.sent && flooded.longest <= longest,
                "a flood of {wave} was amplified: {flooded:?}"
            );
            ensure!(flooded.answers > 0, "no request was answered: {flooded:?}");
        }
        // From one address, much more than one may ask.
        let args = ["flood", "--wave", "request", "--first", "10.79.200.1"];
        let flooded = site.tunnel::<FloodReport>(
            &crowd,
            relay,
            wanted,
            &[&args[..], &["--addresses", "1", "--each", "5000"]].concat(),
        )?;
        let flooded = flooded.finish()?;
        ensure!(
            flooded.answers < flooded.sent / 2,
            "one address was answered as often as it liked: {flooded:?}"
        );
        let status = site.relay.status()?;
        ensure!(
            status.gateways.count <= MOST,
            "{} gateways at a relay that takes {MOST}",
            status.gateways.count
        );
        for to in [
            relay.to_string(),
            format!("{}:4434", site.relay.node().address()),
        ] {
            let mut garbage = crowd.service_command(&site.bins.probe)?;
            garbage.args([
                "garbage",
                "--per-second",
                "2000",
                "--count",
                "1000",
                "--to",
                &to,
            ]);
            ensure!(garbage.status()?.success(), "the garbage was not sent");
        }
        let after = site.relay.running()?.resident_kib()?;
        ensure!(
            after <= before + GROWTH,
            "the relay's memory went from {before} to {after} KiB"
        );
        let there = there.finish()?;
        for one in &there.gateways {
            // 5 ms between two, from the join on.
            let missing = one.last.map_or(u64::MAX, |_| one.data - one.distinct);
            ensure!(
                one.data > 300 && missing == 0 && one.wrong == 0,
                "floods disturbed a gateway that was there before: {there:?}"
            );
        }
        let lo = std::net::IpAddr::from([127, 0, 0, 1]);
        let counted = site.count_to(&home, wanted.group, lo, 21)?;
        ensure!(
            counted.finish()? > 20,
            "flexfeed-gateway stopped in the flood"
        );
        garbage_to_the_gateway(site, &home, &crowd)?;
        forged_flow_to_the_gateway(site, &home, &crowd)?;
        sender.wait().context("the sender")?;
        Ok(())
    })
}

/// Every UDP port that is open in a gateway's node.
fn open_ports(home: &crate::lab::Node) -> Result<Vec<u16>> {
    let table = home.read_kernel("/proc/net/udp")?;
    let ports = table.lines().skip(1).filter_map(|line| {
        let local = line.split_whitespace().nth(1)?;
        u16::from_str_radix(local.split_once(':')?.1, 16).ok()
    });
    let ports: Vec<u16> = ports.collect();
    ensure!(!ports.is_empty(), "flexfeed-gateway has no socket");
    Ok(ports)
}

/// Returns the number of datagrams that a gateway forwards in [`COUNTED`]. A gateway that lost its
/// relay in a flood, on a machine too busy for both, is given time to return: one that has stopped
/// forwards nothing in three times that time either.
fn passed_on(site: &mut Site, home: &crate::lab::Node, wanted: JoinPlan) -> Result<u64> {
    let lo = std::net::IpAddr::from([127, 0, 0, 1]);
    let mut count = 0;
    for _ in 0..3 {
        count = site.count(home, wanted.group, lo, COUNTED)?.finish()?;
        if count >= *AS_SENT.start() {
            break;
        }
    }
    Ok(count)
}

/// Sends valid packets of the very flow that a gateway has joined, from an address that is not its
/// relay's.
fn forged_flow_to_the_gateway(
    site: &mut Site,
    home: &crate::lab::Node,
    crowd: &crate::lab::Node,
) -> Result<()> {
    let ports = open_ports(home)?;
    let to: Vec<String> = ports
        .iter()
        .map(|port| format!("{}:{port}", home.address()))
        .collect();
    let mut args = vec!["forge", "--for-ms", "600000", "--until-closed"];
    for to in &to {
        args.extend(["--to", to]);
    }
    let wanted = site.wanted(SSM_GROUP, false)?;
    let relay = site.relay.address(site.source.ip());
    let forging = site.tunnel::<ForgeReport>(crowd, relay, wanted, &args)?;
    pause(Duration::from_millis(500));
    let count = passed_on(site, home, wanted)?;
    let forged = forging.finish()?;
    ensure!(forged.sent > 100, "hardly anything was forged: {forged:?}");
    ensure!(
        AS_SENT.contains(&count),
        "while an attacker forged its flow, flexfeed-gateway passed on {count} datagrams in \
         {COUNTED:?}, not 600"
    );
    Ok(())
}

/// Sends garbage to every UDP port that a gateway has open.
fn garbage_to_the_gateway(
    site: &mut Site,
    home: &crate::lab::Node,
    crowd: &crate::lab::Node,
) -> Result<()> {
    for port in open_ports(home)? {
        let to = format!("{}:{port}", home.address());
        let mut garbage = crowd.service_command(&site.bins.probe)?;
        garbage.args([
            "garbage",
            "--per-second",
            "2000",
            "--count",
            "300",
            "--to",
            &to,
        ]);
        ensure!(garbage.status()?.success(), "the garbage was not sent");
    }
    let wanted = site.wanted(SSM_GROUP, false)?;
    let count = passed_on(site, home, wanted)?;
    ensure!(
        AS_SENT.contains(&count),
        "after garbage, flexfeed-gateway passed on {count} datagrams in {COUNTED:?}, not 600"
    );
    Ok(())
}
