//! The written files, judged by other readers: feedparser, Newsboat, feed-rs, and the rules of RFC
//! 4287 and of JSON Feed 1.1 as they are written down here.

mod json_feed_rules;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use feed::atom::{AtomFile, FeedMeta, KEEP};
use feed::detect::detect;
use feed::json_feed::JsonFile;
use feed::parse::parse;
use feed::payload::Update;
use feed::{Attachment, Author, Entry, Kind};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use json_feed_rules::check_json_feed;

/// A feed's files, and their entries, newest first.
struct WrittenFeed {
    name: String,
    atom: PathBuf,
    json: PathBuf,
    entries: Vec<Entry>,
}

fn write(folder: &Path, n: usize, name: &str, entries: Vec<Entry>) -> WrittenFeed {
    let meta = || {
        FeedMeta::for_channel("source.example:4433", name)
            .served_at(&format!("http://localhost:8080/feeds/{n}?a&b"))
    };
    let atom = folder.join(format!("{n}.atom"));
    let json = folder.join(format!("{n}.json"));
    let mut atom_file = AtomFile::open(&atom, meta(), KEEP).unwrap();
    let mut json_file = JsonFile::open(&json, meta(), KEEP).unwrap();
    let drafts = detect(entries, &HashMap::new());
    let mut kept = Vec::new();
    for (draft, seq) in drafts.into_iter().zip(1u64..) {
        let second = 1_757_066_000 + i64::try_from(seq).unwrap();
        let update = Update {
            kind: Kind::Created,
            feed_url: "https://feeds.example/?a=1&b=2".into(),
            incarnation: Uuid::from_u128(5),
            seq,
            time: Timestamp::from_second(second).unwrap(),
            entry: draft.entry,
        };
        atom_file.upsert(&update);
        json_file.upsert(&update);
        kept.insert(0, update.entry);
    }
    atom_file.write().unwrap();
    json_file.write().unwrap();
    WrittenFeed {
        name: name.to_owned(),
        atom,
        json,
        entries: kept,
    }
}

/// Writes the feeds of the corpus.
fn corpus(folder: &Path) -> Vec<WrittenFeed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut names = Vec::new();
    for sub in fs::read_dir(&root).unwrap() {
        let sub = sub.unwrap();
        if sub.file_type().unwrap().is_dir() {
            for file in fs::read_dir(sub.path()).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_none_or(|e| e != "expected") {
                    names.push(path);
                }
            }
        }
    }
    names.sort();
    let mut written = Vec::new();
    for (n, path) in names.iter().enumerate() {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let address = format!("https://feeds.example/{name}");
        if let Ok(feed) = parse(&fs::read(path).unwrap(), &address) {
            written.push(write(folder, n, name, feed.entries));
        }
    }
    assert!(written.len() >= 100, "only {} feeds", written.len());
    written.push(write(folder, 10_000, "hostile", hostile()));
    written
}

/// Returns entries that no feed contains, but that a foreign source could send.
fn hostile() -> Vec<Entry> {
    let texts = [
        "]]>",
        "<![CDATA[",
        "--><!--",
        "<?xml version='1.0'?>",
        "&amp;&lt;&#0;&nope;",
        "</entry></feed>",
        "\u{0}\u{1}\u{8}\u{b}\u{c}\u{e}\u{1f}\u{7f}\u{85}",
        "\u{fffe}\u{ffff}\u{fdd0}\u{1ffff}",
        "\u{feff}\u{202e}\u{2028}\u{2029}",
        "\\\"\\u0000\\ud800",
        "\"'<>&\r\n\t",
        "\u{1f600}é世\u{301}",
        "<script>alert(1)</script>",
        "{\"a\":[}",
    ];
    texts
        .iter()
        .enumerate()
        .map(|(n, text)| Entry {
            id: format!("urn:hostile:{n}:{text}"),
            title: Some(format!("Title {text}")),
            url: Some(format!("https://hostile.example/{n}?{text}")),
            authors: vec![
                Author {
                    name: Some(format!("N {text}")),
                    url: None,
                },
                Author {
                    name: None,
                    url: Some(format!("https://a.example/{text}")),
                },
            ],
            published: Some(Timestamp::UNIX_EPOCH),
            updated: Timestamp::from_second(1_757_000_000).ok(),
            content_html: (n % 2 == 0).then(|| format!("<p>{text}</p>")),
            content_text: (n % 2 == 1).then(|| format!("text {text}")),
            summary: Some(format!("summary {text}")),
            tags: vec![format!("tag {text}")],
            language: Some("en".into()),
            attachments: vec![Attachment {
                url: format!("https://hostile.example/{n}.ogg?{text}"),
                mime_type: "audio/ogg".into(),
                size: Some(u64::MAX),
            }],
            xml: if n % 3 == 0 {
                (*text).to_owned()
            } else {
                String::new()
            },
        })
        .collect()
}

