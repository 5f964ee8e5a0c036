//! What the source must not lose: channels, their updates, the feeds they come from, who may receive
//! them, and who publishes them.
//!
//! [`Store`] is the interface; [`open`] gives the embedded SQLite or a PostgreSQL behind it. An append
//! that returned survives a crash of the process and a loss of power; one that did not return is
//! stored whole or not at all. Updates are numbered densely per channel: 1, 2, 3, …, and no number is
//! used twice.
//!
//! All times are Unix milliseconds (UTC), by the clock of the database.

mod accounts;
mod archive;
mod database;
mod error;
mod location;
mod mark;
mod model;
mod records;
mod sql;
mod watch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

pub use accounts::Accounts;
pub use archive::{BackupReport, Contents, Progress, RestoreReport};
#[cfg(feature = "fault-injection")]
pub use database::{Failure, Fault, FaultRule, Faults};
pub use error::StoreError;
pub use mark::{Adopted, HeadMark, Renewal};
pub use model::{
    ApiTokenRow, Applicant, AuditFilter, AuditRow, Batch, Changes, Channel, ChannelRow,
    ChannelSettings, ChooseSettings, Command, CommandState, Draft, EncodeUpdate, FeedEdit,
    FeedEvent, FeedHour, FeedRow, FeedSettings, Fence, GapRecord, GapState, Hash, Holder, Identity,
    Kind, Lease, LeaseRow, Leased, MoveFilter, MoveRow, NewApiToken, NewAudit, NewCommand,
    NewToken, NewUser, NewWebSession, Origin, PollRecord, ProgressRow, PulseRow, ReceiverEdit,
    ReceiverRow, RelayRow, Retention, Role, SampleRow, SessionRow, Setup, SourceInfo, Stamp,
    StateRow, StoredUpdate, TokenRow, UpdateItem, UserChange, UserEdit, UserRow, Validators,
    Verdict, WebSession,
};
pub use records::Records;
pub use watch::{Topic, Watch};

/// One open database, by each of its interfaces.
#[derive(Clone)]
pub struct Opened {
    /// Channels, updates, feeds, tokens and receivers.
    pub store: Arc<dyn Store>,
    /// What the console shows.
    pub records: Arc<dyn Records>,
    /// Who may use the console.
    pub accounts: Arc<dyn Accounts>,
}

impl Opened {
    async fn at(location: location::Location) -> Result<Self, StoreError> {
        let store = Arc::new(sql::SqlStore::open(location).await?);
        Ok(Self {
            records: Arc::clone(&store) as Arc<dyn Records>,
            accounts: Arc::clone(&store) as Arc<dyn Accounts>,
            store,
        })
    }
}

/// Opens the store that `database_url` names, and brings its schema up to date.
///
/// - `sqlite://PATH` (relative to the working directory; `sqlite:///PATH` is absolute; `%`-escapes as
///   in any URL). The folder must exist; the file is made if there is none, readable by its owner
///   only.
/// - `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or `postgresql://…`, with the parameters of libpq
///   that matter here (`sslmode`, `sslrootcert`, …). The database must exist, and be empty or
///   flexfeed's. Without `sslmode`, TLS is used if the server has it, and its certificate is not
///   verified; `sslmode=verify-full` verifies it.
///
/// # Errors
/// The URL is not usable, the database cannot be opened or written, belongs to another program, is
/// damaged, or was written by a newer version. The text says what to do, and has no password in it.
pub async fn open(database_url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let location = location::Location::parse(database_url)?;
    Ok(Arc::new(sql::SqlStore::open(location).await?))
}

/// [`open`], with all interfaces to the database.
///
/// # Errors
/// As [`open`].
pub async fn open_all(database_url: &str) -> Result<Opened, StoreError> {
    Opened::at(location::Location::parse(database_url)?).await
}

/// [`open_file`], with all interfaces to the database.
///
/// # Errors
/// As [`open`].
pub async fn open_file_all(path: &Path) -> Result<Opened, StoreError> {
    Opened::at(location::Location::file(path)).await
}

