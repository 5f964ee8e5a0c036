//! Plain text of an HTML fragment, for titles and summaries, which are text in JSON Feed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

pub(crate) mod links;
pub(crate) mod tag;

/// Longest entity name that is looked up; a longer run after `&` is ordinary text.
const MAX_ENTITY: usize = 32;

/// Longest name that needs no `;`.
const MAX_UNTERMINATED: usize = 6;

/// Removes tags and comments, resolves character references, and folds white space. This is not a
/// sanitiser: the result is text and must be escaped again wherever it is put into a page.
pub(crate) fn plain_text(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    let mut quotes = true;
    while let Some(at) = rest.find(['<', '&']) {
        let (before, special) = rest.split_at(at);
        text.push_str(before);
        rest = if special.starts_with('<') {
            skip_markup(special, &mut quotes, &mut text)
        } else {
            resolve(special, &mut text)
        };
    }
    text.push_str(rest);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Skips a tag or comment. A `<` that begins neither is kept as text.
///
/// A tag whose quotes do not end is taken to end at its first angle bracket, and so are all after
/// it (`quotes`): searching to the document's end once is enough.
fn skip_markup<'a>(special: &'a str, quotes: &mut bool, text: &mut String) -> &'a str {
    let after = &special[1..];
    let end = if after.starts_with("!--") {
        special.find("-->").map(|at| at + 3)
    } else if after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') {
        let end = Some(special).filter(|_| *quotes).and_then(tag::end);
        *quotes = end.is_some();
        end.or_else(|| special.find('>').map(|at| at + 1))
    } else if after.starts_with(['!', '?']) {
        special.find('>').map(|at| at + 1)
    } else {
        text.push('<');
        return after;
    };
    match end {
        Some(end) => {
            // Block and line-break tags separate words; for the others a space does little harm
            // only if there was one already, so only these are examined.
            let name: String = after
                .trim_start_matches('/')
                .chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect();
            if matches!(
                name.to_ascii_lowercase().as_str(),
                "br" | "p" | "div" | "li" | "tr" | "td" | "h1" | "h2" | "h3" | "h4" | "pre"
            ) {
                text.push(' ');
            }
            special.get(end..).unwrap_or("")
        }
        None => "",
    }
}

/// Resolves one reference at the start of `special` by the rules of HTML (section 13.2.5.72 of the
/// standard), or keeps the `&`. Returns the rest.
fn resolve<'a>(special: &'a str, text: &mut String) -> &'a str {
    let after = &special[1..];
    if let Some(number) = after.strip_prefix('#') {
        let hex = number.starts_with(['x', 'X']);
        let digits = if hex { &number[1..] } else { number };
        let radix = if hex { 16 } else { 10 };
        let end = digits
            .find(|c: char| !c.is_digit(radix))
            .unwrap_or(digits.len());
        let (digits, rest) = digits.split_at(end);
        if !digits.is_empty() {
            text.push(numbered(digits, radix));
            return rest.strip_prefix(';').unwrap_or(rest);
        }
    } else {
        let end = after
            .bytes()
            .take(MAX_ENTITY)
            .position(|b| !b.is_ascii_alphanumeric())
            .unwrap_or(after.len().min(MAX_ENTITY));
        // The whole name with its `;`, then ever shorter names that need none.
        let shorter = (2..=end.min(MAX_UNTERMINATED)).rev();
        let found = std::iter::once(end + 1)
            .chain(shorter)
            .find_map(|len| Some((named(after.get(..len)?)?, len)));
        if let Some((known, len)) = found {
            text.push_str(known);
            return after.get(len..).unwrap_or("");
        }
    }
    text.push('&');
    after
}

/// Resolves the references in a text without markup, such as the value of an attribute.
pub(crate) fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('&') {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = rest.find('&') {
        let (before, special) = rest.split_at(at);
        text.push_str(before);
        rest = resolve(special, &mut text);
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Returns the text of a reference, without its `&` and `;`; `None` for a name that HTML does not
/// define.
pub(crate) fn reference(name: &str) -> Option<Cow<'static, str>> {
    let Some(number) = name.strip_prefix('#') else {
        return named(&format!("{name};")).map(Cow::Borrowed);
    };
    let (digits, radix) = match number.strip_prefix(['x', 'X']) {
        Some(hex) => (hex, 16),
        None => (number, 10),
    };
    let good = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    good.then(|| String::from(numbered(digits, radix)).into())
}

/// The named character references of HTML (section 13.5 of the standard) with their texts. A name
/// ends in `;` where that must not be left out.
static NAMED: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let character = |code| char::from_u32(u32::from_str_radix(code, 16).ok()?);
    let rows = include_str!("html/entities.txt").lines();
    let row = |line: &'static str| {
        let (name, codes) = line.split_once(' ')?;
        Some((name, codes.split(' ').filter_map(character).collect()))
    };
    rows.filter_map(row).collect()
});

