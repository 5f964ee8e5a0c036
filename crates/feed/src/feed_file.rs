//! A feed file of the receiver: a window of a channel's last entries in one format, kept on disk.
//!
//! The file is its own memory: it is read again at start, so that an update that is delivered
//! again after a crash changes nothing. [`crate::atom`] and [`crate::json_feed`] are the formats.

use std::fs::{self, File};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

use crate::entry::{Entry, Fields};
use crate::payload::Update;
pub use crate::snapshot::{Piece, Snapshot};
pub use crate::window::{KEEP, MAX_FILE_BYTES, Upserted};
use crate::window::{Slot, Window};

/// Room for what the file has beside its entries' text.
const MAX_EXTRA: usize = 4 << 20;

/// What the file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedMeta {
    /// The feed's permanent id, an IRI (RFC 4287 section 4.2.6).
    pub id: String,
    /// Its title for people.
    pub title: String,
    /// The address of the original feed; where `None`, the one that the file names, and otherwise
    /// that of the first update.
    pub link: Option<String>,
    /// Where this file itself can be had, if it is served anywhere: Atom's `self` link, JSON
    /// Feed's `feed_url`.
    pub own: Option<String>,
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
            own: None,
        }
    }

    /// The same for a file that is served at `address`.
    #[must_use]
    pub fn served_at(mut self, address: &str) -> Self {
        self.own = Some(address.to_owned());
        self
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

/// Why the file cannot be read or written.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {source}; check that the data folder exists, is writable and has room", path.display())]
pub struct FileError {
    /// What was being done.
    pub action: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// A format of feed files: a head, the entries with what frames each of them, a tail.
pub(crate) trait Form {
    /// The id as it is read back from a file.
    fn id(id: &str) -> String;
    /// The text of an entry with the id `id` that was stored at `time`.
    fn entry(entry: &Entry, id: &str, time: Timestamp) -> String;
    /// Everything in front of the first entry.
    fn head(meta: &FeedMeta, updated: Timestamp) -> String;
    /// The text in front of and after the `n`th entry's own.
    fn frame(slot: &Slot, n: usize) -> (String, String);
    /// Everything after the last entry.
    const TAIL: &'static str;
    /// Reads what a [`Snapshot`] wrote, or says what is wrong with it.
    fn read(text: &str) -> Result<Content, String>;
}

/// What a file holds.
pub(crate) struct Content {
    /// The address of the original feed, if it names one.
    pub link: Option<String>,
    /// Newest first.
    pub slots: Vec<Slot>,
}

/// The file of one channel, in memory and on disk.
#[derive(Debug)]
#[allow(private_bounds)] // The formats are this crate's.
pub struct FeedFile<F: Form> {
    path: PathBuf,
    meta: FeedMeta,
    pub(crate) window: Window,
    /// Number of changes in memory since the start.
    version: u64,
    /// The version that is on disk; `None` while none is known to be.
    written: Option<u64>,
    /// Time of the last change.
    modified: SystemTime,
    damaged: Option<Damaged>,
    form: PhantomData<F>,
}

#[allow(private_bounds)] // As above.
impl<F: Form> FeedFile<F> {
    /// Opens or begins the file at `path`, which keeps at most `keep` entries (see [`KEEP`]).
    ///
    /// A damaged file is moved to `NAME.damaged-UNIXTIME`, a new one is begun, and
    /// [`FeedFile::damaged`] tells. Nothing is written before [`FeedFile::write`].
    ///
    /// # Errors
    /// If a file is there and cannot be read, or cannot be moved aside.
    pub fn open(path: &Path, meta: FeedMeta, keep: usize) -> Result<Self, FileError> {
        let mut file = Self {
            path: path.to_owned(),
            meta,
            window: Window::new(keep),
            version: 0,
            written: None,
            modified: SystemTime::now(),
            damaged: None,
            form: PhantomData,
        };
        match read::<F>(path) {
            // Also where the limits are lower than when it was written.
            Ok(Some((Content { link, slots }, modified))) => {
                file.meta.link = file.meta.link.or(link);
                if !file.window.fill(slots) {
                    file.written = Some(file.version);
                    file.modified = modified;
                }
            }
            Ok(None) => {}
            Err(Unreadable::Io(source)) => {
                return Err(FileError {
                    action: "read",
                    path: path.to_owned(),
                    source,
                });
            }
            Err(Unreadable::Damaged(reason)) => {
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
        self.window.slots().len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.window.slots().is_empty()
    }

    /// The entries' ids, newest first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.window.slots().iter().map(|slot| slot.id.as_str())
    }

    /// Takes an update in: a new entry comes to the front, a new version replaces the older one
    /// and comes to the front. An update that is already in, or is older than what is in, changes
    /// nothing, so delivering again from any earlier point is harmless. Only memory changes; see
    /// [`FeedFile::write`].
    pub fn upsert(&mut self, update: &Update) -> Upserted {
        let entry = &update.entry;
        let text = |id: &str| F::entry(entry, id, update.time);
        let did = self.window.upsert(update, F::id(&entry.id), text);
        if did != Upserted::Unchanged {
            if self.meta.link.is_none() {
                self.meta.link = Some(update.feed_url.clone());
            }
            self.change();
        }
        did
    }

    /// Entries of this incarnation with a greater seq than `after` count as of unknown origin from
    /// here on: their source was restored from an older backup and gives these numbers again,
    /// perhaps to others. They stay until a new version comes. Only memory changes; see
    /// [`FeedFile::write`].
    pub fn forget_numbers(&mut self, incarnation: Uuid, after: u64) {
        if self.window.forget_numbers(incarnation, after) {
            self.change();
        }
    }

    /// The newest update that is in, by the order of delivery.
    #[must_use]
    pub fn newest(&self) -> Option<(Uuid, u64)> {
        self.window.slots().iter().find_map(|slot| slot.origin)
    }

    /// About how long the file is, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.window.bytes() as u64
    }

    /// The number of changes since the start.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the file on disk is what is in memory.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.written == Some(self.version)
    }

    /// Notes that this version is on disk; see [`Snapshot::store`].
    fn note_written(&mut self, version: u64) {
        self.written = Some(version);
    }

    /// The whole document as it is now. Shares the entries with the file in memory.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let slots = self.window.slots();
        let updated = slots.iter().map(|slot| slot.time).max();
        let updated = updated.or_else(|| Timestamp::try_from(self.modified).ok());
        let head = F::head(&self.meta, updated.unwrap_or(Timestamp::UNIX_EPOCH));
        let entries = slots.iter().enumerate().map(|(n, slot)| {
            let (before, after) = F::frame(slot, n);
            (before, Arc::clone(&slot.text), after)
        });
        Snapshot::new(self.version, self.modified, head, entries, F::TAIL)
    }

    /// Writes the file if anything changed since it was last written or read: see
    /// [`Snapshot::store`].
    ///
    /// # Errors
    /// If the folder cannot be written to. The old file then stays, and the next call tries again.
    pub fn write(&mut self) -> Result<(), FileError> {
        if !self.is_written() {
            let snapshot = self.snapshot();
            snapshot.store(&self.path)?;
            self.note_written(snapshot.version());
        }
        Ok(())
    }

    /// The same for a file that is shared: the lock is not held while the disk is written to.
    /// Returns how many bytes were written.
    ///
    /// # Errors
    /// As [`FeedFile::write`].
    pub fn write_shared(file: &Mutex<Self>) -> Result<u64, FileError> {
        // Nothing is changed half under this lock.
        let lock = || file.lock().unwrap_or_else(PoisonError::into_inner);
        let (snapshot, path) = {
            let file = lock();
            if file.is_written() {
                return Ok(0);
            }
            (file.snapshot(), file.path.clone())
        };
        let bytes = snapshot.store(&path)?;
        lock().note_written(snapshot.version());
        Ok(bytes)
    }

    fn change(&mut self) {
        self.version += 1;
        self.modified = SystemTime::now();
    }
}

