//! Conversion of bytes to text, in the encoding that the server or the document states.

use std::borrow::Cow;

use encoding_rs::{Encoding, REPLACEMENT, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Largest position at which an XML declaration is searched for.
const DECLARATION: usize = 256;

/// Longest part of an unknown label that is quoted, in characters.
const MAX_LABEL: usize = 64;

/// Document as text.
#[derive(Debug)]
pub(crate) struct DecodedText<'a> {
    pub text: Cow<'a, str>,
    /// Label that was ignored because it names no known encoding, with no other label present: the
    /// document is UTF-8 all the same.
    pub unknown: Option<String>,
}

/// The stated encoding is not known, and the bytes are not UTF-8. Contains the label, safe to
/// print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownEncoding(pub String);

/// Decodes a document. The sources of the encoding, in the order of RFC 7303 section 3: the
/// byte-order mark, `charset` of the HTTP header, the XML declaration (XML 1.0 appendix F), UTF-8.
/// Two labels are rejected against the evidence: UTF-8 for a document that is not UTF-8, and one
/// that would change valid UTF-8 and was most probably not meant (Latin-1 and similar defaults of
/// servers and programs; or any that the document's own UTF-8 contradicts). Without a label, a
/// document that is not UTF-8 is windows-1252, which accepts every byte. Bytes that do not fit the
/// encoding become U+FFFD: one bad byte must not cost a whole feed.
///
/// JSON has no other encoding than UTF-8 (RFC 8259 section 8.1): labels count for it only if it is
/// not UTF-8.
///
/// # Errors
/// [`UnknownEncoding`]: any guess would store garbage as the feed's text.
pub(crate) fn decode<'a>(
    document: &'a [u8],
    charset: Option<&str>,
) -> Result<DecodedText<'a>, UnknownEncoding> {
    let known = |text| {
        Ok(DecodedText {
            text,
            unknown: None,
        })
    };
    if let Some(text) = utf_32(document) {
        return known(Cow::Owned(text));
    }
    if let Some((encoding, mark)) = Encoding::for_bom(document) {
        let body = document.get(mark..).unwrap_or_default();
        return known(encoding.decode_without_bom_handling(body).0);
    }
    match document {
        [0, b'<', 0, ..] => return known(UTF_16BE.decode_without_bom_handling(document).0),
        [b'<', 0, _, 0, ..] => return known(UTF_16LE.decode_without_bom_handling(document).0),
        _ => {}
    }
    let declared = declaration(document);
    let labels = [charset.map(str::trim), declared];
    let encodings = labels.map(|label| label.and_then(|label| encoding(label, document)));
    let stated = encodings[0].or(encodings[1]);
    let mut labels = labels.into_iter().flatten();
    let strange = labels.find(|label| !label.is_empty() && !is_known(label));
    let strange = strange.map(shown);
    let json = document.trim_ascii_start().starts_with(b"{");
    if let Ok(text) = std::str::from_utf8(document) {
        let text = Cow::Borrowed(text);
        let as_it_is = match stated {
            None => true,
            Some(stated) if is_wide(stated) => false,
            Some(_) if json => true,
            Some(stated) if text.is_ascii() => stated.is_ascii_compatible(),
            Some(stated) => {
                stated == UTF_8 || stated == WINDOWS_1252 || encodings[1] == Some(UTF_8)
            }
        };
        if as_it_is {
            let unknown = strange.filter(|_| stated.is_none());
            return Ok(DecodedText { text, unknown });
        }
    }
    let other = encodings.into_iter().flatten().find(|e| *e != UTF_8);
    let encoding = match (other, stated) {
        // One bad byte in a document that the server labels UTF-8.
        (Some(_), Some(stated)) if stated == UTF_8 && likely_utf8(document) => UTF_8,
        (Some(other), _) => other,
        (None, _) if likely_utf8(document) => UTF_8,
        (None, _) => match strange {
            Some(label) => return Err(UnknownEncoding(label)),
            None => WINDOWS_1252,
        },
    };
    let text = encoding.decode_without_bom_handling(document).0;
    let unknown = strange.filter(|_| stated.is_none());
    Ok(DecodedText { text, unknown })
}

/// Decodes a document only to describe it.
pub(crate) fn summary<'a>(document: &'a [u8], charset: Option<&str>) -> Cow<'a, str> {
    match decode(document, charset) {
        Ok(decoded) => decoded.text,
        Err(UnknownEncoding(_)) => String::from_utf8_lossy(document),
    }
}

/// Whether a label names a known encoding.
fn is_known(label: &str) -> bool {
    Encoding::for_label(label.as_bytes()).is_some_and(|e| e != REPLACEMENT)
}

/// Returns the encoding of a label. UTF-16 is rejected for bytes that were readable as ASCII so
/// far.
fn encoding(label: &str, document: &[u8]) -> Option<&'static Encoding> {
    let encoding = Encoding::for_label(label.as_bytes()).filter(|e| *e != REPLACEMENT)?;
    let head = document.get(..DECLARATION).unwrap_or(document);
    (!is_wide(encoding) || head.contains(&0)).then_some(encoding)
}

