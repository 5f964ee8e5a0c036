//! Fields of an Atom entry (RFC 4287), and of one of Atom 0.3.

use std::borrow::Cow;
use std::ops::Range;

use url::Url;

use super::dates;
use super::fields::{self, add_attachment, add_author, add_tag, address, rebase, text};
use super::media;
use crate::entry::{Author, Entry};
use crate::html::{self, links};
use crate::xml::element::{Child, Element, find, outline};
use crate::xml::{ATOM_03_NS, ATOM_NS, clean, lower, markup};

/// Text construct (RFC 4287 section 3.1), read.
pub(super) enum Text {
    Plain(String),
    Html(String),
    /// Content that is not for people.
    Other,
}

/// Reads all readable fields of the entry; `id` and `xml` are left empty.
pub(super) fn read(xml: &str, element: &Element, base: Option<&Url>) -> Entry {
    let base = rebase(base, [element.attribute("xml:base")]);
    let base = base.as_ref();
    let mut entry = Entry::default();
    let mut created = None;
    for child in &element.children {
        if !matches!(child.namespace.as_str(), ATOM_NS | ATOM_03_NS) {
            continue;
        }
        match &*lower(&child.local) {
            "title" if entry.title.is_none() => {
                entry.title = plain(text_of(xml, child, None)).and_then(|t| text(&t));
            }
            "summary" if entry.summary.is_none() => {
                entry.summary = plain(text_of(xml, child, None)).and_then(|t| text(&t));
            }
            "content" if entry.content_html.is_none() && entry.content_text.is_none() => {
                match text_of(xml, child, base) {
                    Text::Html(html) if !html.trim().is_empty() => entry.content_html = Some(html),
                    Text::Plain(text) if !text.is_empty() => entry.content_text = Some(text),
                    _ => {}
                }
                // Content elsewhere becomes at least a link.
                if let Some(src) = child.attribute("src") {
                    entry.content_html = None;
                    entry.content_text = None;
                    let kind = child.attribute("type").filter(|t| t.contains('/'));
                    let base = rebase(base, [child.attribute("xml:base")]);
                    add_attachment(&mut entry, Some(src), kind, None, base.as_ref());
                }
            }
            "published" | "issued" => {
                entry.published = entry.published.or_else(|| dates::parse(&child.text));
            }
            "updated" | "modified" => {
                entry.updated = entry.updated.or_else(|| dates::parse(&child.text));
            }
            "created" => created = created.or_else(|| dates::parse(&child.text)),
            "author" => add_author(&mut entry.authors, person(xml, child, base)),
            "category" => {
                let label = child.attribute("label").filter(|l| !l.trim().is_empty());
                let tag = label.or_else(|| child.attribute("term"));
                add_tag(&mut entry.tags, tag.unwrap_or(&child.text));
            }
            "link" if child.attribute("rel").is_some_and(|r| is(r, "enclosure")) => {
                let base = rebase(base, [child.attribute("xml:base")]);
                add_attachment(
                    &mut entry,
                    child.attribute("href"),
                    child.attribute("type"),
                    child.attribute("length"),
                    base.as_ref(),
                );
            }
            _ => {}
        }
    }
    entry.published = entry.published.or(created);
    entry.url = link(&element.children, base);
    if entry.authors.is_empty()
        && let Some(source) = element.child(ATOM_NS, "source")
        && let Some(xml) = xml.get(source.range.clone())
        && let Ok(source) = outline(xml)
    {
        entry.authors = authors(xml, &source, base);
    }
    media::read(xml, &element.children, base, &mut entry);
    entry
}

/// Returns the authors of an element.
pub(super) fn authors(xml: &str, element: &Element, base: Option<&Url>) -> Vec<Author> {
    let mut authors = Vec::new();
    for child in &element.children {
        if child.local.eq_ignore_ascii_case("author") {
            add_author(&mut authors, person(xml, child, base));
        }
    }
    authors
}

/// Reads a person construct (RFC 4287 section 3.2); in the field also a mere name.
pub(super) fn person(xml: &str, child: &Child, base: Option<&Url>) -> Author {
    if !child.nested {
        return fields::author(&child.text).unwrap_or_default();
    }
    let xml = xml.get(child.range.clone()).unwrap_or("");
    person_of(xml, base)
}

