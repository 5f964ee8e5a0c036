//! Which addresses a feed may lead to. Without this, whoever controls a feed's address, its name
//! or a redirect could have the source fetch from its own network (SSRF).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::error::not_public;

/// A name that leads only to addresses that are not public.
#[derive(Debug)]
pub(super) struct Forbidden {
    pub host: String,
    pub address: IpAddr,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&not_public(&self.host, self.address))
    }
}

impl std::error::Error for Forbidden {}

/// Resolves names by the system and hands on only the addresses that may be used. The client
/// connects to nothing else, so a name that changes between check and use changes nothing.
#[derive(Debug)]
pub(super) struct Guard {
    pub allow_private: bool,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let allowed = allowed(host, found, allow_private)?;
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

fn allowed(
    host: String,
    found: Vec<SocketAddr>,
    allow_private: bool,
) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
    let Some(first) = found.first().map(SocketAddr::ip) else {
        return Err(io::Error::other(format!("the name {host} has no address")).into());
    };
    if allow_private {
        return Ok(found);
    }
    let public: Vec<SocketAddr> = found.into_iter().filter(|a| is_public(a.ip())).collect();
    if public.is_empty() {
        let address = first;
        return Err(Forbidden { host, address }.into());
    }
    Ok(public)
}

/// Whether an address is an ordinary one of the public internet, by the special-purpose address
/// registries (RFC 6890 and its updates).
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = match (a, b, c) {
        // This network, private, loopback, multicast, reserved and broadcast.
        (0 | 10 | 127 | 224.., _, _) => true,
        // Shared address space of carriers.
        (100, 64..=127, _) => true,
        // Link-local, with the metadata services of the clouds.
        (169, 254, _) => true,
        (172, 16..=31, _) | (192, 168, _) => true,
        // Protocol assignments, documentation, 6to4 relays, benchmarks.
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18..=19, _) => true,
        (198, 51, 100) | (203, 0, 113) => true,
        _ => false,
    };
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Forms that carry an IPv4 address lead where that leads.
    let [s0, s1, s2, s3, s4, s5, s6, s7] = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match (s0, s1) {
        (0, 0) if (s2, s3, s4, s5) == (0, 0, 0, 0xffff) => v4(s6, s7),
        // NAT64 (RFC 6052).
        (0x64, 0xff9b) if (s2, s3, s4, s5) == (0, 0, 0, 0) => v4(s6, s7),
        // 6to4.
        (0x2002, _) => v4(s1, s2),
        // Protocol assignments (Teredo among them), documentation.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // Everything else that is global unicast, and nothing that is not: loopback, unspecified,
        // unique local, link-local, site-local, multicast are all outside.
        _ => (s0 & 0xe000) == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn private_addresses_are_told_from_public_ones() {
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "232.1.1.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:192.168.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:a00:1::1",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2001:4860:4860::8888",
            "2604:1380::1",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn only_public_addresses_of_a_name_are_used() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let (private, public) = (address("10.0.0.1"), address("1.1.1.1"));
        let only = |found: Vec<SocketAddr>| allowed("h".into(), found, false);
        assert_eq!(only(vec![private, public]).unwrap(), [public]);
        let error = only(vec![private]).unwrap_err();
        assert!(error.downcast_ref::<Forbidden>().is_some());
        assert!(only(vec![]).is_err());
        let all = allowed("h".into(), vec![private, public], true).unwrap();
        assert_eq!(all, [private, public]);
    }
}
