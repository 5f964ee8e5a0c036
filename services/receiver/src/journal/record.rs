//! Record: `length (32) | check (64) | body`, where the body is `kind (8) | incarnation (128)
//! | seq (64) | argument (64) | encoded update`. Numbers are in network byte order. The check is
//! the beginning of the SHA-256 of the record's position and body.

use std::io::{self, Read};

use bytes::Bytes;
use feed::payload::MAX_EVENT_BYTES;
use ring::digest;
use uuid::Uuid;

/// Length of the header before the body.
const PREFIX: usize = 4 + CHECK;
const CHECK: usize = 8;

/// Length of a body without an encoded update.
const FIXED: usize = 1 + 16 + 8 + 8;

/// Bytes of a record in a file in addition to its update.
pub const OVERHEAD: usize = PREFIX + FIXED;

/// Bound on a body: longer updates are rejected earlier.
const MAX_BODY: usize = FIXED + MAX_EVENT_BYTES + 1;

/// Bytes to search for the record behind a damaged one: both are in so many.
pub(super) const SEARCHED: u64 = 2 * (PREFIX + MAX_BODY) as u64;

/// Bound on what a search hashes, in bytes: a feed can contain what looks like records.
const MAX_HASHED: usize = 1 << 30;

/// Bound on times, in ms, and on seqs that are taken for those of a record in a search.
const PLAUSIBLE: u64 = 1 << 48;

/// Reason for missing updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Gone at the source.
    Gone,
    /// Invalid content, skipped.
    Senseless,
    /// Skipped, because the receiver had lost its cursor and the source began with its last
    /// updates.
    Skipped,
    /// Expired before it had come.
    Expired,
}

impl Missing {
    /// Returns the reason as text.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Gone => "gone at the source",
            Self::Senseless => "made no sense",
            Self::Skipped => "skipped: the receiver had lost its cursor",
            Self::Expired => "expired",
        }
    }
}

/// Content of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Update.
    Update {
        /// Unix time of delivery, in ms.
        at_ms: u64,
    },
    /// Missing updates, up to the record's number.
    Missing {
        /// First missing update.
        from: u64,
        /// Reason.
        why: Missing,
    },
    /// Start of numbers after this record's.
    Begins {
        /// Whether other numbers came before, because the source's store was replaced or restored.
        resync: bool,
    },
}

/// Record without its update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Type and content.
    pub kind: Kind,
    /// Incarnation of the channel.
    pub incarnation: Uuid,
    /// Cursor of a reader after this record.
    pub seq: u64,
}

/// Record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Metadata of the record.
    pub header: RecordHeader,
    /// Update as sent; empty for other records.
    pub encoded: Bytes,
}

impl Record {
    /// Returns the length in a file.
    #[must_use]
    pub fn size(&self) -> usize {
        OVERHEAD + self.encoded.len()
    }

    /// Appends the record as that of this position.
    pub fn write(&self, position: u64, out: &mut Vec<u8>) {
        let (kind, argument) = match self.header.kind {
            Kind::Update { at_ms } => (1, at_ms),
            Kind::Begins { resync } => (2, u64::from(resync)),
            Kind::Missing { from, why } => (
                match why {
                    Missing::Gone => 3,
                    Missing::Senseless => 4,
                    Missing::Skipped => 5,
                    Missing::Expired => 6,
                },
                from,
            ),
        };
        let at = out.len();
        let length = u32::try_from(FIXED + self.encoded.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&[0; CHECK]);
        out.push(kind);
        out.extend_from_slice(self.header.incarnation.as_bytes());
        out.extend_from_slice(&self.header.seq.to_be_bytes());
        out.extend_from_slice(&argument.to_be_bytes());
        out.extend_from_slice(&self.encoded);
        let sum = check(position, out.get(at + PREFIX..).unwrap_or_default());
        if let Some(place) = out.get_mut(at + 4..at + PREFIX) {
            place.copy_from_slice(&sum);
        }
    }

    /// Reads the record of this position; `None` at the end, and if the record is incomplete or
    /// damaged.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(position: u64, from: &mut impl Read) -> io::Result<Option<Self>> {
        Ok(match Stored::read(position, from)? {
            Stored::Whole(record) => Some(record),
            Stored::CutOff | Stored::Damaged { .. } => None,
        })
    }

    fn parse(body: Vec<u8>) -> Option<Self> {
        let header = RecordHeader::parse(&body)?;
        let encoded = Bytes::from(body).split_off(FIXED);
        Some(Self { header, encoded })
    }
}