fn is_wide(encoding: &'static Encoding) -> bool {
    encoding == UTF_16LE || encoding == UTF_16BE
}

/// Returns a label that is safe to print.
fn shown(label: &str) -> String {
    let label = label.chars().filter(|c| !c.is_control());
    label.take(MAX_LABEL).collect()
}

/// Decodes UTF-32, which the web has abandoned, by its byte-order mark or by a document's first
/// character.
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

/// Returns the encoding's label in the XML declaration.
fn declaration(document: &[u8]) -> Option<&str> {
    let head = document.get(..DECLARATION).unwrap_or(document);
    let head = head.trim_ascii_start().strip_prefix(b"<?xml")?;
    let end = head.windows(2).position(|w| w == b"?>")?;
    let head = std::str::from_utf8(head.get(..end)?).ok()?;
    let value = head.split_once("encoding")?.1.trim_start();
    let value = value.strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    value[1..].split(quote).next().map(str::trim)
}

/// Whether a text is UTF-8 with a few errors: more sequences are valid than not.
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
    #![allow(clippy::unwrap_used)]
    use super::{UnknownEncoding, decode};
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
            let decoded = decode(bytes, None).unwrap();
            assert!(decoded.text.ends_with(text), "{decoded:?} {text:?}");
            assert_eq!(decoded.unknown, None, "{text:?}");
        }
    }

    #[test]
    fn the_order_is_mark_header_declaration() {
        let koi = &b"<?xml version='1.0' encoding='koi8-r'?>\xc1"[..];
        for (bytes, charset, text) in [
            (&b"<a>\xcf</a>"[..], Some("windows-1251"), "<a>П</a>"),
            (b"<a>\xcf</a>", None, "<a>Ï</a>"),
            (b"<a>\xcf</a>", Some("utf-8"), "<a>Ï</a>"),
            (b"<a>\xcf</a>", Some(""), "<a>Ï</a>"),
            (b"\xef\xbb\xbf\xd0\x9f", Some("windows-1251"), "П"),
            (koi, Some("windows-1251"), "Б"),
            (koi, Some("x-unheard"), "а"),
            // Not UTF-8, whatever the server states.
            (koi, Some("utf-8"), "а"),
            // UTF-8 is no Latin-1, and no other encoding if the document itself states UTF-8.
            ("<a>П".as_bytes(), Some("iso-8859-1"), "<a>П"),
            (
                "<?xml encoding='utf-8'?>П".as_bytes(),
                Some("windows-1251"),
                "П",
            ),
            ("П".as_bytes(), Some("windows-1251"), "Рџ"),
            ("éé é\u{20ac}".as_bytes(), Some("UTF-8"), "éé é€"),
            (b"\xc3\xa9\xc3\xa9\xff", Some("utf-8"), "éé\u{fffd}"),
            (b"{\0", Some("utf-16le"), "{"),
            (b"{\"a\"}", Some("utf-16"), "{\"a\"}"),
            ("{\"П\"}".as_bytes(), Some("windows-1251"), "{\"П\"}"),
            (b"{\"\xcf\"}", Some("windows-1251"), "{\"П\"}"),
            (b"\x1b$B$\"\x1b(B", Some("iso-2022-jp"), "あ"),
        ] {
            let decoded = decode(bytes, charset).unwrap();
            assert!(decoded.text.ends_with(text), "{decoded:?} {text:?}");
            assert_eq!(decoded.unknown, None, "{text:?}");
        }
    }

    #[test]
    fn unknown_labels_are_named() {
        let unknown = |label: &str| Err(UnknownEncoding(label.to_owned()));
        let read = |bytes, charset| {
            let decoded = decode(bytes, charset)?;
            Ok((decoded.text.into_owned(), decoded.unknown))
        };
        let utf_8 = "<?xml encoding='x-unheard'?>é";
        let good = |label: &str| Ok((utf_8.to_owned(), Some(label.to_owned())));
        assert_eq!(read(utf_8.as_bytes(), None), good("x-unheard"));
        assert_eq!(read(utf_8.as_bytes(), Some("x\u{7}-y")), good("x-y"));
        let other = b"<?xml encoding='x-unheard'?>\xe9";
        assert_eq!(read(other, None), unknown("x-unheard"));
        assert_eq!(read(other, Some("utf-7")), unknown("utf-7"));
        assert_eq!(read(other, Some("utf-8")), unknown("x-unheard"));
        // By the standard, decoded as a single sign for unreadable content.
        assert_eq!(read(b"\xe9", Some("iso-2022-kr")), unknown("iso-2022-kr"));
        let long = "x".repeat(1000);
        assert_eq!(read(b"\xe9", Some(&long)), unknown(&long[..64]));
    }

    proptest! {
        #[test]
        fn any_bytes_become_some_text(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            charset in proptest::option::of("utf-8|utf-16|windows-1251|iso-2022-jp|x|"),
        ) {
            let _ = decode(&bytes, charset.as_deref());
        }
    }
}
