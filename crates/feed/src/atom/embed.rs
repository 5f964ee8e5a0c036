//! The form of an entry in the Atom file: its own XML if possible, completed and valid by RFC 4287,
//! and otherwise byte for byte.

use std::ops::Range;

use jiff::Timestamp;

use crate::entry::Entry;
use crate::xml::check::{Form, check};
use crate::xml::element::{Element, outline};
use crate::xml::extensions::extensions;
use crate::xml::{ATOM_NS, synthesise};

/// Elements that an entry has at most once (RFC 4287 section 4.1.2). Readers use the first one.
const ONCE: [&str; 8] = [
    "content",
    "id",
    "published",
    "rights",
    "source",
    "summary",
    "title",
    "updated",
];

/// Returns the XML of the entry for the file, with the id `id`.
pub(super) fn embeddable(entry: &Entry, id: &str, time: Timestamp) -> String {
    let usable = check(&entry.xml, Form::Element)
        .ok()
        .and_then(|()| outline(&entry.xml).ok())
        .filter(|element| {
            let own = element.child(ATOM_NS, "id").map(|c| c.text.trim());
            element.namespace == ATOM_NS
                && element.local == "entry"
                // An entry without an id of its own gets one below. With any id but the update's,
                // readers of the file would see a different entry.
                && own.is_none_or(|own| own == id)
        })
        .map(|element| repaired(&entry.xml, element, entry, time));
    let whole = usable.or_else(|| {
        let xml = made(entry, id, entry.updated);
        let element = outline(&xml).ok()?;
        Some((xml, element))
    });
    match whole {
        Some((xml, element)) => completed(xml, &element, entry, id, time),
        // Our own output is always XML; a bug there must not damage the file.
        None => String::new(),
    }
}

/// Returns the entry without duplicate elements and without invalid dates.
fn repaired(xml: &str, element: Element, entry: &Entry, time: Timestamp) -> (String, Element) {
    let prefix = prefix(xml, &element);
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for child in element.children.iter().filter(|c| c.namespace == ATOM_NS) {
        let Some(name) = ONCE.iter().find(|name| **name == child.local) else {
            continue;
        };
        if seen.contains(name) {
            edits.push((child.range.clone(), String::new()));
            continue;
        }
        seen.push(name);
        let date = match *name {
            "updated" => Some(entry.updated.unwrap_or(time)),
            "published" => entry.published,
            _ => continue,
        };
        if !is_date(&child.text) {
            let mut right = String::new();
            let own = child.text.trim().parse().ok();
            if let Some(date) = own.or(date) {
                synthesise::element(&mut right, &format!("{prefix}{name}"), &date.to_string());
            }
            edits.push((child.range.clone(), right));
        }
    }
    if edits.is_empty() {
        return (xml.to_owned(), element);
    }
    let mut out = String::with_capacity(xml.len() + 64);
    let mut from = 0;
    for (range, text) in edits {
        out.push_str(xml.get(from..range.start).unwrap_or(""));
        out.push_str(&text);
        from = range.end;
    }
    out.push_str(xml.get(from..).unwrap_or(""));
    match outline(&out) {
        Ok(element) => (out, element),
        Err(_) => (xml.to_owned(), element),
    }
}

/// Whether the text is a date by RFC 4287 section 3.3: RFC 3339 in capitals, with a zone.
fn is_date(text: &str) -> bool {
    let text = text.trim();
    let form = text.bytes().enumerate().all(|(n, b)| match n {
        4 | 7 => b == b'-',
        10 => b == b'T',
        13 | 16 => b == b':',
        0..19 => b.is_ascii_digit(),
        _ => b.is_ascii(),
    });
    form && text.get(19..).is_some_and(ends_as_a_date) && text.parse::<Timestamp>().is_ok()
}

/// Whether the text may follow the seconds of a date: a fraction, and `Z` or an offset with its
/// colon. The parser also accepts offsets like `+0000`, which readers need not.
fn ends_as_a_date(rest: &str) -> bool {
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if zone.len() == fraction.len() {
                return false;
            }
            zone
        }
        None => rest,
    };
    match zone.as_bytes() {
        [b'Z'] => true,
        [b'+' | b'-', offset @ ..] => match offset {
            [h, hh, b':', m, mm] => [h, hh, m, mm].iter().all(|b| b.is_ascii_digit()),
            _ => false,
        },
        _ => false,
    }
}

/// Returns the entry with the elements that RFC 4287 section 4.1.2 requires and the original lacks,
/// inserted before the end tag.
fn completed(
    mut xml: String,
    element: &Element,
    entry: &Entry,
    id: &str,
    time: Timestamp,
) -> String {
    let has = |local: &str| element.child(ATOM_NS, local).is_some();
    let prefix = prefix(&xml, element);
    let mut missing = String::new();
    let mut need = |local: &str, text: &str| {
        if !has(local) {
            synthesise::element(&mut missing, &format!("{prefix}{local}"), text);
        }
    };
    need("id", id);
    need("title", entry.title.as_deref().unwrap_or(""));
    need("updated", &format!("{time:.3}"));
    let page = element
        .children
        .iter()
        .any(|c| c.is(ATOM_NS, "link") && c.attribute("rel").is_none_or(|rel| rel == "alternate"));
    if !page {
        need("content", "");
    }
    // The authors of the entry's feed, which are not those of this file.
    if !has("author") && !has("source") {
        for author in &entry.authors {
            synthesise::author(&mut missing, &prefix, author);
        }
    }
    if !missing.is_empty() {
        match element.content_end {
            Some(end) => xml.insert_str(end, &missing),
            // `<entry/>`: nothing worth keeping. An entry written from the fields is complete with
            // the id.
            None => xml = made(entry, id, entry.updated.or(Some(time))),
        }
    }
    xml
}

/// Returns the prefix of the entry's own name, with its colon.
fn prefix(xml: &str, element: &Element) -> String {
    xml.get(1..1 + element.name_len)
        .and_then(|name| name.strip_suffix("entry"))
        .unwrap_or("")
        .to_owned()
}

fn made(entry: &Entry, id: &str, updated: Option<Timestamp>) -> String {
    let kept = outline(&entry.xml).map(|element| extensions(&entry.xml, &element));
    let entry = Entry {
        id: id.to_owned(),
        updated,
        xml: String::new(),
        ..entry.clone()
    };
    synthesise::entry(&entry, &kept.unwrap_or_default())
}
