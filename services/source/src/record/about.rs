//! Warnings in the source's self-description: of the address that enrolment links name, and of
//! overload.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flexicast_tokio::source::{Lateness, LoadStatus, Overload};
use jiff::Timestamp;
use store::OverloadRow;

use crate::config::PublicAddress;

/// Returns a warning about the address in enrolment links; none if it can be routed to. Names are
/// not resolved: the result here need not be that at the receivers.
pub fn address_warning(address: Option<&PublicAddress>) -> Option<String> {
    let Some(address) = address else {
        return Some(
            "PUBLIC_ADDRESS is not set: enrolment links name 127.0.0.1, which only receivers on \
             this machine can reach. Set FLEXFEED_PUBLIC_ADDRESS (--public-address) to a name or \
             address by which receivers reach this source"
                .to_owned(),
        );
    };
    let why = match &address.host {
        url::Host::Ipv4(ip) => unroutable(IpAddr::V4(*ip)),
        url::Host::Ipv6(ip) => unroutable(IpAddr::V6(*ip)),
        url::Host::Domain(name) => local_name(name),
    };
    why.map(|why| format!("PUBLIC_ADDRESS is {address}, {why}"))
}

/// Returns the warning of an overload that goes on; its first word is for programs.
pub(super) fn overload_warning(load: &LoadStatus) -> Option<String> {
    let overload = load.overloads.last().filter(|o| o.until_ms.is_none())?;
    let since = i64::try_from(overload.since_ms).unwrap_or(i64::MAX);
    let since = Timestamp::from_millisecond(since).unwrap_or_default();
    let late = overload.late.iter().map(|late| match late {
        Lateness::Engine => "it handles packets and timers late",
        Lateness::Publishing => "updates wait for more than a second before they are sent",
        Lateness::ReceiveQueue => "the kernel drops packets of receivers",
    });
    let late = late.collect::<Vec<_>>().join(", ");
    Some(format!(
        "overloaded: the source cannot keep up since {since:.0}: {late}. Updates may be late; \
         nothing is lost, and receivers are not blamed for it"
    ))
}

/// Returns an overload as the console shows it.
pub(super) fn overload_row(overload: &Overload) -> OverloadRow {
    let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    let late = overload.late.iter().map(|late| match late {
        Lateness::Engine => "engine",
        Lateness::Publishing => "publishing",
        Lateness::ReceiveQueue => "receive-queue",
    });
    OverloadRow {
        since_ms: ms(overload.since_ms),
        until_ms: overload.until_ms.map(ms),
        late: late.map(str::to_owned).collect(),
    }
}

/// Returns why receivers elsewhere cannot use an address.
fn unroutable(ip: IpAddr) -> Option<&'static str> {
    let ip = ip.to_canonical();
    let loopback = "a loopback address: only receivers on this machine can reach it";
    let link = "a link-local address: only receivers on the same link can reach it, if any";
    let private = "a private address: only receivers in the same network can reach it";
    let documentation = "an address for documentation: no receiver can reach it";
    let nowhere = "no address of a host: no receiver can reach it";
    let special = "no ordinary address of the internet: receivers elsewhere cannot reach it";
    match ip {
        _ if ip.is_loopback() => Some(loopback),
        _ if ip.is_unspecified() || ip.is_multicast() => Some(nowhere),
        IpAddr::V4(ip) if ip.is_link_local() => Some(link),
        IpAddr::V4(ip) if ip.is_private() || is_shared(ip) => Some(private),
        IpAddr::V4(ip) if ip.is_documentation() => Some(documentation),
        // This network, and reserved ones up to the broadcast address.
        IpAddr::V4(ip) if matches!(ip.octets(), [0 | 240.., ..]) => Some(nowhere),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(link),
        IpAddr::V6(ip) if ip.is_unique_local() => Some(private),
        IpAddr::V6(ip) if is_documentation(ip) => Some(documentation),
        _ if !feed::fetch::is_public(ip) => Some(special),
        _ => None,
    }
}

/// RFC 6598: between a provider and its customers.
fn is_shared(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    a == 100 && (64..128).contains(&b)
}

/// RFC 3849 and RFC 9637.
fn is_documentation(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    (a == 0x2001 && b == 0xdb8) || (a == 0x3fff && b < 0x1000)
}

