//! Flexicast QUIC over quiche and tokio: the socket loops of both ends around the state machines of
//! the `flexicast` crate, whose docs teach the model.
//!
//! # The source
//!
//! [`source::Source::bind`] binds a UDP socket for each shard of the receivers' QUIC connections,
//! all to one address, and a multicast socket for each group. One task, [`source::Source::run`],
//! owns the state machine and the flows; shards are threads of their own, unless there is only one
//! ([`source::SourceConfig::shards`]). [`source::SourceHandle`] publishes updates and asks for
//! status from anywhere. Updates stay in the application's store: a [`source::Backlog`] reads them
//! for receivers that are behind, and decides who may receive.
//!
//! # The receiver
//!
//! [`receiver::Receiver::start`] spawns a task that keeps one connection to a source alive, listens
//! to the flows by every rung it has, and sends [`receiver::Event`]s: each update once and in
//! order. The application stores them and confirms the cursor
//! ([`receiver::ReceiverHandle::confirm`]); an application that does not read its events stops its
//! own receiver and no other.
//!
//! # Invariants
//!
//! - quiche is used as published. Flexicast lives alongside it: flow packets never enter a
//!   `quiche::Connection`, and quiche knows nothing of flows.
//! - No type of quiche appears in this crate's public interface.
//! - Every channel between tasks is bounded.
//!
//! The README has an example, and `examples/publish.rs` runs both ends.

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
pub use error::{Error, QuicError};
pub use flexicast::{Cause, Cursor, FlowId, Rung, Via};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
