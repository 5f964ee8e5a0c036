//! Parts shared by the readers of all formats: addresses, people, bounded lists.

use url::Url;

use crate::entry::{Attachment, Author, Entry};
use crate::html::links;
use crate::xml::clean;

/// Largest number of authors, categories and enclosures of one entry.
const MAX_AUTHORS: usize = 64;
const MAX_TAGS: usize = 256;
const MAX_ATTACHMENTS: usize = 64;

/// Media type if the feed states none.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// Returns the text without the characters that XML cannot hold and without white space around it;
/// `None` if nothing is left.
pub(super) fn text(value: &str) -> Option<String> {
    let value = clean(value);
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Returns an address: unchanged if absolute, else relative to `base`. `None` for an address that
/// would run a program in a reader that opens it.
pub(super) fn address(href: &str, base: Option<&Url>) -> Option<String> {
    let href = text(href)?;
    match (Url::parse(&href), base) {
        (Ok(url), _) if matches!(url.scheme(), "javascript" | "vbscript" | "data") => None,
        (Err(url::ParseError::RelativeUrlWithoutBase), Some(base)) => {
            Some(base.join(&href).map_or(href, Into::into))
        }
        _ => Some(href),
    }
}

/// Returns the base of a link, after `xml:base` attributes, outermost first.
pub(super) fn rebase<'a>(
    base: Option<&Url>,
    attributes: impl IntoIterator<Item = Option<&'a str>>,
) -> Option<Url> {
    let mut base = base.cloned();
    for own in attributes.into_iter().flatten() {
        base = links::join(base.as_ref(), own).or(base);
    }
    base
}

pub(super) fn add_author(authors: &mut Vec<Author>, author: Author) {
    let author = Author {
        name: author.name.as_deref().and_then(text),
        url: author.url.as_deref().and_then(text),
    };
    // The same person is often named twice, once with an address.
    let known = |a: &Author| a.name == author.name && (author.url.is_none() || a.url == author.url);
    if author != Author::default() && !authors.iter().any(known) && authors.len() < MAX_AUTHORS {
        authors.push(author);
    }
}

pub(super) fn add_tag(tags: &mut Vec<String>, tag: &str) {
    if let Some(tag) = text(tag)
        && !tags.contains(&tag)
        && tags.len() < MAX_TAGS
    {
        tags.push(tag);
    }
}

/// Adds an enclosure. The first of each address counts.
pub(super) fn add_attachment(
    entry: &mut Entry,
    href: Option<&str>,
    mime_type: Option<&str>,
    size: Option<&str>,
    base: Option<&Url>,
) {
    let Some(url) = href.and_then(|href| address(href, base)) else {
        return;
    };
    let known = entry.attachments.iter().any(|a| a.url == url);
    if known || entry.attachments.len() >= MAX_ATTACHMENTS {
        return;
    }
    let stated = mime_type.and_then(text).filter(|t| is_media_type(t));
    entry.attachments.push(Attachment {
        mime_type: stated.unwrap_or_else(|| type_of(&url).to_owned()),
        url,
        // Publishing systems write 0 for an unknown size.
        size: size
            .and_then(|s| s.trim().parse().ok())
            .filter(|size| *size > 0),
    });
}

/// Whether the text is `type/subtype`, perhaps with parameters (RFC 6838 section 4.2).
fn is_media_type(text: &str) -> bool {
    let name = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    };
    let essence = text.split(';').next().unwrap_or("").trim();
    essence
        .split_once('/')
        .is_some_and(|(kind, subtype)| name(kind) && name(subtype))
}

/// Returns the media type that the name of a file suggests.
fn type_of(url: &str) -> &'static str {
    let path = url.split(['?', '#']).next().unwrap_or("");
    let name = path.rsplit('/').next().unwrap_or("");
    let Some((_, suffix)) = name.rsplit_once('.') else {
        return UNKNOWN_TYPE;
    };
    match suffix.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" => "image/jpeg",
        "png" => "image/png",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "svg" => "image/svg+xml",
        "mp3" => "audio/mpeg",
        "m4a" => "audio/mp4",
        "ogg" | "oga" | "opus" => "audio/ogg",
        "flac" => "audio/flac",
        "wav" => "audio/wav",
        "mp4" | "m4v" => "video/mp4",
        "webm" => "video/webm",
        "ogv" => "video/ogg",
        "pdf" => "application/pdf",
        "epub" => "application/epub+zip",
        "zip" => "application/zip",
        "torrent" => "application/x-bittorrent",
        "html" | "htm" => "text/html",
        "txt" => "text/plain",
        _ => UNKNOWN_TYPE,
    }
}

