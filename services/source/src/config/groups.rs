//! Multicast groups.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Form of a list of groups.
const FORM: &str = "write an IPv4 multicast address and a port, an IPv6 one in brackets, or one of \
                    each separated by a comma, such as 232.70.70.1:4434,[ff3e::4646:1]:4434; '' is \
                    for no multicast";

/// Multicast groups of a flow: none, or one of IPv4, of IPv6, or of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups(Vec<SocketAddr>);

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&groups.join(","))
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
                IpAddr::V4(ip) if ip.octets()[3].checked_add(number).is_some() => {
                    Ipv4Addr::from_bits(ip.to_bits() + u32::from(number)).into()
                }
                IpAddr::V6(ip) if ip.segments()[7].checked_add(number.into()).is_some() => {
                    Ipv6Addr::from_bits(ip.to_bits() + u128::from(number)).into()
                }
                ip => return Err(format!("there is no group {number} after {ip}")),
            };
            Ok(SocketAddr::new(ip, group.port()))
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
            // What routers take to be source-specific (RFC 4607).
            let (range, other, specific) = match group {
                SocketAddr::V4(at) => ("232.0.0.0/8", "239.0.0.0/8", at.ip().octets()[0] == 232),
                SocketAddr::V6(at) => {
                    let specific = matches!(at.ip().segments(), [0xff30..=0xff3f, 0, ..]);
                    ("ff3x::/32", "ff15::/16", specific)
                }
            };
            match (asm, specific) {
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

/// Groups as they are written: a list with commas, empty for none.
///
/// # Errors
/// A flow cannot have them.
pub fn groups(text: &str) -> Result<Groups, String> {
    let parts = text.split(',').map(str::trim);
    let parts = parts.filter(|_| !text.trim().is_empty());
    let groups = parts.map(group).collect::<Result<Vec<_>, _>>()?;
    let of_ipv4 = groups.iter().filter(|group| group.is_ipv4()).count();
    match of_ipv4 > 1 || groups.len() - of_ipv4 > 1 {
        true => Err("give at most one IPv4 and one IPv6 group: a flow needs no second".into()),
        false => Ok(Groups(groups)),
    }
}

fn group(text: &str) -> Result<SocketAddr, String> {
    let group: SocketAddr = text.parse().map_err(|_| FORM.to_owned())?;
    let wrong = match group.ip() {
        ip if !ip.is_multicast() => {
            "is not a multicast address: those are 224.0.0.0 to 239.255.255.255, for one source \
             232.0.0.0/8, and ff00::/8, for one source ff3e::/32"
        }
        IpAddr::V4(ip) if matches!(ip.octets(), [224, 0, 0, _]) => {
            "is reserved for protocols on the local link and never forwarded; choose one from \
             232.0.0.0/8"
        }
        // Scopes 0 to 2: reserved, this interface, this link.
        IpAddr::V6(ip) if matches!(ip.segments()[0] & 0xf, 0..=2 | 0xf) => {
            "has a scope that is never forwarded; choose one from ff3e::/32 (global) or ff35::/32 \
             (site)"
        }
        _ if group.port() == 0 => "needs a port other than 0",
        _ => return Ok(group),
    };
    Err(format!("{} {wrong}", group.ip()))
}
