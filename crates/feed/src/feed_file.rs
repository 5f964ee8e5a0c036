//! A feed file of the receiver: a window of a channel's last entries in one format, kept on disk.
//!
//! The file is its own memory: it is read again at start, so that an update that is delivered
//! again after a crash changes nothing. [`crate::atom`] and [`crate::json_feed`] are the formats.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use thiserror::Error;
use uuid::Uuid;

use crate::entry::{Entry, Fields};
use crate::payload::Update;
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

/// A format of feed files.
pub(crate) trait Form {
    /// The id as it is read back from a file.
    fn id(id: &str) -> String;
    /// The text of an entry that stands in the file as `slot` says.
    fn entry(entry: &Entry, slot: &Slot) -> String;
    /// Writes the whole file. All slots have their text.
    fn write(
        meta: &FeedMeta,
        updated: Timestamp,
        slots: &[Slot],
        out: &mut impl Write,
    ) -> io::Result<()>;
    /// Reads what [`Form::write`] wrote, or says what is wrong with it.
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
    /// Whether the file on disk is not what is in memory.
    dirty: bool,
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
            dirty: true,
            damaged: None,
            form: PhantomData,
        };
        match read::<F>(path) {
            // Also where the limits are lower than when it was written.
            Ok(Some(Content { link, slots })) => {
                file.meta.link = file.meta.link.or(link);
                file.dirty = file.window.fill(slots);
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
        let did = self.window.upsert(update, F::id(&update.entry.id));
        if did != Upserted::Unchanged {
            if self.meta.link.is_none() {
                self.meta.link = Some(update.feed_url.clone());
            }
            self.dirty = true;
        }
        did
    }

    /// Entries of this incarnation with a greater seq than `after` count as of unknown origin from
    /// here on: their source was restored from an older backup and gives these numbers again,
    /// perhaps to others. They stay until a new version comes. Only memory changes; see
    /// [`FeedFile::write`].
    pub fn forget_numbers(&mut self, incarnation: Uuid, after: u64) {
        self.dirty |= self.window.forget_numbers(incarnation, after);
    }

    /// Writes the file if anything changed since it was last written or read: to a temporary file
    /// beside it, synced, then renamed over it, then the folder synced. When this returns, a crash
    /// of the machine leaves the new file, and at any moment before it the old one.
    ///
    /// Blocks for the disk; call it off the async threads.
    ///
    /// # Errors
    /// If the folder cannot be written to. The old file then stays, and the next call tries again.
    pub fn write(&mut self) -> Result<(), FileError> {
        if !self.dirty {
            return Ok(());
        }
        self.settle();
        // One name, so that crashes do not leave ever more of them.
        let temporary = beside(&self.path, ".", ".tmp");
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| FileError {
                action,
                path,
                source,
            }
        };
        let slots = self.window.slots();
        let updated = slots.iter().map(|slot| slot.time).max();
        let updated = updated.unwrap_or_else(Timestamp::now);
        let write = || -> io::Result<()> {
            let mut out = BufWriter::with_capacity(1 << 16, create(&temporary)?);
            F::write(&self.meta, updated, slots, &mut out)?;
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

    pub(crate) fn settle(&mut self) {
        self.window.settle(F::entry);
    }
}

enum Unreadable {
    Io(io::Error),
    /// What is wrong with the content.
    Damaged(String),
}

/// What is in the file at `path`, or `None` if there is no file.
fn read<F: Form>(path: &Path) -> Result<Option<Content>, Unreadable> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Unreadable::Io(e)),
    };
    let most = MAX_FILE_BYTES + MAX_EXTRA;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(Unreadable::Io)?;
    if bytes.len() > most {
        return Err(Unreadable::Damaged(format!("longer than {most} bytes")));
    }
    let text = String::from_utf8(bytes)
        .map_err(|e| Unreadable::Damaged(format!("not UTF-8: {}", e.utf8_error())))?;
    F::read(&text).map(Some).map_err(Unreadable::Damaged)
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

/// A rename is durable only when the folder is.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}
