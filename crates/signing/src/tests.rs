use data_encoding::HEXLOWER;
use proptest::prelude::*;
use uuid::Uuid;

use crate::*;

const SALT: [u8; SALT_LEN] = [9; SALT_LEN];
const LORE: Statement<'static> = Statement {
    channel: "lore",
    incarnation: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
    seq: 301,
    deadline_ms: 0,
};

fn signer(seed: u8) -> Signer {
    Signer::from_seed(&[seed; 32]).unwrap()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// Whether a receiver that has this key takes these bytes for update 301 of the channel.
fn is_taken(signed: &[u8], key: &VerifyingKey, channel: &str) -> bool {
    Header::parse(signed).is_ok_and(|header| {
        header.verify(key, channel).is_ok()
            && header.seq() == 301
            && header.is_genuine_whole(signed)
    })
}

/// RFC 8032 section 7.1, TEST 1.
#[test]
fn keys_are_those_of_rfc_8032() {
    let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    let seed = HEXLOWER.decode(seed.as_bytes()).unwrap();
    let signer = Signer::from_seed(seed[..].try_into().unwrap()).unwrap();
    assert_eq!(
        HEXLOWER.encode(&signer.key().0),
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    );
    let shown = format!("{signer:?} {}", signer.key().id());
    assert!(
        !shown.contains("9d61") && !shown.contains("157, 97"),
        "{shown}"
    );
}

#[test]
fn what_was_signed_is_taken() {
    let key = signer(1).key();
    for length in [0, 1, 16_384, 16_385, 1_000_000, 4 << 20] {
        let content = bytes(length);
        let signed = signer(1).sign(&LORE, &SALT, &content).unwrap();
        assert!(is_taken(&signed, &key, "lore"), "{length} bytes");
        assert_eq!(crate::content(&signed), content);
        let header = Header::parse(&signed).unwrap();
        assert!(header.len() <= MAX_HEADER && header.chunks() <= 56);
        assert_eq!(header.len() + length, signed.len());
        assert_eq!(header.chunk(header.chunks()), signed.len()..signed.len());
        assert_eq!(
            (header.key_id(), header.incarnation(), header.deadline_ms()),
            (key.id(), LORE.incarnation, None)
        );
        // The header alone is enough to verify it, and to judge chunks in any order.
        let alone = Header::parse(&signed[..header.len()]).unwrap();
        assert_eq!((alone, alone.verify(&key, "lore")), (header, Ok(())));
        assert!(
            (0..header.chunks())
                .rev()
                .all(|index| alone.is_genuine(index, &signed[alone.chunk(index)]))
        );
    }
}

/// An update of the usual length grows by 2.2 %.
#[test]
fn a_short_update_has_one_hash() {
    let signed = signer(1).sign(&LORE, &SALT, &bytes(6_000)).unwrap();
    assert_eq!(signed.len() - 6_000, 133);
}

#[test]
fn every_changed_byte_is_noticed() {
    let key = signer(1).key();
    let signed = signer(1).sign(&LORE, &SALT, &bytes(40_000)).unwrap();
    let header = Header::parse(&signed).unwrap().len();
    let some = (header..signed.len()).step_by(997);
    for at in (0..header).chain(some).chain([signed.len() - 1]) {
        let mut changed = signed.clone();
        changed[at] ^= 1;
        assert!(!is_taken(&changed, &key, "lore"), "byte {at}");
    }
    assert!(!is_taken(&signed[..signed.len() - 1], &key, "lore"));
    assert!(!is_taken(&[&signed[..], b"x"].concat(), &key, "lore"));
}

#[test]
fn an_update_cannot_be_moved() {
    let key = signer(1).key();
    let signed = signer(1).sign(&LORE, &SALT, b"an update").unwrap();
    assert!(!is_taken(&signed, &key, "news"), "another channel");
    assert!(!is_taken(&signed, &signer(2).key(), "lore"), "another key");
    let other = Statement { seq: 302, ..LORE };
    let signed = signer(1).sign(&other, &SALT, b"an update").unwrap();
    assert!(!is_taken(&signed, &key, "lore"), "another seq");
}

#[test]
fn chunks_are_not_exchanged() {
    let content = bytes(16_384 * 3);
    let signed = signer(1).sign(&LORE, &SALT, &content).unwrap();
    let header = Header::parse(&signed).unwrap();
    let chunk = &signed[header.chunk(0)];
    assert!(header.is_genuine(0, chunk));
    assert!(!header.is_genuine(1, chunk), "the bytes of another one");
    assert!(!header.is_genuine(3, b""), "a chunk that there is not");
    assert!(!header.is_genuine(usize::MAX, chunk));
    let salt = header.len() - 64 - 3 * 16 - SALT_LEN;
    assert_eq!(signed[salt..salt + SALT_LEN], SALT);
    let mut resalted = signed.clone();
    resalted[salt] ^= 1;
    let resalted = Header::parse(&resalted).unwrap();
    assert!(
        !resalted.is_genuine(0, chunk),
        "the same bytes by another salt"
    );
}

#[test]
fn errors_say_what_is_wrong() {
    let signed = signer(1).sign(&LORE, &SALT, b"an update").unwrap();
    let header = Header::parse(&signed).unwrap().len();
    assert_eq!(Header::parse(b"\0{}"), Err(HeaderError::Unsigned));
    for end in 0..header {
        assert_eq!(Header::parse(&signed[..end]), Err(HeaderError::CutOff));
    }
    let mut later = signed.clone();
    later[3] = 9;
    assert_eq!(Header::parse(&later), Err(HeaderError::Algorithm(9)));
    assert_eq!(content(&later), b"an update", "whatever the algorithm");
    assert_eq!(content(b"\0{}"), b"\0{}");
    assert_eq!(content(&signed[..2]), &signed[..2]);
    let longer = [&[SIGNED, 0xff, 0xff][..], &[1; 70_000]].concat();
    assert_eq!(Header::parse(&longer), Err(HeaderError::Malformed));
    for statement in [
        Statement { seq: 0, ..LORE },
        Statement {
            seq: 1 << 62,
            ..LORE
        },
    ] {
        let result = signer(1).sign(&statement, &SALT, b"update");
        assert_eq!(result, Err(SignError::TooLong(6)));
    }
}

fn era(first: u64, last: Option<u64>, seed: u8) -> Era {
    Era {
        first,
        last,
        incarnation: LORE.incarnation,
        key: signer(seed).key(),
    }
}

#[test]
fn each_update_is_judged_by_the_key_of_its_era() {
    let lineage = Lineage::new(vec![
        era(10, Some(300), 1),
        era(301, Some(301), 2),
        era(400, None, 3),
    ]);
    let lineage = lineage.unwrap();
    let known = |seq| lineage.era_of(seq).map(|era| era.first);
    let seqs = [0, 9, 10, 300, 301, 302, 399, 400, u64::MAX];
    assert_eq!(
        seqs.map(known),
        [
            None,
            None,
            Some(10),
            Some(10),
            Some(301),
            None,
            None,
            Some(400),
            Some(400)
        ]
    );
    let sign = |seed: u8, seq| {
        let statement = Statement { seq, ..LORE };
        signer(seed).sign(&statement, &SALT, b"an update").unwrap()
    };
    let judge = |seq, signed: &[u8]| lineage.verify("lore", seq, signed);
    assert_eq!(judge(301, &sign(2, 301)), Ok(()));
    assert_eq!(judge(500, &sign(3, 500)), Ok(()));
    assert_eq!(judge(301, &sign(3, 301)), Err(Forgery::Misplaced), "key");
    assert_eq!(judge(301, &sign(2, 300)), Err(Forgery::Misplaced), "seq");
    assert_eq!(judge(350, &sign(3, 350)), Err(Forgery::Unsigned));
    assert_eq!(
        judge(301, b"\0an update"),
        Err(Forgery::Header(HeaderError::Unsigned))
    );
    let mut changed = sign(2, 301);
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(judge(301, &changed), Err(Forgery::Content));
    let misplaced = lineage.verify("news", 301, &sign(2, 301));
    assert_eq!(misplaced, Err(Forgery::Signature), "another channel");
    let other = Statement {
        incarnation: Uuid::nil(),
        ..LORE
    };
    let other = signer(2).sign(&other, &SALT, b"an update").unwrap();
    assert_eq!(judge(301, &other), Err(Forgery::Misplaced), "incarnation");
}

/// Of updates that are checked together, by two keys, only those that are wrong are refused.
#[test]
fn wrong_updates_are_found_among_many() {
    let lineage = Lineage::new(vec![era(1, Some(40), 1), era(41, None, 2)]).unwrap();
    let sign = |seq| {
        let statement = Statement { seq, ..LORE };
        let key = if seq <= 40 { 1 } else { 2 };
        signer(key).sign(&statement, &SALT, &bytes(500)).unwrap()
    };
    let mut updates: Vec<(u64, Vec<u8>)> = (1..=80).map(|seq| (seq, sign(seq))).collect();
    let judge = |updates: &[(u64, Vec<u8>)]| {
        let updates: Vec<(u64, &[u8])> = updates.iter().map(|(seq, s)| (*seq, &s[..])).collect();
        let together = lineage.verify_all("lore", &updates);
        let alone = updates
            .iter()
            .map(|(seq, signed)| lineage.verify("lore", *seq, signed));
        assert_eq!(together, alone.collect::<Vec<_>>());
        let wrong = updates.iter().zip(together);
        let wrong = wrong.filter_map(|((seq, _), result)| Some((*seq, result.err()?)));
        wrong.collect::<Vec<_>>()
    };
    assert_eq!(judge(&updates), []);
    assert_eq!(judge(&updates[..1]), []);
    let signature = Header::parse(&updates[9].1).unwrap().len() - 1;
    updates[9].1[signature - 40] ^= 1;
    updates[49].1[signature] ^= 1;
    *updates[59].1.last_mut().unwrap() ^= 1;
    updates[60].1 = sign(62);
    assert_eq!(
        judge(&updates),
        [
            (10, Forgery::Signature),
            (50, Forgery::Signature),
            (60, Forgery::Content),
            (61, Forgery::Misplaced)
        ]
    );
}

/// A key of one's own with the number of the source's does not help.
#[test]
fn the_number_of_a_key_is_no_proof() {
    let lineage = Lineage::new(vec![era(1, None, 1)]).unwrap();
    let mut signed = signer(2).sign(&LORE, &SALT, b"an update").unwrap();
    signed[4..12].copy_from_slice(&signer(1).key().id().0);
    assert_eq!(
        lineage.verify("lore", 301, &signed),
        Err(Forgery::Signature)
    );
}

#[test]
fn eras_ascend_and_do_not_overlap() {
    let all = |eras: &[(u64, Option<u64>)]| {
        Lineage::new(
            eras.iter()
                .map(|(first, last)| era(*first, *last, 1))
                .collect(),
        )
    };
    assert!(all(&[]).is_ok() && all(&[(1, Some(1)), (2, None)]).is_ok());
    for wrong in [
        &[(0, None)][..],
        &[(5, Some(4))],
        &[(1, None), (2, None)],
        &[(1, Some(5)), (5, None)],
        &[(5, Some(6)), (1, Some(2))],
    ] {
        assert_eq!(all(wrong), Err(LineageError), "{wrong:?}");
    }
    let many: Vec<_> = (1..=257).map(|seq| (seq, Some(seq))).collect();
    assert!(all(&many).is_err() && all(&many[1..]).is_ok());
}

proptest! {
    /// Any bytes may come: with and without the beginning of a header, and what is parsed stays
    /// within what was given.
    #[test]
    fn any_bytes_may_be_parsed(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        is_headed in any::<bool>(),
    ) {
        if is_headed && bytes.len() > 3 {
            let length = (bytes.len() - 3) as u16;
            bytes[0] = SIGNED;
            bytes[1..3].copy_from_slice(&length.to_be_bytes());
            bytes[3] = 1;
        }
        prop_assert!(content(&bytes).len() <= bytes.len());
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!(header.len() <= bytes.len() && header.chunks() <= 56);
            prop_assert!(!header.is_genuine_whole(&bytes) || header.total_len() == bytes.len());
            prop_assert!(header.verify(&signer(1).key(), "lore").is_err());
            let _ = header.chunk(usize::MAX);
        }
    }

    /// What a signer writes is read as it was written.
    #[test]
    fn headers_are_read_as_written(
        channel in "[a-z]{1,40}",
        incarnation in any::<u128>(),
        seq in 1..1_u64 << 62,
        deadline_ms in 0..1_u64 << 62,
        content in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let incarnation = Uuid::from_u128(incarnation);
        let statement = Statement { channel: &channel, incarnation, seq, deadline_ms };
        let signed = signer(1).sign(&statement, &SALT, &content).unwrap();
        let header = Header::parse(&signed).unwrap();
        prop_assert_eq!(header.verify(&signer(1).key(), &channel), Ok(()));
        prop_assert_eq!((header.incarnation(), header.seq()), (incarnation, seq));
        prop_assert_eq!(header.deadline_ms().unwrap_or(0), deadline_ms);
        prop_assert!(header.is_genuine_whole(&signed));
    }
}

