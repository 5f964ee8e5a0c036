//! Documents as in the field, well-formed and broken, with the expected result of each.
//!
//! Each document of `corpus/` has its expectation in `NAME.expected`. After an intended change,
//! `FLEXFEED_BLESS=1 cargo test -p flexfeed-feed --test it corpus` rewrites these files: read the
//! difference before keeping it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use feed::atom::{AtomFile, FeedMeta, KEEP, UpsertOutcome};
use feed::detect::detect;
use feed::gap::Backfill;
use feed::json_feed::JsonFile;
use feed::parse::{ParseError, ParsedFeed, parse};
use feed::payload::{Update, decode, encode};
use feed::{Entry, Kind};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Characters of a text in an expected file; the length follows.
const SHOWN: usize = 400;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// Returns folder and name of each document.
fn documents() -> Vec<String> {
    let mut names = Vec::new();
    for folder in fs::read_dir(root()).unwrap() {
        let folder = folder.unwrap();
        if !folder.file_type().unwrap().is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path()).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if !name.ends_with(".expected") {
                names.push(format!(
                    "{}/{name}",
                    folder.file_name().into_string().unwrap()
                ));
            }
        }
    }
    names.sort();
    assert!(names.len() >= 120, "only {} documents", names.len());
    names
}

fn address(name: &str) -> String {
    format!("https://feeds.example/{name}")
}

fn read(name: &str) -> Result<ParsedFeed, ParseError> {
    parse(&fs::read(root().join(name)).unwrap(), &address(name))
}

/// Returns the documents that are feeds.
fn feeds() -> impl Iterator<Item = (String, ParsedFeed)> {
    documents()
        .into_iter()
        .filter_map(|name| Some((name.clone(), read(&name).ok()?)))
}

fn shortened(text: &str) -> Value {
    if text.chars().count() <= SHOWN {
        return text.into();
    }
    let start: String = text.chars().take(SHOWN).collect();
    format!("{start}… ({} bytes)", text.len()).into()
}

fn put(object: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let value = value.into();
    let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    if !empty {
        object.insert(key.to_owned(), value);
    }
}

fn described(entry: &Entry) -> Value {
    let mut object = Map::new();
    let text = |t: &Option<String>| t.as_deref().map(shortened);
    let time = |t: &Option<Timestamp>| t.map(|t| t.to_string());
    put(&mut object, "id", entry.id.as_str());
    put(&mut object, "title", text(&entry.title));
    put(&mut object, "url", text(&entry.url));
    put(&mut object, "published", time(&entry.published));
    put(&mut object, "updated", time(&entry.updated));
    put(&mut object, "html", text(&entry.content_html));
    put(&mut object, "text", text(&entry.content_text));
    put(&mut object, "summary", text(&entry.summary));
    put(&mut object, "language", text(&entry.language));
    put(&mut object, "tags", entry.tags.clone());
    let authors: Vec<Value> = entry
        .authors
        .iter()
        .map(|a| json!([a.name, a.url]))
        .collect();
    put(&mut object, "authors", authors);
    let files: Vec<Value> = entry
        .attachments
        .iter()
        .map(|a| json!([a.url, a.mime_type, a.size]))
        .collect();
    put(&mut object, "files", files);
    object.into()
}

fn outcome(name: &str) -> Value {
    let feed = match read(name) {
        Ok(feed) => feed,
        Err(error) => {
            let state = match &error {
                ParseError::NotAFeed {
                    challenge: true, ..
                } => "challenged",
                ParseError::NotAFeed { .. } => "not-a-feed",
                ParseError::NoUsableEntry { .. } => "no-usable-entry",
                ParseError::UnknownEncoding { .. } => "unknown-encoding",
                _ => "other",
            };
            return json!({"state": state, "says": error.to_string()});
        }
    };
    let mut object = Map::new();
    put(&mut object, "state", "feed");
    put(&mut object, "title", feed.title.clone());
    put(
        &mut object,
        "unknown_encoding",
        feed.unknown_encoding.clone(),
    );
    let mut links = Map::new();
    put(&mut links, "prev_archive", feed.links.prev_archive.clone());
    put(&mut links, "next", feed.links.next.clone());
    put(&mut links, "current", feed.links.current.clone());
    put(&mut links, "self", feed.links.self_.clone());
    put(&mut links, "hub", feed.links.hub.clone());
    if !links.is_empty() {
        put(&mut object, "links", links);
    }
    put(
        &mut object,
        "interval_s",
        feed.interval.map(|i| i.as_secs()),
    );
    let way = Backfill::of(&address(name), &feed).map(|way| match way {
        Backfill::Archive(url) => format!("archive {url}"),
        Backfill::PublicInbox(search) => {
            let from = Timestamp::UNIX_EPOCH;
            let url = search.url(feed::gap::Clock::Received, from, None, 0);
            format!("search {url}")
        }
    });
    put(&mut object, "way", way);
    put(&mut object, "skipped", feed.skipped.clone());
    let entries: Vec<Value> = feed.entries.iter().map(described).collect();
    object.insert("entries".into(), entries.into());
    object.into()
}

