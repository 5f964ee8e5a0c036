//! Flexicast QUIC without input or output.
//!
//! One source sends every update once, on a *flow* that is encrypted once for all its receivers; each receiver also holds an ordinary QUIC connection (the
//! *unicast path*) that carries keys, acknowledgements and repairs. This crate holds everything of that which needs no socket: the wire format, packet
//! protection, the flow's sender with its aggregation of acknowledgements, and the state machines of both ends.
//!
//! **Architecture invariant:** nothing in here opens a socket, reads a clock, spawns a task or draws entropy. Callers hand in bytes and `now`, and take out
//! bytes, deadlines and events. Given the same inputs and the same seed, the outputs are the same.
//!
//! **Architecture invariant:** a panic is a bug in this crate, never a reaction to input.
//!
//! The normative description of every byte is `docs/protocol.md` in the repository's root; section numbers in the comments point into it.

pub mod ack;
pub mod control;
pub mod flow;
pub mod frame;
mod id;
pub mod merge;
pub mod pace;
pub mod protect;
pub mod range;
pub mod receiver;
pub mod rtt;
pub mod source;
pub mod trace;
pub mod unicast;
mod wire;

pub use id::{Cause, Cursor, FlowId, PathId, Rung, Via};
pub use wire::WireError;

/// The application protocol that both ends negotiate (protocol.md section 2).
pub const ALPN: &[u8] = b"flexfeed/1";

/// Default UDP payload of a flow packet in bytes: with an IPv6-in-IPv6 AMT tunnel around it, it still fits the minimum IPv6 MTU of 1,280 bytes.
pub const DEFAULT_UDP_PAYLOAD: usize = 1180;

/// The largest encoded update in bytes that travels; a source refuses to publish a larger one and a receiver drops what claims to be larger.
pub const MAX_UPDATE: usize = 4 << 20;
