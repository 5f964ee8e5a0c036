//! A look at an update that leaves its entry alone.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserializer;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};

use super::{CREATED, PayloadError, UPDATED, bad, decode, numbers, plain};

/// What is known of an update without its entry's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glance {
    /// The update's number in the channel.
    pub seq: u64,
    /// When the source stored it, to the millisecond.
    pub time: Timestamp,
    /// The entry's id.
    pub entry_id: String,
}

/// The members that [`super::encode`] writes before `data`, which is nearly all of the event.
#[derive(Default)]
struct Head<'a> {
    specversion: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    time: Option<Cow<'a, str>>,
    subject: Option<Cow<'a, str>>,
    /// The next is `data`.
    is_whole: bool,
}

/// Reads into a [`Head`], and stops at `data`.
struct Reading<'h, 'a>(&'h mut Head<'a>);

impl<'a> Visitor<'a> for Reading<'_, 'a> {
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
                // What follows is not looked at.
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

/// A string, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Looks at an update, in much less time than [`decode`] takes. Everything that can be decoded
/// is taken. Of the rest, that is taken too which is wrong only in what follows the entry's id.
///
/// # Errors
/// As [`decode`].
pub fn glance(encoded: &[u8]) -> Result<Glance, PayloadError> {
    let json = plain(encoded)?;
    let mut head = Head::default();
    // It ends with an error where it stops.
    let mut reader = serde_json::Deserializer::from_slice(&json);
    let _ = reader.deserialize_map(Reading(&mut head));
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
        return Ok(Glance {
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
    Ok(Glance {
        seq,
        time,
        entry_id: subject.into_owned(),
    })
}
