//! Erasure codes over the packets of a flow (protocol.md section 5.6): repair symbols, from which a
//! receiver rebuilds packets that it lost.
//!
//! A **source symbol** is the plaintext of one packet: its length in 2 bytes, its bytes, and zeros
//! up to the length of the longest one. Its identifier is the packet number. A **repair symbol** is
//! a linear combination over GF(2⁸) of the source symbols of one [`Window`]. The schemes differ
//! in the coefficients alone, which are a [`Code`]: [`Xor`], [`ReedSolomon`] and [`Rlc`]. So one
//! [`Encoder`] and one [`Decoder`] serve all of them.
//!
//! The source passes each packet to [`Encoder::push`] and takes repair symbols from
//! [`Encoder::repair`], which does all of the work. The receiver passes the packets that it opened
//! to [`Decoder::on_packet`], repair symbols to [`Decoder::on_repair`], and takes rebuilt packets
//! from [`Decoder::poll_event`].
//!
//! # Key epochs
//!
//! A window must never span two key epochs: a receiver that joins a private channel holds the newer
//! key only, and would rebuild packets that were sent before. The transport therefore
//!
//! - calls [`Encoder::clear`] at the switch, before it pushes the first packet of the newer epoch,
//!   and sends no repair symbol of an older window afterwards;
//! - calls [`Decoder::begin_epoch`] with the newer epoch's First PN when the first packet of that
//!   epoch opens, before it passes that packet on. The decoder then refuses packets and windows
//!   below, by whichever packet they come.
//!
//! Only packets that are authentic may reach the decoder, on flows that authenticate them: a
//! rebuilt packet is as authentic as the packets and repair symbols that it was rebuilt from.
//!
//! # Bounds
//!
//! Any bytes may be passed in: a panic is a bug. A decoder holds at most [`MAX_HELD`] packets and
//! as many equations as missing packets, at most [`MAX_UNKNOWNS`]; a call takes at most some 400
//! multiplications of a symbol by a byte, of 10 to 250 ns each.
//!
//! No file, socket, clock or entropy.
#![deny(unsafe_code)]

mod code;
mod decoder;
mod encoder;
mod field;
mod kernel;
mod repair;
mod ring;
mod symbol;
mod system;
#[cfg(test)]
mod tests;
mod tinymt;

pub use code::{Code, DENSE, Parameters, ReedSolomon, Rlc, Scheme, Xor};
pub use decoder::{Decoder, Event, Gain, Intake, RepairError};
pub use encoder::{Encoder, SourceError};
pub use kernel::Kernel;
pub use repair::{HeaderError, RepairHeader, Window};

/// Maximum length of a symbol in bytes, with the 2 bytes of the packet's length.
pub const MAX_SYMBOL: usize = 1_500;
/// Maximum length of a packet's plaintext that can be protected, in bytes.
pub const MAX_PACKET: usize = MAX_SYMBOL - symbol::LENGTH;
/// Maximum number of packet numbers from the first to the last one of a window.
pub const MAX_SPAN: usize = 128;
/// Usual number of packet numbers from the first to the last one of a window.
pub const DEFAULT_SPAN: usize = 64;
/// Maximum length of the header of a repair symbol in bytes.
pub const MAX_REPAIR_HEADER: usize = 1 + 2 + 8 + 1 + MAX_SPAN / 8;
/// Maximum number of missing packets that a decoder has equations of.
pub const MAX_UNKNOWNS: usize = 16;
/// Maximum number of packets that a decoder holds.
pub const MAX_HELD: usize = 2 * MAX_SPAN;
/// Maximum number of events that wait in a decoder; the oldest is dropped beyond.
pub const MAX_EVENTS: usize = 64;

/// The examples of the README, as tests.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
