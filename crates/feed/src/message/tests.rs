#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

fn message(content_type: &str, body: &[u8]) -> Message {
    Message {
        id: "a1".into(),
        time_ms: 1_757_065_797_123,
        content_type: content_type.into(),
        subject: None,
        body: body.into(),
    }
}

fn event(content_type: &str, body: &[u8]) -> Value {
    message(content_type, body).to_cloud_event("lore", Uuid::from_u128(7), 42)
}

/// Bytes with these attributes.
fn encoded(attributes: &str, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(attributes.len()).unwrap() | 0x4000;
    [&[1], &length.to_be_bytes()[..], attributes.as_bytes(), body].concat()
}

const ATTRIBUTES: &str = r#"{"id":"a","time_ms":1,"content_type":"text/plain"}"#;

#[test]
fn the_largest_message_is_within_the_bounds() {
    let largest = Message {
        id: "\"".repeat(MAX_ID_BYTES),
        time_ms: 253_402_207_200_000,
        content_type: format!("a/b;{}", "\\".repeat(MAX_CONTENT_TYPE_BYTES - 4)),
        subject: Some("\"".repeat(MAX_SUBJECT_BYTES)),
        body: vec![0; MAX_BODY_BYTES],
    };
    largest.validate().unwrap();
    let encoded = largest.encode();
    assert!(encoded.len() <= MAX_ENCODED_BYTES, "{}", encoded.len());
    assert_eq!(Message::decode(&encoded).unwrap(), largest);
}

#[test]
fn each_part_has_its_limit() {
    type Change = fn(&mut Message);
    let cases: [(&str, Change); 9] = [
        ("id is \"\"", |m| m.id.clear()),
        ("id has 129 bytes", |m| m.id = "x".repeat(129)),
        ("id is \"a\\nb\"", |m| m.id = "a\nb".into()),
        ("content type is \"text\"", |m| {
            m.content_type = "text".into()
        }),
        ("content type has 129 bytes", |m| {
            m.content_type = "x/".repeat(65)[1..].into()
        }),
        ("subject has 257 bytes", |m| {
            m.subject = Some("x".repeat(257))
        }),
        ("subject is \"\\0\"", |m| m.subject = Some("\0".into())),
        ("body has 65537 bytes", |m| m.body = vec![0; 65_537]),
        ("time is \"253402207201000\"", |m| {
            m.time_ms = 253_402_207_201_000
        }),
    ];
    for (expected, change) in cases {
        let mut wrong = message("text/plain", b"x");
        change(&mut wrong);
        let error = wrong.validate().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}: not {expected}");
        assert!(Message::decode(&wrong.encode()).is_err(), "{expected}");
    }
}

