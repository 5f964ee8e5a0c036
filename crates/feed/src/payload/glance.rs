//! A look at an update that leaves its entry's content alone.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{CREATED, PayloadError, UPDATED, bad, numbers, parse, plain};

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

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    specversion: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(borrow)]
    data: Item<'a>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(rename = "_flexfeed")]
    extension: Option<IgnoredAny>,
}

/// Looks at an update, in much less time than [`super::decode`] takes. Everything that can be decoded
/// is taken. Of the rest, that is taken too which is wrong only in members that are not read here.
///
/// # Errors
/// As [`super::decode`].
pub fn glance(encoded: &[u8]) -> Result<Glance, PayloadError> {
    let json = plain(encoded)?;
    let event: Event = parse(&json)?;
    if event.specversion != "1.0" {
        return Err(bad("specversion", &event.specversion));
    }
    if event.kind != CREATED && event.kind != UPDATED {
        return Err(bad("type", &event.kind));
    }
    let (_, seq) = numbers(&event.id)?;
    let time = event.time.parse().map_err(|_| bad("time", &event.time))?;
    if event.data.id.is_empty() || event.data.id != event.subject {
        return Err(bad("subject", &event.subject));
    }
    if event.data.extension.is_none() {
        return Err(bad("_flexfeed", ""));
    }
    Ok(Glance {
        seq,
        time,
        entry_id: event.data.id.into_owned(),
    })
}
