//! Reading side of a journal, for any number of readers.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flexicast::Cursor;
use tokio::sync::watch;
use uuid::Uuid;

use super::record::{Kind, Record, RecordHeader};
use super::segment::{Segment, read_at};
use crate::durable::FileError;

/// Reader that is notified before records leave.
pub trait Guard: Send + Sync {
    /// Saves the records up to position `end` that the guard still needs, before they leave. Runs
    /// on a thread that may block for the disk only.
    ///
    /// # Errors
    /// The failed operation. No record leaves then, and the guard is called again.
    fn leaving(&self, end: u64) -> anyhow::Result<()>;
}

/// Position and metadata of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalPosition {
    /// Position.
    pub position: u64,
    /// Metadata of the record.
    pub header: RecordHeader,
}

/// Point at which a reader with a given cursor continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Position to read from.
    pub position: u64,
    /// Incarnation and number up to which the reader knows the updates, until the numbering
    /// restarts.
    pub known: Option<Cursor>,
    /// Missing updates in between: the first, and the last if it is known.
    pub gap: Option<(u64, Option<u64>)>,
}

/// Journal, for its readers.
#[derive(Debug)]
pub struct JournalReader {
    pub(super) index: Mutex<Index>,
    /// Position after the last record that counts.
    end: watch::Sender<u64>,
    guards: Mutex<Guards>,
}

#[derive(Default)]
struct Guards(Vec<Arc<dyn Guard>>);

impl std::fmt::Debug for Guards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} guards", self.0.len())
    }
}

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) segments: VecDeque<Segment>,
    /// Channel's cursor at `end`.
    pub(super) now: Option<Cursor>,
}

impl JournalReader {
    pub(super) fn new(index: Index, end: u64) -> Self {
        Self {
            index: Mutex::new(index),
            end: watch::Sender::new(end),
            guards: Mutex::default(),
        }
    }

    /// Returns the position after the last record that counts.
    #[must_use]
    pub fn end(&self) -> u64 {
        *self.end.borrow()
    }

    /// Returns the position of the oldest record.
    #[must_use]
    pub fn start(&self) -> u64 {
        let index = self.index();
        index
            .segments
            .front()
            .map_or_else(|| self.end(), |s| s.first)
    }

    /// Returns a watch on the end position.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// Returns the channel's cursor; `None` before the first record.
    #[must_use]
    pub fn now(&self) -> Option<Cursor> {
        self.index().now
    }

    /// Registers a guard to notify before records leave.
    pub fn guard(&self, guard: Arc<dyn Guard>) {
        self.guards().0.push(guard);
    }

    /// Returns the first record at this position or after it, if any.
    #[must_use]
    pub fn next(&self, position: u64) -> Option<JournalPosition> {
        let end = self.end();
        let index = self.index();
        // Segments are few and in order; the last ones are read most.
        let mut found = None;
        for segment in index.segments.iter().rev() {
            if segment.end() <= position {
                break;
            }
            let at = position.max(segment.first);
            found = segment
                .header(at)
                .map(|(_, header)| (at, *header))
                .or(found);
        }
        let (position, header) = found?;
        (position < end).then_some(JournalPosition { position, header })
    }

