//! Flexicast QUIC without I/O: wire format, packet protection, and the state machines of a source
//! and of its receivers.
//!
//! # The model
//!
//! One source sends every update once, on a *flow*: UDP datagrams that are encrypted once for all
//! receivers. Each receiver also holds an ordinary QUIC connection to the source, the *unicast
//! path*:
//!
//! ```text
//! source                                      receiver
//!    │ ◄── control stream: HELLO ───────────  │   which channels, from which cursors
//!    │ ─── WELCOME, FC_ANNOUNCE, FC_KEY ───►  │   where the flow is, and its key
//!    │ ◄── FC_STATE: JOIN ──────────────────  │
//!    │ ═══ flow: packets by multicast ═════►  │
//!    │ ◄── FC_STATE: READY ─────────────────  │   a packet has arrived: that proves the rung
//!    │ ─── FC_RUNG ────────────────────────►  │   a member now
//!    │ ◄── datagrams: PATH_ACK ─────────────  │
//!    │ ─── streams: repairs, catch-up ─────►  │   what the flow did not bring
//!    │ ◄── CURSORS ─────────────────────────  │   what the outputs hold
//! ```
//!
//! The paths by which a flow can arrive are *rungs* of a ladder, best first: native multicast, an
//! AMT relay, replicated packets on the connection's own path ([`Rung`]). On the last rung, all
//! updates come by unicast streams. A receiver climbs by proof and falls back when the flow goes
//! silent; the source moves a member down that does not acknowledge. Membership begins and ends
//! with a cut that leaves no gap.
//!
//! An update is opaque bytes with a dense number (`seq`). Flow and unicast path carry ranges of the
//! same bytes; [`merge`] puts them together, and each update leaves it once and in order.
//!
//! # The parts
//!
//! - [`source::Source`]: all channels of a source, its sessions and flows.
//! - [`receiver::Receiver`]: the receiving end, across connections.
//! - [`flow::FlowSender`]: the sending end of one flow: members, acknowledgements, losses, keys.
//! - [`rate::RateController`]: the rate that the paths of a flow's members take.
//! - [`merge::Merge`]: where the bytes of both paths meet.
//! - [`control`], [`unicast`], [`frame`], [`ack`], [`message`]: the codecs.
//! - [`protect`]: packet protection (RFC 9001 with a key per epoch of the flow).
//! - [`authentication`]: proof that a packet comes from the source, and not from a receiver.
//! - [`fec`]: repair symbols, from which receivers rebuild what they lost.
//! - [`feedback`]: acknowledgements outside of the QUIC connection.
//! - [`trace`]: outcomes of flow packets, for qlog.
//!
//! Both ends are driven alike: pass in what arrives and `now`; take out bytes (`take_control`,
//! `poll_datagram`, `poll_feedback`, `poll_transmit`, `poll_unicast`), events (`poll_event`) and
//! updates (`poll_update`); call `handle_timeout` at `poll_timeout`.
//!
//! # Invariants
//!
//! - Nothing in here opens a socket, reads a clock, spawns a task or draws entropy. The same inputs
//!   and the same seed give the same outputs.
//! - A panic is a bug, never a reaction to input. Every buffer that a peer can fill has a bound.
//!
//! `docs/protocol.md` in the repository describes every byte; section numbers in comments point
//! into it.
//!
//! The README has an example, and `examples/flow.rs` another one with a flow.

pub mod ack;
pub mod authentication;
pub mod control;
mod deadline;
mod ecn;
pub mod fec;
pub mod feedback;
pub mod flow;
#[cfg(feature = "fault-injection")]
pub mod forgery;
pub mod frame;
mod id;
pub mod merge;
pub mod message;
pub mod pace;
pub mod protect;
pub mod range;
pub mod rate;
pub mod receiver;
mod rtt;
pub mod source;
pub mod trace;
pub mod unicast;
mod wire;

pub use ecn::{Ecn, EcnCounts};
pub use id::{Cause, Cursor, FlowId, PathId, Rung, Via};
pub use signing;
pub use wire::WireError;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The application protocol that both ends negotiate (protocol.md section 2).
pub const ALPN: &[u8] = b"flexfeed/1";

/// Default UDP payload of a flow packet in bytes: with an IPv6-in-IPv6 AMT tunnel around it, it
/// still fits the minimum IPv6 MTU of 1,280 bytes.
pub const DEFAULT_UDP_PAYLOAD: usize = 1180;

/// Maximum size of an encoded update in bytes: a source refuses to publish a larger one, and a
/// receiver drops what claims to be larger.
pub const MAX_UPDATE: usize = 4 << 20;
