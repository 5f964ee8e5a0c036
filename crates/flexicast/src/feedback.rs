//! Feedback packets: acknowledgements of one member of one flow, outside of its QUIC connection
//! (protocol.md section 5.4).
//!
//! A feedback packet looks like a flow packet whose Flow ID is a *feedback ID* that the source has
//! given to one member. It carries what a DATAGRAM frame would carry, elicits no acknowledgement,
//! and costs the source no more than one AEAD operation.

use std::sync::Arc;

use ring::aead::quic::{self, HeaderProtectionKey};

use crate::FlowId;
use crate::protect::{
    Algorithm, FlowSecret, HEADER_LEN, KeyError, MAX_PACKETS, PacketKey, TAG_LEN, peek_flow_id,
};

/// Bit of the first byte of a feedback ID that is never set in a connection ID of the source.
pub const FEEDBACK_BIT: u8 = 0x80;
/// Packet numbers up to the largest one of which it is known whether they arrived.
const WINDOW: u64 = u128::BITS as u64;
/// With this packet number, the source gives the member another key: half of the packets that one
/// key may protect are left.
pub(crate) const RENEWED_AT: u64 = MAX_PACKETS / 2;

/// Whether a datagram that arrived at a source is addressed to a feedback ID: its connection IDs
/// begin with a byte below [`FEEDBACK_BIT`].
pub fn is_feedback(datagram: &[u8]) -> bool {
    peek_flow_id(datagram).is_some_and(|id| id.0[0] & FEEDBACK_BIT != 0)
}

/// Bytes of a feedback ID before its tag: the prefix and a number.
const UNTAGGED: usize = 5;

/// Feedback IDs of one source. Each ends with a tag, so that the source recognizes its own without
/// a table: noise costs it one block of AES.
#[derive(Clone)]
pub struct FeedbackIds {
    /// First byte of all IDs.
    prefix: u8,
    key: Arc<HeaderProtectionKey>,
}

impl FeedbackIds {
    /// Derives the key of the tags from a source's secret.
    ///
    /// # Errors
    /// The cryptographic library refuses the key.
    pub(crate) fn new(secret: &FlowSecret, prefix: u8) -> Result<Self, KeyError> {
        let derived = secret.derive(b"flexfeed feedback ids", b"")?;
        let key = &derived.as_bytes()[..quic::AES_128.key_len()];
        let key = HeaderProtectionKey::new(&quic::AES_128, key).map_err(|_| KeyError)?;
        Ok(FeedbackIds {
            prefix,
            key: Arc::new(key),
        })
    }

    /// Returns the ID with this number.
    pub(crate) fn make(&self, number: u32) -> Option<FlowId> {
        let mut id = FlowId([self.prefix; FlowId::LEN]);
        id.0[1..UNTAGGED].copy_from_slice(&number.to_be_bytes());
        let tag = self.tag(&id)?;
        id.0[UNTAGGED..].copy_from_slice(&tag);
        Some(id)
    }

    /// Whether a datagram is addressed to an ID of this source, in use or not. Of 2²⁴ others one
    /// passes.
    pub fn is_own(&self, datagram: &[u8]) -> bool {
        let id = peek_flow_id(datagram).filter(|id| id.0[0] == self.prefix);
        id.is_some_and(|id| self.tag(&id).is_some_and(|tag| id.0[UNTAGGED..] == tag))
    }

    fn tag(&self, id: &FlowId) -> Option<[u8; FlowId::LEN - UNTAGGED]> {
        let mut block = [0; 16];
        block[..UNTAGGED].copy_from_slice(&id.0[..UNTAGGED]);
        self.key.new_mask(&block).ok()?.first_chunk().copied()
    }
}

impl std::fmt::Debug for FeedbackIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FeedbackIds(…)")
    }
}

/// Bytes of the notice for a member that has another address than its connection.
pub const NOTICE_LEN: usize = 1 + FlowId::LEN;

/// Returns the notice for a member whose feedback packet with this ID came from another address
/// than its connection has. It is not authenticated: all that it provokes is a packet of the
/// connection.
pub(crate) fn return_notice(id: FlowId) -> [u8; NOTICE_LEN] {
    let mut notice = [0x43; NOTICE_LEN];
    notice[1..].copy_from_slice(&id.0);
    notice
}

