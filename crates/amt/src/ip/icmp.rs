//! ICMP errors towards the source of a packet that does not fit.

use std::net::{IpAddr, Ipv4Addr};

use super::header::{V4Fields, put_v4, put_v6, v4};
use super::{Checksum, ICMP, ICMP_V6, V6_HEADER, addresses, pseudo};

/// Largest ICMP error, its IP header included, in bytes (RFC 1812, section 4.3.2.3; RFC 4443,
/// section 3.2).
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;

const TTL: u8 = 64;

/// Mask of the offset in the IPv4 fragment field.
const OFFSET: u16 = 0x1fff;

/// Appends the packet by which a router at `from` reports to the source of `packet` that it does
/// not fit into `mtu` bytes: ICMPv4 type 3 code 4 (RFC 1191), or ICMPv6 type 2 (RFC 4443, section
/// 3.2).
///
/// Nothing is appended if `packet` is not valid, if `from` is of the other family, if the source is
/// not a host (unspecified, multicast, broadcast), or for a fragment other than the first (RFC
/// 1812, section 4.3.2.7).
pub fn icmp_too_big(packet: &[u8], from: IpAddr, mtu: u32, out: &mut Vec<u8>) {
    let Ok((source, _, total)) = addresses(packet) else {
        return;
    };
    let broadcast = source == IpAddr::V4(Ipv4Addr::BROADCAST);
    if source.is_unspecified() || source.is_multicast() || broadcast {
        return;
    }
    let whole = packet.get(..total).unwrap_or_default();
    if source.is_ipv4() && v4(whole).is_ok_and(|header| header.fragment() & OFFSET != 0) {
        return;
    }
    match (from, source) {
        (IpAddr::V4(from), IpAddr::V4(source)) => {
            let room = MOST_V4 - super::V4_HEADER - 8;
            let quoted = whole.get(..room).unwrap_or(whole);
            let fields = V4Fields {
                source: from,
                destination: source,
                protocol: ICMP,
                ttl: TTL,
                tos: 0,
            };
            put_v4(out, &fields, 8 + quoted.len(), false);
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            let mut header = [3, 4, 0, 0, 0, 0, 0, 0];
            header[6..].copy_from_slice(&mtu.to_be_bytes());
            let sum = Checksum::default().with(&header).with(quoted).finish();
            header[2..4].copy_from_slice(&sum.to_be_bytes());
            out.extend_from_slice(&header);
            out.extend_from_slice(quoted);
        }
        (IpAddr::V6(from_v6), IpAddr::V6(source_v6)) => {
            let room = MOST_V6 - V6_HEADER - 8;
            let quoted = whole.get(..room).unwrap_or(whole);
            let len = 8 + quoted.len();
            put_v6(out, from_v6, source_v6, ICMP_V6, TTL, len);
            let mut header = [2, 0, 0, 0, 0, 0, 0, 0];
            header[4..].copy_from_slice(&mtu.to_be_bytes());
            let sum = pseudo(from, source, ICMP_V6, len as u32);
            let sum = sum.with(&header).with(quoted).finish();
            header[2..4].copy_from_slice(&sum.to_be_bytes());
            out.extend_from_slice(&header);
            out.extend_from_slice(quoted);
        }
        _ => {}
    }
}
