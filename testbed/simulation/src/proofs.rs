//! An observer of packet authentication: every signature and every tag that the source sends has to
//! be right, for each receiver whose number it bears.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use flexicast::FlowId;
use flexicast::authentication::{
    Opener, PACKET_TAG_LEN, PacketAuthentication, SIGNATURE_LEN, Sealer, TagKey, Tags, Verdict,
    put_tags,
};
use flexicast::flow::FlowConfig;
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, OVERHEAD, PacketKey};

use crate::violation::{BrokenPromise, Promise, broken};

/// Bit of the first byte that marks a signed packet.
const SIGNED: u8 = 0x20;
/// Packets whose tags may still come: a source sends them for 16 at the latest.
const UNTAGGED: usize = 20;
/// Datagrams that can be replayed.
const RECORDED: usize = 64;
/// Number of a forged packet of tags: none of the source's in a run.
const FORGED_NUMBER: u64 = 1 << 22;

/// Counters of all flows of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProofCounts {
    pub(crate) signed: u64,
    pub(crate) tag_packets: u64,
    pub(crate) to_signatures: u64,
    pub(crate) to_tags: u64,
}

/// Key of an epoch's packets of tags.
struct TagEpoch {
    key: PacketKey,
    next: u64,
}

/// Authentication of one flow's packets.
pub(crate) struct Proofs {
    pub(crate) tag_flow: FlowId,
    algorithm: Algorithm,
    /// Judges signatures.
    opener: Opener<()>,
    epochs: Vec<TagEpoch>,
    /// Keys for tags by the numbers of their receivers.
    tagged: BTreeMap<u32, TagKey>,
    /// Newest packets without a signature, as they were sent.
    unsigned: VecDeque<(u64, Bytes)>,
    /// Newest datagrams.
    sent: VecDeque<Bytes>,
    /// Whether the last packet was signed.
    was_signed: Option<bool>,
}

impl Proofs {
    /// The authentication of a flow, if it has one.
    pub(crate) fn of(config: &FlowConfig) -> Option<Self> {
        let authentication = config.authentication.as_ref();
        let packets = authentication.filter(|of| of.packets != PacketAuthentication::Stream);
        let sealer = Sealer::new(packets?).ok()?;
        Some(Proofs {
            tag_flow: sealer.tag_flow(),
            algorithm: config.algorithm,
            opener: Opener::new(sealer.parameters()),
            epochs: Vec::new(),
            tagged: BTreeMap::new(),
            unsigned: VecDeque::new(),
            sent: VecDeque::new(),
            was_signed: None,
        })
    }

    /// The source was handed the secret of the next epoch.
    pub(crate) fn secret(&mut self, secret: &FlowSecret) {
        if let Ok(key) = PacketKey::for_tags(self.algorithm, secret) {
            self.epochs.push(TagEpoch { key, next: 0 });
        }
    }

    /// A receiver is given a key for its tags.
    pub(crate) fn given(&mut self, number: u32, secret: &FlowSecret) -> Result<(), BrokenPromise> {
        let Ok(key) = TagKey::new(secret) else {
            return broken(Promise::Secrecy, "a key for tags that is none");
        };
        match self.tagged.insert(number, key) {
            None => Ok(()),
            Some(_) => broken(Promise::Secrecy, format!("tag number {number} twice")),
        }
    }

    /// Takes the signature off a packet with frames that leaves the source. Returns whether there
    /// was one.
    pub(crate) fn take_signature(
        &mut self,
        packet: &mut Vec<u8>,
        counts: &mut ProofCounts,
    ) -> Result<bool, BrokenPromise> {
        self.record(packet);
        let is_signed = packet.first().is_some_and(|first| first & SIGNED != 0);
        let before = self.was_signed.replace(is_signed);
        counts.to_signatures += u64::from(is_signed && before == Some(false));
        counts.to_tags += u64::from(!is_signed && before == Some(true));
        if !is_signed {
            return Ok(false);
        }
        counts.signed += 1;
        let signature = packet.split_off(packet.len().saturating_sub(SIGNATURE_LEN));
        packet[0] &= !SIGNED;
        let signature = signature.try_into().ok();
        match self.opener.judge(0, packet.clone(), signature, ()) {
            Verdict::Authentic => Ok(true),
            verdict => broken(
                Promise::Flow,
                format!("a signature of the source: {verdict:?}"),
            ),
        }
    }

