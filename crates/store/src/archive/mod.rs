//! The whole store in one file, the same from both databases, to keep and to move it.
//!
//! A backup is one state of the database, taken while others go on reading and writing. What only
//! the present can know is left out: who holds a lease, where receivers stand, which browsers are
//! signed in, and the incarnations of channels, which a restore makes again: a past that came
//! back must not pass for the present. So is what was recorded of the past: moves, samples, polls.
//! Signing eras keep the incarnations that their signatures name, and are closed by a restore. The
//! source that publishes after it may have any signing key; private keys are in no database.

mod backup;
mod batch;
mod format;
mod record;
mod restore;

use std::fmt;

pub(crate) use backup::backup;
pub(crate) use restore::restore_into;

/// Number of rows of each kind in an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    /// Channels.
    pub channels: u64,
    /// Feeds, also those that are not polled any more.
    pub feeds: u64,
    /// Known entries of feeds.
    pub entries: u64,
    /// Stored updates.
    pub updates: u64,
    /// Publications that wait for the source.
    #[serde(default)]
    pub publications: u64,
    /// Signing eras of channels.
    #[serde(default)]
    pub signing_eras: u64,
    /// Public keys that sign updates.
    #[serde(default)]
    pub signing_keys: u64,
    /// Recorded gaps.
    pub gaps: u64,
    /// Enrolment tokens.
    pub tokens: u64,
    /// Admitted receivers.
    pub receivers: u64,
    /// People who may use the console.
    #[serde(default)]
    pub users: u64,
    /// Programs that may.
    #[serde(default)]
    pub api_tokens: u64,
    /// Lines of the audit log.
    #[serde(default)]
    pub audit: u64,
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} channels, {} feeds, {} entries, {} updates, {} publications, \
             {} signing eras, {} signing keys, {} gaps, {} tokens, {} receivers, {} users, \
             {} API tokens, {} lines of the audit log",
            self.channels,
            self.feeds,
            self.entries,
            self.updates,
            self.publications,
            self.signing_eras,
            self.signing_keys,
            self.gaps,
            self.tokens,
            self.receivers,
            self.users,
            self.api_tokens,
            self.audit
        )
    }
}

/// Report of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// Number of rows of each kind.
    pub contents: Contents,
    /// The size of the file.
    pub bytes: u64,
}

/// Report of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// Number of rows of each kind.
    pub contents: Contents,
    /// When the backup was made.
    pub made_ms: i64,
}

/// Progress of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows restored so far.
    pub done: Contents,
    /// Rows to restore.
    pub of: Contents,
}
