//! The receiver's credential: a secret made once, by which the source recognises it.
//!
//! **Invariant:** it is synced to disk before it is first sent. The source keeps its hash from the
//! first HELLO and admits no other secret under this receiver's id; a receiver that lost it would
//! be locked out.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use data_encoding::BASE64URL_NOPAD;
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;
use tracing::warn;
use uuid::Uuid;

use crate::durable::{FileError, replace};

/// Name of the file in the state folder.
const NAME: &str = "credential";

/// First word of the file: its format.
const FORMAT: &str = "flexfeed-credential-1";

/// Bound on the file, which is a line.
const MAX_FILE: u64 = 1024;

/// Secret of a receiver, not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential([u8; 32]);

impl Credential {
    /// Returns the secret that a HELLO carries.
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Error reading the credential.
#[derive(Debug, Error)]
pub enum CredentialError {
    /// Failure to read or write the file.
    #[error("{0}")]
    File(#[from] FileError),
    /// No random bytes from the system.
    #[error("the system gives no random bytes for a credential")]
    Entropy,
    /// File without a credential.
    #[error(
        "{} does not hold a credential: restore it from a backup, or remove it together with the \
         file receiver-id next to it to enrol as a new receiver (which needs a link with a \
         token)", .0.display()
    )]
    Damaged(PathBuf),
    /// Credential of another id: only one of the two files was copied.
    #[error(
        "{} belongs to receiver {other}, but this data folder is receiver {id}'s: restore both \
         files of the same receiver, or remove both, credential and receiver-id, to enrol as a \
         new receiver (which needs a link with a token)",
        path.display()
    )]
    Other {
        /// Path of the file.
        path: PathBuf,
        /// Id in the credential file.
        other: Uuid,
        /// Id of the data folder.
        id: Uuid,
    },
}

/// Returns the path of the credential in the state folder.
#[must_use]
pub fn path(state: &Path) -> PathBuf {
    state.join(NAME)
}

/// Reads the credential of receiver `id`; `None` if there is none yet.
///
/// # Errors
/// The file cannot be read, or has no credential of this receiver.
pub fn load(state: &Path, id: Uuid) -> Result<Option<Credential>, CredentialError> {
    let path = path(state);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| {
        let mode = file.metadata()?.permissions().mode();
        file.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(mode)
    });
    let mode = match read {
        Ok(mode) => mode,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(CredentialError::Damaged(path));
        }
        Err(error) => return Err(FileError::of("read", &path)(error).into()),
    };
    let Some((other, credential)) = parse(&text) else {
        return Err(CredentialError::Damaged(path));
    };
    if other != id {
        return Err(CredentialError::Other { path, other, id });
    }
    if mode & 0o077 != 0 {
        let closed = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        let done = if closed.is_ok() {
            "restricted to this user"
        } else {
            "chmod 600 it"
        };
        warn!(path = %path.display(), "credential was readable by other users; {done}");
    }
    Ok(Some(credential))
}

/// Reads the credential of receiver `id`, or makes one and syncs it to disk.
///
/// # Errors
/// The file cannot be read or written, or has no credential of this receiver.
pub fn open(state: &Path, id: Uuid) -> Result<Credential, CredentialError> {
    if let Some(credential) = load(state, id)? {
        return Ok(credential);
    }
    let mut secret = [0; 32];
    SystemRandom::new()
        .fill(&mut secret)
        .map_err(|_| CredentialError::Entropy)?;
    let text = format!("{FORMAT} {id} {}\n", BASE64URL_NOPAD.encode(&secret));
    replace(&path(state), text.as_bytes())?;
    Ok(Credential(secret))
}

fn parse(text: &str) -> Option<(Uuid, Credential)> {
    let mut words = text.split_ascii_whitespace();
    if words.next()? != FORMAT {
        return None;
    }
    let id = words.next()?.parse().ok()?;
    let secret = BASE64URL_NOPAD.decode(words.next()?.as_bytes()).ok()?;
    let secret = secret.try_into().ok()?;
    words.next().is_none().then_some((id, Credential(secret)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ID: Uuid = Uuid::from_u128(7);

    #[test]
    fn a_credential_is_made_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        assert_eq!(load(state, ID).unwrap(), None);
        let made = open(state, ID).unwrap();
        assert_eq!(open(state, ID).unwrap(), made);
        assert_eq!(load(state, ID).unwrap(), Some(made.clone()));
        assert_ne!(made.secret(), [0; 32]);
        let mode = || fs::metadata(path(state)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(path(state), fs::Permissions::from_mode(0o644)).unwrap();
        open(state, ID).unwrap();
        assert_eq!(mode(), 0o600);
        assert_eq!(format!("{made:?}"), "(secret)");
    }

    #[test]
    fn a_foreign_credential_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        open(state, ID).unwrap();
        let text = fs::read_to_string(path(state)).unwrap();
        let error = open(state, Uuid::from_u128(8)).unwrap_err().to_string();
        for part in [ID.to_string(), "receiver-id".into(), "new receiver".into()] {
            assert!(error.contains(&part), "{error}");
        }
        assert_eq!(fs::read_to_string(path(state)).unwrap(), text);
        let secret = text.split(' ').nth(2).unwrap().trim().to_owned();
        for damaged in [
            String::new(),
            "x".into(),
            text.replace("-1 ", "-2 "),
            text.replace(&secret, "AAAA"),
            format!("{text} more"),
        ] {
            fs::write(path(state), &damaged).unwrap();
            let error = open(state, ID).unwrap_err().to_string();
            assert!(error.contains("does not hold a credential"), "{error}");
            assert!(!error.contains(&secret));
            assert_eq!(fs::read_to_string(path(state)).unwrap(), damaged);
        }
        fs::write(path(state), b"\xff").unwrap();
        assert!(matches!(open(state, ID), Err(CredentialError::Damaged(_))));
    }

    /// A receiver that could not keep its credential must not send one.
    #[test]
    fn an_unwritable_credential_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("not there");
        assert!(matches!(open(&state, ID), Err(CredentialError::File(_))));
    }
}
