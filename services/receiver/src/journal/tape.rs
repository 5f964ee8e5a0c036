//! The reading side of a journal, for any number of readers.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flexicast::Cursor;
use tokio::sync::watch;
use uuid::Uuid;

use super::record::{Kind, Mark, Record};
use super::segment::{Segment, read_at};
use crate::durable::FileError;

/// Somebody who waits for records, and is told before they leave.
pub trait Guard: Send + Sync {
    /// The records before position `end` leave: takes over what it still needs of them. Called on a
    /// thread that may block for the disk, and for nothing else.
    ///
    /// # Errors
    /// What it could not do. Nothing leaves then, and it is asked again.
    fn leaving(&self, end: u64) -> anyhow::Result<()>;
}

/// A record's position and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its position.
    pub position: u64,
    /// What it says.
    pub mark: Mark,
}

/// Where to go on for somebody who has everything up to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Read from this position on.
    pub position: u64,
    /// Updates of this incarnation up to this number are known already, until numbers begin anew.
    pub known: Option<Cursor>,
    /// What lies between is not here any more: from this number, and, where it is known, up to that.
    pub gap: Option<(u64, Option<u64>)>,
}

/// A journal as its readers see it.
#[derive(Debug)]
pub struct Tape {
    pub(super) index: Mutex<Index>,
    /// The position after the last record that counts.
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
    /// How far the channel is at `end`.
    pub(super) now: Option<Cursor>,
}

impl Tape {
    pub(super) fn new(index: Index, end: u64) -> Self {
        Self {
            index: Mutex::new(index),
            end: watch::Sender::new(end),
            guards: Mutex::default(),
        }
    }

    /// The position after the last record that counts.
    #[must_use]
    pub fn end(&self) -> u64 {
        *self.end.borrow()
    }

    /// The position of the oldest record.
    #[must_use]
    pub fn start(&self) -> u64 {
        let index = self.index();
        index
            .segments
            .front()
            .map_or_else(|| self.end(), |s| s.first)
    }

    /// Tells of a new end.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// How far the channel is; `None` before anything is known of it.
    #[must_use]
    pub fn now(&self) -> Option<Cursor> {
        self.index().now
    }

    /// Has somebody told before records leave.
    pub fn guard(&self, guard: Arc<dyn Guard>) {
        self.guards().0.push(guard);
    }

    /// The first record at this position or after it, if there is one.
    #[must_use]
    pub fn next(&self, position: u64) -> Option<Place> {
        let end = self.end();
        let index = self.index();
        // Segments are few and in order; the last ones are asked for most.
        let mut found = None;
        for segment in index.segments.iter().rev() {
            if segment.end() <= position {
                break;
            }
            let at = position.max(segment.first);
            found = segment.mark(at).map(|(_, mark)| (at, *mark)).or(found);
        }
        let (position, mark) = found?;
        (position < end).then_some(Place { position, mark })
    }

    /// The record of this position; `None` if it is not here, or not any more. Blocks for the disk.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, position: u64) -> Result<Option<Record>, FileError> {
        if position >= self.end() {
            return Ok(None);
        }
        let place = |index: &Index| {
            let segment = index.segments.iter().rev();
            let segment = segment.take_while(|s| s.end() > position).last()?;
            let (offset, _) = segment.mark(position)?;
            Some((segment.path.clone(), *offset))
        };
        let Some((path, offset)) = place(&self.index()) else {
            return Ok(None);
        };
        match read_at(&path, offset, position) {
            Ok(record) => Ok(record),
            // It left in between.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && place(&self.index()).is_none() =>
            {
                Ok(None)
            }
            Err(error) => Err(FileError::of("read", &path)(error)),
        }
    }

    /// How many updates are at this position and after it.
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
            let marks = segment.marks.iter().zip(segment.first..);
            let counted = marks.filter(|((_, mark), at)| {
                (position..end).contains(at) && matches!(mark.kind, Kind::Update { .. })
            });
            count += counted.count() as u64;
        }
        count
    }

    /// How far somebody is who has read everything before this position.
    #[must_use]
    pub fn cursor_before(&self, position: u64) -> Option<Cursor> {
        if position >= self.end() {
            return self.now();
        }
        let index = self.index();
        let before = position.checked_sub(1)?;
        let mark = index.segments.iter().find_map(|s| s.mark(before));
        mark.map(|(_, mark)| Cursor {
            incarnation: mark.incarnation,
            seq: mark.seq,
        })
    }

    /// Whether anything of this incarnation is here.
    #[must_use]
    pub fn knows(&self, incarnation: Uuid) -> bool {
        let index = self.index();
        let mut marks = index.segments.iter().flat_map(|s| &s.marks);
        index.now.is_some_and(|now| now.incarnation == incarnation)
            || marks.any(|(_, mark)| mark.incarnation == incarnation)
    }

    /// How many records are here, and how many bytes.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        let index = self.index();
        let records = index.segments.iter().map(|s| s.marks.len() as u64).sum();
        (records, index.segments.iter().map(|s| s.len).sum())
    }

    /// Where somebody goes on who has everything up to `seq` of `incarnation`. Where that number
    /// was given twice, the first time counts: rather twice than never.
    #[must_use]
    pub fn resume(&self, incarnation: Uuid, seq: u64) -> Resume {
        let end = self.end();
        let known = Some(Cursor { incarnation, seq });
        let index = self.index();
        let places = index.segments.iter().flat_map(|segment| {
            let marks = segment.marks.iter().zip(segment.first..);
            marks.map(|((_, mark), position)| (position, *mark))
        });
        let mut last = None;
        // Where numbers of this incarnation began anew before that number: an older copy of the
        // source's store was taken back.
        let mut set_back = None;
        for (position, mark) in places.take_while(|(position, _)| *position < end) {
            if mark.incarnation == incarnation {
                let resume = |position, gap| Resume {
                    position,
                    known,
                    gap,
                };
                match mark.seq.cmp(&seq) {
                    std::cmp::Ordering::Equal => return resume(position + 1, None),
                    std::cmp::Ordering::Less => {
                        if matches!(mark.kind, Kind::Begins { resync: true }) {
                            set_back = set_back.or(Some(position));
                        }
                    }
                    std::cmp::Ordering::Greater => {
                        // The first number that this record stands for.
                        let from = match mark.kind {
                            Kind::Update { .. } => mark.seq,
                            Kind::Missing { from, .. } => from,
                            // It begins after where the reader was.
                            Kind::Begins { .. } => mark.seq + 1,
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
            // That number was of the time before; what came since then is new.
            _ if here && ahead && set_back.is_some() => Resume {
                position: set_back.unwrap_or(end),
                known: None,
                gap: None,
            },
            // Somebody who is further than this receiver: one that lost its data folder and fills
            // it again. What follows has to be new.
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
            // Nothing is known of where that was: everything that is here.
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

    /// Makes what is written count.
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

    /// Tells everybody that the records before `end` leave.
    pub(super) fn leave(&self, end: u64) -> anyhow::Result<()> {
        let guards = self.guards().0.clone();
        guards.iter().try_for_each(|guard| guard.leaving(end))
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        // Nothing is changed half under this lock.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guards(&self) -> MutexGuard<'_, Guards> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
