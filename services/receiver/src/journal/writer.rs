//! Writing side of a journal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flexicast::Cursor;
use flexicast::signing::Lineage;
use tracing::warn;
use uuid::Uuid;

use super::lineage::LineageFile;
use super::reader::{Index, JournalReader};
use super::record::{Kind, Missing, Record, RecordHeader};
use super::segment::{HEADER, Segment, list};
use super::{JournalError, Limits};
use crate::board::now_ms;
use crate::durable::{FileError, make_folder, sync_folder_of};

/// Journal of one channel, for its only writer.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    limits: Limits,
    reader: Arc<JournalReader>,
    /// File of the last segment.
    file: Option<File>,
    /// Records not written yet.
    pending: Vec<Record>,
    /// Cursor after the pending records.
    last: Option<Cursor>,
    lineage: LineageFile,
}

/// State of the journal at opening.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Opened {
    /// Cursor of the journal; `None` if it is empty.
    pub cursor: Option<Cursor>,
    /// Descriptions of damage.
    pub damaged: Vec<String>,
}

impl Journal {
    /// Opens or makes the journal in `folder`. An unfinished record at the end is cut off.
    ///
    /// # Errors
    /// The folder or a file in it cannot be read or made.
    pub fn open(folder: &Path, limits: Limits) -> Result<(Self, Opened), FileError> {
        make_folder(folder).map_err(FileError::of("make", folder))?;
        let (lineage, damaged) = LineageFile::open(folder)?;
        let mut opened = Opened {
            damaged: damaged.into_iter().collect(),
            ..Opened::default()
        };
        let mut index = Index::default();
        let paths = list(folder)?;
        for (at, path) in paths.iter().enumerate() {
            let last = at + 1 == paths.len();
            match Segment::open(path)? {
                Some((segment, _))
                    if index
                        .segments
                        .back()
                        .is_some_and(|b| b.end() > segment.first) =>
                {
                    opened.damaged.push(format!(
                        "{} overlaps with another file and is ignored",
                        path.display()
                    ));
                    drop(segment);
                }
                Some((segment, whole)) => {
                    if !last && segment.len != whole {
                        opened.damaged.push(format!(
                            "{} is damaged from byte {} on",
                            path.display(),
                            segment.len
                        ));
                    }
                    index.segments.push_back(segment);
                }
                // Left by a kill before the first record.
                None if last => {
                    fs::remove_file(path).map_err(FileError::of("remove", path))?;
                }
                None => {
                    opened
                        .damaged
                        .push(format!("{} is not part of a journal", path.display()));
                    fs::remove_file(path).map_err(FileError::of("remove", path))?;
                }
            }
        }
        let headers = index
            .segments
            .iter()
            .rev()
            .flat_map(|s| s.headers.iter().rev());
        opened.cursor = headers.map(|(_, header)| cursor_of(header)).next();
        index.now = opened.cursor;
        let file = index.segments.back().map(Segment::writable).transpose()?;
        let end = index.segments.back().map_or(0, Segment::end);
        let journal = Self {
            folder: folder.to_owned(),
            limits,
            reader: Arc::new(JournalReader::new(index, end)),
            file,
            pending: Vec::new(),
            last: opened.cursor,
            lineage,
        };
        Ok((journal, opened))
    }

    /// Returns the reading side.
    #[must_use]
    pub fn reader(&self) -> Arc<JournalReader> {
        Arc::clone(&self.reader)
    }

    /// Sets the cursor of an empty journal, without a record.
    pub fn assume(&mut self, cursor: Cursor) {
        if self.last.is_none() {
            self.last = Some(cursor);
            self.reader.index().now = Some(cursor);
        }
    }

