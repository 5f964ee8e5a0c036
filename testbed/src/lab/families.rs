//! IPv4, IPv6, or both: what addresses a lab's nodes have.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The address families that a lab or a node speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Families {
    /// IPv4 alone: addresses `10.77.0.host`.
    #[default]
    V4,
    /// IPv6 alone: addresses `fd77::host`. The loopback interface still has 127.0.0.1.
    V6,
    /// Both.
    Dual,
}

/// One of a lab's networks, which has the addresses `10.N.0.host` and `fdN::host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Net {
    /// The switch, where there is multicast: 77.
    Switch,
    /// Behind the router that forwards none: 78.
    Beyond,
}

impl Net {
    fn number(self) -> u8 {
        match self {
            Net::Switch => 77,
            Net::Beyond => 78,
        }
    }

    /// `10.77.0.host` or `10.78.0.host`.
    pub(super) fn address4(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number(), 0, host)
    }

    /// `fd77::host` or `fd78::host`, where the digits of the host are the same as in the IPv4
    /// address: 11 is `fd77::11`.
    pub(super) fn address6(self, host: u8) -> Ipv6Addr {
        let net = 0xfd00 | as_digits(self.number());
        Ipv6Addr::new(net, 0, 0, 0, 0, 0, 0, as_digits(host))
    }
}

/// The number whose hexadecimal digits are a host's decimal ones.
fn as_digits(host: u8) -> u16 {
    let host = u16::from(host);
    (host / 100 * 16 + host / 10 % 10) * 16 + host % 10
}

impl Families {
    /// Whether IPv4 is spoken.
    pub fn v4(self) -> bool {
        self != Families::V6
    }

    /// Whether IPv6 is spoken.
    pub fn v6(self) -> bool {
        self != Families::V4
    }

    /// Whether everything that `other` speaks is spoken here.
    pub fn include(self, other: Families) -> bool {
        (self.v4() || !other.v4()) && (self.v6() || !other.v6())
    }

    /// Returns lines of `ip -batch` that give an interface its addresses, usable at once: without
    /// duplicate address detection (RFC 4862, section 5.4), which takes a second or two and is
    /// pointless on a private network.
    pub(super) fn address_lines(self, net: Net, interface: &str, host: u8) -> String {
        let mut lines = String::new();
        if self.v4() {
            lines += &format!("addr add {}/24 dev {interface}\n", net.address4(host));
        }
        if self.v6() {
            // Link-local addresses, which MLD speaks from, would come by themselves, but with that
            // check.
            lines += &format!(
                "link set {interface} addrgenmode none\n\
                 addr add fe80::{:x}/64 dev {interface} nodad\n\
                 addr add {}/64 dev {interface} nodad\n",
                as_digits(host),
                net.address6(host)
            );
        }
        lines
    }

    /// Lines of `ip -batch` for the way of multicast. IPv6 brings its own.
    pub(super) fn route_lines(self, interface: &str) -> String {
        if self.v4() {
            format!("route add 224.0.0.0/4 dev {interface}\n")
        } else {
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_of_a_host_have_the_same_digits() {
        for host in [1, 11, 99, 254] {
            for (net, prefix4, prefix6) in [
                (Net::Switch, "10.77.0.", "fd77::"),
                (Net::Beyond, "10.78.0.", "fd78::"),
            ] {
                let v4 = net.address4(host).to_string();
                let v6 = net.address6(host).to_string();
                assert_eq!(v4.strip_prefix(prefix4), v6.strip_prefix(prefix6));
                assert!(v4.starts_with(prefix4));
            }
        }
    }

    #[test]
    fn a_dual_network_includes_all_and_the_others_only_themselves() {
        use Families::{Dual, V4, V6};
        for (lab, node, fits) in [
            (Dual, V4, true),
            (Dual, V6, true),
            (Dual, Dual, true),
            (V4, V4, true),
            (V4, V6, false),
            (V6, V4, false),
            (V4, Dual, false),
            (V6, Dual, false),
        ] {
            assert_eq!(lab.include(node), fits, "{lab:?} {node:?}");
        }
    }
}
