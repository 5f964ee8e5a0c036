//! A receiver's end of a flow whose packets are authenticated.

use std::collections::{BTreeSet, VecDeque};

use super::AuthenticationParameters;
use super::signature::SIGNATURE_LEN;
use super::tags::{PACKET_TAG_LEN, TagKey, Tags};
use crate::FlowId;
use crate::protect::FlowSecret;

/// Packets that are kept until their tags come; the oldest is dropped.
pub const HELD_PACKETS: usize = 256;
/// Bytes of these.
pub const HELD_BYTES: usize = 512 << 10;
/// Tags that are kept until their packets come; the oldest is dropped.
pub const KNOWN_TAGS: usize = 512;
/// Of these packets and tags, those with one packet number: each may have to be compared with each.
const SAME_NUMBER: usize = 8;
/// Longest packet that waits for its tag: a jumbo frame.
const MAX_HELD_PACKET: usize = 9_216;
/// Packet numbers in one packet of tags: a source sends them for 16 at the latest.
const MAX_NUMBERS: usize = 64;

/// A packet that waits for its tag, with what its receiver noted about it.
#[derive(Debug)]
pub struct Held<T> {
    /// Its number.
    pub pn: u64,
    /// The packet as it arrived.
    pub packet: Vec<u8>,
    /// The receiver's note.
    pub note: T,
}

/// Judgement of a packet that opened under the flow's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The source sent it.
    Authentic,
    /// A holder of the flow's key made it.
    Forged,
    /// Its tag has not come: it is kept until then.
    Held,
}

/// Key of a receiver's tags.
#[derive(Debug)]
struct Tagged {
    number: u32,
    key: TagKey,
}

/// Tag of a packet, with the packet's number before it.
type KnownTag = (u64, [u8; PACKET_TAG_LEN]);

/// Tags that wait for their packets. Anybody who has the flow's key can make some up, which fit no
/// packet.
#[derive(Debug, Default)]
pub(super) struct KnownTags {
    all: BTreeSet<KnownTag>,
    /// The same in the order of their arrival.
    order: VecDeque<KnownTag>,
}

impl KnownTags {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    fn contains(&self, tag: &KnownTag) -> bool {
        self.all.contains(tag)
    }

    /// Returns the tags of a packet number.
    fn of(&self, pn: u64) -> impl Iterator<Item = &KnownTag> {
        let last = [u8::MAX; PACKET_TAG_LEN];
        self.all.range((pn, [0; PACKET_TAG_LEN])..=(pn, last))
    }

    /// Adds a tag that is not known; the oldest one makes room.
    fn insert(&mut self, tag: KnownTag) {
        if self.of(tag.0).count() >= SAME_NUMBER {
            let oldest = self.order.iter().position(|(pn, _)| *pn == tag.0);
            self.remove(oldest);
        }
        self.all.insert(tag);
        self.order.push_back(tag);
        if self.len() > KNOWN_TAGS {
            self.remove(Some(0));
        }
    }

    fn remove(&mut self, at: Option<usize>) {
        if let Some(tag) = at.and_then(|at| self.order.remove(at)) {
            self.all.remove(&tag);
        }
    }

    fn clear(&mut self) {
        self.all.clear();
        self.order.clear();
    }
}

/// Authentication of a flow's packets at a receiver. No packet is to change any state of the
/// receiver's before it is found to be [`Verdict::Authentic`].
#[derive(Debug)]
pub struct Opener<T> {
    parameters: AuthenticationParameters,
    tagged: Option<Tagged>,
    /// In the order of their arrival.
    pub(super) held: VecDeque<Held<T>>,
    held_bytes: usize,
    pub(super) known: KnownTags,
    /// Packets that were dropped because no tag came for them.
    untagged: u64,
    /// Tags that did not fit a packet with their number, and new ones that no packet waited for.
    failed_tags: u64,
}

impl<T> Opener<T> {
    /// Authentication by what the source announced.
    pub fn new(parameters: AuthenticationParameters) -> Self {
        Opener {
            parameters,
            tagged: None,
            held: VecDeque::new(),
            held_bytes: 0,
            known: KnownTags::default(),
            untagged: 0,
            failed_tags: 0,
        }
    }

    /// Returns the Flow ID of packets of tags.
    pub fn tag_flow(&self) -> FlowId {
        self.parameters.tag_flow
    }

