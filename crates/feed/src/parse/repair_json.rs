//! Repair of JSON from programs that assemble it as text: control characters in strings, halves of
//! surrogate pairs, and truncated documents.

/// Repaired document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RepairedJson {
    pub text: String,
    /// Whether the end was missing: the incomplete item is dropped.
    pub cut: bool,
}

/// Repairs a document as far as possible; the result may still be no JSON.
///
/// A truncated document ends after the last whole item of the array in the outermost object.
pub(super) fn repair_json(document: &str) -> RepairedJson {
    let mut out = String::with_capacity(document.len() + 16);
    // The open brackets. A hostile document has many; serde_json refuses 128.
    let mut open: Vec<char> = Vec::new();
    // Length of `out` up to the last whole item.
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
    RepairedJson { text: out, cut }
}

/// Copies the escape that follows a backslash.
fn escape(rest: &mut std::str::Chars, out: &mut String) {
    let Some(c) = rest.next() else {
        return;
    };
    if c != 'u' {
        // An escape that JSON does not define is the character.
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
        // Half a surrogate pair is no character.
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
    use super::repair_json;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn strings_are_repaired() {
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
            let repaired = repair_json(json);
            let read: Result<Value, _> = serde_json::from_str(&repaired.text);
            let text = read.as_ref().ok().and_then(|v| v[0].as_str());
            assert_eq!(text, Some(expected), "{json}: {repaired:?}");
            assert!(!repaired.cut);
        }
    }

    #[test]
    fn a_cut_document_ends_after_its_last_whole_item() {
        let whole = r#"{"a":[{"x":1}],"items":[{"n":[1]},{"n":2},{"n":"3"}],"b":{}}"#;
        for at in 0..whole.len() {
            let repaired = repair_json(&whole[..at]);
            assert!(repaired.cut || at == 0);
            let Ok(read) = serde_json::from_str::<Value>(&repaired.text) else {
                assert!(at < 13, "{at}: {repaired:?}");
                continue;
            };
            let items = read["items"].as_array().map_or(0, Vec::len);
            let ends = [33, 41, 51];
            assert_eq!(items, ends.iter().filter(|end| at >= **end).count(), "{at}");
        }
    }

    proptest! {
        /// Valid JSON keeps its value.
        #[test]
        fn json_stays_json(text in "(?s).{0,30}", n in any::<i32>()) {
            let value = serde_json::json!({"a": [text, {"b": n}], "c": null});
            let repaired = repair_json(&value.to_string());
            prop_assert!(!repaired.cut);
            prop_assert_eq!(serde_json::from_str::<Value>(&repaired.text).ok(), Some(value));
        }

        #[test]
        fn random_markup_gives_a_result(
            text in "(\\PC|[\\[\\]{}\",:\\\\u0-9a-f\u{1}]|\\\\ud83d){0,40}",
        ) {
            let _ = serde_json::from_str::<Value>(&repair_json(&text).text);
        }
    }
}
