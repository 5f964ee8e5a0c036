//! The receiver's Atom file (RFC 4287): the last entries of a channel, newest first.
//!
//! The file is its own memory: it is read again at start. A processing instruction before each
//! entry, `<?flexfeed INCARNATION/SEQ TIME?>`, says which update brought it, so that an update
//! that is delivered again after a crash changes nothing; readers of feeds ignore it.

mod reread;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

use crate::entry::{Entry, Fields};
use crate::payload::Update;
use crate::xml::check::{Form, check};
use crate::xml::element::outline;
use crate::xml::{ATOM_NS, clean, push_attribute, push_text, synthesise};

/// How many entries a file keeps by default.
pub const KEEP: usize = 500;

/// The most bytes of entries that a file keeps, whatever their number: the oldest go first. The
/// newest entry is always kept.
pub const MAX_FILE_BYTES: usize = 64 << 20;

/// What the file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedMeta {
    /// The feed's permanent id, an IRI (RFC 4287 section 4.2.6).
    pub id: String,
    /// Its title for people.
    pub title: String,
    /// The address of the original feed; where `None`, that of the first update is taken.
    pub link: Option<String>,
}

impl FeedMeta {
    /// For a channel of the source at `source` (`host:port`): an id that is the same at each start.
    #[must_use]
    pub fn for_channel(source: &str, channel: &str) -> Self {
        let mut fields = Fields::new(b"flexfeed channel file v1");
        fields.field(Some(source));
        fields.field(Some(channel));
        Self {
            id: fields.finish_urn(),
            title: format!("{channel} (flexfeed)"),
            link: None,
        }
    }
}

/// What was found instead of a good file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// Where the damaged file is now.
    pub moved_to: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// What [`AtomFile::upsert`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upserted {
    /// The entry is new in the file.
    Added,
    /// An older version of it was there.
    Replaced,
    /// This update or a later one of the same entry was there, or the file is full of later ones.
    Unchanged,
}

/// Why the file cannot be read or written.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {source}; check that the data folder exists, is writable and has room", path.display())]
pub struct AtomError {
    /// What was being done.
    pub action: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// One entry in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slot {
    id: String,
    /// Incarnation and seq of the update; `None` for an entry of unknown origin.
    origin: Option<(Uuid, u64)>,
    /// When the source stored the update.
    time: Timestamp,
    xml: String,
}

/// The file of one channel, in memory and on disk.
#[derive(Debug)]
pub struct AtomFile {
    path: PathBuf,
    meta: FeedMeta,
    keep: usize,
    /// [`MAX_FILE_BYTES`].
    max_bytes: usize,
    /// Newest first.
    slots: Vec<Slot>,
    /// Whether the file on disk is not what is in memory.
    dirty: bool,
    damaged: Option<Damaged>,
}

impl AtomFile {
    /// Opens or begins the file at `path`, which keeps at most `keep` entries (see [`KEEP`]).
    ///
    /// A damaged file is moved to `NAME.damaged-UNIXTIME`, a new one is begun, and
    /// [`AtomFile::damaged`] tells. Nothing is written before [`AtomFile::write`].
    ///
    /// # Errors
    /// If a file is there and cannot be read, or cannot be moved aside.
    pub fn open(path: &Path, meta: FeedMeta, keep: usize) -> Result<Self, AtomError> {
        let mut file = Self {
            path: path.to_owned(),
            meta,
            keep: keep.max(1),
            max_bytes: MAX_FILE_BYTES,
            slots: Vec::new(),
            dirty: true,
            damaged: None,
        };
        match reread::read(path) {
            Ok(Some(slots)) => {
                file.slots = slots;
                // Also where the limits are lower than when it was written.
                file.dirty = file.trim();
            }
            Ok(None) => {}
            Err(reread::Unreadable::Io(source)) => {
                return Err(AtomError {
                    action: "read",
                    path: path.to_owned(),
                    source,
                });
            }
            Err(reread::Unreadable::Damaged(reason)) => {
                file.damaged = Some(Damaged {
                    moved_to: set_aside(path)?,
                    reason,
                });
            }
        }
        Ok(file)
    }

    /// The damaged file that was found at opening, if so.
    #[must_use]
    pub fn damaged(&self) -> Option<&Damaged> {
        self.damaged.as_ref()
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many entries it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The entries' ids, newest first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().map(|slot| slot.id.as_str())
    }

