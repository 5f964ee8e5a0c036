//! The encoded update: made once by the source, stored, carried opaquely, read by receivers.
//!
//! Byte 0 says how the rest is encoded (0: as it is, 1: zstd); the rest is a CloudEvents 1.0 event
//! in structured JSON, whose `data` is a JSON Feed 1.1 item with the entry's XML under
//! `_flexfeed.xml`. `id` is "INCARNATION/SEQ".

use std::cell::RefCell;
use std::io::Read;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;
use zstd::bulk::{Compressor, Decompressor};

use crate::entry::{Entry, Kind};
use crate::item::Item;

/// The longest event, after decompression, that [`decode`] takes, in bytes.
pub const MAX_EVENT_BYTES: usize = 16 << 20;

const IDENTITY: u8 = 0;
const ZSTD: u8 = 1;

/// Fast, and close to the best for single entries of some kilobytes.
const ZSTD_LEVEL: i32 = 3;

/// Bounds the memory of a decompression to what [`MAX_EVENT_BYTES`] can need: 2^24 bytes.
const ZSTD_WINDOW_LOG: u32 = 24;

/// A frame's word about its length is taken for room in memory up to here, in bytes.
const SHORT: usize = 1 << 20;

thread_local! {
    // Making one takes longer than using it for an entry of some kilobytes.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

const CREATED: &str = "org.flexfeed.entry.created.v1";
const UPDATED: &str = "org.flexfeed.entry.updated.v1";

/// One decoded update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// Whether the entry is new.
    pub kind: Kind,
    /// The feed's address.
    pub feed_url: String,
    /// The channel's incarnation.
    pub incarnation: Uuid,
    /// The update's number in the channel.
    pub seq: u64,
    /// When the source stored it, to the millisecond.
    pub time: Timestamp,
    /// The entry.
    pub entry: Entry,
}

/// Why bytes are no update.
#[derive(Debug, Error)]
pub enum PayloadError {
    /// There is no encoding byte.
    #[error("the update is empty")]
    Empty,
    /// The encoding byte is not one of this version.
    #[error("the update has the unknown encoding {0}: a newer source? update this receiver")]
    UnknownEncoding(u8),
    /// The zstd data is damaged.
    #[error("the update cannot be decompressed: {0}")]
    Decompress(std::io::Error),
    /// More than [`MAX_EVENT_BYTES`].
    #[error("the update is longer than {MAX_EVENT_BYTES} bytes")]
    TooLong,
    /// Not JSON, or a member is missing or of the wrong type.
    #[error("the update is no CloudEvents event of an entry: {0}")]
    Json(#[from] serde_json::Error),
    /// A member has a value that this version does not know.
    #[error("the update's {member} is {value:?}, not what this version knows")]
    Member {
        /// The member's name.
        member: &'static str,
        /// Its value, shortened.
        value: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Event {
    specversion: String,
    #[serde(rename = "type")]
    kind: String,
    source: String,
    id: String,
    time: String,
    subject: String,
    datacontenttype: String,
    data: Item<Extension>,
}

#[derive(Serialize, Deserialize)]
struct Extension {
    xml: String,
}

/// Encodes one update. `now` is the time of storing; it is kept to the millisecond.
///
/// An entry from [`crate::parse`] always stays below [`MAX_EVENT_BYTES`].
#[must_use]
pub fn encode(
    entry: &Entry,
    kind: Kind,
    feed_url: &str,
    incarnation: Uuid,
    seq: u64,
    now: Timestamp,
) -> Vec<u8> {
    let event = Event {
        specversion: "1.0".into(),
        kind: match kind {
            Kind::Created => CREATED.into(),
            Kind::Updated => UPDATED.into(),
        },
        source: feed_url.into(),
        id: format!("{incarnation}/{seq}"),
        time: format!("{now:.3}"),
        subject: entry.id.clone(),
        datacontenttype: "application/json".into(),
        data: Item::new(
            entry,
            Some(Extension {
                xml: entry.xml.clone(),
            }),
        ),
    };
    let mut plain = vec![IDENTITY];
    // Writing strings and numbers to memory cannot fail. Should it ever, the update is sent
    // without a body, and receivers say that it is no event.
    if serde_json::to_writer(&mut plain, &event).is_err() {
        plain.truncate(1);
        return plain;
    }
    let packed = COMPRESSOR.with_borrow_mut(|compressor| {
        if compressor.is_none() {
            *compressor = Some(Compressor::new(ZSTD_LEVEL)?);
        }
        match compressor {
            Some(compressor) => compressor.compress(&plain[1..]),
            None => Err(std::io::ErrorKind::OutOfMemory.into()),
        }
    });
    match packed {
        Ok(packed) if packed.len() + 1 < plain.len() => [&[ZSTD], packed.as_slice()].concat(),
        _ => plain,
    }
}

/// Decodes one update, whatever the bytes are.
///
/// # Errors
/// [`PayloadError`] for anything but what [`encode`] makes, a later version's extra members aside.
pub fn decode(encoded: &[u8]) -> Result<Update, PayloadError> {
    let event: Event = match encoded.split_first() {
        // Without a copy.
        Some((&IDENTITY, body)) if body.len() <= MAX_EVENT_BYTES => serde_json::from_slice(body)?,
        _ => serde_json::from_slice(&event_json(encoded)?)?,
    };
    if event.specversion != "1.0" {
        return Err(bad("specversion", &event.specversion));
    }
    let kind = match event.kind.as_str() {
        CREATED => Kind::Created,
        UPDATED => Kind::Updated,
        other => return Err(bad("type", other)),
    };
    let (incarnation, seq) = event
        .id
        .split_once('/')
        .and_then(|(i, s)| Some((i.parse().ok()?, s.parse().ok()?)))
        .ok_or_else(|| bad("id", &event.id))?;
    let time = event.time.parse().map_err(|_| bad("time", &event.time))?;
    let mut item = event.data;
    if item.id.is_empty() || item.id != event.subject {
        return Err(bad("subject", &event.subject));
    }
    let xml = match item.extension.take() {
        Some(extension) => extension.xml,
        None => return Err(bad("_flexfeed", "")),
    };
    Ok(Update {
        kind,
        feed_url: event.source,
        incarnation,
        seq,
        time,
        entry: item.into_entry(xml),
    })
}

/// The event of an update as the source wrote it: the JSON after the encoding byte, decompressed,
/// and not checked further.
///
/// # Errors
/// [`PayloadError`] if it cannot be decompressed or is too long.
pub fn event_json(encoded: &[u8]) -> Result<Vec<u8>, PayloadError> {
    let (encoding, body) = encoded.split_first().ok_or(PayloadError::Empty)?;
    match *encoding {
        IDENTITY if body.len() > MAX_EVENT_BYTES => Err(PayloadError::TooLong),
        IDENTITY => Ok(body.to_vec()),
        ZSTD => decompress(body),
        other => Err(PayloadError::UnknownEncoding(other)),
    }
}

fn decompress(body: &[u8]) -> Result<Vec<u8>, PayloadError> {
    match decompress_short(body) {
        Some(plain) => Ok(plain),
        None => decompress_any(body),
    }
}

/// Nearly all updates: those that say how long they are, and are not long.
fn decompress_short(body: &[u8]) -> Option<Vec<u8>> {
    let length = zstd::zstd_safe::get_frame_content_size(body).ok()??;
    let length = usize::try_from(length).ok().filter(|n| *n <= SHORT)?;
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        if decompressor.is_none() {
            *decompressor = Decompressor::new().ok();
        }
        decompressor.as_mut()?.decompress(body, length).ok()
    })
}

fn decompress_any(body: &[u8]) -> Result<Vec<u8>, PayloadError> {
    let mut decoder =
        zstd::stream::read::Decoder::with_buffer(body).map_err(PayloadError::Decompress)?;
    decoder
        .window_log_max(ZSTD_WINDOW_LOG)
        .map_err(PayloadError::Decompress)?;
    let mut plain = Vec::new();
    decoder
        .take(MAX_EVENT_BYTES as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(PayloadError::Decompress)?;
    if plain.len() > MAX_EVENT_BYTES {
        return Err(PayloadError::TooLong);
    }
    Ok(plain)
}

fn bad(member: &'static str, value: &str) -> PayloadError {
    PayloadError::Member {
        member,
        value: value.chars().take(80).collect(),
    }
}

#[cfg(test)]
mod tests {
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
            ZSTD => decompress(&encoded[1..]).unwrap(),
            _ => encoded[1..].to_vec(),
        };
        serde_json::from_slice(&plain).unwrap()
    }

