#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;
use crate::entry::{Attachment, Author};
use proptest::prelude::*;

fn time() -> Timestamp {
    "2025-09-05T09:49:57.123Z".parse().unwrap()
}

fn entry(id: &str, html: &str) -> Entry {
    Entry {
        id: id.into(),
        title: Some("T".into()),
        content_html: Some(html.into()),
        xml: format!("<entry><id>{id}</id></entry>"),
        ..Entry::default()
    }
}

fn body(encoded: &[u8]) -> serde_json::Value {
    let plain = match encoded[0] {
        ZSTD => decompress(&encoded[1..], MAX_EVENT_BYTES).unwrap(),
        _ => encoded[1..].to_vec(),
    };
    serde_json::from_slice(&plain).unwrap()
}

#[test]
fn the_event_follows_the_contract() {
    let incarnation = Uuid::from_u128(7);
    let now = "2025-09-05T09:49:57.1239Z".parse().unwrap();
    let event = body(&encode(
        &entry("urn:x", "<p>"),
        Kind::Updated,
        "https://example.org/f",
        incarnation,
        42,
        now,
    ));
    assert_eq!(event["specversion"], "1.0");
    assert_eq!(event["type"], "org.flexfeed.entry.updated.v1");
    assert_eq!(event["source"], "https://example.org/f");
    assert_eq!(event["id"], format!("{incarnation}/42"));
    assert_eq!(event["time"], "2025-09-05T09:49:57.123Z");
    assert_eq!(event["subject"], "urn:x");
    assert_eq!(event["datacontenttype"], "application/json");
    assert_eq!(event["data"]["id"], "urn:x");
    assert_eq!(event["data"]["content_html"], "<p>");
    assert_eq!(
        event["data"]["_flexfeed"]["xml"],
        "<entry><id>urn:x</id></entry>"
    );
}

#[test]
fn whole_seconds_have_milliseconds_too() {
    let now = "2025-09-05T09:49:57Z".parse().unwrap();
    let event = body(&encode(
        &entry("a", ""),
        Kind::Created,
        "u",
        Uuid::nil(),
        1,
        now,
    ));
    assert_eq!(event["time"], "2025-09-05T09:49:57.000Z");
}

#[test]
fn both_decompressors_agree() {
    let words = |n: usize| "word ".repeat(n).into_bytes();
    for plain in [words(0), words(1), words(1000), words(SHORT / 5 + 1)] {
        let packed = zstd::bulk::compress(&plain, ZSTD_LEVEL).unwrap();
        assert_eq!(decompress(&packed, MAX_EVENT_BYTES).unwrap(), plain);
        assert_eq!(decompress_any(&packed, MAX_EVENT_BYTES).unwrap(), plain);
        assert_eq!(
            decompress_short(&packed, SHORT).is_some(),
            plain.len() <= SHORT
        );
        // A frame without its length, two frames, and damaged ones.
        let unknown = zstd::stream::encode_all(plain.as_slice(), 3).unwrap();
        assert_eq!(decompress(&unknown, MAX_EVENT_BYTES).unwrap(), plain);
        let twice = [packed.as_slice(), &packed].concat();
        assert_eq!(
            decompress(&twice, MAX_EVENT_BYTES).unwrap(),
            [plain.as_slice(), &plain].concat()
        );
        for cut in 0..packed.len().min(60) {
            assert!(decompress(&packed[..cut], MAX_EVENT_BYTES).is_err() || cut == 0);
        }
        // The context is reusable after each of them.
        assert_eq!(decompress(&packed, MAX_EVENT_BYTES).unwrap(), plain);
    }
}

#[test]
fn compression_is_used_where_it_helps_and_bounded() {
    let long = encode(
        &entry("a", &"word ".repeat(1000)),
        Kind::Created,
        "u",
        Uuid::nil(),
        1,
        time(),
    );
    assert_eq!(long[0], ZSTD);
    assert!(long.len() < 1000);
    let bomb = zstd::bulk::compress(&vec![b' '; MAX_EVENT_BYTES + 1], 3).unwrap();
    assert!(bomb.len() < 10_000);
    let bomb = [&[ZSTD], bomb.as_slice()].concat();
    assert!(matches!(decode(&bomb), Err(PayloadError::TooLong)));
}

