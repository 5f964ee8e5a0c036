//! A look at an update that keeps nothing of its entry's content.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, de};

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

/// Text that is read and forgotten.
struct Text;

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Text, E> {
        Ok(Text)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    specversion: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(rename = "source")]
    _source: Text,
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(rename = "datacontenttype")]
    _datacontenttype: Text,
    #[serde(borrow)]
    data: Item<'a>,
}

/// The members of [`crate::item::Item`]: what it refuses is refused here.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(default, rename = "url")]
    _url: Option<Text>,
    #[serde(default, rename = "title")]
    _title: Option<Text>,
    #[serde(default, rename = "content_html")]
    _content_html: Option<Text>,
    #[serde(default, rename = "content_text")]
    _content_text: Option<Text>,
    #[serde(default, rename = "summary")]
    _summary: Option<Text>,
    #[serde(default, rename = "date_published")]
    _date_published: Option<Timestamp>,
    #[serde(default, rename = "date_modified")]
    _date_modified: Option<Timestamp>,
    #[serde(default, rename = "authors")]
    _authors: Vec<Author>,
    #[serde(default, rename = "tags")]
    _tags: Vec<Text>,
    #[serde(default, rename = "language")]
    _language: Option<Text>,
    #[serde(default, rename = "attachments")]
    _attachments: Vec<Attachment>,
    #[serde(rename = "_flexfeed")]
    extension: Option<Extension>,
}

#[derive(Deserialize)]
struct Author {
    #[serde(default, rename = "name")]
    _name: Option<Text>,
    #[serde(default, rename = "url")]
    _url: Option<Text>,
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(rename = "url")]
    _url: Text,
    #[serde(rename = "mime_type")]
    _mime_type: Text,
    #[serde(default, rename = "size_in_bytes")]
    _size_in_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Extension {
    #[serde(rename = "xml")]
    _xml: Text,
}

/// Looks at an update: takes and refuses the same as [`super::decode`], in less time.
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
