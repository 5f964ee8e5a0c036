//! Dead letters: `DATA/dead-letters/HOOK.jsonl`, a line for each update whose delivery to a hook
//! was given up.
//!
//! A line holds the whole event and the reason, for inspection or sending by hand. A full file
//! becomes `HOOK.jsonl.1`, and so on; the oldest is dropped, which is logged and counted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;
use uuid::Uuid;

use crate::delivery_log::cut_torn_line;
use crate::durable::{FileError, make_folder, sync_folder_of};

/// Length from which on a file is rotated before the next line.
const MAX_FILE: u64 = 16 << 20;

/// Number of rotated files.
const ASIDE: u32 = 3;

/// Update whose delivery finally failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Letter {
    /// Hook.
    pub hook: String,
    /// Channel.
    pub channel: String,
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Number of the update.
    pub seq: u64,
    /// Time of delivery to the journal, Unix time in ms.
    pub received_ms: u64,
    /// Time of giving up, Unix time in ms.
    pub given_up_ms: u64,
    /// Attempts made; 0 if unknown.
    pub attempts: u32,
    /// Reason for giving up.
    pub reason: String,
    /// CloudEvents event.
    pub event: Value,
}

/// Dead letters of one hook.
#[derive(Debug)]
pub struct DeadLetters {
    path: PathBuf,
    max_file: u64,
    dropped: AtomicU64,
    /// Lock of the writer.
    writing: Mutex<()>,
}

impl DeadLetters {
    /// Returns the dead letters of a hook in a data folder. No file is made before the first.
    #[must_use]
    pub fn new(data: &Path, hook: &str) -> Self {
        Self {
            path: path(data, hook),
            max_file: MAX_FILE,
            dropped: AtomicU64::new(0),
            writing: Mutex::default(),
        }
    }

    /// Returns the newest file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of letters dropped since the start for lack of room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Appends letters, durably. Blocks for the disk.
    ///
    /// # Errors
    /// Some letters cannot be written; a retry may repeat others.
    pub fn append(&self, letters: impl IntoIterator<Item = Letter>) -> Result<(), FileError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = None;
        for letter in letters {
            let mut line = serde_json::to_vec(&letter)
                .map_err(io::Error::other)
                .map_err(self.failed())?;
            line.push(b'\n');
            let (mut file, len) = match out.take() {
                None => self.open()?,
                Some(open) => open,
            };
            let room = self.max_file.saturating_sub(len) >= line.len() as u64;
            let mut at = len;
            if !room && len > 0 {
                file.sync_all().map_err(self.failed())?;
                self.put_aside()?;
                (file, at) = self.open()?;
            }
            file.write_all(&line).map_err(|error| {
                // A partial line would corrupt the next one.
                let _ = file.set_len(at);
                self.failed()(error)
            })?;
            out = Some((file, at + line.len() as u64));
        }
        match out {
            Some((file, _)) => file.sync_all().map_err(self.failed()),
            None => Ok(()),
        }
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> FileError {
        FileError::of("write the dead letters", &self.path)
    }

    fn open(&self) -> Result<(File, u64), FileError> {
        let open = || -> io::Result<(File, u64)> {
            if let Some(folder) = self.path.parent() {
                make_folder(folder)?;
            }
            let is_new = !self.path.exists();
            let mut file = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&self.path)?;
            // No other program writes the file, and a letter is as long as its update.
            let len = cut_torn_line(&mut file, b"", u64::MAX)?;
            if is_new {
                sync_folder_of(&self.path).map_err(|error| error.source)?;
            }
            Ok((file, len))
        };
        open().map_err(self.failed())
    }

    fn put_aside(&self) -> Result<(), FileError> {
        let aside = |n: u32| aside(&self.path, n);
        let oldest = aside(ASIDE);
        let dropped = match File::open(&oldest) {
            Ok(file) => BufReader::new(file)
                .split(b'\n')
                .map_while(Result::ok)
                .count(),
            Err(_) => 0,
        };
        for n in (1..ASIDE).rev() {
            if aside(n).exists() {
                fs::rename(aside(n), aside(n + 1)).map_err(self.failed())?;
            }
        }
        fs::rename(&self.path, aside(1)).map_err(self.failed())?;
        if dropped > 0 {
            self.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
            warn!(
                "{} is full: the {dropped} oldest letters, in {}, were dropped",
                self.path.display(),
                oldest.display()
            );
        }
        Ok(())
    }
}

