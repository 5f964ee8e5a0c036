//! UDP sockets for protocols that move many datagrams, on Linux: GSO, GRO and batches, and
//! multicast over IPv4 and IPv6.
//!
//! # The model
//!
//! A *train* is a run of datagrams of one size to one destination. Sending a train costs one system
//! call where the kernel segments it (GSO), and receiving returns many datagrams per call
//! (`recvmmsg` with GRO, split again into datagrams).
//!
//! An error that concerns one destination or one datagram (an ICMP message, a refusal of the
//! firewall, a datagram above the MTU) never ends a loop over a socket that many peers share: such
//! a datagram counts as lost, as UDP allows, and [`UdpSocket::counters`] shows it. Any other error
//! means that the socket is unusable.
//!
//! # The parts
//!
//! - [`UdpSocket`]: a non-blocking socket under tokio, with [`RecvBatch`] as its receive buffers.
//! - [`MulticastSender`] and [`join`]: the two ends of a multicast flow, source-specific (RFC 4607)
//!   or any-source.
//! - [`route_source`], [`is_routable`], [`find_interface`], [`interface_mtu`]: local addresses of
//!   routes, reachability of addresses, interfaces by name, their MTU.
//! - [`host_addresses`]: this machine's addresses, and which of them are about to go.
//! - [`Packets`]: packets on their way out, which it cuts into trains.
//! - [`direct`]: sockets for a thread of its own, without a runtime, such as a relay's packet loop.

mod address;
#[cfg(feature = "tokio")]
mod batch;
pub mod direct;
mod error;
mod host_addresses;
mod interface;
#[cfg(feature = "tokio")]
mod join;
#[cfg(feature = "tokio")]
mod loss;
#[cfg(feature = "tokio")]
mod multicast;
mod packets;
#[cfg(feature = "tokio")]
mod read_interest;
#[cfg(feature = "tokio")]
mod udp;

pub use address::{is_routable, route_source};
#[cfg(feature = "tokio")]
pub use batch::{Datagram, RecvBatch};
pub use host_addresses::{HostAddress, host_addresses};
pub use interface::{find_interface, interface_address, interface_mtu};
#[cfg(feature = "tokio")]
pub use join::join;
#[cfg(feature = "tokio")]
pub use loss::Counters;
#[cfg(feature = "tokio")]
pub use multicast::MulticastSender;
pub use packets::Packets;
#[cfg(feature = "tokio")]
pub use udp::{BindOptions, UdpSocket, bind_group};

#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;
