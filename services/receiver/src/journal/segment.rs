//! File of a journal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::record::{Kind, Record, RecordHeader};
use crate::durable::{FileError, sync_folder_of};

/// First bytes of a file, followed by the position of its first record.
const MAGIC: &[u8] = b"flexfeed journal 1\n";

/// Length of both, in bytes.
pub(super) const HEADER: u64 = MAGIC.len() as u64 + 8;

const SUFFIX: &str = ".log";

/// Segment, as known in memory.
#[derive(Debug)]
pub(super) struct Segment {
    /// Position of the first record.
    pub(super) first: u64,
    pub(super) path: PathBuf,
    /// Length of the part that counts.
    pub(super) len: u64,
    /// Records with their places in the file.
    pub(super) headers: Vec<(u64, RecordHeader)>,
    /// Number of records that are updates.
    pub(super) updates: u64,
}

impl Segment {
    /// Returns the position after the last record.
    pub(super) fn end(&self) -> u64 {
        self.first + self.headers.len() as u64
    }

    /// Returns the record of a position, with its place in the file.
    pub(super) fn header(&self, position: u64) -> Option<&(u64, RecordHeader)> {
        let at = usize::try_from(position.checked_sub(self.first)?).ok()?;
        self.headers.get(at)
    }

    /// Makes a new file that begins with these encoded records, durably, and returns it open for
    /// writing. The records count only after [`Segment::push`].
    pub(super) fn create(
        folder: &Path,
        first: u64,
        records: &[u8],
    ) -> Result<(Self, File), FileError> {
        let path = folder.join(format!("{first:020}{SUFFIX}"));
        let create = || -> io::Result<File> {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                // An existing file was never accepted as a segment.
                .truncate(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all(&[MAGIC, &first.to_be_bytes()].concat())?;
            file.write_all(records)?;
            file.sync_all()?;
            Ok(file)
        };
        let made = create().map_err(|error| FileError::of("write", &path)(error));
        let made = made.and_then(|file| sync_folder_of(&path).map(|()| file));
        let file = made.inspect_err(|_| {
            // On a full disk a partial file takes room from others; a complete one would be read at
            // the next start together with its replacement.
            let _ = fs::remove_file(&path);
        })?;
        let segment = Self {
            first,
            path,
            len: HEADER,
            headers: Vec::new(),
            updates: 0,
        };
        Ok((segment, file))
    }

    /// Reads a file up to the first incomplete or damaged record. Also returns the length of the
    /// file. `None` for a file that is no segment.
    pub(super) fn open(path: &Path) -> Result<Option<(Self, u64)>, FileError> {
        let failed = || FileError::of("read", path);
        let file = File::open(path).map_err(failed())?;
        let whole = file.metadata().map_err(failed())?.len();
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut header = [0; HEADER as usize];
        match file.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(failed()(error)),
        }
        let Some(first) = first_position(path, &header) else {
            return Ok(None);
        };
        let mut segment = Self {
            first,
            path: path.to_owned(),
            len: HEADER,
            headers: Vec::new(),
            updates: 0,
        };
        while let Some(record) = Record::read(segment.end(), &mut file).map_err(failed())? {
            segment.push(&record);
        }
        Ok(Some((segment, whole)))
    }

    /// Adds a record that is at the end of the file.
    pub(super) fn push(&mut self, record: &Record) {
        self.headers.push((self.len, record.header));
        self.updates += u64::from(matches!(record.header.kind, Kind::Update { .. }));
        self.len += record.size() as u64;
    }

    /// Opens the file for appending, and cuts off the part that does not count.
    pub(super) fn writable(&self) -> Result<File, FileError> {
        let open = || -> io::Result<File> {
            let file = OpenOptions::new().write(true).open(&self.path)?;
            if file.metadata()?.len() != self.len {
                file.set_len(self.len)?;
                file.sync_all()?;
            }
            Ok(file)
        };
        open().map_err(FileError::of("open", &self.path))
    }
}

/// Writes at the end of a segment of length `len`, and syncs. The records count only after
/// [`Segment::push`].
pub(super) fn append(file: &File, path: &Path, len: u64, bytes: &[u8]) -> Result<(), FileError> {
    let write = file.write_all_at(bytes, len);
    write.and_then(|()| file.sync_data()).map_err(|error| {
        // On a full disk a partial record takes room from others.
        let _ = file.set_len(len);
        FileError::of("write", path)(error)
    })
}

/// Reads the record of a position at its place in a file; `None` if it is incomplete or damaged.
pub(super) fn read_at(path: &Path, offset: u64, position: u64) -> io::Result<Option<Record>> {
    use std::io::{Seek, SeekFrom};
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    Record::read(position, &mut file)
}

/// Returns the files of a journal, oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let failed = || FileError::of("read", folder);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        if let Some(first) = named(&path) {
            paths.push((first, path));
        }
    }
    paths.sort();
    Ok(paths.into_iter().map(|(_, path)| path).collect())
}

/// Returns the position of the first record of a file that begins with this header; `None` if it is
/// no segment.
pub(super) fn first_position(path: &Path, header: &[u8]) -> Option<u64> {
    let first = header.strip_prefix(MAGIC)?.try_into().ok();
    first
        .map(u64::from_be_bytes)
        .filter(|first| named(path) == Some(*first))
}

fn named(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
    name.parse().ok()
}
