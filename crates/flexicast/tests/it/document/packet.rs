//! A packet vector with all the values on the way to it.

use data_encoding::HEXLOWER;
use flexicast::FlowId;
use flexicast::feedback::{FeedbackOpener, FeedbackSealer, is_feedback};
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, PacketKey, TAG_LEN, peek_flow_id};
use ring::aead::quic;
use ring::hkdf;

use crate::document::Vector;

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(secret: &[u8], label: &str, len: usize) -> Vec<u8> {
    let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
    let label = format!("tls13 {label}");
    let info = [
        &(len as u16).to_be_bytes()[..],
        &[label.len() as u8],
        label.as_bytes(),
        &[0],
    ];
    let mut out = vec![0; len];
    prk.expand(&info, Length(len))
        .unwrap()
        .fill(&mut out)
        .unwrap();
    out
}

/// Holds the crate to a whole packet: every intermediate value, then sealing and opening.
pub fn check(vector: &Vector, algorithm: Algorithm, header: &'static quic::Algorithm) {
    let suite = u64::from_str_radix(vector.text("algorithm"), 16).unwrap();
    assert_eq!(Algorithm::from_suite(suite), Some(algorithm));
    let secret = vector.bytes("secret");
    let keyed = header.key_len();
    assert_eq!(expand(&secret, "quic key", keyed), vector.bytes("key"));
    assert_eq!(expand(&secret, "quic iv", 12), vector.bytes("iv"));
    assert_eq!(expand(&secret, "quic hp", keyed), vector.bytes("hp"));
    let pn: u64 = vector.text("pn").parse().unwrap();
    let mut nonce = vector.bytes("iv");
    for (n, p) in nonce[4..].iter_mut().zip(pn.to_be_bytes()) {
        *n ^= p;
    }
    assert_eq!(nonce, vector.bytes("nonce"));
    let sealed = vector.bytes("packet");
    let mask = quic::HeaderProtectionKey::new(header, &vector.bytes("hp"))
        .unwrap()
        .new_mask(&sealed[HEADER_LEN..HEADER_LEN + 16])
        .unwrap();
    assert_eq!(mask[..], vector.bytes("mask"));

    let mut key = PacketKey::new(
        algorithm,
        &FlowSecret::from(<[u8; 32]>::try_from(secret).unwrap()),
    )
    .unwrap();
    let flow = FlowId(vector.bytes("flow-id").try_into().unwrap());
    let phase = vector.text("key-phase") == "1";
    let frames = vector.bytes("frames");
    let end = HEADER_LEN + frames.len();
    let mut made = vec![0; end + TAG_LEN];
    made[HEADER_LEN..end].copy_from_slice(&frames);
    assert_eq!(key.seal(flow, pn, phase, &mut made, end), Some(made.len()));
    assert_eq!(HEXLOWER.encode(&made), vector.text("packet"));

    assert_eq!(peek_flow_id(&sealed), Some(flow));
    let mut copy = sealed;
    let opened = key.open(pn.saturating_sub(5), &mut copy).unwrap();
    assert_eq!((opened.pn, opened.key_phase), (pn, phase));
    assert_eq!(opened.frames, frames);
}

/// Holds the crate to a packet that a member has sealed after others.
pub fn check_feedback(vector: &Vector, secret: &FlowSecret) {
    assert_eq!(vector.bytes("secret"), secret.as_bytes());
    let (algorithm, payload) = (Algorithm::Aes128Gcm, vector.bytes("frames"));
    let id = FlowId(vector.bytes("flow-id").try_into().unwrap());
    let pn: u64 = vector.text("pn").parse().unwrap();
    let mut sealer = FeedbackSealer::new(id, algorithm, secret).unwrap();
    let sealed = (0..=pn).filter_map(|_| sealer.seal(&payload));
    let mut packet = vector.bytes("packet");
    assert_eq!(sealed.last().as_ref(), Some(&packet));
    assert!(is_feedback(&packet));
    let mut opener = FeedbackOpener::new(algorithm, secret).unwrap();
    assert_eq!(opener.open(&mut packet), Some((pn, &payload[..])));
}
