//! A network without multicast, beyond a router on the switch: what most of the Internet is to a
//! multicast flow.
//!
//! ```text
//!   switch ── border ── uni0 ─┬─ node
//!                             ├─ router that translates ─┬─ node
//!                             │                          └─ node
//! ```
//!
//! The border forwards unicast of both families and no multicast: no multicast routing runs on it,
//! so a join beyond it goes nowhere.

use anyhow::{Result, ensure};

use super::families::{Families, Net};
use super::nat::{Nat, Outside};
use super::{Lab, Node, port_name};

/// The border's own place on the network beyond it.
const BORDER: u8 = 1;

/// The border's MAC on that network.
const BORDER_MAC: &str = "02:78:00:00:00:01";

/// The network beyond the border: `10.78.0.host`, `fd78::host` or both.
#[derive(Debug)]
pub struct Beyond {
    border: Node,
    /// The largest IP packet on it, in bytes.
    mtu: u16,
}

impl Lab {
    /// Makes the border, `10.77.0.host` on the switch, and the network beyond it.
    ///
    /// Only nodes for which [`Lab::route_beyond`] was called can be reached from there, and can
    /// reach it.
    ///
    /// # Errors
    /// When there is one already, or the kernel refuses.
    pub fn add_beyond(&mut self, host: u8) -> Result<Beyond> {
        let families = self.switch.families;
        let border = self.add_node("border", host)?;
        // A MAC of its own, which does not change as nodes are added.
        border.ip_batch(&format!(
            "link add uni0 address {BORDER_MAC} type bridge forward_delay 0 mcast_snooping 0\n\
             {addresses}\
             link set uni0 up\n",
            addresses = families.address_lines(Net::Beyond, "uni0", BORDER)
        ))?;
        if families.v4() {
            border.set_kernel("net/ipv4/ip_forward", "1")?;
        }
        if families.v6() {
            border.set_kernel("net/ipv6/conf/all/forwarding", "1")?;
        }
        Ok(Beyond { border, mtu: 1500 })
    }

    /// Gives a node on the switch a route to the network beyond the border.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn route_beyond(&self, node: &Node, beyond: &Beyond) -> Result<()> {
        let mut lines = String::new();
        if node.families.v4() {
            let border = beyond.border.address;
            lines += &format!("route add 10.78.0.0/15 via {border}\n");
        }
        if node.families.v6() {
            lines += &format!("route add fd78::/15 via {}\n", beyond.border.address6);
        }
        node.ip_batch(&lines)
    }
}

impl Beyond {
    /// The router between the switch and this network.
    pub fn border(&self) -> &Node {
        &self.border
    }

    /// Makes a node on this network that speaks these families.
    ///
    /// # Errors
    /// As [`Lab::add_node_with`].
    pub fn add_node(
        &self,
        lab: &mut Lab,
        name: &str,
        host: u8,
        families: Families,
    ) -> Result<Node> {
        ensure!(
            self.border.families.include(families),
            "node {name:?} cannot have {families:?} beyond a border with {:?}",
            self.border.families
        );
        let node = Node {
            address: Net::Beyond.address4(host),
            address6: Net::Beyond.address6(host),
            ..lab.make_node(name, families)?
        };
        let port = port_name(name);
        let mtu = self.mtu;
        self.border.ip_batch(&format!(
            "link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pid}\n\
             link set {port} addrgenmode none\n\
             link set {port} master uni0\n\
             link set {port} up\n",
            pid = node.pid
        ))?;
        if !families.v6() {
            node.set_kernel("net/ipv6/conf/all/disable_ipv6", "1")?;
        }
        let mut ways = String::new();
        if families.v4() {
            ways += &format!("route add default via {}\n", Net::Beyond.address4(BORDER));
        }
        if families.v6() {
            ways += &format!("route add default via {}\n", Net::Beyond.address6(BORDER));
        }
        node.ip_batch(&format!(
            "link set lo multicast on\n\
             link set lo up\n\
             link set eth0 gso_max_segs 1\n\
             {addresses}\
             link set eth0 up\n\
             {ways}{routes}",
            addresses = families.address_lines(Net::Beyond, "eth0", host),
            routes = families.route_lines("eth0"),
        ))?;
        lab.nodes.push(node.clone());
        Ok(node)
    }

    /// Makes a router on this network that translates addresses, with nothing behind it yet. It is
    /// there by two addresses in turn: `10.78.0.first` and `10.78.0.second`. IPv4 only.
    ///
    /// # Errors
    /// As [`Lab::add_behind_nat`].
    pub fn add_nat(&self, lab: &mut Lab, name: &str, first: u8, second: u8) -> Result<Nat> {
        let router = self.add_node(lab, name, first, Families::V4)?;
        let outside = Outside {
            net: Net::Beyond,
            way: Some(Net::Beyond.address4(BORDER)),
            current: first,
            other: second,
        };
        Nat::new(router, outside)
    }

    /// Gives a node on this network all of `10.79.0.0/16`, `fd79::/16` or both: it can send from
    /// each of these addresses, and gets what is sent there.
    ///
    /// # Errors
    /// When another node has them already, or the kernel refuses.
    pub fn give_crowd(&self, node: &Node) -> Result<()> {
        let (mut here, mut there) = (String::new(), String::new());
        if node.families.v4() {
            there += &format!("route add 10.79.0.0/16 via {}\n", node.address);
            here += "route add local 10.79.0.0/16 dev lo\n";
        }
        if node.families.v6() {
            there += &format!("route add fd79::/16 via {}\n", node.address6);
            here += "route add local fd79::/16 dev lo\n";
        }
        self.border.ip_batch(&there)?;
        node.ip_batch(&here)
    }

    /// Changes the largest IP packet that passes this network, for all nodes that are on it and all
    /// to come, in bytes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_mtu(&mut self, lab: &Lab, mtu: u16) -> Result<()> {
        for node in &lab.nodes {
            let here = Net::Beyond.address4(0).octets();
            if node.address.octets().get(..2) == here.get(..2) {
                node.ip_batch(&format!("link set eth0 mtu {mtu}\n"))?;
                self.border
                    .ip_batch(&format!("link set {} mtu {mtu}\n", port_name(&node.name)))?;
            }
        }
        self.border
            .ip_batch(&format!("link set uni0 mtu {mtu}\n"))?;
        self.mtu = mtu;
        Ok(())
    }
}
