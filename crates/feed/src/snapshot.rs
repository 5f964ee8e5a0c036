//! Document of a feed file at one moment, for writing to disk and for serving.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::file_error::{FileError, path_around};

/// Part of a document: text of its own, or an entry shared with the file in memory.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Frame around entries.
    Own(String),
    /// Entry.
    Shared(Arc<str>),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Own(text) => text.as_bytes(),
            Self::Shared(text) => text.as_bytes(),
        }
    }
}

/// Document that is never copied into one string: entries are shared with the file in memory.
#[derive(Debug, Clone)]
pub struct Snapshot {
    version: u64,
    modified: SystemTime,
    pieces: Vec<Piece>,
}

impl Snapshot {
    pub(crate) fn new(
        version: u64,
        modified: SystemTime,
        head: String,
        entries: impl Iterator<Item = (String, Arc<str>, String)>,
        tail: &str,
    ) -> Self {
        let mut pieces = Vec::new();
        let mut own = head;
        for (before, text, after) in entries {
            own.push_str(&before);
            pieces.push(Piece::Own(std::mem::replace(&mut own, after)));
            pieces.push(Piece::Shared(text));
        }
        own.push_str(tail);
        pieces.push(Piece::Own(own));
        Self {
            version,
            modified,
            pieces,
        }
    }

    /// Returns the version of the file; see [`crate::feed_file::FeedFile::version`].
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the time of the change that made this version.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// Returns the document's length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let lengths = self.pieces.iter().map(|piece| piece.as_ref().len() as u64);
        lengths.sum()
    }

    /// Returns the document, piece by piece.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the document, piece by piece, without keeping the snapshot.
    pub fn into_pieces(self) -> impl Iterator<Item = Piece> + Send + 'static {
        self.pieces.into_iter()
    }

    /// Replaces the file at `path`: writes a temporary file in the same folder, syncs it, renames
    /// it, and syncs the folder. After the return, a crash of the machine leaves the new file, and
    /// at any moment before it the old one. Returns the number of bytes written.
    ///
    /// Blocks for the disk; call it outside of async threads.
    ///
    /// # Errors
    /// If the folder cannot be written to. The old file then stays.
    pub fn store(&self, path: &Path) -> Result<u64, FileError> {
        // One name, so that crashes do not accumulate such files.
        let temporary = path_around(path, ".", ".tmp");
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| FileError {
                action,
                path,
                source,
            }
        };
        self.write_to(&temporary).map_err(|source| {
            // On a full disk, the incomplete file takes room that others need.
            let _ = fs::remove_file(&temporary);
            failed("write", &temporary)(source)
        })?;
        fs::rename(&temporary, path).map_err(failed("replace", path))?;
        sync_folder(path).map_err(failed("sync the folder of", path))?;
        Ok(self.bytes())
    }

    fn write_to(&self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        let mut out = BufWriter::with_capacity(1 << 16, file);
        for piece in &self.pieces {
            out.write_all(piece.as_ref())?;
        }
        out.into_inner()?.sync_all()
    }
}

/// A rename is durable only when the folder is.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}
