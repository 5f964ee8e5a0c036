//! IPv4 and IPv6 headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Checksum, DESTINATION, FRAGMENT, HOP_BY_HOP, IpError, ROUTING, V4_HEADER, V6_HEADER};

/// Most extension headers of IPv6 that are skipped.
const MAX_EXTENSIONS: usize = 8;

/// Mask of the IPv4 fragment field: more fragments, and the offset.
const MORE_OR_OFFSET: u16 = 0x3fff;

/// Returns `N` bytes at `at`.
pub(crate) fn get<const N: usize>(
    what: &'static str,
    bytes: &[u8],
    at: usize,
) -> Result<[u8; N], IpError> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.copied().ok_or(IpError::Truncated {
        what,
        len: bytes.len(),
        need: at + N,
    })
}

fn within<'a>(what: &'static str, bytes: &'a [u8], need: usize) -> Result<&'a [u8], IpError> {
    bytes.get(..need).ok_or(IpError::Truncated {
        what,
        len: bytes.len(),
        need,
    })
}

/// An IPv4 header with valid lengths; nothing else was checked.
pub(crate) struct V4<'a> {
    pub(crate) fixed: &'a [u8; V4_HEADER],
    pub(crate) header_len: usize,
    pub(crate) total: usize,
}

impl V4<'_> {
    pub(crate) fn source(&self) -> IpAddr {
        let [.., a, b, c, d, _, _, _, _] = *self.fixed;
        Ipv4Addr::new(a, b, c, d).into()
    }

    pub(crate) fn destination(&self) -> IpAddr {
        let [.., a, b, c, d] = *self.fixed;
        Ipv4Addr::new(a, b, c, d).into()
    }

    /// Returns flags and offset.
    pub(crate) fn fragment(&self) -> u16 {
        u16::from_be_bytes([self.fixed[6], self.fixed[7]])
    }
}

pub(crate) fn v4(packet: &[u8]) -> Result<V4<'_>, IpError> {
    let fixed = packet.first_chunk().ok_or(IpError::Truncated {
        what: "IPv4",
        len: packet.len(),
        need: V4_HEADER,
    })?;
    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if header_len < V4_HEADER || total < header_len {
        return Err(IpError::Length { what: "IPv4" });
    }
    within("IPv4", packet, total)?;
    Ok(V4 {
        fixed,
        header_len,
        total,
    })
}

/// Returns source, destination and total length.
pub(crate) fn v6(packet: &[u8]) -> Result<(IpAddr, IpAddr, usize), IpError> {
    let fixed: &[u8; V6_HEADER] = packet.first_chunk().ok_or(IpError::Truncated {
        what: "IPv6",
        len: packet.len(),
        need: V6_HEADER,
    })?;
    let total = V6_HEADER + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    within("IPv6", packet, total)?;
    let source = Ipv6Addr::from(get::<16>("IPv6", fixed, 8)?);
    let destination = Ipv6Addr::from(get::<16>("IPv6", fixed, 24)?);
    Ok((source.into(), destination.into(), total))
}

/// A whole packet with valid headers.
pub(crate) struct Header<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) hops: u8,
    pub(crate) protocol: u8,
    /// Payload, up to the length in the header.
    pub(crate) payload: &'a [u8],
}

impl<'a> Header<'a> {
    /// Parses IPv4 with any options, or IPv6 with extension headers other than Fragment.
    pub(crate) fn parse(packet: &'a [u8]) -> Result<Self, IpError> {
        if packet.first().is_some_and(|first| first >> 4 == 4) {
            Self::parse_v4(packet)
        } else {
            // Rejects packets of neither version, too.
            let (source, destination, total) = super::addresses(packet)?;
            Self::parse_v6(within("IPv6", packet, total)?, source, destination)
        }
    }