/// Returns the newest file of a hook's dead letters in a data folder.
#[must_use]
pub fn path(data: &Path, hook: &str) -> PathBuf {
    data.join("dead-letters").join(format!("{hook}.jsonl"))
}

fn aside(path: &Path, n: u32) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{n}"));
    path.with_file_name(name)
}

/// Passes all letters of a hook to `each`, oldest first. Returns the number of malformed lines.
///
/// # Errors
/// A file exists and cannot be read.
pub fn read(data: &Path, hook: &str, mut each: impl FnMut(Letter)) -> Result<u64, FileError> {
    let newest = path(data, hook);
    let files = (1..=ASIDE).rev().map(|n| aside(&newest, n));
    let mut garbled = 0;
    for path in files.chain([newest.clone()]) {
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(FileError::of("read", &path))?,
        };
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(FileError::of("read", &path))?;
            match serde_json::from_slice(&line) {
                Ok(letter) => each(letter),
                Err(_) => garbled += 1,
            }
        }
    }
    Ok(garbled)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn letter(seq: u64) -> Letter {
        Letter {
            hook: "h".into(),
            channel: "lore".into(),
            incarnation: Uuid::from_u128(7),
            seq,
            received_ms: 1,
            given_up_ms: 2,
            attempts: 3,
            reason: "status 500\nagain".into(),
            event: serde_json::json!({"id": "x", "data": {"content_text": "a\nb"}}),
        }
    }

    fn seqs(data: &Path) -> (Vec<u64>, u64) {
        let mut seqs = Vec::new();
        let garbled = read(data, "h", |letter| seqs.push(letter.seq)).unwrap();
        (seqs, garbled)
    }

    #[test]
    fn letters_are_lines_and_an_unfinished_one_is_cut_off() {
        let data = tempfile::tempdir().unwrap();
        let dead = DeadLetters::new(data.path(), "h");
        dead.append([]).unwrap();
        assert!(!dead.path().exists());
        dead.append([letter(1), letter(2)]).unwrap();
        assert_eq!(seqs(data.path()), (vec![1, 2], 0));
        let text = fs::read(dead.path()).unwrap();
        fs::write(dead.path(), &text[..text.len() - 5]).unwrap();
        dead.append([letter(3)]).unwrap();
        assert_eq!(seqs(data.path()), (vec![1, 3], 0));
        let mut back = Vec::new();
        read(data.path(), "h", |l| back.push(l)).unwrap();
        assert_eq!(back[0], letter(1));
    }

    #[test]
    fn an_unfinished_letter_is_cut_off_however_long_it_is() {
        let data = tempfile::tempdir().unwrap();
        let dead = DeadLetters::new(data.path(), "h");
        let mut long = letter(2);
        long.event = serde_json::json!({"data": "x".repeat(300_000)});
        dead.append([letter(1), long]).unwrap();
        let text = fs::read(dead.path()).unwrap();
        fs::write(dead.path(), &text[..text.len() - 5]).unwrap();
        dead.append([letter(3)]).unwrap();
        assert_eq!(seqs(data.path()), (vec![1, 3], 0));
    }

    #[test]
    fn letters_are_bounded_and_the_oldest_dropped() {
        let data = tempfile::tempdir().unwrap();
        let dead = DeadLetters {
            max_file: 2000,
            ..DeadLetters::new(data.path(), "h")
        };
        for seq in 1..=200 {
            dead.append([letter(seq)]).unwrap();
            let files = fs::read_dir(dead.path().parent().unwrap()).unwrap();
            let size: u64 = files.map(|f| f.unwrap().metadata().unwrap().len()).sum();
            assert!(size <= 4 * 2000, "{size}");
        }
        let (left, garbled) = seqs(data.path());
        assert_eq!(garbled, 0);
        assert!(left.len() > 15 && left.len() < 60, "{left:?}");
        assert_eq!(left, (201 - left.len() as u64..=200).collect::<Vec<_>>());
        // The same with all letters at once.
        dead.append((201..=400).map(letter)).unwrap();
        let (left, _) = seqs(data.path());
        assert_eq!(dead.dropped(), 400 - left.len() as u64);
        assert_eq!(left, (401 - left.len() as u64..=400).collect::<Vec<_>>());
    }

    #[test]
    fn an_unwritable_file_is_named_in_the_error() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("dead-letters"), "").unwrap();
        let error = DeadLetters::new(data.path(), "h").append([letter(1)]);
        assert!(error.unwrap_err().to_string().contains("h.jsonl"));
    }
}
