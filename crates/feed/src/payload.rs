//! The encoded update: made once by the source, stored, carried opaquely, decoded by receivers.
//!
//! Byte 0 is the encoding of the rest (0: none, 1: zstd); the rest is a CloudEvents 1.0 event in
//! structured JSON, whose `data` is a JSON Feed 1.1 item with the entry's XML under
//! `_flexfeed.xml`. `id` is "INCARNATION/SEQ". In front of that may be the header of a signed
//! update ([`signing`]), which is passed over here: the transport has verified it.

mod summary;

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::Read;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;
use zstd::bulk::{Compressor, Decompressor};

use crate::entry::{Entry, Kind};
use crate::item::Item;
pub use summary::{UpdateSummary, summary};

/// Longest event, after decompression, that [`decode`] accepts, in bytes.
pub const MAX_EVENT_BYTES: usize = 16 << 20;

const IDENTITY: u8 = 0;
const ZSTD: u8 = 1;

/// Fast, and close to the best for single entries of some kilobytes.
const ZSTD_LEVEL: i32 = 3;

/// Bounds the memory of a decompression to what [`MAX_EVENT_BYTES`] can need: 2^24 bytes.
const ZSTD_WINDOW_LOG: u32 = 24;

/// Largest stated length of a frame for which memory is reserved in advance, in bytes.
const SHORT: usize = 1 << 20;

/// Compression ratio that entries hardly ever exceed.
const MAX_RATIO: usize = 64;
/// Decompressed length that is accepted at any ratio.
const CHEAP: usize = 64 << 10;

thread_local! {
    // For an entry of some kilobytes, creating a compressor takes longer than using it.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

const CREATED: &str = "org.flexfeed.entry.created.v1";
const UPDATED: &str = "org.flexfeed.entry.updated.v1";

/// DecodedText update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// Whether the entry is new.
    pub kind: Kind,
    /// Address of the feed.
    pub feed_url: String,
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Number of the update in the channel.
    pub seq: u64,
    /// Time of storing by the source, to the millisecond.
    pub time: Timestamp,
    /// The entry.
    pub entry: Entry,
}

/// Failure to decode an update.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// No encoding byte.
    #[error("the update is empty")]
    Empty,
    /// Encoding byte that this version does not know.
    #[error("the update has the unknown encoding {0}: a newer source? update this receiver")]
    UnknownEncoding(u8),
    /// Damaged zstd data.
    #[error("the update cannot be decompressed: {0}")]
    Decompress(std::io::Error),
    /// More than [`MAX_EVENT_BYTES`].
    #[error("the update is longer than {MAX_EVENT_BYTES} bytes")]
    TooLong,
    /// Not JSON, or a member that is missing or of the wrong type.
    #[error("the update is no CloudEvents event of an entry: {0}")]
    Json(#[from] serde_json::Error),
    /// Member with a value that this version does not know.
    #[error("the update's {member} is {value:?}, not what this version knows")]
    Member {
        /// Name of the member.
        member: &'static str,
        /// Value of the member, shortened.
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
    // Writing strings and numbers to memory cannot fail. A bug there sends the update without a
    // body, which receivers report as no event.
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

/// Decodes one update; any bytes may be passed in.
///
/// # Errors
/// [`PayloadError`] for anything that [`encode`] does not make, except for a later version's extra
/// members.
pub fn decode(encoded: &[u8]) -> Result<Update, PayloadError> {
    decode_event(&plain(encoded)?)
}

fn decode_event(json: &[u8]) -> Result<Update, PayloadError> {
    let event: Event = parse(json)?;
    if event.specversion != "1.0" {
        return Err(bad("specversion", &event.specversion));
    }
    let kind = match event.kind.as_str() {
        CREATED => Kind::Created,
        UPDATED => Kind::Updated,
        other => return Err(bad("type", other)),
    };
    let (incarnation, seq) = numbers(&event.id)?;
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

/// Whether these bytes are an update with this `seq`; `None` if they are of a later version, which
/// this one cannot judge. Cheaper than [`decode`] for bytes that may be forged: bytes that would
/// decompress to more than 64 times their length (and 64 KiB) are no update here.
#[must_use]
pub fn is_update(encoded: &[u8], seq: u64) -> Option<bool> {
    let content = signing::content(encoded);
    let most = content.len().saturating_mul(MAX_RATIO).max(CHEAP);
    let known = match content.split_first() {
        Some((&ZSTD, body)) => decompress(body, most.min(MAX_EVENT_BYTES)),
        _ => unpack(content),
    };
    match known.and_then(|json| decode_event(&json)) {
        Ok(update) => Some(update.seq == seq),
        Err(PayloadError::UnknownEncoding(_)) => None,
        Err(PayloadError::Member {
            member: "specversion" | "type",
            ..
        }) => None,
        Err(_) => Some(false),
    }
}

/// Parses `INCARNATION/SEQ`.
fn numbers(id: &str) -> Result<(Uuid, u64), PayloadError> {
    id.split_once('/')
        .and_then(|(i, s)| Some((i.parse().ok()?, s.parse().ok()?)))
        .ok_or_else(|| bad("id", id))
}

/// Parses JSON. Text that is known to be UTF-8 as a whole is not validated string by string.
fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(text),
        // This parser reports the position of the error.
        Err(_) => serde_json::from_slice(json),
    }
}

/// Returns the same as [`event_json`], without a copy if nothing is compressed.
fn plain(encoded: &[u8]) -> Result<Cow<'_, [u8]>, PayloadError> {
    let content = signing::content(encoded);
    match content.split_first() {
        Some((&IDENTITY, body)) if body.len() <= MAX_EVENT_BYTES => Ok(Cow::Borrowed(body)),
        _ => unpack(content).map(Cow::Owned),
    }
}

