//! The AMT gateway over UDP sockets and tokio, and the discovery of relays by DNS.
//!
//! - [`Gateway`]: an [`amt::gateway::Gateway`] with its sockets and timers. It has no task and no
//!   channel: the caller's task waits in [`Gateway::ready`] and then calls [`Gateway::receive`],
//!   which hands out the packets of whole batches (`recvmmsg`, GRO) one by one.
//! - [`RelayName`]: relays as people and sources name them, by address or by name.
//! - [`discovery`]: the relays that a source publishes in the DNS (RFC 8777).
//! - [`probe()`]: whether a relay answers, for a health check.
//! - [`MemoryFile`]: what a program's gateways keep for its next run.
//!
//! Needs no privilege: the sockets are ordinary ones, on ports that the kernel chooses unless one is
//! set or kept from the run before, and what comes out are the payloads of the datagrams inside the
//! tunnel.

mod alarm;
mod config;
pub mod discovery;
mod finder;
mod gateway;
mod memory;
mod name;
mod probe;
mod sockets;

#[cfg(test)]
mod tests;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(any(test, feature = "fault-injection"))]
pub use config::Faults;
pub use config::{Config, Hint};
pub use finder::{Lookup, NameStatus};
pub use gateway::{Gateway, Packet, Status};
pub use memory::{Memory, MemoryFile};
pub use name::{BadRelayName, RelayName};
pub use probe::{Answer, ProbeError, Prober, probe};
