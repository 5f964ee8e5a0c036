//! The file of a mark: two records of fixed length, written in turn, so that a power cut while one
//! is written leaves the other whole.
//!
//! A record says when its file was made, as the file system has it. A copy of the file was made
//! later, which no ordinary tool can hide; file systems that do not know the time leave that out.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// First bytes of a record; the number is the version of its form.
const TITLE: &str = "flexfeed-head-mark 1";

/// The length of a record in bytes, with the line's end. Smaller than any sector of a disk.
const LENGTH: usize = 256;

/// File systems keep times in steps; this is more than the largest of those in use for the time of
/// making (FAT: 10 ms), in milliseconds.
const STEP_MS: u64 = 50;

/// Content of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) incarnation: Uuid,
    pub(super) seq: u64,
}

impl Record {
    /// The mark of who stands by, after a look at what the channel has: raised, or as it was.
    pub(super) fn followed_by(self, present: Self) -> Self {
        if present.incarnation == self.incarnation && present.seq > self.seq {
            present
        } else {
            self
        }
    }
}

/// Finding in the place of a mark.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MarkState {
    /// No file.
    Nothing,
    /// A file that is no mark, and why.
    Damaged(String),
    /// A mark that was copied from somewhere.
    Copy,
    /// A mark.
    Mark(Record),
}

/// An open mark.
#[derive(Debug)]
pub(super) struct MarkFile {
    file: File,
    record: Record,
    /// When the file was made; 0 if the file system does not know.
    made_ms: u64,
    /// Number of records written; its parity decides the place of the next one.
    written: u64,
}

impl MarkFile {
    /// Looks at the file `path`.
    pub(super) fn find(path: &Path) -> io::Result<MarkState> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(MarkState::Nothing),
            Err(error) => return Err(error),
        };
        let mut content = Vec::new();
        let most = 2 * LENGTH as u64;
        Read::by_ref(&mut file)
            .take(most + 1)
            .read_to_end(&mut content)?;
        if content.len() as u64 > most {
            return Ok(MarkState::Damaged(format!("it has more than {most} bytes")));
        }
        let newest = content
            .chunks(LENGTH)
            .filter_map(parse)
            .max_by_key(|(written, ..)| *written);
        let Some((_, made_ms, record)) = newest else {
            return Ok(MarkState::Damaged("neither of its records is whole".into()));
        };
        let is_made = made(&file);
        let is_copy = made_ms > 0 && is_made > 0 && made_ms.abs_diff(is_made) > STEP_MS;
        Ok(if is_copy {
            MarkState::Copy
        } else {
            MarkState::Mark(record)
        })
    }

    /// Puts a new file in place of whatever is there. When this returns, it is durable.
    pub(super) fn begin(path: &Path, record: Record) -> io::Result<Self> {
        let fresh = beside(path);
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        // The length of the file does not change any more, so later writes find their room.
        file.write_all_at(&[b' '; 2 * LENGTH], 0)?;
        let mut mark = Self {
            made_ms: made(&file),
            file,
            record,
            written: 0,
        };
        mark.write()?;
        mark.file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        sync_folder(path)?;
        // Some servers give a file that takes another's name that one's time of making.
        let made_ms = made(&mark.file);
        if made_ms != mark.made_ms {
            mark.made_ms = made_ms;
            mark.write()?;
            mark.file.sync_all()?;
        }
        Ok(mark)
    }

    /// Durably sets the seq.
    pub(super) fn raise(&mut self, seq: u64) -> io::Result<()> {
        let before = std::mem::replace(&mut self.record.seq, seq);
        let done = self.write().and_then(|()| self.file.sync_data());
        if done.is_err() {
            self.record.seq = before;
        }
        done
    }

    /// Writes the record over the older one of the two.
    fn write(&mut self) -> io::Result<()> {
        let text = format(self.written + 1, self.made_ms, self.record);
        let at = (self.written % 2) * LENGTH as u64;
        self.file.write_all_at(&text, at)?;
        self.written += 1;
        Ok(())
    }
}

