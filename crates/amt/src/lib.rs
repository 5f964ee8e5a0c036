//! Automatic Multicast Tunneling (RFC 7450) without input or output: codecs, gateway and relay
//! state machines, discovery (RFC 8777).
//!
//! - [`Message`]: the seven AMT messages, as a view of a UDP payload.
//! - [`ip`]: the IP and UDP headers inside a tunnel: reading, building, fragments, ICMP errors.
//! - [`report`]: IGMPv3 and MLDv2 queries and reports (RFC 3376, RFC 3810), and leniently those of
//!   the versions before.
//! - [`Secrets`]: the Response MAC by which a relay recognises an address without keeping state.
//!
//! Nothing here opens a socket, reads a clock, starts a task or draws entropy: the caller hands in
//! bytes, times and seeds. Strict in what it writes and lenient in what it takes; `docs/amt.md`
//! says where.

pub mod discovery;
pub mod gateway;
mod igmp;
pub mod ip;
mod mac;
mod mld;
pub mod relay;
pub mod report;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use mac::{Mac, Secrets};
pub use wire::{GATEWAY_FIELDS, MAX_HEADER, Message, PFlag, WireError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The UDP port on which relays listen (RFC 7450, section 7.2).
pub const PORT: u16 = 2268;

/// The IPv4 address that any relay may announce for Relay Discovery (RFC 7450, section 7.1).
pub const ANYCAST_V4: Ipv4Addr = Ipv4Addr::new(192, 52, 193, 1);

/// The IPv6 address that any relay may announce for Relay Discovery (RFC 7450, section 7.1).
pub const ANYCAST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 3, 0, 0, 0, 0, 0, 1);
