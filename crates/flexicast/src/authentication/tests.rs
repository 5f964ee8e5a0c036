use proptest::prelude::*;

use super::*;

const NUMBERS: [u64; 3] = [11, 22, 33];

fn sealer(packets: PacketAuthentication) -> Sealer {
    let secret = FlowSecret::from([9; 32]);
    Sealer::new(&AuthenticationConfig { packets, secret }).unwrap()
}

/// A source and the receivers with these numbers at it.
fn ends(packets: PacketAuthentication) -> (Sealer, Vec<Opener<()>>) {
    let mut sealer = sealer(packets);
    let receivers = NUMBERS.map(|number| {
        let mut opener = Opener::new(sealer.parameters());
        if let Some((receiver, secret)) = sealer.admit(number).unwrap() {
            opener.take_key(receiver, &secret);
        }
        opener
    });
    (sealer, receivers.into())
}

/// Returns a packet of these bytes as it is sent.
fn seal(sealer: &mut Sealer, pn: u64, packet: &[u8]) -> Vec<u8> {
    let mut out = b"before".to_vec();
    out.extend_from_slice(packet);
    sealer.seal(pn, &mut out, 6, 1_000);
    out.split_off(6)
}

fn judge(opener: &mut Opener<()>, pn: u64, datagram: &[u8]) -> Verdict {
    let mut datagram = datagram.to_vec();
    let (packet, signature) = split_signature(&mut datagram);
    let sealed = packet.to_vec();
    opener.judge(pn, sealed, signature, ())
}

fn packet(len: usize) -> Vec<u8> {
    let mut packet = vec![7; len];
    packet[0] = 0x43;
    packet
}

#[test]
fn a_signature_is_for_these_bytes_alone() {
    let (mut sealer, mut receivers) = ends(PacketAuthentication::Signature);
    let sent = seal(&mut sealer, 5, &packet(100));
    assert_eq!(sent.len(), 100 + SIGNATURE_LEN);
    assert!(!sealer.has_tags());
    for opener in &mut receivers {
        assert_eq!(judge(opener, 5, &sent), Verdict::Authentic);
        for at in 0..sent.len() {
            let mut changed = sent.clone();
            // The mark itself is one of the bits.
            changed[at] ^= if at == 0 { 0x20 } else { 1 };
            assert_eq!(judge(opener, 5, &changed), Verdict::Forged, "byte {at}");
        }
    }
    let others = Opener::new(AuthenticationParameters {
        key: PublicKey([1; 32]),
        ..sealer.parameters()
    });
    assert_eq!(judge(&mut { others }, 5, &sent), Verdict::Forged);
}

#[test]
fn each_receiver_has_a_tag_of_its_own() {
    let (mut sealer, mut receivers) = ends(PacketAuthentication::Tags);
    let sent = [packet(100), packet(200)];
    for (pn, packet) in (5..).zip(&sent) {
        assert_eq!(
            seal(&mut sealer, pn, packet),
            *packet,
            "nothing is appended"
        );
    }
    let payload = sealer.take_tags().unwrap();
    assert!(!sealer.has_tags() && sealer.take_tags().is_none());
    for opener in &mut receivers {
        for (pn, packet) in (5..).zip(&sent) {
            assert_eq!(judge(opener, pn, packet), Verdict::Held);
        }
        let proved = opener.take_tags(&payload);
        let proved: Vec<_> = proved
            .into_iter()
            .map(|held| (held.pn, held.packet))
            .collect();
        assert_eq!(proved, [(5, sent[0].clone()), (6, sent[1].clone())]);
        // What comes after its tag needs not wait; what has another number, or was changed, does.
        assert_eq!(judge(opener, 6, &sent[1]), Verdict::Authentic);
        assert_eq!(judge(opener, 5, &sent[1]), Verdict::Held);
        assert_eq!(judge(opener, 6, &packet(201)), Verdict::Held);
        assert!(opener.take_tags(&payload).is_empty());
    }
    // One receiver cannot make the tag of another.
    let mut thief = Opener::new(sealer.parameters());
    thief.take_key(1, &sealer.admit(NUMBERS[1]).unwrap().unwrap().1);
    assert_eq!(judge(&mut thief, 5, &sent[0]), Verdict::Held);
    assert!(thief.take_tags(&payload).is_empty());
}

