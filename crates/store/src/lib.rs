//! What the source must not lose: channels, their updates, the feeds they come from, and tokens.
//!
//! [`Store`] is the interface; [`open`] gives the embedded SQLite behind it. An append that returned
//! survives a crash of the process and a loss of power; one that did not return is stored whole or
//! not at all. Updates are numbered densely per channel: 1, 2, 3, …, and no number is used twice.
//!
//! All times are Unix milliseconds (UTC).

mod error;
mod location;
mod mark;
mod model;
mod sqlite;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

pub use error::StoreError;
pub use mark::{Adopted, HeadMark, Renewal};
pub use model::{
    Channel, Draft, EncodeUpdate, Feed, Hash, Kind, PollRecord, StoredUpdate, Validators,
};

/// Opens the store that `database_url` names, creating it if the file does not exist yet, and
/// brings its schema up to date.
///
/// The only scheme is `sqlite://PATH` (relative to the working directory; `sqlite:///PATH` is
/// absolute; `%`-escapes as in any URL). The folder must exist. A new file is readable by its owner
/// only.
///
/// # Errors
/// The URL is not usable, the file cannot be opened or written, belongs to another program, is
/// damaged, or was written by a newer version. The text says what to do.
pub async fn open(database_url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let location = location::Location::parse(database_url)?;
    Ok(Arc::new(sqlite::SqliteStore::open(location).await?))
}

/// Whether [`open`] understands `database_url`. Opens and makes nothing.
///
/// # Errors
/// [`StoreError::Url`] if it does not; the text repeats nothing that may be a password.
pub fn check_url(database_url: &str) -> Result<(), StoreError> {
    location::Location::parse(database_url).map(|_| ())
}

/// Opens the SQLite store in the file `path`: [`open`] for a path that may hold any character.
///
/// # Errors
/// As [`open`].
pub async fn open_file(path: &Path) -> Result<Arc<dyn Store>, StoreError> {
    let location = location::Location::file(path);
    Ok(Arc::new(sqlite::SqliteStore::open(location).await?))
}

/// A store of channels and their updates. Safe for concurrent use, also by several processes.
#[async_trait]
pub trait Store: Send + Sync {
    /// The channel of that name, made with a fresh incarnation if there is none.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes, or the database fails.
    async fn open_channel(&self, name: &str) -> Result<Channel, StoreError>;

    /// Gives a channel a new incarnation, whatever it holds: its receivers start over. For a
    /// database that has been set back, see [`HeadMark`].
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn renew_channel(&self, name: &str) -> Result<Channel, StoreError>;

    /// Forgets all updates of a channel but the last `keep`, and returns the oldest seq that is
    /// left (the head + 1 if none is). The entries' hashes stay, so what was forgotten does not
    /// come back as new. Long work is done in parts, between which others can write; when the
    /// future is dropped, some of it may be done.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn retain(&self, channel: &str, keep: u64) -> Result<u64, StoreError>;

    /// What is recorded about a feed of a channel; `None` if it was never polled.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn feed(&self, channel: &str, url: &str) -> Result<Option<Feed>, StoreError>;

    /// What the next conditional request for a feed says; empty if it was never polled.
    ///
    /// # Errors
    /// As [`feed`](Self::feed).
    async fn validators(&self, channel: &str, url: &str) -> Result<Validators, StoreError> {
        let feed = self.feed(channel, url).await?;
        Ok(feed.map(|feed| feed.validators).unwrap_or_default())
    }

    /// Records how a poll went, for those who look later. Leaves the validators as they are: they
    /// advance only together with entries, in [`append`](Self::append).
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn record_poll(
        &self,
        channel: &str,
        url: &str,
        poll: &PollRecord,
    ) -> Result<(), StoreError>;

    /// The content hashes that are stored for those of the given entry ids that are known.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn known(
        &self,
        channel: &str,
        url: &str,
        entry_ids: &[&str],
    ) -> Result<HashMap<String, Hash>, StoreError>;

    /// Stores new versions of entries, in the order given, and with them the feed's validators, in
    /// one durable transaction. Returns the updates that were stored, ascending and dense.
    ///
    /// A draft whose hash is the one stored last for its entry is skipped. `encode` is called once
    /// for each of the others, inside the transaction, with the seq that it gets; what it returns is
    /// stored as it is. Without `validators` the stored ones stay: pass them with the last part of a
    /// document that is stored in parts.
    ///
    /// When the future is dropped before it is done, everything or nothing was stored: look at the
    /// channel's head before publishing anything else. The same holds after an error, for a disk
    /// can fail between writing and reporting.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails (disk full, …).
    async fn append(
        &self,
        channel: &str,
        url: &str,
        drafts: &[Draft],
        validators: Option<&Validators>,
        encode: &EncodeUpdate<'_>,
    ) -> Result<Vec<StoredUpdate>, StoreError>;

    /// Stored updates with `from <= seq`, ascending: at most `limit`, and at most `max_bytes` of
    /// encoded bytes in all, but at least one if there is one.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn updates(
        &self,
        channel: &str,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError>;

    /// Admits the token with this SHA-256 hash. The label tells people what it is for. Adding one
    /// again changes nothing.
    ///
    /// # Errors
    /// The database fails.
    async fn add_token(&self, hash: &Hash, label: &str) -> Result<(), StoreError>;

    /// Whether the token with this SHA-256 hash is admitted.
    ///
    /// # Errors
    /// The database fails.
    async fn token_valid(&self, hash: &Hash) -> Result<bool, StoreError>;

    /// Whether the database answers, for a readiness check.
    ///
    /// # Errors
    /// It does not.
    async fn check(&self) -> Result<(), StoreError>;

    /// Closes the database cleanly after what is under way. Every later call fails.
    async fn close(&self);
}
