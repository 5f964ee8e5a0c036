//! The feed files of one channel: as they are in memory, which is what is served, and on disk.

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

/// A format of feed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// RFC 4287.
    Atom,
    /// JSON Feed 1.1.
    Json,
}

/// The feed files of a channel. The lock of each is held for work in memory only.
#[derive(Debug)]
pub struct Feeds {
    atom: Mutex<AtomFile>,
    json: Option<Mutex<JsonFile>>,
}

impl Feeds {
    /// Both files, as far as the channel has them.
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

    /// Takes an update in, in memory.
    pub fn upsert(&self, update: &Update) {
        lock(&self.atom).upsert(update);
        if let Some(json) = &self.json {
            lock(json).upsert(update);
        }
    }

    /// Numbers after `cursor` are given again; see [`FeedFile::forget_numbers`].
    pub fn forget_numbers(&self, cursor: Cursor) {
        lock(&self.atom).forget_numbers(cursor.incarnation, cursor.seq);
        if let Some(json) = &self.json {
            lock(json).forget_numbers(cursor.incarnation, cursor.seq);
        }
    }

    /// The path of each file and its newest update; `None` where no entry of it has a number.
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

    /// Whether the files on disk are as they are in memory.
    #[must_use]
    pub fn are_written(&self) -> bool {
        let json = self.json.as_ref().map(|json| lock(json).is_written());
        lock(&self.atom).is_written() && json.unwrap_or(true)
    }

    /// About how many bytes the files have together.
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

    /// The version of a file in memory; `None` if the channel has no such file.
    #[must_use]
    pub fn version(&self, format: Format) -> Option<u64> {
        match format {
            Format::Atom => Some(lock(&self.atom).version()),
            Format::Json => self.json.as_ref().map(|json| lock(json).version()),
        }
    }

    /// A file as it is in memory; `None` if the channel has no such file.
    #[must_use]
    pub fn snapshot(&self, format: Format) -> Option<Snapshot> {
        match format {
            Format::Atom => Some(lock(&self.atom).snapshot()),
            Format::Json => self.json.as_ref().map(|json| lock(json).snapshot()),
        }
    }
}

fn lock<T>(file: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is changed half under these locks.
    file.lock().unwrap_or_else(PoisonError::into_inner)
}
