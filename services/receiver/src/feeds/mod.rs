//! Feed files of one channel, in memory, from which they are served, and on disk.

mod schedule;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feed::atom::AtomFile;
use feed::feed_file::{FeedFile, FileError, Snapshot};
use feed::json_feed::JsonFile;
use feed::payload::Update;
use flexicast::Cursor;
use uuid::Uuid;

pub use schedule::Schedule;

/// Format of feed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// RFC 4287.
    Atom,
    /// JSON Feed 1.1.
    Json,
}

/// Feed files of a channel. The lock of each is held for work in memory only.
#[derive(Debug)]
pub struct Feeds {
    atom: Mutex<AtomFile>,
    json: Option<Mutex<JsonFile>>,
}

impl Feeds {
    /// Returns the files that the channel has.
    #[must_use]
    pub fn new(atom: AtomFile, json: Option<JsonFile>) -> Self {
        Self {
            atom: Mutex::new(atom),
            json: json.map(Mutex::new),
        }
    }

    /// Returns the path of the Atom file.
    #[must_use]
    pub fn atom_path(&self) -> PathBuf {
        lock(&self.atom).path().to_owned()
    }

    /// Adds an update, in memory.
    pub fn upsert(&self, update: &Update) {
        lock(&self.atom).upsert(update);
        if let Some(json) = &self.json {
            lock(json).upsert(update);
        }
    }

    /// Forgets numbers after `cursor`, which are reused; see [`FeedFile::forget_numbers`].
    pub fn forget_numbers(&self, cursor: Cursor) {
        lock(&self.atom).forget_numbers(cursor.incarnation, cursor.seq);
        if let Some(json) = &self.json {
            lock(json).forget_numbers(cursor.incarnation, cursor.seq);
        }
    }

    /// Returns the path of each file and its newest update; `None` if no entry has a number.
    #[must_use]
    pub fn newest(&self) -> Vec<(PathBuf, Option<(Uuid, u64)>)> {
        let atom = lock(&self.atom);
        let atom = (atom.path().to_owned(), atom.newest());
        let json = self.json.as_ref().map(|json| {
            let json = lock(json);
            (json.path().to_owned(), json.newest())
        });
        std::iter::once(atom).chain(json).collect()
    }

    /// Whether the files on disk equal those in memory.
    #[must_use]
    pub fn are_written(&self) -> bool {
        let json = self.json.as_ref().map(|json| lock(json).is_written());
        lock(&self.atom).is_written() && json.unwrap_or(true)
    }

    /// Returns the approximate total size of the files, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        let json = self.json.as_ref().map(|json| lock(json).size());
        lock(&self.atom).size() + json.unwrap_or(0)
    }

    /// Writes pending changes. Returns the number of bytes. Blocks for the disk.
    ///
    /// # Errors
    /// The failed operation. The old files are intact, and the next call tries again.
    pub fn write(&self) -> Result<u64, FileError> {
        let atom = FeedFile::write_shared(&self.atom)?;
        let json = self.json.as_ref().map(FeedFile::write_shared);
        Ok(atom + json.transpose()?.unwrap_or(0))
    }

    /// Returns the version of a file in memory; `None` if the channel has no such file.
    #[must_use]
    pub fn version(&self, format: Format) -> Option<u64> {
        match format {
            Format::Atom => Some(lock(&self.atom).version()),
            Format::Json => self.json.as_ref().map(|json| lock(json).version()),
        }
    }

    /// Renders a file from memory; `None` if the channel has no such file.
    #[must_use]
    pub fn snapshot(&self, format: Format) -> Option<Snapshot> {
        match format {
            Format::Atom => Some(lock(&self.atom).snapshot()),
            Format::Json => self.json.as_ref().map(|json| lock(json).snapshot()),
        }
    }
}

fn lock<T>(file: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change under these locks can be left half done.
    file.lock().unwrap_or_else(PoisonError::into_inner)
}
