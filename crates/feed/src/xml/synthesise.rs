//! Writing of an Atom `<entry>` from an entry's fields: for RSS and JSON feeds, and if an original
//! cannot be embedded.

use super::element::outline;
use super::extensions::extensions;
use super::{ATOM_NS, push_attribute, push_text};
use crate::entry::{Author, Entry};

/// Returns a namespace-complete `<entry>` (RFC 4287 section 4.1.2). The element has no `updated` if
/// the feed gives no date: inventing one here would make two fetches of one entry differ.
/// `extensions` are elements of other namespaces, each complete.
pub(crate) fn entry(entry: &Entry, extensions: &str) -> String {
    let content_len = entry.content_html.as_ref().map_or(0, String::len)
        + entry.content_text.as_ref().map_or(0, String::len);
    let mut out = String::with_capacity(content_len + content_len / 8 + extensions.len() + 512);
    out.push_str("<entry xmlns=\"");
    out.push_str(ATOM_NS);
    if let Some(language) = &entry.language {
        out.push_str("\" xml:lang=\"");
        push_attribute(&mut out, language);
    }
    out.push_str("\">");
    element(&mut out, "id", &entry.id);
    element(&mut out, "title", entry.title.as_deref().unwrap_or(""));
    if let Some(updated) = entry.updated.or(entry.published) {
        element(&mut out, "updated", &updated.to_string());
    }
    if let Some(published) = entry.published {
        element(&mut out, "published", &published.to_string());
    }
    for a in &entry.authors {
        author(&mut out, "", a);
    }
    if let Some(url) = &entry.url {
        out.push_str("<link rel=\"alternate\" href=\"");
        push_attribute(&mut out, url);
        out.push_str("\"/>");
    }
    for attachment in &entry.attachments {
        out.push_str("<link rel=\"enclosure\" type=\"");
        push_attribute(&mut out, &attachment.mime_type);
        if let Some(size) = attachment.size {
            out.push_str("\" length=\"");
            out.push_str(&size.to_string());
        }
        out.push_str("\" href=\"");
        push_attribute(&mut out, &attachment.url);
        out.push_str("\"/>");
    }
    for tag in &entry.tags {
        out.push_str("<category term=\"");
        push_attribute(&mut out, tag);
        out.push_str("\"/>");
    }
    if let Some(summary) = &entry.summary {
        element(&mut out, "summary", summary);
    }
    let content = match (&entry.content_html, &entry.content_text) {
        (Some(html), _) => Some(("html", html.as_str())),
        (None, Some(text)) => Some(("text", text.as_str())),
        // RFC 4287 section 4.1.2: without an alternate link there must be content.
        (None, None) if entry.url.is_none() => Some(("text", "")),
        (None, None) => None,
    };
    if let Some((kind, content)) = content {
        out.push_str("<content type=\"");
        out.push_str(kind);
        out.push_str("\">");
        push_text(&mut out, content);
        out.push_str("</content>");
    }
    out.push_str(extensions);
    out.push_str("</entry>");
    out
}

/// Returns the entry's XML with the entry's id in place of its own.
pub(crate) fn with_id(entry: &Entry) -> String {
    let Ok(element) = outline(&entry.xml) else {
        return self::entry(entry, "");
    };
    let own = element.child(ATOM_NS, "id");
    let own = own.and_then(|id| {
        Some((
            entry.xml.get(..id.inner.start)?,
            entry.xml.get(id.inner.end..)?,
        ))
    });
    match own {
        // Not `<id/>`.
        Some((before, after)) if before.ends_with('>') && after.starts_with("</") => {
            let mut out = String::with_capacity(entry.xml.len() + entry.id.len());
            out.push_str(before);
            push_text(&mut out, &entry.id);
            out.push_str(after);
            out
        }
        _ => self::entry(entry, &extensions(&entry.xml, &element)),
    }
}

/// Appends an author, with elements of this prefix (`atom:` or none).
pub(crate) fn author(out: &mut String, prefix: &str, author: &Author) {
    let mail = author
        .url
        .as_deref()
        .and_then(|u| u.strip_prefix("mailto:"));
    // RFC 4287 section 3.2.1: a person has exactly one name.
    let name = author.name.as_deref().or(mail).or(author.url.as_deref());
    out.push_str(&format!("<{prefix}author>"));
    element(out, &format!("{prefix}name"), name.unwrap_or(""));
    match (&author.url, mail) {
        (_, Some(mail)) => element(out, &format!("{prefix}email"), mail),
        (Some(url), None) => element(out, &format!("{prefix}uri"), url),
        (None, None) => {}
    }
    out.push_str(&format!("</{prefix}author>"));
}

pub(crate) fn element(out: &mut String, name: &str, text: &str) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    push_text(out, text);
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}
