//! The delivery log: one JSON line for each update (`--delivery-log`).
//!
//! Each update is logged at least once: a receiver killed between the line and the journal writes
//! the line again when the source resends the update.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use flexicast::Via;
use serde::Serialize;

use crate::durable::{FileError, sync_folder_of};

/// Distance from the end of the file in which the last whole line is searched, in bytes; lines are
/// much shorter.
const MAX_TORN: u64 = 64 << 10;

/// Size of the blocks of that search, in bytes.
const PART: u64 = 4 << 10;

/// Lock of the writing channel: all channels of a process share one file.
static TURN: Mutex<()> = Mutex::new(());

/// First bytes of each line.
const OPENING: &[u8] = b"{\"seq\":";

/// Longest entry id in a line, in characters. Ids of a source are shorter; this bounds the memory
/// that a misbehaving source can cause.
const MAX_ID: usize = 4096;

/// Delivered update.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Number in the channel.
    pub seq: u64,
    /// Id of the entry.
    pub id: String,
    /// Path of the arrival.
    pub via: Via,
    /// Unix time in ms at which the journal had it; in the log, just before that.
    pub at_ms: f64,
    /// Time since it was stored at the source, in ms; by two clocks, so it can be negative.
    pub latency_ms: f64,
}

impl Record {
    /// Returns an entry's id, truncated for a record.
    #[must_use]
    pub fn id_of(id: &str) -> String {
        match id.char_indices().nth(MAX_ID) {
            Some((end, _)) => format!("{}…", &id[..end]),
            None => id.to_owned(),
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    id: &'a str,
    via: String,
    at_ms: f64,
    latency_ms: f64,
    channel: &'a str,
}

/// Delivery log of all channels, as one channel writes it. The file is opened for each batch, so
/// that it can be rotated by renaming.
#[derive(Debug)]
pub struct DeliveryLog {
    path: PathBuf,
    channel: String,
}

impl DeliveryLog {
    /// Returns the log at `path`, for the updates of `channel`.
    #[must_use]
    pub fn new(path: &Path, channel: &str) -> Self {
        Self {
            path: path.to_owned(),
            channel: channel.to_owned(),
        }
    }

    /// Appends a line for each record: all of them, or none on failure. An unfinished last line of
    /// a killed process is removed first.
    ///
    /// # Errors
    /// The file cannot be written to.
    pub fn append(&self, records: &[Record]) -> Result<(), FileError> {
        if records.is_empty() {
            return Ok(());
        }
        self.write(records)
            .map_err(FileError::of("write the delivery log", &self.path))
    }

    fn write(&self, records: &[Record]) -> io::Result<()> {
        let mut lines = Vec::new();
        for record in records {
            let line = Line {
                seq: record.seq,
                id: &record.id,
                via: record.via.to_string(),
                at_ms: record.at_ms,
                latency_ms: record.latency_ms,
                channel: &self.channel,
            };
            serde_json::to_writer(&mut lines, &line)?;
            lines.push(b'\n');
        }
        // A line that another channel is writing must not be taken for a torn one.
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !self.path.exists();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&self.path)?;
        if is_new {
            // A folder that can be written but not read is no reason to fail.
            let _ = sync_folder_of(&self.path);
        }
        if !file.metadata()?.is_file() {
            return file.write_all(&lines);
        }
        let end = cut_torn_line(&mut file, OPENING, MAX_TORN)?;
        put(&mut file, &lines, end)
    }
}

/// File that lines are appended to.
trait Lines: Write {
    /// Syncs the content to disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Truncates the file to `len`.
    fn cut(&mut self, len: u64) -> io::Result<()>;
}

impl Lines for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }
}

/// Appends `lines` at `end`, and syncs: the journal, which is next, is synced as well, and no line
/// is repeated once it has grown.
fn put(file: &mut impl Lines, lines: &[u8], end: u64) -> io::Result<()> {
    let result = file.write_all(lines).and_then(|()| file.sync());
    if result.is_err() {
        // A partial write would be repeated by the next attempt.
        let _ = file.cut(end);
    }
    result
}

