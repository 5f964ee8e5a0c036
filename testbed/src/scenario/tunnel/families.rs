//! IPv4 and IPv6, outside and inside, from one source and from any.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::site::{Pending, Site};
use crate::lab::Families;
use crate::scenario::{ASM_GROUP, ASM_GROUP6, Fault, PATIENCE, SSM_GROUP, SSM_GROUP6};
use crate::tunnel::GatewaysReport;
use crate::waiting::pause;

/// Datagrams that every gateway has to get.
const ENOUGH: u64 = 101;

/// q: gateways of one node get a group of each family over a relay of each family, for one source
/// and for any: eight tunnels, of which all with one outer family share an address. Four of
/// `flexfeed-gateway` send it on to programs that join it there.
///
/// # Errors
/// When one of them gets nothing, something damaged, or something twice.
pub fn all_families_and_any_source(fault: Option<Fault>) -> Result<()> {
    Site::play("families", Families::Dual, &[], fault, |site| {
        let probes = site.add_far("probes", 20)?;
        let groups = [SSM_GROUP, SSM_GROUP6, ASM_GROUP, ASM_GROUP6];
        let outer: [IpAddr; 2] = [site.source.address().into(), site.source.address6().into()];
        let mut joined: Vec<(String, Pending<GatewaysReport>)> = Vec::new();
        let mut counted: Vec<(String, Pending<u64>)> = Vec::new();
        let (enough, time) = (ENOUGH.to_string(), PATIENCE.as_millis().to_string());
        for group in groups {
            for family in outer {
                let relay = site.relay.address(family);
                let any_source = group == ASM_GROUP || group == ASM_GROUP6;
                let wanted = site.wanted(group, any_source)?;
                let args = ["join", "--enough", &enough, "--for-ms", &time];
                let what = format!("{group} over {relay}");
                joined.push((what.clone(), site.tunnel(&probes, relay, wanted, &args)?));
                if !any_source {
                    let host = 21 + u8::try_from(counted.len())?;
                    let node = site.add_far(&format!("far{host}"), host)?;
                    site.start_gateway(&node, relay, wanted)?;
                    let interface: IpAddr = match wanted.group.ip() {
                        IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
                        IpAddr::V6(_) => node.address6().into(),
                    };
                    let count = site.count_to(&node, wanted.group, interface, ENOUGH)?;
                    counted.push((what, count));
                }
            }
        }
        let mut senders = Vec::new();
        for group in groups {
            senders.push(site.send(group, 1180)?);
        }
        for (what, pending) in joined {
            let seen = pending.finish()?;
            let one = seen.gateways.first().context("no gateway")?;
            ensure!(
                one.data >= ENOUGH && one.wrong == 0 && one.data == one.distinct,
                "{what}: not everything came once, as it was: {one:?}"
            );
        }
        for (what, pending) in counted {
            let count = pending.finish()?;
            ensure!(
                count >= ENOUGH,
                "{what}: flexfeed-gateway passed on {count} datagrams"
            );
        }
        for mut sender in senders {
            sender.wait()?;
        }
        pause(Duration::from_millis(200));
        Ok(())
    })
}
