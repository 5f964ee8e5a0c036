//! Outcome of a command.

use std::fmt::{self, Display};
use std::io;

use serde_json::json;

use crate::settings::Problems;

/// Exit code of a failure.
pub const FAILURE: u8 = 1;
/// Exit code of an invalid command line or setting.
pub const USAGE: u8 = 2;

/// Output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Text for standard output.
    pub text: String,
    /// Whether the exit code is 0 instead of [`FAILURE`].
    pub well: bool,
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self { text, well: true }
    }
}

/// Reason for a failure, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Invalid command line or setting.
    Usage(String),
    /// The same in JSON, for standard output.
    UsageJson(String),
    /// Failed operation.
    Other(String),
}

impl Failure {
    /// Returns the failure of an operation, with the causes that the alternate form of `error`
    /// has.
    pub fn other(error: impl Display) -> Self {
        Self::Other(format!("{error:#}"))
    }

    /// Returns the failure of wrong settings.
    #[must_use]
    pub fn of_settings(problems: Problems, json: bool) -> Self {
        match json {
            true => {
                let json = json!({"ok": false, "problems": problems.0});
                Self::UsageJson(format!("{json:#}\n"))
            }
            false => Self::Usage(problems.to_string()),
        }
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::UsageJson(_) => USAGE,
            Self::Other(_) => FAILURE,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::UsageJson(text) | Self::Other(text)) = self;
        f.write_str(text)
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::of_settings(problems, false)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::other(error)
    }
}
