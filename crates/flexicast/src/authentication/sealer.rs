//! The source's end of a flow whose packets are authenticated.

use std::collections::{BTreeMap, VecDeque};

use super::signature::PacketSigner;
use super::tags::{PACKET_TAG_LEN, TagKey, put_tags};
use super::{AuthenticationConfig, AuthenticationParameters, SIGNATURE_LEN};
use crate::FlowId;
use crate::flow::MemberId;
use crate::protect::{FlowSecret, KeyError};

/// Packets after which their tags are sent, whatever else waits: receivers keep the packets until
/// then.
const TAGS_WITHIN: usize = 16;

/// A receiver that has a key for tags.
#[derive(Debug)]
struct Tagged {
    number: u32,
    key: TagKey,
}

/// Authentication of a flow's packets at its source.
#[derive(Debug)]
pub struct Sealer {
    tags_up_to: usize,
    secret: FlowSecret,
    signer: PacketSigner,
    tag_flow: FlowId,
    /// Receivers that have the flow's key.
    receivers: BTreeMap<MemberId, Tagged>,
    /// Receivers that were numbered so far: no number is given twice.
    numbered: u32,
    /// Payloads of packets of tags that are full.
    full: VecDeque<Vec<u8>>,
    /// Payload of the next one.
    open: Vec<u8>,
    /// Packets with tags in there.
    waiting: usize,
    /// Memory for the tags of one packet.
    tags: Vec<(u32, [u8; PACKET_TAG_LEN])>,
}

impl Sealer {
    /// Bytes that a signature takes of each packet: packets with tags leave them free, so that
    /// their size does not change with the type.
    pub const TRAILER: usize = SIGNATURE_LEN;

    /// The keys of a flow.
    ///
    /// # Errors
    /// The cryptographic library refuses a key.
    pub fn new(config: &AuthenticationConfig) -> Result<Self, KeyError> {
        let secret = config.secret.clone();
        let id = secret.derive(b"flexfeed tag flow", b"")?;
        let mut tag_flow = FlowId([0; FlowId::LEN]);
        tag_flow.0.copy_from_slice(&id.as_bytes()[..FlowId::LEN]);
        Ok(Sealer {
            tags_up_to: config.packets.tags_up_to(),
            signer: config.signer()?,
            secret,
            tag_flow,
            receivers: BTreeMap::new(),
            numbered: 0,
            full: VecDeque::new(),
            open: Vec::new(),
            waiting: 0,
            tags: Vec::new(),
        })
    }

    /// Returns what receivers need to know.
    pub fn parameters(&self) -> AuthenticationParameters {
        AuthenticationParameters {
            tag_flow: self.tag_flow,
            key: self.signer.key(),
        }
    }

    /// Returns the Flow ID of packets of tags.
    pub fn tag_flow(&self) -> FlowId {
        self.tag_flow
    }

    /// Whether packets are signed: there are more receivers than tags are worth it for.
    pub fn is_signing(&self) -> bool {
        self.receivers.len() > self.tags_up_to || self.tags_up_to == 0
    }

    /// Makes a key for a receiver's tags, in the place of one that it had. Returns its number and
    /// the secret; `None` where there are no tags, or once all numbers are used up.
    ///
    /// # Errors
    /// The cryptographic library refuses a key.
    pub fn admit(&mut self, receiver: MemberId) -> Result<Option<(u32, FlowSecret)>, KeyError> {
        let number = self.numbered.checked_add(1);
        let Some(number) = number.filter(|_| self.tags_up_to > 0) else {
            return Ok(None);
        };
        let secret = self
            .secret
            .derive(b"flexfeed packet tag", &number.to_be_bytes())?;
        let key = TagKey::new(&secret)?;
        self.numbered = number;
        self.receivers.insert(receiver, Tagged { number, key });
        Ok(Some((number, secret)))
    }

    /// Whether tags are made, and none for this receiver.
    pub fn lacks(&self, receiver: MemberId) -> bool {
        self.tags_up_to > 0 && !self.receivers.contains_key(&receiver)
    }

    /// Makes no more tags for a receiver.
    pub fn remove(&mut self, receiver: MemberId) {
        self.receivers.remove(&receiver);
    }

    /// Authenticates the sealed packet that begins at `start` of `out`: appends a signature, or
    /// keeps its tags for packets that have room for `room` bytes of them. Returns the bytes that
    /// it has kept.
    pub fn seal(&mut self, pn: u64, out: &mut Vec<u8>, start: usize, room: usize) -> usize {
        if self.is_signing() {
            self.signer.sign_packet(out, start);
            return 0;
        }
        self.tags.clear();
        for tagged in self.receivers.values_mut() {
            if let Some(tag) = tagged.key.tag(pn, &out[start..]) {
                self.tags.push((tagged.number, tag));
            }
        }
        let (mut rest, mut kept) = (&self.tags[..], 0);
        while !rest.is_empty() {
            let before = self.open.len();
            let count = put_tags(&mut self.open, room, pn, rest);
            kept += self.open.len() - before;
            rest = &rest[count..];
            if !rest.is_empty() {
                if self.open.is_empty() {
                    // No packet has room for any.
                    return kept;
                }
                self.full.push_back(std::mem::take(&mut self.open));
            }
        }
        self.waiting += 1;
        kept
    }

    /// Whether tags wait to be sent.
    pub fn has_tags(&self) -> bool {
        !self.full.is_empty() || !self.open.is_empty()
    }

    /// Whether tags are to be sent before the next packet.
    pub fn are_tags_due(&self) -> bool {
        !self.full.is_empty() || self.waiting >= TAGS_WITHIN
    }

    /// Takes the payload of the next packet of tags.
    pub fn take_tags(&mut self) -> Option<Vec<u8>> {
        if let Some(full) = self.full.pop_front() {
            return Some(full);
        }
        self.waiting = 0;
        let open = std::mem::take(&mut self.open);
        (!open.is_empty()).then_some(open)
    }
}
