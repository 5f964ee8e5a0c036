//! Whether the source has admitted this receiver before: `state/admission`.
//!
//! Id and credential exist before the first contact, so they prove nothing. `doctor` needs the
//! answer to connect without using up a link's token: only the first admission counts as a use.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use uuid::Uuid;

use crate::board::Board;
use crate::durable::{FileError, replace};

const NAME: &str = "admission";

/// First word of the file: its format.
const FORMAT: &str = "flexfeed-admission-1";

/// Bound on the file, which is a line.
const MAX_FILE: u64 = 1024;

/// Delay between attempts to write on a disk that fails.
const PAUSE: Duration = Duration::from_secs(10);

/// Receiver and source of an admission; any other id or source does not match.
#[derive(Debug, Clone)]
pub struct Admission {
    /// State folder.
    pub state: PathBuf,
    /// Id of the receiver.
    pub receiver_id: Uuid,
    /// `host:port` of the source.
    pub source: String,
}

impl Admission {
    /// Whether the admission is recorded. An unreadable file is no record.
    #[must_use]
    pub fn is_noted(&self) -> bool {
        let mut text = String::new();
        let read = File::open(path(&self.state))
            .and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
        read.is_ok() && text == self.line()
    }

    /// Records the admission, durably. Blocks for the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note(&self) -> Result<(), FileError> {
        if self.is_noted() {
            return Ok(());
        }
        replace(&path(&self.state), self.line().as_bytes())
    }

    fn line(&self) -> String {
        format!("{FORMAT} {} {}\n", self.receiver_id, self.source)
    }
}

fn path(state: &Path) -> PathBuf {
    state.join(NAME)
}

/// Records the admission once the source has admitted the receiver, retrying until it is on disk.
pub async fn keep(board: Arc<Board>, admission: Admission) {
    board.let_in().await;
    let mut reported = false;
    loop {
        let one = admission.clone();
        let noted = tokio::task::spawn_blocking(move || one.note()).await;
        match noted {
            Ok(Ok(())) => return,
            Ok(Err(error)) if !reported => {
                reported = true;
                warn!(%error, "admission not recorded yet; retrying, while 'doctor' takes this \
                    receiver for a new one");
            }
            _ => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_admission_holds_for_one_receiver_and_source() {
        let folder = tempfile::tempdir().unwrap();
        let admission = Admission {
            state: folder.path().to_owned(),
            receiver_id: Uuid::from_u128(7),
            source: "h:4433".into(),
        };
        assert!(!admission.is_noted());
        admission.note().unwrap();
        admission.note().unwrap();
        assert!(admission.is_noted());
        let other = Admission {
            receiver_id: Uuid::from_u128(8),
            ..admission.clone()
        };
        assert!(!other.is_noted());
        let elsewhere = Admission {
            source: "other:4433".into(),
            ..admission.clone()
        };
        assert!(!elsewhere.is_noted());
        std::fs::write(path(folder.path()), b"\xff").unwrap();
        assert!(!admission.is_noted());
    }
}