#[test]
fn what_is_no_message_is_refused_with_a_reason() {
    let cut = &encoded(ATTRIBUTES, b"")[..20];
    let cases: [(&[u8], &str); 11] = [
        (b"", "is empty"),
        (b"\x02\x00", "unknown version 2"),
        (b"\x01", "ends within"),
        (b"\x01\x40", "ends within"),
        (cut, "ends within"),
        (b"\x01\x00", "must be an object"),
        (b"\x01\xff\xff\xff\xff\xff\xff\xff\xff{", "attributes has"),
        (b"\x01\x48\x01{}", "attributes has 2049 bytes"),
        (&encoded("{}", b""), "missing field `id`"),
        (
            &encoded(r#"["a",1,"text/plain"]"#, b""),
            "must be an object",
        ),
        (&encoded(&ATTRIBUTES.replace('1', "-1"), b""), "-1"),
    ];
    for (bytes, expected) in cases {
        let error = Message::decode(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}: not {expected}");
    }
    let long = Message::decode(&encoded(ATTRIBUTES, &[0; MAX_BODY_BYTES + 1]));
    assert!(matches!(
        long,
        Err(MessageError::TooLong { what: "body", .. })
    ));
}

#[test]
fn unknown_attributes_are_ignored() {
    let more = ATTRIBUTES.replace('{', r#"{"later":[{}],"#);
    let read = Message::decode(&encoded(&more, b"x")).unwrap();
    assert_eq!((read.id.as_str(), read.body.as_slice()), ("a", &b"x"[..]));
}

#[test]
fn a_body_without_a_type_is_text_or_bytes() {
    let of = Message::default_content_type;
    assert_eq!(of("Grüße".as_bytes()), "text/plain; charset=utf-8");
    assert_eq!(of(b""), "text/plain; charset=utf-8");
    assert_eq!(of(b"\xff"), "application/octet-stream");
}

#[test]
fn the_event_follows_the_contract() {
    let mut sent = message("text/plain; charset=utf-8", b"x");
    sent.subject = Some("urn:x".into());
    let event = sent.to_cloud_event("lore", Uuid::from_u128(7), 42);
    let expected = json!({
        "specversion": "1.0",
        "type": "org.flexfeed.message.v1",
        "source": "urn:uuid:00000000-0000-0000-0000-000000000007",
        "id": "a1",
        "time": "2025-09-05T09:49:57.123Z",
        "subject": "urn:x",
        "datacontenttype": "text/plain; charset=utf-8",
        "channel": "lore",
        "sequence": "42",
        "data": "x",
    });
    assert_eq!(event, expected);
}

#[test]
fn the_body_is_in_the_event_as_its_type_says() {
    let data = |content_type: &str, body: &[u8]| {
        let event = event(content_type, body);
        match (event.get("data"), event.get("data_base64")) {
            (Some(data), None) => Ok(data.clone()),
            (None, Some(base64)) => Err(base64.as_str().unwrap().to_owned()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(data("application/json", b"[1]"), Ok(json!([1])));
    assert_eq!(
        data("Application/Problem+JSON; v=1", b"null"),
        Ok(json!(null))
    );
    assert_eq!(data("application/json", b"{"), Err("ew==".into()));
    assert_eq!(
        data("text/html;charset=\"UTF-8\"", b"<p>"),
        Ok(json!("<p>"))
    );
    assert_eq!(data("text/plain", b"\xff"), Err("/w==".into()));
    assert_eq!(data("text/plain; charset=utf-16", b"x"), Err("eA==".into()));
    assert_eq!(data("image/png", b"x"), Err("eA==".into()));
}

fn published(change: impl Fn(&mut Value)) -> Result<Message, MessageError> {
    let mut event = json!({"specversion": "1.0", "type": "t", "source": "s", "id": "a1"});
    change(&mut event);
    Message::from_cloud_event(event.to_string().as_bytes(), 5)
}

#[test]
fn published_events_become_messages() {
    let read = |change: fn(&mut Value)| {
        let message = published(change).unwrap();
        (
            message.content_type,
            String::from_utf8(message.body).unwrap(),
        )
    };
    let pair = |content_type: &str, body: &str| (content_type.to_owned(), body.to_owned());
    assert_eq!(
        read(|e| e["data"] = json!({"a": 1})),
        pair("application/json", "{\"a\":1}")
    );
    assert_eq!(
        read(|e| e["data"] = json!(null)),
        pair("application/json", "null")
    );
    assert_eq!(
        read(|e| {
            e["data"] = json!("x");
            e["datacontenttype"] = json!("text/plain");
        }),
        pair("text/plain", "x")
    );
    assert_eq!(
        read(|e| e["data_base64"] = json!("eA==")),
        pair("text/plain; charset=utf-8", "x")
    );
    assert_eq!(read(|_| ()), pair("text/plain; charset=utf-8", ""));
    let plain = published(|_| ()).unwrap();
    assert_eq!((plain.time_ms, plain.subject), (5, None));
    let dated = published(|e| {
        e["time"] = json!("2025-09-05T11:49:57.1239+02:00");
        e["subject"] = json!("urn:x");
        e["extension"] = json!(true);
    });
    let dated = dated.unwrap();
    assert_eq!(dated.time_ms, 1_757_065_797_123);
    assert_eq!(dated.subject.as_deref(), Some("urn:x"));
}

#[test]
fn wrong_events_are_refused_with_a_reason() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 9] = [
        (|e| e["specversion"] = json!("0.3"), "specversion"),
        (|e| e["source"] = json!(""), "source"),
        (|e| e["type"] = json!(""), "type"),
        (|e| e["id"] = json!(""), "id"),
        (|e| e["time"] = json!("yesterday"), "time"),
        (|e| e["time"] = json!("1969-12-31T23:59:59Z"), "from 1970"),
        (|e| e["data_base64"] = json!("?"), "not Base64"),
        (
            |e| {
                e["data"] = json!(1);
                e["data_base64"] = json!("eA==");
            },
            "excludes data",
        ),
        (
            |e| {
                e["data"] = json!(1);
                e["datacontenttype"] = json!("text/plain");
            },
            "must be a string",
        ),
    ];
    for (change, expected) in cases {
        let error = published(change).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}: not {expected}");
    }
    let long = published(|e| e["data_base64"] = json!("A".repeat(87_388)));
    assert!(
        matches!(long, Err(MessageError::TooLong { .. })),
        "{long:?}"
    );
    let largest = published(|e| e["data_base64"] = json!("A".repeat(87_380)));
    assert_eq!(largest.unwrap().body.len(), 65_535);
    assert!(Message::from_cloud_event(b"[]", 5).is_err());
}

/// A valid message.
fn any_message() -> impl Strategy<Value = Message> {
    let content_type = prop::sample::select(vec![
        "text/plain",
        "application/json",
        "application/octet-stream",
        "a/b; c=\"\\\"\"",
    ]);
    (
        "[^\\p{Cc}]{1,30}",
        0..253_402_207_200_000u64,
        content_type,
        prop::option::of("[^\\p{Cc}]{1,60}"),
        prop::collection::vec(any::<u8>(), 0..300),
    )
        .prop_map(|(id, time_ms, content_type, subject, body)| Message {
            id,
            time_ms,
            content_type: content_type.into(),
            subject,
            body,
        })
}

proptest! {
    #[test]
    fn messages_survive_their_encoding(message in any_message()) {
        prop_assert_eq!(&Message::decode(&message.encode()).unwrap(), &message);
    }

    #[test]
    fn messages_survive_as_events(message in any_message()) {
        let event = message.to_cloud_event("lore", Uuid::nil(), 1).to_string();
        let mut again = Message::from_cloud_event(event.as_bytes(), 0).unwrap();
        if let Ok(json) = serde_json::from_slice::<Value>(&message.body)
            && message.content_type == "application/json"
        {
            // The same JSON, maybe written differently.
            prop_assert_eq!(&json, &serde_json::from_slice::<Value>(&again.body).unwrap());
            again.body = message.body.clone();
        }
        prop_assert_eq!(&again, &message);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        let _ = Message::decode(&bytes);
        bytes.insert(0, 1);
        let _ = Message::decode(&bytes);
        let _ = Message::from_cloud_event(&bytes, 0);
    }
}