    /// Notes a packet without a signature.
    pub(crate) fn note_unsigned(&mut self, pn: u64, sealed: Bytes) {
        self.unsigned.push_back((pn, sealed));
        if self.unsigned.len() > UNTAGGED {
            self.unsigned.pop_front();
        }
    }

    /// A packet of tags leaves the source.
    pub(crate) fn tags(
        &mut self,
        packet: &[u8],
        counts: &mut ProofCounts,
    ) -> Result<(), BrokenPromise> {
        self.record(packet);
        counts.tag_packets += 1;
        let opened = self.epochs.iter_mut().rev().find_map(|epoch| {
            let mut packet = packet.to_vec();
            let opened = epoch.key.open(0, &mut packet).ok()?;
            let is_next = opened.pn == std::mem::replace(&mut epoch.next, opened.pn + 1);
            Some((is_next, opened.frames.to_vec()))
        });
        let Some((true, payload)) = opened else {
            return broken(
                Promise::Flow,
                "a packet of tags opens under no secret, or has another number than the next",
            );
        };
        let mut rest = &payload[..];
        loop {
            match Tags::read(rest) {
                Ok(None) => return Ok(()),
                Ok(Some((tags, after))) => {
                    self.check(&tags)?;
                    rest = after;
                }
                Err(error) => return broken(Promise::Flow, format!("tags: {error}")),
            }
        }
    }

    /// Each tag has to fit the packet, under the key of its receiver.
    fn check(&mut self, tags: &Tags<'_>) -> Result<(), BrokenPromise> {
        let mut sent = self.unsigned.iter();
        let Some((pn, packet)) = sent.find(|(pn, _)| *pn == tags.pn) else {
            return broken(
                Promise::Flow,
                format!("tags of packet {}, which is not among the newest", tags.pn),
            );
        };
        let mut found = 0;
        for (number, key) in &mut self.tagged {
            if let Some(tag) = tags.of(*number) {
                found += 1;
                if !key.verify(*pn, packet, &tag) {
                    return broken(
                        Promise::Flow,
                        format!("the tag of packet {pn} for number {number} is wrong"),
                    );
                }
            }
        }
        match found {
            0 => broken(
                Promise::Flow,
                format!("tags of packet {pn} for no receiver"),
            ),
            _ => Ok(()),
        }
    }

    fn record(&mut self, datagram: &[u8]) {
        self.sent.push_back(Bytes::copy_from_slice(datagram));
        if self.sent.len() > RECORDED {
            self.sent.pop_front();
        }
    }

    /// Returns the datagram that was sent `back` datagrams before the newest one.
    pub(crate) fn recorded(&self, back: usize) -> Option<Bytes> {
        self.sent.iter().rev().nth(back).cloned()
    }

    /// Makes a packet of wrong tags for all receivers, as any holder of an epoch's key could.
    pub(crate) fn forge(&mut self, epoch: usize, pn: u64) -> Option<Bytes> {
        let newest = self.tagged.keys().rev().take(40);
        let wrong: Vec<_> = newest.map(|n| (*n, [0xee; PACKET_TAG_LEN])).collect();
        let mut packet = vec![0; HEADER_LEN];
        put_tags(&mut packet, 1_100, pn, &wrong);
        let end = packet.len();
        packet.resize(end + OVERHEAD - HEADER_LEN, 0);
        let key = &mut self.epochs.get_mut(epoch)?.key;
        // The first epoch of a flow has sequence 1.
        key.seal(
            self.tag_flow,
            FORGED_NUMBER,
            epoch.is_multiple_of(2),
            &mut packet,
            end,
        )?;
        Some(packet.into())
    }
}
