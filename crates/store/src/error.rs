//! Errors of the store, in words that say what to do.

use std::io::ErrorKind;
use std::path::PathBuf;

use sqlx::error::DatabaseError;
use sqlx::migrate::MigrateError;

use crate::database::Operation;
use crate::model::KeyStanding;

// Primary result codes of SQLite (https://www.sqlite.org/rescode.html).
const SQLITE_BUSY: u32 = 5;
const SQLITE_LOCKED: u32 = 6;
const SQLITE_READONLY: u32 = 8;
const SQLITE_IOERR: u32 = 10;
const SQLITE_CORRUPT: u32 = 11;
const SQLITE_FULL: u32 = 13;
const SQLITE_CANTOPEN: u32 = 14;
const SQLITE_NOTADB: u32 = 26;

/// Why the store could not be opened or could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database URL is not usable.
    #[error(
        "cannot use the database URL: {reason}; give --database-url sqlite://PATH or postgres://…"
    )]
    Url {
        /// Reason.
        reason: String,
    },
    /// The database cannot be opened.
    #[error("cannot open {url}: {reason}")]
    Open {
        /// The database.
        url: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A newer version of the program wrote the database.
    #[error(
        "{url} was written by a newer version of flexfeed (its schema is version {found}, this \
         program knows up to {known}): upgrade the program, or set --database-url to another \
         database"
    )]
    Newer {
        /// The database.
        url: String,
        /// The schema version in the database.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The file is damaged.
    #[error(
        "{url} is damaged or not a database ({detail}): restore it from a backup, or move it away \
         to start afresh (receivers then start over with the new channel)"
    )]
    Damaged {
        /// The database.
        url: String,
        /// Finding.
        detail: String,
    },
    /// The disk is full.
    #[error("no space left on the disk for {url}: free some; nothing was stored")]
    Full {
        /// The database.
        url: String,
    },
    /// The file or its folder cannot be written.
    #[error(
        "{url} cannot be written: the file and its folder (for the -wal and -shm files beside it) \
         must be writable for this user"
    )]
    ReadOnly {
        /// The database.
        url: String,
    },
    /// The database server cannot be reached, or does not answer.
    #[error("{url} cannot be reached ({detail}): start it, or look at its log; nothing is lost")]
    Unavailable {
        /// The database.
        url: String,
        /// Symptom.
        detail: String,
    },
    /// The database server does not let us in.
    #[error(
        "{url} refuses the connection ({detail}): check user, password, database and sslmode in \
         --database-url"
    )]
    Denied {
        /// The database.
        url: String,
        /// The server's own words.
        detail: String,
    },
    /// Another holder has the channel's lease by now.
    #[error(
        "channel {channel:?} in {url} is published by another source since (fence {current}, not \
         {fence}): nothing was stored"
    )]
    Fenced {
        /// The database.
        url: String,
        /// The channel.
        channel: String,
        /// The fence that was given.
        fence: u64,
        /// The fence of the present holder.
        current: u64,
    },
    /// The channel is another one of the same name.
    #[error(
        "channel {channel:?} in {url} has another incarnation by now: the database was restored, \
         or another one is in its place"
    )]
    Incarnation {
        /// The database.
        url: String,
        /// The channel.
        channel: String,
    },
    /// A text is longer than the database can look up.
    #[error("{what} is {bytes} bytes long: at most {limit} can be stored")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The most there can be.
        limit: usize,
    },
    /// A text that has to be there is empty.
    #[error("{what} is empty")]
    Empty {
        /// Which text.
        what: &'static str,
    },
    /// A limit is reached.
    #[error("there are {limit} {what} already: remove some first")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The most there can be.
        limit: u64,
    },
    /// The source's signing key is not the one that signs updates.
    #[error("{url}: {}", signing_key_advice(standing))]
    SigningKey {
        /// The database.
        url: String,
        /// Standing of the key.
        standing: KeyStanding,
    },
    /// There is no such user.
    #[error("there is no user {id} in {url}")]
    UnknownUser {
        /// The database.
        url: String,
        /// The number asked for.
        id: i64,
    },
    /// An archive cannot be written or read.
    #[error("the backup {}: {reason}", path.display())]
    Archive {
        /// Its file.
        path: PathBuf,
        /// Reason, and what to do.
        reason: String,
    },
    /// Another program, or too many tasks of this one, hold the database.
    #[error("{url} was busy for too long ({detail}): see whether another program holds it")]
    Busy {
        /// The database.
        url: String,
        /// Resource that was waited for.
        detail: String,
    },
    /// There is no such channel.
    #[error("there is no channel {channel:?} in {url}: it is made when the source starts with it")]
    UnknownChannel {
        /// The database.
        url: String,
        /// The channel asked for.
        channel: String,
    },
    /// The channel is not live.
    #[error(
        "channel {channel:?} in {url} is not live: messages are for channels with a deadline \
         (`flexfeed-source channel set {channel} --deadline 10s`)"
    )]
    NotLive {
        /// The database.
        url: String,
        /// The channel.
        channel: String,
    },
    /// The channel's name cannot be one.
    #[error("a channel cannot be named {name:?}: a name has 1 to 255 bytes")]
    ChannelName {
        /// The name, cut if it is too long.
        name: String,
    },
    /// The head mark cannot be read or written.
    #[error(
        "the head mark {} cannot be used: {reason}; the file and its folder must be readable and \
         writable for this user, and the disk must have room",
        path.display()
    )]
    Mark {
        /// Its file.
        path: PathBuf,
        /// Failed step.
        reason: String,
    },
    /// Anything else that the database reports.
    #[error("cannot {doing} in {url}: {source}")]
    Database {
        /// The database.
        url: String,
        /// Operation that failed.
        doing: &'static str,
        /// The database's own words.
        source: sqlx::Error,
    },
}