/// Returns a Python that can import these modules, if there is one.
fn python(modules: &str) -> Option<String> {
    // The first one is often not the one that the system's packages are for.
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|python| {
            Command::new(python)
                .args(["-c", &format!("import {modules}")])
                .output()
                .is_ok_and(|output| output.status.success())
        })
        .map(str::to_owned)
}

fn run(python: &str, script: &str, input: &Value) {
    let mut child = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns names, Atom files and their entries, for a script.
fn listed(written: &[WrittenFeed]) -> Value {
    let entry = |e: &Entry| json!({"id": e.id, "title": e.title});
    let feeds: Vec<Value> = written
        .iter()
        .map(|w| {
            let entries: Vec<Value> = w.entries.iter().map(entry).collect();
            json!({"name": w.name, "atom": w.atom, "entries": entries})
        })
        .collect();
    feeds.into()
}

const FEEDPARSER: &str = r#"
import json, re, sys, feedparser
feedparser.SANITIZE_HTML = 0
def clean(text):
    return re.sub('[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]', '', text or '').strip()
for feed in json.load(sys.stdin):
    read = feedparser.parse(open(feed['atom'], 'rb').read())
    name = feed['name']
    assert not read.bozo, (name, read.get('bozo_exception'))
    assert read.version == 'atom10', (name, read.version)
    assert [l.href for l in read.feed.links if l.rel == 'self'], name
    assert read.feed.id and read.feed.title and read.feed.updated_parsed, name
    found = [e.id for e in read.entries]
    # feedparser takes an element of no namespace for Atom's.
    if name == 'atom/prefixed.atom':
        continue
    assert found == [clean(e['id']) for e in feed['entries']], (name, found)
    for entry, expected in zip(read.entries, feed['entries']):
        assert entry.updated_parsed, (name, entry.id)
        title = expected['title'] or ''
        if not re.search('[<>&]', title):
            # A reader of HTML folds white space.
            found = re.sub('<[^>]*>', '', entry.title)
            assert ' '.join(found.split()) == ' '.join(clean(title).split()), (name, found, title)
"#;

/// RFC 4287, as far as a program can check it, with Python's own XML parser.
const RFC_4287: &str = r#"
import json, re, sys
import xml.etree.ElementTree as tree
A = '{http://www.w3.org/2005/Atom}'
DATE = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$')
MEDIA = re.compile(r'.+/.+')
def one(parent, name, least=1):
    found = parent.findall(A + name)
    assert least <= len(found) <= 1, (where, parent.tag, name, len(found))
    return found[0] if found else None
def date(element):
    assert element is None or DATE.match(element.text.strip()), (where, element.text)
def people(parent):
    for person in parent.findall(A + 'author') + parent.findall(A + 'contributor'):
        if len(person) or (person.text or '').strip():
            assert len(person.findall(A + 'name')) <= 1, where
def links(parent):
    for link in parent.findall(A + 'link'):
        assert 'href' in link.attrib, where
    return [l for l in parent.findall(A + 'link') if l.get('rel', 'alternate') == 'alternate']
for feed in json.load(sys.stdin):
    where = feed['name']
    root = tree.parse(feed['atom']).getroot()
    assert root.tag == A + 'feed'
    for name in ('id', 'title'):
        assert one(root, name).text, where
    date(one(root, 'updated'))
    assert root.find(A + 'author/' + A + 'name').text, where
    assert any(l.get('rel') == 'self' for l in root.findall(A + 'link')), where
    people(root)
    ids = []
    for entry in root.findall(A + 'entry'):
        ids.append(one(entry, 'id').text.strip())
        assert ids[-1], where
        one(entry, 'title')
        date(one(entry, 'updated'))
        date(one(entry, 'published', 0))
        one(entry, 'summary', 0)
        content = one(entry, 'content', 0)
        assert links(entry) or content is not None, (where, ids[-1])
        if content is not None and content.get('type') == 'xhtml' and not feed['name'].startswith('atom/content-types'):
            assert [c.tag for c in content] == ['{http://www.w3.org/1999/xhtml}div'], (where, ids[-1])
        people(entry)
    assert len(ids) == len(set(ids)) == len(feed['entries']), where
"#;

#[test]
fn atom_files_are_valid_and_feedparser_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let written = corpus(folder.path());
    let feeds = listed(&written);
    match python("xml.etree.ElementTree") {
        Some(python) => run(&python, RFC_4287, &feeds),
        None => eprintln!("SKIPPED: no python3 to check the Atom files with"),
    }
    match python("feedparser") {
        Some(python) => run(&python, FEEDPARSER, &feeds),
        None => eprintln!("SKIPPED: no feedparser; run: apt-get install python3-feedparser"),
    }
}

