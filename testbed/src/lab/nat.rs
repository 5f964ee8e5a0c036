//! Nodes behind a router that translates addresses (RFC 4787), and forgets its translations on
//! command.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::families::{Families, Net};
use super::tools::Tools;
use super::{Lab, Node, output_of};
use crate::waiting::pause;

/// The router's end of the network behind it; each router has its own, so that all can be the same.
const ROUTER_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
/// The first node behind a router; the next one has the next address.
const FIRST_INSIDE: u8 = 2;

/// Its MAC there.
const ROUTER_MAC: &str = "02:77:00:00:00:01";

/// Translation table, without rules yet.
const TABLE: &str = "add table ip flexfeed\nadd chain ip flexfeed postrouting { type nat hook \
    postrouting priority 100; policy accept; }\n";

/// Each translation gets a port by chance, of these ranges in turn: one that is made again is never
/// the same.
const PORTS: [&str; 2] = ["1024-32767", "32768-65535"];

/// New mapping of a router's translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebinding {
    /// The same outside address, another port: as a router does after a restart or a long silence.
    Port,
    /// The other of the router's two outside addresses, and another port: as after a new dial-in.
    Address,
}

/// Outside address of a router.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outside {
    /// The network that it is on.
    pub(super) net: Net,
    /// Default gateway, if there is one.
    pub(super) way: Option<Ipv4Addr>,
    /// Its address now.
    pub(super) current: u8,
    /// Its other address.
    pub(super) other: u8,
}

/// A router with nodes behind it, all of them behind one outside address. It forwards no multicast.
#[derive(Debug)]
pub struct Nat {
    router: Node,
    outside: Outside,
    /// Index into [`PORTS`] for new translations.
    ports: usize,
    next: u8,
}

impl Lab {
    /// Makes a node that is not on the switch but behind a router, which is there by two addresses
    /// in turn: `10.77.0.first` and `10.77.0.second`. IPv4 only.
    ///
    /// # Errors
    /// When the name is longer than 7 bytes or taken, the lab has no IPv4, or the kernel refuses.
    pub fn add_behind_nat(&mut self, name: &str, first: u8, second: u8) -> Result<(Nat, Node)> {
        ensure!(
            self.switch.families.v4(),
            "{name} cannot be behind a translation of IPv4 addresses in a lab without IPv4"
        );
        let router = self.add_node_with(&format!("nat-{name}"), first, Families::V4)?;
        let outside = Outside {
            net: Net::Switch,
            way: None,
            current: first,
            other: second,
        };
        let mut nat = Nat::new(router, outside)?;
        let node = nat.add_node(self, name)?;
        Ok((nat, node))
    }
}

impl Nat {
    /// Makes a node that is on the network outside, by its interface `eth0`, a router for those to
    /// come behind it.
    pub(super) fn new(router: Node, outside: Outside) -> Result<Nat> {
        // A MAC of its own: otherwise a bridge takes the lowest of its ports', another one when a
        // node is added, and others go on with the old one.
        router.ip_batch(&format!(
            "link add inside address {ROUTER_MAC} type bridge forward_delay 0 mcast_snooping 0\n\
             addr add {ROUTER_INSIDE}/24 dev inside\n\
             link set inside up\n"
        ))?;
        let nat = Nat {
            router,
            outside,
            ports: 0,
            next: FIRST_INSIDE,
        };
        nat.translate(TABLE)?;
        nat.router.set_kernel("net/ipv4/ip_forward", "1")?;
        Ok(nat)
    }

    /// Lets new translations have ports of the present range, after what `first` says.
    fn translate(&self, first: &str) -> Result<()> {
        let ports = PORTS[self.ports % PORTS.len()];
        let rules = format!(
            "{first}\
             flush chain ip flexfeed postrouting\n\
             add rule ip flexfeed postrouting oifname \"eth0\" meta l4proto {{ tcp, udp }} \
             masquerade to :{ports} fully-random\n\
             add rule ip flexfeed postrouting oifname \"eth0\" masquerade fully-random\n"
        );
        let mut nft = self.router.command(&Tools::find()?.nft)?;
        nft.args(["-f", "-"]);
        output_of(nft, "nft", &rules)?;
        Ok(())
    }

    /// Makes a further node behind this router.
    ///
    /// # Errors
    /// When the name is taken or longer than 11 bytes, or the kernel refuses.
    pub fn add_node(&mut self, lab: &mut Lab, name: &str) -> Result<Node> {
        let [a, b, c, _] = ROUTER_INSIDE.octets();
        let address = Ipv4Addr::new(a, b, c, self.next);
        let node = Node {
            address,
            ..lab.make_node(name, Families::V4)?
        };
        let port = format!("in{}", self.next);
        self.router.ip_batch(&format!(
            "link add {port} type veth peer name eth0 netns {pid}\n\
             link set {port} addrgenmode none\n\
             link set {port} master inside\n\
             link set {port} up\n",
            pid = node.pid
        ))?;
        node.set_kernel("net/ipv6/conf/all/disable_ipv6", "1")?;
        node.ip_batch(&format!(
            "link set lo multicast on\n\
             link set lo up\n\
             link set eth0 gso_max_segs 1\n\
             addr add {address}/24 dev eth0\n\
             link set eth0 up\n\
             route add default via {ROUTER_INSIDE}\n"
        ))?;
        lab.nodes.push(node.clone());
        self.next += 1;
        Ok(node)
    }

    /// The router itself.
    pub fn router(&self) -> &Node {
        &self.router
    }

    /// The router's address on the network behind it.
    pub fn inside(&self) -> IpAddr {
        ROUTER_INSIDE.into()
    }

    /// The address that the nodes are seen with now.
    pub fn outside(&self) -> Ipv4Addr {
        self.outside.net.address4(self.outside.current)
    }

    /// Forgets all translations and drops everything in both directions for a time; later packets
    /// get another outside port, or also another address. Packets to the old ones are lost.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn rebind(&mut self, to: Rebinding, outage: Duration) -> Result<()> {
        // The kernel forgets the translations to an address of the interface when the address goes.
        self.router
            .ip_batch(&format!("addr del {}/24 dev eth0\n", self.outside()))?;
        pause(outage);
        self.ports += 1;
        self.translate("")?;
        if to == Rebinding::Address {
            std::mem::swap(&mut self.outside.current, &mut self.outside.other);
        }
        let mut lines = format!("addr add {}/24 dev eth0\n", self.outside());
        if let Some(way) = self.outside.way {
            // Went with the address.
            lines += &format!("route add default via {way}\n");
        }
        self.router.ip_batch(&lines)
    }
}
