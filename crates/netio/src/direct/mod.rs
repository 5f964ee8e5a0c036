//! Sockets for a thread that does nothing else: no runtime between the kernel and the loop.
//!
//! - [`Poller`] waits for several sockets, and a [`Waker`] interrupts it from another thread.
//! - [`UdpPort`] is a UDP socket that never fragments, and tells of each datagram where it was sent to.
//! - [`GroupPort`] is one that receives multicast groups; [`Memberships`] joins groups without
//!   receiving them.
//! - [`Inbox`] receives many datagrams, or trains of them, in one system call.
//! - [`Fanout`] sends one train to many destinations in one system call.
//! - [`Capture`] sees the multicast packets of an interface as they are, those of this host too.
//! - [`route_interface`] and [`interface_state`] tell where multicast is, and whether it can be there.
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
mod route;
mod sys;

pub use capture::{Capture, Captured};
pub use errors::PathError;
pub use fanout::{Fanout, Sent, Target};
pub use group::{GroupPort, Memberships};
pub use icmp::IcmpPort;
pub use inbox::{Inbox, Message};
pub use poll::{Poller, Ready, Waker};
pub use port::UdpPort;
pub use route::{InterfaceState, interface_state, route_interface};
pub use sys::raise_descriptor_limit;
