//! The rules of JSON Feed 1.1 (jsonfeed.org/version/1.1).

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

/// Checks a JSON Feed 1.1 document (jsonfeed.org/version/1.1), and returns the first defect.
pub fn check_json_feed(feed: &Value) -> Result<(), String> {
    let object = feed.as_object().ok_or("no object")?;
    let known = [
        "version",
        "title",
        "home_page_url",
        "feed_url",
        "description",
        "user_comment",
        "next_url",
        "icon",
        "favicon",
        "authors",
        "language",
        "expired",
        "hubs",
        "items",
    ];
    members(object, &known)?;
    if object.get("version") != Some(&"https://jsonfeed.org/version/1.1".into()) {
        return Err("version".into());
    }
    text(object, "title", true)?;
    for url in ["home_page_url", "feed_url", "next_url"] {
        absolute(object, url)?;
    }
    authors(object)?;
    let mut ids = HashSet::new();
    for item in object
        .get("items")
        .and_then(Value::as_array)
        .ok_or("no items")?
    {
        let item = item.as_object().ok_or("an item is no object")?;
        check_item(item).map_err(|e| format!("{:?}: {e}", item.get("id")))?;
        if !ids.insert(item.get("id")) {
            return Err(format!("{:?} twice", item.get("id")));
        }
    }
    Ok(())
}

type Object = serde_json::Map<String, Value>;

fn check_item(item: &Object) -> Result<(), String> {
    let known = [
        "id",
        "url",
        "external_url",
        "title",
        "content_html",
        "content_text",
        "summary",
        "image",
        "banner_image",
        "date_published",
        "date_modified",
        "authors",
        "tags",
        "language",
        "attachments",
    ];
    members(item, &known)?;
    text(item, "id", true)?;
    for name in ["title", "content_html", "content_text", "summary", "url"] {
        text(item, name, false)?;
    }
    if !item.contains_key("content_html") && !item.contains_key("content_text") {
        return Err("no content".into());
    }
    for name in ["date_published", "date_modified"] {
        if let Some(date) = item.get(name) {
            let date = date.as_str().ok_or("a date is no string")?;
            let zone = date.ends_with('Z') || date[10..].contains(['+', '-']);
            if date.as_bytes().get(10) != Some(&b'T') || !zone || date.parse::<Timestamp>().is_err()
            {
                return Err(format!("{name} {date}"));
            }
        }
    }
    authors(item)?;
    for tag in list(item, "tags")? {
        tag.as_str().ok_or("a tag is no string")?;
    }
    if let Some(language) = item.get("language") {
        let tag = language.as_str().ok_or("the language is no string")?;
        if !tag
            .split('-')
            .all(|p| (1..=8).contains(&p.len()) && p.chars().all(|c| c.is_ascii_alphanumeric()))
        {
            return Err(format!("language {tag}"));
        }
    }
    for attachment in list(item, "attachments")? {
        let attachment = attachment.as_object().ok_or("an attachment is no object")?;
        members(
            attachment,
            &[
                "url",
                "mime_type",
                "title",
                "size_in_bytes",
                "duration_in_seconds",
            ],
        )?;
        text(attachment, "url", true)?;
        text(attachment, "mime_type", true)?;
        if !attachment["mime_type"].as_str().unwrap_or("").contains('/') {
            return Err("mime_type".into());
        }
        if attachment.get("size_in_bytes").is_some_and(|s| !s.is_u64()) {
            return Err("size_in_bytes".into());
        }
    }
    Ok(())
}

/// Checks that extension members begin with an underscore and are objects.
fn members(object: &Object, known: &[&str]) -> Result<(), String> {
    for (name, value) in object {
        let own = name.starts_with('_') && value.is_object();
        if !own && !known.contains(&name.as_str()) {
            return Err(format!("the member {name}"));
        }
    }
    Ok(())
}

fn text(object: &Object, name: &str, needed: bool) -> Result<(), String> {
    match object.get(name) {
        Some(Value::String(text)) if !needed || !text.is_empty() => Ok(()),
        None if !needed => Ok(()),
        other => Err(format!("{name} is {other:?}")),
    }
}

fn absolute(object: &Object, name: &str) -> Result<(), String> {
    match object.get(name) {
        None => Ok(()),
        Some(Value::String(text)) if url::Url::parse(text).is_ok() => Ok(()),
        other => Err(format!("{name} is {other:?}")),
    }
}

fn list<'a>(object: &'a Object, name: &str) -> Result<&'a [Value], String> {
    match object.get(name) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(format!("{name} is {other}")),
    }
}

fn authors(object: &Object) -> Result<(), String> {
    for author in list(object, "authors")? {
        let author = author.as_object().ok_or("an author is no object")?;
        members(author, &["name", "url", "avatar"])?;
        if author.is_empty() {
            return Err("an author without anything".into());
        }
        text(author, "name", false)?;
        text(author, "url", false)?;
    }
    Ok(())
}

#[test]
fn the_json_feed_check_finds_defects() {
    let good = || {
        json!({"version": "https://jsonfeed.org/version/1.1", "title": "T", "_x": {}, "items": [
            {"id": "1", "content_text": "", "date_published": "2025-09-05T00:00:00Z", "authors": [{"name": "A"}],
             "attachments": [{"url": "https://a/", "mime_type": "a/b", "size_in_bytes": 1}], "language": "pt-BR"}]})
    };
    assert_eq!(check_json_feed(&good()), Ok(()));
    for (pointer, value) in [
        ("/version", json!("1")),
        ("/title", json!(null)),
        ("/feed_url", json!("relative")),
        ("/unknown", json!(1)),
        ("/_x", json!(1)),
        ("/items/0/id", json!(1)),
        ("/items/0/id", json!("")),
        ("/items/0/content_text", json!(null)),
        ("/items/0/date_published", json!("2025-09-05 00:00:00Z")),
        ("/items/0/date_published", json!("2025-09-05T00:00:00")),
        ("/items/0/authors", json!([{}])),
        ("/items/0/authors", json!({"name": "A"})),
        ("/items/0/attachments/0/mime_type", json!("x")),
        ("/items/0/attachments/0/size_in_bytes", json!(-1)),
        ("/items/0/language", json!("not a language")),
        ("/items/0/tags", json!([1])),
    ] {
        let mut bad = good();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = bad.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        parent.insert(name.to_owned(), value);
        assert!(check_json_feed(&bad).is_err(), "{pointer}");
    }
    let mut twice = good();
    let item = twice["items"][0].clone();
    twice["items"].as_array_mut().unwrap().push(item);
    assert!(check_json_feed(&twice).is_err());
}
