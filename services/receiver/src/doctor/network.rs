//! The machine's multicast memberships, and counters of packets received and dropped.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use super::report::Verdict;

/// Index of the multicast frames among the numbers of `/proc/net/dev`.
const MULTICAST_COLUMN: usize = 7;

/// Number of packets from which on they are not queries of routers, but heartbeats of a flow.
const SEVERAL: u64 = 3;

/// Group that this machine has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) device: String,
    pub(super) group: IpAddr,
    /// Source of the packets; `None` for any.
    pub(super) source: Option<IpAddr>,
}

impl std::fmt::Display for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.source {
            Some(source) => write!(f, "({source}, {}) on {}", self.group, self.device),
            None => write!(f, "(*, {}) on {}", self.group, self.device),
        }
    }
}

/// Counters of packets received and dropped since the machine started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Packets from another interface than that of the route to their source.
    reverse_path: u64,
    /// Multicast packets delivered locally, of both families.
    taken: u64,
    /// Datagrams dropped because of full sockets.
    no_room: u64,
    /// Multicast frames by interface.
    frames: BTreeMap<String, u64>,
}

/// Line for the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) what: String,
    pub(super) advice: String,
}

/// Machine, by its files.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    root: PathBuf,
}

impl Machine {
    pub(super) fn this() -> Self {
        Self { root: "/".into() }
    }

    fn read(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    /// Returns the groups beyond those that every machine has joined.
    pub(super) fn memberships(&self) -> Vec<Membership> {
        let mut found = Vec::new();
        for line in self.read("proc/net/mcfilter").lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, device, group, source, include, _] = words[..]
                && let (Some(group), Some(source)) = (v4_of_hex(group), v4_of_hex(source))
                && include != "0"
            {
                found.push(of(device, group.into(), Some(source.into())));
            }
        }
        for line in self.read("proc/net/mcfilter6").lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, device, group, source, include, _] = words[..]
                && let (Some(group), Some(source)) = (v6_of_hex(group), v6_of_hex(source))
                && include != "0"
            {
                found.push(of(device, group.into(), Some(source.into())));
            }
        }
        let known = |device: &str, group: IpAddr, found: &[Membership]| {
            found.iter().any(|m| m.device == device && m.group == group)
        };
        let mut device = String::new();
        for line in self.read("proc/net/igmp").lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if line.starts_with(char::is_whitespace) {
                // In the byte order of the machine, here little-endian.
                let group = words
                    .first()
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok());
                let group = group.map(|bits| IpAddr::from(Ipv4Addr::from(bits.to_ne_bytes())));
                if let Some(group) = group.filter(|group| !known(&device, *group, &found)) {
                    found.push(of(&device, group, None));
                }
            } else if let Some(name) = words.get(1) {
                name.trim_end_matches(':').clone_into(&mut device);
            }
        }
        for line in self.read("proc/net/igmp6").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, device, group, ..] = words[..]
                && let Some(group) = v6_of_hex(group).map(IpAddr::from)
                && !known(device, group, &found)
            {
                found.push(of(device, group, None));
            }
        }
        found.retain(|membership| is_beyond_the_link(membership.group));
        found
    }

    pub(super) fn counters(&self) -> Counters {
        let netstat = self.read("proc/net/netstat");
        let snmp = self.read("proc/net/snmp");
        let snmp6 = self.read("proc/net/snmp6");
        let six = |name: &str| {
            let line = snmp6
                .lines()
                .find(|line| line.split_whitespace().next() == Some(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            number.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let devices = self.read("proc/net/dev");
        let frames = devices.lines().filter_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            let frames = numbers.split_whitespace().nth(MULTICAST_COLUMN)?;
            Some((name.trim().to_owned(), frames.parse().ok()?))
        });
        Counters {
            reverse_path: column(&netstat, "TcpExt:", "IPReversePathFilter"),
            taken: column(&netstat, "IpExt:", "InMcastPkts") + six("Ip6InMcastPkts"),
            no_room: column(&snmp, "Udp:", "RcvbufErrors") + six("Udp6RcvbufErrors"),
            frames: frames.collect(),
        }
    }

    /// Explains missing packets of joined groups by two readings of the counters.
    pub(super) fn explain(
        &self,
        joined: &[Membership],
        before: &Counters,
        after: &Counters,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut devices: Vec<&str> = joined.iter().map(|m| m.device.as_str()).collect();
        devices.sort_unstable();
        devices.dedup();
        for device in &devices {
            findings.extend(self.unfit(device));
            findings.extend(self.old_igmp(device, joined));
        }
        if after.reverse_path > before.reverse_path {
            findings.extend(self.reverse_path(&devices, after.reverse_path - before.reverse_path));
        }
        if after.no_room > before.no_room {
            findings.push(Finding {
                verdict: Verdict::Warn,
                what: format!(
                    "{} datagrams were dropped because of full sockets",
                    after.no_room - before.no_room
                ),
                advice: "raise net.core.rmem_max, or reduce the load of this machine".into(),
            });
        }
        if findings.is_empty() {
            findings.extend(devices.iter().map(|device| silence(device, before, after)));
        }
        findings
    }

    /// Reports an interface without multicast.
    fn unfit(&self, device: &str) -> Option<Finding> {
        let flags = self.read(format!("sys/class/net/{device}/flags"));
        let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
        let (what, advice) = match flags {
            _ if flags & 0x1 == 0 => ("is down", format!("ip link set {device} up")),
            _ if flags & 0x8 != 0 => (
                "is the loopback interface, which has only this machine's own multicast",
                "name an address of the right interface with --interface".into(),
            ),
            _ if flags & 0x1000 == 0 => (
                "does not do multicast",
                format!(
                    "name another interface with --interface, or: ip link set {device} multicast on"
                ),
            ),
            _ => return None,
        };
        Some(Finding {
            verdict: Verdict::Warn,
            what: format!("groups are joined on {device}, which {what}"),
            advice,
        })
    }

    /// Reports a network without IGMPv3, which source-specific groups need.
    fn old_igmp(&self, device: &str, joined: &[Membership]) -> Option<Finding> {
        let specific = joined
            .iter()
            .any(|m| m.device == device && m.group.is_ipv4() && m.source.is_some());
        if !specific {
            return None;
        }
        let forced = |of: &str| {
            let path = format!("proc/sys/net/ipv4/conf/{of}/force_igmp_version");
            self.read(path).trim().parse::<u32>().unwrap_or(0)
        };
        if let Some(version @ 1..=2) = [forced("all"), forced(device)].into_iter().find(|v| *v > 0)
        {
            return Some(Finding {
                verdict: Verdict::Warn,
                what: format!(
                    "{device} is forced to IGMPv{version}, which has no source-specific joins"
                ),
                advice: format!(
                    "sysctl -w net.ipv4.conf.all.force_igmp_version=0 \
                     net.ipv4.conf.{device}.force_igmp_version=0"
                ),
            });
        }
        let igmp = self.read("proc/net/igmp");
        let line = igmp.lines().find(|line| {
            line.split_whitespace()
                .nth(1)
                .is_some_and(|name| name.trim_end_matches(':') == device)
        })?;
        let version = line
            .split_whitespace()
            .last()
            .filter(|word| ["V1", "V2"].contains(word))?;
        Some(Finding {
            verdict: Verdict::Warn,
            what: format!(
                "the network at {device} uses IGMP{}, which has no source-specific joins",
                version.to_ascii_lowercase()
            ),
            advice: "set the querier there (a router or switch) to IGMPv3".into(),
        })
    }

    fn reverse_path(&self, devices: &[&str], dropped: u64) -> Option<Finding> {
        let setting = |of: &str| {
            let path = format!("proc/sys/net/ipv4/conf/{of}/rp_filter");
            self.read(path).trim().parse::<u32>().unwrap_or(0)
        };
        let strict = devices
            .iter()
            .find(|device| setting("all").max(setting(device)) == 1);
        let device = strict.or(devices.first())?;
        Some(Finding {
            verdict: Verdict::Warn,
            what: format!(
                "{dropped} packets came in where this machine's route to their source does not \
                 lead, and were dropped (rp_filter)"
            ),
            advice: format!(
                "route the source's address by {device} (ip route add SOURCE/32 dev {device}), or \
                 be less strict: sysctl -w net.ipv4.conf.all.rp_filter=2 \
                 net.ipv4.conf.{device}.rp_filter=2"
            ),
        })
    }
}

