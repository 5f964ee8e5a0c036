//! A relay and a gateway that are not ours.

use std::net::IpAddr;

use anyhow::{Result, ensure};

use super::site::Site;
use crate::lab::Families;
use crate::process::Service;
use crate::scenario::{Fault, SSM_GROUP};
use crate::tunnel::Peer;

/// Number of datagrams that have to come each way.
const ENOUGH: u64 = 101;

/// v: an independent gateway gets a group from our relay and sends it on to the network behind it;
/// `flexfeed-gateway` gets it from an independent relay. `Ok(false)` when there is no such program
/// on this machine.
///
/// # Errors
/// When they do not understand each other.
pub fn works_with_others(fault: Option<Fault>) -> Result<bool> {
    let Some(peer) = Peer::find() else {
        ensure!(
            !Peer::required(),
            "there is no other implementation of AMT; {}",
            Peer::remedy()
        );
        return Ok(false);
    };
    Site::play("interop", Families::V4, &[], fault, |site| {
        let logs = site.logs();
        let wanted = site.wanted(SSM_GROUP, false)?;

        let mut nat = site.beyond.add_nat(&mut site.lab, "nat", 10, 110)?;
        let home = nat.add_node(&mut site.lab, "home")?;
        let ours = site.relay.address(site.source.ip());
        let launch = peer.gateway(ours, wanted.source, wanted.group.ip(), nat.inside());
        let theirs = Service::start_as_owner(nat.router(), &launch, &logs)?;
        let at_home = site.count_to(&home, wanted.group, home.ip(), ENOUGH)?;

        let other = site.lab.add_node("relay2", 6)?;
        site.lab.route_beyond(&other, &site.beyond)?;
        let listen = (other.ip(), amt::PORT).into();
        let launch = peer.relay(listen, other.ip());
        let their_relay = Service::start_as_owner(&other, &launch, &logs)?;
        let far = site.add_far("far", 20)?;
        site.start_gateway(&far, listen, wanted)?;
        let lo = IpAddr::from([127, 0, 0, 1]);
        let at_far = site.count_to(&far, wanted.group, lo, ENOUGH)?;

        let mut sender = site.send(SSM_GROUP, 1180)?;
        let (at_home, at_far) = (at_home.finish()?, at_far.finish()?);
        sender.wait()?;
        ensure!(
            at_home >= ENOUGH,
            "our relay and their gateway: {at_home} datagrams; its log ends:\n{}",
            theirs.log_tail()
        );
        ensure!(
            at_far >= ENOUGH,
            "their relay and our gateway: {at_far} datagrams; the relay's log ends:\n{}",
            their_relay.log_tail()
        );
        Ok(())
    })?;
    Ok(true)
}