/// Reads the person in an element's XML.
pub(super) fn person_of(xml: &str, base: Option<&Url>) -> Author {
    let Ok(element) = outline(xml) else {
        return Author::default();
    };
    let get = |name: &str| {
        let mut children = element.children.iter();
        let found = children.find(|c| c.local.eq_ignore_ascii_case(name));
        found.and_then(|c| text(&c.text))
    };
    let mail = get("email").map(|mail| match mail.strip_prefix("mailto:") {
        Some(_) => mail,
        None => format!("mailto:{mail}"),
    });
    let page = get("uri").or_else(|| get("url"));
    let url = page.and_then(|url| address(&url, base)).or(mail);
    let name = get("name").or_else(|| text(&element.text));
    match name.as_deref().and_then(fields::author) {
        // The text has both name and address.
        Some(both) if url.is_none() && both.name.is_some() => both,
        _ => Author { name, url },
    }
}

pub(super) fn is(relation: &str, name: &str) -> bool {
    let relation = relation.trim();
    let short = relation.rsplit_once('/').map_or(relation, |(_, name)| name);
    short.eq_ignore_ascii_case(name)
}

/// Returns the page of an entry: an `alternate` link to HTML before other alternates, and those
/// before related links.
pub(super) fn link(children: &[Child], base: Option<&Url>) -> Option<String> {
    let links = || {
        children.iter().filter(|c| {
            matches!(c.namespace.as_str(), ATOM_NS | ATOM_03_NS)
                && c.local.eq_ignore_ascii_case("link")
                && c.attribute("href").is_some_and(|h| !h.trim().is_empty())
        })
    };
    let alternate = |c: &&Child| c.attribute("rel").is_none_or(|r| is(r, "alternate"));
    let page = |c: &&Child| {
        c.attribute("type")
            .is_none_or(|t| t.starts_with("text/html") || t.contains("xhtml"))
    };
    let near = |c: &&Child| {
        c.attribute("rel")
            .is_some_and(|r| ["self", "via", "related"].iter().any(|n| is(r, n)))
    };
    let found = links()
        .find(|c| alternate(c) && page(c))
        .or_else(|| links().find(alternate))
        .or_else(|| links().find(near))?;
    let base = rebase(base, [found.attribute("xml:base")]);
    address(found.attribute("href")?, base.as_ref())
}

pub(super) fn plain(text: Text) -> Option<String> {
    match text {
        Text::Plain(text) => Some(text),
        Text::Html(text) => Some(html::plain_text(&text)),
        Text::Other => None,
    }
}

/// Reads a text construct; the links in its HTML are relative to `base`.
pub(super) fn text_of(xml: &str, child: &Child, base: Option<&Url>) -> Text {
    let base = rebase(base, [child.attribute("xml:base")]);
    let base = base.as_ref();
    let html = || Text::Html(links::absolute(&clean(&child.text), base).into_owned());
    let kind = child
        .attribute("type")
        .map(|t| t.trim().to_ascii_lowercase());
    let kind = kind.as_deref().unwrap_or("text");
    let hypertext = matches!(
        kind,
        "html" | "text/html" | "xhtml" | "application/xhtml+xml"
    );
    if child.namespace == ATOM_03_NS {
        // Atom 0.3 states the embedding in XML separately from the type.
        match child.attribute("mode") {
            Some("base64") => return Text::Other,
            Some("escaped") if hypertext => return html(),
            _ => {}
        }
    }
    match kind {
        // Unescaped markup is meant as such, whatever the type states.
        _ if child.nested && (hypertext || matches!(kind, "text" | "text/plain")) => {
            Text::Html(content_of(xml, child, base))
        }
        "xhtml" | "application/xhtml+xml" => {
            let inner = xml.get(child.inner.clone()).unwrap_or("");
            Text::Html(markup::html(inner, base))
        }
        _ if hypertext => html(),
        "text" | "text/plain" => Text::Plain(clean(&child.text).trim().to_owned()),
        other if other.starts_with("text/") => Text::Plain(clean(&child.text).into_owned()),
        // Any other type is for programs; the original still has the content. A type that is no
        // media type is a mistake for HTML.
        other if other.contains('/') => Text::Other,
        _ => html(),
    }
}

/// Returns the HTML in an XHTML text construct. Its one `div` is not part of it (RFC 4287 section
/// 3.1.1.3).
fn content_of(xml: &str, child: &Child, base: Option<&Url>) -> String {
    let inner = |range: &Range<usize>| xml.get(range.clone()).unwrap_or("");
    let html = match &child.first {
        Some(div) if div.local == "div" && !child.others && child.text.trim().is_empty() => {
            let base = rebase(base, [find(&div.attributes, "xml:base")]);
            markup::html(inner(&div.range), base.as_ref())
        }
        _ => markup::html(inner(&child.inner), base),
    };
    match clean(&html) {
        Cow::Borrowed(_) => html,
        Cow::Owned(clean) => clean,
    }
}
