//! The receiver's JSON Feed 1.1 file (jsonfeed.org): the last entries of a channel, newest first.
//!
//! The member `_flexfeed` of each item names the update that brought the item (`INCARNATION/SEQ`)
//! and the time at which the source stored it; the format allows for such members, and readers
//! ignore them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::entry::Entry;
use crate::feed_file::{Content, Form};
pub use crate::feed_file::{
    DamagedFile, FeedFile, FeedMeta, FileError, KEEP, MAX_FILE_BYTES, UpsertOutcome,
};
use crate::item::Item;
use crate::window::Slot;

/// The value of `version` (JSON Feed 1.1, "Top-level").
pub const VERSION: &str = "https://jsonfeed.org/version/1.1";

/// The format of [`JsonFile`].
#[derive(Debug)]
pub struct Json;

/// The JSON Feed file of one channel, in memory and on disk.
pub type JsonFile = FeedFile<Json>;

/// Update of an item in the file.
#[derive(Serialize, Deserialize)]
struct Origin {
    /// `INCARNATION/SEQ`; absent if not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    update: Option<String>,
    /// Time at which the source stored the update.
    time: Timestamp,
}

/// Metadata of the file, in front of its items.
#[derive(Serialize)]
struct Head<'a> {
    version: &'a str,
    title: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    feed_url: Option<&'a str>,
    authors: [HeadAuthor<'a>; 1],
    #[serde(rename = "_flexfeed")]
    extension: HeadExtension<'a>,
}

#[derive(Serialize)]
struct HeadAuthor<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct HeadExtension<'a> {
    /// JSON Feed has no id for a feed without an address.
    id: &'a str,
    updated: String,
    /// Address of the original feed.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
}

/// Members that are read of a file. Members of later versions are ignored.
#[derive(Deserialize)]
struct Document {
    version: String,
    #[serde(default, rename = "_flexfeed")]
    extension: Option<DocumentExtension>,
    items: Vec<Item<Origin>>,
}

#[derive(Deserialize)]
struct DocumentExtension {
    #[serde(default)]
    source: Option<String>,
}

impl Form for Json {
    /// JSON holds any text.
    fn id(id: &str) -> String {
        id.to_owned()
    }

    fn entry(entry: &Entry, _: &str, _: Timestamp) -> String {
        open(text(&Item::new(entry, None)))
    }

    fn head(meta: &FeedMeta, updated: Timestamp) -> String {
        let head = Head {
            version: VERSION,
            title: &meta.title,
            feed_url: meta.own.as_deref(),
            authors: [HeadAuthor { name: &meta.title }],
            extension: HeadExtension {
                id: &meta.id,
                updated: format!("{updated:.3}"),
                source: meta.link.as_deref(),
            },
        };
        // Writing strings to memory cannot fail.
        let mut head = open(serde_json::to_string(&head).unwrap_or_default());
        head.push_str(",\n\"items\":[");
        head
    }

    fn frame(slot: &Slot, n: usize) -> (String, String) {
        let origin = Origin {
            update: slot.origin.map(|(i, seq)| format!("{i}/{seq}")),
            time: slot.time,
        };
        // As above.
        let origin = serde_json::to_string(&origin).unwrap_or_default();
        let before = if n == 0 { "\n" } else { ",\n" };
        (before.to_owned(), format!(",\"_flexfeed\":{origin}}}"))
    }

    const TAIL: &'static str = "\n]}\n";

    fn read(text: &str) -> Result<Content, String> {
        let document: Document = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if document.version != VERSION {
            return Err(format!("the version is not {VERSION}"));
        }
        let mut ids = std::collections::HashSet::new();
        let slots: Result<Vec<Slot>, String> = document
            .items
            .into_iter()
            .map(|item| {
                if item.id.is_empty() || !ids.insert(item.id.clone()) {
                    return Err(format!("the id {:?} is empty or there twice", item.id));
                }
                slot(item)
            })
            .collect();
        Ok(Content {
            link: document.extension.and_then(|own| own.source),
            slots: slots?,
        })
    }
}

fn slot(mut item: Item<Origin>) -> Result<Slot, String> {
    let (origin, time) = match item.extension.take() {
        // An item of another program: it stays until a new version arrives.
        None => (None, Timestamp::UNIX_EPOCH),
        Some(Origin { update: None, time }) => (None, time),
        Some(Origin {
            update: Some(update),
            time,
        }) => {
            let origin = parse_update(&update).ok_or("an unknown _flexfeed.update")?;
            (Some(origin), time)
        }
    };
    Ok(Slot {
        id: item.id.clone(),
        origin,
        time,
        text: open(text(&item)).into(),
    })
}

fn parse_update(update: &str) -> Option<(Uuid, u64)> {
    let (incarnation, seq) = update.split_once('/')?;
    Some((incarnation.parse().ok()?, seq.parse().ok()?))
}

/// Returns the item as an object that begins with `{"id":`, without `_flexfeed`.
fn text(item: &Item<Origin>) -> String {
    // Writing strings and numbers to memory cannot fail. A bug there leaves the entry without its
    // content.
    serde_json::to_string(item).unwrap_or_else(|_| {
        let id = serde_json::Value::from(item.id.as_str());
        format!("{{\"id\":{id},\"content_text\":\"\"}}")
    })
}

/// Returns an object without its closing brace.
fn open(mut object: String) -> String {
    if object.ends_with('}') {
        object.pop();
    }
    object
}

#[cfg(test)]
mod tests;
