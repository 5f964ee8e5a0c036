#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::entry::Kind;
use crate::payload::Update;
use crate::xml::check::Form;
use crate::xml::element::outline;
use crate::xml::split::{Limits, split};

const INCARNATION: Uuid = Uuid::from_u128(1);

fn time(seq: u64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + i64::try_from(seq).unwrap() * 1000).unwrap()
}

fn update(seq: u64, id: &str, xml: &str) -> Update {
    Update {
        kind: Kind::Created,
        feed_url: "https://example.org/feed?a=1&b=2".into(),
        incarnation: INCARNATION,
        seq,
        time: time(seq),
        entry: Entry {
            id: id.into(),
            title: Some(format!("Title {seq}")),
            xml: xml.into(),
            ..Entry::default()
        },
    }
}

fn good(seq: u64, id: &str) -> Update {
    let xml = format!(
        "<entry xmlns=\"{ATOM_NS}\"><id>{id}</id><title>v{seq}</title>\
         <updated>2025-01-01T00:00:00Z</updated><link href='https://a/'/></entry>"
    );
    update(seq, id, &xml)
}

fn open(path: &Path) -> AtomFile {
    AtomFile::open(path, FeedMeta::for_channel("h:1", "lore"), 5).unwrap()
}

fn ids(file: &AtomFile) -> Vec<&str> {
    file.ids().collect()
}

fn path(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("lore.atom")
}

#[test]
fn newest_first_limited_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    for seq in 1..=7 {
        let id = format!("urn:{seq}");
        assert_eq!(file.upsert(&good(seq, &id)), UpsertOutcome::Added);
    }
    file.write().unwrap();
    assert_eq!(ids(&file), ["urn:7", "urn:6", "urn:5", "urn:4", "urn:3"]);
    let again = open(&path);
    assert!(again.damaged().is_none());
    assert_eq!(again.window, file.window);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "no temporary file stays: {names:?}");
}

#[test]
fn the_document_is_a_complete_atom_feed() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    file.upsert(&good(1, "urn:1"));
    file.upsert(&good(2, "urn:2"));
    file.write().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    check(&text, Form::Document).unwrap();
    let start = text.find("<feed").unwrap();
    let feed = outline(&text[start..]).unwrap();
    let get = |name| feed.child(ATOM_NS, name).unwrap();
    assert_eq!(
        get("id").text,
        FeedMeta::for_channel("h:1", "lore").id,
        "the same id at each start"
    );
    assert!(get("id").text.starts_with("urn:uuid:"));
    assert_eq!(get("title").text, "lore (flexfeed)");
    assert_eq!(get("updated").text, format!("{:.3}", time(2)));
    assert_eq!(
        get("link").attribute("href"),
        Some("https://example.org/feed?a=1&b=2")
    );
    assert!(text.contains(&good(1, "urn:1").entry.xml), "as it is");
}

#[test]
fn repeated_delivery_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    let updates = [
        good(1, "a"),
        good(2, "b"),
        good(3, "a"),
        good(4, "c"),
        good(5, "b"),
    ];
    for update in &updates {
        file.upsert(update);
    }
    assert_eq!(ids(&file), ["b", "c", "a"]);
    file.write().unwrap();
    let written = fs::read(&path).unwrap();
    for from in 0..updates.len() {
        let mut again = open(&path);
        for update in &updates[from..] {
            assert_eq!(again.upsert(update), UpsertOutcome::Unchanged);
        }
        again.write().unwrap();
        assert_eq!(fs::read(&path).unwrap(), written);
    }
}

#[test]
fn a_new_incarnation_replaces_older_entries() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = open(&path(&folder));
    file.upsert(&good(8, "a"));
    file.upsert(&good(9, "b"));
    let mut recreated = good(1, "a");
    recreated.incarnation = Uuid::from_u128(2);
    assert_eq!(file.upsert(&recreated), UpsertOutcome::Replaced);
    assert_eq!(ids(&file), ["a", "b"]);
}

#[test]
fn missing_elements_are_added_and_the_rest_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = open(&path(&folder));
    let xml = format!("<a:entry xmlns:a='{ATOM_NS}' xmlns=''><x/><a:id>q</a:id></a:entry >");
    file.upsert(&update(1, "q", &xml));
    let expected = format!(
        "<a:entry xmlns:a='{ATOM_NS}' xmlns=''><x/><a:id>q</a:id>\
         <a:title>Title 1</a:title><a:updated>{:.3}</a:updated><a:content></a:content></a:entry >",
        time(1)
    );
    assert_eq!(file.window.slots()[0].text.as_ref(), expected);
}