/// The member's end: seals payloads.
#[derive(Debug)]
pub struct FeedbackSealer {
    id: FlowId,
    key: PacketKey,
    next_pn: u64,
}

impl FeedbackSealer {
    /// A sealer whose first packet has the number 0.
    ///
    /// # Errors
    /// The cryptographic library refuses the key.
    pub fn new(id: FlowId, algorithm: Algorithm, secret: &FlowSecret) -> Result<Self, KeyError> {
        Ok(FeedbackSealer {
            id,
            key: PacketKey::new(algorithm, secret)?,
            next_pn: 0,
        })
    }

    /// Whether a datagram says that packets of this sealer come from another address than the
    /// connection has.
    pub(crate) fn is_returned(&self, datagram: &[u8]) -> bool {
        datagram == return_notice(self.id)
    }

    /// Returns a packet with this payload. `None` if the payload is empty, or the key has protected
    /// all the packets that it may (RFC 9001 section 6.6).
    pub fn seal(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        if self.next_pn >= MAX_PACKETS {
            return None;
        }
        let end = HEADER_LEN + payload.len();
        let mut packet = vec![0; end + TAG_LEN];
        packet[HEADER_LEN..end].copy_from_slice(payload);
        self.key
            .seal(self.id, self.next_pn, false, &mut packet, end)?;
        self.next_pn += 1;
        Some(packet)
    }
}

/// The source's end: opens packets, each once.
#[derive(Debug)]
pub struct FeedbackOpener {
    key: PacketKey,
    received: ReplayWindow,
}

impl FeedbackOpener {
    /// An opener that has seen no packet.
    ///
    /// # Errors
    /// The cryptographic library refuses the key.
    pub fn new(algorithm: Algorithm, secret: &FlowSecret) -> Result<Self, KeyError> {
        Ok(FeedbackOpener {
            key: PacketKey::new(algorithm, secret)?,
            received: ReplayWindow::default(),
        })
    }

    /// Opens a packet in place and returns its number and payload. `None` if it does not verify, or
    /// arrived before, or its number is so old that this is not known any more.
    pub fn open<'a>(&mut self, packet: &'a mut [u8]) -> Option<(u64, &'a [u8])> {
        match self.open_if(packet, || true)? {
            FeedbackPacket::Accepted(pn, payload) => Some((pn, payload)),
            FeedbackPacket::Refused => None,
        }
    }

    /// Opens a packet like [`FeedbackOpener::open`], which counts as arrived only if `accepts`
    /// returns true: a copy that is faster than its original must not take its place.
    pub(crate) fn open_if<'a>(
        &mut self,
        packet: &'a mut [u8],
        accepts: impl FnOnce() -> bool,
    ) -> Option<FeedbackPacket<'a>> {
        let opened = self.key.open(self.received.next, packet).ok()?;
        if opened.key_phase || !self.received.is_new(opened.pn) {
            return None;
        }
        if !accepts() {
            return Some(FeedbackPacket::Refused);
        }
        self.received.insert(opened.pn);
        Some(FeedbackPacket::Accepted(opened.pn, opened.frames))
    }
}

/// A packet that verified and had not arrived before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FeedbackPacket<'a> {
    /// Its number and payload.
    Accepted(u64, &'a [u8]),
    /// The caller did not accept it.
    Refused,
}

/// The newest packet numbers that arrived.
#[derive(Debug, Default)]
struct ReplayWindow {
    /// One past the largest.
    next: u64,
    /// Bit n is the packet n before the largest one.
    bits: u128,
}

impl ReplayWindow {
    /// Whether a packet number is new for certain.
    fn is_new(&self, pn: u64) -> bool {
        let Some(back) = self.next.checked_sub(pn + 1) else {
            return true;
        };
        back < WINDOW && self.bits & (1 << back) == 0
    }

