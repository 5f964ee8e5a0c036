//! The data folder: the source's identity, and its state between two starts.

pub mod enrolment;
mod holder;
pub mod identity;
pub mod signing_key;

#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use ring::rand::{SecureRandom, SystemRandom};
use service::ownership;
use tracing::warn;

/// Mode of the folder: only the owner may enter it and read secrets.
const FOLDER_MODE: u32 = 0o700;
/// Mode of files with secrets.
pub(crate) const PRIVATE: u32 = 0o600;
/// Mode of files without secrets.
pub(crate) const PUBLIC: u32 = 0o644;

/// Default database.
pub const DATABASE: &str = "flexfeed.db";

/// Largest plausible length of a file of this kind, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The data folder, locked by this process as long as the value lives.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    /// The lock ends with the file's last descriptor, also if the process is killed.
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if it is missing, and locks it.
    ///
    /// # Errors
    /// The folder cannot be created or written, or another process has locked it.
    pub fn open(path: &Path) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(path)
            .map_err(unusable(path, "make", path))?;
        let lock = take(path)?;
        let mode = std::fs::metadata(path)
            .with_context(|| {
                format!(
                    "cannot read the metadata of the data folder {}",
                    path.display()
                )
            })?
            .permissions()
            .mode();
        if mode & 0o022 != 0 {
            warn!(
                "other users can write to the data folder {0} and so replace the source's keys; \
                 to end that: chmod 700 {0}",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the content of a small file; `None` if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read or is far too long.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        read(&self.file(name))
    }

    /// Replaces a file atomically and durably: after a crash there is the old one or the new.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, content: &[u8], mode: u32) -> Result<()> {
        let path = self.file(name);
        let fresh = self.file(&format!(".{name}.new"));
        let put = || -> io::Result<()> {
            // A file left by an interrupted start may have another mode.
            match std::fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&fresh)?;
            file.write_all(content)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)?;
            File::open(&self.path)?.sync_all()
        };
        put().map_err(unusable(&self.path, "write", &path))
    }
}

/// Returns the error for a failed action on `path`, which is the data folder or in it, with a
/// remedy.
fn unusable(folder: &Path, action: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |problem| {
        anyhow!(
            "cannot use the data folder {}: cannot {action} {}: {problem}; {}",
            folder.display(),
            path.display(),
            ownership::remedy(folder, path, &problem)
        )
    }
}

/// Returns the content of a small file; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let folder = path.parent().unwrap_or(path);
            return Err(unusable(folder, "open", path)(error));
        }
    };
    let mut content = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut content)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if content.len() as u64 > MAX_FILE {
        bail!(
            "{} is longer than {MAX_FILE} bytes: something else has been put there; move it away",
            path.display()
        );
    }
    Ok(Some(content))
}

/// A file that only its owner can read, beside the one that it is to replace. Its owner is that of
/// the file that is there.
#[derive(Debug)]
pub struct PrivateFile {
    beside: PathBuf,
    path: PathBuf,
}

impl PrivateFile {
    /// Writes it, durably.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(path: &Path, content: &[u8]) -> io::Result<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let file = Self {
            beside: beside.into(),
            path: path.to_owned(),
        };
        // One left by an interrupted command may have another mode.
        match std::fs::remove_file(&file.beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut to = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(PRIVATE)
            .open(&file.beside)?;
        if let Ok(before) = std::fs::metadata(path) {
            // A command of root must not take the file away from the source's user; others cannot.
            let _ = fchown(&to, Some(before.uid()), Some(before.gid()));
        }
        to.write_all(content)?;
        to.sync_all()?;
        Ok(file)
    }

    /// Puts it in its place: readers find all of it, or the previous content.
    ///
    /// # Errors
    /// The file cannot be replaced.
    pub fn replace(self) -> io::Result<()> {
        std::fs::rename(&self.beside, &self.path)?;
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Removes what was not put in its place: it is useless, and holds a secret.
impl Drop for PrivateFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.beside);
    }
}

/// Logs a warning if others can read a file with a secret in it.
fn check_private(path: &Path) {
    let mode = std::fs::metadata(path).map(|m| m.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o077 != 0) {
        warn!(
            "{0} holds a secret and other users may read it; to end that: chmod 600 {0}",
            path.display()
        );
    }
}

/// Locks the folder and leaves this process's id in the lock, for the message of the next process.
fn take(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE)
        .open(&path)
        .map_err(unusable(folder, "open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // The id is only for the message; anything else is omitted.
            let _ = (&lock).take(20).read_to_string(&mut pid);
            let who = match pid.trim().parse::<u32>() {
                Ok(pid) => format!("another flexfeed-source (process {pid})"),
                Err(_) => "another flexfeed-source".to_owned(),
            };
            bail!(
                "{who} is using the data folder {}: stop it first, or give this one its own with \
                 --data",
                folder.display()
            );
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    lock.set_len(0)
        .and_then(|()| lock.seek(SeekFrom::Start(0)))
        .and_then(|_| writeln!(lock, "{}", std::process::id()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(lock)
}

/// Returns secret random bytes from the system.
///
/// # Errors
/// The system has none.
pub(crate) fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gave no random bytes"))?;
    Ok(bytes)
}
