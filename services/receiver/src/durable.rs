//! Files that are whole at every moment, also after a power cut.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use thiserror::Error;

/// A file that could not be read or written.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct FileError {
    /// The attempted operation.
    pub action: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`: an error of doing `action` to `path`.
    pub fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_owned();
        move |source| FileError {
            action,
            path,
            source,
        }
    }
}

/// Replaces the file at `path` (or makes it, with mode 0600): temporary file beside it, synced,
/// renamed over it, and the folder synced. When this returns, the new content survives a power
/// cut; until then, the old one does. Blocks for the disk.
///
/// # Errors
/// Names what failed; the old file is still there then.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let temporary = temporary(path);
    let result = write_new(&temporary, content)
        .and_then(|()| fs::rename(&temporary, path).map_err(FileError::of("replace", path)));
    if result.is_err() {
        // On a full disk a partial file takes room from everything else; the next attempt starts
        // over.
        let _ = fs::remove_file(&temporary);
        return result;
    }
    sync_folder_of(path)
}

/// As [`replace`], but without waiting for the disk, for files that may be lost: a reader that opens
/// it finds it whole, but after a power cut it may be older, or a mix of versions. The version
/// before stays beside it and is written over by the next one: two files change places, so that a
/// file that is replaced every second dirties the same two blocks again and again instead of new
/// ones. A reader that still has it open two versions later may see a mix, and should read again.
///
/// # Errors
/// Names what failed; the old file is still there then.
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
        // There is none yet, or the file system cannot do it.
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

/// Removes a file that [`replace_unsynced`] wrote, if it is there.
pub fn remove_unsynced(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(temporary(path));
}

/// Makes a folder, and those above it, for this user alone, where they are not there. What is made
/// is in its folder also after a power cut, with what is written into it later. Blocks for the
/// disk.
///
/// # Errors
/// If one of them cannot be made.
pub fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_folder(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            return Ok(());
        }
        made => made?,
    }
    // A folder of somebody else's may not be opened, and need not be for making one in it.
    let _ = sync_folder_of(path);
    Ok(())
}

/// One name for each file, so that crashes do not leave ever more of them.
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

/// A rename is durable only when the folder is.
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
    fn content_is_replaced_and_nothing_else_is_left() {
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
    fn two_files_change_places_and_are_never_mixed() {
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