/// A header changes nothing of what is read, whether it is genuine or not.
#[test]
fn the_header_of_a_signed_update_is_passed_over() {
    let signer = signing::Signer::from_seed(&[1; 32]).unwrap();
    let statement = signing::Statement {
        channel: "lore",
        incarnation: Uuid::nil(),
        seq: 7,
        deadline_ms: 0,
    };
    for text in ["short", &"word ".repeat(1000)] {
        let entry = entry("a", text);
        let plain = encode(&entry, Kind::Created, "u", Uuid::nil(), 7, time());
        let signed = signer.sign(&statement, &[0; 16], &plain).unwrap();
        assert_eq!(decode(&signed).unwrap(), decode(&plain).unwrap());
        assert_eq!(summary(&signed).unwrap(), summary(&plain).unwrap());
        assert_eq!(event_json(&signed).unwrap(), event_json(&plain).unwrap());
        assert_eq!(is_update(&signed, 7), Some(true));
        assert_eq!(is_update(&signed, 8), Some(false));
        let twice = signer.sign(&statement, &[0; 16], &signed).unwrap();
        let error = decode(&twice).unwrap_err();
        assert!(matches!(error, PayloadError::UnknownEncoding(2)), "{error}");
        assert!(is_update(&twice, 7).is_none() && event_json(&twice).is_err());
    }
}

#[test]
fn bytes_that_are_no_update_are_refused() {
    assert!(matches!(decode(&[]), Err(PayloadError::Empty)));
    assert!(matches!(
        decode(&[9, 1]),
        Err(PayloadError::UnknownEncoding(9))
    ));
    assert!(matches!(decode(&[0]), Err(PayloadError::Json(_))));
    assert!(matches!(
        decode(&[1, 2, 3]),
        Err(PayloadError::Decompress(_))
    ));
    let good = encode(&entry("a", ""), Kind::Created, "u", Uuid::nil(), 1, time());
    for (member, value) in [
        ("specversion", "2.0"),
        ("type", "x"),
        ("id", "1/1"),
        ("time", "yesterday"),
        ("subject", "other"),
    ] {
        let mut event = body(&good);
        event[member] = value.into();
        let mut bytes = vec![IDENTITY];
        bytes.extend(event.to_string().bytes());
        match decode(&bytes) {
            Err(PayloadError::Member { member: m, .. }) => assert_eq!(m, member),
            other => panic!("{member}: {other:?}"),
        }
    }
}

/// Asserts that a glance accepts everything that can be decoded, with the same values. Returns
/// whether both refuse the bytes.
fn same(bytes: &[u8]) -> bool {
    match (decode(bytes), summary(bytes)) {
        (Ok(update), Ok(seen)) => assert_eq!(
            (update.seq, update.time, update.entry.id),
            (seen.seq, seen.time, seen.entry_id)
        ),
        (Err(_), Err(_)) => return true,
        // The defect is in the part that a glance skips.
        (Err(_), Ok(_)) => {}
        (Ok(update), Err(error)) => panic!("{update:?}: {error}"),
    }
    false
}

/// Members that a glance reads.
const HEAD: [&str; 6] = ["specversion", "type", "source", "id", "time", "subject"];

/// Returns an event with the members of `first` and `then` that it has, in this order.
fn written(event: &serde_json::Value, first: &[&str], then: &[&str]) -> Vec<u8> {
    let names = first.iter().chain(then);
    let members = names.filter_map(|name| Some(format!("\"{name}\":{}", event.get(*name)?)));
    let text = members.collect::<Vec<_>>().join(",");
    [&[IDENTITY], format!("{{{text}}}").as_bytes()].concat()
}

#[test]
fn a_glance_refuses_updates_without_number_or_entry() {
    let good = body(&encode(
        &entry("a", "<p>"),
        Kind::Updated,
        "u",
        Uuid::nil(),
        7,
        time(),
    ));
    // As a source writes it, with its entry at the end.
    let again = |event: &serde_json::Value| written(event, &HEAD, &["datacontenttype", "data"]);
    let turned = |event: &serde_json::Value| written(event, &["datacontenttype", "data"], &HEAD);
    for write in [&again as &dyn Fn(&_) -> Vec<u8>, &turned] {
        assert!(!same(&write(&good)));
        let seen = summary(&write(&good)).unwrap();
        assert_eq!(
            (seen.seq, seen.time, seen.entry_id.as_str()),
            (7, time(), "a")
        );
    }
    let members = ["specversion", "type", "id", "time", "subject"];
    let members = members.iter().map(|name| vec![*name]);
    for place in members.chain([vec!["data", "id"], vec!["data", "_flexfeed"], vec!["data"]]) {
        for value in ["7", "\"x\"", "null", "[]", "\"\""] {
            if place == ["data", "_flexfeed"] && value != "null" {
                continue;
            }
            // An entry's id is not compared with that in the entry.
            let is_seen = place[0] != "data" && !(place == ["subject"] && value == "\"x\"");
            let mut event = good.clone();
            let inner = place
                .iter()
                .fold(&mut event, |inner, name| &mut inner[*name]);
            *inner = serde_json::from_str(value).unwrap();
            assert!(same(&turned(&event)), "{place:?}: {value}");
            assert_eq!(same(&again(&event)), is_seen, "{place:?}: {value}");
        }
        let mut event = good.clone();
        let (last, before) = place.split_last().unwrap();
        let inner = before
            .iter()
            .fold(&mut event, |inner, name| &mut inner[*name]);
        inner.as_object_mut().unwrap().remove(*last);
        assert!(same(&turned(&event)), "{place:?}");
        let is_seen = place[0] != "data" || place.len() == 1;
        assert_eq!(same(&again(&event)), is_seen, "{place:?}");
    }
    let twice = written(&good, &HEAD, &["id", "datacontenttype", "data"]);
    assert!(same(&twice));
    // Not UTF-8: outside of all members, in one that is read, and in one that is not.
    let text = String::from_utf8(again(&good)[1..].to_vec()).unwrap();
    for (at, both) in [("", true), ("org.flexfeed", true), ("<p>", false)] {
        let mut bytes = again(&good);
        bytes[1 + text.find(at).unwrap()] = 0xff;
        assert_eq!(same(&bytes), both, "{at}");
        decode(&bytes).unwrap_err();
    }
}

