//! Vectors of packets that are authenticated.

use data_encoding::HEXLOWER;
use flexicast::FlowId;
use flexicast::authentication::{PacketSigner, PublicKey, TagKey, Tags, put_tags};
use flexicast::frame::{Frame, Frames, put_stream_signature};
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, PacketKey, TAG_LEN};
use ring::hkdf;
use ring::signature::{ED25519, UnparsedPublicKey};

use crate::document::Vector;

fn secret(bytes: Vec<u8>) -> FlowSecret {
    FlowSecret::from(<[u8; 32]>::try_from(bytes).unwrap())
}

/// Holds the crate to a signed packet, and the signature to RFC 8032.
pub fn check_signed(vector: &Vector, packet: &[u8], key: PublicKey) {
    let mut signer = PacketSigner::new(&secret(vector.bytes("seed"))).unwrap();
    assert_eq!(signer.key(), key);
    assert_eq!(HEXLOWER.encode(&key.0), vector.text("key"));
    assert_eq!(vector.bytes("packet"), packet);
    let mut datagram = packet.to_vec();
    signer.sign_packet(&mut datagram, 0);
    assert_eq!(HEXLOWER.encode(&datagram), vector.text("datagram"));

    let (marked, signature) = datagram.split_at(packet.len());
    assert_eq!(marked[0], packet[0] | 0x20);
    let message = [b"flexfeed packet 1\0", marked].concat();
    let key = UnparsedPublicKey::new(&ED25519, &key.0);
    key.verify(&message, signature).unwrap();
}

/// Holds the crate to the frame with the signature of a whole update, and that to RFC 8032.
pub fn check_stream(vector: &Vector, seq: u64, update: &[u8], key: PublicKey) {
    let signer = PacketSigner::new(&secret(vector.bytes("seed"))).unwrap();
    let signature = signer.sign_stream(seq, update);
    assert!(
        key.signed_stream(seq, update, &signature) && !key.signed_stream(7, update, &signature)
    );
    let mut frame = Vec::new();
    assert!(put_stream_signature(&mut frame, 100, seq, &signature));
    assert_eq!(HEXLOWER.encode(&frame), HEXLOWER.encode(&vector.hex()));
    let signature = &signature;
    let read = Frames::new(&frame).next();
    assert_eq!(read, Some(Ok(Frame::StreamSignature { seq, signature })));

    let message = [b"flexfeed stream 1\0", &seq.to_be_bytes()[..], update].concat();
    let key = UnparsedPublicKey::new(&ED25519, &key.0);
    key.verify(&message, signature).unwrap();
}

/// Holds the crate to a packet of tags for a packet: every value on the way to it.
pub fn check_tags(vector: &Vector, epoch: &FlowSecret, of: (u64, &[u8]), receiver: u32) {
    let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, epoch.as_bytes());
    let info = [&b"flexfeed tags"[..]];
    let derived = prk.expand(&info, hkdf::HKDF_SHA256).unwrap();
    let mut bytes = [0; 32];
    derived.fill(&mut bytes).unwrap();
    assert_eq!(HEXLOWER.encode(&bytes), vector.text("secret"));

    let (pn, packet) = of;
    let mut key = TagKey::new(&secret(vector.bytes("tag-secret"))).unwrap();
    let tag = key.tag(pn, packet).unwrap();
    assert_eq!(HEXLOWER.encode(&tag), vector.text("tag"));
    assert!(key.verify(pn, packet, &tag) && !key.verify(pn + 1, packet, &tag));

    let mut made = vec![0; HEADER_LEN];
    assert_eq!(put_tags(&mut made, 1_000, pn, &[(receiver, tag)]), 1);
    assert_eq!(HEXLOWER.encode(&made[HEADER_LEN..]), vector.text("frames"));
    let end = made.len();
    made.resize(end + TAG_LEN, 0);
    let flow = FlowId(vector.bytes("flow-id").try_into().unwrap());
    let number: u64 = vector.text("pn").parse().unwrap();
    let phase = vector.text("key-phase") == "1";
    let mut key = PacketKey::for_tags(Algorithm::Aes128Gcm, epoch).unwrap();
    key.seal(flow, number, phase, &mut made, end).unwrap();
    assert_eq!(HEXLOWER.encode(&made), vector.text("packet"));

    let opened = key.open(0, &mut made).unwrap();
    assert_eq!((opened.pn, opened.key_phase), (number, phase));
    let (tags, rest) = Tags::read(opened.frames).unwrap().unwrap();
    assert_eq!((tags.pn, tags.of(receiver)), (pn, Some(tag)));
    assert_eq!((tags.of(receiver + 1), rest), (None, &[][..]));
}
