//! The seven AMT messages (RFC 7450, section 5.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Mac;
use crate::ip;

/// Length of the port and address at the end of a Membership Query with G and of a Teardown.
pub const GATEWAY_FIELDS: usize = 18;

/// Longest header before an encapsulated packet, in bytes: that of Query and Update.
pub const MAX_HEADER: usize = 12;

const DISCOVERY: u8 = 1;
const ADVERTISEMENT: u8 = 2;
const REQUEST: u8 = 3;
const QUERY: u8 = 4;
const UPDATE: u8 = 5;
const DATA: u8 = 6;
const TEARDOWN: u8 = 7;

/// L flag of a Query: the relay accepts no new gateways.
const LIMITED: u8 = 0x02;
/// G flag of a Query: the gateway's address and port follow the packet.
const GATEWAY: u8 = 0x01;

/// Position of the P flag in a Request, which asks for a query of MLD instead of IGMP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PFlag {
    /// The lowest bit of its byte (section 5.1.3.4).
    #[default]
    Rfc,
    /// The highest bit. Linux reads and sends the flag there; its relay drops a Request with any
    /// other bit of that byte set.
    Linux,
}

impl PFlag {
    /// Returns the other position.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            PFlag::Rfc => PFlag::Linux,
            PFlag::Linux => PFlag::Rfc,
        }
    }

    fn bit(self) -> u8 {
        match self {
            PFlag::Rfc => 0x01,
            PFlag::Linux => 0x80,
        }
    }
}

/// An AMT message, as a view of the payload of one UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// Relay Discovery: a gateway looks for a relay (section 5.1.1).
    Discovery {
        /// Nonce that the answer repeats.
        nonce: u32,
    },
    /// Relay Advertisement: a relay's address for Requests (section 5.1.2).
    Advertisement {
        /// Nonce of the Discovery.
        nonce: u32,
        /// The relay's own address, in the family of the outer header.
        relay: IpAddr,
    },
    /// Request: a gateway asks for a query (section 5.1.3).
    Request {
        /// Nonce that the answer repeats.
        nonce: u32,
        /// Whether a query of MLD is requested instead of IGMP.
        mld: bool,
    },
    /// Membership Query: a relay asks for the gateway's groups, with the MAC for the answer
    /// (section 5.1.4).
    Query {
        /// Whether the relay accepts no new gateways (L flag).
        limited: bool,
        /// Response MAC that the answer repeats.
        mac: Mac,
        /// Nonce of the Request.
        nonce: u32,
        /// IP packet with the IGMP or MLD query.
        packet: &'a [u8],
        /// Address of the gateway as the relay saw it, for a Teardown (G flag). In a parsed
        /// message, an IPv4 address that the relay wrote as `::ffff:a.b.c.d` remains in that form,
        /// in which the gateway returns it.
        gateway: Option<SocketAddr>,
    },
    /// Membership Update: a gateway reports its groups (section 5.1.5).
    Update {
        /// Response MAC of the Query.
        mac: Mac,
        /// Nonce of the Query.
        nonce: u32,
        /// IP packet with the IGMP or MLD report.
        packet: &'a [u8],
    },
    /// Multicast Data (section 5.1.6).
    Data {
        /// Multicast packet with its IP header.
        packet: &'a [u8],
    },
    /// Teardown: a gateway ends a tunnel that it made from another address (section 5.1.7).
    Teardown {
        /// Response MAC of the Query to that address.
        mac: Mac,
        /// Nonce of that Query.
        nonce: u32,
        /// Address of the gateway; an IPv4 address is never in its IPv6-mapped form.
        gateway: SocketAddr,
    },
}

/// Error in an AMT message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The datagram ends inside the fixed fields.
    #[error("AMT {what}: {len} bytes, but {need} are needed")]
    Truncated {
        /// Name of the message.
        what: &'static str,
        /// Length of the datagram, in bytes.
        len: usize,
        /// Length of the fixed fields, in bytes.
        need: usize,
    },
    /// An unknown version.
    #[error("AMT version {0}: only version 0 is known")]
    Version(u8),
    /// An unknown message type.
    #[error("AMT message type {0}: only 1 to 7 are known")]
    Type(u8),
    /// A Query with G whose inner packet has no valid length, so that the gateway's address
    /// cannot be found.
    #[error("AMT Membership Query with G: the packet inside has no valid length")]
    Inside,
}

