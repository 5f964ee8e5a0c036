//! The fields of one entry, read by feed-rs.
//!
//! feed-rs is given a small document with one entry and only those of its children that are used
//! here. That keeps an entry that it refuses from costing the others, and keeps it from code that
//! panics on hostile input (its readers of person names with an address, and of MediaRSS, iTunes
//! and podcast durations); authors of RSS are read here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use feed_rs::model;
use jiff::Timestamp;
use url::Url;

use crate::entry::{Attachment, Author, Entry};
use crate::html;
use crate::xml::element::{Child, Element};
use crate::xml::split::Format;
use crate::xml::{ATOM_NS, clean};

const CONTENT_NS: &str = "http://purl.org/rss/1.0/modules/content/";
const DUBLIN_CORE_NS: &str = "http://purl.org/dc/elements/1.1/";
const RSS1_NS: &str = "http://purl.org/rss/1.0/";
/// What feed-rs calls the XHTML content of Atom.
const XHTML: &str = "application/xhtml";

/// Reads what can be read of the entry; `id` and `xml` are left empty.
pub(super) fn read(format: Format, text: &str, element: &Element, base: Option<&Url>) -> Entry {
    let kept: Vec<&Child> = element
        .children
        .iter()
        .filter(|child| used(format, child))
        .collect();
    let parse = |children: &[&Child]| feed_rs(&wrap(format, text, element, children)?, base);
    let model = parse(&kept).or_else(|| {
        // Something in it is refused as a whole: that child costs only itself.
        let good: Vec<&Child> = kept
            .iter()
            .copied()
            .filter(|child| parse(&[child]).is_some())
            .collect();
        parse(&good)
    });
    let mut entry = model.map(|m| convert(format, m)).unwrap_or_default();
    if format != Format::Atom {
        entry.authors = element
            .children
            .iter()
            .filter(|c| c.local == "author" && !c.is(ATOM_NS, "author") || c.local == "creator")
            .filter_map(|c| author(&c.text))
            .collect();
        if entry.url.is_none() {
            // RSS 2.0: a guid is the entry's link unless it says that it is not.
            entry.url = element
                .children
                .iter()
                .find(|c| c.local == "guid" && c.attribute("isPermaLink") != Some("false"))
                .map(|c| c.text.trim())
                .filter(|guid| guid.starts_with("http://") || guid.starts_with("https://"))
                .map(str::to_owned);
        }
    }
    entry
}

/// Whether a child is given to feed-rs.
fn used(format: Format, child: &Child) -> bool {
    let (namespace, local) = (child.namespace.as_str(), child.local.as_str());
    match format {
        Format::Atom => {
            namespace == ATOM_NS
                && matches!(
                    local,
                    "title"
                        | "updated"
                        | "published"
                        | "author"
                        | "content"
                        | "link"
                        | "summary"
                        | "category"
                )
        }
        Format::Rss | Format::Rdf => match namespace {
            "" | RSS1_NS => matches!(
                local,
                "title" | "link" | "description" | "category" | "enclosure" | "pubDate" | "updated"
            ),
            CONTENT_NS => local == "encoded",
            DUBLIN_CORE_NS => matches!(local, "date" | "description"),
            ATOM_NS => local == "updated",
            _ => false,
        },
    }
}

/// A document with one entry and these children.
fn wrap(format: Format, text: &str, element: &Element, children: &[&Child]) -> Option<String> {
    let (before, after) = match format {
        Format::Atom => ("", ""),
        Format::Rss => ("<rss version=\"2.0\"><channel>", "</channel></rss>"),
        Format::Rdf => (
            "<r:RDF xmlns:r=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\">",
            "</r:RDF>",
        ),
    };
    let start = text.get(..element.content_start)?;
    let end = text.get(element.content_end?..)?;
    let mut document = String::with_capacity(text.len() + before.len() + after.len());
    document.push_str(before);
    document.push_str(start);
    for child in children {
        document.push_str(text.get(child.range.clone())?);
    }
    document.push_str(end);
    document.push_str(after);
    Some(document)
}

/// The one entry of a document, or nothing where feed-rs refuses it or panics.
pub(super) fn feed_rs(document: &str, base: Option<&Url>) -> Option<model::Entry> {
    let parser = feed_rs::parser::Builder::new()
        .base_uri(base)
        .sanitize_content(false)
        // The entry's own id is read elsewhere, and none is invented.
        .id_generator(|_, _, _| String::new())
        .build();
    // What is known to panic is kept away from it; should there be more, one entry loses its
    // details and the source lives on. Nothing of the parser is used afterwards.
    catch_unwind(AssertUnwindSafe(|| parser.parse(document.as_bytes())))
        .ok()?
        .ok()?
        .entries
        .into_iter()
        .next()
}

