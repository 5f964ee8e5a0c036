//! Protection of flow packets: RFC 9001 AEAD and header protection from the secret that FC_KEY
//! carries (protocol.md section 5).

use boring::aead::{AeadCtx, Algorithm as Aead};
use ring::aead::quic::{self, HeaderProtectionKey};
use ring::hkdf;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::FlowId;

/// Bytes of a flow packet's header: flags, Flow ID, packet number.
pub const HEADER_LEN: usize = 1 + FlowId::LEN + PN_LEN;
/// Bytes of the packet number on the wire.
pub const PN_LEN: usize = 4;
/// Bytes of the AEAD tag.
pub const TAG_LEN: usize = 16;
/// Bytes of a flow packet that are not frames.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// Bytes of a nonce (RFC 9001 section 5.3).
const NONCE_LEN: usize = 12;
/// Full packets end their frames on a multiple of this: the odd bytes after the last whole AES
/// block would cost BoringSSL half as much as all the blocks before.
pub const BLOCK_LEN: usize = 16;
/// Bytes of a flow secret.
pub const SECRET_LEN: usize = 32;
/// The most packets that one key protects (RFC 9001 section 6.6, the AES-GCM confidentiality
/// limit).
pub const MAX_PACKETS: u64 = 1 << 23;

const PN_OFFSET: usize = 1 + FlowId::LEN;
const FIXED_BIT: u8 = 0x40;
const RESERVED_BITS: u8 = 0x18;
const KEY_PHASE_BIT: u8 = 0x04;
const SHORT_HEADER_PROTECTED_BITS: u8 = 0x1f;

/// The AEAD of a flow, as its TLS 1.3 cipher-suite number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// TLS_AES_128_GCM_SHA256.
    #[default]
    Aes128Gcm = 0x1301,
    /// TLS_CHACHA20_POLY1305_SHA256.
    ChaCha20Poly1305 = 0x1303,
}

impl Algorithm {
    /// The algorithm with this cipher-suite number, if this version knows it.
    pub fn from_suite(suite: u64) -> Option<Self> {
        match suite {
            0x1301 => Some(Algorithm::Aes128Gcm),
            0x1303 => Some(Algorithm::ChaCha20Poly1305),
            _ => None,
        }
    }

    fn aead(self) -> Aead {
        match self {
            Algorithm::Aes128Gcm => Aead::aes_128_gcm(),
            Algorithm::ChaCha20Poly1305 => Aead::chacha20_poly1305(),
        }
    }

    fn header(self) -> &'static quic::Algorithm {
        match self {
            Algorithm::Aes128Gcm => &quic::AES_128,
            Algorithm::ChaCha20Poly1305 => &quic::CHACHA20,
        }
    }
}

/// The secret of one key epoch; erased from memory when dropped and never shown by `Debug`.
///
/// On the heap, where it is filled in place: a move of the bytes themselves would leave a copy on
/// the stack that nothing erases.
#[derive(Default, PartialEq, Eq, ZeroizeOnDrop)]
pub struct FlowSecret(Box<[u8; SECRET_LEN]>);

impl FlowSecret {
    /// The bytes of the secret.
    pub fn as_bytes(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }

    /// The bytes, to be filled in place; zeros by default.
    pub fn as_mut_bytes(&mut self) -> &mut [u8; SECRET_LEN] {
        &mut self.0
    }
}

impl FlowSecret {
    /// Derives another secret, which reveals nothing of this one.
    ///
    /// # Errors
    ///
    /// The cryptographic library refuses the parameters.
    pub(crate) fn derive(&self, label: &[u8], context: &[u8]) -> Result<FlowSecret, KeyError> {
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, self.as_bytes());
        let mut derived = FlowSecret::default();
        let info = [label, context];
        prk.expand(&info, Length(SECRET_LEN))
            .and_then(|okm| okm.fill(derived.as_mut_bytes()))
            .map_err(|_| KeyError)?;
        Ok(derived)
    }
}

impl Clone for FlowSecret {
    fn clone(&self) -> Self {
        let mut copy = FlowSecret::default();
        copy.0.copy_from_slice(&self.0[..]);
        copy
    }
}

/// For secrets that are no secret, such as those of tests: copies of the array remain wherever it
/// has been.
impl From<[u8; SECRET_LEN]> for FlowSecret {
    fn from(bytes: [u8; SECRET_LEN]) -> Self {
        FlowSecret(Box::new(bytes))
    }
}

impl std::fmt::Debug for FlowSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FlowSecret(…)")
    }
}

/// Reason for which a packet was not accepted. None of these can close a connection: the packet is
/// dropped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Too short for a header, a header-protection sample and a tag.
    #[error("too short for a flow packet")]
    Short,
    /// The AEAD did not verify, or header bits are not what this version sends.
    #[error("does not verify under the flow's key")]
    Unverified,
}

