//! JSON Feed 1.0 and 1.1 (jsonfeed.org).

use serde_json::{Map, Value};
use url::Url;

use super::error::ParseError;
use super::feed::{MAX_ENTRIES, ParsedFeed};
use super::fields::{self, add_attachment, add_author, add_tag, address, text};
use super::header::FeedLinks;
use super::identity::identify;
use super::repair_json::repair_json;
use super::{dates, header, rejection};
use crate::entry::{Author, Entry, MAX_ENTRY_BYTES};
use crate::html::links;
use crate::xml::{clean, synthesise};

pub(super) fn parse(document: &str, base: Option<&Url>) -> Result<ParsedFeed, ParseError> {
    let not_a_feed = || rejection::not_a_feed(document, None);
    let mut skipped = Vec::new();
    let read = serde_json::from_str::<Value>(document).or_else(|error| {
        let repaired = repair_json(document);
        let read = serde_json::from_str(&repaired.text);
        if read.is_ok() && repaired.cut {
            skipped.push(format!("the document ends early: {error}"));
        }
        read
    });
    let Ok(Value::Object(mut feed)) = read else {
        return Err(not_a_feed());
    };
    let version = feed.get("version").and_then(Value::as_str).unwrap_or("");
    if !version.contains("jsonfeed.org/version/1") {
        return Err(not_a_feed());
    }
    let Some(Value::Array(items)) = feed.remove("items") else {
        return Err(not_a_feed());
    };
    let inherited = authors(&feed, base);
    let mut parsed = ParsedFeed {
        title: string(&feed, "title").and_then(text),
        links: links(&feed, base),
        skipped,
        ..ParsedFeed::default()
    };
    let language = string(&feed, "language");
    for (n, item) in items.into_iter().enumerate() {
        if n >= MAX_ENTRIES {
            parsed
                .skipped
                .push(format!("everything after the first {MAX_ENTRIES} entries"));
            break;
        }
        match entry(&item, &inherited, language, base) {
            Ok(entry) => parsed.entries.push(entry),
            Err(why) => {
                if parsed.skipped.len() < 100 {
                    parsed.skipped.push(format!("item {}: {why}", n + 1));
                }
            }
        }
    }
    Ok(parsed)
}

/// Returns the length of an item, of which an entry has at most [`MAX_ENTRY_BYTES`].
pub(crate) fn item_len(item: &Map<String, Value>) -> usize {
    item.iter().map(|(k, v)| k.len() + text_len(v)).sum()
}

/// Returns the entry of one item.
///
/// # Errors
/// A text that says why it is none.
pub(crate) fn json_item(item: &Value) -> Result<Entry, String> {
    entry(item, &[], None, None)
}

fn links(feed: &Map<String, Value>, base: Option<&Url>) -> FeedLinks {
    let mut links = FeedLinks::default();
    for (relation, member) in [("next", "next_url"), ("self", "feed_url")] {
        if let Some(url) = string(feed, member) {
            links.note(relation, url, base);
        }
    }
    let hubs = feed.get("hubs").and_then(Value::as_array);
    for hub in hubs.into_iter().flatten().take(16) {
        if let Some(url) = hub.get("url").and_then(Value::as_str) {
            links.note("hub", url, base);
        }
    }
    links
}

/// Returns a string member. A member of the wrong type costs only itself.
fn string<'a>(object: &'a Map<String, Value>, member: &str) -> Option<&'a str> {
    object.get(member).and_then(Value::as_str)
}

fn list<'a>(object: &'a Map<String, Value>, member: &str) -> impl Iterator<Item = &'a Value> {
    let list = object.get(member).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn entry(
    item: &Value,
    inherited: &[Author],
    language: Option<&str>,
    base: Option<&Url>,
) -> Result<Entry, String> {
    let item = item.as_object().ok_or("it is no object")?;
    if item_len(item) > MAX_ENTRY_BYTES {
        return Err(format!("longer than {MAX_ENTRY_BYTES} bytes"));
    }
    let content = |member| {
        string(item, member)
            .filter(|t| !t.is_empty())
            .map(|t| clean(t).into_owned())
    };
    let date = |member| string(item, member).and_then(dates::parse);
    let mut entry = Entry {
        title: string(item, "title").and_then(text),
        url: string(item, "url")
            .or_else(|| string(item, "external_url"))
            .and_then(|url| address(url, base)),
        authors: authors(item, base),
        published: date("date_published"),
        updated: date("date_modified"),
        content_html: content("content_html").map(|html| links::absolute(&html, base).into_owned()),
        content_text: content("content_text"),
        summary: string(item, "summary").and_then(text),
        language: string(item, "language")
            .or(language)
            .and_then(header::language),
        ..Entry::default()
    };
    if entry.authors.is_empty() {
        entry.authors = inherited.to_vec();
    }
    for tag in list(item, "tags").filter_map(Value::as_str) {
        add_tag(&mut entry.tags, tag);
    }
    for attachment in list(item, "attachments").filter_map(Value::as_object) {
        let size = attachment.get("size_in_bytes").map(Value::to_string);
        add_attachment(
            &mut entry,
            string(attachment, "url"),
            string(attachment, "mime_type"),
            size.as_deref(),
            base,
        );
    }
    // "If an id is presented as a number, a JSON Feed reader should coerce it to a string."
    let id = match item.get("id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    entry.id = identify(id.as_deref(), &entry).ok_or("it has no id, url, title or content")?;
    entry.xml = synthesise::entry(&entry, "");
    Ok(entry)
}

/// Reads `authors` (1.1) or `author` (1.0).
fn authors(object: &Map<String, Value>, base: Option<&Url>) -> Vec<Author> {
    let mut authors: Vec<Author> = Vec::new();
    for author in list(object, "authors").chain(object.get("author")) {
        if let Some(author) = author.as_object() {
            let get = |member| string(author, member).map(str::to_owned);
            add_author(
                &mut authors,
                Author {
                    name: get("name"),
                    url: get("url").and_then(|url| address(&url, base)),
                },
            );
        } else if let Some(name) = author.as_str() {
            add_author(&mut authors, fields::author(name).unwrap_or_default());
        }
    }
    authors
}

/// Returns the approximate length of the value as text; the parser has bounded its depth.
fn text_len(value: &Value) -> usize {
    match value {
        Value::String(s) => s.len(),
        Value::Array(a) => a.iter().map(|v| 1 + text_len(v)).sum(),
        Value::Object(o) => o.iter().map(|(k, v)| k.len() + 1 + text_len(v)).sum(),
        _ => 8,
    }
}
