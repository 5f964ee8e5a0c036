//! Replacement of ids that are shared by different entries.
//!
//! Some feeds give all their entries one guid (the feed's address, `0`, the name of a template's
//! variable). An id of entries with different links, or with different titles if there are no
//! links, identifies nothing; each of these entries gets a stable id of its own, made from the id
//! and the link (or title). Entries of one id and one link are versions of one entry, as in RFC
//! 4287 section 4.1.1; [`crate::detect`] decides which of them counts.
//!
//! While a document shows only one entry of such an id, the id cannot be recognised: that entry is
//! repeated once, under its own id, when a second one appears. Twice is better than never.

use std::collections::HashMap;

use crate::entry::{Entry, Fields};
use crate::xml::synthesise;

pub(super) fn separate(entries: &mut [Entry]) {
    // The link or title of the first entry with an id, or `None` if entries differ in it.
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

/// Returns the property that distinguishes an entry from others, apart from its id.
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
        // In any order, and with any other entries.
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
