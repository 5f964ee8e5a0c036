//! Protection against SSRF: the addresses that a feed may lead to. Without it, the owner of a
//! feed's address, name or redirect could make the source fetch from its own network.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::error::not_public;

/// Address at which Azure serves settings to its machines: the only such address of a cloud that
/// looks public.
const AZURE_PLATFORM: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Unassigned address for documentation (RFC 5737, RFC 3849).
const NOBODYS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NOBODYS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Error for a name that leads only to addresses that are not public.
#[derive(Debug)]
pub(super) struct ForbiddenAddress {
    pub host: String,
    pub address: IpAddr,
}

impl fmt::Display for ForbiddenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&not_public(&self.host, self.address))
    }
}

impl std::error::Error for ForbiddenAddress {}

/// Name resolution: addresses of a name, with any port.
pub type Lookup = fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Resolves a name by the system's resolver.
#[must_use]
pub fn system_lookup(
    host: String,
) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
    Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) })
}

/// Decision which addresses may be connected to. As the client's resolver it returns only those.
/// The client connects to the result without another lookup, so the address that was checked is the
/// one that is used, and a name that changes in between has no effect.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    lookup: Lookup,
    allowed: fn(IpAddr) -> bool,
}

impl Guard {
    /// Returns a guard that resolves by the system, with or without private addresses.
    pub(super) fn system(allow_private: bool) -> Self {
        Self {
            lookup: system_lookup,
            allowed: if allow_private {
                |_| true
            } else {
                |address| is_public(address) && !is_own(address)
            },
        }
    }

    #[cfg(test)]
    pub(super) fn made_up(lookup: Lookup, allowed: fn(IpAddr) -> bool) -> Self {
        Self { lookup, allowed }
    }

    pub(super) fn allows(&self, address: IpAddr) -> bool {
        (self.allowed)(address)
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found = (guard.lookup)(host.clone()).await?;
            let allowed = allowed(host, found, guard.allowed)?;
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

impl Guard {
    /// Returns the forbidden address of a name that resolves, but to no allowed address.
    pub(super) async fn refuses(&self, host: &str, lookup: Lookup) -> Option<IpAddr> {
        let found = lookup(host.to_owned()).await.ok()?;
        let first = found.first()?.ip();
        let is_closed = !found.iter().any(|address| self.allows(address.ip()));
        is_closed.then_some(first)
    }
}

fn allowed(
    host: String,
    found: Vec<SocketAddr>,
    is_allowed: fn(IpAddr) -> bool,
) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
    let Some(first) = found.first().map(SocketAddr::ip) else {
        return Err(io::Error::other(format!("the name {host} has no address")).into());
    };
    let allowed = found.into_iter().filter(|a| is_allowed(a.ip()));
    let allowed: Vec<SocketAddr> = allowed.collect();
    if allowed.is_empty() {
        let address = first;
        return Err(ForbiddenAddress { host, address }.into());
    }
    Ok(allowed)
}

/// Whether an address is this machine's own: packets to it do not leave the machine, and bypass the
/// firewall that excludes others. Only an own address can be sent from.
pub(super) fn is_own(address: IpAddr) -> bool {
    let can_send_from = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    // On a system that allows any source address, this test is meaningless.
    let nobodys = match address {
        IpAddr::V4(_) => IpAddr::V4(NOBODYS_V4),
        IpAddr::V6(_) => IpAddr::V6(NOBODYS_V6),
    };
    can_send_from(address) && !can_send_from(nobodys)
}

/// Whether an address is an ordinary one of the public internet, by the special-purpose address
/// registries (RFC 6890 and its updates).
pub fn is_public(address: IpAddr) -> bool {
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
    !special && address != AZURE_PLATFORM
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Forms that carry an IPv4 address lead to that address.
    let [s0, s1, s2, s3, s4, s5, s6, s7] = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    // ISATAP (RFC 5214) carries the address in its interface identifier, under any prefix.
    if (s4 & 0xfcff, s5) == (0, 0x5efe) && !v4(s6, s7) {
        return false;
    }
    match (s0, s1) {
        (0, 0) if (s2, s3, s4, s5) == (0, 0, 0, 0xffff) => v4(s6, s7),
        // NAT64 (RFC 6052).
        (0x64, 0xff9b) if (s2, s3, s4, s5) == (0, 0, 0, 0) => v4(s6, s7),
        // 6to4.
        (0x2002, _) => v4(s1, s2),
        // Protocol assignments (Teredo among them), documentation.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // Global unicast and nothing else: loopback, unspecified, unique local, link-local,
        // site-local and multicast are all outside.
        _ => (s0 & 0xe000) == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[test]
    fn own_addresses_are_recognised() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        for other in [
            "192.0.2.1",
            "1.1.1.1",
            "2001:db8::1",
            "2606:4700:4700::1111",
        ] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
        // Even an address that looks public.
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let refused = allowed("own".into(), vec![own], |address| !is_own(address));
        assert!(refused.is_err());
    }

    #[test]
    fn private_addresses_are_recognised() {
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
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
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "2604:1380::5efe:a00:1",
            "2604:1380::200:5efe:c0a8:101",
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
            "2604:1380::200:5efe:808:808",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn only_public_addresses_of_a_name_are_used() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let (private, public) = (address("10.0.0.1"), address("1.1.1.1"));
        let only = |found: Vec<SocketAddr>| allowed("h".into(), found, is_public);
        assert_eq!(only(vec![private, public]).unwrap(), [public]);
        let error = only(vec![private]).unwrap_err();
        assert!(error.downcast_ref::<ForbiddenAddress>().is_some());
        assert!(only(vec![]).is_err());
        let all = allowed("h".into(), vec![private, public], |_| true).unwrap();
        assert_eq!(all, [private, public]);
    }

    /// Answers every connection with an empty page, and counts the connections.
    async fn server(address: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let page = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                let _ = stream.write_all(page).await;
            }
        });
        (address, count)
    }

    #[tokio::test]
    async fn a_rebound_name_connects_to_the_checked_address_only() {
        // 127.0.0.2 represents the public network, 127.0.0.1 the private one.
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let guard = Guard {
            allowed: |address| address == Ipv4Addr::new(127, 0, 0, 2),
            lookup: |_| {
                let last = if LOOKUPS.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                    2
                } else {
                    1
                };
                Box::pin(async move { Ok(vec![SocketAddr::from(([127, 0, 0, last], 0))]) })
            },
        };
        let (public, asked) = server("127.0.0.2:0".parse().unwrap()).await;
        let (_, reached) = server(SocketAddr::from(([127, 0, 0, 1], public.port()))).await;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .no_proxy()
            .dns_resolver(Arc::new(guard))
            .build()
            .unwrap();
        let url = format!("http://rebind.test:{}/", public.port());
        for round in 0..10 {
            let answer = client.get(&url).send().await;
            assert_eq!(answer.is_ok(), round % 2 == 0, "{answer:?}");
        }
        assert_eq!(
            LOOKUPS.load(Ordering::SeqCst),
            10,
            "one for each connection"
        );
        assert_eq!(asked.load(Ordering::SeqCst), 5);
        assert_eq!(reached.load(Ordering::SeqCst), 0);
    }
}
