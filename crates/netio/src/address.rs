//! Local addresses of routes, and reachability of addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use crate::error::context;

/// Arbitrary port: connecting a UDP socket sends nothing.
const UNUSED_PORT: u16 = 9;

/// Returns the local address that the kernel would send from towards `to` (a host or a multicast
/// group).
///
/// Nothing is sent; the kernel only looks up its routes. For an IPv6 group it takes the first
/// interface with IPv6 multicast, unless a route says otherwise.
///
/// # Errors
/// There is no route towards `to`, or it is link-local, which leaves the interface open; the text
/// says what to do.
pub fn route_source(to: IpAddr) -> io::Result<IpAddr> {
    let to = to.to_canonical();
    let look_up = || {
        let any: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((to, UNUSED_PORT))?;
        socket.local_addr()
    };
    let (kind, text) = match look_up() {
        Ok(local) => return Ok(local.ip().to_canonical()),
        Err(error) => match error.raw_os_error() {
            // The last is the error for a link-local address, which needs an interface.
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL) => (
                error.kind(),
                format!(
                    "this machine has no route towards {to}; name the local address to use, or add \
                     a route"
                ),
            ),
            Some(libc::EADDRNOTAVAIL) => (
                error.kind(),
                format!(
                    "this machine's route towards {to} leads over an interface without an address \
                     to use; name the local address to use, or add a route over another interface"
                ),
            ),
            _ => {
                return Err(context(
                    error,
                    format_args!("cannot find the local address towards {to}"),
                ));
            }
        },
    };
    Err(io::Error::new(kind, text))
}

/// Whether hosts elsewhere on the Internet can reach `ip`, judged by the address alone.
///
/// False for loopback, private (RFC 1918, RFC 4193), link-local, carrier-grade NAT (RFC 6598),
/// documentation, benchmarking, multicast, reserved and unspecified addresses.
pub fn is_routable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_routable_v4(ip),
        IpAddr::V6(ip) => is_routable_v6(ip),
    }
}

fn is_routable_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let this_network = a == 0;
    let carrier_nat = a == 100 && (64..128).contains(&b);
    let protocol_assignments = (a, b, c) == (192, 0, 0);
    let benchmarking = a == 198 && (b == 18 || b == 19);
    let reserved = a >= 240;
    !(this_network
        || ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        || carrier_nat
        || protocol_assignments
        || benchmarking
        || reserved)
}

fn is_routable_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, ..] = ip.segments();
    // Global unicast is 2000::/3 (RFC 4291); the well-known NAT64 prefix leads to IPv4 hosts.
    let global = a & 0xe000 == 0x2000;
    let nat64 = (a, b) == (0x64, 0xff9b) && ip.segments().get(2..6) == Some(&[0; 4]);
    let documentation = (a, b) == (0x2001, 0xdb8) || (a == 0x3fff && b < 0x1000);
    let benchmarking = (a, b, c) == (0x2001, 2, 0);
    let orchid = a == 0x2001 && (b & 0xfff0 == 0x10 || b & 0xfff0 == 0x20);
    (global || nat64) && !(documentation || benchmarking || orchid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn unreachable_addresses_are_recognised() {
        for ip in [
            "127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fd00::1",
            "fc00::1",
            "ff02::1",
            "2001:db8::1",
            "3fff::1",
            "2001:2::1",
            "2001:10::1",
            "::ffff:10.0.0.1",
            "64:ff9b:1::1",
        ] {
            assert!(!is_routable(ip.parse().unwrap()), "{ip}");
        }
        for ip in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "3fff:1000::1",
            "64:ff9b::102:304",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_routable(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn the_route_to_this_machine_is_loopback() {
        for text in ["127.0.0.1", "::ffff:127.0.0.1"] {
            let ip = route_source(text.parse().unwrap()).unwrap();
            assert_eq!(ip, IpAddr::from(Ipv4Addr::LOCALHOST));
        }
    }

    #[test]
    fn a_link_local_address_alone_has_no_route() {
        let error = route_source("fe80::1234".parse().unwrap()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no route towards fe80::1234"), "{text}");
    }
}
