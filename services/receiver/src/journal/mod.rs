//! Log of a channel's last updates: `DATA/journal/CHANNEL/`.
//!
//! The feed files hold the current state; the journal holds the history, in order: each update
//! once, gaps, and restarts of the source's numbering. Server-sent events are replayed from it, and
//! webhooks and commands keep an offset in it, so that a slow consumer delays nothing else.
//!
//! A journal is a row of append-only segment files. Each record has a *position*, a number local to
//! this receiver that is never reused. A record counts once it is synced and all other files of its
//! batch are ([`Journal::announce`]). A kill leaves at worst an unfinished record at the end, which
//! the next start cuts off; the source sends it again. Bounds on count and size are kept by
//! removing the oldest segment; readers that still need it are notified first ([`Guard`]).
//!
//! Updates are kept as they came, with their signatures; [`LineageFile`] has the keys that the
//! source named for them, and [`scan()`] reads a journal that another process may be writing.

mod lineage;
mod reader;
mod record;
mod scan;
mod segment;
mod writer;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use crate::durable::FileError;
pub use lineage::LineageFile;
pub use reader::{Guard, JournalPosition, JournalReader, Resume};
pub use record::{Kind, Missing, OVERHEAD, Record, RecordHeader};
pub use scan::{Broken, Found, scan};
pub use segment::list;
pub use writer::{Journal, Opened};

/// Bounds of a channel's journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of records.
    pub updates: usize,
    /// Largest size in the files, in bytes.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            updates: 10_000,
            bytes: 64 << 20,
        }
    }
}

/// Number of segments of a full journal, which holds between seven eighths of its limits and all of
/// them, if no more than [`Limits::batch`] is written at once. Two updates are kept even if they
/// are longer.
const SEGMENTS: u64 = 8;

impl Limits {
    fn segment_updates(self) -> usize {
        (self.updates / SEGMENTS as usize).max(1)
    }

    fn segment_bytes(self) -> u64 {
        (self.bytes / SEGMENTS).max(1)
    }

    /// Returns the most that may be written before it is announced, in records and bytes: records
    /// cannot leave before they are announced, so more would exceed the limits.
    #[must_use]
    pub fn batch(self) -> Self {
        Self {
            updates: self.updates.saturating_sub(self.segment_updates()).max(1),
            // Only a part, because the last update of a batch may be long.
            bytes: self.bytes / 2,
        }
    }
}

/// Returns the folder of a channel's journal in a data folder.
#[must_use]
pub fn folder(data: &Path, channel: &str) -> PathBuf {
    data.join("journal").join(channel)
}

/// Returns the names of the channels that have a journal in a data folder, sorted.
///
/// # Errors
/// There is no folder of journals, or it cannot be read.
pub fn channels(data: &Path) -> Result<Vec<String>, FileError> {
    let journals = data.join("journal");
    let failed = || FileError::of("read", &journals);
    let mut names = Vec::new();
    for entry in fs::read_dir(&journals).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if entry.path().is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Error writing a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Failure of a file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Full journal whose oldest records a reader still needs and cannot save.
    #[error("the journal {} is full and its oldest updates cannot be put aside: \
        {reason}", folder.display())]
    Leaving {
        /// Path of the journal.
        folder: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
}
