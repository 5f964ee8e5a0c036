//! Opening a SQLite database: its file, its identity, its schema, and the connections.

use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::migrations::SQLITE as MIGRATIONS;
use crate::StoreError;
use crate::error::is_busy;
use crate::location::SqliteFile;

/// Application id that the first migration gives the file: "flxf".
const APPLICATION_ID: i64 = 0x666c_7866;

/// Time limit of one statement that waits for another writing process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of a task that waits for a connection. Longer than the busy timeout: a task behind
/// one that waits for another process fails with the reason.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// Readers at the same time: catch-up of some receivers beside the status page.
const READERS: u32 = 4;

/// Size of the write-ahead log after a burst, in bytes.
const LOG_BYTES: &str = "67108864";

/// SQLite does not wait when two processes turn the write-ahead log on at the same time; we do.
const LOG_ATTEMPTS: u32 = 50;
const LOG_PAUSE: Duration = Duration::from_millis(100);

/// The connection that writes, those that read, and how to make one more of these.
pub(super) async fn open(
    file: SqliteFile,
) -> Result<(SqlitePool, SqlitePool, SqliteConnectOptions), StoreError> {
    let url = file.url.clone();
    let path = file.path.clone();
    tokio::task::spawn_blocking(move || file.prepare())
        .await
        .map_err(|error| StoreError::Open {
            url: url.clone(),
            reason: error.to_string(),
        })??;
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .disable_statement_logging();
    migrate(&options, &url).await?;
    let writer = open_writer(&options, &url).await?;
    let options = options.read_only(true);
    let readers = pool(READERS)
        .connect_with(options.clone())
        .await
        .map_err(|error| StoreError::from_sqlx(&url, "open it for reading", error))?;
    Ok((writer, readers, options))
}

/// A pool that replaces connections left inside a transaction.
///
/// SQLite ends a transaction by itself when the disk is full or fails. sqlx does not notice, its
/// own rollback then fails, and such a connection would refuse to begin a transaction ever after.
fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // The test waits for the rollback of a transaction that was dropped just now.
        .test_before_acquire(true)
        .before_acquire(|connection, _| {
            let usable = !connection.is_in_transaction();
            Box::pin(async move { Ok(usable) })
        })
}

/// Brings the schema up to date, all of it in one transaction that holds the write lock: of several
/// processes that start at once, one migrates and the others find it done.
async fn migrate(options: &SqliteConnectOptions, url: &str) -> Result<(), StoreError> {
    let failed = |error| StoreError::from_sqlx(url, "open it", error);
    let mut connection = options.connect().await.map_err(failed)?;
    let mut transaction = connection
        .begin_with("BEGIN IMMEDIATE")
        .await
        .map_err(failed)?;
    identify(&mut transaction, url).await?;
    let known = MIGRATIONS
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or_default();
    // `run` would make a future that no task can have.
    MIGRATIONS
        .run_direct(None, &mut *transaction, false)
        .await
        .map_err(|error| StoreError::from_migration(url, known, error))?;
    transaction.commit().await.map_err(failed)?;
    connection.close().await.map_err(failed)
}

/// Refuses the database of another program before anything in it is changed.
async fn identify(connection: &mut SqliteConnection, url: &str) -> Result<(), StoreError> {
    let failed = |error| StoreError::from_sqlx(url, "open it", error);
    let id: i64 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    let tables: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM sqlite_schema")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    let is_new = tables == 0 && id == 0;
    if id == APPLICATION_ID || is_new {
        return Ok(());
    }
    Err(StoreError::Open {
        url: url.to_owned(),
        reason: "it is the database of another program; set --database-url to another file"
            .to_owned(),
    })
}

/// The one connection that writes: write-ahead log, synced to disk at every commit.
async fn open_writer(options: &SqliteConnectOptions, url: &str) -> Result<SqlitePool, StoreError> {
    let options = options
        .clone()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", LOG_BYTES);
    let mut attempts = 0;
    loop {
        let opened = pool(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.clone())
            .await;
        match opened {
            Err(error) if is_busy(&error) && attempts < LOG_ATTEMPTS => {
                attempts += 1;
                tokio::time::sleep(LOG_PAUSE).await;
            }
            other => {
                return other
                    .map_err(|error| StoreError::from_sqlx(url, "open it for writing", error));
            }
        }
    }
}