/// Explains missing packets by how far packets came.
fn silence(device: &str, before: &Counters, after: &Counters) -> Finding {
    let grown = |counters: &Counters| counters.frames.get(device).copied().unwrap_or(0);
    let frames = grown(after).saturating_sub(grown(before));
    let taken = after.taken.saturating_sub(before.taken);
    let (what, advice) = match (frames, taken) {
        // The counters precede the firewall's decision.
        (_, SEVERAL..) => (
            format!("{taken} multicast packets came in, but the receiver got none of the flow"),
            "a firewall here drops it: see 'nft list ruleset' or 'iptables -S INPUT', and allow \
             UDP to the group's address",
        ),
        (1.., _) => (
            format!("multicast arrives at {device} ({frames} frames), but none of this flow"),
            "the network has not built the way from the source yet, or a firewall drops it early: \
             see 'nft list ruleset', and try again in a minute",
        ),
        (0, _) => (
            format!("no multicast at all arrives at {device}"),
            "the network does not forward it here: ask its operator for multicast routing from \
             the source (PIM-SSM) and an IGMP/MLD querier; Wi-Fi, VPNs, clouds and container \
             networks often drop it. Updates arrive by replication or unicast meanwhile",
        ),
    };
    Finding {
        verdict: Verdict::Warn,
        what,
        advice: advice.into(),
    }
}

fn of(device: &str, group: IpAddr, source: Option<IpAddr>) -> Membership {
    Membership {
        device: device.to_owned(),
        group,
        source,
    }
}

fn is_beyond_the_link(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.is_multicast() && group.octets()[..3] != [224, 0, 0],
        // Scopes of interface and link, except for source-specific groups there.
        IpAddr::V6(group) => {
            let [first, second, ..] = group.octets();
            first == 0xff && (second & 0x0f > 2 || second & 0xf0 == 0x30)
        }
    }
}

fn v4_of_hex(text: &str) -> Option<Ipv4Addr> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16)
        .ok()
        .map(Ipv4Addr::from)
}

fn v6_of_hex(text: &str) -> Option<Ipv6Addr> {
    (text.len() == 32).then_some(())?;
    u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from)
}

/// Returns a number of a table whose titles and numbers are on two lines that begin with `table`.
fn column(text: &str, table: &str, title: &str) -> u64 {
    let mut lines = text
        .lines()
        .filter(|line| line.split_whitespace().next() == Some(table));
    let (Some(titles), Some(numbers)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let mut both = titles.split_whitespace().zip(numbers.split_whitespace());
    let number = both.find(|(known, _)| *known == title);
    number
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
