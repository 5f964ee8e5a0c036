//! Writing and reading `status.json`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::model::Status;
use crate::board::Board;
use crate::durable::{FileError, remove_unsynced, replace_unsynced};

/// Name of the file in the data folder.
const NAME: &str = "status.json";

/// Shortest time between two writes.
const SPACING: Duration = Duration::from_millis(200);

/// Interval of writes without a change, which show that the receiver is alive.
const HEARTBEAT: Duration = Duration::from_millis(1500);

/// Allocation unit of file systems.
const BLOCK: usize = 4096;

/// Bound on the file, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Returns the path of a data folder's status file.
#[must_use]
pub fn path(data: &Path) -> PathBuf {
    data.join(NAME)
}

/// Writes the board's status to the file, at most five times a second and at least every two
/// seconds, until `done`; then once more.
pub async fn keep(board: Arc<Board>, data: PathBuf, done: CancellationToken) {
    let path = path(&data);
    let mut failing = false;
    loop {
        let last = done.is_cancelled();
        let (status, file) = (board.status(), path.clone());
        let written = tokio::task::spawn_blocking(move || write(&file, &status)).await;
        match written {
            Ok(Ok(())) => failing = false,
            Ok(Err(error)) if failing => debug!("{error}"),
            Ok(Err(error)) => {
                failing = true;
                warn!(%error, "status file is out of date");
            }
            Err(error) => warn!(%error, "status file not written"),
        }
        if last {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(SPACING) => {
                tokio::select! {
                    () = board.changed() => {}
                    () = tokio::time::sleep(HEARTBEAT) => {}
                    () = done.cancelled() => {}
                }
            }
            () = done.cancelled() => {}
        }
    }
}

/// Replaces the file. On a full disk, without room for a second one, it is overwritten in place:
/// operators need it then most. Blocks for a moment.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, status: &Status) -> Result<(), FileError> {
    match replace_unsynced(path, &render(status)?) {
        Err(error) if is_full(&error.source) => write_over(path, status).map_err(|_| error),
        other => other,
    }
}

fn render(status: &Status) -> Result<Vec<u8>, FileError> {
    let mut text = serde_json::to_vec(status)
        .map_err(io::Error::other)
        .map_err(FileError::of("write", Path::new(NAME)))?;
    text.push(b'\n');
    Ok(text)
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Overwrites the file within its present size, without the oldest moves if necessary. A concurrent
/// reader may see a part of it and reads again.
fn write_over(path: &Path, status: &Status) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let room = usize::try_from(file.metadata()?.len())
        .unwrap_or(usize::MAX)
        .next_multiple_of(BLOCK);
    let mut status = status.clone();
    loop {
        let text = render(&status).map_err(|error| error.source)?;
        if text.len() <= room {
            file.write_all(&text)?;
            return file.set_len(text.len() as u64);
        }
        let with_moves = status.channels.iter_mut().max_by_key(|c| c.moves.len());
        match with_moves.filter(|channel| !channel.moves.is_empty()) {
            Some(channel) => drop(channel.moves.remove(0)),
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

/// Reads the status of a data folder; `None` if there is none.
///
/// # Errors
/// The file cannot be read, or is no status.
pub fn read(data: &Path) -> Result<Option<Status>, FileError> {
    let path = path(data);
    let read = parse(|| {
        let mut text = Vec::new();
        let file = File::open(&path)?;
        file.take(MAX_FILE).read_to_end(&mut text)?;
        Ok(text)
    });
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(FileError::of("read", &path)),
    }
}

/// Parses the status that `text` returns. A text that was overwritten meanwhile may be a mix of
/// two, and is read again.
fn parse(mut text: impl FnMut() -> io::Result<Vec<u8>>) -> io::Result<Status> {
    match serde_json::from_slice(&text()?) {
        Ok(status) => Ok(status),
        Err(_) => Ok(serde_json::from_slice(&text()?)?),
    }
}

/// Removes the status file of a former process, so that it is not taken for the present one's.
pub fn discard(data: &Path) {
    remove_unsynced(&path(data));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;
    use crate::board::Identity;
    use uuid::Uuid;

    fn board() -> Board {
        let identity = Identity {
            name: "r1".into(),
            receiver_id: Uuid::from_u128(1),
            source: "h:4433".into(),
        };
        Board::new(identity, &[("lore".into(), None)])
    }

    #[test]
    fn records_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let status = board().status();
        write(&path(folder.path()), &status).unwrap();
        assert_eq!(read(folder.path()).unwrap(), Some(status));
        fs::write(path(folder.path()), "{").unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains(NAME));
        discard(folder.path());
        assert_eq!(read(folder.path()).unwrap(), None);
    }

    #[test]
    fn a_text_overwritten_meanwhile_is_read_again() {
        let status = board().status();
        let whole = render(&status).unwrap();
        let mut texts = vec![whole.clone(), whole[1..].to_vec()];
        let read = parse(|| Ok(texts.pop().unwrap()));
        assert_eq!(read.unwrap(), status);
        // A text that stays invalid is no status.
        let mut reads = 0;
        let read = parse(|| {
            reads += 1;
            Ok(b"{".to_vec())
        });
        assert!(read.is_err());
        assert_eq!(reads, 2);
    }

    #[test]
    fn on_a_full_disk_the_file_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path());
        let mut status = board().status();
        write(&file, &status).unwrap();
        status.error = Some("no space left".into());
        let step = super::super::model::Move {
            at_ms: 1,
            from: "unicast".into(),
            to: "multicast".into(),
            cause: "joined".into(),
        };
        status.channels[0].moves = vec![step; 64];
        write_over(&file, &status).unwrap();
        let read = read(folder.path()).unwrap().unwrap();
        assert_eq!(read.error, status.error);
        assert!(fs::metadata(&file).unwrap().len() <= BLOCK as u64);
        assert!((1..64).contains(&read.channels[0].moves.len()));
        // A shorter status leaves nothing of the longer one.
        status.channels[0].moves.clear();
        write_over(&file, &status).unwrap();
        assert!(
            super::read(folder.path()).unwrap().unwrap().channels[0]
                .moves
                .is_empty()
        );
        status.error = Some("x".repeat(10_000));
        assert!(write_over(&file, &status).is_err());
    }

    #[tokio::test]
    async fn the_file_follows_the_board_and_its_end_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let board = Arc::new(board());
        let done = CancellationToken::new();
        let task = tokio::spawn(keep(board.clone(), folder.path().to_owned(), done.clone()));
        let error = async |wanted: Option<&str>| {
            tokio::time::timeout(Duration::from_secs(20), async {
                loop {
                    let status = read(folder.path()).unwrap();
                    if status.is_some_and(|status| status.error.as_deref() == wanted) {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await
            .unwrap();
        };
        error(None).await;
        board.storage_failed("lore", "disk full".into());
        error(Some("disk full")).await;
        board.storage_failed("lore", "gone".into());
        done.cancel();
        task.await.unwrap();
        let status = read(folder.path()).unwrap().unwrap();
        assert_eq!(status.error.as_deref(), Some("gone"));
    }
}
