//! A network of our own: namespaces joined by a switch that forwards multicast only where it was
//! asked for.
//!
//! The switch is a Linux bridge with IGMPv3 and MLDv2 snooping and a querier, so that a node gets a
//! group only after a real (S,G) or (*,G) join. Each node is a network namespace of its own on a
//! veth cable, with IPv4, IPv6 or both. Everything also runs in a PID namespace, whose end takes
//! every process of the lab with it.
//!
//! A multi-threaded process (a Rust test) cannot enter a user namespace, so each program is started
//! through `nsenter`. As root no user namespace is made; as an ordinary user one is, by the same
//! code, and inside it the user is root over the lab's networks and over nothing else.

mod beyond;
mod cable;
mod families;
mod holder;
mod nat;
mod ports;
mod roaming;
mod tools;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::waiting::pause;
pub use beyond::Beyond;
pub use cable::Cable;
pub use families::Families;
use families::Net;
use holder::Holder;
pub use holder::child_of;
pub use nat::{Nat, Rebinding};
pub use ports::{Multicast, Port};
pub use tools::{Tools, on_path};

/// The user and group that services run as when the lab was made by root.
pub const ORDINARY_USER: u32 = 65534;

/// Time for which the bridge floods all multicast after its querier starts, plus a margin: the
/// query response interval set in [`Lab::new`].
const SNOOPING_STARTS: Duration = Duration::from_millis(200);

/// The switch's own place on the network.
const SWITCH: u8 = 1;

/// One network namespace of a lab.
#[derive(Debug, Clone)]
pub struct Node {
    name: String,
    families: Families,
    address: Ipv4Addr,
    address6: Ipv6Addr,
    pid: u32,
    rootless: bool,
}

/// A switch and the nodes on it; all of it ends when this value is dropped or when this process
/// ends.
#[derive(Debug)]
pub struct Lab {
    // Fields drop in this order: nodes before the switch, whose holder is process 1 of the lab.
    holders: Vec<Holder>,
    nodes: Vec<Node>,
    ports: Mutex<BTreeMap<String, Port>>,
    switch: Node,
    _init: Holder,
}

impl Lab {
    /// Makes the switch of a network with IPv4 alone.
    ///
    /// # Errors
    /// As [`Lab::with`].
    pub fn new() -> Result<Lab> {
        Lab::with(Families::V4)
    }

    /// Makes the switch of a network that speaks these address families.
    ///
    /// # Errors
    /// When a program is missing, or when namespaces are forbidden here; the error then names the
    /// remedy.
    pub fn with(families: Families) -> Result<Lab> {
        let tools = Tools::find()?;
        let (init, rootless) = make_init(tools)?;
        let switch = Node {
            name: "switch".to_owned(),
            families,
            address: Net::Switch.address4(SWITCH),
            address6: Net::Switch.address6(SWITCH),
            pid: init.pid(),
            rootless,
        };
        // Times in hundredths of a second. Hosts answer a query within the response interval, and a
        // bridge floods for as long after its querier starts. The querier asks in a family only
        // from an address of that family, and begins at once only if it has one.
        switch.ip_batch(&format!(
            "link set lo up\n\
             link add br0 type bridge forward_delay 0 mcast_snooping 1 \
             mcast_igmp_version 3 mcast_mld_version 2 mcast_query_response_interval 10 \
             mcast_startup_query_interval 100 mcast_query_interval 200 \
             mcast_last_member_interval 10 mcast_query_use_ifaddr 1\n\
             {addresses}\
             link set br0 up\n\
             link set br0 type bridge mcast_querier 1\n",
            addresses = families.address_lines(Net::Switch, "br0", SWITCH)
        ))?;
        pause(SNOOPING_STARTS);
        Ok(Lab {
            holders: Vec::new(),
            nodes: Vec::new(),
            ports: Mutex::new(BTreeMap::new()),
            switch,
            _init: init,
        })
    }

    /// Plugs a new node in at `10.77.0.host`, `fd77::host` or both, as the lab has it, with a
    /// default multicast route; its port is open.
    ///
    /// # Errors
    /// When the name is too long for an interface (at most 11 bytes), taken, or when the kernel
    /// refuses.
    pub fn add_node(&mut self, name: &str, host: u8) -> Result<Node> {
        self.add_node_with(name, host, self.switch.families)
    }

