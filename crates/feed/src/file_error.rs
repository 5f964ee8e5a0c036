//! Errors and names of files.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Failure to read or write a feed file.
#[derive(Debug, Error)]
#[error(
    "cannot {action} {}: {source}; check that the data folder exists, is writable and has room",
    path.display()
)]
#[non_exhaustive]
pub struct FileError {
    /// Operation that failed.
    pub action: &'static str,
    /// File of the operation.
    pub path: PathBuf,
    /// Error of the operating system.
    pub source: io::Error,
}

/// Returns `path` with its file name between `before` and `after`.
pub(crate) fn path_around(path: &Path, before: &str, after: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(before);
    name.push(path.file_name().unwrap_or_default());
    name.push(after);
    path.with_file_name(name)
}