#[test]
fn the_type_follows_the_number_of_receivers() {
    let mut sealer = sealer(PacketAuthentication::Auto { tags_up_to: 2 });
    assert!(!sealer.is_signing());
    let secrets = NUMBERS.map(|number| {
        let (receiver, secret) = sealer.admit(number).unwrap().unwrap();
        assert_eq!(sealer.is_signing(), number == NUMBERS[2]);
        (receiver, secret)
    });
    assert_eq!(secrets.each_ref().map(|(receiver, _)| *receiver), [1, 2, 3]);
    // A receiver that comes back has another number, and a key that fits no tag of before.
    let (again, secret) = sealer.admit(NUMBERS[1]).unwrap().unwrap();
    assert_eq!(again, 4);
    assert!(secret != secrets[1].1 && sealer.is_signing());
    sealer.remove(NUMBERS[0]);
    assert!(!sealer.is_signing());
}

/// More receivers than a packet has room for.
#[test]
fn tags_of_many_receivers_take_several_packets() {
    let mut sealer = sealer(PacketAuthentication::Tags);
    let mut openers: Vec<_> = (0..120)
        .map(|receiver| {
            let (number, secret) = sealer.admit(receiver).unwrap().unwrap();
            let mut opener = Opener::new(sealer.parameters());
            opener.take_key(number, &secret);
            opener
        })
        .collect();
    let mut sent = packet(300);
    let kept = sealer.seal(8, &mut sent, 0, 1_000);
    let payloads: Vec<_> = std::iter::from_fn(|| sealer.take_tags()).collect();
    assert_eq!(payloads.len(), 3);
    assert_eq!(payloads.iter().map(Vec::len).sum::<usize>(), kept);
    assert!(payloads.iter().all(|payload| payload.len() <= 1_000));
    for opener in &mut openers {
        assert_eq!(judge(opener, 8, &sent), Verdict::Held);
        let proved = payloads
            .iter()
            .map(|payload| opener.take_tags(payload).len());
        assert_eq!(proved.sum::<usize>(), 1);
    }
}

#[test]
fn tags_are_due_before_receivers_keep_much() {
    let (mut sealer, _) = ends(PacketAuthentication::Tags);
    for pn in 0..16 {
        assert!(!sealer.are_tags_due(), "{pn} packets");
        seal(&mut sealer, pn, &packet(100));
        assert!(sealer.has_tags());
    }
    assert!(sealer.are_tags_due());
    while sealer.take_tags().is_some() {}
    assert!(!sealer.are_tags_due());
}

/// A forger floods a receiver with packets and tags of all numbers.
#[test]
fn what_waits_is_bounded() {
    let (mut sealer, mut receivers) = ends(PacketAuthentication::Tags);
    let opener = &mut receivers[0];
    for pn in 0..2_000 {
        assert_eq!(judge(opener, pn, &packet(4_000)), Verdict::Held);
        assert!(opener.held.len() <= HELD_PACKETS && opener.held.len() * 4_000 <= HELD_BYTES);
        let mut tags = Vec::new();
        put_tags(&mut tags, 100, pn + 5_000, &[(1, [0xee; PACKET_TAG_LEN])]);
        assert!(opener.take_tags(&tags).is_empty());
        assert!(opener.known.len() <= KNOWN_TAGS);
    }
    assert_eq!(opener.take_untagged(), 2_000 - opener.held.len() as u64);
    // All with one number.
    for _ in 0..1_000 {
        assert_eq!(judge(opener, 3_000, &packet(40)), Verdict::Held);
    }
    assert_eq!(
        opener.held.iter().filter(|held| held.pn == 3_000).count(),
        8
    );
    let sent = packet(500);
    seal(&mut sealer, 3_000, &sent);
    assert_eq!(judge(opener, 3_000, &sent), Verdict::Held);
    let payload = sealer.take_tags().unwrap();
    assert_eq!(opener.take_tags(&payload).len(), 1, "the true one is found");
}

