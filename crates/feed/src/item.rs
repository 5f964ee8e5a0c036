//! JSON Feed 1.1 item: the form of an entry in an update's event and in a JSON Feed file.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::{Attachment, Author, Entry};

/// Item of one entry, with flexfeed's own extension in `_flexfeed`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Item<X> {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_html: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    date_published: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    date_modified: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    authors: Vec<ItemAuthor>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<ItemAttachment>,
    #[serde(rename = "_flexfeed", skip_serializing_if = "Option::is_none")]
    pub extension: Option<X>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ItemAuthor {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ItemAttachment {
    url: String,
    mime_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size_in_bytes: Option<u64>,
}

impl<X> Item<X> {
    pub(crate) fn new(entry: &Entry, extension: Option<X>) -> Self {
        let contentless = entry.content_html.is_none() && entry.content_text.is_none();
        Self {
            id: entry.id.clone(),
            url: entry.url.clone(),
            title: entry.title.clone(),
            content_html: entry.content_html.clone(),
            // JSON Feed 1.1 requires one of the two.
            content_text: if contentless {
                Some(String::new())
            } else {
                entry.content_text.clone()
            },
            summary: entry.summary.clone(),
            date_published: entry.published,
            date_modified: entry.updated,
            authors: entry
                .authors
                .iter()
                .map(|a| ItemAuthor {
                    name: a.name.clone(),
                    url: a.url.clone(),
                })
                .collect(),
            tags: entry.tags.clone(),
            language: entry.language.clone(),
            attachments: entry
                .attachments
                .iter()
                .map(|a| ItemAttachment {
                    url: a.url.clone(),
                    mime_type: a.mime_type.clone(),
                    size_in_bytes: a.size,
                })
                .collect(),
            extension,
        }
    }

    /// Returns the entry, with this XML.
    pub(crate) fn into_entry(self, xml: String) -> Entry {
        Entry {
            id: self.id,
            title: self.title,
            url: self.url,
            authors: self
                .authors
                .into_iter()
                .map(|a| Author {
                    name: a.name,
                    url: a.url,
                })
                .collect(),
            published: self.date_published,
            updated: self.date_modified,
            content_text: self
                .content_text
                .filter(|t| !t.is_empty() || self.content_html.is_some()),
            content_html: self.content_html,
            summary: self.summary,
            tags: self.tags,
            language: self.language,
            attachments: self
                .attachments
                .into_iter()
                .map(|a| Attachment {
                    url: a.url,
                    mime_type: a.mime_type,
                    size: a.size_in_bytes,
                })
                .collect(),
            xml,
        }
    }
}
