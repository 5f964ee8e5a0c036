//! Multicast groups, and the addresses that flows are sent from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Groups that routers take to be source-specific (RFC 4607): 232.0.0.0/8 and ff3x::/32.
const SSM_FIRST_OCTET: u8 = 232;
const SSM_FIRST_HEXTET: u16 = 0xff30;

/// Form of a list of groups.
const FORM: &str = "write an IPv4 multicast address and a port, an IPv6 one in brackets, or one of \
                    each separated by a comma, such as 232.70.70.1:4434,[ff3e::4646:1]:4434; '' is \
                    for no multicast";

/// Multicast groups of a flow: none, or one of IPv4, of IPv6, or of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups(pub(super) Vec<SocketAddr>);

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, group) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{group}")?;
        }
        Ok(())
    }
}

impl Groups {
    /// Group and port of each.
    pub fn all(&self) -> &[SocketAddr] {
        &self.0
    }

    /// For the `number`th further channel: the same with the last part of each address higher by
    /// that number.
    ///
    /// # Errors
    /// There is none so much higher.
    pub fn following(&self, number: u8) -> Result<Groups, String> {
        let higher = |group: &SocketAddr| {
            let ip = match group.ip() {
                IpAddr::V4(ip) => {
                    let [a, b, c, d] = ip.octets();
                    d.checked_add(number)
                        .map(|d| IpAddr::from(Ipv4Addr::new(a, b, c, d)))
                }
                IpAddr::V6(ip) => {
                    let [first @ .., last] = ip.segments();
                    let [a, b, c, d, e, f, g] = first;
                    last.checked_add(number.into())
                        .map(|h| IpAddr::from(Ipv6Addr::new(a, b, c, d, e, f, g, h)))
                }
            };
            ip.map(|ip| SocketAddr::new(ip, group.port()))
                .ok_or_else(|| format!("there is no group {number} after {}", group.ip()))
        };
        self.0
            .iter()
            .map(higher)
            .collect::<Result<_, _>>()
            .map(Groups)
    }

    /// Returns warnings about groups that work in few networks.
    pub(super) fn doubts(&self, asm: bool) -> Vec<String> {
        let doubt = |group: &SocketAddr| {
            let ip = group.ip();
            let (range, other) = match ip {
                IpAddr::V4(_) => ("232.0.0.0/8", "239.0.0.0/8"),
                IpAddr::V6(_) => ("ff3x::/32", "ff15::/16"),
            };
            match (asm, is_ssm(ip)) {
                (false, false) => Some(format!(
                    "the group {ip} is outside {range}: many routers forward (S,G) joins only in \
                     that range; choose a group from it, or give --asm"
                )),
                (true, true) => Some(format!(
                    "the group {ip} is in {range}, where routers do not forward (*,G) joins: leave \
                     --asm out, or choose a group outside, for example from {other}"
                )),
                _ => None,
            }
        };
        self.0.iter().filter_map(doubt).collect()
    }
}

fn is_ssm(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] == SSM_FIRST_OCTET,
        IpAddr::V6(ip) => {
            let [first, second, ..] = ip.segments();
            first & 0xfff0 == SSM_FIRST_HEXTET && second == 0
        }
    }
}

/// Groups as they are written: a list with commas, empty for none.
///
/// # Errors
/// A flow cannot have them.
pub fn groups(text: &str) -> Result<Groups, String> {
    let mut groups = Vec::new();
    if text.trim().is_empty() {
        return Ok(Groups(groups));
    }
    for part in text.split(',') {
        let group = group(part.trim())?;
        if groups
            .iter()
            .any(|known: &SocketAddr| known.is_ipv4() == group.is_ipv4())
        {
            return Err("give at most one IPv4 and one IPv6 group: a flow needs no second".into());
        }
        groups.push(group);
    }
    Ok(Groups(groups))
}

fn group(text: &str) -> Result<SocketAddr, String> {
    let group: SocketAddr = text.parse().map_err(|_| FORM.to_owned())?;
    let ip = group.ip();
    if !ip.is_multicast() {
        return Err(format!(
            "{ip} is not a multicast address: those are 224.0.0.0 to 239.255.255.255, for one \
             source 232.0.0.0/8, and ff00::/8, for one source ff3e::/32"
        ));
    }
    match ip {
        IpAddr::V4(ip) if matches!(ip.octets(), [224, 0, 0, _]) => {
            return Err(format!(
                "{ip} is reserved for protocols on the local link and never forwarded; choose one \
                 from 232.0.0.0/8"
            ));
        }
        // Scopes 0 to 2: reserved, this interface, this link.
        IpAddr::V6(ip) if matches!(ip.segments()[0] & 0xf, 0..=2 | 0xf) => {
            return Err(format!(
                "{ip} has a scope that is never forwarded; choose one from ff3e::/32 (global) or \
                 ff35::/32 (site)"
            ));
        }
        _ => {}
    }
    if group.port() == 0 {
        return Err("port 0 cannot be sent to".into());
    }
    Ok(group)
}

/// The addresses that flows leave from: the S of (S,G).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowSources {
    /// For IPv4 groups; `None` for the one that the route to the group has.
    pub v4: Option<Ipv4Addr>,
    /// For IPv6 groups.
    pub v6: Option<Ipv6Addr>,
}

impl FlowSources {
    /// The one for a group.
    pub fn towards(&self, group: SocketAddr) -> Option<IpAddr> {
        match group {
            SocketAddr::V4(_) => self.v4.map(IpAddr::from),
            SocketAddr::V6(_) => self.v6.map(IpAddr::from),
        }
    }

    pub(super) fn is_given(&self) -> bool {
        self.v4.is_some() || self.v6.is_some()
    }
}

pub(super) fn flow_sources(text: &str) -> Result<FlowSources, String> {
    let mut sources = FlowSources::default();
    for part in text.split(',') {
        let ip: IpAddr = part.trim().parse().map_err(|_| {
            "write an address of this machine, as `ip addr` shows it, or an IPv4 and an IPv6 one \
             separated by a comma"
                .to_owned()
        })?;
        let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
        if ip.is_multicast() || ip.is_unspecified() || broadcast {
            return Err(format!(
                "{ip} is not the address of an interface; `ip addr` shows those"
            ));
        }
        let twice = match ip {
            IpAddr::V4(ip) => sources.v4.replace(ip).is_some(),
            IpAddr::V6(ip) => sources.v6.replace(ip).is_some(),
        };
        if twice {
            return Err("give at most one IPv4 and one IPv6 address".into());
        }
    }
    Ok(sources)
}
