//! Failed steps, and the exit code that each ends `./dev` with.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

/// A failed step.
#[derive(Debug)]
pub struct Failure {
    /// Exit code: 1 if something did not work, 2 if the caller or the machine has to change first,
    /// otherwise that of the command that failed.
    pub code: u8,
    /// Reason; empty if the command has said it.
    pub reason: String,
}

impl Failure {
    /// Something did not work.
    pub fn broken(reason: impl Into<String>) -> anyhow::Error {
        Self::error(1, reason)
    }

    /// The caller or the machine has to change first.
    pub fn usage(reason: impl Into<String>) -> anyhow::Error {
        Self::error(2, reason)
    }

    /// A command failed and has said why.
    pub fn silent(code: u8) -> anyhow::Error {
        Self::error(code, "")
    }

    fn error(code: u8, reason: impl Into<String>) -> anyhow::Error {
        let reason = reason.into();
        Self { code, reason }.into()
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Failure {}
