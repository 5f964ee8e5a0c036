//! The two databases, as one: pools of connections, statements, values and rows.
//!
//! SQLite: one connection writes, and a transaction takes the write lock when it begins, so a seq
//! is read and given out by one writer at a time, also between processes. A few more connections
//! read; by the write-ahead log they neither wait for the writer nor stop it.
//!
//! PostgreSQL: a transaction that gives out seqs locks the channel's row first. Readers see whole
//! transactions, in the order in which they had the lock.

#[cfg(feature = "fault-injection")]
mod faults;
#[cfg(not(feature = "fault-injection"))]
#[path = "no_faults.rs"]
mod faults;
mod listen;
mod migrations;
mod postgres;
mod session;
mod sql;
mod sqlite;
mod value;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

#[cfg(feature = "fault-injection")]
pub use faults::{Failure, Fault, FaultRule, Faults};
pub(crate) use session::Session;
pub(crate) use sql::{Sql, postgres_part, sql, sqlite_part};
pub(crate) use value::{Column, Row, Value, storable, values};

use crate::StoreError;
use crate::location::Location;
use crate::watch::{Listening, Notifier};
use session::Link;

/// Connections to a server are not waited for longer, when they are closed.
const CLOSE: Duration = Duration::from_secs(2);

/// Name of what a session is for, as it appears in errors: "cannot store updates in …".
pub(crate) type Operation = &'static str;

/// An open database.
#[derive(Debug)]
pub(crate) struct Database {
    /// As messages name it: without password.
    pub(crate) url: Arc<str>,
    pools: Pools,
    /// Nothing, unless tests inject some.
    pub(crate) faults: faults::Faults,
}

#[derive(Debug)]
enum Pools {
    Sqlite {
        /// One connection.
        writer: SqlitePool,
        readers: SqlitePool,
        /// For one more that reads.
        options: Box<SqliteConnectOptions>,
    },
    Postgres {
        pool: PgPool,
        /// For one more.
        options: Box<PgConnectOptions>,
    },
}

impl Database {
    /// Opens a database, makes it if it is a file that does not exist, and brings its schema up to
    /// date.
    pub(crate) async fn open(location: Location) -> Result<Self, StoreError> {
        let url = Arc::from(location.name());
        let pools = match location {
            Location::Sqlite(file) => {
                let (writer, readers, options) = sqlite::open(file).await?;
                Pools::Sqlite {
                    writer,
                    readers,
                    options: Box::new(options),
                }
            }
            Location::Postgres(server) => {
                let (pool, options) = postgres::open(*server).await?;
                let options = Box::new(options);
                Pools::Postgres { pool, options }
            }
        };
        Ok(Self {
            url,
            pools,
            faults: faults::Faults::default(),
        })
    }

    /// A connection for one statement that only reads.
    pub(crate) async fn read(&self, operation: Operation) -> Result<Session, StoreError> {
        let link = match &self.pools {
            Pools::Sqlite { readers, .. } => readers.acquire().await.map(Link::SqliteReader),
            Pools::Postgres { pool, .. } => postgres::acquire(pool).await.map(Link::Postgres),
        };
        self.session(operation, link)
    }

    /// A transaction that only reads, from one state of the database.
    pub(crate) async fn snapshot(&self, operation: Operation) -> Result<Session, StoreError> {
        let link = match &self.pools {
            Pools::Sqlite { readers, .. } => readers.begin().await.map(Link::Sqlite),
            Pools::Postgres { pool, .. } => {
                postgres::begin(pool, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    .await
                    .map(Link::Postgres)
            }
        };
        self.session(operation, link)
    }

    /// A transaction that writes.
    pub(crate) async fn write(&self, operation: Operation) -> Result<Session, StoreError> {
        let link = match &self.pools {
            Pools::Sqlite { writer, .. } => {
                writer.begin_with("BEGIN IMMEDIATE").await.map(Link::Sqlite)
            }
            // Whatever the server's default is: who waited for a row goes on with what is in it
            // now.
            Pools::Postgres { pool, .. } => {
                postgres::begin(pool, "BEGIN ISOLATION LEVEL READ COMMITTED")
                    .await
                    .map(Link::Postgres)
            }
        };
        self.session(operation, link)
    }

    fn session(
        &self,
        operation: Operation,
        link: Result<Link, sqlx::Error>,
    ) -> Result<Session, StoreError> {
        match link {
            Ok(link) => Ok(Session {
                url: Arc::clone(&self.url),
                operation,
                link,
                faults: self.faults.session(operation),
            }),
            Err(error) => Err(StoreError::from_sqlx(&self.url, operation, error)),
        }
    }

    /// Rings `notifier` at every change in the database, by a connection of its own.
    pub(crate) fn listen(&self, notifier: Notifier) -> Listening {
        match &self.pools {
            Pools::Sqlite { options, .. } => {
                Box::pin(listen::listen_to_sqlite((**options).clone(), notifier))
            }
            Pools::Postgres { options, .. } => {
                Box::pin(listen::listen_to_postgres((**options).clone(), notifier))
            }
        }
    }

    /// Closes the connections after what is under way.
    pub(crate) async fn close(&self) {
        match &self.pools {
            Pools::Sqlite {
                writer, readers, ..
            } => {
                readers.close().await;
                writer.close().await;
            }
            Pools::Postgres { pool, .. } => {
                // A connection that is given back is tried out first, and a server that has
                // vanished never answers.
                let _ = tokio::time::timeout(CLOSE, pool.close()).await;
            }
        }
    }

    /// The connection that writes, for tests that break something.
    #[cfg(test)]
    pub(crate) fn sqlite_writer(&self) -> &SqlitePool {
        match &self.pools {
            Pools::Sqlite { writer, .. } => writer,
            Pools::Postgres { .. } => panic!("this is PostgreSQL"),
        }
    }
}
