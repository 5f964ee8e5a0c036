//! AMTRELAY records (RFC 8777, section 4).

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// D flag: the relay accepts a Request without Relay Discovery before it.
const DISCOVERY_OPTIONAL: u8 = 0x80;

/// Longest name on the wire, in bytes (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 255;
const MAX_LABEL: u8 = 63;

/// Returns the name of the AMTRELAY records for `source`, that of its PTR record, with a final dot
/// (RFC 8777, section 2.2).
pub fn reverse_name(source: IpAddr) -> String {
    let mut name = String::new();
    // Writing to a String does not fail.
    match source.to_canonical() {
        IpAddr::V4(v4) => {
            for byte in v4.octets().iter().rev() {
                let _ = write!(name, "{byte}.");
            }
            name.push_str("in-addr.arpa.");
        }
        IpAddr::V6(v6) => {
            for byte in v6.octets().iter().rev() {
                let _ = write!(name, "{:x}.{:x}.", byte & 0x0f, byte >> 4);
            }
            name.push_str("ip6.arpa.");
        }
    }
    name
}

/// Relay field of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayTarget {
    /// No relay may be used for the source.
    None,
    /// Address of the relay.
    Address(IpAddr),
    /// Name of the relay, with a final dot.
    Name(String),
}

/// The data of an AMTRELAY record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmtRelay {
    /// Precedence; records with lower values are tried first.
    pub precedence: u8,
    /// Whether a Request may go there without Relay Discovery before it (D flag).
    pub discovery_optional: bool,
    /// The relay.
    pub relay: RelayTarget,
}

/// Error in the data of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RdataError {
    /// The length does not suit the type.
    #[error("AMTRELAY record: {len} bytes cannot be one of type {kind}")]
    Length {
        /// Relay type.
        kind: u8,
        /// Length of the data, in bytes.
        len: usize,
    },
    /// An unknown relay type; such a record is ignored (RFC 8777, section 4.2.3).
    #[error("AMTRELAY record: relay type {0} is not known")]
    Type(u8),
    /// The relay's name is not a host name: truncated, compressed, too long, or with characters
    /// other than letters, digits, `-` and `_`.
    #[error("AMTRELAY record: the relay's name is not one of a host")]
    Name,
}

impl AmtRelay {
    /// Parses the data of a record.
    ///
    /// # Errors
    /// The data is damaged, or of an unknown type.
    pub fn parse(rdata: &[u8]) -> Result<Self, RdataError> {
        let len = rdata.len();
        let Some((&[precedence, flags], rest)) = rdata.split_first_chunk() else {
            return Err(RdataError::Length { kind: 0, len });
        };
        let kind = flags & !DISCOVERY_OPTIONAL;
        let wrong = RdataError::Length { kind, len };
        let relay = match kind {
            0 if rest.is_empty() => RelayTarget::None,
            0 => return Err(wrong),
            1 => {
                let v4 = <[u8; 4]>::try_from(rest).map_err(|_| wrong)?;
                RelayTarget::Address(Ipv4Addr::from(v4).into())
            }
            2 => {
                let v6 = <[u8; 16]>::try_from(rest).map_err(|_| wrong)?;
                RelayTarget::Address(Ipv6Addr::from(v6).into())
            }
            3 => RelayTarget::Name(name(rest).ok_or(RdataError::Name)?),
            other => return Err(RdataError::Type(other)),
        };
        Ok(AmtRelay {
            precedence,
            discovery_optional: flags & DISCOVERY_OPTIONAL != 0,
            relay,
        })
    }

    /// Appends the data of the record. A name is written as it is: names from [`AmtRelay::parse`],
    /// or of such labels, are valid.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match &self.relay {
            RelayTarget::None => 0,
            RelayTarget::Address(IpAddr::V4(_)) => 1,
            RelayTarget::Address(IpAddr::V6(_)) => 2,
            RelayTarget::Name(_) => 3,
        };
        let optional = if self.discovery_optional {
            DISCOVERY_OPTIONAL
        } else {
            0
        };
        out.extend_from_slice(&[self.precedence, optional | kind]);
        match &self.relay {
            RelayTarget::None => {}
            RelayTarget::Address(IpAddr::V4(v4)) => out.extend_from_slice(&v4.octets()),
            RelayTarget::Address(IpAddr::V6(v6)) => out.extend_from_slice(&v6.octets()),
            RelayTarget::Name(name) => {
                for label in name.trim_end_matches('.').split('.') {
                    out.push(label.len() as u8);
                    out.extend_from_slice(label.as_bytes());
                }
                out.push(0);
            }
        }
    }
}

/// Parses a name on the wire, which is all of `bytes`.
fn name(bytes: &[u8]) -> Option<String> {
    if bytes.len() > MAX_NAME {
        return None;
    }
    let mut name = String::new();
    let mut rest = bytes;
    loop {
        let (&len, behind) = rest.split_first()?;
        // A compressed label has its two highest bits set.
        if len > MAX_LABEL {
            return None;
        }
        if len == 0 {
            // The root is not a host name.
            return (behind.is_empty() && !name.is_empty()).then_some(name);
        }
        let (label, behind) = behind.split_at_checked(usize::from(len))?;
        let of_host = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
        if !label.iter().all(of_host) {
            return None;
        }
        name.extend(label.iter().map(|c| char::from(*c)));
        name.push('.');
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reverse_names_are_those_of_ptr_records() {
        let v4 = "7.100.51.198.in-addr.arpa.";
        assert_eq!(reverse_name("198.51.100.7".parse().unwrap()), v4);
        assert_eq!(reverse_name("::ffff:198.51.100.7".parse().unwrap()), v4);
        let v6 = "f.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.";
        assert_eq!(reverse_name("2001:db8::f".parse().unwrap()), v6);
    }

    #[test]
    fn data_of_the_wrong_length_is_rejected() {
        for (data, kind) in [
            (&[][..], 0),
            (&[10], 0),
            (&[10, 0, 1], 0),
            (&[10, 1, 1, 2, 3], 1),
            (&[10, 0x81, 1, 2, 3, 4, 5], 1),
            (&[10, 2, 1, 2, 3, 4], 2),
        ] {
            let len = data.len();
            assert_eq!(AmtRelay::parse(data), Err(RdataError::Length { kind, len }));
        }
        assert_eq!(AmtRelay::parse(&[10, 4, 1]), Err(RdataError::Type(4)));
        assert_eq!(AmtRelay::parse(&[10, 0xff]), Err(RdataError::Type(127)));
    }

    #[test]
    fn invalid_names_are_rejected() {
        let long: Vec<u8> = [&[1, b'a'].repeat(127)[..], &[0]].concat();
        assert_eq!(long.len(), 255);
        let with = |name: &[u8]| AmtRelay::parse(&[&[1, 3], name].concat());
        assert!(with(&long).is_ok());
        for name in [
            &[][..],
            &[0],
            b"\x01a",
            b"\x02a\0",
            b"\x01a\0\0",
            b"\x01a\xc0\x00",
            b"\x03a.b\0",
            b"\x01 \0",
            b"\x01\x07\0",
            &[&[1, b'a'], &long[..]].concat(),
        ] {
            assert_eq!(with(name), Err(RdataError::Name), "{name:?}");
        }
    }
}
