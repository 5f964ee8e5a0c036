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
            code.and_then(char::from_u32).map(String::from)
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

fn named(name: &str) -> Option<&'static str> {
    Some(match name {
        "nbsp" => "\u{a0}",
        "ndash" => "–",
        "mdash" => "—",
        "hellip" => "…",
        "lsquo" => "‘",
        "rsquo" => "’",
        "ldquo" => "“",
        "rdquo" => "”",
        "laquo" => "«",
        "raquo" => "»",
        "bull" => "•",
        "copy" => "©",
        "reg" => "®",
        "trade" => "™",
        "euro" => "€",
        other => return resolve_predefined_entity(other),
    })
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
