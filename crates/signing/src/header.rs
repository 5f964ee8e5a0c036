//! The header: its fields, and the hashes of the chunks.

use std::ops::Range;

use octets::{Octets, OctetsMut};
use thiserror::Error;
use uuid::Uuid;

use crate::ed25519::SIGNATURE_LEN;
use crate::{KeyId, MAX_HEADER, SALT_LEN, SIGNED};

/// Length of the encoding byte and of the length behind it.
pub(crate) const PREFIX_LEN: usize = 3;
/// Ed25519, with hashes by keyed BLAKE3, cut to 16 bytes.
const ED25519_BLAKE3: u8 = 1;
const KEY_ID_LEN: usize = 8;
const INCARNATION_LEN: usize = 16;
const HASH_LEN: usize = 16;
/// Bytes of a chunk, unless that would be too many chunks: BLAKE3 is fast from this length on.
const CHUNK_LEN: usize = 16_384;
/// Number of chunks at most: with as many hashes, the header fits one packet.
const MAX_CHUNKS: usize = 56;
/// Length of four varints at most.
const VARINTS_LEN: usize = 4 * 8;
/// Largest number that a varint holds (RFC 9000 section 16).
const MAX_VARINT: u64 = (1 << 62) - 1;

const _: () = assert!(
    PREFIX_LEN
        + 1
        + KEY_ID_LEN
        + INCARNATION_LEN
        + VARINTS_LEN
        + SALT_LEN
        + MAX_CHUNKS * HASH_LEN
        + SIGNATURE_LEN
        <= MAX_HEADER
);

/// Place of an update: what a header states of it besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement<'a> {
    /// Name of the channel. It is signed, and is not part of the header.
    pub channel: &'a str,
    /// Incarnation of the channel in which the update was signed.
    pub incarnation: Uuid,
    /// Number of the update.
    pub seq: u64,
    /// Unix time in ms after which nobody wants the update; 0 for none.
    pub deadline_ms: u64,
}

/// Bytes that are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// Encoding of an update without a header.
    #[error("the update is not signed")]
    Unsigned,
    /// Bytes that end before the header does.
    #[error("the header of the update is cut off")]
    CutOff,
    /// Signature algorithm of a later version.
    #[error("the update is signed in the unknown way {0}: a newer source? update this receiver")]
    Algorithm(u8),
    /// Length or chunks that no signer writes.
    #[error("the header of the update is malformed")]
    Malformed,
}

/// Header of a signed update. Nothing in it means anything before [`Header::verify`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    key_id: KeyId,
    incarnation: Uuid,
    seq: u64,
    deadline_ms: u64,
    content_len: usize,
    chunk_len: usize,
    salt: &'a [u8; SALT_LEN],
    hashes: &'a [u8],
    signed: &'a [u8],
    signature: &'a [u8; SIGNATURE_LEN],
}

impl<'a> Header<'a> {
    /// The header at the beginning of these bytes, which may end behind it.
    ///
    /// # Errors
    /// [`HeaderError`] if there is none.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, HeaderError> {
        match bytes.first() {
            None => return Err(HeaderError::CutOff),
            Some(&SIGNED) => {}
            Some(_) => return Err(HeaderError::Unsigned),
        }
        let length = length_of_rest(bytes).ok_or(HeaderError::CutOff)?;
        if PREFIX_LEN + length > MAX_HEADER {
            return Err(HeaderError::Malformed);
        }
        let header = bytes[PREFIX_LEN..].get(..length);
        let header = header.ok_or(HeaderError::CutOff)?;
        match header.first() {
            Some(&ED25519_BLAKE3) => {}
            Some(other) => return Err(HeaderError::Algorithm(*other)),
            None => return Err(HeaderError::Malformed),
        }
        let (signed, signature) = header.split_last_chunk().ok_or(HeaderError::Malformed)?;
        parse_fields(signed, signature).ok_or(HeaderError::Malformed)
    }

    /// Number of the key that signed it.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Incarnation of the channel in which the update was signed.
    #[must_use]
    pub fn incarnation(&self) -> Uuid {
        self.incarnation
    }

    /// Number of the update.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Unix time in ms after which nobody wants the update, if any.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        (self.deadline_ms > 0).then_some(self.deadline_ms)
    }

    /// Length of the header in bytes, with its encoding byte and signature.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        PREFIX_LEN + self.signed.len() + SIGNATURE_LEN
    }

    /// Length of the whole signed update in bytes.
    #[must_use]
    pub fn total_len(&self) -> usize {
        self.len() + self.content_len
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.hashes.len() / HASH_LEN
    }

    /// Returns where a chunk is in the signed update; an empty range at its end for one that it
    /// does not have.
    #[must_use]
    pub fn chunk(&self, index: usize) -> Range<usize> {
        let start = index.saturating_mul(self.chunk_len).min(self.content_len);
        let end = start.saturating_add(self.chunk_len).min(self.content_len);
        self.len() + start..self.len() + end
    }

    /// Whether these are the bytes of a chunk.
    #[must_use]
    pub fn is_genuine(&self, index: usize, bytes: &[u8]) -> bool {
        let hashes = self.hashes.chunks_exact(HASH_LEN);
        let length = self.chunk(index).len();
        let mut of_index = hashes.skip(index).take(1);
        of_index.any(|known| bytes.len() == length && hash(self.salt, index, bytes) == known)
    }

    /// Whether the bytes of a whole signed update are those that its header vouches for.
    #[must_use]
    pub fn is_genuine_whole(&self, signed: &[u8]) -> bool {
        signed.len() == self.total_len()
            && (0..self.chunks()).all(|index| self.is_genuine(index, &signed[self.chunk(index)]))
    }

    /// Bytes that the signature is about, besides context and channel.
    pub(crate) fn signed_bytes(&self) -> &'a [u8] {
        self.signed
    }

    pub(crate) fn signature(&self) -> &'a [u8; SIGNATURE_LEN] {
        self.signature
    }
}

