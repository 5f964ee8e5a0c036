//! Origin of a request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::request::Parts;
use ipnet::IpNet;
use service::places::Connection;

/// As proxies say it.
const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The address of the browser or program, as far as that can be known.
    pub ip: IpAddr,
    /// A trusted proxy says that the request came by https.
    pub by_https: bool,
}

impl Client {
    /// Of a request that arrived on a connection of the server.
    #[must_use]
    pub fn of(parts: &Parts, trusted: &[IpNet]) -> Self {
        let connection = parts.extensions.get::<Arc<Connection>>();
        let peer = connection.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |c| c.address());
        Self::behind(peer.to_canonical(), &parts.headers, trusted)
    }

    fn behind(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> Self {
        let is_trusted = |ip: &IpAddr| trusted.iter().any(|net| net.contains(ip));
        if !is_trusted(&peer) {
            return Self {
                ip: peer,
                by_https: false,
            };
        }
        // Each proxy appends its peer: the last entry that is not one of ours counts.
        let lines = headers.get_all(FORWARDED_FOR).iter();
        let named: Vec<&str> = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .collect();
        let mut ip = peer;
        for text in named.into_iter().rev() {
            let Some(named) = address(text) else { break };
            ip = named.to_canonical();
            if !is_trusted(&ip) {
                break;
            }
        }
        let proto = headers.get_all(FORWARDED_PROTO).iter().next_back();
        let proto = proto.and_then(|proto| proto.to_str().ok());
        let nearest = proto.and_then(|proto| proto.rsplit(',').next());
        Self {
            ip,
            by_https: nearest.is_some_and(|proto| proto.trim().eq_ignore_ascii_case("https")),
        }
    }

    /// Addresses that one client can have: of IPv6, a network has 2^64.
    #[must_use]
    pub fn group(&self) -> IpAddr {
        match self.ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
        }
    }
}

/// An address, perhaps with a port, as some proxies write it.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    text.parse::<std::net::SocketAddr>()
        .map(|address| address.ip())
        .ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn seen(peer: &str, lines: &[&str], proto: Option<&str>) -> (String, bool) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        if let Some(proto) = proto {
            headers.insert(FORWARDED_PROTO, proto.parse().unwrap());
        }
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        let client = Client::behind(peer.parse().unwrap(), &headers, &trusted);
        (client.ip.to_string(), client.by_https)
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let of = |peer, lines: &[&str]| seen(peer, lines, None).0;
        assert_eq!(of("192.0.2.1", &["203.0.113.9"]), "192.0.2.1");
        assert_eq!(of("10.1.1.1", &["203.0.113.9"]), "203.0.113.9");
        assert_eq!(of("10.1.1.1", &[]), "10.1.1.1");
        // Entries of the client itself come before those of the proxy.
        assert_eq!(of("10.1.1.1", &["127.0.0.1, 203.0.113.9"]), "203.0.113.9");
        assert_eq!(
            of("10.1.1.1", &["1.1.1.1", "203.0.113.9, 10.2.2.2"]),
            "203.0.113.9"
        );
        assert_eq!(of("10.1.1.1", &["203.0.113.9:5000"]), "203.0.113.9");
        assert_eq!(of("10.1.1.1", &["nonsense"]), "10.1.1.1");
        assert_eq!(
            seen("10.1.1.1", &[], Some("https")),
            ("10.1.1.1".into(), true)
        );
        assert!(!seen("10.1.1.1", &[], Some("https, http")).1);
        assert!(!seen("192.0.2.1", &[], Some("https")).1);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let group = |ip: &str| {
            let ip = ip.parse().unwrap();
            Client {
                ip,
                by_https: false,
            }
            .group()
            .to_string()
        };
        assert_eq!(group("2001:db8:1:2:3::4"), "2001:db8:1:2::");
        assert_eq!(group("192.0.2.1"), "192.0.2.1");
    }
}