    /// Takes an update in: a new entry comes to the front, a new version replaces the older one
    /// and comes to the front. An update that is already in, or is older than what is in, changes
    /// nothing, so delivering again from any earlier point is harmless. Only memory changes; see
    /// [`AtomFile::write`].
    ///
    /// The entry's own XML is embedded where it is a well-formed Atom entry with the update's id;
    /// otherwise one is made from the other fields.
    pub fn upsert(&mut self, update: &Update) -> Upserted {
        let origin = (update.incarnation, update.seq);
        let id = file_id(&update.entry.id);
        let old = self.slots.iter().position(|s| s.id == id);
        if let Some(there) = old.and_then(|at| self.slots.get(at))
            && there
                .origin
                .is_some_and(|(i, seq)| i == origin.0 && seq >= origin.1)
        {
            return Upserted::Unchanged;
        }
        // In front of everything that is not later in the same numbering. In-order delivery always
        // inserts at 0; a repeated one finds its old place.
        let mut at = self
            .slots
            .iter()
            .position(|s| {
                s.origin
                    .is_none_or(|(i, seq)| i != origin.0 || seq < origin.1)
            })
            .unwrap_or(self.slots.len());
        if at >= self.keep {
            return Upserted::Unchanged;
        }
        let slot = Slot {
            xml: embeddable(&update.entry, &id, update.time),
            id,
            origin: Some(origin),
            time: update.time,
        };
        if let Some(old) = old {
            self.slots.remove(old);
            // The old version is never in front: it is earlier, or of another incarnation.
            at = at.min(self.slots.len());
        }
        self.slots.insert(at, slot);
        if self.meta.link.is_none() {
            self.meta.link = Some(update.feed_url.clone());
        }
        self.trim();
        self.dirty = true;
        if old.is_some() {
            Upserted::Replaced
        } else {
            Upserted::Added
        }
    }

    /// Entries of this incarnation with a greater seq than `after` count as of unknown origin from
    /// here on: their source was restored from an older backup and gives these numbers again,
    /// perhaps to others. They stay until a new version comes. Only memory changes; see
    /// [`AtomFile::write`].
    pub fn forget_numbers(&mut self, incarnation: Uuid, after: u64) {
        for slot in &mut self.slots {
            if slot
                .origin
                .is_some_and(|(i, seq)| i == incarnation && seq > after)
            {
                slot.origin = None;
                self.dirty = true;
            }
        }
    }

    /// Drops the oldest entries past the limits. Says whether there were any.
    fn trim(&mut self) -> bool {
        let before = self.slots.len();
        let most = self.max_bytes;
        self.slots.truncate(self.keep);
        let mut bytes = 0usize;
        let fit = self
            .slots
            .iter()
            .take_while(|slot| {
                bytes = bytes.saturating_add(slot.xml.len());
                bytes <= most
            })
            .count();
        self.slots.truncate(fit.max(1));
        self.slots.len() != before
    }

