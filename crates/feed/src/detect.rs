//! What in a fetched document is new.

use std::collections::{HashMap, HashSet};

use crate::entry::{Entry, Kind};

/// An update that has no number yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// New, or a new version.
    pub kind: Kind,
    /// The entry's [`Entry::content_hash`], to be stored as the known one.
    pub hash: [u8; 32],
    /// The entry.
    pub entry: Entry,
}

/// The updates that a document brings, oldest first: feeds list the newest entry first, so this is
/// the reverse of the document's order.
///
/// `known` maps the id of each entry seen before to the hash of its last version; it need only
/// hold the ids that are in the document. If a document has several entries of one id, the first,
/// which is the newest, counts.
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
        /// Storing what is detected leaves nothing to detect in the same document.
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
