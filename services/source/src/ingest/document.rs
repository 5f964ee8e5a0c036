//! What was fetched and is not stored yet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use feed::Entry;
use feed::gap::Backfill;
use jiff::Timestamp;
use store::{GapRecord, Hash, Validators};

use super::bounds::{Memory, Share};
use super::finding::ascending;
use super::prepare::News;

/// While the store fails, polling goes on until this much is held, in bytes, and stops then.
const ROOM: usize = 8 << 20;

/// What an entry takes beside its texts.
const OVERHEAD: usize = 512;

/// A document of the feed.
#[derive(Debug)]
pub(super) struct Document {
    /// In its order; empty once `news` are worked out.
    pub(super) entries: Vec<Entry>,
    /// To be stored with the last of them.
    pub(super) validators: Validators,
    /// What it had, when it came.
    pub(super) seen: Before,
    /// An unchanged entry of it is in a document that is held as well.
    pub(super) continues: bool,
    /// How to get entries that are older than these.
    pub(super) backfill: Option<Backfill>,
    /// The gap before it, once that is noticed and recorded.
    pub(super) gap: Option<GapRecord>,
    /// What is new in it, once that is worked out.
    pub(super) news: Option<News>,
    /// So many of the news are stored.
    pub(super) stored: usize,
    /// It has to be fetched again, because its news could not be worked out.
    pub(super) again: bool,
}

/// What a document had.
#[derive(Debug, Clone, Default)]
pub(super) struct Before {
    pub(super) ids: HashSet<String>,
    /// The one at the end where the oldest are.
    pub(super) oldest: Option<String>,
    /// The dates of its entries.
    pub(super) dates: Vec<Timestamp>,
    /// When it came.
    pub(super) at: Option<Timestamp>,
    /// It is certain that the feed never had an entry before.
    pub(super) never: bool,
}

impl Before {
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

    /// A time by which entries of it were there. Dates may lie, some far in the future and some in
    /// the past, so it is the middle one, and not one after it came.
    pub(super) fn time(&self) -> Option<Timestamp> {
        let middle = self.dates.get(self.dates.len() / 2).copied();
        middle.into_iter().chain(self.at).min()
    }

    /// From the oldest to the newest entry, by the later half of their dates: one entry of long ago
    /// says little about how often there is one.
    pub(super) fn span(&self) -> Option<std::time::Duration> {
        let (middle, last) = (self.dates.get(self.dates.len() / 2)?, self.dates.last()?);
        let half = std::time::Duration::try_from(last.duration_since(*middle)).ok()?;
        Some(half * 2)
    }
}

/// When an entry was last changed, or else when it was made.
pub(super) fn date(entry: &Entry) -> Option<Timestamp> {
    entry.updated.or(entry.published)
}

/// About how much memory an entry takes.
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

/// The documents that are not stored yet, the oldest first. More than one only while the store
/// fails.
#[derive(Debug)]
pub(super) struct Pending {
    documents: VecDeque<Document>,
    /// What they take, and one that is being stored.
    share: Share,
    /// The last version of each entry in them; kept only while the store fails.
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

    /// Whether another document may come.
    pub(super) fn has_room(&self) -> bool {
        self.bytes() < ROOM && self.share.has_room()
    }

    fn bytes(&self) -> usize {
        self.documents.iter().map(Document::bytes).sum()
    }

    /// Takes the newest document. What is held already is not held twice.
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

    /// The oldest one, to be stored. It takes memory until it is [`stored`](Self::stored).
    pub(super) fn pop(&mut self) -> Option<Document> {
        let document = self.documents.pop_front();
        if self.documents.is_empty() {
            self.latest.clear();
        }
        document
    }

    /// Takes back the oldest one, which could not be stored.
    pub(super) fn put_back(&mut self, document: Document) {
        if self.documents.is_empty() {
            let entries = document.entries.iter();
            let hashes = entries.map(|entry| (entry.id.clone(), entry.content_hash()));
            let drafts = document.news.iter().flat_map(|news| &news.drafts);
            let drafts = drafts.map(|draft| (draft.entry.id.clone(), draft.hash));
            self.latest = hashes.chain(drafts).collect();
        }
        self.documents.push_front(document);
        self.share.set(self.bytes());
    }

    /// What was taken out is stored.
    pub(super) fn stored(&mut self) {
        self.share.set(self.bytes());
    }
}

impl Document {
    fn held(&self) -> usize {
        let news = self.news.as_ref();
        self.entries.len() + news.map_or(0, |news| news.drafts.len() - self.stored)
    }

    fn bytes(&self) -> usize {
        let news = self.news.iter().flat_map(|news| &news.drafts);
        let news = news.skip(self.stored).map(|draft| &draft.entry);
        self.entries.iter().chain(news).map(size).sum()
    }
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
            seen: Before::of(&entries, None),
            entries,
            validators: Validators {
                etag: Some(etag.into()),
                last_modified: None,
            },
            continues: false,
            backfill: None,
            gap: None,
            news: None,
            stored: 0,
            again: false,
        }
    }

    /// A pending list whose first document could not be stored.
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
        // The same again brings nothing but newer validators.
        pending.push(document(next, "3"));
        assert_eq!(pending.entries(), 4);
        // A version that comes back is held once more.
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
        // While it is being stored, it is there still.
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
    fn the_time_of_a_document_is_one_by_which_it_was_there() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let dated = |seconds: &[i64], came: Option<i64>| {
            let entries = seconds.iter().enumerate().map(|(n, s)| Entry {
                id: n.to_string(),
                updated: Some(at(*s)),
                ..Entry::default()
            });
            Before::of(&entries.collect::<Vec<_>>(), came.map(at))
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
}
