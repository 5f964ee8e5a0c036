//! JSON Feed 1.0 and 1.1 (jsonfeed.org).

use serde_json::{Map, Value, json};
use url::Url;

use super::{
    FeedLinks, MAX_ENTRIES, MAX_ENTRY_BYTES, ParseError, ParsedFeed, details, header, identify,
    seen,
};
use crate::entry::{Author, Entry};
use crate::xml::split::Format;
use crate::xml::{clean, synthesise};

/// The members of an item that feed-rs reads here. Authors are read here, ids may be numbers.
const MEMBERS: [&str; 10] = [
    "url",
    "external_url",
    "title",
    "content_html",
    "content_text",
    "summary",
    "date_published",
    "date_modified",
    "tags",
    "attachments",
];

pub(super) fn parse(text: &str, base: Option<&Url>) -> Result<ParsedFeed, ParseError> {
    let not_a_feed = || seen::not_a_feed(text, None);
    let Ok(Value::Object(mut feed)) = serde_json::from_str::<Value>(text) else {
        return Err(not_a_feed());
    };
    let version = feed.get("version").and_then(Value::as_str).unwrap_or("");
    if !version.contains("jsonfeed.org/version/1") {
        return Err(not_a_feed());
    }
    let Some(Value::Array(items)) = feed.remove("items") else {
        return Err(not_a_feed());
    };
    let inherited = authors(&feed);
    let mut parsed = ParsedFeed {
        title: feed
            .get("title")
            .and_then(Value::as_str)
            .map(|t| clean(t.trim()).into_owned())
            .filter(|t| !t.is_empty()),
        links: links(&feed, base),
        ..ParsedFeed::default()
    };
    let language = feed.get("language").and_then(Value::as_str);
    for (n, item) in items.into_iter().enumerate() {
        if n >= MAX_ENTRIES {
            parsed
                .skipped
                .push(format!("everything after the first {MAX_ENTRIES} entries"));
            break;
        }
        match entry(&item, &inherited, base) {
            Ok(mut entry) => {
                let own = item.get("language").and_then(Value::as_str);
                entry.language = own.or(language).and_then(header::language);
                parsed.entries.push(entry);
            }
            Err(why) => {
                if parsed.skipped.len() < 100 {
                    parsed.skipped.push(format!("item {}: {why}", n + 1));
                }
            }
        }
    }
    Ok(parsed)
}

fn links(feed: &Map<String, Value>, base: Option<&Url>) -> FeedLinks {
    let mut links = FeedLinks::default();
    for (relation, member) in [("next", "next_url"), ("self", "feed_url")] {
        if let Some(url) = feed.get(member).and_then(Value::as_str) {
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

fn entry(item: &Value, inherited: &[Author], base: Option<&Url>) -> Result<Entry, String> {
    let item = item.as_object().ok_or("it is no object")?;
    let size: usize = item.iter().map(|(k, v)| k.len() + text_len(v)).sum();
    if size > MAX_ENTRY_BYTES {
        return Err(format!("longer than {MAX_ENTRY_BYTES} bytes"));
    }
    let members: Map<String, Value> = MEMBERS
        .iter()
        .filter_map(|m| Some(((*m).to_owned(), item.get(*m)?.clone())))
        .collect();
    let model = feed_rs(&members, base).or_else(|| {
        // A member of the wrong type costs only itself.
        let good: Map<String, Value> = members
            .iter()
            .filter(|(k, v)| {
                let alone = Map::from_iter([((*k).clone(), (*v).clone())]);
                feed_rs(&alone, base).is_some()
            })
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        feed_rs(&good, base)
    });
    // feed-rs gives attachments as links; they are recognised by their type.
    let mut model = model.unwrap_or_default();
    for link in &mut model.links {
        if link.media_type.is_some() {
            link.rel = Some("enclosure".to_owned());
        } else if let Some(base) = base
            && let Ok(absolute) = base.join(&link.href)
        {
            link.href = absolute.into();
        }
    }
    let mut entry = details::convert(Format::Atom, model);
    entry.authors = authors(item);
    if entry.authors.is_empty() {
        entry.authors = inherited.to_vec();
    }
    // "If an id is presented as a number, a JSON Feed reader should coerce it to a string."
    let id = match item.get("id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    entry.id = identify(id.as_deref(), &entry).ok_or("it has no id, url, title or content")?;
    entry.xml = synthesise::entry(&entry);
    Ok(entry)
}

fn feed_rs(members: &Map<String, Value>, base: Option<&Url>) -> Option<feed_rs::model::Entry> {
    let document = json!({
        "version": "https://jsonfeed.org/version/1.1",
        "title": "",
        "items": [members],
    });
    details::feed_rs(&document.to_string(), base)
}

/// `authors` (1.1) or `author` (1.0).
fn authors(object: &Map<String, Value>) -> Vec<Author> {
    let one = object.get("author").into_iter();
    let many = object.get("authors").and_then(Value::as_array);
    let text = |value: &Value, key: &str| {
        let text = clean(value.get(key)?.as_str()?.trim()).into_owned();
        (!text.is_empty()).then_some(text)
    };
    let mut authors: Vec<Author> = Vec::new();
    for value in many.into_iter().flatten().chain(one).take(64) {
        let author = Author {
            name: text(value, "name"),
            url: text(value, "url"),
        };
        if author != Author::default() && !authors.contains(&author) {
            authors.push(author);
        }
    }
    authors
}

/// About how long the value is as text; the parser has bounded its depth.
fn text_len(value: &Value) -> usize {
    match value {
        Value::String(s) => s.len(),
        Value::Array(a) => a.iter().map(|v| 1 + text_len(v)).sum(),
        Value::Object(o) => o.iter().map(|(k, v)| k.len() + 1 + text_len(v)).sum(),
        _ => 8,
    }
}