enum Unreadable {
    Io(io::Error),
    /// What is wrong with the content.
    Damaged(String),
}

/// Returns the file's content and modification time, or `None` if there is no file.
fn read<F: Form>(path: &Path) -> Result<Option<(Content, SystemTime)>, Unreadable> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Unreadable::Io(e)),
    };
    let most = MAX_FILE_BYTES + MAX_EXTRA;
    let modified = file.metadata().and_then(|meta| meta.modified());
    let modified = modified.map_err(Unreadable::Io)?;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(Unreadable::Io)?;
    if bytes.len() > most {
        return Err(Unreadable::Damaged(format!("longer than {most} bytes")));
    }
    let text = String::from_utf8(bytes)
        .map_err(|e| Unreadable::Damaged(format!("not UTF-8: {}", e.utf8_error())))?;
    let content = F::read(&text).map_err(Unreadable::Damaged)?;
    Ok(Some((content, modified)))
}

/// `path` with its file name between `before` and `after`.
pub(crate) fn beside(path: &Path, before: &str, after: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(before);
    name.push(path.file_name().unwrap_or_default());
    name.push(after);
    path.with_file_name(name)
}

fn set_aside(path: &Path) -> Result<PathBuf, FileError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let to = beside(path, "", &format!(".damaged-{now}"));
    fs::rename(path, &to).map_err(|source| FileError {
        action: "move aside the damaged",
        path: path.to_owned(),
        source,
    })?;
    Ok(to)
}
