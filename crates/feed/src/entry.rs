//! One entry of a feed, independent of the feed's format.

use jiff::Timestamp;
use ring::digest;

/// Longest entry in bytes, as text. A longer one is skipped and named in
/// [`ParsedFeed::skipped`](crate::parse::ParsedFeed::skipped).
pub const MAX_ENTRY_BYTES: usize = 1 << 20;

/// Longest entry id in bytes. A longer one is replaced by its hash.
pub const MAX_ID_BYTES: usize = 2048;

/// First bytes of every content hash. The value changes whenever the hashed fields change, so that
/// hashes of different rules never compare equal by accident.
const HASH_DOMAIN: &[u8] = b"flexfeed entry content v2";

/// Whether an update is the first version of an entry or a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Entry whose id was not known.
    Created,
    /// Entry whose id was known, with other content.
    Updated,
}

/// Author of an entry. At least one of the two fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Author {
    /// Human-readable name.
    pub name: Option<String>,
    /// Page of the author, or `mailto:` and the address if the feed gives only that.
    pub url: Option<String>,
}

/// File that belongs to an entry (RSS `enclosure`, Atom `link rel="enclosure"`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attachment {
    /// Address of the file.
    pub url: String,
    /// Media type as stated by the feed. JSON Feed requires one, so it is
    /// `application/octet-stream` if the feed states none.
    pub mime_type: String,
    /// Size in bytes, if stated.
    pub size: Option<u64>,
}

/// One entry as the feed gives it at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The feed's own id, unchanged. If the feed gives none, or one that entries with other links
    /// share (some feeds give all of theirs one guid), a stable `urn:uuid:` made from link and
    /// title: the same after the entry was moved, re-dated or spaced otherwise. Never empty, at
    /// most [`MAX_ID_BYTES`] long.
    pub id: String,
    /// Title as plain text, without markup.
    pub title: Option<String>,
    /// Page that the entry is about or is published at.
    pub url: Option<String>,
    /// Authors in the document's order.
    pub authors: Vec<Author>,
    /// Time of first publication, if the feed states it.
    pub published: Option<Timestamp>,
    /// Time of the last change, if the feed states it.
    pub updated: Option<Timestamp>,
    /// Content as HTML. Not sanitised: as trustworthy as the feed.
    pub content_html: Option<String>,
    /// Content as plain text, if it is not HTML.
    pub content_text: Option<String>,
    /// Short plain-text summary.
    pub summary: Option<String>,
    /// Categories.
    pub tags: Vec<String>,
    /// Language of the texts (RFC 5646), if the feed or the entry states it.
    pub language: Option<String>,
    /// Enclosures.
    pub attachments: Vec<Attachment>,
    /// A namespace-complete Atom `<entry>` element (RFC 4287 section 4.1.2). For an Atom feed, the
    /// original text byte for byte, except that declarations in scope (`xmlns…`, and if needed
    /// `xml:base` and `xml:lang`) are added to the start tag; otherwise written from the other
    /// fields.
    pub xml: String,
}

impl Entry {
    /// Returns the SHA-256 of the fields in which a reader would notice a change: id, title, link,
    /// authors, summary, content and the addresses of the enclosures.
    ///
    /// Changes that bring nothing new do not count:
    /// - dates: a re-dated but otherwise equal entry is not a new version;
    /// - numbers of comments, replies, votes and views (`slash:comments`, `thr:count`,
    ///   `media:statistics`, …): no field contains them;
    /// - categories and the language, which some systems give in varying order, or only at times;
    /// - size, type and query of an enclosure: media hosts sign their addresses for each request,
    ///   and insert advertisements of varying length.
    ///
    /// The entry's own link counts as it is, with its query: a query that is only for tracking
    /// cannot be distinguished from one that selects the page.
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

/// SHA-256 over a list of optional strings in which no two lists can run together.
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
        // SHA-256 is 32 bytes; zip cannot go out of bounds at any length.
        for (to, from) in out.iter_mut().zip(self.0.finish().as_ref()) {
            *to = *from;
        }
        out
    }

    /// Returns the first half of the hash as a `urn:uuid:` (RFC 9562 version 8, custom).
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
