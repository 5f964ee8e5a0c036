//! Automatic Multicast Tunneling (RFC 7450) without I/O: codecs, gateway and relay state machines,
//! relay discovery (RFC 8777).
//!
//! # The model
//!
//! A host without native multicast runs a *gateway*, a host with native multicast runs a *relay*.
//! Between them there is one UDP path, over which seven messages travel:
//!
//! ```text
//! gateway                                relay
//!    │ ── Relay Discovery ─────────────►  │   anycast only: which address?
//!    │ ◄───────────── Advertisement ───── │
//!    │ ── Request ─────────────────────►  │   no state at the relay yet
//!    │ ◄────────── Membership Query ───── │   with a MAC of the gateway's address
//!    │ ── Membership Update ───────────►  │   repeats the MAC: now there is a tunnel
//!    │ ◄──────────── Multicast Data ───── │   each packet of the groups
//!    │ ── Teardown ────────────────────►  │
//! ```
//!
//! Queries and Updates carry IGMPv3 or MLDv2 messages in IP packets, Multicast Data carries the
//! group's IP packets.
//!
//! # The parts
//!
//! - [`gateway::Gateway`]: finds a relay among candidates, subscribes to flows, returns payloads.
//! - [`relay::Relay`]: keeps tunnels and memberships, returns the recipients of a packet.
//! - [`discovery`]: relays that a flow's source publishes in the DNS, and the order of attempts.
//! - [`Message`]: the seven messages, as a view of a UDP payload.
//! - [`report`]: IGMP and MLD queries and reports (RFC 3376, RFC 3810), leniently of any version.
//! - [`ip`]: the IP and UDP headers inside a tunnel: parsing, building, fragments, ICMP errors.
//! - [`Secrets`]: the response MAC, by which a relay recognises an address without state.
//!
//! # Driving a state machine
//!
//! The crate opens no socket, reads no clock, spawns no task and draws no entropy. The caller
//! passes in datagrams, the time and random seeds. After every call it takes what `poll_transmit`
//! and `poll_event` return, and it calls `handle_timeout` at the time of `poll_timeout`. The same
//! inputs and seeds give the same outputs.
//!
//! A panic is a bug, whatever is passed in. All state is bounded. The codecs are strict in writing
//! and lenient in parsing; `docs/amt.md` of the repository lists the differences between programs
//! in the field.

pub mod discovery;
pub mod gateway;
pub mod ip;
mod mac;
pub mod relay;
pub mod report;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use mac::{Mac, Secrets};
pub use wire::{GATEWAY_FIELDS, MAX_HEADER, Message, PFlag, WireError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// UDP port of relays (RFC 7450, section 7.2).
pub const PORT: u16 = 2268;

/// IPv4 address that any relay may announce for Relay Discovery (RFC 7450, section 7.1).
pub const ANYCAST_V4: Ipv4Addr = Ipv4Addr::new(192, 52, 193, 1);

/// IPv6 address that any relay may announce for Relay Discovery (RFC 7450, section 7.1).
pub const ANYCAST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 3, 0, 0, 0, 0, 0, 1);