    /// Adds a packet number. Returns whether it is new for certain.
    fn insert(&mut self, pn: u64) -> bool {
        if !self.is_new(pn) {
            return false;
        }
        if pn >= self.next {
            let ahead = pn - self.next + 1;
            self.bits = match ahead < WINDOW {
                true => self.bits << ahead,
                false => 0,
            };
            self.next = pn + 1;
        }
        self.bits |= 1 << (self.next - 1 - pn);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const ID: FlowId = FlowId([0x80, 1, 2, 3, 4, 5, 6, 7]);

    fn pair() -> (FeedbackSealer, FeedbackOpener) {
        let (algorithm, secret) = (Algorithm::default(), FlowSecret::from([7; 32]));
        (
            FeedbackSealer::new(ID, algorithm, &secret).unwrap(),
            FeedbackOpener::new(algorithm, &secret).unwrap(),
        )
    }

    proptest! {
        /// Against a plain set: a number counts once, and one that is too old never.
        #[test]
        fn the_window_agrees_with_a_plain_set(
            pns in prop::collection::vec(0u64..400, 1..200), far in 0u64..1 << 61,
        ) {
            let (mut window, mut seen) = (ReplayWindow::default(), BTreeSet::new());
            for pn in pns.into_iter().map(|pn| pn + far) {
                let largest = seen.last().copied().unwrap_or(0);
                let expected = pn + WINDOW > largest && !seen.contains(&pn);
                prop_assert_eq!(window.insert(pn), expected);
                seen.insert(pn);
            }
        }
    }

    #[test]
    fn every_packet_opens_once_in_any_order() {
        let (mut sealer, mut opener) = pair();
        let packets: Vec<_> = (0..5).map(|i| sealer.seal(&[i; 9]).unwrap()).collect();
        for i in [3, 0, 4, 1, 2] {
            assert!(is_feedback(&packets[i]) && !sealer.is_returned(&packets[i]));
            let mut packet = packets[i].clone();
            let expected = [i as u8; 9];
            assert_eq!(opener.open(&mut packet), Some((i as u64, &expected[..])));
        }
        for packet in &packets {
            assert_eq!(opener.open(&mut packet.clone()), None, "a replay");
        }
    }

    #[test]
    fn a_packet_that_is_refused_may_still_arrive_once() {
        let (mut sealer, mut opener) = pair();
        let packets: Vec<_> = (0..9).map(|i| sealer.seal(&[i; 9]).unwrap()).collect();
        for i in [8, 0, 4] {
            for _ in 0..2 {
                let mut copy = packets[i].clone();
                let refused = opener.open_if(&mut copy, || false);
                assert_eq!(refused, Some(FeedbackPacket::Refused));
            }
            assert!(opener.open(&mut packets[i].clone()).is_some());
            let mut copy = packets[i].clone();
            let replay = opener.open_if(&mut copy, || unreachable!());
            assert_eq!(replay, None);
        }
    }

    #[test]
    fn a_changed_packet_does_not_open_and_takes_no_number() {
        let (mut sealer, mut opener) = pair();
        let packet = sealer.seal(b"payload").unwrap();
        for at in 0..packet.len() {
            let mut changed = packet.clone();
            changed[at] ^= 0x04;
            assert_eq!(opener.open(&mut changed), None, "byte {at}");
        }
        for len in 0..packet.len() {
            assert_eq!(
                opener.open(&mut packet[..len].to_vec()),
                None,
                "{len} bytes"
            );
        }
        assert!(opener.open(&mut packet.clone()).is_some());
    }

    #[test]
    fn a_notice_is_for_one_member() {
        let (sealer, _) = pair();
        assert!(sealer.is_returned(&return_notice(ID)));
        assert!(!sealer.is_returned(&return_notice(FlowId([0x80; 8]))));
        assert!(!sealer.is_returned(&[]));
    }

    #[test]
    fn a_key_protects_no_more_packets_than_it_may() {
        let (mut sealer, mut opener) = pair();
        assert_eq!(sealer.seal(b""), None, "nothing to sample");
        sealer.next_pn = MAX_PACKETS - 1;
        let mut last = sealer.seal(b"last").unwrap();
        assert_eq!(
            opener.open(&mut last),
            Some((MAX_PACKETS - 1, &b"last"[..]))
        );
        assert_eq!(sealer.seal(b"one more"), None);
    }
}