/// Failures are counted; tags of the source are none, unless they were overtaken or lost.
#[test]
fn failed_tags_are_counted() {
    let (mut sealer, mut receivers) = ends(PacketAuthentication::Tags);
    let opener = &mut receivers[0];
    let tags = |pn, tag| {
        let mut tags = Vec::new();
        put_tags(&mut tags, 100, pn, &[(1, tag)]);
        tags
    };
    let sent = packet(100);
    seal(&mut sealer, 1, &sent);
    let payload = sealer.take_tags().unwrap();
    judge(opener, 1, &sent);
    assert_eq!(opener.take_tags(&payload).len(), 1);
    assert_eq!(opener.take_failed_tags(), 0);
    // Replayed, before and after a copy of its packet.
    for _ in 0..100 {
        opener.take_tags(&payload);
        assert_eq!(judge(opener, 1, &sent), Verdict::Authentic);
    }
    assert_eq!(opener.take_failed_tags(), 0);
    // Without a packet, with one that it does not fit, and known to one that comes then.
    opener.take_tags(&tags(2, [1; PACKET_TAG_LEN]));
    assert_eq!(opener.take_failed_tags(), 1);
    judge(opener, 3, &sent);
    judge(opener, 3, &packet(90));
    assert_eq!(opener.take_failed_tags(), 0);
    opener.take_tags(&tags(3, [1; PACKET_TAG_LEN]));
    assert_eq!(opener.take_failed_tags(), 3);
    judge(opener, 2, &sent);
    assert_eq!(opener.take_failed_tags(), 1);
    // What is for others costs nothing, and many with one number not much.
    let mut foreign = Vec::new();
    put_tags(&mut foreign, 100, 4, &[(2, [1; PACKET_TAG_LEN])]);
    opener.take_tags(&foreign);
    assert_eq!(opener.take_failed_tags(), 0);
    for tag in 0..100 {
        opener.take_tags(&tags(9, [tag; PACKET_TAG_LEN]));
    }
    assert_eq!(opener.take_failed_tags(), 100);
    judge(opener, 9, &sent);
    assert_eq!(opener.take_failed_tags(), 8);
}

#[test]
fn without_a_key_nothing_but_signatures_counts() {
    let (mut sealer, _) = ends(PacketAuthentication::Tags);
    let mut opener = Opener::new(sealer.parameters());
    let sent = seal(&mut sealer, 1, &packet(50));
    assert_eq!(judge(&mut opener, 1, &sent), Verdict::Forged);
    assert!(opener.take_tags(&sealer.take_tags().unwrap()).is_empty());
    assert_eq!(opener.held.len(), 0);
}

#[test]
fn a_stream_is_signed_whole() {
    let signer = PacketSigner::new(&FlowSecret::from([3; 32])).unwrap();
    let (key, signature) = (signer.key(), signer.sign_stream(9, b"update"));
    assert!(key.signed_stream(9, b"update", &signature));
    assert!(!key.signed_stream(9, b"updatE", &signature));
    assert!(!key.signed_stream(8, b"update", &signature));
    assert!(!PublicKey([0; 32]).signed_stream(9, b"update", &signature));
}

proptest! {
    #[test]
    fn any_bytes_are_tags_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (_, mut receivers) = ends(PacketAuthentication::Tags);
        prop_assert!(receivers[0].take_tags(&bytes).is_empty());
        prop_assert!(receivers[0].known.len() <= bytes.len());
    }

    #[test]
    fn any_datagram_is_judged(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (_, mut receivers) = ends(PacketAuthentication::Signature);
        prop_assert_ne!(judge(&mut receivers[0], 1, &bytes), Verdict::Authentic);
    }
}
