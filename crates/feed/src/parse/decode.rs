//! From bytes to text, in the encoding that the document declares.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Where an XML declaration must be, if there is one.
const DECLARATION: usize = 256;

/// Decodes a document: by its byte-order mark, else its XML declaration (XML 1.0 appendix F), else
/// as UTF-8, else as windows-1252, which takes every byte. Bytes that do not fit the encoding
/// become U+FFFD: one bad byte must not cost a whole feed.
pub(crate) fn decode(document: &[u8]) -> Cow<'_, str> {
    if let Some(text) = utf_32(document) {
        return Cow::Owned(text);
    }
    if let Some((encoding, mark)) = Encoding::for_bom(document) {
        let body = document.get(mark..).unwrap_or_default();
        return encoding.decode_without_bom_handling(body).0;
    }
    let encoding = match document {
        [0, b'<', 0, ..] => UTF_16BE,
        [b'<', 0, _, 0, ..] => UTF_16LE,
        _ => match std::str::from_utf8(document) {
            // Also when the declaration says otherwise, unless that changes the meaning of valid
            // UTF-8: single-byte encodings declared by mistake are common, valid UTF-8 by chance
            // is not.
            Ok(text) if text.is_ascii() && declared(document).is_none_or(ascii_based) => {
                return Cow::Borrowed(text);
            }
            Ok(text) if declared(document).is_none_or(single_byte_western) => {
                return Cow::Borrowed(text);
            }
            _ => declared(document)
                .filter(|e| *e != UTF_8)
                .unwrap_or(if likely_utf8(document) {
                    UTF_8
                } else {
                    WINDOWS_1252
                }),
        },
    };
    encoding.decode_without_bom_handling(document).0
}

/// UTF-32, which the web has given up, by its mark or by a document's first character.
fn utf_32(document: &[u8]) -> Option<String> {
    let unit: fn([u8; 4]) -> u32 = match document {
        [0xff, 0xfe, 0, 0, ..] | [b'<' | b'{', 0, 0, 0, ..] => u32::from_le_bytes,
        [0, 0, 0xfe, 0xff, ..] | [0, 0, 0, b'<' | b'{', ..] => u32::from_be_bytes,
        _ => return None,
    };
    let (units, _) = document.as_chunks::<4>();
    let characters = units
        .iter()
        .map(|four| char::from_u32(unit(*four)).unwrap_or('\u{fffd}'))
        .filter(|c| *c != '\u{feff}');
    Some(characters.collect())
}

/// Whether ASCII bytes mean ASCII characters.
fn ascii_based(encoding: &'static Encoding) -> bool {
    encoding.is_ascii_compatible()
}

fn single_byte_western(encoding: &'static Encoding) -> bool {
    encoding == UTF_8 || encoding == WINDOWS_1252
}

/// The encoding of the XML declaration.
fn declared(document: &[u8]) -> Option<&'static Encoding> {
    let head = document.get(..DECLARATION).unwrap_or(document);
    let head = head.trim_ascii_start().strip_prefix(b"<?xml")?;
    let end = head.windows(2).position(|w| w == b"?>")?;
    let head = std::str::from_utf8(head.get(..end)?).ok()?;
    let value = head.split_once("encoding")?.1.trim_start();
    let value = value.strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let label = value[1..].split(quote).next()?;
    Encoding::for_label(label.as_bytes())
        // Bytes that could be read as ASCII this far are not UTF-16, whatever they say.
        .filter(|e| *e != UTF_16LE && *e != UTF_16BE)
}

/// Whether a text that is not valid UTF-8 is so only here and there: more sequences of it are
/// right than wrong.
fn likely_utf8(document: &[u8]) -> bool {
    let mut good = 0usize;
    let mut bad = 0usize;
    for chunk in document.utf8_chunks() {
        good += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        bad += usize::from(!chunk.invalid().is_empty());
    }
    good > bad
}

#[cfg(test)]
mod tests {
    use super::decode;
    use proptest::prelude::*;

    #[test]
    fn declared_encodings_are_honoured() {
        for (bytes, text) in [
            (
                &b"<?xml version='1.0' encoding='us-ascii'?><a/>"[..],
                "<a/>",
            ),
            (b"<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\xe9", "é"),
            (b"<?xml version='1.0' encoding = 'koi8-r'?>\xc1", "а"),
            (b"<?xml version='1.0' encoding='Shift_JIS'?>\x83\x41", "ア"),
            ("<?xml encoding='us-ascii'?>é".as_bytes(), "é"),
            ("<?xml encoding='utf-16'?>é".as_bytes(), "é"),
            (b"\xef\xbb\xbf<a/>", "<a/>"),
            (b"\xff\xfe<\0a\0/\0>\0", "<a/>"),
            (b"\xfe\xff\0<\0a\0/\0>", "<a/>"),
            (b"<\0?\0x\0", "<?x"),
            (b"\0<\0?\0x", "<?x"),
            (b"\xe9 alone", "é alone"),
            (
                "<?xml encoding='utf-8'?>éé\u{fffd}".as_bytes(),
                "éé\u{fffd}",
            ),
            (b"\xc3\xa9\xc3\xa9\xff", "éé\u{fffd}"),
        ] {
            let decoded = decode(bytes);
            assert!(decoded.ends_with(text), "{decoded:?} {text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_become_some_text(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }
    }
}
