//! Feed file of the receiver: a window of a channel's last entries in one format, kept on disk.
//!
//! The file is its own memory: it is read again at start, so that a repeated delivery after a crash
//! changes nothing. [`crate::atom`] and [`crate::json_feed`] are the formats.

use std::fs::{self, File};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use uuid::Uuid;

use crate::entry::{Entry, Fields};
pub use crate::file_error::FileError;
use crate::file_error::path_around;
use crate::payload::Update;
use crate::publication::FEED_URL;
pub use crate::snapshot::{Piece, Snapshot};
pub use crate::window::{KEEP, MAX_FILE_BYTES, UpsertOutcome};
use crate::window::{Slot, Window};

/// Bytes allowed in a file in addition to the text of its entries.
const MAX_EXTRA: usize = 4 << 20;

/// Metadata of a feed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedMeta {
    /// Permanent id of the feed, an IRI (RFC 4287 section 4.2.6).
    pub id: String,
    /// Title of the feed for people.
    pub title: String,
    /// Address of the original feed. If `None`, the address in the existing file, and otherwise
    /// that of the first update of a feed.
    pub link: Option<String>,
    /// Address at which this file is served, if it is: Atom's `self` link, JSON Feed's `feed_url`.
    pub own: Option<String>,
}

impl FeedMeta {
    /// Returns the metadata for a channel of the source at `source` (`host:port`), with an id that
    /// is the same at each start.
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

    /// Sets the address at which the file is served.
    #[must_use]
    pub fn served_at(mut self, address: &str) -> Self {
        self.own = Some(address.to_owned());
        self
    }
}

/// Damaged file that was found and moved aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedFile {
    /// Current path of the damaged file.
    pub moved_to: PathBuf,
    /// Damage that was found.
    pub reason: String,
}

/// Format of feed files: a head, framed entries, a tail.
pub(crate) trait Form {
    /// Returns the id as it is read back from a file.
    fn id(id: &str) -> String;
    /// Returns the text of an entry with the id `id` that was stored at `time`.
    fn entry(entry: &Entry, id: &str, time: Timestamp) -> String;
    /// Returns everything in front of the first entry.
    fn head(meta: &FeedMeta, updated: Timestamp) -> String;
    /// Returns the text in front of and after the `n`th entry's own.
    fn frame(slot: &Slot, n: usize) -> (String, String);
    /// Everything after the last entry.
    const TAIL: &'static str;
    /// Reads the document of a [`Snapshot`].
    ///
    /// # Errors
    /// The damage, for people.
    fn read(text: &str) -> Result<Content, String>;
}

/// Content of a file.
pub(crate) struct Content {
    /// Address of the original feed, if the file names one.
    pub link: Option<String>,
    /// Entries, newest first.
    pub slots: Vec<Slot>,
}

/// Feed file of one channel, in memory and on disk.
#[derive(Debug)]
#[allow(private_bounds)] // The formats belong to this crate.
pub struct FeedFile<F: Form> {
    path: PathBuf,
    meta: FeedMeta,
    pub(crate) window: Window,
    /// Number of changes in memory since the start.
    version: u64,
    /// Version that is on disk; `None` while none is known to be.
    written: Option<u64>,
    /// Time of the last change.
    modified: SystemTime,
    damaged: Option<DamagedFile>,
    form: PhantomData<F>,
}

#[allow(private_bounds)] // As above.
impl<F: Form> FeedFile<F> {
    /// Opens the file at `path`, which keeps at most `keep` entries (see [`KEEP`]), or starts a new
    /// one.
    ///
    /// A damaged file is moved to `NAME.damaged-UNIXTIME` and replaced by a new one;
    /// [`FeedFile::damaged`] then reports it. Nothing is written before [`FeedFile::write`].
    ///
    /// # Errors
    /// If the file exists and cannot be read, or cannot be moved aside.
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
            // Also if the limits are lower than when the file was written.
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
                file.damaged = Some(DamagedFile {
                    moved_to: set_aside(path)?,
                    reason,
                });
            }
        }
        Ok(file)
    }

    /// Returns the damaged file that was found at opening, if any.
    #[must_use]
    pub fn damaged(&self) -> Option<&DamagedFile> {
        self.damaged.as_ref()
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.window.slots().len()
    }

    /// Whether the file has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.window.slots().is_empty()
    }

    /// Returns the entries' ids, newest first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.window.slots().iter().map(|slot| slot.id.as_str())
    }

    /// Applies an update: a new entry is inserted in front; a new version replaces the older one
    /// and moves to the front. An update that is already present, or older than the present
    /// version, changes nothing, so a repeated delivery from any earlier point is harmless. Only
    /// memory changes; see [`FeedFile::write`].
    pub fn upsert(&mut self, update: &Update) -> UpsertOutcome {
        let entry = &update.entry;
        let text = |id: &str| F::entry(entry, id, update.time);
        let did = self.window.upsert(update, F::id(&entry.id), text);
        if did != UpsertOutcome::Unchanged {
            // Publications come from no address.
            if self.meta.link.is_none() && update.feed_url != FEED_URL {
                self.meta.link = Some(update.feed_url.clone());
            }
            self.change();
        }
        did
    }

    /// Marks entries of this incarnation with a seq greater than `after` as of unknown origin:
    /// their source was restored from an older backup and reuses these numbers, perhaps for other
    /// entries. The entries stay until a new version arrives. Only memory changes; see
    /// [`FeedFile::write`].
    pub fn forget_numbers(&mut self, incarnation: Uuid, after: u64) {
        if self.window.forget_numbers(incarnation, after) {
            self.change();
        }
    }

    /// Returns the newest update in the file, by the order of delivery.
    #[must_use]
    pub fn newest(&self) -> Option<(Uuid, u64)> {
        self.window.slots().iter().find_map(|slot| slot.origin)
    }

    /// Returns the approximate length of the file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.window.bytes() as u64
    }

    /// Returns the number of changes since the start.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the file on disk equals the one in memory.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.written == Some(self.version)
    }

    /// Records that this version is on disk; see [`Snapshot::store`].
    fn note_written(&mut self, version: u64) {
        self.written = Some(version);
    }

    /// Returns the whole document as of now. The entries are shared with the file in memory.
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

    /// Writes a shared file as [`FeedFile::write`] does, without holding the lock during the disk
    /// write. Returns the number of bytes written.
    ///
    /// # Errors
    /// As [`FeedFile::write`].
    pub fn write_shared(file: &Mutex<Self>) -> Result<u64, FileError> {
        // No change is ever left half done under this lock.
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
    /// Content that is no valid file, and the damage.
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

fn set_aside(path: &Path) -> Result<PathBuf, FileError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let to = path_around(path, "", &format!(".damaged-{now}"));
    fs::rename(path, &to).map_err(|source| FileError {
        action: "move aside the damaged",
        path: path.to_owned(),
        source,
    })?;
    Ok(to)
}