/// Parses an author in one text: `mail@example.org (Name)`, `Name (mail@example.org)`, `Name
/// <mail@example.org>`, an address or a name.
pub(super) fn author(given: &str) -> Option<Author> {
    let given = text(given)?;
    let parts = if let Some((before, rest)) = given.split_once('(') {
        Some((before, rest.strip_suffix(')').unwrap_or(rest)))
    } else if let Some((before, rest)) = given.split_once('<') {
        Some((before, rest.strip_suffix('>').unwrap_or(rest)))
    } else {
        None
    };
    let named = |name: &str, mail: &str| Author {
        name: text(name.trim().trim_matches('"')),
        url: Some(format!("mailto:{mail}")),
    };
    let found = match parts {
        None => mail(&given).map(|mail| named("", mail)),
        Some((before, inside)) => mail(before)
            .map(|mail| named(inside, mail))
            .or_else(|| Some(named(before, mail(inside)?))),
    };
    found.or(Some(Author {
        name: Some(given),
        url: None,
    }))
}

/// Returns the address if the text is nothing else.
fn mail(text: &str) -> Option<&str> {
    let text = text.trim();
    let text = text.strip_prefix("mailto:").unwrap_or(text);
    let (local, domain) = text.split_once('@')?;
    let good = |part: &str| {
        !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || "()<>".contains(c))
    };
    (good(local) && good(domain)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rss_authors_are_taken_apart() {
        let case = |text, name: Option<&str>, url: Option<&str>| {
            let expected = Author {
                name: name.map(str::to_owned),
                url: url.map(str::to_owned),
            };
            assert_eq!(author(text).unwrap_or_default(), expected, "{text}");
        };
        case("a@b.org (A B)", Some("A B"), Some("mailto:a@b.org"));
        case("A <a@b.org>", Some("A"), Some("mailto:a@b.org"));
        case(" a@b.org ", None, Some("mailto:a@b.org"));
        case("A B (a@b.org)", Some("A B"), Some("mailto:a@b.org"));
        case("A B (mailto:a@b.org", Some("A B"), Some("mailto:a@b.org"));
        case("\"A B\" <a@b.org>", Some("A B"), Some("mailto:a@b.org"));
        case("a@b.org (A (B))", Some("A (B)"), Some("mailto:a@b.org"));
        case("a@b.org ()", None, Some("mailto:a@b.org"));
        case("A B (C)", Some("A B (C)"), None);
        case("A (@a)", Some("A (@a)"), None);
        case("A (a@b.org) B", Some("A (a@b.org) B"), None);
        case("“a@b.org", None, Some("mailto:“a@b.org"));
        case(" ", None, None);
    }

    #[test]
    fn enclosures_have_a_media_type() {
        for (url, stated, expected) in [
            (
                "https://a/1.bin",
                Some("audio/ogg; codecs=opus"),
                "audio/ogg; codecs=opus",
            ),
            ("https://a/1.MP3?x=.png", None, "audio/mpeg"),
            ("https://a/1.mp3", Some("mp3"), "audio/mpeg"),
            ("https://a/1.jpg", Some("image/*"), "image/jpeg"),
            ("https://a.mp3/x", Some(""), UNKNOWN_TYPE),
            ("https://a/", None, UNKNOWN_TYPE),
        ] {
            let mut entry = Entry::default();
            add_attachment(&mut entry, Some(url), stated, Some("0"), None);
            assert_eq!(entry.attachments[0].mime_type, expected, "{url}");
            assert_eq!(entry.attachments[0].size, None);
        }
    }

    #[test]
    fn whole_addresses_stay_as_they_are() {
        let base = Url::parse("https://example.org/f/a.xml").ok();
        for (given, expected) in [
            ("https://example.org", "https://example.org"),
            (" HTTP://Example.org/ü ", "HTTP://Example.org/ü"),
            ("../1?a=b", "https://example.org/1?a=b"),
            ("//other.example/x", "https://other.example/x"),
            ("mailto:a@b.org", "mailto:a@b.org"),
            ("http://[", "http://["),
        ] {
            let read = address(given, base.as_ref());
            assert_eq!(read.as_deref(), Some(expected), "{given}");
        }
        assert_eq!(address("/1", None).as_deref(), Some("/1"));
        for none in [
            " ",
            "JavaScript:alert(1)",
            "data:text/html,x",
            "java\nscript:alert(1)",
        ] {
            assert_eq!(address(none, base.as_ref()), None, "{none}");
        }
    }
}