/// A chain in both directions, out of order, with forged links and one that leads elsewhere.
#[test]
fn trust_follows_genuine_endorsements_from_pinned_keys() {
    let [a, b, c, d, forger] = [1, 2, 3, 4, 9].map(signer);
    let forged = Endorsement {
        signer: a.key(),
        ..forger.endorse(forger.key())
    };
    let moved = Endorsement {
        subject: forger.key(),
        ..a.endorse(b.key())
    };
    let all = [
        c.endorse(b.key()),
        forged,
        b.endorse(c.key()),
        moved,
        a.endorse(b.key()),
        b.endorse(a.key()),
        forger.endorse(d.key()),
        d.endorse(a.key()),
    ];
    let trusted = |pinned: &Signer| trusted_keys(&[pinned.key()], &all);
    assert_eq!(trusted(&a), [a.key(), b.key(), c.key()]);
    assert_eq!(trusted(&c), [c.key(), b.key(), a.key()]);
    assert_eq!(trusted(&d), [d.key(), a.key(), b.key(), c.key()]);
    assert_eq!(trusted_keys(&[], &all), []);
    // A long way needs no more checks than there are endorsements, and those beyond the limit are
    // not looked at.
    let keys: Vec<_> = (0..=100).map(signer).collect();
    let chain: Vec<_> = keys
        .windows(2)
        .map(|pair| pair[0].endorse(pair[1].key()))
        .collect();
    assert_eq!(trusted_keys(&[keys[0].key()], &chain).len(), 65);
}

