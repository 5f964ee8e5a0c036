#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::entry::{Attachment, Author, Kind};
use crate::payload::Update;

const INCARNATION: Uuid = Uuid::from_u128(1);

fn update(seq: u64, id: &str) -> Update {
    let ms = 1_700_000_000_000 + i64::try_from(seq).unwrap() * 1000;
    Update {
        kind: Kind::Created,
        feed_url: "https://example.org/feed?a=1&b=2".into(),
        incarnation: INCARNATION,
        seq,
        time: Timestamp::from_millisecond(ms).unwrap(),
        entry: Entry {
            id: id.into(),
            title: Some(format!("Title {seq}")),
            content_html: Some(format!("<p>{seq}</p>")),
            authors: vec![Author {
                name: Some("A".into()),
                url: None,
            }],
            attachments: vec![Attachment {
                url: "https://a/1.ogg".into(),
                mime_type: "audio/ogg".into(),
                size: Some(7),
            }],
            language: Some("de".into()),
            published: Some(Timestamp::UNIX_EPOCH),
            xml: "<entry/>".into(),
            ..Entry::default()
        },
    }
}

fn open(path: &Path) -> JsonFile {
    JsonFile::open(path, FeedMeta::for_channel("h:1", "lore"), 5).unwrap()
}

fn ids(file: &JsonFile) -> Vec<&str> {
    file.ids().collect()
}

fn path(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("lore.json")
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_document_is_a_json_feed() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let meta =
        FeedMeta::for_channel("h:1", "lore").served_at("http://localhost:8080/feeds/lore.json");
    let mut file = JsonFile::open(&path, meta.clone(), 5).unwrap();
    file.write().unwrap();
    assert_eq!(json(&path)["items"], Value::Array(Vec::new()));
    file.upsert(&update(1, "urn:1"));
    file.upsert(&update(2, "urn:2"));
    file.write().unwrap();
    let document = json(&path);
    assert_eq!(document["version"], "https://jsonfeed.org/version/1.1");
    assert_eq!(document["title"], "lore (flexfeed)");
    assert_eq!(
        document["feed_url"],
        "http://localhost:8080/feeds/lore.json"
    );
    assert_eq!(document["_flexfeed"]["id"], meta.id);
    assert_eq!(
        document["_flexfeed"]["source"],
        "https://example.org/feed?a=1&b=2"
    );
    let items = document["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    let newest = &items[0];
    assert_eq!(newest["id"], "urn:2");
    assert_eq!(newest["content_html"], "<p>2</p>");
    assert_eq!(newest["language"], "de");
    assert_eq!(newest["date_published"], "1970-01-01T00:00:00Z");
    assert_eq!(newest["authors"][0]["name"], "A");
    assert_eq!(newest["attachments"][0]["size_in_bytes"], 7);
    assert_eq!(
        newest["_flexfeed"]["update"],
        format!("{INCARNATION}/2"),
        "what brought it"
    );
    assert!(newest["_flexfeed"].get("xml").is_none(), "no XML in it");
}

#[test]
fn newest_first_limited_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    for seq in 1..=7 {
        assert_eq!(
            file.upsert(&update(seq, &format!("urn:{seq}"))),
            UpsertOutcome::Added
        );
    }
    file.write().unwrap();
    assert_eq!(ids(&file), ["urn:7", "urn:6", "urn:5", "urn:4", "urn:3"]);
    let written = fs::read(&path).unwrap();
    let mut again = open(&path);
    assert_eq!(again.damaged(), None);
    assert_eq!(again.window, file.window);
    // A repeated delivery changes nothing; a new version moves to the front.
    assert_eq!(again.upsert(&update(5, "urn:5")), UpsertOutcome::Unchanged);
    again.write().unwrap();
    assert_eq!(fs::read(&path).unwrap(), written);
    assert_eq!(again.upsert(&update(8, "urn:4")), UpsertOutcome::Replaced);
    assert_eq!(ids(&again), ["urn:4", "urn:7", "urn:6", "urn:5", "urn:3"]);
    // The other entries are the same bytes after a restart.
    again.write().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let line = |id: &str| {
        let old = String::from_utf8(written.clone()).unwrap();
        let found = old.lines().find(|l| l.contains(id)).unwrap().to_owned();
        found.trim_end_matches(',').to_owned()
    };
    for id in ["urn:7", "urn:6", "urn:5", "urn:3"] {
        assert!(text.contains(&line(id)), "{id}");
    }
}