    /// Writes the file if anything changed since it was last written or read: to a temporary file
    /// beside it, synced, then renamed over it, then the folder synced. When this returns, a crash
    /// of the machine leaves the new file, and at any moment before it the old one.
    ///
    /// Blocks for the disk; call it off the async threads.
    ///
    /// # Errors
    /// If the folder cannot be written to. The old file then stays, and the next call tries again.
    pub fn write(&mut self) -> Result<(), AtomError> {
        if !self.dirty {
            return Ok(());
        }
        // One name, so that crashes do not leave ever more of them.
        let temporary = beside(&self.path, ".", ".tmp");
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| AtomError {
                action,
                path,
                source,
            }
        };
        let write = || -> io::Result<()> {
            let mut out = BufWriter::with_capacity(1 << 16, create(&temporary)?);
            self.render(&mut out)?;
            out.into_inner()?.sync_all()
        };
        write().map_err(|source| {
            // On a full disk, what was written of it takes room that others need.
            let _ = fs::remove_file(&temporary);
            failed("write", &temporary)(source)
        })?;
        fs::rename(&temporary, &self.path).map_err(failed("replace", &self.path))?;
        sync_folder(&self.path).map_err(failed("sync the folder of", &self.path))?;
        self.dirty = false;
        Ok(())
    }

    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        let updated = self.slots.iter().map(|slot| slot.time).max();
        let updated = updated.unwrap_or_else(Timestamp::now);
        let mut head = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<feed xmlns=\"");
        head.push_str(ATOM_NS);
        head.push_str("\">\n");
        synthesise::element(&mut head, "id", &self.meta.id);
        synthesise::element(&mut head, "title", &self.meta.title);
        synthesise::element(&mut head, "updated", &format!("{updated:.3}"));
        // RFC 4287 section 4.1.1: needed as soon as one entry has no author of its own.
        head.push_str("<author>");
        synthesise::element(&mut head, "name", &self.meta.title);
        head.push_str("</author>");
        if let Some(link) = &self.meta.link {
            head.push_str("<link rel=\"alternate\" href=\"");
            push_attribute(&mut head, link);
            head.push_str("\"/>");
        }
        head.push_str("<generator>flexfeed</generator>\n");
        out.write_all(head.as_bytes())?;
        for slot in &self.slots {
            if let Some((incarnation, seq)) = slot.origin {
                writeln!(out, "<?flexfeed {incarnation}/{seq} {:.3}?>", slot.time)?;
            }
            out.write_all(slot.xml.as_bytes())?;
            out.write_all(b"\n")?;
        }
        out.write_all(b"</feed>\n")
    }
}

/// The id as it is read back from the file: without surrounding white space and without the
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

/// The entry's XML as it can stand in the file, with the id `id`.
fn embeddable(entry: &Entry, id: &str, time: Timestamp) -> String {
    let usable = check(&entry.xml, Form::Element)
        .ok()
        .and_then(|()| outline(&entry.xml).ok())
        .filter(|element| {
            let own = element.child(ATOM_NS, "id").map(|c| c.text.trim());
            element.namespace == ATOM_NS
                && element.local == "entry"
                // An entry without an id of its own gets one below; any other id than the
                // update's would be a different entry to whoever reads the file.
                && own.is_none_or(|own| own == id)
        });
    let (mut xml, element) = match usable {
        Some(element) => (entry.xml.clone(), element),
        None => {
            let xml = made(entry, id, entry.updated);
            match outline(&xml) {
                Ok(element) => (xml, element),
                // What we write is XML; were it not, the file must not suffer.
                Err(_) => return String::new(),
            }
        }
    };
    // What RFC 4287 section 4.1.2 demands and the original lacks goes in before the end tag; the
    // rest stays byte for byte.
    let mut missing = String::new();
    let prefix = xml
        .get(1..1 + element.name_len)
        .and_then(|name| name.strip_suffix("entry"))
        .unwrap_or("")
        .to_owned();
    let mut need = |local: &str, text: &str| {
        if element.child(ATOM_NS, local).is_none() {
            let name = format!("{prefix}{local}");
            missing.push('<');
            missing.push_str(&name);
            missing.push('>');
            push_text(&mut missing, text);
            missing.push_str("</");
            missing.push_str(&name);
            missing.push('>');
        }
    };
    need("id", id);
    need("title", entry.title.as_deref().unwrap_or(""));
    need("updated", &format!("{time:.3}"));
    if !missing.is_empty() {
        match element.content_end {
            Some(end) => xml.insert_str(end, &missing),
            // `<entry/>`: nothing of it is worth keeping. With an id, the made one is complete.
            None => xml = made(entry, id, entry.updated.or(Some(time))),
        }
    }
    xml
}

fn made(entry: &Entry, id: &str, updated: Option<Timestamp>) -> String {
    synthesise::entry(&Entry {
        id: id.to_owned(),
        updated,
        xml: String::new(),
        ..entry.clone()
    })
}

/// `path` with its file name between `before` and `after`.
fn beside(path: &Path, before: &str, after: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(before);
    name.push(path.file_name().unwrap_or_default());
    name.push(after);
    path.with_file_name(name)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
}

fn set_aside(path: &Path) -> Result<PathBuf, AtomError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let to = beside(path, "", &format!(".damaged-{now}"));
    fs::rename(path, &to).map_err(|source| AtomError {
        action: "move aside the damaged",
        path: path.to_owned(),
        source,
    })?;
    Ok(to)
}

/// A rename is durable only when the folder is.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