impl RecordHeader {
    /// Reads it from the beginning of a body.
    fn parse(body: &[u8]) -> Option<Self> {
        let (kind, rest) = body.split_first()?;
        let (incarnation, rest) = rest.split_first_chunk::<16>()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let argument = u64::from_be_bytes(*rest.first_chunk::<8>()?);
        let missing = |why| Kind::Missing {
            from: argument,
            why,
        };
        let kind = match kind {
            1 => Kind::Update { at_ms: argument },
            2 => Kind::Begins {
                resync: argument != 0,
            },
            3 => missing(Missing::Gone),
            4 => missing(Missing::Senseless),
            5 => missing(Missing::Skipped),
            6 => missing(Missing::Expired),
            _ => return None,
        };
        Some(Self {
            kind,
            incarnation: Uuid::from_bytes(*incarnation),
            seq: u64::from_be_bytes(*seq),
        })
    }

    /// Whether a journal can have it. Hardly any other bytes look like it.
    fn is_plausible(&self) -> bool {
        let is_argument = match self.kind {
            Kind::Update { at_ms } => at_ms < PLAUSIBLE,
            Kind::Missing { from, .. } => from <= self.seq,
            Kind::Begins { .. } => true,
        };
        is_argument && self.seq < PLAUSIBLE
    }
}

/// Bytes in the place of a record.
#[derive(Debug)]
pub(super) enum Stored {
    /// Record.
    Whole(Record),
    /// Bytes that end before the record does; also no bytes at all.
    CutOff,
    /// Other bytes.
    Damaged {
        /// Length of the record, if it states a possible one.
        size: Option<usize>,
        /// Metadata, if it can be read; not to be relied on.
        header: Option<RecordHeader>,
    },
}

impl Stored {
    /// Reads what is in the place of the record of this position.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(position: u64, from: &mut impl Read) -> io::Result<Self> {
        let mut prefix = [0; PREFIX];
        if !fill(from, &mut prefix)? {
            return Ok(Self::CutOff);
        }
        let (length, sum) = prefix.split_at(4);
        let length = u32::from_be_bytes(length.try_into().unwrap_or_default()) as usize;
        if !(FIXED..=MAX_BODY).contains(&length) {
            return Ok(Self::Damaged {
                size: None,
                header: None,
            });
        }
        // No memory is reserved in advance: the length may be garbage.
        let mut body = Vec::new();
        from.take(length as u64).read_to_end(&mut body)?;
        if body.len() != length {
            return Ok(Self::CutOff);
        }
        let is_intact = check(position, &body) == *sum;
        Ok(match Record::parse(body) {
            Some(record) if is_intact => Self::Whole(record),
            record => Self::Damaged {
                size: Some(PREFIX + length),
                header: record.map(|record| record.header),
            },
        })
    }
}

/// Result of a search behind a damaged record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// Intact record.
    Record {
        /// Its place in the searched bytes.
        at: usize,
        /// Its position.
        position: u64,
    },
    /// Damaged record that reaches to the end: only its length is wrong.
    End,
    /// No record.
    Nothing,
    /// Too much that looks like records.
    Unknown,
}

impl Behind {
    /// Searches bytes that begin in the place of the record of this position, and not with it.
    pub(super) fn search(position: u64, bytes: &[u8]) -> Self {
        let mut hashed = 0;
        for at in 1..bytes.len() {
            let Some((sum, body)) = bytes.get(at..).and_then(split_plausible) else {
                continue;
            };
            // So many records have room in front of it.
            for position in position..=position.saturating_add((at / OVERHEAD) as u64) {
                hashed += body.len();
                if hashed > MAX_HASHED {
                    return Self::Unknown;
                }
                if check(position, body) == *sum {
                    return Self::Record { at, position };
                }
            }
        }
        let is_end = bytes
            .split_at_checked(PREFIX)
            .is_some_and(|(prefix, body)| {
                prefix.ends_with(&check(position, body)) && body.len() >= FIXED
            });
        match is_end {
            true => Self::End,
            false => Self::Nothing,
        }
    }
}

/// Returns the check and the body of what may be a record at the beginning of these bytes.
fn split_plausible(bytes: &[u8]) -> Option<(&[u8; CHECK], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<CHECK>()?;
    let length = u32::from_be_bytes(*length) as usize;
    let body = rest.get(..length)?;
    let is_possible = (FIXED..=MAX_BODY).contains(&length);
    (is_possible && RecordHeader::parse(body)?.is_plausible()).then_some((sum, body))
}

fn check(position: u64, body: &[u8]) -> [u8; CHECK] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&position.to_be_bytes());
    context.update(body);
    let mut out = [0; CHECK];
    for (to, from) in out.iter_mut().zip(context.finish().as_ref()) {
        *to = *from;
    }
    out
}

/// Fills `buffer`; returns whether there were enough bytes.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
