//! Reassembly of IPv4 fragments (RFC 791, section 3.2).
//!
//! Relays fragment packets that are too large for the path inside the tunnel, and no kernel
//! reassembles them where the gateway is a program.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::header::v4;
use super::{Checksum, IpError};

/// Time after which an incomplete packet is dropped.
const TIME: Duration = Duration::from_secs(15);

/// Most incomplete packets; one more evicts the oldest.
const MAX_PACKETS: usize = 64;

/// Most bytes of all fragments together.
const MAX_BYTES: usize = 1 << 20;

/// Most fragments of one packet: the largest packet in the smallest fragments that networks have
/// (576).
const MAX_PARTS: usize = 128;

/// Largest packet, in bytes.
const MAX_PACKET: usize = u16::MAX as usize;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// Identity of a packet: sender, group, protocol and identification.
type Key = (IpAddr, IpAddr, u8, u16);

/// Result of adding a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Fragment<'a> {
    /// The complete packet, header and payload, as if it had never been fragmented.
    Whole(&'a mut [u8]),
    /// Fragments are missing.
    Waiting,
}

/// Incomplete IPv4 packets, bounded in number, bytes and time.
#[derive(Debug, Default)]
pub struct Reassembly {
    packets: BTreeMap<Key, Parts>,
    bytes: usize,
    whole: Vec<u8>,
}

#[derive(Debug)]
struct Parts {
    begun: Instant,
    /// Header of the first fragment, without the fragment field.
    header: Option<Vec<u8>>,
    /// Offset and bytes of each fragment, in order, without overlaps.
    parts: Vec<(usize, Vec<u8>)>,
    /// Length of the payload, once the last fragment has arrived.
    len: Option<usize>,
    bytes: usize,
}

impl Reassembly {
    /// Adds a fragment. A packet whose fragments contradict one another is dropped, so that no
    /// attacker can slip bytes into it (RFC 1858).
    ///
    /// # Errors
    /// The fragment is damaged, or cannot be part of a packet.
    pub fn take(&mut self, packet: &[u8], now: Instant) -> Result<Fragment<'_>, IpError> {
        let header = v4(packet)?;
        let whole = packet.get(..header.total).unwrap_or_default();
        let (head, bytes) = whole
            .split_at_checked(header.header_len)
            .ok_or(IpError::Length { what: "IPv4" })?;
        if Checksum::default().with(head).finish() != 0 {
            return Err(IpError::Checksum { what: "IPv4" });
        }
        let flags = header.fragment();
        let (offset, more) = (usize::from(flags & OFFSET) * 8, flags & MORE != 0);
        let end = offset + bytes.len();
        let cannot_be = bytes.is_empty() || (more && bytes.len() % 8 != 0);
        if cannot_be || end + head.len() > MAX_PACKET {
            return Err(IpError::Length {
                what: "IPv4 fragment",
            });
        }
        let identification = u16::from_be_bytes([header.fixed[4], header.fixed[5]]);
        let protocol = header.fixed[9];
        let key = (
            header.source(),
            header.destination(),
            protocol,
            identification,
        );
        self.make_room(&key, bytes.len(), now);
        let parts = self.packets.entry(key).or_insert_with(|| Parts {
            begun: now,
            header: None,
            parts: Vec::new(),
            len: None,
            bytes: 0,
        });
        let before = parts.bytes;
        let fits = parts.add(head, offset, bytes, (!more).then_some(end));
        self.bytes += parts.bytes - before;
        if !fits {
            self.give_up(&key);
            return Err(IpError::Fragment);
        }
        if !parts.is_whole() {
            return Ok(Fragment::Waiting);
        }
        let Some(parts) = self.give_up(&key) else {
            return Ok(Fragment::Waiting);
        };
        // The first fragment's header may be longer than that of the fragment checked above.
        if parts.total() > MAX_PACKET {
            return Err(IpError::Length {
                what: "IPv4 fragment",
            });
        }
        parts.join(&mut self.whole);
        Ok(Fragment::Whole(&mut self.whole))
    }

    /// Returns the number of incomplete packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are no incomplete packets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Drops old packets, then the oldest, until one more fragment is within the bounds.
    fn make_room(&mut self, key: &Key, bytes: usize, now: Instant) {
        let bytes_kept = &mut self.bytes;
        self.packets.retain(|_, parts| {
            let keep = now.saturating_duration_since(parts.begun) < TIME;
            if !keep {
                *bytes_kept -= parts.bytes;
            }
            keep
        });
        let is_new = !self.packets.contains_key(key);
        while !self.packets.is_empty()
            && (self.packets.len() + usize::from(is_new) > MAX_PACKETS
                || self.bytes + bytes > MAX_BYTES)
        {
            let oldest = self.packets.iter().min_by_key(|(_, parts)| parts.begun);
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                return;
            };
            self.give_up(&oldest);
        }
    }

    fn give_up(&mut self, key: &Key) -> Option<Parts> {
        let parts = self.packets.remove(key)?;
        self.bytes -= parts.bytes;
        Some(parts)
    }
}

