//! A node behind a router that translates addresses (RFC 4787), and forgets its translations on command.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::families::{self, Families};
use super::tools::Tools;
use super::{Lab, Node, output_of};
use crate::waiting::pause;

/// The two ends of the network between router and node; each router has its own, so that all can be the same.
const ROUTER_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
const NODE_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

/// Each translation gets a port by chance: one that is made again is never the same.
const TRANSLATE: &str = "table ip flexfeed {\n chain postrouting {\n  type nat hook postrouting priority 100; policy accept;\n  oifname \"eth0\" masquerade fully-random\n }\n}\n";

/// What a router's translation changes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebinding {
    /// The same outside address, another port: as a router does after a restart or a long silence.
    Port,
    /// The other of the router's two outside addresses, and another port: as after a new dial-in.
    Address,
}

/// A router with one node behind it. It forwards no multicast.
#[derive(Debug)]
pub struct Nat {
    router: Node,
    current: u8,
    other: u8,
}

impl Lab {
    /// Makes a node that is not on the switch but behind a router, which is there by two addresses in turn: `10.77.0.first` and `10.77.0.second`. IPv4 only.
    ///
    /// # Errors
    /// When the name is longer than 7 bytes or taken, the lab has no IPv4, or the kernel refuses.
    pub fn add_behind_nat(&mut self, name: &str, first: u8, second: u8) -> Result<(Nat, Node)> {
        ensure!(
            self.switch.families.v4(),
            "{name} cannot be behind a translation of IPv4 addresses in a lab without IPv4"
        );
        let router = self.add_node_with(&format!("nat-{name}"), first, Families::V4)?;
        let node = Node {
            address: NODE_INSIDE,
            ..self.make_node(name, Families::V4)?
        };
        router.ip_batch(&format!(
            "link add inside type veth peer name eth0 netns {pid}\n\
             addr add {ROUTER_INSIDE}/24 dev inside\n\
             link set inside up\n",
            pid = node.pid
        ))?;
        node.set_kernel("net/ipv6/conf/all/disable_ipv6", "1")?;
        node.ip_batch(&format!(
            "link set lo up\n\
             link set eth0 gso_max_segs 1\n\
             addr add {NODE_INSIDE}/24 dev eth0\n\
             link set eth0 up\n\
             route add default via {ROUTER_INSIDE}\n"
        ))?;
        let mut nft = router.command(&Tools::find()?.nft)?;
        nft.args(["-f", "-"]);
        output_of(nft, "nft", TRANSLATE)?;
        router.set_kernel("net/ipv4/ip_forward", "1")?;
        self.nodes.push(node.clone());
        let nat = Nat {
            router,
            current: first,
            other: second,
        };
        Ok((nat, node))
    }
}

impl Nat {
    /// The address that the node is seen with now.
    pub fn outside(&self) -> Ipv4Addr {
        families::address4(self.current)
    }

    /// Forgets all translations and loses everything in both directions for a time; whatever the node sends afterwards has another outside port, or also another
    /// address. What is sent to the old ones reaches nobody.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rebind(&mut self, to: Rebinding, outage: Duration) -> Result<()> {
        // The kernel forgets the translations to an address of the interface when the address goes.
        self.router
            .ip_batch(&format!("addr del {}/24 dev eth0\n", self.outside()))?;
        pause(outage);
        if to == Rebinding::Address {
            std::mem::swap(&mut self.current, &mut self.other);
        }
        self.router
            .ip_batch(&format!("addr add {}/24 dev eth0\n", self.outside()))
    }
}
