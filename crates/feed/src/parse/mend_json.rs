//! Making JSON of what programs write that put it together themselves: control characters in
//! strings, halves of surrogate pairs, and documents that were cut off.

/// A document, mended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mended {
    pub text: String,
    /// Its end was missing: what was in the middle of being written is gone.
    pub cut: bool,
}

/// Mends a document as far as possible; the result may still be no JSON.
///
/// A document that is cut off ends after the last whole item of the array in the outermost object
/// that it was in.
pub(super) fn mend(document: &str) -> Mended {
    let mut out = String::with_capacity(document.len() + 16);
    // The brackets that are open. A hostile document has many; serde_json refuses 128.
    let mut open: Vec<char> = Vec::new();
    // How much of `out` ends with a whole item.
    let mut whole = None;
    let mut string = false;
    let mut rest = document.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => {
                string = !string;
                out.push(c);
            }
            '\\' if string => escape(&mut rest, &mut out),
            c if string && c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c if string => out.push(c),
            '{' | '[' => {
                open.push(c);
                out.push(c);
            }
            '}' | ']' => {
                open.pop();
                out.push(c);
                if open == ['{', '['] {
                    whole = Some(out.len());
                }
            }
            // A comma before the end of a list.
            ',' if rest.as_str().trim_start().starts_with(['}', ']']) => {}
            c => out.push(c),
        }
        if open.len() > 256 {
            break;
        }
    }
    let cut = string || !open.is_empty();
    if cut && let Some(whole) = whole {
        out.truncate(whole);
        out.push_str("]}");
    }
    Mended { text: out, cut }
}

/// What follows a backslash.
fn escape(rest: &mut std::str::Chars, out: &mut String) {
    let Some(c) = rest.next() else {
        return;
    };
    if c != 'u' {
        // An escape that JSON does not know is the character.
        if !matches!(c, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') {
            out.push_str(if c < ' ' { " " } else { "" });
            out.extend(Some(c).filter(|c| *c >= ' '));
            return;
        }
        out.push('\\');
        out.push(c);
        return;
    }
    let unit = |rest: &std::str::Chars| {
        let digits = rest.as_str().get(..4)?;
        let good = digits.bytes().all(|b| b.is_ascii_hexdigit());
        u16::from_str_radix(digits, 16).ok().filter(|_| good)
    };
    let Some(first) = unit(rest) else {
        out.push('\u{fffd}');
        return;
    };
    skip(rest, 4);
    if !(0xd800..0xe000).contains(&first) {
        out.push_str(&format!("\\u{first:04x}"));
        return;
    }
    let mut ahead = rest.clone();
    let second = (ahead.next() == Some('\\') && ahead.next() == Some('u'))
        .then(|| unit(&ahead))
        .flatten();
    match second {
        Some(second) if first < 0xdc00 && (0xdc00..0xe000).contains(&second) => {
            out.push_str(&format!("\\u{first:04x}\\u{second:04x}"));
            skip(rest, 6);
        }
        // Half a character is none.
        _ => out.push('\u{fffd}'),
    }
}

fn skip(rest: &mut std::str::Chars, count: usize) {
    for _ in 0..count {
        rest.next();
    }
}

#[cfg(test)]
mod tests {
    use super::mend;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn strings_are_mended() {
        for (json, expected) in [
            (r#"["\ud83d\ude00"]"#, "😀"),
            (r#"["a\ud83d b"]"#, "a\u{fffd} b"),
            (r#"["\ude00\ud83d\ude00"]"#, "\u{fffd}😀"),
            (r#"["\ud83dA"]"#, "\u{fffd}A"),
            (r#"["\u12"]"#, "\u{fffd}12"),
            ("[\"a\u{1}\n\"]", "a\u{1}\n"),
            (r#"["\x41\'"]"#, "x41'"),
            (r#"["\"\\\/\n",]"#, "\"\\/\n"),
        ] {
            let mended = mend(json);
            let read: Result<Value, _> = serde_json::from_str(&mended.text);
            let text = read.as_ref().ok().and_then(|v| v[0].as_str());
            assert_eq!(text, Some(expected), "{json}: {mended:?}");
            assert!(!mended.cut);
        }
    }

    #[test]
    fn a_cut_document_ends_after_its_last_whole_item() {
        let whole = r#"{"a":[{"x":1}],"items":[{"n":[1]},{"n":2},{"n":"3"}],"b":{}}"#;
        for at in 0..whole.len() {
            let mended = mend(&whole[..at]);
            assert!(mended.cut || at == 0);
            let Ok(read) = serde_json::from_str::<Value>(&mended.text) else {
                assert!(at < 13, "{at}: {mended:?}");
                continue;
            };
            let items = read["items"].as_array().map_or(0, Vec::len);
            let ends = [33, 41, 51];
            assert_eq!(items, ends.iter().filter(|end| at >= **end).count(), "{at}");
        }
    }

    proptest! {
        /// What is JSON stays the same value.
        #[test]
        fn json_stays_json(text in "(?s).{0,30}", n in any::<i32>()) {
            let value = serde_json::json!({"a": [text, {"b": n}], "c": null});
            let mended = mend(&value.to_string());
            prop_assert!(!mended.cut);
            prop_assert_eq!(serde_json::from_str::<Value>(&mended.text).ok(), Some(value));
        }

        #[test]
        fn any_soup_is_answered(text in "(\\PC|[\\[\\]{}\",:\\\\u0-9a-f\u{1}]|\\\\ud83d){0,40}") {
            let _ = serde_json::from_str::<Value>(&mend(&text).text);
        }
    }
}