    /// Begins the numbers after `cursor`. `resync` if the source has restarted its numbering.
    pub fn begin(&mut self, cursor: Cursor, resync: bool) {
        match self.last {
            Some(last) if last == cursor => {}
            Some(last) if last.incarnation == cursor.incarnation && !resync => {
                // The cursor was lost, but not the journal.
                self.miss(
                    cursor.incarnation,
                    last.seq + 1,
                    cursor.seq,
                    Missing::Skipped,
                );
            }
            known => self.push(
                Kind::Begins {
                    resync: known.is_some(),
                },
                cursor,
                Bytes::new(),
            ),
        }
    }

    /// Adds an update, unless the journal has it.
    pub fn take(&mut self, incarnation: Uuid, seq: u64, encoded: &Bytes) {
        if self.is_new(incarnation, seq) {
            self.follow(incarnation, seq);
            let at_ms = now_ms() as u64;
            let cursor = Cursor { incarnation, seq };
            self.push(Kind::Update { at_ms }, cursor, encoded.clone());
        }
    }

    /// Takes the keys that the source names for the updates of this incarnation of the channel.
    pub fn name_keys(&mut self, incarnation: Uuid, lineage: &Lineage) {
        self.lineage.add(incarnation, lineage);
    }

    /// Adds a gap of the updates `from` to `to`, except for those that the journal has.
    pub fn miss(&mut self, incarnation: Uuid, from: u64, to: u64, why: Missing) {
        if self.is_new(incarnation, to) {
            self.follow(incarnation, from);
            let last = self.last.filter(|last| last.incarnation == incarnation);
            let from = last.map_or(from, |last| from.max(last.seq + 1));
            let cursor = Cursor {
                incarnation,
                seq: to,
            };
            self.push(Kind::Missing { from, why }, cursor, Bytes::new());
        }
    }

    /// Whether writing the pending records may remove records at `position` or after it.
    #[must_use]
    pub fn would_drop(&self, position: u64) -> bool {
        let announced = self.reader.end();
        let index = self.reader.index();
        let mut records = self.pending.len();
        // At worst each is in a new file.
        let pending = self.pending.iter().map(|r| r.size() as u64 + HEADER);
        let mut bytes: u64 = pending.sum();
        for segment in &index.segments {
            records += segment.headers.len();
            bytes += segment.len;
        }
        for segment in &index.segments {
            let fits = records <= self.limits.updates && bytes <= self.limits.bytes;
            if fits || segment.end() > announced {
                return false;
            }
            if segment.end() > position {
                return true;
            }
            records -= segment.headers.len();
            bytes -= segment.len;
        }
        false
    }

    /// Syncs the pending records, and before them the keys that signed them. They do not count yet:
    /// see [`Journal::announce`]. Blocks for the disk.
    ///
    /// # Errors
    /// The failed operation. Call again: records written by a failed call are not written twice.
    pub fn write(&mut self) -> Result<(), JournalError> {
        let (reader, pending) = (&self.reader, &self.pending);
        let is_pending = |incarnation| {
            let mut headers = pending.iter().map(|record| record.header);
            headers.any(|header| header.incarnation == incarnation)
        };
        self.lineage
            .store(|incarnation| reader.knows(incarnation) || is_pending(incarnation))?;
        while !self.pending.is_empty() {
            self.write_part()?;
        }
        // The file written to before is complete by now, and may leave as well.
        self.make_room(0, 0)
    }

