//! Sockets for a dedicated thread: no runtime between the kernel and the loop.
//!
//! - [`Poller`] waits for several sockets, and a [`Waker`] interrupts it from another thread.
//! - [`UdpPort`] is a UDP socket that never fragments, and reports each datagram's destination.
//! - [`GroupPort`] receives multicast groups; [`Memberships`] joins groups without receiving them.
//! - [`Inbox`] receives many datagrams, or trains of them, in one system call.
//! - [`Fanout`] sends one train to many destinations in one system call.
//! - [`Replicator`] does so from threads of its own.
//! - [`Capture`] returns the raw multicast packets of an interface, including those of this host.
//! - [`route_interface`] and [`interface_state`] find the interface of a route and its state.
//! - [`IcmpPort`] sends ICMP messages to senders of packets that are too large.
//!
//! Everything is non-blocking but [`Poller::wait`].

mod capture;
mod errors;
mod fanout;
mod filter;
mod group;
mod icmp;
mod inbox;
mod poll;
mod port;
mod replicator;
mod route;
pub(crate) mod sys;

pub use capture::{Capture, CapturedPacket};
pub use errors::PathError;
pub use fanout::{Fanout, SendFailure, Target};
pub use group::{GroupPort, Memberships};
pub use icmp::IcmpPort;
pub use inbox::{Inbox, Message};
pub use poll::{Poller, Readiness, Waker};
pub use port::UdpPort;
pub use replicator::{Destination, Destinations, ReplicationFailure, Replicator};
pub use route::{InterfaceState, interface_state, route_interface};
#[cfg(feature = "tokio")]
pub(crate) use sys::dropped;
pub use sys::raise_descriptor_limit;
