//! A path that takes no packet above 1,280 bytes.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};

use super::site::Site;
use crate::lab::Families;
use crate::scenario::{Fault, PATIENCE, SSM_GROUP, SSM_GROUP6};
use crate::tunnel::GatewaysReport;

/// t: over a path of 1,280 bytes, packets of the flow's size pass in all four combinations of
/// families; larger IPv4 packets come as fragments inside the tunnel; larger IPv6 packets are
/// dropped and counted; and no packet outside is ever a fragment.
///
/// # Errors
/// When one of these does not hold.
pub fn a_narrow_path(fault: Option<Fault>) -> Result<()> {
    let relay = ["--mtu", "1280"];
    Site::play("narrow", Families::Dual, &relay, fault, |site| {
        site.beyond.set_mtu(&site.lab, 1280)?;
        let far = site.add_far("far", 20)?;
        let outer: [IpAddr; 2] = [site.source.address().into(), site.source.address6().into()];
        for size in [1180, 1400] {
            let senders = [SSM_GROUP, SSM_GROUP6].map(|group| site.send(group, size));
            let mut joined = Vec::new();
            for group in [SSM_GROUP, SSM_GROUP6] {
                for family in outer {
                    let relay = site.relay.address(family);
                    let wanted = site.wanted(group, false)?;
                    let patience = PATIENCE.as_millis().to_string();
                    let args: &[&str] = match (size, group) {
                        (1180, _) => &["join", "--enough", "101", "--for-ms", &patience],
                        (_, SSM_GROUP) => &["join", "--enough", "201", "--for-ms", &patience],
                        // Nothing may come to these: for as long as the others usually take, and
                        // longer.
                        _ => &["join", "--for-ms", "2500"],
                    };
                    let what = format!("{size} bytes to {group} over {relay}");
                    let pending = site.tunnel::<GatewaysReport>(&far, relay, wanted, args)?;
                    joined.push((what, group, pending));
                }
            }
            let mut reports = Vec::new();
            for (what, group, pending) in joined {
                reports.push((what, group, pending.finish()?));
            }
            for sender in senders {
                sender?.wait()?;
            }
            let fragments = far.fragments()?;
            ensure!(
                fragments == 0,
                "{fragments} fragments of outer packets arrived"
            );
            for (what, group, seen) in reports {
                let one = seen.gateways.first().context("no gateway")?;
                let (whole, pieces) = (one.data, one.fragments);
                let fits = match (size, group) {
                    (1180, _) => whole > 100 && pieces == 0,
                    (_, SSM_GROUP) => whole == 0 && pieces > 200,
                    _ => whole == 0 && pieces == 0,
                };
                ensure!(fits && one.wrong == 0, "{what}: {one:?}");
            }
        }
        Ok(())
    })
}
