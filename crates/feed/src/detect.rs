//! Change detection: the new and changed entries of a fetched document.

use std::collections::{HashMap, HashSet};

use crate::entry::{Entry, Kind};

/// Update without a number yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Whether the entry is new or a new version.
    pub kind: Kind,
    /// [`Entry::content_hash`] of the entry, to be stored as the known hash.
    pub hash: [u8; 32],
    /// Entry of the update.
    pub entry: Entry,
}

/// Returns the updates in a document, oldest first: feeds list the newest entry first, so this is
/// the reverse of the document's order.
///
/// `known` maps the id of each entry seen before to the hash of its last version; only the ids that
/// are in the document are needed. If a document has several entries of one id, the first, which is
/// the newest, counts.
#[must_use]
pub fn detect(entries: Vec<Entry>, known: &HashMap<String, [u8; 32]>) -> Vec<Draft> {
    let mut seen = HashSet::new();
    let mut drafts: Vec<Draft> = entries
        .into_iter()
        .filter(|entry| seen.insert(entry.id.clone()))
        .filter_map(|entry| {
            let hash = entry.content_hash();
            let kind = match known.get(&entry.id) {
                None => Kind::Created,
                Some(old) if *old != hash => Kind::Updated,
                Some(_) => return None,
            };
            Some(Draft { kind, hash, entry })
        })
        .collect();
    drafts.reverse();
    drafts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(id: &str, title: &str) -> Entry {
        Entry {
            id: id.into(),
            title: Some(title.into()),
            ..Entry::default()
        }
    }

    #[test]
    fn new_changed_and_unchanged() {
        let known = HashMap::from([
            ("b".to_owned(), entry("b", "old").content_hash()),
            ("c".to_owned(), entry("c", "same").content_hash()),
        ]);
        let document = vec![
            entry("a", "new"),
            entry("b", "changed"),
            entry("c", "same"),
            entry("a", "an older version further down"),
            entry("d", "oldest"),
        ];
        let drafts = detect(document, &known);
        let short: Vec<_> = drafts
            .iter()
            .map(|d| (d.kind, d.entry.id.as_str()))
            .collect();
        assert_eq!(
            short,
            [
                (Kind::Created, "d"),
                (Kind::Updated, "b"),
                (Kind::Created, "a")
            ]
        );
        assert_eq!(drafts[2].entry.title.as_deref(), Some("new"));
    }

    proptest! {
        /// After the detected updates are stored, the same document contains no changes.
        #[test]
        fn detection_settles(document in proptest::collection::vec(("[a-e]", "[x-z]"), 0..12)) {
            let entries: Vec<Entry> = document.iter().map(|(id, title)| entry(id, title)).collect();
            let mut known = HashMap::new();
            for draft in detect(entries.clone(), &known) {
                prop_assert!(known.insert(draft.entry.id, draft.hash).is_none());
            }
            prop_assert_eq!(detect(entries, &known), vec![]);
        }
    }
}