#[test]
fn violations_of_rfc_4287_are_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = open(&path(&folder));
    let xml = format!(
        "<entry xmlns='{ATOM_NS}'><id>q</id><title>T</title><id>second</id>\
         <updated a=''>05 Sep 2025</updated><published>never</published>\
         <link href='https://a/'/><content type='xhtml'><div \n/></content></entry>"
    );
    let mut odd = update(1, "q", &xml);
    odd.entry.updated = "2025-09-05T00:00:00Z".parse().ok();
    odd.entry.authors = vec![crate::Author {
        name: Some("A & B".into()),
        url: Some("mailto:a@b.example".into()),
    }];
    file.upsert(&odd);
    let expected = format!(
        "<entry xmlns='{ATOM_NS}'><id>q</id><title>T</title>\
         <updated>2025-09-05T00:00:00Z</updated>\
         <link href='https://a/'/><content type='xhtml'><div \n/></content>\
         <author><name>A &amp; B</name><email>a@b.example</email></author></entry>"
    );
    assert_eq!(file.window.slots()[0].text.as_ref(), expected);
}

#[test]
fn dates_that_only_some_readers_accept_are_normalised() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = open(&path(&folder));
    for (seq, given, expected) in [
        (1, "2025-09-05T09:49:57+0000", "2025-09-05T09:49:57Z"),
        (2, "2025-09-05T09:49:57-05", "2025-09-05T14:49:57Z"),
        (3, "2025-09-05T09:49:57.5+0200", "2025-09-05T07:49:57.5Z"),
        (4, "2025-09-05T09:49:57-05:00", "2025-09-05T09:49:57-05:00"),
        (5, "2025-09-05T09:49:57.25Z", "2025-09-05T09:49:57.25Z"),
    ] {
        let id = format!("q{seq}");
        let xml = format!(
            "<entry xmlns='{ATOM_NS}'><id>{id}</id><title>T</title><updated>{given}</updated>\
             <published>{given}</published><link href='https://a/'/></entry>"
        );
        file.upsert(&update(seq, &id, &xml));
        let slots = file.window.slots();
        let entry = slots
            .iter()
            .map(|slot| slot.text.as_ref())
            .find(|t| t.contains(&id));
        let entry = entry.unwrap();
        for name in ["updated", "published"] {
            let right = format!("<{name}>{expected}</{name}>");
            assert!(entry.contains(&right), "{entry}");
        }
    }
}

#[test]
fn many_duplicates_are_removed_in_one_pass() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = open(&path(&folder));
    let many = "<id>x</id>".repeat(80_000);
    let xml = format!("<entry xmlns='{ATOM_NS}'><id>q</id>{many}<link href='https://a/'/></entry>");
    file.upsert(&update(1, "q", &xml));
    let text = file.window.slots()[0].text.clone();
    assert!(text.len() < 300, "{}", text.len());
    assert!(
        text.contains("<id>q</id><link href='https://a/'/>"),
        "{text}"
    );
}

#[test]
fn the_file_names_its_own_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let meta = FeedMeta::for_channel("h:1", "lore").served_at("http://h/feeds/lore.atom?a&b");
    AtomFile::open(&path, meta, 5).unwrap().write().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let link = "<link rel=\"self\" href=\"http://h/feeds/lore.atom?a&amp;b\"/>";
    assert!(text.contains(link), "{text}");
}

#[test]
fn unembeddable_entries_are_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let bad = [
        String::new(),
        "<entry>".into(),
        format!("<entry xmlns='{ATOM_NS}'/>"),
        format!("<entry xmlns='{ATOM_NS}'><id>other</id></entry>"),
        "<entry><id>q</id></entry>".into(),
        format!("<entry xmlns='{ATOM_NS}'><id>q</id>&nbsp;</entry>"),
        format!("<entry xmlns='{ATOM_NS}'><id>q</id></entry></feed>"),
        format!("<!DOCTYPE a><entry xmlns='{ATOM_NS}'><id>q</id></entry>"),
    ];
    for xml in bad {
        let mut file = open(&path);
        let mut odd = update(1, "q", &xml);
        odd.entry.content_html = Some("<p>\u{1}&</p>".into());
        file.upsert(&odd);
        file.write().unwrap();
        let again = open(&path);
        assert_eq!(again.damaged(), None, "{xml}");
        assert_eq!(ids(&again), ["q"], "{xml}");
        let element = outline(&again.window.slots()[0].text).unwrap();
        assert!(element.child(ATOM_NS, "updated").is_some(), "{xml}");
        assert_eq!(element.child(ATOM_NS, "title").unwrap().text, "Title 1");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_damaged_file_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    file.upsert(&good(1, "a"));
    file.write().unwrap();
    let whole = fs::read(&path).unwrap();
    let half = &whole[..whole.len() / 2];
    for content in [half, b"", b"\xff\xfe", b"<feed/>", b"<html></html>"] {
        fs::write(&path, content).unwrap();
        let mut file = open(&path);
        let damaged = file.damaged().unwrap().clone();
        assert_eq!(fs::read(&damaged.moved_to).unwrap(), content);
        let name = damaged.moved_to.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("lore.atom.damaged-"), "{name}");
        assert!(!damaged.reason.is_empty());
        assert!(file.is_empty());
        file.upsert(&good(2, "b"));
        file.write().unwrap();
        assert_eq!(ids(&open(&path)), ["b"]);
        fs::remove_file(damaged.moved_to).unwrap();
    }
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("x.atom");
    let mut file = open(&path);
    let error = file.write().unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
    fs::create_dir_all(&path).unwrap();
    let meta = FeedMeta::for_channel("", "");
    assert!(AtomFile::open(&path, meta, 1).is_err());
}

