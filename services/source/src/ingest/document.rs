//! Fetched documents that are not stored yet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use feed::Entry;
use feed::gap::Backfill;
use jiff::Timestamp;
use store::{GapRecord, Hash, Validators};

use super::bounds::{Memory, Share};
use super::changes::Changes;

/// Bytes held at which polling stops while the store fails.
const ROOM: usize = 8 << 20;

/// Memory of an entry in addition to its texts.
const OVERHEAD: usize = 512;

/// Document of the feed.
#[derive(Debug)]
pub(super) struct Document {
    /// Entries in the document's order; empty once `changes` is computed.
    pub(super) entries: Vec<Entry>,
    /// Validators to be stored with the last of the entries.
    pub(super) validators: Validators,
    /// Summary of the document at its arrival.
    pub(super) seen: DocumentSummary,
    /// Whether an unchanged entry of it is in another held document.
    pub(super) continues: bool,
    /// Source of entries that are older than these.
    pub(super) backfill: Option<Backfill>,
    /// The gap in front of the document, once it is noticed and recorded.
    pub(super) gap: Option<GapRecord>,
    /// Changes in the document, once computed.
    pub(super) changes: Option<Changes>,
    /// Number of changes that are stored.
    pub(super) stored: usize,
    /// Whether the document has to be fetched again because change detection failed.
    pub(super) again: bool,
}

/// Summary of a document.
#[derive(Debug, Clone, Default)]
pub(super) struct DocumentSummary {
    pub(super) ids: HashSet<String>,
    /// Last entry at the end with the oldest ones.
    pub(super) oldest: Option<String>,
    /// Dates of the entries.
    pub(super) dates: Vec<Timestamp>,
    /// Time of arrival.
    pub(super) at: Option<Timestamp>,
    /// Whether the feed certainly never had an entry before.
    pub(super) never: bool,
}

impl DocumentSummary {
    pub(super) fn of(entries: &[Entry], at: Option<Timestamp>) -> Self {
        let oldest = if ascending(entries) {
            entries.first()
        } else {
            entries.last()
        };
        let mut before = Self {
            at,
            oldest: oldest.map(|entry| entry.id.clone()),
            ..Self::default()
        };
        for entry in entries {
            before.ids.insert(entry.id.clone());
            before.dates.extend(date(entry));
        }
        before.dates.sort_unstable();
        before
    }

    /// Returns a time by which entries of the document existed. Dates may be wrong, some far in the
    /// future and some in the past, so this is the median, and not later than the arrival.
    pub(super) fn time(&self) -> Option<Timestamp> {
        let middle = self.dates.get(self.dates.len() / 2).copied();
        middle.into_iter().chain(self.at).min()
    }

    /// Returns the time from the oldest to the newest entry, by the later half of their dates: one
    /// old entry says little about the rate.
    pub(super) fn span(&self) -> Option<std::time::Duration> {
        let (middle, last) = (self.dates.get(self.dates.len() / 2)?, self.dates.last()?);
        let half = std::time::Duration::try_from(last.duration_since(*middle)).ok()?;
        Some(half * 2)
    }
}

/// Returns the date of an entry's last change, or else of its creation.
pub(super) fn date(entry: &Entry) -> Option<Timestamp> {
    entry.updated.or(entry.published)
}

/// Returns the approximate memory of an entry.
pub(super) fn size(entry: &Entry) -> usize {
    let texts = [
        &entry.title,
        &entry.content_html,
        &entry.content_text,
        &entry.summary,
    ];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    OVERHEAD + entry.id.len() + entry.xml.len() + texts
}

/// Documents that are not stored yet, oldest first. More than one only while the store fails.
#[derive(Debug)]
pub(super) struct Pending {
    documents: VecDeque<Document>,
    /// Memory of the documents, including one that is being stored.
    share: Share,
    /// Last version of each entry in the documents; kept only while the store fails.
    latest: HashMap<String, Hash>,
}