#[test]
fn reused_numbers_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    for seq in 1..=3 {
        file.upsert(&update(seq, &format!("urn:{seq}")));
    }
    file.forget_numbers(INCARNATION, 1);
    file.write().unwrap();
    let mut file = open(&path);
    assert_eq!(file.upsert(&update(1, "urn:1")), UpsertOutcome::Unchanged);
    assert_eq!(file.upsert(&update(2, "urn:3")), UpsertOutcome::Replaced);
    assert_eq!(ids(&file), ["urn:3", "urn:2", "urn:1"]);
}

#[test]
fn a_damaged_file_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    file.upsert(&update(1, "a"));
    file.write().unwrap();
    let whole = fs::read(&path).unwrap();
    let item = "{\"id\":\"a\",\"content_text\":\"\"}";
    let twice = format!("{{\"version\":\"{VERSION}\",\"items\":[{item},{item}]}}");
    let no_origin = format!(
        "{{\"version\":\"{VERSION}\",\"items\":[{{\"id\":\"a\",\
         \"_flexfeed\":{{\"update\":\"x\",\"time\":\"1970-01-01T00:00:00Z\"}}}}]}}"
    );
    for content in [
        &whole[..whole.len() / 2],
        b"",
        b"\xff\xfe",
        b"{}",
        b"{\"version\":\"https://jsonfeed.org/version/1\",\"items\":[]}",
        twice.as_bytes(),
        no_origin.as_bytes(),
    ] {
        fs::write(&path, content).unwrap();
        let mut file = open(&path);
        let damaged = file.damaged().unwrap().clone();
        assert_eq!(fs::read(&damaged.moved_to).unwrap(), content);
        assert!(!damaged.reason.is_empty());
        file.upsert(&update(2, "b"));
        file.write().unwrap();
        assert_eq!(ids(&open(&path)), ["b"]);
        fs::remove_file(damaged.moved_to).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Any update leaves a file that is JSON, can be read again, and is the same after that.
    #[test]
    fn any_update_leaves_a_valid_file(
        id in "(?s).{1,6}",
        title in "(?s).{0,9}",
        html in "[<>&\u{0}-\u{1f}\u{7f}\u{fffe}\u{2028}\"\\\\é/]{0,12}",
        time in -62_000_000_000_000i64..253_000_000_000_000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder);
        let mut file = open(&path);
        let mut odd = update(1, &id);
        odd.entry.title = Some(title.clone());
        odd.entry.content_html = Some(html.clone());
        odd.entry.updated = Timestamp::from_millisecond(time).ok();
        file.upsert(&odd);
        file.write().unwrap();
        let document = json(&path);
        prop_assert_eq!(document["items"][0]["id"].as_str(), Some(id.as_str()));
        prop_assert_eq!(document["items"][0]["title"].as_str(), Some(title.as_str()));
        prop_assert_eq!(document["items"][0]["content_html"].as_str(), Some(html.as_str()));
        let mut again = open(&path);
        prop_assert_eq!(again.damaged(), None);
        prop_assert_eq!(&again.window, &file.window);
        prop_assert_eq!(again.upsert(&odd), UpsertOutcome::Unchanged);
    }
}

#[test]
fn the_original_feeds_address_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    for (seq, feed) in [(1, "https://a/"), (2, "https://b/"), (3, "https://c/")] {
        let mut file = open(&path);
        let mut update = update(seq, &format!("urn:{seq}"));
        update.feed_url = feed.to_owned();
        file.upsert(&update);
        file.write().unwrap();
        assert_eq!(json(&path)["_flexfeed"]["source"], "https://a/");
    }
}
