//! The open database, and a handle to it for each noun.

use std::path::Path;
use std::sync::Arc;

use crate::StoreError;
use crate::archive::{self, BackupReport};
use crate::database::{Database, sql, values};
use crate::location::Location;
use crate::watch::{Topic, Watch, WriteNotices};

/// Open database. Clones share its connections.
///
/// Safe for concurrent use, also by several processes. Every noun has a handle with its methods,
/// such as [`channels`](Self::channels) or [`leases`](Self::leases).
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) database: Arc<Database>,
    pub(crate) news: Arc<WriteNotices>,
}

impl Store {
    pub(crate) async fn at(location: Location) -> Result<Self, StoreError> {
        let database = Database::open(location).await?;
        Ok(Self {
            database: Arc::new(database),
            news: Arc::new(WriteNotices::new()),
        })
    }

    /// Returns a number that grows with every change to the settings of channels and feeds, and
    /// whenever a token or a receiver is revoked. Cheap enough to be polled.
    ///
    /// # Errors
    /// The database fails.
    pub async fn version(&self) -> Result<u64, StoreError> {
        let mut session = self.database.read("read the version").await?;
        let version = session
            .scalar(sql!("SELECT version FROM settings WHERE id = 1"), values![])
            .await?;
        session.unsigned(version)
    }

    /// Wakes the caller at changes, commands, messages or publications, of this process or another
    /// one. A hint: it may come without need, and may be lost with the connection, so look every two
    /// seconds all the same. Within a tokio runtime only.
    pub fn watch(&self, topic: Topic) -> Watch {
        self.news
            .watch(topic, |notifier| self.database.listen(notifier))
    }

    /// Writes everything into the file `to`: one state of the database, while others go on reading
    /// and writing. The file appears when it is whole and durable, readable by its owner only; an
    /// older backup of that name is replaced, any other file is not. It holds what the database
    /// holds: hashes of tokens and credentials, and the addresses of feeds with their passwords.
    ///
    /// # Errors
    /// The file cannot be written, there is another one of that name, or the database fails.
    pub async fn backup(&self, to: &Path) -> Result<BackupReport, StoreError> {
        archive::backup(&self.database, to).await
    }

    /// Returns the database's URL without its password, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.database.url
    }

    /// Checks that the database answers, for a readiness check.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.version().await.map(|_| ())
    }

    /// Closes the database cleanly after what is under way. Every later call fails.
    pub async fn close(&self) {
        self.news.close().await;
        self.database.close().await;
    }

    /// Returns the faults of this database's sessions.
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn faults(&self) -> &crate::Faults {
        &self.database.faults
    }
}

/// Declares a handle for each noun, and the method of [`Store`] that returns it.
macro_rules! handles {
    ($($(#[$doc:meta])* $noun:ident: $handle:ident,)+) => {
        impl Store {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $noun(&self) -> $handle<'_> {
                    $handle { store: self }
                }
            )+
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $handle<'a> {
                pub(crate) store: &'a Store,
            }
        )+
    };
}

handles! {
    /// Channels and their settings.
    channels: Channels,
    /// Feeds of channels: their settings and the outcome of their polls.
    feeds: Feeds,
    /// Gaps in feeds, and what became of them.
    gaps: Gaps,
    /// Known entries of feeds, by id and content hash.
    entries: Entries,
    /// Updates of channels, numbered densely.
    updates: Updates,
    /// Signing eras: which key signed which updates of a channel.
    signing_eras: SigningEras,
    /// Keys that sign the updates of all channels, and vouch for each other.
    signing_keys: SigningKeys,
    /// Leases: the right to publish a channel.
    leases: Leases,
    /// Tokens that admit receivers.
    tokens: Tokens,
    /// Receivers that were admitted.
    receivers: Receivers,
    /// Records of a source about its receivers, relays and feeds: written in batches by the source
    /// that publishes, and read by any number of consoles.
    ///
    /// Lists have at most 10,000 rows (samples 20,000), whatever limit is given. Times are Unix
    /// milliseconds by the clock of the writer.
    records: Records,
    /// Commands of operators to the source. Times are the database's.
    commands: Commands,
    /// Messages of live channels, on their way to the source. Times are the database's. They are
    /// in no backup.
    messages: Messages,
    /// Publications: entries that publishers send, on their way to the source. Times are the
    /// database's.
    publications: Publications,
    /// Users of the console.
    users: Users,
    /// Browsers that are signed in to the console. Their cookies are stored as hashes.
    web_sessions: WebSessions,
    /// API tokens of the console, stored as hashes.
    api_tokens: ApiTokens,
    /// Audit log of the console.
    audit_log: AuditLog,
}
