//! UDP sockets for flexfeed: batched and segmented input and output, and multicast over IPv4 and IPv6.
//!
//! - [`UdpSocket`]: a non-blocking socket under tokio that sends trains of equal datagrams in one
//!   system call (GSO) and receives many at once (`recvmmsg` and GRO, split again into datagrams).
//! - [`MulticastSender`] and [`join`]: the two ends of a multicast flow, source-specific
//!   (RFC 4607) or any-source.
//! - [`route_source`], [`is_routable`], [`find_interface`]: which local address the kernel uses towards another, and
//!   whether the rest of the Internet could reach an address.
//! - [`direct`]: sockets for a thread of its own, without a runtime: for a relay.
//!
//! An error that concerns one destination or one datagram (an ICMP message, a firewall's refusal, a
//! datagram above the MTU) never ends a loop over a socket that many peers share: such a datagram
//! counts as lost, as UDP allows, and [`UdpSocket::counters`] shows it.

mod address;
#[cfg(feature = "tokio")]
mod batch;
pub mod direct;
mod error;
mod interface;
#[cfg(feature = "tokio")]
mod join;
#[cfg(feature = "tokio")]
mod loss;
#[cfg(feature = "tokio")]
mod multicast;
#[cfg(feature = "tokio")]
mod udp;

pub use address::{is_routable, route_source};
#[cfg(feature = "tokio")]
pub use batch::{Datagram, RecvBatch};
pub use interface::{find_interface, interface_address};
#[cfg(feature = "tokio")]
pub use join::join;
#[cfg(feature = "tokio")]
pub use loss::Counters;
#[cfg(feature = "tokio")]
pub use multicast::MulticastSender;
#[cfg(feature = "tokio")]
pub use udp::{BindOptions, UdpSocket};

#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;