    /// Returns the record of this position; `None` if it is not here, or not any more. Blocks for
    /// the disk.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, position: u64) -> Result<Option<Record>, FileError> {
        if position >= self.end() {
            return Ok(None);
        }
        let place = |index: &Index| {
            let segment = index.segments.iter().rev();
            let segment = segment.take_while(|s| s.end() > position).last()?;
            let (offset, _) = segment.header(position)?;
            Some((segment.path.clone(), *offset))
        };
        let Some((path, offset)) = place(&self.index()) else {
            return Ok(None);
        };
        match read_at(&path, offset, position) {
            Ok(record) => Ok(record),
            // The record has left meanwhile.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && place(&self.index()).is_none() =>
            {
                Ok(None)
            }
            Err(error) => Err(FileError::of("read", &path)(error)),
        }
    }

    /// Returns the number of updates at and after this position.
    #[must_use]
    pub fn updates_from(&self, position: u64) -> u64 {
        let end = self.end();
        let index = self.index();
        let mut count = 0;
        for segment in index.segments.iter().rev() {
            if segment.end() <= position {
                break;
            }
            if position <= segment.first && segment.end() <= end {
                count += segment.updates;
                continue;
            }
            let headers = segment.headers.iter().zip(segment.first..);
            let counted = headers.filter(|((_, header), at)| {
                (position..end).contains(at) && matches!(header.kind, Kind::Update { .. })
            });
            count += counted.count() as u64;
        }
        count
    }

    /// Returns the cursor of a reader that has everything before this position.
    #[must_use]
    pub fn cursor_before(&self, position: u64) -> Option<Cursor> {
        if position >= self.end() {
            return self.now();
        }
        let index = self.index();
        let before = position.checked_sub(1)?;
        let header = index.segments.iter().find_map(|s| s.header(before));
        header.map(|(_, header)| Cursor {
            incarnation: header.incarnation,
            seq: header.seq,
        })
    }

    /// Whether the journal has a record of this incarnation.
    #[must_use]
    pub fn knows(&self, incarnation: Uuid) -> bool {
        let index = self.index();
        let mut headers = index.segments.iter().flat_map(|s| &s.headers);
        index.now.is_some_and(|now| now.incarnation == incarnation)
            || headers.any(|(_, header)| header.incarnation == incarnation)
    }

    /// Returns the number of records and their bytes.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        let index = self.index();
        let records = index.segments.iter().map(|s| s.headers.len() as u64).sum();
        (records, index.segments.iter().map(|s| s.len).sum())
    }

    /// Returns the point at which a reader continues that has everything up to `seq` of
    /// `incarnation`. If that number occurs twice, the first counts: a repeated update is better
    /// than a lost one.
    #[must_use]
    pub fn resume(&self, incarnation: Uuid, seq: u64) -> Resume {
        let end = self.end();
        let known = Some(Cursor { incarnation, seq });
        let index = self.index();
        let places = index.segments.iter().flat_map(|segment| {
            let headers = segment.headers.iter().zip(segment.first..);
            headers.map(|((_, header), position)| (position, *header))
        });
        let mut last = None;
        // Position at which this incarnation restarted below that number: the source's store was
        // restored from an older copy.
        let mut set_back = None;
        for (position, header) in places.take_while(|(position, _)| *position < end) {
            if header.incarnation == incarnation {
                let resume = |position, gap| Resume {
                    position,
                    known,
                    gap,
                };
                match header.seq.cmp(&seq) {
                    std::cmp::Ordering::Equal => return resume(position + 1, None),
                    std::cmp::Ordering::Less => {
                        if matches!(header.kind, Kind::Begins { resync: true }) {
                            set_back = set_back.or(Some(position));
                        }
                    }
                    std::cmp::Ordering::Greater => {
                        // First number that this record covers.
                        let from = match header.kind {
                            Kind::Update { .. } => header.seq,
                            Kind::Missing { from, .. } => from,
                            // The numbering restarts after the reader's cursor.
                            Kind::Begins { .. } => header.seq + 1,
                        };
                        let gap = (from > seq + 1).then_some((seq + 1, Some(from - 1)));
                        return resume(position, gap);
                    }
                }
                last = Some(position);
            }
        }
        let here = index.now.is_some_and(|now| now.incarnation == incarnation);
        let ahead = index.now.is_some_and(|now| seq >= now.seq);
        match last {
            // The cursor is of the time before the restart; all records since then are new.
            _ if here && ahead && set_back.is_some() => Resume {
                position: set_back.unwrap_or(end),
                known: None,
                gap: None,
            },
            // The reader is ahead of this receiver, which lost its data folder and refills it: only
            // records beyond the cursor are new.
            _ if here && ahead => Resume {
                position: end,
                known,
                gap: None,
            },
            // Numbers of another incarnation follow.
            Some(last) => Resume {
                position: last + 1,
                known: None,
                gap: None,
            },
            // Unknown position: all records.
            None => Resume {
                position: index.segments.front().map_or(end, |s| s.first),
                known: here.then_some(Cursor { incarnation, seq }),
                gap: Some((
                    seq.saturating_add(1),
                    index.now.filter(|_| here).map(|now| now.seq),
                )),
            },
        }
    }

    /// Makes written records count.
    pub(super) fn announce(&self, now: Option<Cursor>) {
        let end = {
            let mut index = self.index();
            index.now = now;
            index.segments.back().map_or(0, Segment::end)
        };
        self.end.send_if_modified(|known| {
            let grows = *known < end;
            *known = end.max(*known);
            grows
        });
    }

    /// Notifies all guards that the records before `end` leave.
    pub(super) fn leave(&self, end: u64) -> anyhow::Result<()> {
        let guards = self.guards().0.clone();
        guards.iter().try_for_each(|guard| guard.leaving(end))
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        // No change under this lock can be left half done.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guards(&self) -> MutexGuard<'_, Guards> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
