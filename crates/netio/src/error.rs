//! Texts of I/O errors.

use std::io;

/// Puts the failed operation in front of an error's text, and keeps the kind.
pub(crate) fn context(error: io::Error, operation: std::fmt::Arguments<'_>) -> io::Error {
    io::Error::new(error.kind(), format!("{operation}: {error}"))
}