/// Suffixes of names that are valid in one network only: RFC 6762 with its appendix G, RFC 8375,
/// ICANN's reservation, and resolvers' inventions.
const ONE_NETWORK: [&str; 10] = [
    "local",
    "internal",
    "localdomain",
    "lan",
    "home",
    "home.arpa",
    "corp",
    "intranet",
    "private",
    "workgroup",
];

/// Returns why receivers elsewhere cannot use a name.
fn local_name(name: &str) -> Option<&'static str> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let is = |end: &str| name == end || name.ends_with(&format!(".{end}"));
    if is("localhost") {
        return Some("this machine's name for itself: only receivers on it can reach it");
    }
    if ONE_NETWORK.iter().any(|end| is(end)) || !name.contains('.') {
        return Some(
            "a name that means something in one network only: receivers elsewhere do not find it",
        );
    }
    if is("onion") {
        return Some("a name within Tor, which carries no UDP: no receiver can reach it");
    }
    if is("example")
        || is("example.com")
        || is("example.net")
        || is("example.org")
        || is("test")
        || is("invalid")
    {
        return Some("a name for documentation: no receiver can reach it");
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn warned(host: &str) -> String {
        let address = PublicAddress {
            host: url::Host::parse(host).unwrap(),
            port: Some(4433),
        };
        address_warning(Some(&address)).unwrap_or_default()
    }

    #[test]
    fn an_overload_is_a_warning_while_it_goes_on() {
        let overload = Overload {
            since_ms: 1_500,
            until_ms: None,
            late: vec![Lateness::Engine, Lateness::ReceiveQueue],
        };
        let mut load = LoadStatus {
            overloads: vec![overload],
            ..LoadStatus::default()
        };
        let warning = overload_warning(&load).unwrap();
        let begins = "overloaded: the source cannot keep up since 1970-01-01T00:00:01Z: it handles \
                      packets and timers late, the kernel drops packets of receivers.";
        assert!(warning.starts_with(begins), "{warning}");
        load.overloads[0].until_ms = Some(2_000);
        assert_eq!(overload_warning(&load), None);
        assert_eq!(overload_warning(&LoadStatus::default()), None);
    }

    #[test]
    fn addresses_that_receivers_cannot_reach_are_warned_of() {
        assert!(address_warning(None).unwrap().contains("not set"));
        let cases = [
            ("127.0.0.1", "loopback"),
            ("[::1]", "loopback"),
            ("[::ffff:127.0.0.1]", "loopback"),
            ("localhost", "this machine's name"),
            ("0.0.0.0", "no address of a host"),
            ("[::]", "no address of a host"),
            ("255.255.255.255", "no address of a host"),
            ("232.1.2.3", "no address of a host"),
            ("169.254.7.8", "link-local"),
            ("[fe80::1]", "link-local"),
            ("10.1.2.3", "private"),
            ("172.20.0.2", "private"),
            ("192.168.1.2", "private"),
            ("100.64.0.1", "private"),
            ("[fd00::1]", "private"),
            ("192.0.2.1", "documentation"),
            ("198.51.100.7", "documentation"),
            ("203.0.113.9", "documentation"),
            ("[2001:db8::1]", "documentation"),
            ("[3fff:1::]", "documentation"),
            ("feeds.example.org", "documentation"),
            ("0.1.2.3", "no address of a host"),
            ("240.0.0.1", "no address of a host"),
            ("192.0.0.1", "no ordinary address"),
            ("198.18.0.1", "no ordinary address"),
            ("198.19.255.254", "no ordinary address"),
            ("192.88.99.1", "no ordinary address"),
            ("[fec0::1]", "no ordinary address"),
            ("[100::1]", "no ordinary address"),
            ("[64:ff9b::10.0.0.1]", "no ordinary address"),
            ("[64:ff9b:1::1]", "no ordinary address"),
            ("[2001:0:1::1]", "no ordinary address"),
            ("[2002:a00:1::1]", "no ordinary address"),
            ("source", "one network only"),
            ("nas.local", "one network only"),
            ("source.localdomain", "one network only"),
            ("nas.home", "one network only"),
            ("feeds.corp.", "one network only"),
            ("feeds.onion", "Tor"),
        ];
        for (host, what) in cases {
            assert!(warned(host).contains(what), "{host}: {}", warned(host));
        }
        for host in [
            "8.8.8.8",
            "[2a00::1]",
            "feeds.flexfeed.dev",
            "100.63.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "[64:ff9b::8.8.8.8]",
            "[2002:808:808::1]",
            "feeds.homes",
        ] {
            assert_eq!(warned(host), "", "{host}");
        }
    }
}
