//! Media RSS (`media:group`, `media:content`), which sites add to entries of all XML formats.

use url::Url;

use super::fields::{add_attachment, text};
use crate::entry::Entry;
use crate::html;
use crate::xml::element::{Child, outline};

/// Whether the namespace is that of Media RSS, in either spelling.
fn is_media(namespace: &str) -> bool {
    matches!(
        namespace.trim_end_matches('/'),
        "http://search.yahoo.com/mrss"
            | "https://search.yahoo.com/mrss"
            | "undeclared prefix media"
    )
}

/// Adds the files, and fills in a title and a description if the entry has none of its own.
pub(super) fn read(xml: &str, children: &[Child], base: Option<&Url>, entry: &mut Entry) {
    for child in children.iter().filter(|c| is_media(&c.namespace)) {
        match child.local.as_str() {
            "group" => {
                if let Some(inner) = xml.get(child.range.clone())
                    && let Ok(group) = outline(inner)
                {
                    // A group outside its document: prefixes are all that is left of namespaces.
                    for inner in group.children.iter().filter(|c| in_group(&c.namespace)) {
                        one(inner, base, entry);
                    }
                }
            }
            _ => one(child, base, entry),
        }
    }
}

fn in_group(namespace: &str) -> bool {
    is_media(namespace) || namespace.starts_with("undeclared prefix ")
}

fn one(child: &Child, base: Option<&Url>, entry: &mut Entry) {
    match child.local.as_str() {
        "content" => add_attachment(
            entry,
            child.attribute("url"),
            child.attribute("type"),
            child.attribute("fileSize"),
            base,
        ),
        "title" if entry.title.is_none() => {
            entry.title = text(&html::text_or_html(&child.text));
        }
        "description" | "text" => {
            let none = entry.content_html.is_none()
                && entry.content_text.is_none()
                && entry.summary.is_none();
            if none && let Some(description) = text(&child.text) {
                if child.attribute("type") == Some("html") {
                    entry.content_html = Some(description);
                } else {
                    entry.content_text = Some(description);
                }
            }
        }
        _ => {}
    }
}
