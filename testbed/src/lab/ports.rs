//! Treatment of traffic towards a node, per switch port.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Treatment of multicast towards a port's node. Unicast is never affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Multicast {
    /// Forwards what the node has joined.
    #[default]
    Open,
    /// Drops every multicast datagram of both address families; IGMP, MLD and neighbour discovery
    /// still pass, so a join looks as if it had worked.
    Cut,
    /// Drops each multicast datagram with this probability, in percent.
    Loss(u8),
}

/// The state of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Port {
    /// Effect on multicast towards the node.
    pub multicast: Multicast,
    /// Whether the cable is pulled: nothing passes in either direction.
    pub unplugged: bool,
}

/// The nftables input that puts all ports, by interface name, into their states, atomically.
pub(super) fn ruleset(ports: &BTreeMap<String, Port>) -> String {
    // Declaring before deleting makes the deletion work whether or not the table was there.
    let mut text = String::from(
        "table bridge flexfeed {}\ndelete table bridge flexfeed\n\
         table bridge flexfeed {\n chain forward {\n  \
         type filter hook forward priority 0; policy accept;\n",
    );
    for (name, port) in ports {
        if port.unplugged {
            let _ = writeln!(text, "  iifname \"{name}\" counter drop");
            let _ = writeln!(text, "  oifname \"{name}\" counter drop");
        }
        let chance = match port.multicast {
            Multicast::Open => continue,
            Multicast::Cut => String::new(),
            Multicast::Loss(percent) => format!("numgen random mod 100 < {} ", percent.min(100)),
        };
        for group in [
            "ether type ip ip daddr 224.0.0.0/4 ip protocol != igmp",
            // Not `ip6 nexthdr`: MLD comes behind a hop-by-hop header.
            "ether type ip6 ip6 daddr ff00::/8 meta l4proto != ipv6-icmp",
        ] {
            let _ = writeln!(text, "  oifname \"{name}\" {group} {chance}counter drop");
        }
    }
    text.push_str(" }\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_drop_have_rules() {
        let mut ports = BTreeMap::new();
        ports.insert("p-a".to_owned(), Port::default());
        ports.insert(
            "p-b".to_owned(),
            Port {
                multicast: Multicast::Loss(10),
                unplugged: false,
            },
        );
        let text = ruleset(&ports);
        assert!(!text.contains("p-a"));
        for family in ["ip daddr 224.0.0.0/4", "ip6 daddr ff00::/8"] {
            let rule = text.lines().find(|line| line.contains(family)).unwrap();
            assert!(rule.contains("numgen random mod 100 < 10 counter drop"));
        }
    }
}
