//! Inner headers prepared once and completed per packet.

use std::net::{IpAddr, SocketAddr};

use super::header::{V4Fields, put_v4, put_v6};
use super::udp::present;
use super::{Checksum, UDP, UDP_HEADER, V4_HEADER, V6_HEADER, pseudo};

/// Headers of the datagrams from one source and port to one group and port, for rebuilding packets
/// whose payload was received by a UDP socket. Nothing is allocated per packet.
#[derive(Debug, Clone)]
pub struct UdpTemplate {
    /// IP and UDP header, with zeros in the fields that change.
    header: Vec<u8>,
    v4: bool,
    /// Sum of the IPv4 header as it is in `header`.
    ip: Checksum,
    /// Sum of the pseudo header and the ports, without the lengths.
    udp: Checksum,
    identification: u16,
}

impl UdpTemplate {
    /// Creates a template for datagrams from `from` to `to`; `None` if they are of different
    /// families.
    pub fn new(from: SocketAddr, to: SocketAddr) -> Option<Self> {
        let mut header = Vec::with_capacity(V6_HEADER + UDP_HEADER);
        match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let fields = V4Fields {
                    source,
                    destination,
                    protocol: UDP,
                    ttl: 0,
                    tos: 0,
                };
                put_v4(&mut header, &fields, 0, false);
                // Length and checksum change per packet.
                header.get_mut(2..4)?.fill(0);
                header.get_mut(10..12)?.fill(0);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                put_v6(&mut header, source, destination, UDP, 0, 0);
            }
            _ => return None,
        }
        let ip = Checksum::default().with(&header);
        let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()];
        header.extend_from_slice(ports.as_flattened());
        header.extend_from_slice(&[0; 4]);
        Some(UdpTemplate {
            header,
            v4: from.is_ipv4(),
            ip,
            udp: pseudo(from.ip(), to.ip(), UDP, 0).with(ports.as_flattened()),
            identification: 0,
        })
    }

    /// Returns the length of the headers, in bytes.
    pub fn header_len(&self) -> usize {
        self.header.len()
    }

    /// Writes the packet with `payload` to the start of `out`; `ttl` is the hop limit and `tos` the
    /// traffic class of IPv6. Returns the packet's length in bytes; 0, with nothing written, if it
    /// does not fit into `out` or into an IP packet.
    ///
    /// An IPv4 packet may be fragmented on its path: DF is not set, and each packet has its own
    /// identification.
    pub fn write(&mut self, payload: &[u8], ttl: u8, tos: u8, out: &mut [u8]) -> usize {
        let header_len = self.header.len();
        let total = header_len + payload.len();
        let udp_len = UDP_HEADER + payload.len();
        let claimed = if self.v4 { total } else { udp_len };
        let (Ok(claimed), Some(out)) = (u16::try_from(claimed), out.get_mut(..total)) else {
            return 0;
        };
        let (header, body) = out.split_at_mut(header_len);
        header.copy_from_slice(&self.header);
        body.copy_from_slice(payload);
        let udp_len = udp_len as u16;
        let udp = self.udp.with_u16(udp_len).with_u16(udp_len).with(payload);
        let ip_len = if self.v4 { V4_HEADER } else { V6_HEADER };
        let (ip, udp_header) = header.split_at_mut(ip_len);
        if self.v4 {
            self.identification = self.identification.wrapping_add(1);
            let sum = self.ip.with_u16(u16::from(tos)).with_u16(claimed);
            let sum = sum
                .with_u16(self.identification)
                .with_u16(u16::from(ttl) << 8);
            ip[1] = tos;
            ip[2..4].copy_from_slice(&claimed.to_be_bytes());
            ip[4..6].copy_from_slice(&self.identification.to_be_bytes());
            ip[8] = ttl;
            ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        } else {
            ip[0] |= tos >> 4;
            ip[1] |= tos << 4;
            ip[4..6].copy_from_slice(&claimed.to_be_bytes());
            ip[7] = ttl;
        }
        udp_header[4..6].copy_from_slice(&udp_len.to_be_bytes());
        udp_header[6..8].copy_from_slice(&present(udp.finish()).to_be_bytes());
        total
    }
}
