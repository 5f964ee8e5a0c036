//! AMT gateway (RFC 7450) over UDP sockets and tokio, with relay discovery by DNS (RFC 8777).
//!
//! # The model
//!
//! [`Gateway`] wraps the state machine [`amt::gateway::Gateway`] with sockets, timers and name
//! lookups. It has no task and no channel: the caller's task waits in [`Gateway::ready`], then
//! [`Gateway::receive`] passes it the packets of whole batches (`recvmmsg`, GRO) one by one, and
//! [`Gateway::poll_event`] returns what changed.
//!
//! Relays come from four sources, tried in this order: [`Config::relays`], hints of the flow's
//! source ([`Gateway::set_hints`]), the DNS ([`discovery`]) and anycast.
//!
//! The gateway needs no privileges: it uses ordinary sockets, on ports that the kernel chooses
//! unless one is configured or kept from the previous run ([`MemoryFile`]), and returns the
//! payloads of the datagrams inside the tunnel.
//!
//! # The parts
//!
//! - [`Gateway`] and its [`Config`].
//! - [`RelayName`]: a relay by address or by name.
//! - [`discovery`]: relays that a source publishes in the DNS.
//! - [`probe()`]: a health check of a relay.
//! - [`MemoryFile`]: state of a program's gateways for its next run.

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
pub use name::{ParseRelayNameError, RelayName};
pub use probe::{ProbeError, ProbeReply, Prober, probe};