    /// Returns the number of packets dropped since the last call because no tag came for them.
    pub fn take_untagged(&mut self) -> u64 {
        std::mem::take(&mut self.untagged)
    }

    /// Returns the number of tags that failed since the last call: each comparison with a packet
    /// that it does not fit, and each new tag without a packet that waits for it. The source's own
    /// are among them where packets were lost or overtaken.
    pub fn take_failed_tags(&mut self) -> u64 {
        std::mem::take(&mut self.failed_tags)
    }

    /// Takes the key of this receiver's tags. One that the cryptographic library refuses leaves the
    /// receiver with signatures alone.
    pub fn take_key(&mut self, number: u32, secret: &FlowSecret) {
        self.tagged = TagKey::new(secret).ok().map(|key| Tagged { number, key });
        self.known.clear();
    }

    /// Judges a packet with this number that opened under the flow's key. `sealed` are its bytes
    /// before that, and `note` goes with a packet that has to wait.
    pub fn judge(
        &mut self,
        pn: u64,
        sealed: Vec<u8>,
        signature: Option<[u8; SIGNATURE_LEN]>,
        note: T,
    ) -> Verdict {
        if let Some(signature) = signature {
            return match self.parameters.key.signed_packet(&sealed, &signature) {
                true => Verdict::Authentic,
                false => Verdict::Forged,
            };
        }
        // Without a key for tags, none can fit.
        let Some(tagged) = &mut self.tagged else {
            return Verdict::Forged;
        };
        if sealed.len() > MAX_HELD_PACKET {
            return Verdict::Forged;
        }
        for (_, tag) in self.known.of(pn) {
            if tagged.key.verify(pn, &sealed, tag) {
                return Verdict::Authentic;
            }
            self.failed_tags += 1;
        }
        let same = self.held.iter().filter(|held| held.pn == pn).count();
        if same >= SAME_NUMBER {
            let oldest = self.held.iter().position(|held| held.pn == pn);
            self.drop_held(oldest);
        }
        self.held_bytes += sealed.len();
        self.held.push_back(Held {
            pn,
            packet: sealed,
            note,
        });
        while self.held.len() > HELD_PACKETS || self.held_bytes > HELD_BYTES {
            self.drop_held(Some(0));
        }
        Verdict::Held
    }

    /// Drops a packet whose tag did not come.
    fn drop_held(&mut self, at: Option<usize>) {
        if let Some(held) = at.and_then(|at| self.held.remove(at)) {
            self.held_bytes -= held.packet.len();
            self.untagged += 1;
        }
    }

    /// Takes the payload of a packet of tags. Returns the packets that the source sent, as they
    /// were sealed.
    pub fn take_tags(&mut self, payload: &[u8]) -> Vec<Held<T>> {
        let (mut authentic, mut rest) = (Vec::new(), payload);
        for _ in 0..MAX_NUMBERS {
            let Ok(Some((tags, after))) = Tags::read(rest) else {
                break;
            };
            rest = after;
            let number = self.tagged.as_ref().map(|tagged| tagged.number);
            let tag = number.and_then(|number| tags.of(number));
            let tag = tag.map(|tag| (tags.pn, tag));
            // One that is known was compared with all that waits: to replay it costs nothing.
            if let Some(tag) = tag.filter(|tag| !self.known.contains(tag)) {
                let released = authentic.len();
                self.release(tag, &mut authentic);
                self.failed_tags += u64::from(authentic.len() == released);
                self.known.insert(tag);
            }
        }
        authentic
    }

    /// Moves the packets that a tag fits to `authentic`: the same one may have come by two paths,
    /// and a forged one with its number.
    fn release(&mut self, (pn, tag): KnownTag, authentic: &mut Vec<Held<T>>) {
        let Some(tagged) = &mut self.tagged else {
            return;
        };
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            let is_meant = held.pn == pn;
            let fits = is_meant && tagged.key.verify(pn, &held.packet, &tag);
            self.failed_tags += u64::from(is_meant && !fits);
            match fits.then(|| self.held.remove(at)).flatten() {
                Some(held) => {
                    self.held_bytes -= held.packet.len();
                    authentic.push(held);
                }
                None => at += 1,
            }
        }
    }

    /// Forgets packets and tags that wait for each other.
    pub fn clear(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
        self.known.clear();
    }
}