/// Returns the length of what is between the prefix and the content, whatever the algorithm.
fn length_of_rest(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(1..)?.first_chunk()?;
    Some(usize::from(u16::from_be_bytes(*length)))
}

/// Returns the content of a signed update, whatever the algorithm; `None` if it is not signed, or
/// cut off.
pub(crate) fn content(encoded: &[u8]) -> Option<&[u8]> {
    encoded.get(stated_len(encoded)?..)
}

/// Returns the length of everything before the content; `None` if the update is not signed.
pub(crate) fn stated_len(encoded: &[u8]) -> Option<usize> {
    let length = length_of_rest(encoded).filter(|_| encoded.first() == Some(&SIGNED))?;
    Some(PREFIX_LEN + length)
}

fn parse_fields<'a>(signed: &'a [u8], signature: &'a [u8; SIGNATURE_LEN]) -> Option<Header<'a>> {
    let (key_id, rest) = signed.get(1..)?.split_first_chunk::<KEY_ID_LEN>()?;
    let (incarnation, rest) = rest.split_first_chunk::<INCARNATION_LEN>()?;
    let mut varints = Octets::with_slice(rest);
    let mut next = || varints.get_varint().ok();
    let (seq, deadline_ms, content_len, chunk_len) = (next()?, next()?, next()?, next()?);
    let (salt, hashes) = rest.get(varints.off()..)?.split_first_chunk()?;
    let content_len = usize::try_from(content_len).ok()?;
    let chunk_len = usize::try_from(chunk_len)
        .ok()
        .filter(|length| *length > 0)?;
    let chunks = content_len.div_ceil(chunk_len);
    let is_whole = chunks <= MAX_CHUNKS && hashes.len() == chunks * HASH_LEN;
    (is_whole && seq > 0).then_some(Header {
        key_id: KeyId(*key_id),
        incarnation: Uuid::from_bytes(*incarnation),
        seq,
        deadline_ms,
        content_len,
        chunk_len,
        salt,
        hashes,
        signed,
        signature,
    })
}

/// Returns the hash of a chunk: BLAKE3, keyed with the salt and the chunk's number.
fn hash(salt: &[u8; SALT_LEN], index: usize, bytes: &[u8]) -> [u8; HASH_LEN] {
    let mut key = [0; blake3::KEY_LEN];
    key[..SALT_LEN].copy_from_slice(salt);
    key[SALT_LEN..].copy_from_slice(&(index as u128).to_be_bytes());
    let full = blake3::keyed_hash(&key, bytes);
    let mut hash = [0; HASH_LEN];
    hash.copy_from_slice(&full.as_bytes()[..HASH_LEN]);
    hash
}

fn chunk_len(content_len: usize) -> usize {
    content_len.div_ceil(MAX_CHUNKS).max(CHUNK_LEN)
}

/// Length of a header of so much content, at most.
pub(crate) fn length(content_len: usize) -> usize {
    let hashes = content_len.div_ceil(chunk_len(content_len)) * HASH_LEN;
    let fixed = PREFIX_LEN + 1 + KEY_ID_LEN + INCARNATION_LEN + SALT_LEN + SIGNATURE_LEN;
    fixed + VARINTS_LEN + hashes
}

/// Appends a header without its signature; `None` if a number does not fit.
pub(crate) fn put_header(
    to: &mut Vec<u8>,
    statement: &Statement<'_>,
    key_id: KeyId,
    salt: &[u8; SALT_LEN],
    content: &[u8],
) -> Option<()> {
    let chunk_len = chunk_len(content.len());
    let numbers = [
        statement.seq,
        statement.deadline_ms,
        content.len() as u64,
        chunk_len as u64,
    ];
    if statement.seq == 0 || numbers.iter().any(|number| *number > MAX_VARINT) {
        return None;
    }
    let mut varints = [0; VARINTS_LEN];
    let mut writer = OctetsMut::with_slice(&mut varints);
    for number in numbers {
        writer.put_varint(number).ok()?;
    }
    let varints_len = writer.off();
    let begin = to.len();
    to.extend_from_slice(&[SIGNED, 0, 0, ED25519_BLAKE3]);
    to.extend_from_slice(&key_id.0);
    to.extend_from_slice(statement.incarnation.as_bytes());
    to.extend_from_slice(&varints[..varints_len]);
    to.extend_from_slice(salt);
    for (index, chunk) in content.chunks(chunk_len).enumerate() {
        to.extend_from_slice(&hash(salt, index, chunk));
    }
    let length = u16::try_from(to.len() - begin - PREFIX_LEN + SIGNATURE_LEN).ok()?;
    to[begin + 1..begin + PREFIX_LEN].copy_from_slice(&length.to_be_bytes());
    Some(())
}
