//! Headers of signed updates, and the judgement of updates by a channel's lineage.

use std::collections::BTreeSet;

use arbitrary::{Arbitrary, Unstructured};
use flexicast::signing::{self, Forgery, Header, Lineage, SALT_LEN, Signer, Statement};
use uuid::Uuid;

const CHANNEL: &str = "lore";

/// Range of updates that one key signs.
#[derive(Debug, Arbitrary)]
struct Era {
    first: u8,
    length: Option<u8>,
    incarnation: bool,
    key: bool,
}

/// Bytes that arrive as an update.
#[derive(Debug, Arbitrary)]
enum Update<'a> {
    /// Bytes from anywhere.
    Raw { seq: u8, bytes: &'a [u8] },
    /// Signed, then perhaps damaged.
    Signed {
        seq: u8,
        stated: Option<u8>,
        other_channel: bool,
        incarnation: bool,
        key: bool,
        deadline_ms: u32,
        content: &'a [u8],
        copies: u8,
        damage: Option<(u16, u8)>,
        cut: Option<u16>,
    },
}

fn incarnation(other: bool) -> Uuid {
    Uuid::from_u128(1 + u128::from(other))
}

fn signer(other: bool) -> Signer {
    Signer::from_seed(&[1 + u8::from(other); 32]).expect("a key")
}

/// An update is taken if its era's key signed just these bytes as just this one, and never else.
pub fn signature(data: &[u8]) {
    let _ = play_signature(data);
}

/// The same; returns the names of the verdicts that there were.
pub fn play_signature(data: &[u8]) -> BTreeSet<&'static str> {
    let mut verdicts = BTreeSet::new();
    let mut u = Unstructured::new(data);
    let eras: Vec<Era> = (0..u.int_in_range(0..=3).unwrap_or(0))
        .map_while(|_| u.arbitrary().ok())
        .collect();
    let last = |era: &Era| {
        era.length
            .map(|length| u64::from(era.first) + u64::from(length))
    };
    let ascends = eras
        .windows(2)
        .all(|pair| last(&pair[0]).is_some_and(|last| last < u64::from(pair[1].first)));
    let told = eras.iter().map(|era| signing::Era {
        first: era.first.into(),
        last: last(era),
        incarnation: incarnation(era.incarnation),
        key: signer(era.key).key(),
    });
    let lineage = Lineage::new(told.collect());
    let is_lineage = ascends && eras.iter().all(|era| era.first > 0);
    assert_eq!(lineage.is_ok(), is_lineage, "{eras:?}");
    let lineage = lineage.unwrap_or_default();
    while let Ok(update) = Update::arbitrary(&mut u) {
        let (seq, bytes, is_genuine) = make(&update, &eras, is_lineage);
        look_at(&bytes);
        let judged = lineage.verify(CHANNEL, seq, &bytes);
        assert_eq!(
            judged.is_ok(),
            is_genuine,
            "{judged:?} of {update:?} by {eras:?}"
        );
        if let Ok(header) = lineage.verify_header(CHANNEL, seq, &bytes) {
            assert!(header.seq() == seq && lineage.era_of(seq).is_some());
            // A header that verifies needs nothing behind it.
            let alone = lineage.verify_header(CHANNEL, seq, &bytes[..header.len()]);
            assert_eq!(alone, Ok(header));
        }
        verdicts.insert(match judged {
            Ok(()) => "taken",
            Err(Forgery::Unsigned) => "outside all eras",
            Err(Forgery::Header(_)) => "no header",
            Err(Forgery::Misplaced) => "misplaced",
            Err(Forgery::Signature) => "another signature",
            Err(Forgery::Content) => "other bytes",
            Err(_) => "another verdict",
        });
        if u.is_empty() {
            break;
        }
    }
    verdicts
}

/// Returns the number by which an update arrives, its bytes, and whether the lineage of these eras
/// vouches for it.
fn make(update: &Update<'_>, eras: &[Era], is_lineage: bool) -> (u64, Vec<u8>, bool) {
    let (seq, stated, other_channel, of, by, deadline_ms, content, damage, cut) = match update {
        // Nobody but a signer makes a signature.
        Update::Raw { seq, bytes } => return ((*seq).into(), bytes.to_vec(), false),
        Update::Signed {
            seq,
            stated,
            other_channel,
            incarnation,
            key,
            deadline_ms,
            content,
            copies,
            damage,
            cut,
        } => (
            u64::from(*seq),
            stated.map_or(u64::from(*seq), u64::from),
            *other_channel,
            *incarnation,
            *key,
            *deadline_ms,
            content.repeat(1 + usize::from(*copies)),
            damage,
            cut,
        ),
    };
    let statement = Statement {
        channel: if other_channel { "news" } else { CHANNEL },
        incarnation: incarnation(of),
        seq: stated,
        deadline_ms: deadline_ms.into(),
    };
    let signed = signer(by).sign(&statement, &[9; SALT_LEN], &content);
    let Ok(signed) = signed else {
        assert_eq!(stated, 0, "everything else that is short is signed");
        return (seq, content, false);
    };
    assert_eq!(signing::content(&signed), content);
    let mut bytes = signed.clone();
    if let Some((at, xor)) = damage {
        let at = usize::from(*at) % bytes.len();
        bytes[at] ^= xor;
    }
    if let Some(cut) = cut {
        bytes.truncate((*cut).into());
    }
    let vouches = |era: &Era| {
        let last = era
            .length
            .map(|length| u64::from(era.first) + u64::from(length));
        seq >= era.first.into()
            && last.is_none_or(|last| seq <= last)
            && (era.incarnation, era.key) == (of, by)
    };
    let is_genuine = is_lineage
        && bytes == signed
        && seq == stated
        && !other_channel
        && eras.iter().any(vouches);
    (seq, bytes, is_genuine)
}

/// Whatever is parsed stays within the bytes that there are.
fn look_at(bytes: &[u8]) {
    assert!(signing::content(bytes).len() <= bytes.len());
    let Ok(header) = Header::parse(bytes) else {
        return;
    };
    assert_eq!(signing::header_len(bytes), Some(header.len()));
    assert!(header.len() <= bytes.len().min(signing::MAX_HEADER) && header.chunks() <= 56);
    let mut end = header.len();
    for index in 0..header.chunks() {
        let chunk = header.chunk(index);
        assert!(chunk.start == end && !chunk.is_empty());
        end = chunk.end;
        let chunk = bytes.get(chunk).unwrap_or_default();
        assert!(!header.is_genuine(index, chunk) || !header.is_genuine(header.chunks(), chunk));
    }
    assert_eq!(end, header.total_len());
    assert!(!header.is_genuine_whole(bytes) || bytes.len() == end);
    assert!(header.chunk(header.chunks()).is_empty() && header.chunk(usize::MAX).is_empty());
}