    /// The same for a node that speaks other families than the lab: on a network with both, one
    /// that has only one.
    ///
    /// # Errors
    /// As [`Lab::add_node`]; also when the lab lacks one of the families.
    pub fn add_node_with(&mut self, name: &str, host: u8, families: Families) -> Result<Node> {
        ensure!(
            self.switch.families.include(families),
            "node {name:?} cannot have {families:?} in a lab with {:?}",
            self.switch.families
        );
        let node = self.make_node(name, families)?;
        let node = Node {
            address: Net::Switch.address4(host),
            address6: Net::Switch.address6(host),
            ..node
        };
        let port = port_name(name);
        self.switch.ip_batch(&format!(
            "link add {port} type veth peer name eth0 netns {pid}\n\
             link set {port} addrgenmode none\n\
             link set {port} master br0\n\
             link set {port} up\n",
            pid = node.pid
        ))?;
        if self.switch.families.v6() && !families.v6() {
            // Without this it would be able to join IPv6 groups even without an address.
            node.set_kernel("net/ipv6/conf/all/disable_ipv6", "1")?;
        }
        // One datagram per frame, as on a cable: otherwise a train of segments would be lost or
        // forwarded as one.
        node.ip_batch(&format!(
            "link set lo multicast on\n\
             link set lo up\n\
             link set eth0 gso_max_segs 1\n\
             {addresses}\
             link set eth0 up\n\
             {routes}",
            addresses = families.address_lines(Net::Switch, "eth0", host),
            routes = families.route_lines("eth0"),
        ))?;
        self.nodes.push(node.clone());
        self.set_port(&node, Port::default())?;
        Ok(node)
    }

    /// A namespace that lives as long as the lab, with nothing in it but a loopback interface that
    /// is down; its addresses are still to be set.
    fn make_node(&mut self, name: &str, families: Families) -> Result<Node> {
        ensure!(
            !name.is_empty()
                && name.len() <= 11
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "node name {name:?}: use 1 to 11 letters, digits and dashes, because an interface is \
             named after it"
        );
        ensure!(
            self.nodes.iter().all(|node| node.name != name),
            "there is already a node {name:?}"
        );
        let tools = Tools::find()?;
        let mut command = self.switch.enter(true)?;
        command.arg(&tools.unshare).arg("--net").arg(&tools.cat);
        let holder = Holder::start(command, &format!("node {name}"))?;
        let node = Node {
            name: name.to_owned(),
            families,
            address: Ipv4Addr::UNSPECIFIED,
            address6: Ipv6Addr::UNSPECIFIED,
            pid: holder.pid(),
            rootless: self.switch.rootless,
        };
        self.holders.push(holder);
        Ok(node)
    }

