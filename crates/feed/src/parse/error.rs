//! Errors of parsing.

use thiserror::Error;

/// Failure of a document to give any entries.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseError {
    /// Document that is no feed.
    #[error("not a feed but {seen}")]
    NotAFeed {
        /// Apparent kind of the document, for people: "an HTML page titled '…'".
        seen: String,
        /// Whether the document looks like a bot check: a poll later, or from another address, may
        /// succeed.
        challenge: bool,
    },
    /// Feed with entries, none of which is readable.
    #[error("a feed of which no entry can be read: {first}")]
    NoUsableEntry {
        /// Defect of the first entry.
        first: String,
    },
    /// Unknown encoding of the server or the document, which is not UTF-8.
    #[error("in the unknown encoding {label:?}, and not UTF-8: it cannot be read")]
    UnknownEncoding {
        /// Label of the encoding.
        label: String,
    },
}

impl ParseError {
    /// Whether the document looks like a bot check.
    #[must_use]
    pub fn is_challenge(&self) -> bool {
        matches!(
            self,
            Self::NotAFeed {
                challenge: true,
                ..
            }
        )
    }
}
