//! Progress of a channel's feed files: `state/CHANNEL.json`.
//!
//! The channel's cursor is the end of its journal. This file is written after the feed files, and
//! is used if there is no journal: in the data folder of an older version, by an older version that
//! runs on this data folder, and after the loss of the journal.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flexicast::Cursor;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{FileError, replace};

/// Format of the file.
const VERSION: u32 = 1;

/// Bound on `seq`: an update is stream 4 · seq + 3, below 2^62 (RFC 9000 section 2.1).
const MAX_SEQ: u64 = 1 << 60;

/// Bound on the file, which is a line.
const MAX_FILE: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    channel: String,
    incarnation: Uuid,
    seq: u64,
    /// Whether the feed files lack updates up to the journal's end that the source sends again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    refill: bool,
}

/// Progress of the feed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedFileCursor {
    /// Cursor up to which the files are complete.
    pub cursor: Cursor,
    /// Whether later updates have to come from the source even if the journal has them, because the
    /// files are being refilled from further back.
    pub refill: bool,
}

/// Content of the cursor file at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CursorState {
    /// No file: the first start.
    Nothing,
    /// Valid cursor.
    Cursor(FeedFileCursor),
    /// Not a cursor of this channel, with the reason.
    Damaged(String),
}

/// Cursor file of one channel.
#[derive(Debug)]
pub struct CursorFile {
    path: PathBuf,
    channel: String,
}

impl CursorFile {
    /// Returns the file of `channel` in the folder `state`, without reading it.
    #[must_use]
    pub fn new(state: &Path, channel: &str) -> Self {
        Self {
            path: state.join(format!("{channel}.json")),
            channel: channel.to_owned(),
        }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn load(&self) -> Result<CursorState, FileError> {
        let mut text = Vec::new();
        let read = File::open(&self.path)
            .and_then(|file| file.take(MAX_FILE).read_to_end(&mut text).map(|_| ()));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(CursorState::Nothing);
            }
            other => other.map_err(FileError::of("read", &self.path))?,
        }
        let content: Content = match serde_json::from_slice(&text) {
            Ok(content) => content,
            Err(error) => return Ok(CursorState::Damaged(error.to_string())),
        };
        let damaged = |what: String| Ok(CursorState::Damaged(what));
        if content.version != VERSION {
            return damaged(format!("its version is {}, not {VERSION}", content.version));
        }
        if content.channel != self.channel {
            return damaged("it belongs to another channel".to_owned());
        }
        if content.seq >= MAX_SEQ {
            return damaged(format!("its seq {} is impossible", content.seq));
        }
        let cursor = Cursor {
            incarnation: content.incarnation,
            seq: content.seq,
        };
        Ok(CursorState::Cursor(FeedFileCursor {
            cursor,
            refill: content.refill,
        }))
    }

    /// Writes the file, which survives a power cut from the return on. Blocks for the disk.
    ///
    /// # Errors
    /// The failed operation; the older cursor is intact.
    pub fn store(
        &self,
        FeedFileCursor { cursor, refill }: FeedFileCursor,
    ) -> Result<(), FileError> {
        let content = Content {
            version: VERSION,
            channel: self.channel.clone(),
            incarnation: cursor.incarnation,
            seq: cursor.seq,
            refill,
        };
        let mut text = serde_json::to_vec(&content)
            .map_err(io::Error::other)
            .map_err(FileError::of("write", &self.path))?;
        text.push(b'\n');
        replace(&self.path, &text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn cursor(seq: u64) -> FeedFileCursor {
        let incarnation = Uuid::from_u128(7);
        FeedFileCursor {
            cursor: Cursor { incarnation, seq },
            refill: false,
        }
    }

    #[test]
    fn stored_offsets_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let file = CursorFile::new(folder.path(), "lore");
        assert_eq!(file.load().unwrap(), CursorState::Nothing);
        file.store(cursor(1)).unwrap();
        file.store(cursor(12)).unwrap();
        assert_eq!(file.load().unwrap(), CursorState::Cursor(cursor(12)));
        assert_eq!(
            fs::read_to_string(folder.path().join("lore.json")).unwrap(),
            format!(
                "{{\"version\":1,\"channel\":\"lore\",\"incarnation\":\"{}\",\"seq\":12}}\n",
                Uuid::from_u128(7)
            )
        );
        let refill = FeedFileCursor {
            refill: true,
            ..cursor(12)
        };
        file.store(refill).unwrap();
        assert_eq!(file.load().unwrap(), CursorState::Cursor(refill));
    }

    #[test]
    fn damage_is_found_and_described() {
        let folder = tempfile::tempdir().unwrap();
        let file = CursorFile::new(folder.path(), "lore");
        file.store(cursor(12)).unwrap();
        let good = fs::read_to_string(file.path()).unwrap();
        let cases = [
            String::new(),
            "\0\0\0\0".to_owned(),
            good[..good.len() / 2].to_owned(),
            good.replace(":12}", ":-1}"),
            good.replace(":12}", ":18446744073709551615}"),
            good.replace("lore", "net"),
            good.replace("\"version\":1", "\"version\":2"),
            "[".repeat(1 << 20),
        ];
        for text in cases {
            fs::write(file.path(), &text).unwrap();
            match file.load().unwrap() {
                CursorState::Damaged(reason) => assert!(!reason.is_empty()),
                other => panic!("{text:.80}: {other:?}"),
            }
        }
        // And overwritten.
        file.store(cursor(13)).unwrap();
        assert_eq!(file.load().unwrap(), CursorState::Cursor(cursor(13)));
    }

    #[test]
    fn an_unreadable_file_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = CursorFile::new(folder.path(), "lore");
        fs::create_dir(file.path()).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains("lore.json"), "{error}");
    }
}
