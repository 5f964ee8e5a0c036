//! A real recorded feed: parsed, detected, encoded, decoded, written, read.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use feed::Kind;
use feed::atom::{AtomFile, FeedMeta, KEEP, UpsertOutcome};
use feed::detect::detect;
use feed::parse::{ParsedFeed, parse};
use feed::payload::{decode, encode};
use jiff::Timestamp;
use uuid::Uuid;

const ADDRESS: &str = "https://lore.kernel.org/all/new.atom";

fn recorded() -> Option<(String, ParsedFeed)> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/feeds/lore-all-new.atom");
    match std::fs::read(&path) {
        Ok(bytes) => {
            let feed = parse(&bytes, ADDRESS).unwrap();
            Some((String::from_utf8(bytes).unwrap(), feed))
        }
        Err(e) => {
            eprintln!("SKIPPED: no recorded feed at {}: {e}", path.display());
            None
        }
    }
}

#[test]
fn every_entry_keeps_its_id_and_text() {
    let Some((text, feed)) = recorded() else {
        return;
    };
    assert_eq!(feed.title.as_deref(), Some("All of lore.kernel.org"));
    assert_eq!(feed.skipped, Vec::<String>::new());
    assert_eq!(feed.entries.len(), 25);
    let namespaces = [
        " xmlns=\"http://www.w3.org/2005/Atom\"",
        " xmlns:thr=\"http://purl.org/syndication/thread/1.0\"",
    ];
    let originals: Vec<&str> = text
        .match_indices("<entry>")
        .map(|(at, _)| {
            let end = text[at..].find("</entry>").unwrap() + "</entry>".len();
            &text[at..at + end]
        })
        .collect();
    assert_eq!(originals.len(), 25);
    for (entry, original) in feed.entries.iter().zip(originals) {
        let mut xml = entry.xml.clone();
        for namespace in namespaces {
            let tag = xml.find('>').unwrap();
            if let Some(at) = xml[..tag].find(namespace) {
                xml.replace_range(at..at + namespace.len(), "");
            }
        }
        assert_eq!(xml, original);
        assert!(original.contains(&format!("<id>{}</id>", entry.id)));
        assert!(
            entry
                .url
                .as_ref()
                .unwrap()
                .starts_with("https://lore.kernel.org/")
        );
        assert!(entry.title.is_some() && entry.updated.is_some());
        assert!(!entry.content_html.as_ref().unwrap().is_empty());
        assert_eq!(entry.authors.len(), 1);
    }
}

#[test]
fn payload_and_file_preserve_everything() {
    let Some((_, feed)) = recorded() else {
        return;
    };
    // One message was sent to two lists in different forms: 25 entries, 24 ids. The first of the
    // two, which is the newer, counts.
    let mut entries = feed.entries.clone();
    let mut seen = HashSet::new();
    entries.retain(|e| seen.insert(e.id.clone()));
    assert_eq!(entries.len(), 24);
    let ids: Vec<String> = entries.iter().map(|e| e.id.clone()).collect();
    let drafts = detect(feed.entries, &HashMap::new());
    assert_eq!(drafts.len(), 24);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lore.atom");
    let mut file = AtomFile::open(&path, FeedMeta::for_channel("h:1", "lore"), KEEP).unwrap();
    let incarnation = Uuid::from_u128(5);
    let mut plain = 0;
    let mut sent = 0;
    for (draft, seq) in drafts.iter().zip(1..) {
        assert_eq!(draft.kind, Kind::Created);
        let now = Timestamp::from_millisecond(1_757_066_000_000 + seq).unwrap();
        let seq = u64::try_from(seq).unwrap();
        let encoded = encode(&draft.entry, draft.kind, ADDRESS, incarnation, seq, now);
        plain += draft.entry.xml.len();
        sent += encoded.len();
        let update = decode(&encoded).unwrap();
        assert_eq!(update.entry, draft.entry);
        assert_eq!((update.seq, update.time), (seq, now));
        assert_eq!(file.upsert(&update), UpsertOutcome::Added);
    }
    assert!(sent < plain, "compressed: {sent} of {plain}");
    file.write().unwrap();
    let again = AtomFile::open(&path, FeedMeta::for_channel("h:1", "lore"), KEEP).unwrap();
    assert_eq!(again.damaged(), None);
    assert_eq!(again.ids().collect::<Vec<_>>(), ids);
    let written = parse(&std::fs::read(&path).unwrap(), ADDRESS).unwrap();
    assert_eq!(written.entries, entries, "the file is the feed again");
    python(&path, &ids);
}

/// An independent reader finds the same entries in the same order.
fn python(path: &PathBuf, ids: &[String]) {
    let script = "
import sys
import xml.etree.ElementTree as tree
A = '{http://www.w3.org/2005/Atom}'
root = tree.parse(sys.argv[1]).getroot()
assert root.tag == A + 'feed' and all(root.find(A + n) is not None for n in ('id', 'title', 'updated'))
found = [e.find(A + 'id').text for e in root.iter(A + 'entry')]
try:
    import feedparser
except ImportError:
    print('SKIPPED: python3 has no feedparser', file=sys.stderr)
else:
    feed = feedparser.parse(sys.argv[1])
    assert not feed.bozo, feed.bozo_exception
    assert feed.version == 'atom10', feed.version
    assert all(e.title and e.updated_parsed and e.link and e.content for e in feed.entries)
    assert [e.id for e in feed.entries] == found
print('\\n'.join(found))
";
    match Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(path)
        .output()
    {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            if !errors.is_empty() {
                eprint!("{errors}");
            }
            let found = String::from_utf8(output.stdout).unwrap();
            assert_eq!(found.lines().collect::<Vec<_>>(), ids);
        }
        Err(e) => eprintln!("SKIPPED: no python3 to check the Atom file with: {e}"),
    }
}