/// [`open_file_all`], with the faults of the sessions of this database.
///
/// # Errors
/// As [`open`].
#[cfg(feature = "fault-injection")]
pub async fn open_file_with_faults(path: &Path) -> Result<(Opened, Faults), StoreError> {
    let store = Arc::new(sql::SqlStore::open(location::Location::file(path)).await?);
    let faults = store.database.faults.clone();
    let opened = Opened {
        records: Arc::clone(&store) as Arc<dyn Records>,
        accounts: Arc::clone(&store) as Arc<dyn Accounts>,
        store,
    };
    Ok((opened, faults))
}

/// Whether [`open`] understands `database_url`. Opens and makes nothing.
///
/// # Errors
/// [`StoreError::Url`] if it does not; the text repeats nothing that may be a password.
pub fn check_url(database_url: &str) -> Result<(), StoreError> {
    location::Location::parse(database_url).map(|_| ())
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
pub async fn open_file(path: &Path) -> Result<Arc<dyn Store>, StoreError> {
    let location = location::Location::file(path);
    Ok(Arc::new(sql::SqlStore::open(location).await?))
}

/// Puts what is in the backup `from` into the database that `database_url` names, all of it or nothing.
/// The database must be empty, and may be of the other kind than the one that was saved. Channels get
/// new incarnations, so their receivers start over: they may have seen updates after the backup.
///
/// `tell` hears now and then how far it is.
///
/// # Errors
/// As [`open`]; the database is not empty; the file cannot be read, is damaged or cut off, or was made
/// by a newer version.
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

/// A store of channels and their updates. Safe for concurrent use, also by several processes.
#[async_trait]
pub trait Store: Send + Sync {
    /// The channel of that name, made with a fresh incarnation if there is none.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes, or the database fails.
    async fn open_channel(&self, name: &str) -> Result<Channel, StoreError>;

    /// The channel of that name, if there is one.
    ///
    /// # Errors
    /// [`StoreError::UnknownChannel`] if there is none, or the database fails.
    async fn channel(&self, name: &str) -> Result<Channel, StoreError>;

    /// Gives a channel a new incarnation, whatever it holds: its receivers start over. For a
    /// database that has been set back, see [`HeadMark`].
    ///
    /// With a `fence`, it is refused unless that is the channel's present one.
    ///
    /// # Errors
    /// The channel does not exist, the fence is an old one, or the database fails.
    async fn renew_channel(&self, name: &str, fence: Option<u64>) -> Result<Channel, StoreError>;

    /// All channels, by name.
    ///
    /// # Errors
    /// The database fails.
    async fn channels(&self) -> Result<Vec<ChannelRow>, StoreError>;

    /// Sets everything that is set about a channel, makes it if there is none, and makes it active.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes, or the database fails.
    async fn put_channel(
        &self,
        name: &str,
        settings: &ChannelSettings,
    ) -> Result<ChannelRow, StoreError>;

    /// Makes a channel, unless there is an active one of that name: `None`. One that is not active is
    /// made active again, with other settings. `choose` says how it is to be, from all others, active or
    /// not; nobody else makes one in between by this call. If it says nothing, nothing is made: `None`,
    /// too.
    ///
    /// # Errors
    /// The name is empty or longer than 255 bytes, the groups are too long, or the database fails.
    async fn add_channel(
        &self,
        name: &str,
        choose: &ChooseSettings<'_>,
    ) -> Result<Option<ChannelRow>, StoreError>;

    /// Says whether a channel is to be published. Returns whether there is such a channel.
    ///
    /// # Errors
    /// The database fails.
    async fn set_channel_active(&self, name: &str, active: bool) -> Result<bool, StoreError>;

    /// Removes a channel with its feeds and updates. Returns whether there was such a channel.
    ///
    /// # Errors
    /// The database fails.
    async fn remove_channel(&self, name: &str) -> Result<bool, StoreError>;

    /// The feeds of one channel, or of all, also those that are not polled any more.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn feeds(&self, channel: Option<&str>) -> Result<Vec<FeedRow>, StoreError>;

    /// One feed of a channel; `None` if it was neither set up nor polled.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn feed(&self, channel: &str, url: &str) -> Result<Option<FeedRow>, StoreError>;

    /// Sets everything that is set about a feed, makes it if there is none, and makes it active, even
    /// if it was gone. What is known of its entries stays.
    ///
    /// # Errors
    /// The channel does not exist, a text is too long, or the database fails.
    async fn put_feed(&self, channel: &str, settings: &FeedSettings)
    -> Result<FeedRow, StoreError>;

    /// Adds a feed, unless it is there already: `None`. Of several who add the same at once, one does. One
    /// that was removed is there again, as it is said now; what is known of its entries stays.
    ///
    /// # Errors
    /// The channel does not exist, a text is too long, or the database fails.
    async fn add_feed(
        &self,
        channel: &str,
        settings: &FeedSettings,
    ) -> Result<Option<FeedRow>, StoreError>;

    /// Changes what is set about a feed that is there and [managed](Origin::Managed), and nothing else of
    /// it, whoever changes that meanwhile. Returns it as it is then; `None` if there is no such feed.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn edit_feed(
        &self,
        channel: &str,
        url: &str,
        edit: &FeedEdit,
    ) -> Result<Option<FeedRow>, StoreError>;

    /// Says whether a feed is to be polled: inactive is removed, for its updates keep their numbers.
    /// Returns whether there is such a feed.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn set_feed_active(
        &self,
        channel: &str,
        url: &str,
        active: bool,
    ) -> Result<bool, StoreError>;

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

    /// Records a gap, or what became of it if its `id` is known. Returns its id. Of each channel, the
    /// last thousand are kept.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn record_gap(&self, channel: &str, gap: &GapRecord) -> Result<i64, StoreError>;

    /// The last gaps of a channel, the newest first.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn gaps(&self, channel: &str, limit: usize) -> Result<Vec<GapRecord>, StoreError>;

    /// A number that grows with every change of what is set about channels and feeds, and whenever a
    /// token or a receiver is revoked. Costs little to ask for.
    ///
    /// # Errors
    /// The database fails.
    async fn version(&self) -> Result<u64, StoreError>;

    /// Asks for the right to publish a channel for the time `ttl`. It is given if nobody has it, if
    /// it has expired, or if `holder` itself has it. Expiry goes by the clock of the database.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn take_lease(
        &self,
        channel: &str,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<Leased, StoreError>;

    /// Has a lease last for the time `ttl` from now. Returns whether it is still the holder's: that
    /// is so until somebody else takes it, even if it had expired.
    ///
    /// # Errors
    /// The database fails. It may have been renewed all the same.
    async fn renew_lease(
        &self,
        lease: &Lease,
        holder: &Holder,
        ttl: Duration,
    ) -> Result<bool, StoreError>;

    /// Gives a lease back, so that nobody has to wait until it expires. One that somebody else has
    /// taken stays.
    ///
    /// # Errors
    /// The database fails.
    async fn release_lease(&self, lease: &Lease) -> Result<(), StoreError>;

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

    /// The ids of a feed's entries of which a version was stored with a larger seq than `seq`, the
    /// newest first: at most `limit`.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn known_since(
        &self,
        channel: &str,
        url: &str,
        seq: u64,
        limit: usize,
    ) -> Result<Vec<String>, StoreError>;

    /// Forgets what is known of a feed's entries, but for the `keep` newest ones, those that are
    /// `present` in the feed, and those of which the channel still keeps an update. Should one of the
    /// others come back, it is new. Returns how many were forgotten. Done in parts, between which
    /// others can write.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn forget_entries(
        &self,
        channel: &str,
        url: &str,
        keep: usize,
        present: &[&str],
    ) -> Result<u64, StoreError>;

    /// Stores new versions of entries, in the order given, and with them the feed's validators, in
    /// one durable transaction. Returns the updates that were stored, ascending and dense.
    ///
    /// With a `fence`, it is refused unless that is the channel's present one: somebody else has taken
    /// the channel's lease since.
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
    /// The channel does not exist, the fence is an old one, an id is longer than 2,048 bytes, or the
    /// database fails (disk full, …).
    async fn append(
        &self,
        channel: &str,
        url: &str,
        fence: Option<u64>,
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

    /// [`updates`](Self::updates), if the channel still has this incarnation: for who serves it
    /// without looking whether the lease is theirs.
    ///
    /// # Errors
    /// [`StoreError::Incarnation`] if it has another one; as `updates` otherwise.
    async fn backlog(
        &self,
        channel: &str,
        incarnation: Uuid,
        from: u64,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredUpdate>, StoreError>;

    /// Forgets the updates of a channel that are not to be kept, counted back from `published`, and
    /// returns the oldest seq that is left (the head + 1 if none is). What comes after `published`
    /// stays. The entries' hashes stay, so what was forgotten does not come back as new. Long work is
    /// done in parts, between which others can write; when the future is dropped, some of it may be
    /// done.
    ///
    /// # Errors
    /// The channel does not exist, or the database fails.
    async fn retain(
        &self,
        channel: &str,
        keep: &Retention,
        published: u64,
    ) -> Result<u64, StoreError>;

    /// Has a token admit receivers. Adding one with the same hash again changes nothing.
    ///
    /// # Errors
    /// The database fails.
    async fn add_token(&self, token: &NewToken) -> Result<TokenRow, StoreError>;

    /// The token with this SHA-256 hash, if it is there, and neither revoked nor too old.
    ///
    /// # Errors
    /// The database fails.
    async fn valid_token(&self, hash: &Hash) -> Result<Option<TokenRow>, StoreError>;

    /// All tokens, in the order in which they were added.
    ///
    /// # Errors
    /// The database fails.
    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError>;

    /// Has a token admit nobody any more; who was admitted with it stays. Returns whether there is
    /// such a token.
    ///
    /// # Errors
    /// The database fails.
    async fn revoke_token(&self, id: i64) -> Result<bool, StoreError>;

    /// Decides whether a receiver is admitted. One that is not known needs a token, of which one use
    /// is counted; from then on its own credential admits it, to the channels of that token. Asking
    /// again with the same credential costs nothing.
    ///
    /// # Errors
    /// The database fails.
    async fn admit(&self, applicant: &Applicant<'_>) -> Result<Verdict, StoreError>;

    /// All receivers that were ever admitted and not forgotten, in that order.
    ///
    /// # Errors
    /// The database fails.
    async fn receivers(&self) -> Result<Vec<ReceiverRow>, StoreError>;

    /// Admits a receiver no more. Returns whether there is such a receiver.
    ///
    /// # Errors
    /// The database fails.
    async fn revoke_receiver(&self, id: Uuid) -> Result<bool, StoreError>;

    /// Forgets a receiver: it may enrol anew, with a token and a new credential. Returns whether there
    /// was such a receiver.
    ///
    /// # Errors
    /// The database fails.
    async fn forget_receiver(&self, id: Uuid) -> Result<bool, StoreError>;

    /// The receivers that were revoked.
    ///
    /// # Errors
    /// The database fails.
    async fn revoked(&self) -> Result<Vec<Uuid>, StoreError>;

    /// Saves everything into the file `to`: one state of the database, while others go on reading and
    /// writing. The file appears when it is whole and durable, readable by its owner only; an older
    /// backup of that name is replaced, any other file is not. It holds what the database holds:
    /// hashes of tokens and credentials, and the addresses of feeds with their passwords.
    ///
    /// # Errors
    /// The file cannot be written, there is another one of that name, or the database fails.
    async fn backup(&self, to: &Path) -> Result<BackupReport, StoreError>;

    /// Whether the database answers, for a readiness check.
    ///
    /// # Errors
    /// It does not.
    async fn check(&self) -> Result<(), StoreError>;

    /// Closes the database cleanly after what is under way. Every later call fails.
    async fn close(&self);
}
