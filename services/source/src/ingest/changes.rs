//! Change detection of a document, before any of its entries is stored.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use feed::detect::{Draft, detect};
use feed::{Entry, Kind, payload};
use flexicast::MAX_UPDATE;
use jiff::Timestamp;
use uuid::Uuid;

/// Largest growth of an encoded update with its final seq and time over the measured one, in bytes:
/// their digits compress a little differently.
const SLACK: usize = 256 + signing::MAX_HEADER;

/// An entry whose long texts have at most this many bytes together is not measured: JSON makes at
/// most six bytes of one, so even uncompressed the update stays below the limit.
const SURELY_FITS: usize = MAX_UPDATE / 8;

/// Changes in a document.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Drafts in the order in which they get their seqs.
    pub(super) drafts: Vec<Draft>,
    /// Drafts that are too large to be sent.
    pub(super) oversized: Vec<Draft>,
    /// Ids of entries that trigger a bug of this program.
    pub(super) broken: Vec<String>,
}

impl Changes {
    /// Returns the numbers of new and of changed entries.
    pub(super) fn count(&self) -> (usize, usize) {
        let new = |draft: &&Draft| draft.kind == Kind::Created;
        let created = self.drafts.iter().filter(new).count();
        (created, self.drafts.len() - created)
    }
}

/// Detects the changes in a document, and which of them can be sent. Uses the processor for long
/// enough to need a thread of its own.
pub(super) fn prepare(
    entries: Vec<Entry>,
    known: &HashMap<String, [u8; 32]>,
    url: &str,
    incarnation: Uuid,
) -> Changes {
    sort_out(entries, known, |draft| fits(draft, url, incarnation))
}

/// Judges the entries one by one, so that an entry that makes this panic affects no other one.
fn sort_out(
    entries: Vec<Entry>,
    known: &HashMap<String, [u8; 32]>,
    fits: impl Fn(&Draft) -> bool,
) -> Changes {
    let (mut changes, mut seen) = (Changes::default(), HashSet::new());
    for entry in entries {
        // Of several with one id the first is the newest.
        if !seen.insert(entry.id.clone()) {
            continue;
        }
        let id = entry.id.clone();
        let judge = || {
            let draft = detect(vec![entry], known).pop();
            draft.map(|draft| (fits(&draft), draft))
        };
        // Nothing is left half done: the entry is skipped as a whole.
        match catch_unwind(AssertUnwindSafe(judge)) {
            Ok(Some((true, draft))) => changes.drafts.push(draft),
            Ok(Some((false, draft))) => changes.oversized.push(draft),
            Ok(None) => {}
            Err(_) => changes.broken.push(id),
        }
    }
    // Feeds have the newest first.
    changes.drafts.reverse();
    changes
}

/// Whether an update is small enough, whatever seq it gets. This is decided before it has one,
/// because the seqs of stored updates have no gaps.
fn fits(draft: &Draft, url: &str, incarnation: Uuid) -> bool {
    let entry = &draft.entry;
    // Everything else in an entry is short, or in its XML as well.
    let texts = [
        &entry.title,
        &entry.content_html,
        &entry.content_text,
        &entry.summary,
    ];
    let lengths = texts.into_iter().flatten().map(String::len);
    if entry.xml.len() + url.len() + lengths.sum::<usize>() <= SURELY_FITS {
        return true;
    }
    let encoded = payload::encode(
        entry,
        draft.kind,
        url,
        incarnation,
        u64::MAX,
        Timestamp::now(),
    );
    encoded.len() + SLACK <= MAX_UPDATE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    /// Returns incompressible text.
    fn noise(bytes: usize) -> String {
        let alphabet: Vec<char> = ('!'..='~').collect();
        let random = || alphabet[rand::random_range(0..alphabet.len())];
        std::iter::repeat_with(random).take(bytes).collect()
    }

    fn entry(id: &str, xml: String) -> Entry {
        Entry {
            id: id.into(),
            xml,
            ..Entry::default()
        }
    }

    #[test]
    fn entries_too_large_are_skipped() {
        let entries = vec![
            entry("huge", noise(MAX_UPDATE * 2)),
            entry("large", noise(MAX_UPDATE / 4)),
            // Long, but short once it is compressed.
            entry("dull", "x".repeat(MAX_UPDATE * 2)),
            entry("small", "x".into()),
        ];
        let changes = prepare(entries, &HashMap::new(), "http://f/", Uuid::nil());
        let ids = |drafts: &[Draft]| -> Vec<String> {
            drafts.iter().map(|draft| draft.entry.id.clone()).collect()
        };
        assert_eq!(ids(&changes.drafts), ["small", "dull", "large"]);
        assert_eq!(ids(&changes.oversized), ["huge"]);
        for draft in &changes.drafts {
            for seq in [1, u64::MAX] {
                let now = Timestamp::now();
                let encoded =
                    payload::encode(&draft.entry, draft.kind, "http://f/", Uuid::nil(), seq, now);
                assert!(encoded.len() <= MAX_UPDATE, "{}", draft.entry.id);
            }
        }
    }

    #[test]
    fn a_panic_affects_one_entry_only() {
        let entries = ["d", "poison", "b", "a", "d"].map(|id| entry(id, "x".into()));
        let fits = |draft: &Draft| {
            assert_ne!(draft.entry.id, "poison", "wanted by this test");
            true
        };
        let known = HashMap::from([("b".to_owned(), entries[2].content_hash())]);
        let changes = sort_out(entries.to_vec(), &known, fits);
        let ids: Vec<&str> = changes.drafts.iter().map(|d| d.entry.id.as_str()).collect();
        assert_eq!(ids, ["a", "d"]);
        assert_eq!(changes.broken, ["poison"]);
        assert!(changes.oversized.is_empty());
    }

    #[test]
    fn unmeasured_rows_fit_in_the_worst_case() {
        // Control characters are the longest in JSON: \u0001.
        let text = "\u{1}".repeat(SURELY_FITS / 2);
        let mut worst = entry("worst", text.clone());
        worst.content_html = Some(text);
        let encoded = payload::encode(
            &worst,
            Kind::Created,
            "http://f/",
            Uuid::nil(),
            u64::MAX,
            Timestamp::now(),
        );
        assert!(encoded.len() <= MAX_UPDATE);
        const { assert!(6 * SURELY_FITS + (64 << 10) < MAX_UPDATE) };
    }
}
