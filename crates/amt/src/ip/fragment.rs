//! Fragmentation inside a tunnel (RFC 791): the outer packet is never fragmented.

use super::header::v4;
use super::{IpError, V4_HEADER, set_v4_checksum};

const DONT_FRAGMENT: u16 = 0x4000;
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// Flag of an option's type: copied into every fragment.
const COPIED: u8 = 0x80;

/// Cuts an IPv4 packet into fragments of at most `mtu` bytes and passes each to `each`; a packet
/// that fits is passed as it is. Bytes after the packet are ignored.
///
/// # Errors
/// The packet is not IPv4, is too large and has DF set, or `mtu` has no room for eight bytes after
/// the header. No fragment was passed then.
pub fn fragment_v4(packet: &[u8], mtu: usize, mut each: impl FnMut(&[u8])) -> Result<(), IpError> {
    if let Some(version) = packet.first().map(|first| first >> 4).filter(|v| *v != 4) {
        return Err(IpError::Version(version));
    }
    let header = v4(packet)?;
    let whole = packet.get(..header.total).unwrap_or_default();
    if whole.len() <= mtu {
        each(whole);
        return Ok(());
    }
    let flags = header.fragment();
    if flags & DONT_FRAGMENT != 0 {
        return Err(IpError::DontFragment);
    }
    let (first_header, mut payload) = whole
        .split_at_checked(header.header_len)
        .ok_or(IpError::Length { what: "IPv4" })?;
    // The first fragment carries all options; the later headers are at most as long.
    let room = mtu.saturating_sub(first_header.len()) & !7;
    if room == 0 {
        return Err(IpError::Mtu(mtu));
    }
    let later_header = header_of_later_fragments(first_header);
    let later_room = (mtu - later_header.len()) & !7;
    let mut offset = flags & OFFSET;
    let mut out = Vec::with_capacity(mtu);
    let (mut fragment_header, mut room) = (first_header, room);
    loop {
        // A packet may itself be a fragment: the last piece keeps the original MF flag.
        let (piece, rest) = payload.split_at_checked(room).unwrap_or((payload, &[]));
        let more = if rest.is_empty() { flags & MORE } else { MORE };
        out.clear();
        out.extend_from_slice(fragment_header);
        let len = (fragment_header.len() + piece.len()) as u16;
        out[2..4].copy_from_slice(&len.to_be_bytes());
        out[6..8].copy_from_slice(&((offset & OFFSET) | more).to_be_bytes());
        set_v4_checksum(&mut out);
        out.extend_from_slice(piece);
        each(&out);
        if rest.is_empty() {
            return Ok(());
        }
        offset = offset.wrapping_add((room / 8) as u16);
        (payload, fragment_header, room) = (rest, &later_header, later_room);
    }
}

/// Returns the header without the options that only the first fragment carries.
fn header_of_later_fragments(header: &[u8]) -> Vec<u8> {
    let (fixed, mut options) = header.split_at_checked(V4_HEADER).unwrap_or((header, &[]));
    let mut kept = fixed.to_vec();
    while let Some((&kind, rest)) = options.split_first() {
        match kind {
            0 => break,
            1 => options = rest,
            _ => {
                // The length counts type and length; after a wrong one, nothing can be parsed.
                let len = rest.first().map_or(0, |len| usize::from(*len));
                let Some((option, after)) = options.split_at_checked(len).filter(|_| len >= 2)
                else {
                    break;
                };
                if kind & COPIED != 0 {
                    kept.extend_from_slice(option);
                }
                options = after;
            }
        }
    }
    while kept.len() % 4 != 0 {
        kept.push(0);
    }
    let words = (kept.len() / 4) as u8;
    if let Some(first) = kept.first_mut() {
        *first = 0x40 | words;
    }
    kept
}
