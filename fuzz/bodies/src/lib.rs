//! Bodies of the fuzz targets.
//!
//! `fuzz/targets` wraps these functions for cargo-fuzz (`./dev fuzz`); `tests/corpora.rs` runs
//! every file of `fuzz/corpus` and `fuzz/found` through them with the stable compiler, so that a
//! bug found once stays found. A function returns for any input; it panics only where the code
//! under test has a bug.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::OnceLock;

use bytes::Bytes;
use flexicast::signing;

mod erasure;
mod feedback;
mod feeds;
mod link;
mod protection;
mod receiver;
mod signature;
mod source;
mod tunnel;
mod wire;

pub use erasure::{erasure, play_erasure};
pub use feedback::{feedback, play_feedback};
pub use feeds::{feed, message, opml, payload, publication, xml};
pub use link::link;
pub use protection::packet;
pub use receiver::{play_receiver, receiver};
pub use signature::{play_signature, signature};
pub use source::{play_source, source};
pub use tunnel::{Coverage, amt, amt_gateway, amt_relay, play_amt_gateway, play_amt_relay};
pub use wire::{ack, control, frames, tracker, unicast};

/// A target: its name is that of its file in `fuzz/targets` and of its folder in `fuzz/corpus`.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("ack", ack),
    ("amt", amt),
    ("amt_gateway", amt_gateway),
    ("amt_relay", amt_relay),
    ("control", control),
    ("erasure", erasure),
    ("feed", feed),
    ("feedback", feedback),
    ("frames", frames),
    ("link", link),
    ("message", message),
    ("opml", opml),
    ("packet", packet),
    ("payload", payload),
    ("publication", publication),
    ("receiver", receiver),
    ("signature", signature),
    ("source", source),
    ("tracker", tracker),
    ("unicast", unicast),
    ("xml", xml),
];

/// `len` bytes that differ from those of other updates; cut out of one piece, since making them
/// costs more than all else under a fuzzer.
fn content_of(channel: usize, seq: u64, len: usize) -> Bytes {
    static PIECE: OnceLock<Bytes> = OnceLock::new();
    let piece = PIECE.get_or_init(|| {
        (0..1u32 << 17)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8)
            .collect()
    });
    let start = (seq.wrapping_mul(131) as usize + channel * 17) % 4096;
    // An update that begins like a signed one loses its header on the way to some receivers.
    let is_plain = |at: &usize| signing::header_len(&piece[*at..]).is_none();
    let start = (start..4096).find(is_plain).unwrap_or(0);
    piece.slice(start..start + len)
}

/// The first byte, which chooses something, and the rest.
fn choice(data: &[u8]) -> (u8, &[u8]) {
    data.split_first()
        .map_or((0, data), |(first, rest)| (*first, rest))
}
