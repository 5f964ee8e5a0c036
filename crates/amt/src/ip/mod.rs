//! IP and UDP headers inside a tunnel.
//!
//! Packets in a tunnel come from others: each function here accepts any bytes, and checks lengths
//! before it uses them.

mod checksum;
mod ecn;
mod fragment;
mod header;
mod icmp;
mod reassembly;
mod template;
mod udp;

use std::net::IpAddr;

pub use checksum::{Checksum, update as update_checksum};
pub use ecn::decapsulated_ecn;
pub use fragment::fragment_v4;
pub(crate) use header::{Header, V4Fields, get, pseudo, put_v4, put_v6, set_v4_checksum};
pub use icmp::icmp_too_big;
pub use reassembly::{Fragment, Reassembly};
pub use template::UdpTemplate;
pub use udp::{Udp, parse_udp, write_udp};

/// Length of an IPv4 header without options, in bytes.
pub const V4_HEADER: usize = 20;

/// Length of an IPv6 header, in bytes.
pub const V6_HEADER: usize = 40;

/// Length of a UDP header, in bytes.
pub const UDP_HEADER: usize = 8;

pub(crate) const HOP_BY_HOP: u8 = 0;
pub(crate) const ICMP: u8 = 1;
pub(crate) const IGMP: u8 = 2;
pub(crate) const UDP: u8 = 17;
pub(crate) const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const ICMP_V6: u8 = 58;
pub(crate) const DESTINATION: u8 = 60;

/// Error in a packet inside a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpError {
    /// The packet ends inside a header, or before the length that a header claims.
    #[error("{what}: {len} bytes, but {need} are needed")]
    Truncated {
        /// The header.
        what: &'static str,
        /// Available bytes.
        len: usize,
        /// Required bytes.
        need: usize,
    },
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0}: only 4 and 6 are known")]
    Version(u8),
    /// A length in a header is impossible.
    #[error("{what}: impossible length in the header")]
    Length {
        /// The header.
        what: &'static str,
    },
    /// A checksum does not match.
    #[error("{what}: wrong checksum")]
    Checksum {
        /// The header.
        what: &'static str,
    },
    /// A fragment where a whole packet is expected, or one that contradicts others of its packet.
    #[error("a fragment of an IP packet that cannot be reassembled")]
    Fragment,
    /// An unexpected protocol.
    #[error("IP protocol {0} where another is expected")]
    Protocol(u8),
    /// An IGMP or MLD message of an unexpected type.
    #[error("IGMP or MLD message type {0} where another is expected")]
    Type(u8),
    /// A query for one group where a general query is expected.
    #[error("an IGMP or MLD query for one group, where a general query is expected")]
    NotGeneral,
    /// A report beyond the bounds.
    #[error("a report with more than {max} {what}")]
    TooMany {
        /// Kind of items.
        what: &'static str,
        /// Most items of that kind.
        max: usize,
    },
    /// Fragmentation is necessary and forbidden by DF.
    #[error("the packet does not fit and has DF set")]
    DontFragment,
    /// The MTU has no room for a fragment.
    #[error("an MTU of {0} bytes has no room for a fragment")]
    Mtu(usize),
}

impl IpError {
    /// Returns a short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            IpError::Truncated { .. } => "truncated",
            IpError::Version(_) => "version",
            IpError::Length { .. } => "length",
            IpError::Checksum { .. } => "checksum",
            IpError::Fragment => "fragment",
            IpError::Protocol(_) => "protocol",
            IpError::Type(_) => "type",
            IpError::NotGeneral => "not-general",
            IpError::TooMany { .. } => "too-many",
            IpError::DontFragment => "dont-fragment",
            IpError::Mtu(_) => "mtu",
        }
    }
}

/// Returns source, destination and total length in bytes of the packet at the start of `packet`, as
/// forwarding needs them. Neither checksums nor anything after the header is checked.
///
/// # Errors
/// The bytes are not an IP packet, or end before it does.
pub fn addresses(packet: &[u8]) -> Result<(IpAddr, IpAddr, usize), IpError> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let header = header::v4(packet)?;
            Ok((header.source(), header.destination(), header.total))
        }
        Some(6) => {
            let (source, destination, total) = header::v6(packet)?;
            Ok((source, destination, total))
        }
        Some(version) => Err(IpError::Version(version)),
        None => Err(IpError::Truncated {
            what: "IP",
            len: 0,
            need: 1,
        }),
    }
}
