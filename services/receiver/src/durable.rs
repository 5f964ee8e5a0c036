//! Files that are complete at every moment, even after a power cut.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use thiserror::Error;

/// Failure to read or write a file.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct FileError {
    /// Attempted operation.
    pub action: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    /// Error of the system.
    pub source: io::Error,
}

impl FileError {
    /// Returns a function for `map_err`: the error of doing `action` to `path`.
    pub fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_owned();
        move |source| FileError {
            action,
            path,
            source,
        }
    }
}

/// Replaces the file at `path` (or makes it, with mode 0600) by a temporary file next to it, which
/// is synced and renamed; then the folder is synced. From the return on, the new content survives a
/// power cut; until then, the old one does. Blocks for the disk.
///
/// # Errors
/// The failed operation; the old file is intact.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let temporary = temporary(path);
    let result = write_new(&temporary, content)
        .and_then(|()| fs::rename(&temporary, path).map_err(FileError::of("replace", path)));
    if result.is_err() {
        // On a full disk a partial file takes room from other files; the next attempt starts over.
        let _ = fs::remove_file(&temporary);
        return result;
    }
    sync_folder_of(path)
}

/// Replaces a file like [`replace`], but without waiting for the disk, for files that may be lost:
/// a reader finds it complete, but after a power cut it may be older, or a mix of versions. The
/// previous version stays next to it and is overwritten by the next one: two files are exchanged,
/// so that a file replaced every second dirties the same two blocks again and again instead of new
/// ones. A reader that has the file open for two versions may see a mix, and should read again.
///
/// # Errors
/// The failed operation; the old file is intact.
pub fn replace_unsynced(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let temporary = temporary(path);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(content)?;
        file.set_len(content.len() as u64)
    };
    let exchange = || match renameat_with(CWD, &temporary, CWD, path, RenameFlags::EXCHANGE) {
        // The first version, or a file system without the exchange.
        Err(_) => fs::rename(&temporary, path),
        Ok(()) => Ok(()),
    };
    let result = write().map_err(FileError::of("write", &temporary));
    let result = result.and_then(|()| exchange().map_err(FileError::of("replace", path)));
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Removes a file written by [`replace_unsynced`], if it exists.
pub fn remove_unsynced(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(temporary(path));
}

/// Makes a folder, and missing ones above it, for this user alone. New folders survive a power cut,
/// as do files written into them later. Blocks for the disk.
///
/// # Errors
/// A folder cannot be made.
pub fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_folder(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            return Ok(());
        }
        made => made?,
    }
    // A folder of another user may not be readable, which making one in it does not require.
    let _ = sync_folder_of(path);
    Ok(())
}

/// Returns the name of the temporary file: one per file, so that crashes cannot pile them up.
fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".tmp");
    path.with_file_name(name)
}

fn write_new(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(FileError::of("write", path))
}

/// Syncs the folder of a renamed file, which makes the rename durable.
pub(crate) fn sync_folder_of(path: &Path) -> Result<(), FileError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(FileError::of("sync the folder", folder))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn content_is_replaced_without_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn two_files_are_exchanged_and_never_mixed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        for content in ["one", "twenty-two", "3", "", "fifty-five"] {
            replace_unsynced(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert!(fs::read_dir(folder.path()).unwrap().count() <= 2);
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        remove_unsynced(&path);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        replace_unsynced(&path, b"again").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"again");
    }

    #[test]
    fn folders_are_made_with_those_above_them() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a/b/c");
        make_folder(&path).unwrap();
        make_folder(&path).unwrap();
        for path in path.ancestors().take(3) {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", path.display());
        }
        fs::write(path.join("file"), "").unwrap();
        assert!(make_folder(&path.join("file")).is_err());
        assert!(make_folder(&path.join("file/d")).is_err());
    }

    #[test]
    fn a_failure_names_the_file_and_keeps_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        // A folder cannot be replaced by a file.
        fs::create_dir(&path).unwrap();
        let error = replace(&path, b"one").unwrap_err().to_string();
        assert!(error.contains("x.json"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("none/x"), b"").is_err());
    }
}
