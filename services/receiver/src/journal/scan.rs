//! Reading of a segment from its first byte to its last, whatever it is.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use super::record::{Behind, Record, RecordHeader, SEARCHED, Stored};
use super::segment::{HEADER, first_position};
use crate::durable::FileError;

/// Reason for which bytes of a segment are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// File without the beginning of a segment.
    #[error("the file is not part of a journal")]
    Foreign,
    /// File that ends within a record.
    #[error("the file ends in the middle of a record")]
    CutOff,
    /// Damaged record with another one, or the end, behind it.
    #[error("the record is damaged")]
    Record,
    /// Damaged record behind which no other is found.
    #[error("the record is damaged, and nothing behind it can be read")]
    Rest,
}

/// Content of a segment at one of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Record.
    Record(Record),
    /// Bytes that are no record.
    Broken {
        /// Reason.
        reason: Broken,
        /// Metadata that they state of themselves, if any; not to be relied on.
        header: Option<RecordHeader>,
        /// Number of these bytes, none of which was read as a record.
        bytes: u64,
    },
}

/// Calls `visit` with everything that is in a segment, and the offset of each part. Bytes written
/// meanwhile are not read. Behind a record whose length is damaged it continues with the next one
/// whose check fits. Returns the positions of the records, as far as they can be read; `None` for a
/// file that is not there any more or is no segment.
///
/// # Errors
/// The file cannot be read.
pub fn scan(
    path: &Path,
    mut visit: impl FnMut(u64, Found),
) -> Result<Option<Range<u64>>, FileError> {
    let failed = || FileError::of("read", path);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed())?,
    };
    let whole = file.metadata().map_err(failed())?.len();
    let mut file = BufReader::with_capacity(1 << 16, file);
    let mut header = Vec::new();
    let taken = (&mut file).take(HEADER).read_to_end(&mut header);
    taken.map_err(failed())?;
    let Some(first) = first_position(path, &header) else {
        let reason = match header.len() as u64 {
            HEADER => Broken::Foreign,
            _ => Broken::CutOff,
        };
        visit(0, broken(reason, None, whole));
        return Ok(None);
    };
    let (mut offset, mut position) = (HEADER, first);
    // End of the last intact record, and what is damaged behind it.
    let mut intact = (offset, position);
    let mut damaged = Vec::new();
    while offset < whole {
        let mut rest = (&mut file).take(whole - offset);
        let reason = match Stored::read(position, &mut rest).map_err(failed())? {
            Stored::Whole(record) => {
                damaged.drain(..).for_each(|(at, found)| visit(at, found));
                let size = record.size() as u64;
                visit(offset, Found::Record(record));
                (offset, position) = (offset + size, position + 1);
                intact = (offset, position);
                continue;
            }
            Stored::Damaged {
                size: Some(size),
                header,
            } => {
                let size = size as u64;
                damaged.push((offset, broken(Broken::Record, header, size)));
                (offset, position) = (offset + size, position + 1);
                continue;
            }
            Stored::CutOff => Broken::CutOff,
            Stored::Damaged { size: None, .. } => Broken::Rest,
        };
        let (reason, next) = match search(&mut file, intact, whole).map_err(failed())? {
            Behind::Record { at, position } => (reason, Some((intact.0 + at as u64, position))),
            Behind::End => (reason, Some((whole, intact.1 + 1))),
            Behind::Nothing => (reason, None),
            Behind::Unknown => (Broken::Rest, None),
        };
        let Some(next) = next else {
            damaged.push((offset, broken(reason, None, whole - offset)));
            break;
        };
        // What the wrong length led to says nothing.
        damaged.clear();
        visit(intact.0, broken(Broken::Record, None, next.0 - intact.0));
        file.seek(SeekFrom::Start(next.0)).map_err(failed())?;
        intact = next;
        (offset, position) = next;
    }
    damaged.into_iter().for_each(|(at, found)| visit(at, found));
    Ok(Some(first..position))
}

fn broken(reason: Broken, header: Option<RecordHeader>, bytes: u64) -> Found {
    Found::Broken {
        reason,
        header,
        bytes,
    }
}

/// Searches for a record behind the damaged one at this offset, which has this position.
fn search(
    file: &mut (impl Read + Seek),
    (offset, position): (u64, u64),
    whole: u64,
) -> io::Result<Behind> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    let length = SEARCHED.min(whole - offset);
    file.take(length).read_to_end(&mut bytes)?;
    Ok(Behind::search(position, &bytes))
}
