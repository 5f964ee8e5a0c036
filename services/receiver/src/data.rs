//! Data folder: locked against a second receiver, with the receiver's id and credential.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use service::ownership::remedy;
use thiserror::Error;
use tracing::warn;
use uuid::Uuid;

use crate::credential::{self, Credential, CredentialError};
use crate::durable::{FileError, make_folder, replace};

/// Attempts to take the lock: `status` holds it for an instant to test it.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(40);

/// Error opening a data folder.
#[derive(Debug, Error)]
pub enum DataError {
    /// Folder that cannot be made or written to.
    #[error(
        "cannot use the data folder {}: {problem}; {}",
        folder.display(), remedy(folder, &problem.path, &problem.source)
    )]
    Unusable {
        /// Path of the folder.
        folder: PathBuf,
        /// Failed operation.
        problem: FileError,
    },
    /// No room on the disk.
    #[error(
        "the data folder {} has no room left: {problem}. Make room on that file system (or in the \
         quota of uid {uid}), then start again", folder.display()
    )]
    Full {
        /// Path of the folder.
        folder: PathBuf,
        /// Failed operation.
        problem: FileError,
        /// Effective user id of this process.
        uid: u32,
    },
    /// Another receiver runs on the folder.
    #[error(
        "another receiver{} uses the data folder {} already; each receiver needs its own: \
         stop the other one, or choose another folder with --data DIR or FLEXFEED_DATA",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), folder.display()
    )]
    Taken {
        /// Path of the folder.
        folder: PathBuf,
        /// Process id of the other receiver, if its lock file has one.
        pid: Option<u32>,
    },
    /// Unusable credential.
    #[error("{0}")]
    Credential(#[from] CredentialError),
    /// File without a receiver id.
    #[error(
        "{} does not hold a receiver id (a UUID): restore the file, or remove it to enrol as a new \
         receiver",
        path.display()
    )]
    DamagedId {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Data folder of this process, locked until dropped.
#[derive(Debug)]
pub struct DataFolder {
    folder: PathBuf,
    receiver_id: Uuid,
    credential: Credential,
    // Never read: the lock lasts as long as the open file.
    _lock: File,
}

impl DataFolder {
    /// Makes the folder if necessary (mode 0700), locks it, and reads or makes the receiver's id.
    ///
    /// # Errors
    /// The folder cannot be written to, another receiver uses it, or the id is damaged.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        let unusable = |problem: FileError| {
            let folder = folder.to_owned();
            match is_full(&problem) {
                true => DataError::Full {
                    folder,
                    problem,
                    uid: rustix::process::geteuid().as_raw(),
                },
                false => DataError::Unusable { folder, problem },
            }
        };
        let state = state_folder(folder);
        make_folder(&state)
            .map_err(FileError::of("make", &state))
            .map_err(unusable)?;
        let path = lock_path(folder);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(FileError::of("open", &path))
            .map_err(unusable)?;
        if !take(&lock)
            .map_err(FileError::of("lock", &path))
            .map_err(unusable)?
        {
            return Err(DataError::Taken {
                folder: folder.to_owned(),
                pid: read_pid(&mut lock),
            });
        }
        // Only for messages, so a full disk does not matter here.
        let _ = write_pid(&mut lock);
        // An old lock file can be opened in a read-only folder, but the outputs need to write.
        let probe = folder.join(".probe");
        let probed = File::create(&probe)
            .and_then(|_| fs::remove_file(&probe))
            .map_err(FileError::of("write", &probe));
        match probed {
            // As while running: nothing is received until there is room.
            Err(problem) if is_full(&problem) => {
                warn!(%problem, "data folder full: make room; no updates are written until then");
            }
            probed => probed.map_err(unusable)?,
        }
        let receiver_id = match read_id(&state)? {
            Some(id) => id,
            None => {
                let id = Uuid::new_v4();
                replace(&id_path(&state), format!("{id}\n").as_bytes()).map_err(unusable)?;
                id
            }
        };
        let credential = credential::open(&state, receiver_id)?;
        Ok(Self {
            folder: folder.to_owned(),
            receiver_id,
            credential,
            _lock: lock,
        })
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the state folder.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        state_folder(&self.folder)
    }

    /// Returns the file of local ports and tunnels to AMT relays.
    #[must_use]
    pub fn amt_path(&self) -> PathBuf {
        self.state().join("amt.json")
    }

    /// Returns the credential, which is on disk.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Returns the id of this receiver, made once.
    #[must_use]
    pub fn receiver_id(&self) -> Uuid {
        self.receiver_id
    }
}

