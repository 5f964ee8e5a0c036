//! UDP inside IP.

use std::net::{IpAddr, SocketAddr};

use super::header::{V4Fields, get, put_v4, put_v6};
use super::{Header, IpError, UDP, UDP_HEADER, pseudo};

/// A UDP datagram inside an IP packet; both addresses are of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp<'a> {
    /// Inner source address and port.
    pub from: SocketAddr,
    /// Group and port.
    pub to: SocketAddr,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Payload of the datagram.
    pub payload: &'a [u8],
}

/// Parses a whole packet with a UDP datagram: version, lengths, the header checksum of IPv4 and the
/// UDP checksum, which may be absent over IPv4. Bytes after the packet are ignored.
///
/// # Errors
/// One of these is wrong, or the packet is a fragment or of another protocol.
pub fn parse_udp(packet: &[u8]) -> Result<Udp<'_>, IpError> {
    let header = Header::parse(packet)?;
    if header.protocol != UDP {
        return Err(IpError::Protocol(header.protocol));
    }
    let [a, b, c, d, e, f, g, h] = get("UDP", header.payload, 0)?;
    let len = usize::from(u16::from_be_bytes([e, f]));
    let Some(datagram) = header.payload.get(..len) else {
        return Err(IpError::Truncated {
            what: "UDP",
            len: header.payload.len(),
            need: len,
        });
    };
    let Some(payload) = datagram.get(UDP_HEADER..) else {
        return Err(IpError::Length { what: "UDP" });
    };
    let absent = [g, h] == [0, 0];
    if !(absent && header.source.is_ipv4()) {
        let sum = pseudo(header.source, header.destination, UDP, len as u32);
        // Over IPv6 the checksum is mandatory (RFC 8200, section 8.1).
        if absent || sum.with(datagram).finish() != 0 {
            return Err(IpError::Checksum { what: "UDP" });
        }
    }
    Ok(Udp {
        from: SocketAddr::new(header.source, u16::from_be_bytes([a, b])),
        to: SocketAddr::new(header.destination, u16::from_be_bytes([c, d])),
        ttl: header.hops,
        payload,
    })
}

/// Appends the packet that [`parse_udp`] parses, with a UDP checksum. Returns `false`, with nothing
/// appended, if the families differ or the payload does not fit into a packet.
pub fn write_udp(udp: &Udp<'_>, tos: u8, out: &mut Vec<u8>) -> bool {
    let len = UDP_HEADER + udp.payload.len();
    let most = usize::from(u16::MAX)
        - if udp.from.is_ipv4() {
            super::V4_HEADER
        } else {
            0
        };
    if len > most {
        return false;
    }
    match (udp.from.ip(), udp.to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let fields = V4Fields {
                source,
                destination,
                protocol: UDP,
                ttl: udp.ttl,
                tos,
            };
            put_v4(out, &fields, len, false);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let start = out.len();
            put_v6(out, source, destination, UDP, udp.ttl, len);
            if let Some([first, second]) = out.get_mut(start..start + 2) {
                *first |= tos >> 4;
                *second |= tos << 4;
            }
        }
        _ => return false,
    }
    let mut header = [0; UDP_HEADER];
    header[..2].copy_from_slice(&udp.from.port().to_be_bytes());
    header[2..4].copy_from_slice(&udp.to.port().to_be_bytes());
    header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    let sum = pseudo(udp.from.ip(), udp.to.ip(), UDP, len as u32);
    let sum = sum.with(&header).with(udp.payload).finish();
    header[6..].copy_from_slice(&present(sum).to_be_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(udp.payload);
    true
}

/// Returns the other form of a checksum of zero, which would mean that there is none (RFC 768).
pub(super) fn present(sum: u16) -> u16 {
    if sum == 0 { 0xffff } else { sum }
}
