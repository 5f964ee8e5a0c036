//! The key epochs of a flow at its sender: the one in use, and the one that is announced
//! (protocol.md section 5.3).

use std::time::{Duration, Instant};

use crate::FlowId;
use crate::protect::{Algorithm, FlowSecret, KeyError, MAX_PACKETS, PacketKey};

/// An announced epoch begins after this time even if members have not confirmed it: a slow one must
/// not keep the old key alive.
pub const SWITCH_WITHIN: Duration = Duration::from_secs(1);
/// Largest gap in packet numbers before a new epoch; the gap itself on a flow without pacing.
const UNPACED_LEAD: u64 = 1 << 17;

/// One epoch.
#[derive(Debug)]
pub struct Epoch {
    /// Its number; the low bit is the key phase bit of its packets.
    pub sequence: u64,
    /// Its first packet number.
    pub first_pn: u64,
    /// Secret of the keys.
    pub secret: FlowSecret,
    pub(super) key: PacketKey,
    /// Key of packets of tags.
    tag_key: PacketKey,
    /// Number of the next packet of tags.
    pub(super) next_tag_packet: u64,
}

impl Epoch {
    fn new(
        sequence: u64,
        first_pn: u64,
        algorithm: Algorithm,
        secret: FlowSecret,
    ) -> Result<Self, KeyError> {
        Ok(Epoch {
            sequence,
            first_pn,
            key: PacketKey::new(algorithm, &secret)?,
            tag_key: PacketKey::for_tags(algorithm, &secret)?,
            next_tag_packet: 0,
            secret,
        })
    }

    /// Whether the key phase bit of its packets is set.
    pub(super) fn phase(&self) -> bool {
        self.sequence & 1 == 1
    }

    /// Seals the packet of tags in `packet`, whose payload ends at `end`. Returns whether it could:
    /// the key protects as many packets as the other.
    pub(super) fn seal_tags(&mut self, flow: FlowId, packet: &mut [u8], end: usize) -> bool {
        let (number, phase) = (self.next_tag_packet, self.phase());
        let may = number < MAX_PACKETS;
        let sealed = may
            && self
                .tag_key
                .seal(flow, number, phase, packet, end)
                .is_some();
        self.next_tag_packet += u64::from(sealed);
        sealed
    }
}

/// The live epochs: at most two.
#[derive(Debug)]
pub(super) struct Epochs {
    algorithm: Algorithm,
    pub(super) current: Epoch,
    pub(super) next: Option<(Epoch, Instant)>,
}

impl Epochs {
    pub(super) fn new(algorithm: Algorithm, secret: FlowSecret) -> Result<Self, KeyError> {
        Ok(Epochs {
            algorithm,
            // 0 is reserved: a receiver without a key reports it.
            current: Epoch::new(1, 0, algorithm, secret)?,
            next: None,
        })
    }

    /// Announces an epoch that begins far enough ahead for the members to confirm it first.
    pub(super) fn announce(
        &mut self,
        secret: FlowSecret,
        next_pn: u64,
        rate: Option<u64>,
        udp_payload: usize,
        now: Instant,
    ) -> Result<(), KeyError> {
        let packets = |rate: u64| rate / 8 / udp_payload.max(1) as u64;
        let lead = rate.map_or(UNPACED_LEAD, |r| (packets(r) * 2 + 1024).min(UNPACED_LEAD));
        let sequence = self.current.sequence + 1;
        let epoch = Epoch::new(sequence, next_pn + lead, self.algorithm, secret)?;
        self.next = Some((epoch, now + SWITCH_WITHIN));
        Ok(())
    }

    /// Goes over to the announced epoch and returns its first packet number; the old secret is
    /// erased.
    pub(super) fn switch(&mut self) -> Option<u64> {
        let (epoch, _) = self.next.take()?;
        self.current = epoch;
        Some(self.current.first_pn)
    }
}
