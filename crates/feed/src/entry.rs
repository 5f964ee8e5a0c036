//! One entry of a feed, independent of the format that it came in.

use jiff::Timestamp;
use ring::digest;

/// Begins every content hash; changes when the hashed fields change, so that hashes of different
/// rules never compare equal by accident.
const HASH_DOMAIN: &[u8] = b"flexfeed entry content v2";

/// Whether an update brings an entry for the first time or a new version of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The entry's id was not known.
    Created,
    /// The id was known, the content is not the same.
    Updated,
}

/// Who wrote an entry. At least one of the two is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Author {
    /// Human-readable name.
    pub name: Option<String>,
    /// The author's page, or `mailto:` and the address where the feed gives only that.
    pub url: Option<String>,
}

/// A file that belongs to an entry (RSS `enclosure`, Atom `link rel="enclosure"`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attachment {
    /// Where the file is.
    pub url: String,
    /// Its media type as the feed states it; JSON Feed asks for one, so
    /// `application/octet-stream` where the feed is silent.
    pub mime_type: String,
    /// Its size in bytes, if stated.
    pub size: Option<u64>,
}

/// One entry as the feed gives it at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The feed's own id, used as it is. Where the feed gives none, or one that also stands on
    /// entries with other links (some feeds give all of theirs one guid), a stable `urn:uuid:` made
    /// from link and title: the same after the entry was moved, dated anew or spaced otherwise.
    /// Never empty, at most [`crate::parse::MAX_ID_BYTES`] long.
    pub id: String,
    /// Plain text, without markup.
    pub title: Option<String>,
    /// The page that the entry is about or lives at.
    pub url: Option<String>,
    /// In the document's order.
    pub authors: Vec<Author>,
    /// When it was first published, if the feed says so.
    pub published: Option<Timestamp>,
    /// When it last changed, if the feed says so.
    pub updated: Option<Timestamp>,
    /// The content as HTML. Not sanitised: it is as trustworthy as the feed.
    pub content_html: Option<String>,
    /// The content as plain text, where it is not HTML.
    pub content_text: Option<String>,
    /// A short plain-text summary.
    pub summary: Option<String>,
    /// Categories.
    pub tags: Vec<String>,
    /// The language of the texts (RFC 5646), where the feed or the entry says so.
    pub language: Option<String>,
    /// Enclosures.
    pub attachments: Vec<Attachment>,
    /// A namespace-complete Atom `<entry>` element (RFC 4287 section 4.1.2). For an Atom feed it
    /// is the original text, byte for byte, except that declarations in scope (`xmlns…`, where
    /// needed `xml:base` and `xml:lang`) are added to the start tag; otherwise it is made from the
    /// other fields.
    pub xml: String,
}

impl Entry {
    /// SHA-256 over what a reader would see change: id, title, link, authors, summary, content and
    /// the addresses of the enclosures.
    ///
    /// What changes without anything being new does not count:
    /// - dates: a re-dated but otherwise equal entry is not a new version;
    /// - numbers of comments, replies, votes and views (`slash:comments`, `thr:count`,
    ///   `media:statistics`, …): they are in no field;
    /// - categories and the language, which some systems give in another order, or only at times;
    /// - size, type and query of an enclosure: media hosts sign their addresses anew for each
    ///   request, and put in advertisements of another length.
    ///
    /// The entry's own link counts as it is, with its query: one that is only for tracking cannot
    /// be told from one that says which page it is.
    #[must_use]
    pub fn content_hash(&self) -> [u8; 32] {
        let mut hash = Fields::new(HASH_DOMAIN);
        hash.field(Some(&self.id));
        hash.field(self.title.as_deref());
        hash.field(self.url.as_deref());
        hash.field(self.summary.as_deref());
        hash.field(self.content_html.as_deref());
        hash.field(self.content_text.as_deref());
        for author in &self.authors {
            hash.field(author.name.as_deref());
            hash.field(author.url.as_deref());
        }
        for attachment in &self.attachments {
            hash.field(attachment.url.split('?').next());
        }
        hash.finish()
    }
}

/// A SHA-256 over a list of optional strings in which no two lists can run together.
pub(crate) struct Fields(digest::Context);

impl Fields {
    pub(crate) fn new(domain: &[u8]) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(domain);
        Self(context)
    }

    pub(crate) fn field(&mut self, value: Option<&str>) {
        match value {
            None => self.0.update(&[0]),
            Some(text) => {
                self.0.update(&[1]);
                self.0.update(&(text.len() as u64).to_be_bytes());
                self.0.update(text.as_bytes());
            }
        }
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        let mut out = [0; 32];
        // SHA-256 is 32 bytes; zip cannot go out of bounds whatever it is.
        for (to, from) in out.iter_mut().zip(self.0.finish().as_ref()) {
            *to = *from;
        }
        out
    }

    /// The first half of the hash as a `urn:uuid:` (RFC 9562 version 8, custom).
    pub(crate) fn finish_urn(self) -> String {
        let hash = self.finish();
        let mut half = [0; 16];
        for (to, from) in half.iter_mut().zip(hash) {
            *to = from;
        }
        uuid::Builder::from_custom_bytes(half)
            .into_uuid()
            .urn()
            .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Entry {
        Entry {
            id: "urn:a".into(),
            title: Some("Title".into()),
            content_text: Some("Text".into()),
            authors: vec![Author {
                name: Some("A".into()),
                url: None,
            }],
            attachments: vec![Attachment {
                url: "https://media.example/1.mp3?signature=1".into(),
                mime_type: "audio/mpeg".into(),
                size: Some(7),
            }],
            ..Entry::default()
        }
    }

    #[test]
    fn a_new_date_is_not_a_new_version() {
        let mut redated = sample();
        redated.updated = Some(Timestamp::UNIX_EPOCH);
        redated.published = Some(Timestamp::UNIX_EPOCH);
        redated.xml = "<entry/>".into();
        redated.tags = vec!["tag".into()];
        redated.language = Some("en".into());
        let file = &mut redated.attachments[0];
        file.url = "https://media.example/1.mp3?signature=2".into();
        file.size = Some(8);
        assert_eq!(redated.content_hash(), sample().content_hash());
    }

    #[test]
    fn every_visible_field_counts() {
        let base = sample().content_hash();
        let changes: [fn(&mut Entry); 8] = [
            |e| e.id.push('x'),
            |e| e.title = None,
            |e| e.url = Some("https://example.org/".into()),
            |e| e.summary = Some(String::new()),
            |e| e.content_html = e.content_text.take(),
            |e| e.content_text = Some("Other".into()),
            |e| e.authors.push(Author::default()),
            |e| e.attachments[0].url = "https://media.example/2.mp3".into(),
        ];
        for change in changes {
            let mut entry = sample();
            change(&mut entry);
            assert_ne!(entry.content_hash(), base);
        }
    }

    #[test]
    fn neighbouring_fields_cannot_run_together() {
        let with = |title: &str, url: &str| Entry {
            title: Some(title.into()),
            url: Some(url.into()),
            ..Entry::default()
        };
        assert_ne!(
            with("ab", "c").content_hash(),
            with("a", "bc").content_hash()
        );
    }
}
