//! Opening a PostgreSQL database: its connections, and its schema.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};

use super::migrations::POSTGRES as MIGRATIONS;
use super::session::PostgresLink;
use crate::StoreError;
use crate::error::is_lost;
use crate::location::PostgresServer;

/// Connections at the same time. A source needs few: its channels write in short transactions.
const CONNECTIONS: u32 = 10;

/// Time limit of a call that waits for a connection, also when the server has to be reached first.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(4);

/// A connection that was idle for longer is tried out before it is used.
const TRIED_AFTER: Duration = Duration::from_secs(1);

/// Settings of each connection at the server. A source that hangs in the middle of a
/// transaction, or whose machine vanished, must not keep another one from its channels.
const SETTINGS: [(&str, &str); 7] = [
    ("statement_timeout", "4500ms"),
    ("lock_timeout", "3s"),
    ("idle_in_transaction_session_timeout", "5s"),
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    // An append that returned survives a loss of power, whatever the server's default is.
    ("synchronous_commit", "on"),
];

/// The key of the lock under which one process at a time changes the schema: "flexfeed".
const MIGRATION_LOCK: &str = "SELECT pg_advisory_xact_lock(7380385457141802340)";

/// A bare connection waits so long for the server when the store is opened.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections, and how to make one more.
pub(super) async fn open(server: PostgresServer) -> Result<(PgPool, PgConnectOptions), StoreError> {
    let PostgresServer { url, options } = server;
    // A value in the URL takes precedence.
    let given = options.get_options().unwrap_or_default().to_owned();
    let settings = SETTINGS
        .into_iter()
        .filter(|(name, _)| !given.contains(name));
    let name = options
        .get_application_name()
        .unwrap_or("flexfeed")
        .to_owned();
    let options = options
        .options(settings)
        .application_name(&name)
        .disable_statement_logging();
    migrate(&options, &url).await?;
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(Duration::from_secs(600))
        .max_lifetime(Duration::from_secs(3600))
        .test_before_acquire(false)
        .before_acquire(|connection, usage| {
            Box::pin(
                async move { Ok(usage.idle_for < TRIED_AFTER || connection.ping().await.is_ok()) },
            )
        })
        .connect_with(options.clone())
        .await
        .map_err(|error| StoreError::from_sqlx(&url, "open it", error))?;
    Ok((pool, options))
}

pub(super) async fn acquire(pool: &PgPool) -> Result<PostgresLink, sqlx::Error> {
    pool.acquire().await.map(PostgresLink::new)
}

/// A connection in a transaction. A server that was restarted has broken all idle connections:
/// nothing was done on them yet, so the next one is tried.
pub(super) async fn begin(pool: &PgPool, how: &'static str) -> Result<PostgresLink, sqlx::Error> {
    let started = Instant::now();
    loop {
        let mut link = acquire(pool).await?;
        match link.begin(how).await {
            Err(error) if is_lost(&error) && started.elapsed() < ACQUIRE_TIMEOUT => {}
            other => return other.map(|()| link),
        }
    }
}

/// Brings the schema up to date, all of it in one transaction: of several processes that start at
/// once, one migrates and the others find it done.
async fn migrate(options: &PgConnectOptions, url: &str) -> Result<(), StoreError> {
    let failed = |error| StoreError::from_sqlx(url, "open it", error);
    let mut connection = tokio::time::timeout(OPEN_TIMEOUT, options.connect())
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
        .map_err(failed)?;
    let mut transaction = connection.begin().await.map_err(failed)?;
    // A large database may take its time, and others wait for the first one.
    // A process that waited has to see the first one's changes, whatever the server's default is.
    sqlx::raw_sql(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
         SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0",
    )
    .execute(&mut *transaction)
    .await
    .map_err(failed)?;
    sqlx::query(MIGRATION_LOCK)
        .execute(&mut *transaction)
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
async fn identify(connection: &mut PgConnection, url: &str) -> Result<(), StoreError> {
    let failed = |error| StoreError::from_sqlx(url, "open it", error);
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = current_schema() ORDER \
         BY 1",
    )
    .fetch_all(connection)
    .await
    .map_err(failed)?;
    let has = |name: &str| tables.iter().any(|table| table == name);
    if tables.is_empty() || (has("_sqlx_migrations") && has("channels")) {
        return Ok(());
    }
    Err(StoreError::Open {
        url: url.to_owned(),
        reason: format!(
            "it holds the tables of another program ({}); give flexfeed a database of its own \
             (`CREATE DATABASE flexfeed`) and name it in --database-url",
            tables.join(", ")
        ),
    })
}