    #[test]
    fn the_event_is_what_the_contract_says() {
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
    fn both_ways_of_decompressing_agree() {
        let words = |n: usize| "word ".repeat(n).into_bytes();
        for plain in [words(0), words(1), words(1000), words(SHORT / 5 + 1)] {
            let packed = zstd::bulk::compress(&plain, ZSTD_LEVEL).unwrap();
            assert_eq!(decompress(&packed).unwrap(), plain);
            assert_eq!(decompress_any(&packed).unwrap(), plain);
            assert_eq!(decompress_short(&packed).is_some(), plain.len() <= SHORT);
            // A frame that does not say its length, two frames, and damaged ones.
            let unknown = zstd::stream::encode_all(plain.as_slice(), 3).unwrap();
            assert_eq!(decompress(&unknown).unwrap(), plain);
            let twice = [packed.as_slice(), &packed].concat();
            assert_eq!(
                decompress(&twice).unwrap(),
                [plain.as_slice(), &plain].concat()
            );
            for cut in 0..packed.len().min(60) {
                assert!(decompress(&packed[..cut]).is_err() || cut == 0);
            }
            // And the context is as good as new after each of them.
            assert_eq!(decompress(&packed).unwrap(), plain);
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

    #[test]
    fn what_is_no_update_is_refused() {
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
        fn what_is_encoded_is_decoded(entry in any_entry(), seq in any::<u64>(), i in any::<u128>()) {
            let encoded = encode(&entry, Kind::Created, "https://f/", Uuid::from_u128(i), seq, time());
            let update = decode(&encoded).unwrap();
            prop_assert_eq!(update.entry, entry);
            prop_assert_eq!((update.seq, update.incarnation), (seq, Uuid::from_u128(i)));
            prop_assert_eq!(update.time, time());
            prop_assert_eq!(update.kind, Kind::Created);
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn damaged_updates_are_answered(
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
            let _ = decode(&bytes);
        }
    }
}