/// When a file was made, in Unix milliseconds; 0 if its file system does not know.
fn made(file: &File) -> u64 {
    file.metadata()
        .and_then(|metadata| metadata.created())
        .ok()
        .and_then(|made: SystemTime| made.duration_since(UNIX_EPOCH).ok())
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or_default()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

/// A record as it stands in the file: a line, filled up with spaces.
fn format(written: u64, made_ms: u64, record: Record) -> [u8; LENGTH] {
    let Record { incarnation, seq } = record;
    let said = format!("{TITLE} {written} {incarnation} {seq} {made_ms}");
    let text = format!("{said} {:016x}", sum(said.as_bytes()));
    let mut line = [b' '; LENGTH];
    // The longest text has 148 bytes; zip stays in bounds whatever it has.
    for (to, from) in line.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    line[LENGTH - 1] = b'\n';
    line
}

/// Number of records written, when the file was made, and the record.
fn parse(line: &[u8]) -> Option<(u64, u64, Record)> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    let (said, of) = text.rsplit_once(' ')?;
    if u64::from_str_radix(of, 16).ok()? != sum(said.as_bytes()) {
        return None;
    }
    let mut words = said.strip_prefix(TITLE)?.split_whitespace();
    let written = words.next()?.parse().ok()?;
    let incarnation = words.next()?.parse().ok()?;
    let seq = words.next()?.parse().ok()?;
    let made_ms = words.next()?.parse().ok()?;
    Some((written, made_ms, Record { incarnation, seq }))
}

/// FNV-1a: tells a record that was written in part from a whole one.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn record(seq: u64) -> Record {
        Record {
            incarnation: Uuid::from_u128(u128::MAX),
            seq,
        }
    }

    #[test]
    fn a_torn_record_leaves_the_previous_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lore.head");
        assert_eq!(MarkFile::find(&path).unwrap(), MarkState::Nothing);
        let mut mark = MarkFile::begin(&path, record(7)).unwrap();
        assert_eq!(MarkFile::find(&path).unwrap(), MarkState::Mark(record(7)));
        for seq in [8, 9, u64::MAX] {
            mark.raise(seq).unwrap();
            assert_eq!(MarkFile::find(&path).unwrap(), MarkState::Mark(record(seq)));
        }
        // Four records were written: the last is the second one.
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), 2 * LENGTH);
        for torn in LENGTH..LENGTH + 60 {
            let mut content = whole.clone();
            content[torn] = b'#';
            std::fs::write(&path, &content).unwrap();
            assert_eq!(MarkFile::find(&path).unwrap(), MarkState::Mark(record(9)));
        }
        for damaged in [
            &b""[..],
            b"flexfeed-head-mark 1",
            &[b'x'; 600],
            &[0xff; 512],
        ] {
            std::fs::write(&path, damaged).unwrap();
            let found = MarkFile::find(&path).unwrap();
            assert!(matches!(found, MarkState::Damaged(_)), "{found:?}");
        }
        // A new one takes its place, whatever is there.
        MarkFile::begin(&path, record(3)).unwrap();
        assert_eq!(MarkFile::find(&path).unwrap(), MarkState::Mark(record(3)));
    }

    #[test]
    fn a_copy_differs_from_the_original() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lore.head");
        let mark = MarkFile::begin(&path, record(7)).unwrap();
        if mark.made_ms == 0 {
            return; // This file system cannot tell.
        }
        let moved = folder.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        assert_eq!(MarkFile::find(&moved).unwrap(), MarkState::Mark(record(7)));
        pause();
        std::fs::copy(&moved, &path).unwrap();
        assert_eq!(MarkFile::find(&path).unwrap(), MarkState::Copy);
        // Also where it is written into a file that was there: each start makes a new file.
        MarkFile::begin(&path, record(8)).unwrap();
        std::fs::copy(&moved, &path).unwrap();
        assert_eq!(MarkFile::find(&path).unwrap(), MarkState::Copy);
    }

    #[expect(clippy::disallowed_methods, reason = "this test is a plain thread")]
    fn pause() {
        std::thread::sleep(std::time::Duration::from_millis(2 * STEP_MS));
    }
}
