//! Tags of packets: one for each receiver, under a key that only the receiver and the source have.

use boring::aead::{AeadCtx, Algorithm};

use crate::protect::{FlowSecret, KeyError};
use crate::wire::{BufMutExt, Reader, WireError, varint_len};

/// Bytes of a tag.
pub const PACKET_TAG_LEN: usize = 16;
/// Bytes of a receiver's number and its tag.
const ENTRY_LEN: usize = 4 + PACKET_TAG_LEN;
/// Bytes of a nonce (NIST SP 800-38D).
const NONCE_LEN: usize = 12;

/// A receiver's key for tags of one flow: AES-256-GMAC, that is AES-GCM of nothing with the packet
/// as associated data.
pub struct TagKey(AeadCtx);

impl std::fmt::Debug for TagKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TagKey(…)")
    }
}

/// The packet number as nonce: no two packets of a flow share one.
fn nonce(pn: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&pn.to_be_bytes());
    nonce
}

impl TagKey {
    /// The key itself: the secret is used as it is.
    ///
    /// # Errors
    /// The cryptographic library refuses the key.
    pub fn new(secret: &FlowSecret) -> Result<Self, KeyError> {
        let key = AeadCtx::new(&Algorithm::aes_256_gcm(), secret.as_bytes(), PACKET_TAG_LEN);
        key.map(TagKey).map_err(|_| KeyError)
    }

    /// Returns the tag of a sealed packet; `None` where the cryptographic library fails.
    pub fn tag(&mut self, pn: u64, packet: &[u8]) -> Option<[u8; PACKET_TAG_LEN]> {
        let mut tag = [0; PACKET_TAG_LEN];
        let made = self
            .0
            .seal_scatter_mut(&nonce(pn), &mut [], &mut tag, None, packet);
        made.is_ok().then_some(tag)
    }

    /// Whether the holder of this key made the tag for a sealed packet.
    pub fn verify(&mut self, pn: u64, packet: &[u8], tag: &[u8; PACKET_TAG_LEN]) -> bool {
        self.0
            .open_gather_mut(&nonce(pn), &mut [], tag, packet)
            .is_ok()
    }
}

/// Appends the tags of one packet, as many of them as fit until `out` is `limit` bytes long.
/// Returns how many did.
pub fn put_tags(
    out: &mut Vec<u8>,
    limit: usize,
    pn: u64,
    tags: &[(u32, [u8; PACKET_TAG_LEN])],
) -> usize {
    let head = varint_len(pn) + varint_len(tags.len() as u64);
    let room = limit.saturating_sub(out.len() + head);
    let count = tags.len().min(room / ENTRY_LEN);
    if count > 0 {
        out.put_varint(pn);
        out.put_varint(count as u64);
        for (receiver, tag) in &tags[..count] {
            out.extend_from_slice(&receiver.to_be_bytes());
            out.extend_from_slice(tag);
        }
    }
    count
}

/// Tags of one packet, or some of them.
#[derive(Debug, Clone, Copy)]
pub struct Tags<'a> {
    /// The packet.
    pub pn: u64,
    entries: &'a [u8],
}

impl<'a> Tags<'a> {
    /// Returns the next tags of a packet of tags, and what follows; `None` at its end.
    ///
    /// # Errors
    /// The bytes end too early, or are more than a packet has.
    pub fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut r = Reader::new("tags", bytes);
        let (pn, count) = (r.varint()?, r.varint()?);
        let len = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(ENTRY_LEN));
        let entries = r.bytes(len.unwrap_or(usize::MAX))?;
        Ok(Some((Tags { pn, entries }, r.rest())))
    }

    /// Returns the tag for a receiver.
    pub fn of(&self, receiver: u32) -> Option<[u8; PACKET_TAG_LEN]> {
        let number = receiver.to_be_bytes();
        let mut entries = self.entries.chunks_exact(ENTRY_LEN);
        let entry = entries.find_map(|entry| entry.strip_prefix(&number))?;
        entry.try_into().ok()
    }
}
