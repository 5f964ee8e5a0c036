//! Configuration of a relay.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

/// Configuration of a relay. [`Config::default`] suits some thousand gateways.
#[derive(Debug, Clone)]
pub struct Config {
    /// Most tunnels at once. At this number, Queries to other gateways carry the L flag (RFC 7450,
    /// section 5.1.4.4), and their Updates are ignored.
    pub max_gateways: usize,
    /// Most memberships of one tunnel: each wanted or excluded source and each any-source group is
    /// one.
    pub max_groups_per_gateway: usize,
    /// Most memberships of all tunnels together, and so joins on the native side: each source of
    /// each group, even beside an any-source join, and each any-source group.
    pub max_joins: usize,
    /// Discoveries and Requests answered per second and address (IPv6: per /64) on average, with a
    /// burst of twice as many; the limit of Updates is four times as high. Each tunnel has four
    /// Requests a second beside these.
    pub requests_per_second: u32,
    /// Interval at which gateways repeat their reports: the QQIC of Queries.
    pub query_interval: Duration,
    /// Time within which a gateway reports after a Query.
    pub max_response: Duration,
    /// Robustness variable: the QRV of Queries, 1 to 7. A membership survives one lost report less.
    pub robustness: u8,
    /// Queries that carry the gateway's address and port.
    pub gateway_address: GatewayAddress,
    /// Relay address advertised over IPv4; `None` for the address that the Discovery was sent to.
    pub advertise_v4: Option<Ipv4Addr>,
    /// The same over IPv6.
    pub advertise_v6: Option<Ipv6Addr>,
    /// Addresses that are served; all if empty.
    pub allow: Vec<Prefix>,
    /// Addresses that are not served, whatever `allow` contains.
    pub deny: Vec<Prefix>,
    /// Largest outer IP packet in bytes, until a path is known to have a smaller MTU.
    pub mtu: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_gateways: 10_000,
            max_groups_per_gateway: 64,
            max_joins: 4096,
            requests_per_second: 1000,
            query_interval: Duration::from_secs(125),
            // A tunnel has one host behind it: a long delay spreads no load, and a gateway in a
            // kernel waits for a part of it before its first report.
            max_response: Duration::from_secs(1),
            robustness: 2,
            gateway_address: GatewayAddress::Off,
            advertise_v4: None,
            advertise_v6: None,
            allow: Vec::new(),
            deny: Vec::new(),
            mtu: 1500,
        }
    }
}

impl Config {
    /// Whether `ip` is served.
    pub(super) fn serves(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let within = |list: &[Prefix]| list.iter().any(|prefix| prefix.contains(ip));
        (self.allow.is_empty() || within(&self.allow)) && !within(&self.deny)
    }

    /// Returns the lifetime of a membership without another report (RFC 3376, section 8.4).
    pub(super) fn membership_time(&self) -> Duration {
        self.query_interval
            .saturating_mul(u32::from(self.robustness.max(1)))
            .saturating_add(self.max_response)
    }
}

/// Queries that carry the address and port that the gateway's Request came from (G flag, RFC 7450,
/// section 5.1.4.5). A gateway behind a NAT notices by them that its address there has changed, and
/// can tear down the tunnel to the old one.
///
/// The fields are optional in the RFC, and some gateways ignore a Query that has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GatewayAddress {
    /// None.
    #[default]
    Off,
    /// Queries to gateways that answered one; a gateway that left one unanswered gets the next
    /// without.
    UntilUnanswered,
    /// All.
    Always,
}

/// Protections that a relay leaves out, for tests that must notice. All are on by default.
#[cfg(any(test, feature = "fault-injection"))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Whether any response MAC is accepted.
    pub mac_check_off: bool,
    /// Whether gateways with one address share a tunnel, whatever their ports.
    pub nat_by_address: bool,
    /// Whether memberships never expire.
    pub expiry_off: bool,
    /// Whether [`Config::max_gateways`] is ignored.
    pub capacity_off: bool,
    /// Whether a Teardown with any MAC is accepted.
    pub teardown_unchecked: bool,
    /// Whether Queries echo another nonce than the Request's.
    pub nonce_other: bool,
}

/// A block of addresses, such as 192.0.2.0/24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    ip: IpAddr,
    bits: u8,
}

impl Prefix {
    /// Whether `ip` is in it. An IPv4-mapped address counts as the IPv4 address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.ip, ip.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differing = u32::from(a) ^ u32::from(b);
                differing.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differing = u128::from(a) ^ u128::from(b);
                differing.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = "is no address or block of addresses, such as 192.0.2.0/24 or 2001:db8::/32";
        let (ip, bits) = match text.trim().split_once('/') {
            Some((ip, bits)) => (ip, Some(bits)),
            None => (text.trim(), None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wrong.to_owned())?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| wrong.to_owned())?,
            None => most,
        };
        if bits > most {
            return Err(format!("an address has {most} bits, not {bits}"));
        }
        Ok(Self { ip, bits })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

/// Local end of a gateway's messages; those to that gateway leave by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalEndpoint {
    /// Address that the gateway sent to.
    pub ip: IpAddr,
    /// The driver's number of the socket.
    pub socket: u16,
}

/// Returns the one form of a tunnel endpoint, whichever form the socket gives.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        // Without flow label; the scope of a link-local address stays.
        IpAddr::V6(_) => {
            let mut address = address;
            if let SocketAddr::V6(v6) = &mut address {
                v6.set_flowinfo(0);
            }
            address
        }
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
    }
}