impl WireError {
    /// Returns a short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            WireError::Truncated { .. } => "truncated",
            WireError::Version(_) => "version",
            WireError::Type(_) => "type",
            WireError::Inside => "inside",
        }
    }
}

/// Fixed fields of a message.
struct Fields<'a> {
    what: &'static str,
    payload: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(what: &'static str, payload: &'a [u8], need: usize) -> Result<Self, WireError> {
        if payload.len() < need {
            let len = payload.len();
            return Err(WireError::Truncated { what, len, need });
        }
        Ok(Fields { what, payload })
    }

    fn get<const N: usize>(&self, at: usize) -> Result<[u8; N], WireError> {
        let bytes = self.payload.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().ok_or(WireError::Truncated {
            what: self.what,
            len: self.payload.len(),
            need: at + N,
        })
    }

    fn nonce(&self, at: usize) -> Result<u32, WireError> {
        self.get(at).map(u32::from_be_bytes)
    }

    fn mac(&self) -> Result<Mac, WireError> {
        self.get(2).map(Mac)
    }

    fn rest(&self, at: usize) -> &'a [u8] {
        self.payload.get(at..).unwrap_or_default()
    }

    /// Returns port and address (sections 5.1.4.8 and 5.1.4.9), the address in its original form.
    fn gateway(&self, at: usize) -> Result<SocketAddr, WireError> {
        let port = self.get(at).map(u16::from_be_bytes)?;
        Ok(SocketAddr::new(address(self.get(at + 2)?), port))
    }
}

/// Parses an address. An IPv4 address takes the last four bytes after zeros (RFC 4291, section
/// 2.5.5.1). `::` and `::1` remain IPv6: no host has an IPv4 address that begins with zero.
fn address(bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] if a != 0 => {
            Ipv4Addr::new(a, b, c, d).into()
        }
        _ => Ipv6Addr::from(bytes).into(),
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn put_gateway(out: &mut Vec<u8>, gateway: SocketAddr) {
    out.extend_from_slice(&gateway.port().to_be_bytes());
    match gateway.ip() {
        IpAddr::V4(v4) => {
            out.extend_from_slice(&[0; 12]);
            out.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()),
    }
}