#[test]
fn every_document_is_read_as_expected() {
    let bless = std::env::var_os("FLEXFEED_BLESS").is_some();
    let mut wrong = Vec::new();
    for name in documents() {
        let found = outcome(&name);
        let shown = serde_json::to_string_pretty(&found).unwrap() + "\n";
        let path = root().join(format!("{name}.expected"));
        if bless {
            fs::write(&path, shown).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("{}: {e}; see the top of this test", path.display()));
        // As values: the order of an object's members depends on how serde_json was built.
        if serde_json::from_str::<Value>(&expected).ok() != Some(found) {
            wrong.push(format!("{name}: expected\n{expected}found\n{shown}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_expectation_has_a_document() {
    let names: HashSet<String> = documents().into_iter().collect();
    for folder in fs::read_dir(root()).unwrap() {
        let folder = folder.unwrap();
        if !folder.file_type().unwrap().is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            if let Some(document) = file.strip_suffix(".expected") {
                let name = format!("{}/{document}", folder.file_name().into_string().unwrap());
                assert!(names.contains(&name), "{name}.expected");
            }
        }
    }
}

fn updates(feed: ParsedFeed, url: &str) -> Vec<Update> {
    let drafts = detect(feed.entries, &HashMap::new());
    drafts
        .iter()
        .zip(1u64..)
        .map(|(draft, seq)| {
            let now = Timestamp::from_second(1_757_066_000 + i64::try_from(seq).unwrap()).unwrap();
            let incarnation = Uuid::from_u128(5);
            let encoded = encode(&draft.entry, Kind::Created, url, incarnation, seq, now);
            let update = decode(&encoded).unwrap();
            assert_eq!(update.entry, sent(&draft.entry), "{url}");
            update
        })
        .collect()
}

/// Returns the entry as sent: an empty text is absent, because JSON Feed requires one if there is
/// no content.
fn sent(entry: &Entry) -> Entry {
    let mut entry = entry.clone();
    entry.content_text = entry
        .content_text
        .filter(|text| !text.is_empty() || entry.content_html.is_some());
    entry
}

/// Returns the properties that a file may not change.
fn kept(entry: &Entry) -> (&str, Option<&str>, Option<&str>, Option<Timestamp>) {
    let title = entry.title.as_deref();
    (&entry.id, title, entry.url.as_deref(), entry.published)
}

/// Each feed's entries go through updates into both files and are read back from them.
#[test]
fn files_preserve_entries_and_are_feeds() {
    let folder = tempfile::tempdir().unwrap();
    for (n, (name, feed)) in feeds().enumerate() {
        let url = address(&name);
        let updates = updates(feed, &url);
        let meta = || FeedMeta::for_channel("h:1", &name).served_at("http://localhost:8080/x");
        let atom = folder.path().join(format!("{n}.atom"));
        let json = folder.path().join(format!("{n}.json"));
        let mut atom_file = AtomFile::open(&atom, meta(), KEEP).unwrap();
        let mut json_file = JsonFile::open(&json, meta(), KEEP).unwrap();
        for update in &updates {
            assert_eq!(atom_file.upsert(update), UpsertOutcome::Added, "{name}");
            assert_eq!(json_file.upsert(update), UpsertOutcome::Added, "{name}");
        }
        atom_file.write().unwrap();
        json_file.write().unwrap();
        let (atom_bytes, json_bytes) = (fs::read(&atom).unwrap(), fs::read(&json).unwrap());
        // Read again, delivered again and written again, the files are the same.
        let mut atom_file = AtomFile::open(&atom, meta(), KEEP).unwrap();
        let mut json_file = JsonFile::open(&json, meta(), KEEP).unwrap();
        assert_eq!(
            (atom_file.damaged(), json_file.damaged()),
            (None, None),
            "{name}"
        );
        for update in &updates {
            assert_eq!(atom_file.upsert(update), UpsertOutcome::Unchanged, "{name}");
            assert_eq!(json_file.upsert(update), UpsertOutcome::Unchanged, "{name}");
        }
        atom_file.write().unwrap();
        json_file.write().unwrap();
        assert_eq!(fs::read(&atom).unwrap(), atom_bytes, "{name}");
        assert_eq!(fs::read(&json).unwrap(), json_bytes, "{name}");
        // As feeds, they have the same entries, newest first.
        for bytes in [&atom_bytes, &json_bytes] {
            let again = parse(bytes, &url).unwrap();
            assert_eq!(again.skipped, Vec::<String>::new(), "{name}");
            let found: Vec<_> = again.entries.iter().map(kept).collect();
            let expected: Vec<_> = updates.iter().rev().map(|u| kept(&u.entry)).collect();
            assert_eq!(found, expected, "{name}");
            let texts = |e: &Entry| (e.content_html.clone(), e.content_text.clone());
            let found: Vec<_> = again.entries.iter().map(texts).collect();
            let expected: Vec<_> = updates.iter().rev().map(|u| texts(&u.entry)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}

/// Every Atom entry that can be part of another document is embedded byte for byte, except for
/// additions: declarations of its own document and missing elements.
#[test]
fn well_formed_atom_entries_keep_their_text() {
    let mut checked = 0;
    for (name, feed) in feeds() {
        let bytes = fs::read(root().join(&name)).unwrap();
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        for entry in &feed.entries {
            let Some(start) = entry.xml.find('>').filter(|_| text.contains("2005/Atom")) else {
                continue;
            };
            if text.contains(&entry.xml[start..]) {
                checked += 1;
            }
        }
    }
    assert!(checked >= 40, "only {checked} entries kept their text");
}

/// A feed that is truncated anywhere, or has a byte changed anywhere, gives a result.
#[test]
fn damaged_documents_give_a_result() {
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % below.max(1)
    };
    for name in documents() {
        let whole = fs::read(root().join(&name)).unwrap();
        for _ in 0..20 {
            let mut bytes = whole.clone();
            if !bytes.is_empty() {
                let at = random(bytes.len());
                bytes[at] = u8::try_from(random(256)).unwrap();
                bytes.truncate(random(bytes.len() * 2));
            }
            let _ = parse(&bytes, &address(&name));
        }
    }
}

/// An entry's identity is the same whatever the rest of the document and its order are.
#[test]
fn ids_do_not_depend_on_the_order() {
    for (name, feed) in feeds() {
        let bytes = fs::read(root().join(&name)).unwrap();
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        // Entries written one per line, or with nothing between them, can be reversed as text.
        let (open, close) = if text.contains("</item>") {
            ("<item", "</item>")
        } else {
            ("<entry", "</entry>")
        };
        let pieces: Vec<&str> = text
            .match_indices(open)
            .filter_map(|(at, _)| {
                let after = text[at + open.len()..].chars().next()?;
                let end = at + text[at..].find(close)? + close.len();
                matches!(after, '>' | ' ' | '\n' | '\r' | '\t').then(|| &text[at..end])
            })
            .collect();
        if name.starts_with("broken/") || pieces.len() != feed.entries.len() || pieces.len() < 2 {
            continue;
        }
        let (first, last) = (text.find(pieces[0]).unwrap(), pieces[pieces.len() - 1]);
        let end = text.rfind(last).unwrap() + last.len();
        let reversed: String = pieces
            .iter()
            .rev()
            .copied()
            .collect::<Vec<_>>()
            .join("\r\n\t");
        let reversed = format!("{}{reversed}{}", &text[..first], &text[end..]);
        let again = parse(reversed.as_bytes(), &address(&name)).unwrap();
        let mut ids: Vec<&str> = again.entries.iter().map(|e| e.id.as_str()).collect();
        ids.reverse();
        let expected: Vec<&str> = feed.entries.iter().map(|e| e.id.as_str()).collect();
        assert_eq!(ids, expected, "{name}");
    }
}