/// A key could not be made; only possible where the cryptographic library refuses the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cryptographic library refused the flow's key")]
pub struct KeyError;

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label of RFC 8446 section 7.1 with an empty context, as RFC 9001 section 5.1 uses
/// it.
fn expand_label(secret: &hkdf::Prk, label: &[u8], out: &mut [u8]) -> Result<(), KeyError> {
    let len = out.len() as u16;
    let label_len = [(6 + label.len()) as u8];
    let info = [&len.to_be_bytes()[..], &label_len, b"tls13 ", label, &[0]];
    secret
        .expand(&info, Length(out.len()))
        .and_then(|okm| okm.fill(out))
        .map_err(|_| KeyError)
}

/// The keys of one epoch, ready to seal and to open packets.
pub struct PacketKey {
    aead: AeadCtx,
    header: HeaderProtectionKey,
    iv: [u8; NONCE_LEN],
}

impl PacketKey {
    /// Derives `quic key`, `quic iv` and `quic hp` from the secret (RFC 9001 section 5.1).
    ///
    /// # Errors
    ///
    /// The cryptographic library refuses the parameters.
    pub fn new(algorithm: Algorithm, secret: &FlowSecret) -> Result<Self, KeyError> {
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret.as_bytes());
        let mut iv = [0; NONCE_LEN];
        expand_label(&prk, b"quic iv", &mut iv)?;
        let (mut key, mut hp) = ([0; 32], [0; 32]);
        let key = &mut key[..algorithm.aead().key_length()];
        let hp = &mut hp[..algorithm.header().key_len()];
        expand_label(&prk, b"quic key", key)?;
        expand_label(&prk, b"quic hp", hp)?;
        let aead = AeadCtx::new(&algorithm.aead(), key, TAG_LEN).map_err(|_| KeyError);
        let header = HeaderProtectionKey::new(algorithm.header(), hp).map_err(|_| KeyError);
        key.zeroize();
        hp.zeroize();
        Ok(PacketKey {
            aead: aead?,
            header: header?,
            iv,
        })
    }

    /// The keys of an epoch's packets of tags, which are numbered apart from the others.
    ///
    /// # Errors
    ///
    /// The cryptographic library refuses the parameters.
    pub fn for_tags(algorithm: Algorithm, secret: &FlowSecret) -> Result<Self, KeyError> {
        PacketKey::new(algorithm, &secret.derive(b"flexfeed tags", b"")?)
    }

    /// IV xor packet number, without the path id (RFC 9001 section 5.3).
    fn nonce(&self, pn: u64) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        for (n, p) in nonce[4..].iter_mut().zip(pn.to_be_bytes()) {
            *n ^= p;
        }
        nonce
    }

    /// Seals the packet in `packet[..frames_end + TAG_LEN]`, whose frames stand in
    /// `packet[HEADER_LEN..frames_end]`; header and tag are written here.
    ///
    /// Returns the packet's length, or `None` when the buffer is too short or there are no frames
    /// (a sample for header protection would be missing).
    pub fn seal(
        &mut self,
        flow: FlowId,
        pn: u64,
        key_phase: bool,
        packet: &mut [u8],
        frames_end: usize,
    ) -> Option<usize> {
        let len = frames_end + TAG_LEN;
        let packet = packet.get_mut(..len)?;
        if frames_end <= HEADER_LEN {
            return None;
        }
        let (header, body) = packet.split_at_mut(HEADER_LEN);
        header[0] = FIXED_BIT | (PN_LEN as u8 - 1) | if key_phase { KEY_PHASE_BIT } else { 0 };
        header[1..PN_OFFSET].copy_from_slice(&flow.0);
        header[PN_OFFSET..].copy_from_slice(&(pn as u32).to_be_bytes());
        let nonce = self.nonce(pn);
        let (frames, tag) = body.split_at_mut(frames_end - HEADER_LEN);
        self.aead
            .seal_scatter_mut(&nonce, frames, tag, None, header)
            .ok()?;
        self.mask(packet)?;
        Some(len)
    }

    /// Applies header protection (RFC 9001 section 5.4) to a sealed packet.
    fn mask(&self, packet: &mut [u8]) -> Option<()> {
        // The packet number always takes 4 bytes, so the sample begins right after it.
        let mask = self
            .header
            .new_mask(packet.get(HEADER_LEN..HEADER_LEN + TAG_LEN)?)
            .ok()?;
        packet[0] ^= mask[0] & SHORT_HEADER_PROTECTED_BITS;
        packet[PN_OFFSET..HEADER_LEN]
            .iter_mut()
            .zip(&mask[1..])
            .for_each(|(p, m)| *p ^= m);
        Some(())
    }

    /// Returns packet number and key phase bit of the header under this key; `None` if it cannot be
    /// this version's. Changes nothing.
    pub fn peek(&self, expected_pn: u64, packet: &[u8]) -> Option<(u64, bool)> {
        let mask = self
            .header
            .new_mask(packet.get(HEADER_LEN..HEADER_LEN + TAG_LEN)?)
            .ok()?;
        let flags = packet[0] ^ (mask[0] & SHORT_HEADER_PROTECTED_BITS);
        if flags & !KEY_PHASE_BIT != FIXED_BIT | (PN_LEN as u8 - 1) {
            return None;
        }
        let truncated = packet[PN_OFFSET..HEADER_LEN]
            .iter()
            .zip(&mask[1..])
            .fold(0, |pn, (p, m)| pn << 8 | u64::from(p ^ m));
        Some((
            decode_pn(expected_pn, truncated),
            flags & KEY_PHASE_BIT != 0,
        ))
    }

    /// Opens a packet in place; `expected_pn` is the next packet number if nothing were lost.
    ///
    /// # Errors
    ///
    /// The packet is too short, or does not verify; the buffer's contents are unspecified then.
    #[inline]
    pub fn open<'a>(
        &mut self,
        expected_pn: u64,
        packet: &'a mut [u8],
    ) -> Result<Opened<'a>, OpenError> {
        if packet.len() < OVERHEAD + 1 {
            return Err(OpenError::Short);
        }
        self.mask(packet).ok_or(OpenError::Short)?;
        let (header, body) = packet.split_at_mut(HEADER_LEN);
        if header[0] & !KEY_PHASE_BIT != FIXED_BIT | (PN_LEN as u8 - 1) {
            // Reserved bits other than zero, a short packet number or a long header: not from this
            // version's source.
            return Err(OpenError::Unverified);
        }
        debug_assert_eq!(header[0] & RESERVED_BITS, 0);
        let truncated = header[PN_OFFSET..]
            .iter()
            .fold(0, |pn, b| pn << 8 | u64::from(*b));
        let pn = decode_pn(expected_pn, truncated);
        let key_phase = header[0] & KEY_PHASE_BIT != 0;
        let nonce = self.nonce(pn);
        let (frames, tag) = body.split_at_mut(body.len() - TAG_LEN);
        self.aead
            .open_gather_mut(&nonce, frames, tag, header)
            .map_err(|_| OpenError::Unverified)?;
        Ok(Opened {
            pn,
            key_phase,
            frames,
        })
    }
}