/// Returns what is wrong with a signing key, and what to do.
fn signing_key_advice(standing: &KeyStanding) -> &'static str {
    match standing {
        KeyStanding::Superseded { .. } => {
            "this source's signing key was replaced by another one: give this source the new key \
             file (signing.key in its data folder, or --signing-key), and restart it"
        }
        KeyStanding::Unknown { .. } => {
            "updates are signed with another key than this source's: give this source the key \
             file of the one that published before (signing.key in its data folder, or \
             --signing-key), and restart it; if that file is lost, make a new one with `flexfeed-source key rotate \
             --lost`"
        }
        KeyStanding::Usable | KeyStanding::First => "the signing key is usable",
    }
}

impl StoreError {
    /// Whether the disk is full: it may succeed when there is room.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Whether the database cannot be reached, or is too busy, at the moment: it may succeed later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Busy { .. })
    }

    /// Whether another holder has the channel's lease by now: a retry will not succeed.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }

    /// Sorts an error of the database by what one can do about it.
    pub(crate) fn from_sqlx(url: &str, doing: Operation, source: sqlx::Error) -> Self {
        let is_postgres = url.starts_with("postgres:");
        let url = url.to_owned();
        match &source {
            sqlx::Error::PoolTimedOut if is_postgres => Self::Unavailable {
                url,
                detail: format!("no connection was to be had to {doing}"),
            },
            sqlx::Error::PoolTimedOut => Self::Busy {
                url,
                detail: format!("no connection became free to {doing}"),
            },
            sqlx::Error::Tls(error) => Self::Denied {
                url,
                detail: format!("TLS: {error}"),
            },
            // TLS failures arrive as errors of the connection.
            sqlx::Error::Io(error) if is_postgres && error.kind() == ErrorKind::InvalidData => {
                Self::Denied {
                    url,
                    detail: format!("TLS: {error}"),
                }
            }
            sqlx::Error::Database(error) if is_postgres => match postgres_sort(error.as_ref()) {
                Sort::Lost => Self::Unavailable {
                    url,
                    detail: error.message().to_owned(),
                },
                Sort::Denied => Self::Denied {
                    url,
                    detail: error.message().to_owned(),
                },
                Sort::Busy => Self::Busy {
                    url,
                    detail: format!("{} to {doing}", error.message()),
                },
                Sort::Full => Self::Full { url },
                Sort::ReadOnly => Self::ReadOnly { url },
                Sort::Damaged => Self::Damaged {
                    url,
                    detail: error.message().to_owned(),
                },
                Sort::Other => Self::Database { url, doing, source },
            },
            sqlx::Error::Database(error) => match primary_code(error.as_ref()) {
                Some(SQLITE_BUSY | SQLITE_LOCKED) => Self::Busy {
                    url,
                    detail: error.to_string(),
                },
                Some(SQLITE_FULL) => Self::Full { url },
                Some(SQLITE_READONLY | SQLITE_CANTOPEN) => Self::ReadOnly { url },
                Some(SQLITE_CORRUPT | SQLITE_NOTADB) => Self::Damaged {
                    url,
                    detail: error.message().to_owned(),
                },
                Some(SQLITE_IOERR) => Self::Open {
                    url,
                    reason: format!(
                        "cannot {doing}: the disk failed or is full ({error}); look at the \
                         system's log"
                    ),
                },
                _ => Self::Database { url, doing, source },
            },
            other if is_postgres && is_lost(other) => Self::Unavailable {
                url,
                detail: format!("the connection broke: {source}"),
            },
            _ => Self::Database { url, doing, source },
        }
    }

    /// Sorts an error of bringing the schema up to date.
    pub(crate) fn from_migration(url: &str, known: i64, error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
                Self::from_sqlx(url, "bring the schema up to date", source)
            }
            MigrateError::VersionMissing(found) if found > known => Self::Newer {
                url: url.to_owned(),
                found,
                known,
            },
            other => Self::Open {
                url: url.to_owned(),
                reason: format!(
                    "its schema does not come from a release of flexfeed ({other}); set \
                     --database-url to another file"
                ),
            },
        }
    }
}