impl Pending {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Self {
            documents: VecDeque::new(),
            share: Share::new(memory),
            latest: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Returns the number of entries that are held.
    pub(super) fn entries(&self) -> usize {
        self.documents.iter().map(Document::held).sum()
    }

    /// Whether another document may be added.
    pub(super) fn has_room(&self) -> bool {
        self.bytes() < ROOM && self.share.has_room()
    }

    fn bytes(&self) -> usize {
        self.documents.iter().map(Document::bytes).sum()
    }

    /// Adds the newest document. Entries that are already held are not held twice.
    pub(super) fn push(&mut self, mut document: Document) {
        if let Some(last) = self.documents.back_mut() {
            let latest = &mut self.latest;
            let before = document.entries.len();
            document.entries.retain(|entry| {
                let hash = entry.content_hash();
                latest.insert(entry.id.clone(), hash) != Some(hash)
            });
            document.continues = document.entries.len() < before;
            if document.entries.is_empty() {
                last.validators = document.validators;
                return;
            }
        }
        self.documents.push_back(document);
        self.share.set(self.bytes());
    }

    /// Removes the oldest document, to be stored. Its memory counts until [`stored`](Self::stored).
    pub(super) fn pop(&mut self) -> Option<Document> {
        let document = self.documents.pop_front();
        if self.documents.is_empty() {
            self.latest.clear();
        }
        document
    }

    /// Puts back the oldest document after a failed attempt to store it.
    pub(super) fn put_back(&mut self, document: Document) {
        if self.documents.is_empty() {
            let entries = document.entries.iter();
            let hashes = entries.map(|entry| (entry.id.clone(), entry.content_hash()));
            let drafts = document.changes.iter().flat_map(|changes| &changes.drafts);
            let drafts = drafts.map(|draft| (draft.entry.id.clone(), draft.hash));
            self.latest = hashes.chain(drafts).collect();
        }
        self.documents.push_front(document);
        self.share.set(self.bytes());
    }

    /// Releases the memory of the removed document after it was stored.
    pub(super) fn stored(&mut self) {
        self.share.set(self.bytes());
    }
}

impl Document {
    fn held(&self) -> usize {
        let changes = self.changes.as_ref();
        self.entries.len() + changes.map_or(0, |changes| changes.drafts.len() - self.stored)
    }

    fn bytes(&self) -> usize {
        let changes = self.changes.iter().flat_map(|changes| &changes.drafts);
        let changes = changes.skip(self.stored).map(|draft| &draft.entry);
        self.entries.iter().chain(changes).map(size).sum()
    }
}

/// Whether a document has the oldest entry first, as some archives do.
pub(super) fn ascending(entries: &[Entry]) -> bool {
    let dates: Vec<Timestamp> = entries.iter().filter_map(date).collect();
    let pairs = || dates.iter().zip(dates.iter().skip(1));
    let up = pairs().filter(|(a, b)| a < b).count();
    let down = pairs().filter(|(a, b)| a > b).count();
    up > down
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn entry(id: &str, text: &str) -> Entry {
        Entry {
            id: id.into(),
            content_text: Some(text.into()),
            ..Entry::default()
        }
    }

    fn document(entries: Vec<Entry>, etag: &str) -> Document {
        Document {
            seen: DocumentSummary::of(&entries, None),
            entries,
            validators: Validators {
                etag: Some(etag.into()),
                last_modified: None,
            },
            continues: false,
            backfill: None,
            gap: None,
            changes: None,
            stored: 0,
            again: false,
        }
    }

    /// Returns a pending list whose first document could not be stored.
    fn failing(first: Document) -> Pending {
        let mut pending = Pending::new(Arc::default());
        pending.push(first);
        let first = pending.pop().unwrap();
        pending.put_back(first);
        pending
    }

    #[test]
    fn held_documents_are_shared() {
        let mut pending = failing(document(vec![entry("b", "1"), entry("a", "1")], "1"));
        let next = vec![entry("c", "1"), entry("b", "2"), entry("a", "1")];
        pending.push(document(next.clone(), "2"));
        assert_eq!(pending.entries(), 4, "a is there once");
        // A repeated document brings nothing but newer validators.
        pending.push(document(next, "3"));
        assert_eq!(pending.entries(), 4);
        // A version that returns is held once more.
        pending.push(document(vec![entry("b", "1")], "4"));
        let documents: Vec<Document> = std::iter::from_fn(|| pending.pop()).collect();
        let ids = |d: &Document| d.entries.iter().map(|e| e.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&documents[0]), ["b", "a"]);
        assert_eq!(ids(&documents[1]), ["c", "b"]);
        assert_eq!(ids(&documents[2]), ["b"]);
        let continues: Vec<bool> = documents.iter().map(|d| d.continues).collect();
        assert_eq!(continues, [false, true, false]);
        assert_eq!(documents[1].validators.etag.as_deref(), Some("3"));
        assert!(pending.is_empty());
    }

