//! The receiver's Atom file (RFC 4287): the last entries of a channel, newest first.
//!
//! A processing instruction before each entry, `<?flexfeed INCARNATION/SEQ TIME?>`, names the
//! update that brought the entry; feed readers ignore it. An entry's own XML is embedded if it is a
//! well-formed Atom entry with the update's id; otherwise an entry is written from the other
//! fields.

mod embed;
mod reread;

use jiff::Timestamp;

use crate::entry::{Entry, Fields};
use crate::feed_file::{Content, Form};
pub use crate::feed_file::{
    DamagedFile, FeedFile, FeedMeta, FileError, KEEP, MAX_FILE_BYTES, UpsertOutcome,
};
use crate::window::Slot;
use crate::xml::check::{self, check};
use crate::xml::{ATOM_NS, clean, push_attribute, synthesise};

/// The format of [`AtomFile`].
#[derive(Debug)]
pub struct Atom;

/// The Atom file of one channel, in memory and on disk.
pub type AtomFile = FeedFile<Atom>;

impl Form for Atom {
    fn id(id: &str) -> String {
        file_id(id)
    }

    fn entry(entry: &Entry, id: &str, time: Timestamp) -> String {
        embed::embeddable(entry, id, time)
    }

    fn head(meta: &FeedMeta, updated: Timestamp) -> String {
        let mut head = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<feed xmlns=\"");
        head.push_str(ATOM_NS);
        head.push_str("\">\n");
        synthesise::element(&mut head, "id", &meta.id);
        synthesise::element(&mut head, "title", &meta.title);
        synthesise::element(&mut head, "updated", &format!("{updated:.3}"));
        // RFC 4287 section 4.1.1: required as soon as one entry has no author of its own.
        head.push_str("<author>");
        synthesise::element(&mut head, "name", &meta.title);
        head.push_str("</author>");
        for (rel, link) in [("alternate", &meta.link), ("self", &meta.own)] {
            if let Some(link) = link {
                head.push_str("<link rel=\"");
                head.push_str(rel);
                head.push_str("\" href=\"");
                push_attribute(&mut head, link);
                head.push_str("\"/>");
            }
        }
        head.push_str("<generator>flexfeed</generator>\n");
        head
    }

    fn frame(slot: &Slot, _: usize) -> (String, String) {
        let before = match slot.origin {
            Some((incarnation, seq)) => {
                format!("<?flexfeed {incarnation}/{seq} {:.3}?>", slot.time) + "\n"
            }
            None => String::new(),
        };
        (before, "\n".to_owned())
    }

    const TAIL: &'static str = "</feed>\n";

    fn read(text: &str) -> Result<Content, String> {
        check(text, check::Form::Document)?;
        reread::content(text)
    }
}

/// Returns the id as it is read back from the file: without surrounding white space and without the
/// characters that XML cannot hold.
fn file_id(id: &str) -> String {
    let kept = clean(id);
    if kept.trim().is_empty() {
        let mut fields = Fields::new(b"flexfeed file id v1");
        fields.field(Some(id));
        return fields.finish_urn();
    }
    kept.trim().to_owned()
}

#[cfg(test)]
mod tests;