/// Returns the event of an update as the source wrote it: the JSON after the encoding byte,
/// decompressed, and not checked further.
///
/// # Errors
/// [`PayloadError`] if decompression fails or the result is too long.
pub fn event_json(encoded: &[u8]) -> Result<Vec<u8>, PayloadError> {
    unpack(signing::content(encoded))
}

/// Returns the event behind an encoding byte.
fn unpack(content: &[u8]) -> Result<Vec<u8>, PayloadError> {
    let (encoding, body) = content.split_first().ok_or(PayloadError::Empty)?;
    match *encoding {
        IDENTITY if body.len() > MAX_EVENT_BYTES => Err(PayloadError::TooLong),
        IDENTITY => Ok(body.to_vec()),
        ZSTD => decompress(body, MAX_EVENT_BYTES),
        other => Err(PayloadError::UnknownEncoding(other)),
    }
}

/// Decompresses to at most `most` bytes.
fn decompress(body: &[u8], most: usize) -> Result<Vec<u8>, PayloadError> {
    match decompress_short(body, most.min(SHORT)) {
        Some(plain) => Ok(plain),
        None => decompress_any(body, most),
    }
}

/// Decompresses nearly all updates: short ones that state their length.
fn decompress_short(body: &[u8], most: usize) -> Option<Vec<u8>> {
    let length = zstd::zstd_safe::get_frame_content_size(body).ok()??;
    let length = usize::try_from(length).ok().filter(|n| *n <= most)?;
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        if decompressor.is_none() {
            *decompressor = Decompressor::new().ok();
        }
        decompressor.as_mut()?.decompress(body, length).ok()
    })
}

fn decompress_any(body: &[u8], most: usize) -> Result<Vec<u8>, PayloadError> {
    let mut decoder =
        zstd::stream::read::Decoder::with_buffer(body).map_err(PayloadError::Decompress)?;
    decoder
        .window_log_max(most.next_power_of_two().ilog2().min(ZSTD_WINDOW_LOG))
        .map_err(PayloadError::Decompress)?;
    let mut plain = Vec::new();
    decoder
        .take(most as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(PayloadError::Decompress)?;
    if plain.len() > most {
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
mod tests;