    /// Changes what happens to multicast towards a node; unicast goes on.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn set_multicast(&self, node: &Node, multicast: Multicast) -> Result<()> {
        let mut port = self.port(node)?;
        port.multicast = multicast;
        self.set_port(node, port)
    }

    /// Limits what goes to a node to `kbit_per_s`, with a queue of a third of a second; `None` for no
    /// limit.
    ///
    /// # Errors
    /// When tc refuses.
    pub fn set_bandwidth(&self, node: &Node, kbit_per_s: Option<u32>) -> Result<()> {
        let mut command = self.switch.command(&Tools::find()?.tc)?;
        let port = port_name(&node.name);
        match kbit_per_s {
            Some(rate) => {
                command.args(["qdisc", "replace", "dev", &port, "root", "tbf"]);
                let rate = format!("{rate}kbit");
                command.args(["rate", &rate, "burst", "4kb", "latency", "300ms"]);
            }
            None => {
                command.args(["qdisc", "del", "dev", &port, "root"]);
            }
        }
        output_of(command, "tc", "").map(|_| ())
    }

    /// Changes the largest IP packet in bytes that passes the cable of a node, both ways. Trains
    /// are cut into their packets before that.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_mtu(&self, node: &Node, mtu: u16) -> Result<()> {
        let port = port_name(&node.name);
        self.switch
            .ip_batch(&format!("link set {port} mtu {mtu} gso_max_segs 1\n"))?;
        node.ip_batch(&format!("link set eth0 mtu {mtu}\n"))
    }

    /// Pulls (or plugs in again) the whole cable of a node, unicast too.
    ///
    /// # Errors
    /// When nft refuses.
    pub fn set_unplugged(&self, node: &Node, unplugged: bool) -> Result<()> {
        let mut port = self.port(node)?;
        port.unplugged = unplugged;
        self.set_port(node, port)
    }

    /// The nft ruleset of the switch with its counters, for a report of what went wrong.
    pub fn describe_ports(&self) -> String {
        let listing = Tools::find().and_then(|tools| {
            let mut command = self.switch.command(&tools.nft)?;
            command.args(["list", "ruleset"]);
            output_of(command, "nft list ruleset", "")
        });
        listing.unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Whether the lab runs in a user namespace, that is, was not made by root.
    pub fn rootless(&self) -> bool {
        self.switch.rootless
    }

    fn port(&self, node: &Node) -> Result<Port> {
        let ports = self
            .ports
            .lock()
            .map_err(|_| anyhow!("lab lock poisoned"))?;
        ports
            .get(&port_name(&node.name))
            .copied()
            .ok_or_else(|| anyhow!("node {:?} is not in this lab", node.name))
    }

    fn set_port(&self, node: &Node, port: Port) -> Result<()> {
        let tools = Tools::find()?;
        let mut ports = self
            .ports
            .lock()
            .map_err(|_| anyhow!("lab lock poisoned"))?;
        let mut changed = ports.clone();
        changed.insert(port_name(&node.name), port);
        let mut command = self.switch.command(&tools.nft)?;
        command.args(["-f", "-"]);
        output_of(command, "nft", &ports::ruleset(&changed))?;
        *ports = changed;
        Ok(())
    }
}

impl Node {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address families that the node speaks.
    pub fn families(&self) -> Families {
        self.families
    }

    /// The node's IPv4 address on the lab's network, unless it speaks only IPv6.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The node's IPv6 address on the lab's network, unless it speaks only IPv4.
    pub fn address6(&self) -> Ipv6Addr {
        self.address6
    }

    /// An address that the node has: the IPv4 one where it speaks both.
    pub fn ip(&self) -> IpAddr {
        if self.families.v4() {
            self.address.into()
        } else {
            self.address6.into()
        }
    }

