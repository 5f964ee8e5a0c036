//! Signatures of packets, and of whole streams.

use signing::ed25519::{self, SecretKey};

use crate::protect::{FlowSecret, KeyError};

/// Bytes of a signature behind a packet.
pub const SIGNATURE_LEN: usize = ed25519::SIGNATURE_LEN;
/// Bit of the first byte that marks a signed packet: the place of QUIC's spin bit.
const SIGNED_BIT: u8 = 0x20;
/// First bytes of what is signed: nothing else that the source signs begins like this.
const PACKET_CONTEXT: &[u8] = b"flexfeed packet 1\0";
const STREAM_CONTEXT: &[u8] = b"flexfeed stream 1\0";

/// Private key of a flow's signatures.
pub struct PacketSigner {
    secret: SecretKey,
    /// Memory for what is signed.
    message: Vec<u8>,
}

impl std::fmt::Debug for PacketSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PacketSigner(…)")
    }
}

impl PacketSigner {
    /// The private key of this seed (RFC 8032 section 5.1.5).
    ///
    /// # Errors
    /// The cryptographic library refuses the seed.
    pub fn new(seed: &FlowSecret) -> Result<Self, KeyError> {
        Ok(PacketSigner {
            secret: SecretKey::from_seed(seed.as_bytes()).ok_or(KeyError)?,
            message: Vec::new(),
        })
    }

    /// Returns the public key.
    pub fn key(&self) -> PublicKey {
        PublicKey(self.secret.public_key())
    }

    /// Marks the sealed packet that begins at `start` of `out` as signed, and appends its
    /// signature.
    pub fn sign_packet(&mut self, out: &mut Vec<u8>, start: usize) {
        let Some(first) = out.get_mut(start) else {
            return;
        };
        *first |= SIGNED_BIT;
        self.message.clear();
        self.message.extend_from_slice(PACKET_CONTEXT);
        self.message.extend_from_slice(&out[start..]);
        out.extend_from_slice(&self.secret.sign(&self.message));
    }

    /// Returns the signature of the whole update `seq`: MCQUIC's `MC_S`, by which a receiver can
    /// judge a stream once it has all of it.
    pub fn sign_stream(&self, seq: u64, bytes: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.secret.sign(&stream_message(seq, bytes))
    }
}

fn stream_message(seq: u64, bytes: &[u8]) -> Vec<u8> {
    [STREAM_CONTEXT, &seq.to_be_bytes(), bytes].concat()
}

/// Public key of a flow's signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; PublicKey::LEN]);

impl PublicKey {
    /// Length in bytes.
    pub const LEN: usize = ed25519::PUBLIC_KEY_LEN;

    /// Whether this key signed the datagram: a packet as [`split_signature`] found it.
    pub(super) fn signed_packet(&self, packet: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        let mut message = [PACKET_CONTEXT, packet].concat();
        if let Some(first) = message.get_mut(PACKET_CONTEXT.len()) {
            *first |= SIGNED_BIT;
        }
        self.verify(&message, signature)
    }

    /// Whether this key signed the whole update `seq`.
    pub fn signed_stream(&self, seq: u64, bytes: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        self.verify(&stream_message(seq, bytes), signature)
    }

    fn verify(&self, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        ed25519::verify(&self.0, message, signature)
    }
}

/// Takes the mark and the signature off a datagram that claims to have one. Returns the packet as
/// it was sealed, and the signature, if there is one.
pub(crate) fn split_signature(datagram: &mut [u8]) -> (&mut [u8], Option<[u8; SIGNATURE_LEN]>) {
    let is_signed = datagram
        .first()
        .is_some_and(|first| first & SIGNED_BIT != 0);
    let at = datagram.len().checked_sub(SIGNATURE_LEN);
    match at.filter(|at| is_signed && *at > 0) {
        Some(at) => {
            let (packet, signature) = datagram.split_at_mut(at);
            packet[0] &= !SIGNED_BIT;
            let signature = <[u8; SIGNATURE_LEN]>::try_from(&*signature).ok();
            (packet, signature)
        }
        None => (datagram, None),
    }
}