#[test]
fn the_size_is_bounded_but_the_newest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = AtomFile::open(&path(&folder), FeedMeta::for_channel("", ""), 500).unwrap();
    file.window.max_bytes = 10_000;
    let big = "x".repeat(4_000);
    for seq in 1..=4 {
        let mut big_update = update(seq, &seq.to_string(), "");
        big_update.entry.content_text = Some(big.clone());
        file.upsert(&big_update);
    }
    assert_eq!(ids(&file), ["4", "3"]);
    let mut huge = update(5, "5", "");
    huge.entry.content_text = Some("x".repeat(20_000));
    file.upsert(&huge);
    assert_eq!(ids(&file), ["5"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Repeated delivery from any earlier points leaves the same file as one delivery.
    #[test]
    fn delivery_is_idempotent(
        ids in proptest::collection::vec("[a-h]", 1..20),
        restarts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let updates: Vec<Update> =
            ids.iter().zip(1..).map(|(id, seq)| good(seq, id)).collect();
        let mut once = open(&folder.path().join("once"));
        updates.iter().for_each(|u| { once.upsert(u); });
        let path = folder.path().join("again");
        for restart in restarts {
            let mut file = open(&path);
            let upto = restart.index(updates.len());
            updates[..upto].iter().for_each(|u| { file.upsert(u); });
            file.write().unwrap();
        }
        let mut again = open(&path);
        updates.iter().for_each(|u| { again.upsert(u); });
        prop_assert_eq!(again.window, once.window);
    }

    /// Any update leaves a file that can be read again and contains the update.
    #[test]
    fn any_update_leaves_a_valid_file(
        id in "[a-c<>&\u{1}\r\n ]{1,4}",
        xml in "(<entry xmlns='http://www.w3.org/2005/Atom'>)?\
            (<id>[a-z]{0,3}</id>|[<>&;a-z\"'/ ]|]]>|<!--|<!\\[CDATA\\[){0,6}(</entry>)?",
        title in "[<>&\u{1}\u{fffe}\r\né]{0,5}",
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder);
        let mut file = open(&path);
        let mut odd = update(1, &id, &xml);
        odd.entry.title = Some(title);
        file.upsert(&odd);
        file.write().unwrap();
        let mut again = open(&path);
        prop_assert_eq!(again.damaged(), None);
        prop_assert_eq!(&again.window, &file.window);
        prop_assert_eq!(again.upsert(&odd), UpsertOutcome::Unchanged);
        let text = fs::read_to_string(&path).unwrap();
        let limits = Limits { entries: 9, entry_bytes: 1 << 20 };
        prop_assert_eq!(split(&text, None, limits).unwrap().entries.len(), 1);
    }
}

#[test]
fn reused_numbers_replace_their_entries() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    for seq in 1..=4 {
        file.upsert(&good(seq, &format!("urn:{seq}")));
    }
    file.write().unwrap();
    file.forget_numbers(INCARNATION, 2);
    file.write().unwrap();
    // The change survives a restart.
    let mut file = open(&path);
    assert_eq!(ids(&file), ["urn:4", "urn:3", "urn:2", "urn:1"]);
    assert_eq!(file.upsert(&good(2, "urn:2")), UpsertOutcome::Unchanged);
    // The entry of update 4 arrives as update 3, and another entry as update 4.
    assert_eq!(file.upsert(&good(3, "urn:4")), UpsertOutcome::Replaced);
    assert_eq!(file.upsert(&good(4, "urn:new")), UpsertOutcome::Added);
    assert_eq!(ids(&file), ["urn:new", "urn:4", "urn:3", "urn:2", "urn:1"]);
    assert_eq!(file.upsert(&good(3, "urn:4")), UpsertOutcome::Unchanged);
}

#[test]
fn the_original_feeds_address_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let write = |seq: u64, feed: &str| {
        let mut file = open(&path);
        let mut update = update(seq, &format!("urn:{seq}"), "");
        update.feed_url = feed.to_owned();
        file.upsert(&update);
        file.write().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (_, rest) = text.split_once("<link rel=\"alternate\" href=\"").unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    };
    assert_eq!(
        write(1, "https://a/?x=1&y='<"),
        "https://a/?x=1&amp;y='&lt;"
    );
    assert_eq!(write(2, "https://b/"), "https://a/?x=1&amp;y='&lt;");
    assert_eq!(write(3, "https://c/"), "https://a/?x=1&amp;y='&lt;");
}

#[test]
fn a_published_entry_has_no_feed_to_link_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder);
    let mut file = open(&path);
    let mut published = update(1, "urn:1", "");
    published.feed_url = crate::publication::FEED_URL.to_owned();
    file.upsert(&published);
    file.write().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains("rel=\"alternate\" href=\"urn:flexfeed"),
        "{text}"
    );
    file.upsert(&update(2, "urn:2", ""));
    file.write().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("<link rel=\"alternate\" href=\"http"),
        "{text}"
    );
}