impl Parts {
    /// Adds a fragment, unless it is a repetition; returns whether it fits to the others.
    fn add(&mut self, head: &[u8], offset: usize, bytes: &[u8], end: Option<usize>) -> bool {
        let at = self.parts.partition_point(|(begin, _)| *begin < offset);
        if let Some((begin, known)) = self.parts.get(at)
            && (*begin, known.as_slice()) == (offset, bytes)
        {
            // The last fragment stays the last one.
            return end.is_none_or(|end| self.len == Some(end));
        }
        let behind = self
            .parts
            .get(at)
            .is_none_or(|(begin, _)| offset + bytes.len() <= *begin);
        let before = at.checked_sub(1).and_then(|at| self.parts.get(at));
        let before = before.is_none_or(|(begin, known)| begin + known.len() <= offset);
        let last = self
            .parts
            .last()
            .map_or(0, |(begin, known)| begin + known.len());
        let ends = match (self.len, end) {
            (Some(_), Some(_)) => false,
            (Some(len), None) => offset + bytes.len() <= len,
            (None, Some(end)) => last <= end,
            (None, None) => true,
        };
        if !behind || !before || !ends || self.parts.len() >= MAX_PARTS {
            return false;
        }
        self.len = self.len.or(end);
        if offset == 0 {
            self.header = Some(head.to_vec());
        }
        self.bytes += bytes.len();
        self.parts.insert(at, (offset, bytes.to_vec()));
        true
    }

    /// Whether all bytes are there; fragments never overlap, so their count suffices.
    fn is_whole(&self) -> bool {
        self.len == Some(self.bytes) && self.header.is_some()
    }

    /// Returns the length of the complete packet.
    fn total(&self) -> usize {
        self.header.as_ref().map_or(0, Vec::len) + self.bytes
    }

    fn join(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.header.as_deref().unwrap_or_default());
        let header = out.len();
        for (_, bytes) in &self.parts {
            out.extend_from_slice(bytes);
        }
        // No more than `MAX_PACKET`: see `take`.
        let total = out.len() as u16;
        if let Some(head) = out.get_mut(..header)
            && head.len() >= super::V4_HEADER
        {
            let kept = u16::from_be_bytes([head[6], head[7]]) & DONT_FRAGMENT;
            head[2..4].copy_from_slice(&total.to_be_bytes());
            head[6..8].copy_from_slice(&kept.to_be_bytes());
            super::set_v4_checksum(head);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Udp, fragment_v4, parse_udp, write_udp};
    use super::*;

    fn packet(id: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        let udp = Udp {
            from: "192.0.2.1:9".parse().unwrap(),
            to: "232.1.1.1:5000".parse().unwrap(),
            ttl: 9,
            payload,
        };
        assert!(write_udp(&udp, 0, &mut packet));
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        super::super::set_v4_checksum(&mut packet[..20]);
        packet
    }

    fn fragments(packet: &[u8], mtu: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        fragment_v4(packet, mtu, |one| all.push(one.to_vec())).unwrap();
        all
    }

    #[test]
    fn fragments_arrive_in_any_order_and_repeatedly() {
        let now = Instant::now();
        let payload: Vec<u8> = (0..4000u16).map(|n| n as u8).collect();
        let sent = packet(7, &payload);
        let mut parts = fragments(&sent, 600);
        assert!(parts.len() > 5);
        parts.reverse();
        let again = parts[1].clone();
        parts.insert(3, again);
        let mut reassembly = Reassembly::default();
        let last = parts.pop().unwrap();
        for part in &parts {
            assert_eq!(reassembly.take(part, now), Ok(Fragment::Waiting));
        }
        let Ok(Fragment::Whole(whole)) = reassembly.take(&last, now) else {
            panic!("it is not whole");
        };
        assert_eq!(whole, sent);
        assert_eq!(parse_udp(whole).unwrap().payload, payload);
        assert!(reassembly.is_empty());
        assert_eq!(reassembly.bytes, 0);
    }