    /// Writes as many pending records as fit into the last file, or into a new one.
    fn write_part(&mut self) -> Result<(), JournalError> {
        let most = (self.limits.segment_updates(), self.limits.segment_bytes());
        // Only this writer changes the segments, so they stay the same while the lock is not held;
        // a disk that hangs must not block readers.
        let back = {
            let index = self.reader.index();
            let back = index.segments.back();
            back.map(|s| (s.path.clone(), s.headers.len(), s.len, s.end()))
        };
        let end = back.as_ref().map_or(0, |(_, _, _, end)| *end);
        let back = back.filter(|_| self.file.is_some());
        let (old, count) = match back {
            Some((path, records, len, _)) => {
                let count = self.fitting(most.0.saturating_sub(records), most.1, len);
                (Some((path, len)).filter(|_| count > 0), count)
            }
            None => (None, 0),
        };
        let count = match old {
            Some(_) => count,
            // A record too long for any file gets one of its own.
            None => self.fitting(most.0, most.1, HEADER).max(1),
        };
        let mut bytes = Vec::new();
        for (record, position) in self.pending.iter().take(count).zip(end..) {
            record.write(position, &mut bytes);
        }
        let header = if old.is_some() { 0 } else { HEADER };
        self.make_room(count, bytes.len() as u64 + header)?;
        let new = match (&self.file, &old) {
            (Some(file), Some((path, len))) => {
                super::segment::append(file, path, *len, &bytes)?;
                None
            }
            _ => {
                let (segment, file) = Segment::create(&self.folder, end, &bytes)?;
                self.file = Some(file);
                Some(segment)
            }
        };
        let mut index = self.reader.index();
        index.segments.extend(new);
        if let Some(segment) = index.segments.back_mut() {
            for record in self.pending.drain(..count) {
                segment.push(&record);
            }
        }
        Ok(())
    }

    /// Returns the number of pending records that fit into a file of length `len` with room for
    /// `records` records and `bytes` bytes.
    fn fitting(&self, records: usize, bytes: u64, mut len: u64) -> usize {
        let fits = |record: &&Record| {
            len = len.saturating_add(record.size() as u64);
            len <= bytes
        };
        self.pending.iter().take(records).take_while(fits).count()
    }

    /// Makes written records count for readers: all other files of their batch are durable too.
    pub fn announce(&self) {
        if self.pending.is_empty() {
            self.reader.announce(self.last);
        }
    }

    /// Removes the oldest segments until there is room for so many records and bytes. Records that
    /// do not count yet stay: guards could not read them.
    fn make_room(&mut self, coming: usize, coming_bytes: u64) -> Result<(), JournalError> {
        loop {
            let announced = self.reader.end();
            let (path, end) = {
                let index = self.reader.index();
                let records: usize = index.segments.iter().map(|s| s.headers.len()).sum();
                let bytes: u64 = index.segments.iter().map(|s| s.len).sum();
                let fits = records + coming <= self.limits.updates
                    && bytes.saturating_add(coming_bytes) <= self.limits.bytes;
                match index.segments.front() {
                    // The last one is being written.
                    Some(oldest)
                        if !fits && index.segments.len() > 1 && oldest.end() <= announced =>
                    {
                        (oldest.path.clone(), oldest.end())
                    }
                    _ => return Ok(()),
                }
            };
            self.reader
                .leave(end)
                .map_err(|error| JournalError::Leaving {
                    folder: self.folder.clone(),
                    reason: error.to_string(),
                })?;
            self.reader.index().segments.pop_front();
            if let Err(error) = fs::remove_file(&path) {
                // The file takes room until the next start, which reads it again.
                warn!(path = %path.display(), %error, "journal segment not removed");
            }
            sync_folder_of(&path)?;
        }
    }

    fn is_new(&self, incarnation: Uuid, seq: u64) -> bool {
        self.last
            .is_none_or(|last| last.incarnation != incarnation || last.seq < seq)
    }

    /// Numbers of another incarnation are always announced, whatever part of the journal was lost.
    fn follow(&mut self, incarnation: Uuid, next: u64) {
        if self
            .last
            .is_some_and(|last| last.incarnation != incarnation)
        {
            let seq = next.saturating_sub(1);
            self.begin(Cursor { incarnation, seq }, true);
        }
    }

    fn push(&mut self, kind: Kind, cursor: Cursor, encoded: Bytes) {
        self.last = Some(cursor);
        let header = RecordHeader {
            kind,
            incarnation: cursor.incarnation,
            seq: cursor.seq,
        };
        self.pending.push(Record { header, encoded });
    }
}

fn cursor_of(header: &RecordHeader) -> Cursor {
    Cursor {
        incarnation: header.incarnation,
        seq: header.seq,
    }
}
