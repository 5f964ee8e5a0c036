//! The form of an archive: a line that says what it is, then a zstd stream of records.
//!
//! The stream has a checksum of its content. A record is the length of its JSON and the length of
//! its bytes (each 32 bits, little endian), then both. The first record is [`Record::Head`], the
//! last one [`Record::End`]; what refers to another record comes after it.

use std::io::{self, Read, Write};

use super::record::Record;

/// First bytes of a file; the number is the version of its form. It grows with whatever an older
/// program must not leave out: updates restored without their signing eras would pass for unsigned,
/// and receivers that pin a key stop without the endorsements of later ones.
pub(super) const TITLE: &[u8] = b"flexfeed-backup 5\n";
/// Titles of older versions, which lack erasure coding of channels (4), signing keys, too (3),
/// signing eras (2), or even the console's accounts (1).
const OLDER: [&[u8]; 4] = [
    b"flexfeed-backup 1\n",
    b"flexfeed-backup 2\n",
    b"flexfeed-backup 3\n",
    b"flexfeed-backup 4\n",
];
/// The part of it that all versions share.
pub(super) const FAMILY: &[u8] = b"flexfeed-backup ";

/// The most that a record can be: nothing that is stored comes near.
const MAX_JSON: u32 = 16 << 20;
const MAX_BYTES: u32 = 256 << 20;

/// zstd's default: updates are compressed already.
const LEVEL: i32 = 3;

/// Appends a record to `to`, as it is in the stream.
pub(super) fn put(to: &mut Vec<u8>, record: &Record, bytes: &[u8]) -> io::Result<()> {
    let json = serde_json::to_vec(record)?;
    let too_long = || io::Error::other("a row is too long for an archive");
    for length in [json.len(), bytes.len()] {
        let length = u32::try_from(length).map_err(|_| too_long())?;
        to.extend_from_slice(&length.to_le_bytes());
    }
    to.extend_from_slice(&json);
    to.extend_from_slice(bytes);
    Ok(())
}

/// Begins an archive.
pub(super) fn writer<W: Write>(mut file: W) -> io::Result<zstd::Encoder<'static, W>> {
    file.write_all(TITLE)?;
    let mut encoder = zstd::Encoder::new(file, LEVEL)?;
    encoder.include_checksum(true)?;
    Ok(encoder)
}

/// Reads the records of an archive.
pub(super) struct Reader<R: Read> {
    stream: zstd::Decoder<'static, io::BufReader<R>>,
    ended: bool,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(mut file: R) -> io::Result<Self> {
        let mut title = [0; TITLE.len()];
        let is_title = match file.read_exact(&mut title) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        if !is_title || !title.starts_with(FAMILY) {
            return Err(invalid("it is not a backup of flexfeed"));
        }
        if title != TITLE && !OLDER.contains(&title.as_slice()) {
            return Err(invalid(
                "it was made by a newer version of flexfeed: restore it with that one",
            ));
        }
        Ok(Self {
            stream: zstd::Decoder::new(file)?,
            ended: false,
        })
    }

    /// The next record and its bytes; `None` after the last one.
    pub(super) fn next(&mut self) -> io::Result<Option<(Record, Vec<u8>)>> {
        if self.ended {
            return Ok(None);
        }
        let json = self.length(MAX_JSON)?;
        let bytes = self.length(MAX_BYTES)?;
        let json = self.take(json)?;
        let bytes = self.take(bytes)?;
        let record: Record = serde_json::from_slice(&json)
            .map_err(|error| invalid(&format!("it has a record that makes no sense ({error})")))?;
        if matches!(record, Record::End { .. }) {
            // The checksum is behind the last record: reading the end verifies it.
            if self.stream.read(&mut [0]).map_err(damaged)? > 0 {
                return Err(invalid("something follows its end"));
            }
            self.ended = true;
        }
        Ok(Some((record, bytes)))
    }

    fn length(&mut self, most: u32) -> io::Result<u32> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).map_err(damaged)?;
        let length = u32::from_le_bytes(length);
        if length > most {
            return Err(invalid(
                "it is damaged: a record in it has no sensible length",
            ));
        }
        Ok(length)
    }

    /// Grows with what is there, not with what the length says.
    fn take(&mut self, length: u32) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        Read::by_ref(&mut self.stream)
            .take(u64::from(length))
            .read_to_end(&mut bytes)
            .map_err(damaged)?;
        if bytes.len() != length as usize {
            return Err(damaged(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(bytes)
    }
}

pub(super) fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}

/// Error of the decompression, in our words.
fn damaged(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return invalid("it is cut off: the end is missing");
    }
    invalid(&format!("it is damaged, or the disk fails ({error})"))
}
