//! The key epochs of a flow at a receiver: at most two, the newest first (protocol.md section 5.3).

use std::time::Instant;

use crate::control::Key;
use crate::protect::{Algorithm, Opened, PacketKey};

#[derive(Debug)]
struct LiveKey {
    sequence: u64,
    first_pn: u64,
    packet: PacketKey,
    /// Key of packets of tags.
    tags: PacketKey,
}

/// The keys of a flow's live epochs.
#[derive(Debug, Default)]
pub(super) struct Keys {
    live: Vec<LiveKey>,
    /// When the first key came.
    since: Option<Instant>,
}

impl Keys {
    /// Takes a key. Returns whether it is a new one that this receiver can use. A secret that is
    /// not needed any more is erased.
    pub(super) fn insert(&mut self, key: Key, now: Instant) -> bool {
        if self.sequence().is_some_and(|known| key.sequence <= known) {
            return false;
        }
        // An algorithm that this receiver does not know leaves it on unicast: nothing verifies,
        // nothing is proved.
        let Some(algorithm) = Algorithm::from_suite(key.algorithm) else {
            return false;
        };
        let (Ok(packet), Ok(tags)) = (
            PacketKey::new(algorithm, &key.secret),
            PacketKey::for_tags(algorithm, &key.secret),
        ) else {
            return false;
        };
        let (sequence, first_pn) = (key.sequence, key.first_pn);
        // The secret itself is not needed any more: it is erased here.
        drop(key);
        let live = LiveKey {
            sequence,
            first_pn,
            packet,
            tags,
        };
        self.live.insert(0, live);
        self.live.truncate(2);
        self.since.get_or_insert(now);
        true
    }

    /// Returns when the first key came.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Returns the sequence of the newest epoch.
    pub(super) fn sequence(&self) -> Option<u64> {
        self.live.first().map(|l| l.sequence)
    }

    /// Returns the sequence of the newest epoch and where it begins.
    pub(super) fn newest(&self) -> Option<(u64, u64)> {
        self.live.first().map(|l| (l.sequence, l.first_pn))
    }

    pub(super) fn clear(&mut self) {
        self.live.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Returns where the oldest live epoch begins: no packet number below it can be read.
    pub(super) fn first_pn(&self) -> u64 {
        self.live.last().map_or(0, |l| l.first_pn)
    }

    /// Returns the first packet number of a live epoch.
    pub(super) fn first_pn_of(&self, sequence: u64) -> Option<u64> {
        let live = self.live.iter().find(|live| live.sequence == sequence);
        live.map(|live| live.first_pn)
    }

    /// Whether a packet number and a key phase bit belong to the epoch at place `at`.
    fn fits(&self, at: usize, pn: u64, phase: bool) -> bool {
        let newer = at.checked_sub(1).and_then(|newer| self.live.get(newer));
        let end = newer.map_or(u64::MAX, |l| l.first_pn);
        self.live
            .get(at)
            .is_some_and(|l| (l.first_pn..end).contains(&pn) && phase == (l.sequence & 1 == 1))
    }

    /// Returns which of two epochs a packet belongs to, by its header. Where both seem right, the
    /// AEAD decides, on a copy.
    fn find(&mut self, expected: u64, packet: &[u8]) -> Option<usize> {
        let seems = |at: usize| {
            let peeked = self.live[at].packet.peek(expected, packet);
            peeked.is_some_and(|(pn, phase)| self.fits(at, pn, phase))
        };
        let mut fitting = (0..self.live.len()).filter(|at| seems(*at));
        let (first, second) = (fitting.next()?, fitting.next());
        let Some(second) = second else {
            return Some(first);
        };
        let mut copy = packet.to_vec();
        let opened = self.live[first].packet.open(expected, &mut copy).is_ok();
        Some(if opened { first } else { second })
    }

    /// Opens a packet in place; `None` if it verifies under no live epoch. With it comes the
    /// epoch's sequence.
    #[inline]
    pub(super) fn open<'a>(
        &mut self,
        expected: u64,
        packet: &'a mut [u8],
    ) -> Option<(Opened<'a>, u64)> {
        let at = match self.live.len() {
            0 => return None,
            1 => 0,
            _ => self.find(expected, packet)?,
        };
        let opened = self.live[at].packet.open(expected, packet).ok()?;
        if !self.fits(at, opened.pn, opened.key_phase) {
            return None;
        }
        Some((opened, self.live[at].sequence))
    }

    /// Opens a packet of tags and returns its payload; `None` if it verifies under no live epoch.
    pub(super) fn open_tags(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        self.live.iter_mut().find_map(|live| {
            let mut packet = packet.to_vec();
            // An epoch has so few that their numbers need not be reconstructed: no holder of the
            // key can mislead this receiver about the next one.
            let opened = live.tags.open(0, &mut packet).ok()?;
            let fits = opened.key_phase == (live.sequence & 1 == 1);
            fits.then(|| opened.frames.to_vec())
        })
    }

    /// Whether this epoch is the newest, and an older one is still alive.
    pub(super) fn is_superseding(&self, sequence: u64) -> bool {
        self.live.len() > 1 && self.sequence() == Some(sequence)
    }

    /// Discards the older of two epochs.
    pub(super) fn discard_old(&mut self) {
        self.live.truncate(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowId;
    use crate::protect::FlowSecret;

    fn key(sequence: u64) -> Key {
        Key {
            flow: FlowId([1; 8]),
            sequence,
            first_pn: sequence * 100,
            secret: FlowSecret::from([sequence as u8; 32]),
            algorithm: Algorithm::Aes128Gcm as u64,
        }
    }

    #[test]
    fn two_epochs_are_alive_until_the_older_is_discarded() {
        let (start, mut keys) = (Instant::now(), Keys::default());
        let later = start + std::time::Duration::from_secs(1);
        assert!(keys.insert(key(1), start) && !keys.is_superseding(1));
        assert!(!keys.insert(key(1), later), "known");
        assert!(keys.insert(key(2), later) && keys.insert(key(3), later));
        assert_eq!((keys.first_pn(), keys.sequence()), (200, Some(3)));
        assert!(keys.is_superseding(3) && !keys.is_superseding(2));
        keys.discard_old();
        assert_eq!((keys.first_pn(), keys.since()), (300, Some(start)));
    }

    #[test]
    fn an_unknown_algorithm_is_no_key() {
        let mut keys = Keys::default();
        let unknown = Key {
            algorithm: 0x1302,
            ..key(1)
        };
        assert!(!keys.insert(unknown, Instant::now()) && keys.is_empty());
    }
}
