//! Decoding of an update without its entry's content.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserializer;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};

use super::{CREATED, PayloadError, UPDATED, bad, decode, numbers, plain};

/// Update without its entry's content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdateSummary {
    /// Number of the update in the channel.
    pub seq: u64,
    /// Time of storing by the source, to the millisecond.
    pub time: Timestamp,
    /// Id of the entry.
    pub entry_id: String,
}

/// Members that [`super::encode`] writes before `data`, which is nearly all of the event.
#[derive(Default)]
struct Head<'a> {
    specversion: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    time: Option<Cow<'a, str>>,
    subject: Option<Cow<'a, str>>,
    /// Whether `data` is the next member.
    is_whole: bool,
}

/// Visitor that fills a [`Head`], and stops at `data`.
struct HeadVisitor<'h, 'a>(&'h mut Head<'a>);

impl<'a> Visitor<'a> for HeadVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a CloudEvents event")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = map.next_key()? {
            let place = match &*name {
                "specversion" => &mut self.0.specversion,
                "type" => &mut self.0.kind,
                "id" => &mut self.0.id,
                "time" => &mut self.0.time,
                "subject" => &mut self.0.subject,
                // The rest is not read.
                "data" => {
                    self.0.is_whole = true;
                    return Err(A::Error::custom("enough"));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let Text(value) = map.next_value()?;
            if place.replace(value).is_some() {
                *self.0 = Head::default();
                return Err(A::Error::custom("twice"));
            }
        }
        Ok(())
    }
}

/// String, borrowed if it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Decodes the head of an update, in much less time than [`decode`] takes. Accepts everything that
/// can be decoded. Updates that are wrong only after the entry's id are accepted too.
///
/// # Errors
/// As [`decode`].
pub fn summary(encoded: &[u8]) -> Result<UpdateSummary, PayloadError> {
    let json = plain(encoded)?;
    let mut head = Head::default();
    // The parser ends with an error at the stop.
    let mut reader = serde_json::Deserializer::from_slice(&json);
    let _ = reader.deserialize_map(HeadVisitor(&mut head));
    let Head {
        specversion: Some(specversion),
        kind: Some(kind),
        id: Some(id),
        time: Some(time),
        subject: Some(subject),
        is_whole: true,
    } = head
    else {
        // Another order of members, one of them twice, or no event at all.
        let update = decode(encoded)?;
        return Ok(UpdateSummary {
            seq: update.seq,
            time: update.time,
            entry_id: update.entry.id,
        });
    };
    if specversion != "1.0" {
        return Err(bad("specversion", &specversion));
    }
    if kind != CREATED && kind != UPDATED {
        return Err(bad("type", &kind));
    }
    let (_, seq) = numbers(&id)?;
    let time = time.parse().map_err(|_| bad("time", &time))?;
    if subject.is_empty() {
        return Err(bad("subject", &subject));
    }
    Ok(UpdateSummary {
        seq,
        time,
        entry_id: subject.into_owned(),
    })
}
