//! Ids that are none: the same one on entries that are not the same.
//!
//! Some feeds give all their entries one guid (the feed's address, `0`, the name of a template's
//! variable). An id that stands on entries with different links, or with different titles where
//! there are no links, says nothing; each of these gets a stable one of its own, made from the id
//! and the link (or title). Entries of one id and one link are versions of one entry, as in
//! RFC 4287 section 4.1.1; which of them counts is up to [`crate::detect`].
//!
//! While a document shows only one entry of such an id, it cannot be told apart from a good one:
//! that entry comes once more, under its own id, when a second one joins it. Twice is better than
//! never.

use std::collections::HashMap;

use crate::entry::{Entry, Fields};
use crate::xml::synthesise;

pub(super) fn separate(entries: &mut [Entry]) {
    // The place that an id stands at first, or nothing where it stands at several.
    let mut places: HashMap<&str, Option<&str>> = HashMap::new();
    for entry in entries.iter() {
        let place = place(entry);
        places
            .entry(&entry.id)
            .and_modify(|known| *known = known.filter(|k| *k == place))
            .or_insert(Some(place));
    }
    let mixed: Vec<bool> = entries
        .iter()
        .map(|entry| places.get(entry.id.as_str()) == Some(&None))
        .collect();
    for (entry, _) in entries.iter_mut().zip(mixed).filter(|(_, mixed)| *mixed) {
        let mut fields = Fields::new(b"flexfeed shared id v1");
        fields.field(Some(&entry.id));
        fields.field(Some(place(entry)));
        entry.id = fields.finish_urn();
        entry.xml = synthesise::with_id(entry);
    }
}

/// What tells an entry from others, beside its id.
fn place(entry: &Entry) -> &str {
    entry
        .url
        .as_deref()
        .or(entry.title.as_deref())
        .unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, url: Option<&str>, title: &str) -> Entry {
        Entry {
            id: id.into(),
            url: url.map(str::to_owned),
            title: Some(title.into()),
            ..Entry::default()
        }
    }

    fn ids(mut entries: Vec<Entry>) -> Vec<String> {
        separate(&mut entries);
        entries.into_iter().map(|e| e.id).collect()
    }

    #[test]
    fn a_shared_id_is_none() {
        let all = ids(vec![
            entry("x", Some("https://a/1"), "1"),
            entry("x", Some("https://a/2"), "2"),
            entry("y", Some("https://a/3"), "3"),
            entry("x", None, "4"),
        ]);
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert_eq!(all[2], "y");
        assert!(all[0].starts_with("urn:uuid:"));
        // In any order, and whoever else is there.
        let again = ids(vec![
            entry("x", None, "4"),
            entry("x", Some("https://a/1"), "another title"),
        ]);
        assert_eq!(again, [all[3].clone(), all[0].clone()]);
    }

    #[test]
    fn versions_of_one_entry_keep_its_id() {
        let all = ids(vec![
            entry("x", Some("https://a/1"), "new title"),
            entry("x", Some("https://a/1"), "old title"),
        ]);
        assert_eq!(all, ["x", "x"]);
    }
}
