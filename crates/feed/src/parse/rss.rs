//! Fields of an RSS item, of all versions from 0.90 to 2.0 and 1.0.

use url::Url;

use super::fields::{self, add_attachment, add_author, add_tag, address, rebase, text};
use super::{atom, dates, media};
use crate::entry::{Author, Entry};
use crate::html::{self, links};
use crate::xml::element::{Child, Element};
use crate::xml::{ATOM_03_NS, ATOM_NS, clean, lower, markup};

/// Vocabulary of a namespace. Feeds forget to declare the usual prefixes, and spell the names of
/// namespaces in several variants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vocabulary {
    /// RSS itself: in no namespace, or in that of the item.
    Rss,
    Content,
    DublinCore,
    Itunes,
    Atom,
    Feedburner,
    Xhtml,
    Other,
}

fn vocabulary(namespace: &str, item: &str) -> Vocabulary {
    if namespace.is_empty() || namespace == item {
        return Vocabulary::Rss;
    }
    let lower = namespace.to_ascii_lowercase();
    let known = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if known(&["purl.org/rss/1.0/modules/content", "prefix content"]) {
        Vocabulary::Content
    } else if known(&["purl.org/dc/", "prefix dc"]) {
        Vocabulary::DublinCore
    } else if known(&["itunes.com/dtds/podcast", "prefix itunes"]) {
        Vocabulary::Itunes
    } else if matches!(namespace, ATOM_NS | ATOM_03_NS) || known(&["prefix atom"]) {
        Vocabulary::Atom
    } else if known(&["rssnamespace.org/feedburner", "prefix feedburner"]) {
        Vocabulary::Feedburner
    } else if known(&["www.w3.org/1999/xhtml", "prefix xhtml"]) {
        Vocabulary::Xhtml
    } else if known(&[
        "userland.com",
        "netscape.com/rdf",
        "purl.org/rss/1.0/",
        "harvard.edu",
    ]) && !known(&["/modules/", "blogchannel", "soapnamespace"])
    {
        Vocabulary::Rss
    } else {
        Vocabulary::Other
    }
}

/// Reads all readable fields of the item; `id` and `xml` are left empty.
pub(super) fn read(xml: &str, element: &Element, base: Option<&Url>) -> Entry {
    let base = rebase(base, [element.attribute("xml:base")]);
    let base = base.as_ref();
    let mut entry = Entry::default();
    let mut found = Candidates::default();
    for child in &element.children {
        let vocabulary = vocabulary(&child.namespace, &element.namespace);
        // Elements of Atom are also found without their namespace.
        let atom = matches!(vocabulary, Vocabulary::Rss | Vocabulary::Atom);
        let html = |child| html_of(xml, child, base);
        match (vocabulary, &*lower(&child.local)) {
            (Vocabulary::Rss, "title") => first(&mut entry.title, || title(xml, child)),
            (Vocabulary::DublinCore | Vocabulary::Itunes | Vocabulary::Atom, "title") => {
                first(&mut found.other_title, || title(xml, child));
            }
            (_, "link")
                if atom
                    && child
                        .attribute("rel")
                        .is_some_and(|r| atom::is(r, "enclosure")) =>
            {
                add_attachment(
                    &mut entry,
                    child.attribute("href"),
                    child.attribute("type"),
                    child.attribute("length"),
                    base,
                );
            }
            (Vocabulary::Rss, "link") => first(&mut found.link, || {
                let base = rebase(base, [child.attribute("xml:base")]);
                // Also as Atom's link without its namespace.
                let href = text(&child.text).or_else(|| {
                    let page = child
                        .attribute("rel")
                        .is_none_or(|r| atom::is(r, "alternate"));
                    child.attribute("href").filter(|_| page)?.to_owned().into()
                })?;
                address(&unbroken(&href), base.as_ref())
            }),
            (Vocabulary::Feedburner, "origlink") => {
                first(&mut found.original, || address(&child.text, base));
            }
            (Vocabulary::Rss, "guid") => first(&mut found.permalink, || permalink(child)),
            (Vocabulary::Rss, "description") => {
                first(&mut found.description, || html(child));
            }
            (Vocabulary::DublinCore, "description") => {
                first(&mut found.other_description, || html(child));
            }
            (Vocabulary::Itunes, "summary" | "subtitle") => {
                first(&mut found.other_description, || html(child));
            }
            (Vocabulary::Content, "encoded")
            | (Vocabulary::Xhtml | Vocabulary::Rss, "body" | "div") => {
                first(&mut found.content, || html(child));
            }
            (_, "content") if atom => found.atom_content(xml, child, base),
            (_, "summary") if atom => first(&mut found.summary, || {
                atom::plain(atom::text_of(xml, child, None)).and_then(|t| text(&t))
            }),
            (Vocabulary::Rss, "pubdate" | "published") => {
                entry.published = entry.published.or_else(|| dates::parse(&child.text));
            }
            (Vocabulary::DublinCore, "date" | "created" | "issued") => {
                found.other_date = found.other_date.or_else(|| dates::parse(&child.text));
            }
            (_, "published" | "issued") if atom => {
                found.other_date = found.other_date.or_else(|| dates::parse(&child.text));
            }
            (Vocabulary::Atom | Vocabulary::Rss, "updated" | "modified")
            | (Vocabulary::DublinCore, "modified") => {
                entry.updated = entry.updated.or_else(|| dates::parse(&child.text));
            }
            (Vocabulary::Atom, "author") => {
                add_author(&mut entry.authors, atom::person(xml, child, base));
            }
            (Vocabulary::Rss, "author") | (Vocabulary::DublinCore, "creator" | "author") => {
                add_author(&mut entry.authors, atom::person(xml, child, base));
            }
            (Vocabulary::Itunes, "author") => {
                first(&mut found.other_author, || fields::author(&child.text));
            }
            (_, "category") if atom && child.text.trim().is_empty() => {
                let label = child.attribute("label").or_else(|| child.attribute("term"));
                add_tag(&mut entry.tags, label.unwrap_or(""));
            }
            (Vocabulary::Rss, "category") | (Vocabulary::DublinCore, "subject") => {
                add_tag(&mut entry.tags, &html::text_or_html(&child.text));
            }
            (Vocabulary::Rss, "enclosure") => add_attachment(
                &mut entry,
                child.attribute("url"),
                child.attribute("type"),
                child.attribute("length"),
                base,
            ),
            _ => {}
        }
    }
    found.into(&mut entry, atom::link(&element.children, base));
    media::read(xml, &element.children, base, &mut entry);
    entry
}

