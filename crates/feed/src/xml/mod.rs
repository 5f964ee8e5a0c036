//! XML as text: cutting entries out of a document without changing a byte, checking that text for
//! another document is well-formed, and writing an entry from its fields.
//!
//! The parser library is lenient in places (and must be, for real feeds), so embedded text passes
//! the strict [`check`].

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
pub(crate) mod token;

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memmem};

/// The Atom namespace (RFC 4287 section 1.2).
pub(crate) const ATOM_NS: &str = "http://www.w3.org/2005/Atom";

/// The namespace of Atom 0.3, the draft of 2003 that many blogs published for years.
pub(crate) const ATOM_03_NS: &str = "http://purl.org/atom/ns#";

/// Largest depth of nested elements inside an entry. Real content stays below 40; without a limit,
/// a hostile feed could exhaust any later recursion.
pub(crate) const MAX_DEPTH: usize = 128;

/// Largest number of attributes of one element; checking them for duplicates is quadratic.
pub(crate) const MAX_ATTRIBUTES: usize = 256;

/// Whether XML 1.0 allows the character at all (production 2, `Char`).
pub(crate) fn is_xml_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// Whether XML 1.0 allows all characters of the text.
pub(crate) fn is_clean(text: &str) -> bool {
    let bytes = text.as_bytes();
    // No early end within a piece, so that many bytes are compared at once.
    let controls = bytes.chunks(256).any(|piece| {
        piece.iter().fold(false, |found, byte| {
            found | (*byte < b' ') & (*byte != b'\t') & (*byte != b'\n') & (*byte != b'\r')
        })
    });
    // U+FFFE and U+FFFF; surrogates are in no text.
    let is_noncharacter =
        |at: usize| matches!(bytes.get(at + 1..at + 3), Some([0xbf, 0xbe | 0xbf]));
    !controls && !memchr_iter(0xef, bytes).any(is_noncharacter)
}

/// Returns the text without the characters that no XML document can hold, not even as references.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if is_clean(text) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.chars().filter(|c| is_xml_char(*c)).collect())
    }
}

/// Returns the name in lower case: some feeds write capitals.
pub(crate) fn lower(name: &str) -> Cow<'_, str> {
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// Escapes every `<` that begins no markup: `1 < 2` in a feed that escapes nothing.
pub(crate) fn escape_stray_brackets(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut kept = 0;
    let mut from = 0;
    // Ends of sections that do not occur any more: repeated searches would take for ever in a
    // document that only begins sections.
    let mut missing: Vec<&str> = Vec::new();
    while let Some(found) = memchr(b'<', text.as_bytes().get(from..).unwrap_or_default()) {
        let at = from + found;
        let rest = text.get(at..).unwrap_or("");
        from = at + 1;
        if rest
            .as_bytes()
            .get(1)
            .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'/')
        {
            continue;
        }
        let section = if rest.starts_with("<![CDATA[") {
            Some("]]>")
        } else if rest.starts_with("<!--") {
            Some("-->")
        } else {
            None
        };
        if let Some(end) = section.filter(|end| !missing.contains(end)) {
            match memmem::find(rest.as_bytes(), end.as_bytes()) {
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
    push_escaped(out, text, |byte| match byte {
        b'&' => Some("&amp;"),
        b'<' => Some("&lt;"),
        b'>' => Some("&gt;"),
        // A bare carriage return would be read back as a line feed.
        b'\r' => Some("&#13;"),
        _ => None,
    });
}

/// Appends `value` escaped for an attribute in double quotes.
pub(crate) fn push_attribute(out: &mut String, value: &str) {
    push_escaped(out, value, |byte| match byte {
        b'&' => Some("&amp;"),
        b'<' => Some("&lt;"),
        b'>' => Some("&gt;"),
        b'"' => Some("&quot;"),
        b'\t' => Some("&#9;"),
        b'\n' => Some("&#10;"),
        b'\r' => Some("&#13;"),
        _ => None,
    });
}

/// Appends the characters of `text` that XML can hold, with some ASCII characters replaced.
fn push_escaped(out: &mut String, text: &str, replaced: impl Fn(u8) -> Option<&'static str>) {
    let text = clean(text);
    let mut kept = 0;
    for (at, byte) in text.bytes().enumerate() {
        if let Some(with) = replaced(byte) {
            out.push_str(text.get(kept..at).unwrap_or(""));
            out.push_str(with);
            kept = at + 1;
        }
    }
    out.push_str(text.get(kept..).unwrap_or(""));
}

#[cfg(test)]
mod tests {
    use super::{clean, escape_stray_brackets, is_clean, is_xml_char};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clean_text_has_no_forbidden_character(
            text in "(.|[\u{0}-\u{20}\u{fff0}-\u{ffff}\u{1fffe}-\u{20000}\n]){0,40}"
        ) {
            prop_assert_eq!(is_clean(&text), text.chars().all(is_xml_char));
            prop_assert!(clean(&text).chars().all(is_xml_char));
        }
    }

    #[test]
    fn stray_angle_brackets_are_text() {
        for (text, expected) in [
            ("<a>1 < 2 <3 <</a>", "<a>1 &lt; 2 &lt;3 &lt;</a>"),
            (
                "<a><![CDATA[1 < 2]]><!-- < --> <",
                "<a><![CDATA[1 < 2]]><!-- < --> &lt;",
            ),
            ("<é/><!x><?x?>", "<é/><!x><?x?>"),
            ("", ""),
        ] {
            assert_eq!(escape_stray_brackets(text), expected);
        }
    }
}