/// Sort of an error of PostgreSQL, by what one can do about it
/// (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
enum Sort {
    Lost,
    Denied,
    Busy,
    Full,
    ReadOnly,
    Damaged,
    Other,
}

fn postgres_sort(error: &(dyn DatabaseError + 'static)) -> Sort {
    let code = error.code().unwrap_or_default();
    match code.as_ref() {
        // Starting, stopping, crashed; dropped; idle for too long in a transaction; too many
        // clients.
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "53300" => Sort::Lost,
        "53100" => Sort::Full,
        // The disk failed, memory ran out: both pass, or the server's log has more.
        "58000" | "58030" | "53000" | "53200" => Sort::Lost,
        // A statement or a lock took too long; another transaction was in the way.
        "57014" | "55P03" | "40001" | "40P01" => Sort::Busy,
        "25006" => Sort::ReadOnly,
        "3D000" | "42501" => Sort::Denied,
        "XX001" | "XX002" => Sort::Damaged,
        code if code.starts_with("08") => Sort::Lost,
        code if code.starts_with("28") => Sort::Denied,
        _ => Sort::Other,
    }
}

/// Whether the connection to the server is of no use any more.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            code.starts_with("08") || code.starts_with("57P") || code == "25P03"
        }
        _ => false,
    }
}

/// The error code of SQLite without its extension.
fn primary_code(error: &(dyn DatabaseError + 'static)) -> Option<u32> {
    let code: u32 = error.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Whether trying again may help: another connection is in the way.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => matches!(
            primary_code(error.as_ref()),
            Some(SQLITE_BUSY | SQLITE_LOCKED)
        ),
        _ => false,
    }
}