/// Fields that several places of an item may supply.
#[derive(Default)]
struct Candidates {
    other_title: Option<String>,
    link: Option<String>,
    original: Option<String>,
    permalink: Option<String>,
    description: Option<String>,
    other_description: Option<String>,
    content: Option<String>,
    /// Content and summary of Atom.
    html: Option<String>,
    text: Option<String>,
    summary: Option<String>,
    other_date: Option<jiff::Timestamp>,
    other_author: Option<Author>,
}

impl Candidates {
    /// Records Atom's content. Without its namespace and a type it is HTML, as in RSS.
    fn atom_content(&mut self, xml: &str, child: &Child, base: Option<&Url>) {
        if self.html.is_some() || self.text.is_some() {
            return;
        }
        if child.namespace.is_empty() && child.attribute("type").is_none() {
            self.html = html_of(xml, child, base);
            return;
        }
        match atom::text_of(xml, child, base) {
            atom::Text::Html(html) => self.html = Some(html).filter(|h| !h.trim().is_empty()),
            atom::Text::Plain(plain) => self.text = Some(plain).filter(|t| !t.is_empty()),
            atom::Text::Other => {}
        }
    }

    fn into(self, entry: &mut Entry, atom_link: Option<String>) {
        entry.title = entry.title.take().or(self.other_title);
        // The original address before one that counts clicks.
        entry.url = self.original.or(self.link).or(atom_link).or(self.permalink);
        entry.published = entry.published.or(self.other_date);
        if entry.authors.is_empty() {
            entry.authors.extend(self.other_author);
        }
        // A description is HTML; without other content it is the content.
        let description = self.description.or(self.other_description);
        let plain = |html: String| text(&html::plain_text(&html));
        let content = self.content.or(self.html);
        if content.is_some() || self.text.is_some() {
            entry.summary = description.and_then(plain).or(self.summary);
            entry.content_text = self.text.filter(|_| content.is_none());
            entry.content_html = content;
        } else if description.is_some() {
            entry.content_html = description;
        } else {
            entry.summary = self.summary;
        }
    }
}

fn first<T>(place: &mut Option<T>, read: impl FnOnce() -> Option<T>) {
    if place.is_none() {
        *place = read();
    }
}

/// Returns a guid as the entry's link, unless it is marked as none.
fn permalink(child: &Child) -> Option<String> {
    let guid = child.text.trim();
    let link = guid.starts_with("http://") || guid.starts_with("https://");
    let denied = child
        .attribute("isPermaLink")
        .is_some_and(|p| p.trim().eq_ignore_ascii_case("false"));
    (link && !denied).then(|| guid.to_owned())
}

/// Returns an address that was wrapped over lines as one line.
fn unbroken(href: &str) -> String {
    href.split(['\n', '\r', '\t']).map(str::trim).collect()
}

fn title(xml: &str, child: &Child) -> Option<String> {
    if child.nested {
        return text(&html::plain_text(&html_of(xml, child, None)?));
    }
    text(&html::text_or_html(&child.text))
}

/// Returns the HTML in an element, escaped or, against the rules, unescaped. Its links are relative
/// to `base`.
fn html_of(xml: &str, child: &Child, base: Option<&Url>) -> Option<String> {
    let base = rebase(base, [child.attribute("xml:base")]);
    let html = if child.nested {
        clean(&markup::html(xml.get(child.inner.clone())?, base.as_ref())).into_owned()
    } else {
        links::absolute(&clean(&child.text), base.as_ref()).into_owned()
    };
    (!html.trim().is_empty()).then_some(html)
}