#[test]
fn a_pinned_lineage_takes_no_other_key() {
    let era = Era {
        first: 1,
        last: None,
        incarnation: LORE.incarnation,
        key: signer(1).key(),
    };
    let signed = signer(1).sign(&LORE, &SALT, b"an update").unwrap();
    let mut lineage = Lineage::new(vec![era]).unwrap();
    assert_eq!(lineage.verify("lore", 301, &signed), Ok(()));
    lineage.trust_only(vec![signer(2).key()]);
    let unknown = Forgery::UnknownKey(signer(1).key().id());
    assert_eq!(lineage.verify("lore", 301, &signed), Err(unknown));
    lineage.trust_only(vec![signer(2).key(), signer(1).key()]);
    assert_eq!(lineage.verify("lore", 301, &signed), Ok(()));
}

#[test]
fn a_key_has_one_text() {
    let key = signer(1).key();
    let text = key.to_string();
    assert!(text.starts_with("ed25519:") && text.len() == 8 + 43);
    assert_eq!(text.parse(), Ok(key));
    let long = format!("{text}A");
    let padded = format!("{text}=");
    for wrong in ["", "ed25519:", &text[8..], &text[..50], &long, &padded] {
        assert_eq!(wrong.parse::<VerifyingKey>(), Err(KeyTextError), "{wrong}");
    }
}

