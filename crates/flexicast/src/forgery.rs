//! Packets that a member can forge, because it holds the flow's key: for tests of everything that
//! must not come of them.

use erasure::{Parameters, RepairHeader, Scheme, Window};

use crate::frame::{put_datagram, put_ping, put_repair, put_reset, put_stream};
use crate::message::Fragment;

/// Most bytes of frames in a forged packet.
const LIMIT: usize = 1_100;
/// The same of a packet in the place of a larger one of the source.
const LARGE: usize = 1_400;

/// Facts that a member knows, and bytes that it makes.
#[derive(Clone, Copy)]
pub struct Knowledge<'a> {
    /// Number of the channel's next update.
    pub seq: u64,
    /// The flow's next packet number.
    pub pn: u64,
    /// The newest update, as the source sent it; empty while there is none.
    pub last: &'a [u8],
    /// The same with something changed behind its header, so that it is still a valid update.
    pub changed: &'a [u8],
    /// Makes an update of this number, valid but for a signature.
    pub unsigned: &'a dyn Fn(u64) -> Vec<u8>,
    /// Makes an update of this number, signed with another key than the source's.
    pub signed: &'a dyn Fn(u64) -> Vec<u8>,
}

impl std::fmt::Debug for Knowledge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Knowledge")
            .field("seq", &self.seq)
            .field("pn", &self.pn)
            .finish_non_exhaustive()
    }
}

/// Packet to be sealed with the flow's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgedPacket {
    /// Its number.
    pub pn: u64,
    /// Its frames.
    pub frames: Vec<u8>,
}

/// Kind of forgery: makes a packet, if a member can at this moment.
pub type Forge = fn(&Knowledge<'_>) -> Option<ForgedPacket>;

/// Kinds of forgery, by name. The first ones have numbers of packets that were sent; others make
/// members leave the flow sooner or later.
pub const FORGERIES: [(&str, Forge); 19] = [
    // Who lost the end of the update takes this for it.
    ("the newest update, changed behind its header", |known| {
        let header = signing::header_len(known.changed)?;
        let from = known.changed.len().saturating_sub(LARGE - 60).max(header);
        let mut frames = Vec::new();
        let (seq, data) = (known.seq - 1, known.changed.get(from..)?);
        put_stream(&mut frames, LARGE, seq, from as u64, data, true)?;
        let pn = known.pn.checked_sub(1)?;
        Some(ForgedPacket { pn, frames })
    }),
    ("packet numbers that were sent", |known| {
        let forged = stream(known, known.seq, 0, b"forged", true)?;
        let pn = known.pn.checked_sub(1)?;
        Some(ForgedPacket { pn, ..forged })
    }),
    ("a repair symbol of the newest packets", |known| {
        let window = Window::of([known.pn.checked_sub(2)?, known.pn - 1])?;
        repair(known.pn, window, &[0xee; 500])
    }),
    ("a repair symbol of a packet that was not sent", |known| {
        let frames = stream(known, known.seq, 0, &(known.unsigned)(known.seq), true)?.frames;
        let symbol = [&(frames.len() as u16).to_be_bytes(), &frames[..]].concat();
        repair(known.pn + 1, Window::of([known.pn])?, &symbol)
    }),
    ("the next update, unsigned", |known| {
        stream(known, known.seq, 0, &(known.unsigned)(known.seq), true)
    }),
    ("the next update, by another key", |known| {
        stream(known, known.seq, 0, &(known.signed)(known.seq), true)
    }),
    ("an older update in the place of the next one", |known| {
        stream(known, known.seq, 0, known.last, true)
    }),
    ("an update far ahead", |known| {
        let seq = known.seq + 40;
        stream(known, seq, 0, &(known.signed)(seq), true)
    }),
    ("an update that was handed on", |known| {
        let seq = known.seq.checked_sub(2)?;
        stream(known, seq.max(1), 0, b"forged", true)
    }),
    ("the header", |known| {
        let signed = (known.signed)(known.seq);
        stream(known, known.seq, 0, signed.get(..60)?, false)
    }),
    ("the length", |known| {
        stream(known, known.seq, 100, b"end", true)
    }),
    ("an end without bytes", |known| {
        stream(known, known.seq, 0, b"", true)
    }),
    ("ten bytes at the beginning", |known| {
        stream(known, known.seq, 0, &[0xee; 10], false)
    }),
    (
        "single bytes far behind the end of updates to come",
        |known| {
            let mut frames = Vec::new();
            for ahead in 1..20 {
                let (seq, offset) = (known.seq + ahead, 4_000_000 + ahead);
                put_stream(&mut frames, LIMIT, seq, offset, b"x", false)?;
            }
            Some(ForgedPacket {
                pn: known.pn,
                frames,
            })
        },
    ),
    ("RESET_STREAM of the next update", |known| {
        let mut frames = Vec::new();
        put_reset(&mut frames, known.seq, 0, 5);
        Some(ForgedPacket {
            pn: known.pn,
            frames,
        })
    }),
    ("RESET_STREAM of the newest update", |known| {
        let mut frames = Vec::new();
        put_reset(&mut frames, known.seq.checked_sub(1)?.max(1), 0, 5);
        Some(ForgedPacket {
            pn: known.pn,
            frames,
        })
    }),
    ("DATAGRAM", |known| {
        let mut frames = Vec::new();
        let fragment = Fragment {
            channel: 1,
            number: 1 << 60,
            length: 6,
            offset: 0,
            data: b"forged",
        };
        put_datagram(&mut frames, LIMIT, &fragment.encode()).then_some(())?;
        Some(ForgedPacket {
            pn: known.pn,
            frames,
        })
    }),
    ("PING", ping),
    ("packet numbers that were not sent", |known| {
        let forged = ping(known)?;
        Some(ForgedPacket {
            pn: known.pn + 3,
            ..forged
        })
    }),
];

fn ping(known: &Knowledge<'_>) -> Option<ForgedPacket> {
    let mut frames = Vec::new();
    put_ping(&mut frames);
    Some(ForgedPacket {
        pn: known.pn,
        frames,
    })
}

/// Returns a packet with this repair symbol.
fn repair(pn: u64, window: Window, symbol: &[u8]) -> Option<ForgedPacket> {
    let header = RepairHeader {
        scheme: Scheme::Xor,
        parameters: Parameters { key: 0, density: 0 },
        window,
    };
    let mut bytes = Vec::new();
    header.append_to(&mut bytes);
    bytes.extend_from_slice(symbol);
    let mut frames = Vec::new();
    put_repair(&mut frames, LARGE, bytes.len(), |out| {
        out.extend_from_slice(&bytes);
        true
    })
    .then_some(ForgedPacket { pn, frames })
}

/// Returns a packet with these bytes of an update in the place of the flow's next one.
fn stream(
    known: &Knowledge<'_>,
    seq: u64,
    offset: u64,
    data: &[u8],
    ends: bool,
) -> Option<ForgedPacket> {
    let mut frames = Vec::new();
    put_stream(&mut frames, LIMIT, seq, offset, data, ends)?;
    Some(ForgedPacket {
        pn: known.pn,
        frames,
    })
}
