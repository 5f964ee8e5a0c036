//! XML as text: cutting entries out of a document without changing a byte, checking that what is
//! put into another document is well-formed, and writing an entry from its fields.
//!
//! The parser library is lenient in places (and must be, for real feeds), so what is embedded
//! elsewhere goes through the strict [`check`].

pub(crate) mod check;
#[cfg(test)]
mod differential;
pub(crate) mod element;
pub(crate) mod extensions;
pub(crate) mod markup;
mod nesting;
pub(crate) mod repair;
pub(crate) mod scope;
pub(crate) mod split;
pub(crate) mod synthesise;

use std::borrow::Cow;

/// The Atom namespace (RFC 4287 section 1.2).
pub(crate) const ATOM_NS: &str = "http://www.w3.org/2005/Atom";

/// The namespace of Atom 0.3, the draft of 2003 that many blogs published for years.
pub(crate) const ATOM_03_NS: &str = "http://purl.org/atom/ns#";

/// How deep elements may nest inside an entry. Real content stays below 40; without a limit, a
/// hostile feed could exhaust whatever recurses over it later.
pub(crate) const MAX_DEPTH: usize = 128;

/// How many attributes one element may have; checking them for duplicates is quadratic.
pub(crate) const MAX_ATTRIBUTES: usize = 256;

/// Whether XML 1.0 allows the character at all (production 2, `Char`).
pub(crate) fn is_xml_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// The text without the characters that no XML document can hold, not even as references.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_xml_char) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.chars().filter(|c| is_xml_char(*c)).collect())
    }
}

/// The name in small letters: some feeds write capitals.
pub(crate) fn lower(name: &str) -> Cow<'_, str> {
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// The text with every `<` escaped that begins no markup: `1 < 2` in a feed that escapes nothing.
pub(crate) fn mend(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut kept = 0;
    let mut from = 0;
    // Ends of sections that are not there any more: looking for them again and again would take
    // for ever in a document that only begins sections.
    let mut missing: Vec<&str> = Vec::new();
    while let Some(found) = text.get(from..).and_then(|rest| rest.find('<')) {
        let at = from + found;
        let rest = text.get(at..).unwrap_or("");
        let section = if rest.starts_with("<![CDATA[") {
            Some("]]>")
        } else if rest.starts_with("<!--") {
            Some("-->")
        } else {
            None
        };
        from = at + 1;
        if let Some(end) = section.filter(|end| !missing.contains(end)) {
            match rest.find(end) {
                Some(len) => from = at + len + end.len(),
                None => missing.push(end),
            }
        }
        let begins = |c: char| c.is_alphabetic() || matches!(c, '_' | ':' | '/' | '!' | '?');
        if !rest.chars().nth(1).is_some_and(begins) {
            out.push_str(text.get(kept..at).unwrap_or(""));
            out.push_str("&lt;");
            kept = at + 1;
        }
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(kept..).unwrap_or(""));
    Cow::Owned(out)
}

/// Appends `text` escaped for element content.
pub(crate) fn push_text(out: &mut String, text: &str) {
    for c in text.chars().filter(|c| is_xml_char(*c)) {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // A bare carriage return would be read back as a line feed.
            '\r' => out.push_str("&#13;"),
            c => out.push(c),
        }
    }
}

/// Appends `value` escaped for an attribute in double quotes.
pub(crate) fn push_attribute(out: &mut String, value: &str) {
    for c in value.chars().filter(|c| is_xml_char(*c)) {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' => out.push_str("&#9;"),
            '\n' => out.push_str("&#10;"),
            '\r' => out.push_str("&#13;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mend;

    #[test]
    fn a_sign_that_begins_nothing_is_text() {
        for (text, expected) in [
            ("<a>1 < 2 <3 <</a>", "<a>1 &lt; 2 &lt;3 &lt;</a>"),
            (
                "<a><![CDATA[1 < 2]]><!-- < --> <",
                "<a><![CDATA[1 < 2]]><!-- < --> &lt;",
            ),
            ("<é/><!x><?x?>", "<é/><!x><?x?>"),
            ("", ""),
        ] {
            assert_eq!(mend(text), expected);
        }
    }
}