/// Returns the text of a named reference.
fn named(name: &str) -> Option<&'static str> {
    // These are nearly all references in feeds, escaped once or twice.
    match name {
        "lt;" => Some("<"),
        "gt;" => Some(">"),
        "amp;" => Some("&"),
        "quot;" => Some("\""),
        "nbsp;" => Some("\u{a0}"),
        _ => NAMED.get(name).map(String::as_str),
    }
}

/// Returns the character of a numeric reference: U+FFFD if HTML defines none.
fn numbered(digits: &str, radix: u32) -> char {
    u32::from_str_radix(digits, radix)
        .ok()
        .filter(|code| *code != 0)
        .and_then(char::from_u32)
        .map_or('\u{fffd}', meant)
}

/// Returns the character that a numeric reference means: U+0080 to U+009F are control characters
/// without use, and mean windows-1252 (HTML, "numeric character reference end state").
fn meant(c: char) -> char {
    match u8::try_from(u32::from(c)) {
        Ok(byte @ 0x80..=0x9f) => {
            let one = [byte];
            let text = encoding_rs::WINDOWS_1252
                .decode_without_bom_handling(&one)
                .0;
            text.chars().next().unwrap_or(c)
        }
        _ => c,
    }
}

/// Formatting elements in HTML titles.
const INLINE: [&str; 20] = [
    "a", "abbr", "b", "big", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "s",
    "small", "span", "strong", "sub", "sup", "u",
];

/// Returns the plain text of a title that may be text or HTML; RSS does not specify which.
/// References are resolved; formatting elements that are opened and closed are removed, anything
/// else between angle brackets is part of the text ("Using `<template>`").
pub(crate) fn text_or_html(text: &str) -> String {
    if !text.contains('<') {
        return plain_text(text);
    }
    let lower = text.to_ascii_lowercase();
    let formatted = |name: &&str| {
        let end = format!("</{name}>");
        let begin = [format!("<{name}>"), format!("<{name} ")];
        lower.contains(&end) && begin.iter().any(|b| lower.contains(b))
    };
    if INLINE.iter().any(formatted) || lower.contains("<br") {
        return plain_text(text);
    }
    // Angle brackets stay.
    plain_text(&text.replace('<', "&lt;"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::collections::BTreeMap;
    use std::process::Command;

    use super::{MAX_ENTITY, MAX_UNTERMINATED, NAMED, plain_text};
    use proptest::prelude::*;

    #[test]
    fn tags_go_and_references_are_resolved() {
        assert_eq!(
            plain_text("<p>a &lt;b&gt; &amp;amp; <b>c</b></p>\n<p>d&#233;&#x41;&nbsp;e</p>"),
            "a <b> &amp; c déA e"
        );
        assert_eq!(plain_text("x<!-- <b>no</b> -->y<br/>z"), "xy z");
    }

    #[test]
    fn the_names_are_those_of_html() {
        assert_eq!(NAMED.len(), 2231);
        let longest = |unterminated: bool| {
            let names = NAMED.keys().filter(|n| n.ends_with(';') != unterminated);
            names.map(|name| name.trim_end_matches(';').len()).max()
        };
        assert!(longest(false) < Some(MAX_ENTITY));
        assert_eq!(longest(true), Some(MAX_UNTERMINATED));
        // An independent table.
        let script = "import html.entities, json; print(json.dumps(html.entities.html5))";
        let Ok(output) = Command::new("python3").args(["-c", script]).output() else {
            eprintln!("SKIPPED: no python3 to compare with");
            return;
        };
        let table: BTreeMap<String, String> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(table.len(), NAMED.len());
        for (name, text) in &table {
            assert_eq!(plain(&format!("&{name}")), *text, "{name}");
        }
    }

    fn plain(text: &str) -> String {
        super::unescaped(text).into_owned()
    }

    #[test]
    fn text_that_is_not_markup_stays() {
        assert_eq!(plain_text("1 < 2 & 3 &unknown; &"), "1 < 2 & 3 &unknown; &");
        assert_eq!(plain_text("cut <b off"), "cut");
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in "[<>&;#!/a-z\\-é ='\"0-9]{0,60}") {
            plain_text(&text);
            super::text_or_html(&text);
        }
    }
}
