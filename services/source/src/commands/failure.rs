//! Failures of commands.

use std::fmt;

use store::StoreError;
use thiserror::Error;

/// Failure of a command.
#[derive(Debug, Error)]
pub enum Failure {
    /// The request is invalid; another one may work.
    #[error("{0}")]
    Usage(String),
    /// The operation failed.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Returns the failure of an operation.
    pub(super) fn other(why: impl fmt::Display) -> Self {
        Self::Other(why.to_string())
    }

    /// Returns the failure of an invalid request.
    pub(super) fn usage(why: impl fmt::Display) -> Self {
        Self::Usage(why.to_string())
    }

    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Other(_) => 1,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::other(error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::other(format_args!("{error:#}"))
    }
}