pub(super) fn convert(format: Format, model: model::Entry) -> Entry {
    let mut entry = Entry {
        title: model.title.map(plain).filter(|t| !t.is_empty()),
        url: link(&model.links),
        authors: model.authors.into_iter().filter_map(person).collect(),
        published: model
            .published
            .and_then(|t| Timestamp::from_millisecond(t.timestamp_millis()).ok()),
        updated: model
            .updated
            .and_then(|t| Timestamp::from_millisecond(t.timestamp_millis()).ok()),
        attachments: attachments(&model.links, &model.media),
        ..Entry::default()
    };
    for category in model.categories {
        let tag = clean(category.label.as_deref().unwrap_or(&category.term)).into_owned();
        if !tag.is_empty() && !entry.tags.contains(&tag) && entry.tags.len() < 256 {
            entry.tags.push(tag);
        }
    }
    if let Some(content) = model.content
        && let Some(body) = content.body
    {
        let body = clean(&body).into_owned();
        match content.content_type.to_string().as_str() {
            "text/html" | XHTML => entry.content_html = Some(body),
            other if other.starts_with("text/") => entry.content_text = Some(body),
            // Anything else is for programs; it is still in the original.
            _ => {}
        }
    }
    if let Some(summary) = model.summary {
        let none = entry.content_html.is_none() && entry.content_text.is_none();
        // An RSS description is HTML, and where there is no other content it is the content.
        if none && format == Format::Rss {
            entry.content_html = Some(clean(&summary.content).into_owned());
        } else {
            entry.summary = Some(plain(summary)).filter(|s| !s.is_empty());
        }
    }
    entry
}

fn plain(text: model::Text) -> String {
    match text.content_type.to_string().as_str() {
        "text/html" | XHTML => clean(&html::plain_text(&text.content)).into_owned(),
        _ => clean(text.content.trim()).into_owned(),
    }
}

fn link(links: &[model::Link]) -> Option<String> {
    let alternate = |l: &&model::Link| matches!(l.rel.as_deref(), None | Some("alternate"));
    let page = |l: &&model::Link| {
        l.media_type
            .as_deref()
            .is_none_or(|t| t.starts_with("text/html"))
    };
    let own = |l: &&model::Link| l.target.is_none();
    links
        .iter()
        .find(|l| alternate(l) && page(l) && own(l))
        .or_else(|| links.iter().find(|l| alternate(l) && own(l)))
        .or_else(|| {
            links
                .iter()
                .find(|l| matches!(l.rel.as_deref(), Some("self" | "via" | "related")))
        })
        .map(|l| clean(l.href.trim()).into_owned())
        .filter(|href| !href.is_empty())
}

fn attachments(links: &[model::Link], media: &[model::MediaObject]) -> Vec<Attachment> {
    let linked = links
        .iter()
        .filter(|l| l.rel.as_deref() == Some("enclosure"))
        .map(|l| (l.href.clone(), l.media_type.clone(), l.length));
    let enclosed = media.iter().flat_map(|m| &m.content).filter_map(|c| {
        let mime_type = c.content_type.as_ref().map(ToString::to_string);
        Some((c.url.as_ref()?.to_string(), mime_type, c.size))
    });
    linked
        .chain(enclosed)
        .take(64)
        .map(|(url, mime_type, size)| Attachment {
            url: clean(&url).into_owned(),
            mime_type: mime_type
                .map(|m| clean(&m).into_owned())
                .unwrap_or_else(|| "application/octet-stream".to_owned()),
            size,
        })
        .collect()
}

fn person(person: model::Person) -> Option<Author> {
    let text = |value: Option<String>| {
        value
            .map(|v| clean(v.trim()).into_owned())
            .filter(|v| !v.is_empty())
    };
    let mail = text(person.email).map(|m| format!("mailto:{m}"));
    let author = Author {
        name: text(person.name),
        url: text(person.uri).or(mail),
    };
    (author != Author::default()).then_some(author)
}

/// An RSS author: `mail@example.org (Name)`, `Name <mail@example.org>`, an address or a name.
pub(super) fn author(text: &str) -> Option<Author> {
    let text = clean(text.trim());
    let (name, mail) = if let Some((mail, name)) = text.split_once('(') {
        (name.trim_end_matches(')'), mail)
    } else if let Some((name, mail)) = text.split_once('<') {
        (name, mail.trim_end_matches('>'))
    } else {
        (text.as_ref(), text.as_ref())
    };
    let (name, mail) = (name.trim(), mail.trim());
    let is_mail = mail.contains('@') && !mail.contains(char::is_whitespace);
    let author = match (is_mail, name == mail) {
        (true, true) => Author {
            name: None,
            url: Some(format!("mailto:{mail}")),
        },
        (true, false) => Author {
            name: Some(name.to_owned()).filter(|n| !n.is_empty()),
            url: Some(format!("mailto:{mail}")),
        },
        (false, _) => Author {
            name: Some(text.into_owned()).filter(|n| !n.is_empty()),
            url: None,
        },
    };
    (author != Author::default()).then_some(author)
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
        case("A B (C)", Some("A B (C)"), None);
        case("“a@b.org", None, Some("mailto:“a@b.org"));
        case(" ", None, None);
    }
}