impl<'a> Message<'a> {
    /// Parses the payload of a UDP datagram. Reserved bits and bytes after the message are ignored;
    /// the P flag of a Request is read at both positions.
    ///
    /// # Errors
    /// The datagram is too short, or of an unknown version or type.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let first = *payload.first().ok_or(WireError::Truncated {
            what: "message",
            len: 0,
            need: 1,
        })?;
        if first >> 4 != 0 {
            return Err(WireError::Version(first >> 4));
        }
        match first & 0x0f {
            DATA => {
                let fields = Fields::new("Multicast Data", payload, 2)?;
                let packet = fields.rest(2);
                Ok(Message::Data { packet })
            }
            DISCOVERY => {
                let fields = Fields::new("Relay Discovery", payload, 8)?;
                let nonce = fields.nonce(4)?;
                Ok(Message::Discovery { nonce })
            }
            ADVERTISEMENT => {
                let fields = Fields::new("Relay Advertisement", payload, 12)?;
                let nonce = fields.nonce(4)?;
                let relay = match fields.get::<16>(8) {
                    Ok(v6) => Ipv6Addr::from(v6).into(),
                    Err(_) => Ipv4Addr::from(fields.get::<4>(8)?).into(),
                };
                Ok(Message::Advertisement { nonce, relay })
            }
            REQUEST => {
                let fields = Fields::new("Request", payload, 8)?;
                let [flags] = fields.get(1)?;
                let p = PFlag::Rfc.bit() | PFlag::Linux.bit();
                let (nonce, mld) = (fields.nonce(4)?, flags & p != 0);
                Ok(Message::Request { nonce, mld })
            }
            QUERY => Self::parse_query(payload),
            UPDATE => {
                let fields = Fields::new("Membership Update", payload, 12)?;
                let (mac, nonce, packet) = (fields.mac()?, fields.nonce(8)?, fields.rest(12));
                Ok(Message::Update { mac, nonce, packet })
            }
            TEARDOWN => {
                let fields = Fields::new("Teardown", payload, 12 + GATEWAY_FIELDS)?;
                let (mac, nonce) = (fields.mac()?, fields.nonce(8)?);
                let gateway = canonical(fields.gateway(12)?);
                Ok(Message::Teardown {
                    mac,
                    nonce,
                    gateway,
                })
            }
            other => Err(WireError::Type(other)),
        }
    }

    fn parse_query(payload: &'a [u8]) -> Result<Self, WireError> {
        let fields = Fields::new("Membership Query", payload, 12)?;
        let [flags] = fields.get(1)?;
        let mut packet = fields.rest(12);
        let mut gateway = None;
        if flags & GATEWAY != 0 {
            // The address follows the packet, which gives its own length.
            let (_, _, len) = ip::addresses(packet).map_err(|_| WireError::Inside)?;
            packet = packet.get(..len).ok_or(WireError::Inside)?;
            gateway = Some(fields.gateway(12 + len)?);
        }
        Ok(Message::Query {
            limited: flags & LIMITED != 0,
            mac: fields.mac()?,
            nonce: fields.nonce(8)?,
            packet,
            gateway,
        })
    }

    /// Appends the message to `out`, with reserved bits zero and the P flag at the RFC's position.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_with(PFlag::Rfc, out);
    }

    /// Appends the message to `out` like [`encode`](Self::encode), with the P flag of a Request at
    /// `p`.
    pub fn encode_with(&self, p: PFlag, out: &mut Vec<u8>) {
        out.reserve(self.len());
        match *self {
            Message::Discovery { nonce } => {
                out.extend_from_slice(&[DISCOVERY, 0, 0, 0]);
                out.extend_from_slice(&nonce.to_be_bytes());
            }
            Message::Advertisement { nonce, relay } => {
                out.extend_from_slice(&[ADVERTISEMENT, 0, 0, 0]);
                out.extend_from_slice(&nonce.to_be_bytes());
                match relay {
                    IpAddr::V4(v4) => out.extend_from_slice(&v4.octets()),
                    IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()),
                }
            }
            Message::Request { nonce, mld } => {
                out.extend_from_slice(&[REQUEST, if mld { p.bit() } else { 0 }, 0, 0]);
                out.extend_from_slice(&nonce.to_be_bytes());
            }
            Message::Query {
                limited,
                mac,
                nonce,
                packet,
                gateway,
            } => {
                let limited = if limited { LIMITED } else { 0 };
                let flags = limited | if gateway.is_some() { GATEWAY } else { 0 };
                put_mac(out, [QUERY, flags], mac, nonce);
                out.extend_from_slice(packet);
                if let Some(gateway) = gateway {
                    put_gateway(out, gateway);
                }
            }
            Message::Update { mac, nonce, packet } => {
                put_mac(out, [UPDATE, 0], mac, nonce);
                out.extend_from_slice(packet);
            }
            Message::Data { packet } => {
                out.extend_from_slice(&[DATA, 0]);
                out.extend_from_slice(packet);
            }
            Message::Teardown {
                mac,
                nonce,
                gateway,
            } => {
                put_mac(out, [TEARDOWN, 0], mac, nonce);
                put_gateway(out, gateway);
            }
        }
    }

    /// Returns the length of the encoded message, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no message is empty")]
    pub fn len(&self) -> usize {
        match *self {
            Message::Discovery { .. } | Message::Request { .. } => 8,
            Message::Advertisement { relay, .. } => 8 + if relay.is_ipv4() { 4 } else { 16 },
            Message::Query {
                packet, gateway, ..
            } => 12 + packet.len() + gateway.map_or(0, |_| GATEWAY_FIELDS),
            Message::Update { packet, .. } => 12 + packet.len(),
            Message::Data { packet } => 2 + packet.len(),
            Message::Teardown { .. } => 12 + GATEWAY_FIELDS,
        }
    }

    /// Returns a short name for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Discovery { .. } => "discovery",
            Message::Advertisement { .. } => "advertisement",
            Message::Request { .. } => "request",
            Message::Query { .. } => "query",
            Message::Update { .. } => "update",
            Message::Data { .. } => "data",
            Message::Teardown { .. } => "teardown",
        }
    }
}

fn put_mac(out: &mut Vec<u8>, head: [u8; 2], mac: Mac, nonce: u32) {
    out.extend_from_slice(&head);
    out.extend_from_slice(&mac.0);
    out.extend_from_slice(&nonce.to_be_bytes());
}