    fn parse_v4(packet: &'a [u8]) -> Result<Self, IpError> {
        let header = v4(packet)?;
        let whole = within("IPv4", packet, header.total)?;
        let options = within("IPv4", whole, header.header_len)?;
        if Checksum::default().with(options).finish() != 0 {
            return Err(IpError::Checksum { what: "IPv4" });
        }
        if header.fragment() & MORE_OR_OFFSET != 0 {
            return Err(IpError::Fragment);
        }
        Ok(Header {
            source: header.source(),
            destination: header.destination(),
            hops: header.fixed[8],
            protocol: header.fixed[9],
            payload: whole.get(header.header_len..).unwrap_or_default(),
        })
    }

    fn parse_v6(packet: &'a [u8], source: IpAddr, destination: IpAddr) -> Result<Self, IpError> {
        let [mut protocol, hops] = get("IPv6", packet, 6)?;
        let mut payload = packet.get(V6_HEADER..).unwrap_or_default();
        for _ in 0..MAX_EXTENSIONS {
            match protocol {
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    let what = "IPv6 extension header";
                    let [next, len] = get(what, payload, 0)?;
                    let len = (usize::from(len) + 1) * 8;
                    within(what, payload, len)?;
                    (protocol, payload) = (next, payload.get(len..).unwrap_or_default());
                }
                FRAGMENT => return Err(IpError::Fragment),
                _ => break,
            }
        }
        Ok(Header {
            source,
            destination,
            hops,
            protocol,
            payload,
        })
    }
}

/// Returns the sum of the pseudo header for a payload of `len` bytes (RFC 768; RFC 8200, section
/// 8.1).
pub(crate) fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, len: u32) -> Checksum {
    let sum = Checksum::default();
    let sum = match source {
        IpAddr::V4(v4) => sum.with(&v4.octets()),
        IpAddr::V6(v6) => sum.with(&v6.octets()),
    };
    let sum = match destination {
        IpAddr::V4(v4) => sum.with(&v4.octets()),
        IpAddr::V6(v6) => sum.with(&v6.octets()),
    };
    sum.with_u32(len).with_u16(u16::from(protocol))
}

/// Variable fields of an IPv4 header.
pub(crate) struct V4Fields {
    pub(crate) source: Ipv4Addr,
    pub(crate) destination: Ipv4Addr,
    pub(crate) protocol: u8,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
}

/// Appends an IPv4 header, with checksum, for a payload of `payload` bytes; with a Router Alert
/// (RFC 2113) if `alert`.
pub(crate) fn put_v4(out: &mut Vec<u8>, fields: &V4Fields, payload: usize, alert: bool) {
    const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
    let len = V4_HEADER + if alert { ROUTER_ALERT.len() } else { 0 };
    let total = u16::try_from(len + payload).unwrap_or(u16::MAX);
    let mut header = [0; V4_HEADER];
    header[0] = 0x40 | (len / 4) as u8;
    header[1] = fields.tos;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[8] = fields.ttl;
    header[9] = fields.protocol;
    header[12..16].copy_from_slice(&fields.source.octets());
    header[16..].copy_from_slice(&fields.destination.octets());
    let start = out.len();
    out.extend_from_slice(&header);
    if alert {
        out.extend_from_slice(&ROUTER_ALERT);
    }
    if let Some(header) = out.get_mut(start..) {
        set_v4_checksum(header);
    }
}

/// Sets the checksum of an IPv4 header, which is all of `header`.
pub(crate) fn set_v4_checksum(header: &mut [u8]) {
    if let Some(field) = header.get_mut(10..12) {
        field.fill(0);
    }
    let sum = Checksum::default().with(header).finish();
    if let Some(field) = header.get_mut(10..12) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Appends an IPv6 header for `payload` bytes, extension headers included.
pub(crate) fn put_v6(
    out: &mut Vec<u8>,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    next: u8,
    hops: u8,
    payload: usize,
) {
    let len = u16::try_from(payload).unwrap_or(u16::MAX);
    out.extend_from_slice(&[0x60, 0, 0, 0]);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&[next, hops]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&destination.octets());
}