    #[test]
    fn room_is_bounded() {
        let pending = Pending::new(Arc::default());
        assert!(pending.has_room());
        let mut pending = failing(document(vec![entry("a", "x")], "1"));
        let mut count = 1;
        while pending.has_room() {
            count += 1;
            assert!(count < 100, "for ever");
            let text = format!("{count}{}", "x".repeat(ROOM / 8));
            pending.push(document(vec![entry(&format!("e{count}"), &text)], "2"));
        }
        assert_eq!(count, 9);
    }

    #[test]
    fn the_memory_of_all_feeds_is_bounded() {
        let memory = Arc::new(Memory::of(10_000));
        let mut one = Pending::new(Arc::clone(&memory));
        let mut other = Pending::new(Arc::clone(&memory));
        one.push(document(vec![entry("a", &"x".repeat(20_000))], "1"));
        assert!(!one.has_room() && !other.has_room());
        // While it is being stored, its memory still counts.
        let taken = one.pop().unwrap();
        assert!(!other.has_room());
        one.put_back(taken);
        assert!(!other.has_room());
        drop(one.pop());
        one.stored();
        assert!(other.has_room() && memory.used() == 0);
        other.push(document(vec![entry("a", "x")], "1"));
        assert!(memory.used() > 0);
        drop(other);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn the_time_of_a_document_is_its_median_date_or_its_arrival() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let dated = |seconds: &[i64], came: Option<i64>| {
            let entries = seconds.iter().enumerate().map(|(n, s)| Entry {
                id: n.to_string(),
                updated: Some(at(*s)),
                ..Entry::default()
            });
            DocumentSummary::of(&entries.collect::<Vec<_>>(), came.map(at))
        };
        // One from the future and one from long ago.
        let lies = [9_000_000, 104, 103, 102, 101, 100, 5];
        assert_eq!(dated(&lies, Some(105)).time(), Some(at(102)));
        assert_eq!(dated(&[900, 901], Some(105)).time(), Some(at(105)));
        assert_eq!(dated(&[], Some(105)).time(), Some(at(105)));
        assert_eq!(dated(&[], None).time(), None);
        let span = dated(&[100, 110, 120, 130, 5], None).span().unwrap();
        assert_eq!(span.as_secs(), 40);
    }

    #[test]
    fn the_order_of_a_page_follows_from_its_dates() {
        let page = |seconds: &[i64]| -> Vec<Entry> {
            let entry = |s: &i64| Entry {
                updated: Some(Timestamp::from_second(*s).unwrap()),
                ..Entry::default()
            };
            seconds.iter().map(entry).collect()
        };
        assert!(!ascending(&page(&[9, 8, 7, 1, 6])));
        assert!(ascending(&page(&[1, 2, 9, 3, 4])));
        assert!(!ascending(&page(&[])) && !ascending(&page(&[5])));
        assert!(!ascending(&[Entry::default(), Entry::default()]));
    }
}