/// Cuts off an unfinished last line that begins with `opening`, or is a part of it. Any other
/// unfinished line, or one longer than `longest`, is foreign: it is kept and terminated. Returns
/// the remaining length.
pub(crate) fn cut_torn_line(file: &mut File, opening: &[u8], longest: u64) -> io::Result<u64> {
    let len = file.seek(SeekFrom::End(0))?;
    let begin = last_line(file, len, longest)?;
    if begin == Some(len) {
        return Ok(len);
    }
    if let Some(begin) = begin {
        let mut head = Vec::new();
        file.seek(SeekFrom::Start(begin))?;
        let part = opening.len() as u64;
        Read::take(&mut *file, part).read_to_end(&mut head)?;
        if opening.starts_with(&head) {
            file.set_len(begin)?;
            return Ok(begin);
        }
    }
    file.write_all(b"\n")?;
    Ok(len + 1)
}

/// Returns the offset of the last line, given `len` after a whole one; `None` if it is too long.
fn last_line(file: &mut File, len: u64, longest: u64) -> io::Result<Option<u64>> {
    let first = len.saturating_sub(longest);
    let mut at = len;
    let mut part = Vec::new();
    while at > first {
        let from = at.saturating_sub(PART).max(first);
        part.clear();
        file.seek(SeekFrom::Start(from))?;
        Read::take(&mut *file, at - from).read_to_end(&mut part)?;
        if let Some(n) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(from + n as u64 + 1));
        }
        at = from;
    }
    Ok((at == 0).then_some(0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn record(seq: u64) -> Record {
        Record {
            seq,
            id: format!("urn:\"{seq}\""),
            via: Via::Repaired,
            at_ms: 1_700_000_000_000.25,
            latency_ms: 3.5,
        }
    }

    #[test]
    fn each_record_is_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = DeliveryLog::new(&path, "lore");
        log.append(&[]).unwrap();
        assert!(!path.exists());
        log.append(&[record(1), record(2)]).unwrap();
        log.append(&[record(3)]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(
            text.lines().next().unwrap(),
            concat!(
                r#"{"seq":1,"id":"urn:\"1\"","via":"repaired","at_ms":1700000000000.25,"#,
                r#""latency_ms":3.5,"channel":"lore"}"#
            )
        );
    }

    #[test]
    fn an_unfinished_line_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = DeliveryLog::new(&path, "lore");
        log.append(&[record(1), record(2)]).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        for cut in 1..whole.len() / 2 {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            log.append(&[record(2)]).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), whole, "{cut}");
        }
        fs::write(&path, "{\"seq\":1").unwrap();
        log.append(&[record(1), record(2)]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    }

    #[test]
    fn a_long_foreign_line_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "x".repeat(100_000)).unwrap();
        DeliveryLog::new(&path, "lore")
            .append(&[record(1)])
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lengths: Vec<_> = text.lines().map(str::len).collect();
        assert_eq!(lengths.len(), 2);
        assert_eq!(lengths[0], 100_000);
    }

    #[test]
    fn a_foreign_file_is_kept_intact() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        for own in ["milk", "milk\neggs", "{\"sequel\":1}", "\n{}"] {
            fs::write(&path, own).unwrap();
            let log = DeliveryLog::new(&path, "lore");
            log.append(&[record(1)]).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let rest = text.strip_prefix(own).unwrap();
            assert!(rest.starts_with("\n{\"seq\":1,"), "{text}");
        }
    }

    #[derive(Default)]
    struct Disk {
        is_bad: bool,
        calls: Vec<String>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls.push(format!("write {}", bytes.len()));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines for Disk {
        fn sync(&mut self) -> io::Result<()> {
            self.calls.push("sync".into());
            match self.is_bad {
                true => Err(io::Error::other("bad")),
                false => Ok(()),
            }
        }

        fn cut(&mut self, len: u64) -> io::Result<()> {
            self.calls.push(format!("cut {len}"));
            Ok(())
        }
    }

    #[test]
    fn lines_are_synced_or_absent() {
        let mut disk = Disk::default();
        put(&mut disk, b"abc", 7).unwrap();
        assert_eq!(disk.calls, ["write 3", "sync"]);
        let mut disk = Disk {
            is_bad: true,
            ..Disk::default()
        };
        put(&mut disk, b"abc", 7).unwrap_err();
        assert_eq!(disk.calls, ["write 3", "sync", "cut 7"]);
    }

    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let error = DeliveryLog::new(Path::new("/dev/full"), "lore")
            .append(&[record(1)])
            .unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }

    #[test]
    fn ids_are_bounded() {
        assert_eq!(Record::id_of("urn:x"), "urn:x");
        assert_eq!(Record::id_of(&"é".repeat(5000)).chars().count(), MAX_ID + 1);
    }
}
