//! Flexicast QUIC over quiche and tokio: the socket loops of both ends around the state machines of the `flexicast` crate.
//!
//! [`source::Source`] serves channels: every receiver's own QUIC connection on one UDP socket, and the flows by multicast sockets beside it, or as copies.
//! [`receiver::Receiver`] keeps one connection to a source alive, listens to the flows beside it, and hands out updates, each once and in order.
//!
//! **Architecture invariant:** quiche is used as published. Flexicast lives beside it: flow packets never enter a `quiche::Connection`, and quiche knows nothing
//! of flows. **API boundary:** no type of quiche appears in this crate's public interface.

mod amplification;
mod config;
mod control;
mod error;
mod ids;
mod link;
mod qlog;
mod recall;
pub mod receiver;
mod reset;
mod retry;
pub mod source;
mod timers;
mod tls;
mod train;

pub use config::spki_pin;
pub use error::Error;
pub use flexicast::{Cause, Cursor, FlowId, Rung, Via};
