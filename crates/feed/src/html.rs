//! The plain text of an HTML fragment, for titles and summaries, which JSON Feed wants as text.

use quick_xml::escape::resolve_predefined_entity;

/// The longest entity name that is looked up; a longer run after `&` is ordinary text.
const MAX_ENTITY: usize = 32;

/// Removes tags and comments, resolves character references and the commonest named ones, and
/// folds white space. This is not a sanitiser: its result is text and must be escaped again
/// wherever it is put into a page.
pub(crate) fn plain_text(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find(['<', '&']) {
        let (before, special) = rest.split_at(at);
        text.push_str(before);
        rest = if special.starts_with('<') {
            skip_markup(special, &mut text)
        } else {
            resolve(special, &mut text)
        };
    }
    text.push_str(rest);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Skips a tag or comment. A `<` that begins neither is kept as text.
fn skip_markup<'a>(special: &'a str, text: &mut String) -> &'a str {
    let after = &special[1..];
    let (end, len) = if after.starts_with("!--") {
        (special.find("-->"), 3)
    } else if after.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?')) {
        (special.find('>'), 1)
    } else {
        text.push('<');
        return after;
    };
    match end {
        Some(at) => {
            // Block and line-break tags separate words; for the others a space does little harm
            // only where there was one already, so only these are looked at.
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
            &special[at + len..]
        }
        None => "",
    }
}

/// Resolves one reference at the start of `special`, or keeps the `&`.
fn resolve<'a>(special: &'a str, text: &mut String) -> &'a str {
    let after = &special[1..];
    if let Some(end) = after.bytes().take(MAX_ENTITY).position(|b| b == b';') {
        let name = &after[..end];
        let resolved = if let Some(number) = name.strip_prefix('#') {
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => number.parse().ok(),
            };
            code.and_then(char::from_u32)
                .map(|c| String::from(meant(c)))
        } else {
            named(name).map(str::to_owned)
        };
        if let Some(resolved) = resolved {
            text.push_str(&resolved);
            return &after[end + 1..];
        }
    }
    text.push('&');
    after
}

/// The names of U+00A0 to U+00FF, in order.
const LATIN_1: &str = "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr \
    deg plusmn sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest \
    Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml \
    ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig \
    agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml \
    eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";

/// U+00A0 to U+00FF, to borrow from.
const LATIN_1_CHARACTERS: &str = "\u{a0}¡¢£¤¥¦§¨©ª«¬\u{ad}®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞß\
    àáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ";

/// The text of a named reference: the five of XML, those of Latin-1 and the commonest others of
/// HTML.
pub(crate) fn named(name: &str) -> Option<&'static str> {
    Some(match name {
        "ndash" => "–",
        "mdash" => "—",
        "hellip" => "…",
        "lsquo" => "‘",
        "rsquo" => "’",
        "sbquo" => "‚",
        "ldquo" => "“",
        "rdquo" => "”",
        "bdquo" => "„",
        "lsaquo" => "‹",
        "rsaquo" => "›",
        "bull" => "•",
        "dagger" => "†",
        "trade" => "™",
        "euro" => "€",
        "prime" => "′",
        "larr" => "←",
        "rarr" => "→",
        "hearts" => "♥",
        "thinsp" => "\u{2009}",
        "ensp" => "\u{2002}",
        "emsp" => "\u{2003}",
        "zwnj" => "\u{200c}",
        "zwj" => "\u{200d}",
        "OElig" => "Œ",
        "oelig" => "œ",
        "Scaron" => "Š",
        "scaron" => "š",
        "infin" => "∞",
        "ne" => "≠",
        "le" => "≤",
        "ge" => "≥",
        other => {
            if let Some(known) = resolve_predefined_entity(other) {
                return Some(known);
            }
            let at = LATIN_1.split_ascii_whitespace().position(|n| n == other)?;
            // Each of these takes two bytes.
            return LATIN_1_CHARACTERS.get(2 * at..2 * at + 2);
        }
    })
}

/// The character that a numeric reference means: U+0080 to U+009F are control characters that
/// nobody writes, and stand for windows-1252 (HTML, "numeric character reference end state").
pub(crate) fn meant(c: char) -> char {
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

/// Formatting that titles have where they are HTML.
const INLINE: [&str; 20] = [
    "a", "abbr", "b", "big", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "s",
    "small", "span", "strong", "sub", "sup", "u",
];

/// The plain text of a title that may be text or HTML; RSS does not say. References are resolved;
/// formatting that is opened and closed goes, anything else between angle brackets is what the
/// title is about ("Using `<template>`").
pub(crate) fn text_or_html(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let formatted = |name: &&str| {
        let end = format!("</{name}>");
        let begin = [format!("<{name}>"), format!("<{name} ")];
        lower.contains(&end) && begin.iter().any(|b| lower.contains(b))
    };
    if lower.contains('<') && INLINE.iter().any(formatted) || lower.contains("<br") {
        return plain_text(text);
    }
    // Angle brackets stay.
    plain_text(&text.replace('<', "&lt;"))
}

#[cfg(test)]
mod tests {
    use super::plain_text;
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
    fn what_is_not_markup_stays() {
        assert_eq!(plain_text("1 < 2 & 3 &unknown; &"), "1 < 2 & 3 &unknown; &");
        assert_eq!(plain_text("cut <b off"), "cut");
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "[<>&;#!/a-z\\-é ]{0,60}") {
            plain_text(&text);
        }
    }
}