/// Whether a receiver runs on the folder, judged by the lock, which a killed process does not hold.
///
/// # Errors
/// The lock file exists and cannot be opened.
pub fn is_running(folder: &Path) -> Result<bool, FileError> {
    let path = lock_path(folder);
    let lock = match File::open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(FileError::of("open", &path)(error)),
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(FileError::of("lock", &path)(error)),
    }
}

/// Returns the state folder, with cursors, id and credential.
pub(crate) fn state_folder(folder: &Path) -> PathBuf {
    folder.join("state")
}

fn lock_path(folder: &Path) -> PathBuf {
    state_folder(folder).join("lock")
}

fn id_path(state: &Path) -> PathBuf {
    state.join("receiver-id")
}

/// Whether the error is a lack of room on the disk.
fn is_full(problem: &FileError) -> bool {
    matches!(
        problem.source.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Takes the lock; returns whether that succeeded.
fn take(lock: &File) -> io::Result<bool> {
    for attempt in 1.. {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if attempt >= LOCK_TRIES => return Ok(false),
            Err(TryLockError::WouldBlock) => {
                // At the start, before there is a runtime that this could block.
                #[allow(clippy::disallowed_methods)]
                std::thread::sleep(LOCK_PAUSE);
            }
        }
    }
    Ok(false)
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

/// Returns the id in the folder, if any.
pub(crate) fn read_id(state: &Path) -> Result<Option<Uuid>, DataError> {
    let path = id_path(state);
    let damaged = || DataError::DamagedId { path: path.clone() };
    let mut text = String::new();
    match File::open(&path).and_then(|file| file.take(1024).read_to_string(&mut text)) {
        Ok(_) => text.trim().parse().map(Some).map_err(|_| damaged()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(damaged()),
        Err(source) => Err(DataError::Unusable {
            folder: state.to_owned(),
            problem: FileError::of("read", &path)(source),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_folder_is_private_and_the_id_stays() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("a/b");
        let first = DataFolder::open(&folder).unwrap();
        let id = first.receiver_id();
        for path in [&folder, &first.state()] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", path.display());
        }
        let credential = first.credential().clone();
        drop(first);
        let again = DataFolder::open(&folder).unwrap();
        assert_eq!(again.receiver_id(), id);
        assert_eq!(*again.credential(), credential);
    }

    #[test]
    fn a_second_receiver_is_refused_with_the_pid_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_running(folder.path()).unwrap());
        let first = DataFolder::open(folder.path()).unwrap();
        assert!(is_running(folder.path()).unwrap());
        let error = DataFolder::open(folder.path()).unwrap_err();
        assert!(
            matches!(error, DataError::Taken { pid: Some(pid), .. } if pid == std::process::id())
        );
        let text = error.to_string();
        assert!(
            text.contains(&format!("pid {}", std::process::id())),
            "{text}"
        );
        assert!(text.contains("--data"), "{text}");
        drop(first);
        assert!(!is_running(folder.path()).unwrap());
        DataFolder::open(folder.path()).unwrap();
    }

    #[test]
    fn an_unusable_folder_is_explained() {
        let outer = tempfile::tempdir().unwrap();
        let file = outer.path().join("file");
        fs::write(&file, "").unwrap();
        let text = DataFolder::open(&file).unwrap_err().to_string();
        let uid = rustix::process::geteuid().as_raw();
        assert!(text.contains(&file.display().to_string()), "{text}");
        assert!(text.contains(&format!("uid {uid}")), "{text}");
        assert!(text.contains("--data"), "{text}");
    }

    /// `/dev/full` has no room for any user, root included.
    #[test]
    fn a_full_disk_is_not_reported_as_an_ownership_problem() {
        let full = |kind| FileError::of("write", Path::new("x"))(io::Error::from(kind));
        assert!(is_full(&full(io::ErrorKind::StorageFull)));
        assert!(is_full(&full(io::ErrorKind::QuotaExceeded)));
        assert!(!is_full(&full(io::ErrorKind::PermissionDenied)));
    }

    #[test]
    fn a_damaged_id_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataFolder::open(folder.path()).unwrap());
        let path = id_path(&state_folder(folder.path()));
        for content in [&b"nonsense"[..], b"", b"\xff\xfe"] {
            fs::write(&path, content).unwrap();
            let error = DataFolder::open(folder.path()).unwrap_err();
            assert!(error.to_string().contains("receiver-id"), "{error}");
        }
    }
}
