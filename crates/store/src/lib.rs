//! Storage that the source must not lose: channels, their updates, the feeds they come from, who
//! may receive them, and who publishes them.
//!
//! [`open`] returns a [`Store`] on the embedded SQLite or on PostgreSQL; its handles have the
//! methods of each noun: `store.channels()`, `store.leases()`. An append that returned survives a
//! crash of the process and a loss of power; one that did not return is stored whole or not at all.
//! Updates are numbered densely per channel: 1, 2, 3, …, and no number is used twice.
//!
//! All times are Unix milliseconds (UTC), by the clock of the database.

mod archive;
mod database;
mod error;
mod handles;
mod location;
mod mark;
mod model;
mod sql;
mod watch;

use std::path::{Path, PathBuf};

pub use archive::{BackupReport, Contents, Progress, RestoreReport};
#[cfg(feature = "fault-injection")]
pub use database::{Failure, Fault, FaultRule, Faults};
pub use error::StoreError;
pub use handles::{
    ApiTokens, AuditLog, Channels, Commands, Entries, Feeds, Gaps, Leases, Messages, Publications,
    Receivers, Records, SigningEras, SigningKeys, Store, Tokens, Updates, Users, WebSessions,
};
pub use mark::{Adoption, HeadMark, Renewal};
pub use model::{
    ApiTokenRow, Applicant, AuditFilter, AuditRow, AuthenticationType, Batch, Changes, Channel,
    ChannelRow, ChannelSettings, ChooseSettings, Command, CommandState, Draft, ENDORSEMENT_LEN,
    EncodeUpdate, FecSetting, FecSettingError, FeedEdit, FeedEvent, FeedHour, FeedRow,
    FeedSettings, Fence, ForgeryRow, GapRecord, GapState, Hash, Holder, Identity, KeyStanding,
    Kind, Lease, LeaseOutcome, LeaseRow, MessageReceipt, MoveFilter, MoveRow, NewApiToken,
    NewAudit, NewCommand, NewPublication, NewToken, NewUser, NewWebSession, Origin, OverloadRow,
    PollRecord, ProgressRow, PulseRow, ReceiverCounts, ReceiverEdit, ReceiverRow, RelayRow,
    Retention, Role, SampleRow, SentBytes, SessionRow, Setup, SigningEra, SigningKeyRow,
    SourceInfo, Stamp, StateRow, StoredMessage, StoredPublication, StoredUpdate, TokenRow,
    UpdateItem, UserChange, UserEdit, UserRow, Validators, Verdict, WebSession,
};
pub use watch::{Topic, Watch};

/// Opens the store that `database_url` names, and brings its schema up to date.
///
/// - `sqlite://PATH` (relative to the working directory; `sqlite:///PATH` is absolute; `%`-escapes
///   as in any URL). The folder must exist; the file is made if there is none, readable by its
///   owner only.
/// - `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or `postgresql://…`, with the parameters of
///   libpq that matter here (`sslmode`, `sslrootcert`, …). The database must exist, and be empty or
///   flexfeed's. Without `sslmode`, TLS is used if the server has it, and its certificate is not
///   verified; `sslmode=verify-full` verifies it.
///
/// # Errors
/// The URL is not usable, the database cannot be opened or written, belongs to another program, is
/// damaged, or was written by a newer version. The text says what to do, and has no password in it.
pub async fn open(database_url: &str) -> Result<Store, StoreError> {
    Store::at(location::Location::parse(database_url)?).await
}

/// Returns `database_url`, trimmed, if [`open`] understands it. Opens and makes nothing.
///
/// # Errors
/// [`StoreError::Url`] if it does not; the text repeats nothing that may be a password.
pub fn check_url(database_url: &str) -> Result<String, StoreError> {
    let database_url = database_url.trim();
    location::Location::parse(database_url).map(|_| database_url.to_owned())
}

/// The file of the SQLite database that `database_url` names; `None` if it names a server.
#[must_use]
pub fn database_file(database_url: &str) -> Option<PathBuf> {
    match location::Location::parse(database_url) {
        Ok(location::Location::Sqlite(file)) => Some(file.path),
        _ => None,
    }
}

/// Opens the SQLite store in the file `path`: [`open`] for a path that may hold any character.
///
/// # Errors
/// As [`open`].
pub async fn open_file(path: &Path) -> Result<Store, StoreError> {
    Store::at(location::Location::file(path)).await
}

/// Puts what is in the backup `from` into the database that `database_url` names, all of it or
/// nothing. The database must be empty, and may be of the other kind than the one that was saved.
/// Channels get new incarnations, so their receivers start over: they may have seen updates after
/// the backup.
///
/// `tell` hears now and then how far it is.
///
/// # Errors
/// As [`open`]; the database is not empty; the file cannot be read, is damaged or cut off, or was
/// made by a newer version.
pub async fn restore(
    database_url: &str,
    from: &Path,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<RestoreReport, StoreError> {
    restore_to(location::Location::parse(database_url)?, from, tell).await
}

/// [`restore`] into the SQLite database in the file `path`.
///
/// # Errors
/// As [`restore`].
pub async fn restore_file(
    path: &Path,
    from: &Path,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<RestoreReport, StoreError> {
    restore_to(location::Location::file(path), from, tell).await
}

async fn restore_to(
    location: location::Location,
    from: &Path,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<RestoreReport, StoreError> {
    let database = database::Database::open(location).await?;
    let restored = archive::restore_into(&database, from, tell).await;
    database.close().await;
    restored
}
