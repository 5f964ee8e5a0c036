//! The delivery log: one JSON line for each update that is in the output (`--delivery-log`).
//!
//! It is at-least-once: a receiver that is killed after the line and before the cursor writes the
//! line again when the update is delivered again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use flexicast::Via;
use serde::Serialize;

use crate::durable::FileError;

/// How far back the end of the last whole line is looked for, in bytes; a line is much shorter.
const MAX_TORN: u64 = 64 << 10;

/// The longest entry id in a line, in characters. A source's ids are shorter; this bounds what a
/// source that does not keep to it can make a batch hold.
const MAX_ID: usize = 4096;

/// One update that is in the output.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its number in the channel.
    pub seq: u64,
    /// The entry's id.
    pub id: String,
    /// How it arrived.
    pub via: Via,
    /// When the output had it, Unix time in ms.
    pub at_ms: f64,
    /// From its storing at the source until then, in ms; by two clocks, so it can be negative.
    pub latency_ms: f64,
}

impl Record {
    /// An entry's id as a record holds it.
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

/// The delivery log, of all channels, as one channel writes it. It is known by its path, and opened for each batch, so that it can be rotated by renaming.
#[derive(Debug)]
pub struct DeliveryLog {
    path: PathBuf,
    channel: String,
}

impl DeliveryLog {
    /// The log at `path`, for the updates of `channel`.
    #[must_use]
    pub fn new(path: &Path, channel: &str) -> Self {
        Self {
            path: path.to_owned(),
            channel: channel.to_owned(),
        }
    }

    /// Appends a line for each record: all of them, or none where it fails. An unfinished line at
    /// the end, of a process that was killed, is taken away first.
    ///
    /// # Errors
    /// If the file cannot be written to.
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
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&self.path)?;
        if !file.metadata()?.is_file() {
            return file.write_all(&lines);
        }
        let end = mend(&mut file)?;
        let result = file.write_all(&lines);
        if result.is_err() {
            // Half of it would be repeated by the next try.
            let _ = file.set_len(end);
        }
        result
    }
}

/// Cuts off an unfinished last line. Returns the length that is left.
pub(crate) fn mend(file: &mut File) -> io::Result<u64> {
    let len = file.seek(SeekFrom::End(0))?;
    let from = len.saturating_sub(MAX_TORN);
    let mut last = [0];
    if len > 0 {
        file.seek(SeekFrom::Start(len - 1))?;
        file.read_exact(&mut last)?;
    }
    if len == 0 || last == *b"\n" {
        return Ok(len);
    }
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.take(MAX_TORN).read_to_end(&mut tail)?;
    match tail.iter().rposition(|byte| *byte == b'\n') {
        Some(at) => {
            let end = from + at as u64 + 1;
            file.set_len(end)?;
            Ok(end)
        }
        None if from == 0 => {
            file.set_len(0)?;
            Ok(0)
        }
        // No line of ours: whatever it is stays, and ours begin on a line of their own.
        None => {
            file.write_all(b"\n")?;
            Ok(len + 1)
        }
    }
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
            r#"{"seq":1,"id":"urn:\"1\"","via":"repaired","at_ms":1700000000000.25,"latency_ms":3.5,"channel":"lore"}"#
        );
    }

    #[test]
    fn an_unfinished_line_is_taken_away() {
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
    fn a_long_line_of_somebody_else_is_kept() {
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