prop_compose! {
    fn any_entry()(
        id in "\\PC{1,20}",
        texts in proptest::collection::vec(proptest::option::of("(?s).{1,40}"), 5),
        names in proptest::collection::vec(proptest::option::of("\\PC{1,9}"), 0..4),
        tags in proptest::collection::vec("\\PC{0,9}", 0..3),
        ms in proptest::option::of(-62_000_000_000_000i64..253_000_000_000_000),
        size in proptest::option::of(any::<u64>()),
        xml in "(?s).{0,200}",
    ) -> Entry {
        let when = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Entry {
            id,
            title: texts[0].clone(),
            url: texts[1].clone(),
            content_html: texts[2].clone(),
            content_text: texts[3].clone(),
            summary: texts[4].clone(),
            authors: names.into_iter()
                .map(|name| Author { url: name.clone().map(|n| format!("mailto:{n}")), name })
                .collect(),
            attachments: tags.iter()
                .map(|t| Attachment { url: t.clone(), mime_type: t.clone(), size })
                .collect(),
            tags,
            language: texts[4].clone(),
            published: when,
            updated: when,
            xml,
        }
    }
}

proptest! {
    #[test]
    fn encoding_and_decoding_round_trip(
        entry in any_entry(),
        seq in any::<u64>(),
        i in any::<u128>(),
    ) {
        let encoded = encode(&entry, Kind::Created, "https://f/", Uuid::from_u128(i), seq, time());
        let update = decode(&encoded).unwrap();
        prop_assert_eq!(update.entry, entry);
        prop_assert_eq!((update.seq, update.incarnation), (seq, Uuid::from_u128(i)));
        prop_assert_eq!(update.time, time());
        prop_assert_eq!(update.kind, Kind::Created);
        same(&encoded);
    }

    #[test]
    fn any_bytes_give_a_result(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        same(&bytes);
    }

    #[test]
    fn damaged_updates_give_a_result(
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<proptest::sample::Index>(),
        long in any::<bool>(),
    ) {
        let html = if long { "word ".repeat(500) } else { "x".into() };
        let mut bytes = encode(&entry("a", &html), Kind::Created, "u", Uuid::nil(), 1, time());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(cut.index(bytes.len()) + 1);
        same(&bytes);
    }
}

/// The cost of judging bytes that may be forged is bounded by their length.
#[test]
fn is_update_judges_known_versions() {
    let incarnation = Uuid::from_u128(7);
    let make = |html: &str| {
        let entry = entry("urn:x", html);
        encode(
            &entry,
            Kind::Created,
            "https://example.org/f",
            incarnation,
            42,
            time(),
        )
    };
    let short = make("<p>");
    assert_eq!(is_update(&short, 42), Some(true));
    assert_eq!(is_update(&short, 43), Some(false));
    let text: String = (0..60_000u64).map(|n| format!("{} ", n * n)).collect();
    let long = make(&text);
    assert!(long[0] == ZSTD && long.len() > 100_000);
    assert_eq!(is_update(&long, 42), Some(true));
    // A later version's encoding, and its kinds of events.
    assert_eq!(is_update(&[7, 1, 2], 42), None);
    let event = event_json(&short).unwrap();
    let event = String::from_utf8(event).unwrap();
    for (from, to) in [("created.v1", "created.v2"), ("\"1.0\"", "\"2.0\"")] {
        let later = format!("\0{}", event.replace(from, to));
        assert_eq!(is_update(later.as_bytes(), 42), None);
    }
    for bad in [
        &b""[..],
        b"\0{}",
        b"\x01junk",
        b"\0",
        &short[..short.len() - 1],
    ] {
        assert_eq!(is_update(bad, 42), Some(false));
    }
    // The update would be valid, at too great a cost.
    let bomb = make(&"a".repeat(MAX_EVENT_BYTES / 4));
    assert!(bomb.len() * MAX_RATIO < MAX_EVENT_BYTES / 4);
    assert!(decode(&bomb).is_ok());
    assert_eq!(is_update(&bomb, 42), Some(false));
}