    /// A short-lived program in this node's network, with the rights of the lab's owner.
    ///
    /// # Errors
    /// When a tool is missing.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = self.enter(false)?;
        command.arg(program);
        Ok(command)
    }

    /// A long-lived program in this node: it dies with the lab and has no rights beyond those of an
    /// ordinary user.
    ///
    /// The program is the only child of the process that the command starts (see [`child_of`]).
    ///
    /// # Errors
    /// When a tool is missing.
    pub fn service_command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let tools = Tools::find()?;
        let mut command = self.enter(true)?;
        if !self.rootless {
            let id = ORDINARY_USER.to_string();
            command
                .arg(&tools.setpriv)
                .args(["--reuid", &id, "--regid", &id])
                .args(["--clear-groups", "--no-new-privs", "--"]);
        }
        command.arg(program);
        Ok(command)
    }

    /// Returns a command for a long-lived program in this node with the rights of the lab's owner
    /// over this network: raw sockets, and foreign source addresses.
    ///
    /// Dies with the lab, and is the only child of the process that the command starts.
    ///
    /// # Errors
    /// A tool is missing.
    pub fn owner_command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = self.enter(true)?;
        command.arg(program);
        Ok(command)
    }

    /// Returns a file of `/proc` about this node's network.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_kernel(&self, path: &str) -> Result<String> {
        let mut command = self.command(&Tools::find()?.cat)?;
        command.arg(path);
        output_of(command, &format!("reading {path} in {}", self.name), "")
    }

    /// Returns the number of IP fragments received by this node, in both families.
    ///
    /// # Errors
    /// The counter cannot be read.
    pub fn fragments(&self) -> Result<u64> {
        let v4 = self.read_kernel("/proc/net/snmp")?;
        let mut rows = v4.lines().filter_map(|line| line.strip_prefix("Ip:"));
        let (names, values) = (rows.next(), rows.next());
        let v4 = names
            .zip(values)
            .and_then(|(names, values)| {
                let place = names
                    .split_whitespace()
                    .position(|name| name == "ReasmReqds")?;
                values.split_whitespace().nth(place)?.parse::<u64>().ok()
            })
            .context("no count of fragments in /proc/net/snmp")?;
        // A kernel without IPv6 has no such file.
        let v6 = self.read_kernel("/proc/net/snmp6").unwrap_or_default();
        let v6 = v6
            .lines()
            .find_map(|line| line.strip_prefix("Ip6ReasmReqds"))
            .and_then(|count| count.trim().parse::<u64>().ok());
        Ok(v4 + v6.unwrap_or(0))
    }

    /// Gives a file or folder to the user that services run as.
    ///
    /// # Errors
    /// When the owner cannot be changed.
    pub fn hand_over(&self, path: &Path) -> Result<()> {
        if !self.rootless {
            std::os::unix::fs::chown(path, Some(ORDINARY_USER), Some(ORDINARY_USER))
                .with_context(|| format!("giving {} to user {ORDINARY_USER}", path.display()))?;
        }
        Ok(())
    }

    /// `nsenter` into this node, ready for a program and its arguments.
    ///
    /// Entering the PID namespace makes `nsenter` fork, and makes process ids in arguments mean
    /// other processes; commands such as `ip … netns PID` stay outside.
    fn enter(&self, with_pid_namespace: bool) -> Result<Command> {
        let mut command = Command::new(&Tools::find()?.nsenter);
        command.arg("--target").arg(self.pid.to_string());
        if self.rootless {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--net");
        if with_pid_namespace {
            command.arg("--pid");
        }
        command.arg("--").process_group(0);
        Ok(command)
    }

    /// Changes a setting of the kernel for this node alone; `name` is its path below `/proc/sys`.
    fn set_kernel(&self, name: &str, value: &str) -> Result<()> {
        let mut command = self.command("sh")?;
        command.args(["-c", "cat > \"/proc/sys/$0\"", name]);
        let what = format!("setting {name} to {value} in {}", self.name);
        output_of(command, &what, value)?;
        Ok(())
    }

    fn ip_batch(&self, lines: &str) -> Result<()> {
        let mut command = self.command(&Tools::find()?.ip)?;
        command.args(["-batch", "-"]);
        output_of(command, &format!("ip in {}", self.name), lines)?;
        Ok(())
    }
}

/// The interface of the switch that a node's cable is plugged into.
fn port_name(node: &str) -> String {
    format!("p-{node}")
}

/// Makes the switch's namespaces, as root if possible, in a user namespace otherwise. Returns
/// whether it was the latter.
fn make_init(tools: &Tools) -> Result<(Holder, bool)> {
    let start = |rootless: bool| {
        let mut command = Command::new(&tools.unshare);
        if rootless {
            command.args(["--user", "--map-root-user"]);
        }
        command
            .args(["--net", "--pid", "--fork", "--kill-child"])
            .arg(&tools.cat);
        Holder::start(command, "the lab")
    };
    if rustix::process::geteuid().is_root()
        && let Ok(init) = start(false)
    {
        return Ok((init, false));
    }
    // Root in a container often lacks the capability to make namespaces directly.
    match start(true) {
        Ok(init) => Ok((init, true)),
        Err(error) => Err(error.context(remedy())),
    }
}

/// The line that allows user namespaces on this machine, as far as its settings tell.
fn remedy() -> String {
    let setting = |path: &str| {
        std::fs::read_to_string(path)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    let line = if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref()
        == Some("1")
    {
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    } else if setting("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    } else if setting("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
        "sudo sysctl -w user.max_user_namespaces=10000"
    } else {
        "run as root, or in a container started with --privileged"
    };
    format!("user namespaces are restricted here; allow them with: {line}")
}

/// Runs a command to its end and returns its standard output.
fn output_of(mut command: Command, what: &str, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {what}"))?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program that ends early says why on its standard error, which is the better report.
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "{what} failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            if input.is_empty() {
                String::new()
            } else {
                format!("\ninput was:\n{input}")
            }
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