const CACHE: &str = r#"
import json, re, sqlite3, sys
given = json.load(sys.stdin)
def clean(text):
    return re.sub('[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]', '', text).strip()
# Newsboat keeps one item of each id, whatever the feed.
rows = sqlite3.connect(given['cache']).execute('select guid from rss_item')
found = {guid for guid, in rows}
expected = {clean(e['id']) for feed in given['feeds'] for e in feed['entries']}
assert found == expected, (sorted(found - expected), sorted(expected - found))
"#;

#[test]
fn newsboat_reads_atom_files() {
    let folder = tempfile::tempdir().unwrap();
    let written = corpus(folder.path());
    let place = |name: &str| folder.path().join(name);
    let urls: String = written
        .iter()
        .map(|w| format!("file://{}\n", w.atom.display()))
        .collect();
    fs::write(place("urls"), urls).unwrap();
    fs::write(place("config"), "max-items 0\n").unwrap();
    let started = Command::new("newsboat")
        .env("HOME", folder.path())
        .env("LC_ALL", "C.UTF-8")
        .arg("-u")
        .arg(place("urls"))
        .arg("-c")
        .arg(place("cache.db"))
        .arg("-C")
        .arg(place("config"))
        .args(["-x", "reload"])
        .output();
    let (output, python) = match (started, python("sqlite3")) {
        (Ok(output), Some(python)) => (output, python),
        _ => {
            eprintln!("SKIPPED: no newsboat, or no python3; run: apt-get install newsboat python3");
            return;
        }
    };
    assert!(output.status.success(), "{output:?}");
    let input = json!({"cache": place("cache.db"), "feeds": listed(&written)});
    run(&python, CACHE, &input);
}

#[test]
fn json_files_are_valid_and_feed_rs_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut sizes = BTreeMap::new();
    for written in corpus(folder.path()) {
        let name = &written.name;
        let bytes = fs::read(&written.json).unwrap();
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(check_json_feed(&document), Ok(()), "{name}");
        let read = feed_rs::parser::parse(&bytes[..]).unwrap();
        let found: Vec<&str> = read.entries.iter().map(|e| e.id.as_str()).collect();
        let expected: Vec<&str> = written.entries.iter().map(|e| e.id.as_str()).collect();
        assert_eq!(found, expected, "{name}");
        for (found, expected) in read.entries.iter().zip(&written.entries) {
            let title = found.title.as_ref().map(|t| t.content.trim());
            assert_eq!(title, expected.title.as_deref().map(str::trim), "{name}");
            let date = found.published.map(|t| t.timestamp_millis());
            let own = expected.published.map(Timestamp::as_millisecond);
            assert_eq!(date, own, "{name}");
        }
        sizes.insert(name.clone(), bytes.len());
    }
    assert!(sizes.values().all(|size| *size > 100));
}

/// Threading and XHTML are in the file as in the feed, byte for byte.
#[test]
fn extensions_and_xhtml_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let kept = [
        (
            "atom/threading.atom",
            "<thr:in-reply-to ref=\"tag:t.example,2025:1\" type=\"application/xhtml+xml\" href=\"https://t.example/1\"/>\
             <link rel=\"replies\" type=\"application/atom+xml\" href=\"https://t.example/2/replies\" thr:count=\"10\" \
             thr:updated=\"2025-09-05T00:00:00Z\"/><thr:total>10</thr:total>",
        ),
        (
            "public-inbox/new.atom",
            "<content\ntype=\"xhtml\"><div\nxmlns=\"http://www.w3.org/1999/xhtml\"><pre\nstyle=\"white-space:pre-wrap\">On \
             Wed",
        ),
        (
            "atom/planet.xml",
            "<x:div \
             xmlns:x=\"http://www.w3.org/1999/xhtml\"><x:p>Yew.<x:br/>Box.</x:p><x:td/></x:div>",
        ),
        (
            "atom/rfc4287-full.xml",
            "<content type=\"xhtml\" xml:lang=\"en\" xml:base=\"http://diveintomark.example/\">\n",
        ),
        (
            "atom/xml-base-nested.atom",
            " xml:base=\"https://feeds.example/a/b/\">",
        ),
        ("atom/github-releases.atom", " xml:lang=\"en-US\""),
    ];
    let written = corpus(folder.path());
    for (name, part) in kept {
        let file = written.iter().find(|w| w.name == name).unwrap();
        let text = fs::read_to_string(&file.atom).unwrap();
        assert!(text.contains(part), "{name}: {part}\n{text}");
    }
}