    #[test]
    fn packets_do_not_mix() {
        let now = Instant::now();
        let (one, two) = (packet(1, &[1; 900]), packet(2, &[2; 900]));
        let (one_parts, two_parts) = (fragments(&one, 500), fragments(&two, 500));
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.take(&one_parts[0], now), Ok(Fragment::Waiting));
        assert_eq!(reassembly.take(&two_parts[1], now), Ok(Fragment::Waiting));
        assert_eq!(
            reassembly.take(&one_parts[1], now),
            Ok(Fragment::Whole(&mut one.clone()))
        );
        assert_eq!(
            reassembly.take(&two_parts[0], now),
            Ok(Fragment::Whole(&mut two.clone()))
        );
    }

    #[test]
    fn overlapping_fragments_drop_the_packet() {
        let now = Instant::now();
        let sent = packet(7, &[7; 2000]);
        let parts = fragments(&sent, 600);
        let mut other = fragments(&packet(7, &[9; 2000]), 520)[1].clone();
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.take(&parts[0], now), Ok(Fragment::Waiting));
        assert_eq!(reassembly.take(&other, now), Err(IpError::Fragment));
        assert!(reassembly.is_empty());
        // Behind the end of the last one.
        let last = parts.last().unwrap();
        assert_eq!(reassembly.take(last, now), Ok(Fragment::Waiting));
        let behind = (2100u16 / 8) | MORE;
        other[6..8].copy_from_slice(&behind.to_be_bytes());
        super::super::set_v4_checksum(&mut other[..20]);
        assert_eq!(reassembly.take(&other, now), Err(IpError::Fragment));
        assert_eq!(reassembly.bytes, 0);
    }

    #[test]
    fn bounds_hold_for_any_sender() {
        let mut now = Instant::now();
        let mut reassembly = Reassembly::default();
        for id in 0..1000 {
            let first = &fragments(&packet(id, &[0; 3000]), 1500)[0];
            assert_eq!(reassembly.take(first, now), Ok(Fragment::Waiting));
            now += Duration::from_millis(1);
        }
        assert_eq!(reassembly.len(), MAX_PACKETS);
        for id in 0..100 {
            let parts = fragments(&packet(id, &[0; 60_000]), 30_000);
            for part in &parts[..parts.len() - 1] {
                assert_eq!(reassembly.take(part, now), Ok(Fragment::Waiting));
            }
            assert!(reassembly.bytes <= MAX_BYTES);
        }
        now += TIME;
        let parts = fragments(&packet(5, &[0; 900]), 500);
        assert_eq!(reassembly.take(&parts[0], now), Ok(Fragment::Waiting));
        assert_eq!(reassembly.len(), 1);
        assert!(matches!(
            reassembly.take(&parts[1], now),
            Ok(Fragment::Whole(_))
        ));
    }

    #[test]
    fn options_of_the_first_fragment_do_not_exceed_the_packet_size() {
        let now = Instant::now();
        let mut reassembly = Reassembly::default();
        let largest = packet(5, &[0; MAX_PACKET - 28]);
        let mut parts = fragments(&largest, 30_000);
        // Ten words of options that no other fragment has.
        let mut first = parts.remove(0);
        first.splice(20..20, [1; 40]);
        first[0] = 0x4f;
        let total = first.len() as u16;
        first[2..4].copy_from_slice(&total.to_be_bytes());
        super::super::set_v4_checksum(&mut first[..60]);
        assert_eq!(reassembly.take(&first, now), Ok(Fragment::Waiting));
        let last = parts.pop().unwrap();
        for part in &parts {
            assert_eq!(reassembly.take(part, now), Ok(Fragment::Waiting));
        }
        let wrong = IpError::Length {
            what: "IPv4 fragment",
        };
        assert_eq!(reassembly.take(&last, now), Err(wrong));
        assert_eq!((reassembly.len(), reassembly.bytes), (0, 0));
    }

    #[test]
    fn damaged_fragments_are_rejected() {
        let now = Instant::now();
        let mut reassembly = Reassembly::default();
        let mut first = fragments(&packet(5, &[0; 900]), 500)[0].clone();
        first[8] ^= 1;
        let wrong = Err(IpError::Checksum { what: "IPv4" });
        assert_eq!(reassembly.take(&first, now), wrong);
        // The end of a packet that would be too large.
        let mut last = fragments(&packet(5, &[0; 900]), 500)[1].clone();
        last[6..8].copy_from_slice(&0x1fffu16.to_be_bytes());
        super::super::set_v4_checksum(&mut last[..20]);
        let wrong = IpError::Length {
            what: "IPv4 fragment",
        };
        assert_eq!(reassembly.take(&last, now), Err(wrong));
        assert!(reassembly.is_empty());
    }
}