#[test]
fn a_message_is_no_update_and_an_update_no_message() {
    let (content, other) = (bytes(70_000), signer(2));
    let message = signer(1).sign_message(&LORE, &SALT, &content).unwrap();
    let update = signer(1).sign(&LORE, &SALT, &content).unwrap();
    assert_eq!(crate::content(&message), content);
    let mut lineage = Lineage::new(vec![era(1, None, 1)]).unwrap();
    let of = |lineage: &Lineage, bytes: &[u8]| {
        let verified = lineage.verify_message("lore", 301, bytes);
        verified.map(|header| header.seq())
    };
    assert_eq!(of(&lineage, &message), Ok(301));
    assert_eq!(of(&lineage, &update), Err(Forgery::Signature));
    assert_eq!(
        lineage.verify("lore", 301, &message),
        Err(Forgery::Signature)
    );
    assert_eq!(lineage.verify("lore", 301, &update), Ok(()));
    let of_other = other.sign_message(&LORE, &SALT, &content).unwrap();
    assert_eq!(of(&lineage, &of_other), Err(Forgery::Misplaced));
    let elsewhere = lineage.verify_message("news", 301, &message);
    assert_eq!(elsewhere, Err(Forgery::Signature));
    let renumbered = lineage.verify_message("lore", 302, &message);
    assert_eq!(renumbered, Err(Forgery::Misplaced));
    let mut changed = message.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(of(&lineage, &changed), Err(Forgery::Content));
    // Nothing signs messages now, or a key that is not trusted does.
    let closed = Lineage::new(vec![era(1, Some(300), 1)]).unwrap();
    assert_eq!(of(&closed, &message), Err(Forgery::Unsigned));
    assert_eq!(of(&Lineage::default(), &message), Err(Forgery::Unsigned));
    lineage.trust_only(vec![other.key()]);
    let id = signer(1).key().id();
    assert_eq!(of(&lineage, &message), Err(Forgery::UnknownKey(id)));
}