impl Drop for PacketKey {
    fn drop(&mut self) {
        // BoringSSL erases the AEAD key's memory when it frees it.
        self.iv.zeroize();
    }
}

impl std::fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PacketKey(…)")
    }
}

/// A packet that verified.
#[derive(Debug)]
pub struct Opened<'a> {
    /// Its full packet number.
    pub pn: u64,
    /// The key phase bit: the low bit of the FC_KEY sequence.
    pub key_phase: bool,
    /// Its frames in plain text.
    pub frames: &'a [u8],
}

/// The Flow ID that a datagram would have as a short-header packet; `None` for long headers and
/// datagrams that are too short.
pub fn peek_flow_id(datagram: &[u8]) -> Option<FlowId> {
    let first = *datagram.first()?;
    if first & 0x80 != 0 || first & FIXED_BIT == 0 {
        return None;
    }
    let id = datagram.get(1..PN_OFFSET)?;
    Some(FlowId(id.try_into().ok()?))
}

/// The full packet number closest to `expected` whose low 32 bits are `truncated` (RFC 9000
/// appendix A.3).
fn decode_pn(expected: u64, truncated: u64) -> u64 {
    const WINDOW: u64 = 1 << 32;
    let candidate = (expected & !(WINDOW - 1)) | truncated;
    if candidate + WINDOW / 2 <= expected && candidate < (1 << 62) - WINDOW {
        candidate + WINDOW
    } else if candidate > expected + WINDOW / 2 && candidate >= WINDOW {
        candidate - WINDOW
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        HEXLOWER.decode(text.as_bytes()).unwrap()
    }

    #[test]
    fn moves_of_a_secret_leave_no_bytes_behind() {
        assert_eq!(size_of::<FlowSecret>(), size_of::<usize>());
    }

    /// RFC 9001 appendix A.5: a ChaCha20-Poly1305 short-header packet. The header differs (no
    /// connection ID, 3-byte packet number), so the pieces that are the same here are checked one
    /// by one: the derivation of key, IV and header protection key, the nonce, the AEAD and the
    /// mask.
    #[test]
    fn rfc_9001_a5_chacha20() {
        let secret = FlowSecret::from(
            <[u8; SECRET_LEN]>::try_from(hex(
                "9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b",
            ))
            .unwrap(),
        );
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret.as_bytes());
        let mut out = [0; 32];
        expand_label(&prk, b"quic key", &mut out).unwrap();
        assert_eq!(
            out[..],
            hex("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8")
        );
        expand_label(&prk, b"quic hp", &mut out).unwrap();
        assert_eq!(
            out[..],
            hex("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4")
        );
        let mut key = PacketKey::new(Algorithm::ChaCha20Poly1305, &secret).unwrap();
        assert_eq!(key.iv[..], hex("e0459b3474bdd0e44a41c144"));
        let pn = 654_360_564;
        assert_eq!(key.nonce(pn)[..], hex("e0459b3474bdd0e46d417eb0"));
        let mut frames = [0x01];
        let (nonce, mut tag) = (key.nonce(pn), [0; TAG_LEN]);
        key.aead
            .seal_scatter_mut(&nonce, &mut frames, &mut tag, None, &hex("4200bff4"))
            .unwrap();
        assert_eq!(
            [&frames[..], &tag].concat(),
            hex("655e5cd55c41f69080575d7999c25a5bfb")
        );
        assert_eq!(
            key.header
                .new_mask(&hex("5e5cd55c41f69080575d7999c25a5bfb"))
                .unwrap()[..],
            hex("aefefe7d03")
        );
    }

    /// RFC 9001 appendix A.1 and A.2: AES-128-GCM keys from the client's initial secret, and the
    /// header protection mask of its Initial packet.
    #[test]
    fn rfc_9001_a1_aes128() {
        let secret = FlowSecret::from(
            <[u8; SECRET_LEN]>::try_from(hex(
                "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea",
            ))
            .unwrap(),
        );
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret.as_bytes());
        let mut out = [0; 16];
        expand_label(&prk, b"quic key", &mut out).unwrap();
        assert_eq!(out[..], hex("1f369613dd76d5467730efcbe3b1a22d"));
        expand_label(&prk, b"quic hp", &mut out).unwrap();
        assert_eq!(out[..], hex("9f50449e04a0e810283a1e9933adedd2"));
        let key = PacketKey::new(Algorithm::Aes128Gcm, &secret).unwrap();
        assert_eq!(key.iv[..], hex("fa044b2f42a3fd3b46fb255c"));
        assert_eq!(
            key.header
                .new_mask(&hex("d1b1c98dd7689fb8ec11d242b123dc9b"))
                .unwrap()[..],
            hex("437b9aec36")
        );
    }

    #[test]
    fn a3_packet_number_example() {
        assert_eq!(decode_pn(0xa82f30eb, 0xa82f9b32), 0xa82f9b32);
        assert_eq!(decode_pn(0x1_0000_0000, 0xffff_fff0), 0xffff_fff0);
        assert_eq!(decode_pn(0xffff_fff0, 0x10), 0x1_0000_0010);
        assert_eq!(decode_pn(0, 0xffff_ffff), 0xffff_ffff);
    }

    fn sealed(algorithm: Algorithm, pn: u64, frames: &[u8]) -> (PacketKey, Vec<u8>) {
        let mut key = PacketKey::new(algorithm, &FlowSecret::from([7; 32])).unwrap();
        let mut packet = vec![0; HEADER_LEN];
        packet.extend_from_slice(frames);
        let end = packet.len();
        packet.resize(end + TAG_LEN, 0);
        assert_eq!(
            key.seal(FlowId([3; 8]), pn, pn % 2 == 1, &mut packet, end),
            Some(end + TAG_LEN)
        );
        (key, packet)
    }

    proptest! {
        #[test]
        fn sealed_packets_open_and_others_do_not(
            pn in 0u64..1 << 40,
            behind in 0u64..1 << 30,
            frames in prop::collection::vec(any::<u8>(), 1..200),
            flip in any::<prop::sample::Index>(), bit in 0u8..8, chacha in any::<bool>()) {
            let algorithm = if chacha { Algorithm::ChaCha20Poly1305 } else { Algorithm::Aes128Gcm };
            let (mut key, packet) = sealed(algorithm, pn, &frames);
            prop_assert_eq!(peek_flow_id(&packet), Some(FlowId([3; 8])));
            let mut copy = packet.clone();
            let opened = key.open(pn.saturating_sub(behind), &mut copy).unwrap();
            let found = (opened.pn, opened.key_phase, opened.frames);
            prop_assert_eq!(found, (pn, pn % 2 == 1, &frames[..]));
            let mut bad = packet.clone();
            *flip.get_mut(&mut bad) ^= 1 << bit;
            prop_assert!(key.open(pn, &mut bad).is_err());
            let cut = flip.index(packet.len());
            prop_assert!(key.open(pn, &mut packet[..cut].to_vec()).is_err());
        }
    }
}
