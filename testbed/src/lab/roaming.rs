//! Nodes whose addresses change while they run.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;

use super::families::Net;
use super::{Lab, Node, port_name};

impl Lab {
    /// Gives a node a second IPv4 address, `10.77.0.host`, on the interface that it has. Returns
    /// it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_address(&self, node: &Node, host: u8) -> Result<IpAddr> {
        // Otherwise the second one would go with the first.
        node.set_kernel("net/ipv4/conf/all/promote_secondaries", "1")?;
        let address = Net::Switch.address4(host);
        node.ip_batch(&format!("addr add {address}/24 dev eth0\n"))?;
        Ok(address.into())
    }

    /// Marks a node's first IPv4 address as one that is about to go.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn deprecate_address(&self, node: &Node) -> Result<()> {
        let address = node.address();
        node.ip_batch(&format!(
            "addr change {address}/24 dev eth0 preferred_lft 0\n"
        ))
    }

    /// Takes a node's first IPv4 address away.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_address(&self, node: &Node) -> Result<()> {
        node.ip_batch(&format!("addr del {}/24 dev eth0\n", node.address()))
    }

    /// Moves a node from its cable to a second one, with the address `10.77.0.host`: the first is
    /// pulled once the second works. Returns the address.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn change_cable(&self, node: &Node, host: u8) -> Result<Ipv4Addr> {
        let port = format!("{}b", port_name(node.name()));
        self.switch.ip_batch(&format!(
            "link add {port} type veth peer name eth1 netns {pid}\n\
             link set {port} addrgenmode none\n\
             link set {port} master br0\n\
             link set {port} up\n",
            pid = node.pid
        ))?;
        let address = Net::Switch.address4(host);
        node.ip_batch(&format!(
            "link set eth1 gso_max_segs 1\n\
             addr add {address}/24 dev eth1\n\
             link set eth1 up\n\
             link set eth0 down\n\
             route add 224.0.0.0/4 dev eth1\n"
        ))?;
        Ok(address)
    }
}
