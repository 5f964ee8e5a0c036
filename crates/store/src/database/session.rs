//! A connection for the time of one call, in a transaction or not.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Postgres, Sqlite, SqliteConnection, Transaction};

use super::faults::SessionFaults;
use super::value::{Column, Row, Value, for_postgres, for_sqlite};
use super::{Operation, Sql};
use crate::StoreError;
use crate::error::is_lost;

/// The longest wait for PostgreSQL to answer one statement. The server gives up before that
/// ([`super::postgres`]), so a longer wait is for a server that has vanished.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// The slowest network to the server that is good enough for large rows, in bytes per second.
const SLOWEST: u64 = 1 << 20;

/// The same for a transaction that may take its time.
const LONG: Duration = Duration::from_secs(600);

/// The time that parameters take to arrive.
fn on_the_way(values: &[Value<'_>]) -> Duration {
    let bytes: u64 = values.iter().map(Value::size).sum();
    Duration::from_secs(bytes / SLOWEST)
}

/// A connection, and what it is used for.
pub(crate) struct Session {
    pub(crate) url: Arc<str>,
    pub(super) operation: Operation,
    pub(super) link: Link,
    pub(super) faults: SessionFaults,
}

pub(super) enum Link {
    SqliteReader(PoolConnection<Sqlite>),
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(PostgresLink),
}

/// A connection to PostgreSQL that never goes back to the pool in an unknown state: with a
/// transaction that is not over, with a statement that is not answered, or broken, it is closed.
pub(super) struct PostgresLink {
    connection: Option<PoolConnection<Postgres>>,
    /// Between BEGIN and the answer to COMMIT, and while any statement waits for its answer.
    unsettled: bool,
    in_transaction: bool,
    /// Time limit of a statement, besides the time for its parameters to arrive.
    patience: Duration,
}

impl PostgresLink {
    pub(super) fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
            unsettled: false,
            in_transaction: false,
            patience: ANSWER,
        }
    }

    pub(super) async fn rows(
        &mut self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let Some(connection) = self.connection.as_mut() else {
            return Err(sqlx::Error::PoolClosed);
        };
        self.unsettled = true;
        let patience = self.patience + on_the_way(values);
        let query = for_postgres(sql, values).fetch_all(&mut **connection);
        let answer = tokio::time::timeout(patience, query).await;
        self.settle(answer)
            .map(|rows| rows.into_iter().map(Row::Postgres).collect())
    }

    pub(super) async fn execute(
        &mut self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> Result<u64, sqlx::Error> {
        let Some(connection) = self.connection.as_mut() else {
            return Err(sqlx::Error::PoolClosed);
        };
        self.unsettled = true;
        let patience = self.patience + on_the_way(values);
        let query = for_postgres(sql, values).execute(&mut **connection);
        let answer = tokio::time::timeout(patience, query).await;
        self.settle(answer).map(|done| done.rows_affected())
    }

    /// Runs statements that take no parameters and need no preparation: BEGIN and the like.
    pub(super) async fn control(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        use sqlx::Executor as _;
        let Some(connection) = self.connection.as_mut() else {
            return Err(sqlx::Error::PoolClosed);
        };
        self.unsettled = true;
        let answer = tokio::time::timeout(self.patience, connection.execute(sql)).await;
        self.settle(answer).map(|_| ())
    }

    pub(super) async fn begin(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        self.in_transaction = true;
        self.control(sql).await
    }

    async fn end(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        self.control(sql).await?;
        self.in_transaction = false;
        Ok(())
    }

    fn settle<T>(
        &mut self,
        answer: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, sqlx::Error> {
        let answer = answer.unwrap_or_else(|_| {
            Err(sqlx::Error::Io(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                "no answer in time",
            )))
        });
        self.unsettled = answer.as_ref().is_err_and(is_lost);
        answer
    }
}

impl Drop for PostgresLink {
    fn drop(&mut self) {
        if (self.unsettled || self.in_transaction)
            && let Some(connection) = self.connection.take()
        {
            // The server ends the transaction when it sees the socket closed.
            drop(connection.detach());
        }
    }
}

impl Session {
    /// The rows that a statement gives.
    pub(crate) async fn rows(
        &mut self,
        sql: Sql,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.faults.before_statement(&self.url).await?;
        let rows = match &mut self.link {
            Link::SqliteReader(connection) => sqlite_rows(connection, sql, values).await,
            Link::Sqlite(transaction) => sqlite_rows(transaction, sql, values).await,
            Link::Postgres(link) => link.rows(sql.postgres, values).await,
        };
        let rows = rows.map_err(|error| self.failed(error))?;
        self.faults.after_rows(rows.len()).await;
        Ok(rows)
    }

    /// The first row that a statement gives, if it gives one.
    pub(crate) async fn row(
        &mut self,
        sql: Sql,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// All rows that a statement gives, read by `read`.
    pub(crate) async fn list<T>(
        &mut self,
        sql: Sql,
        values: &[Value<'_>],
        read: impl Fn(&Self, &Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.rows(sql, values).await?;
        rows.iter().map(|row| read(self, row)).collect()
    }

    /// The first row that a statement gives, read by `read`, if it gives one.
    pub(crate) async fn find<T>(
        &mut self,
        sql: Sql,
        values: &[Value<'_>],
        read: impl Fn(&Self, &Row) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let row = self.row(sql, values).await?;
        row.map(|row| read(self, &row)).transpose()
    }

    /// The first column of the only row of a statement that always gives one.
    pub(crate) async fn scalar<T: Column>(
        &mut self,
        sql: Sql,
        values: &[Value<'_>],
    ) -> Result<T, StoreError> {
        match self.row(sql, values).await? {
            Some(row) => self.get(&row, 0),
            None => Err(self.failed(sqlx::Error::RowNotFound)),
        }
    }

    /// Runs a statement, and tells how many rows it changed.
    pub(crate) async fn execute(
        &mut self,
        sql: Sql,
        values: &[Value<'_>],
    ) -> Result<u64, StoreError> {
        self.faults.before_statement(&self.url).await?;
        let done = match &mut self.link {
            Link::SqliteReader(connection) => for_sqlite(sql.sqlite, values)
                .execute(&mut **connection)
                .await
                .map(|done| done.rows_affected()),
            Link::Sqlite(transaction) => for_sqlite(sql.sqlite, values)
                .execute(&mut **transaction)
                .await
                .map(|done| done.rows_affected()),
            Link::Postgres(link) => link.execute(sql.postgres, values).await,
        };
        done.map_err(|error| self.failed(error))
    }

    /// Makes the transaction durable.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        self.end("COMMIT").await
    }

    /// Ends the transaction without a change. (Dropping it does so too, and costs PostgreSQL the
    /// connection.)
    pub(crate) async fn rollback(self) -> Result<(), StoreError> {
        self.end("ROLLBACK").await
    }

    async fn end(self, how: &'static str) -> Result<(), StoreError> {
        let Self {
            url,
            operation,
            link,
            faults,
        } = self;
        let ended = match link {
            Link::SqliteReader(_) => Ok(()),
            Link::Sqlite(transaction) if how == "COMMIT" => transaction.commit().await,
            Link::Sqlite(transaction) => transaction.rollback().await,
            Link::Postgres(mut link) if link.in_transaction => link.end(how).await,
            Link::Postgres(_) => Ok(()),
        };
        ended.map_err(|error| StoreError::from_sqlx(&url, operation, error))?;
        faults.after_end(&url, how == "COMMIT")
    }

    /// Lets this transaction take hours: no other one waits for it. What it reads, it reads in the
    /// order of an index, also from tables that have no statistics yet.
    pub(crate) async fn extend_timeout(&mut self) -> Result<(), StoreError> {
        let Link::Postgres(link) = &mut self.link else {
            return Ok(());
        };
        link.patience = LONG;
        let allowed = link
            .control(
                "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;
                 SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = off",
            )
            .await;
        allowed.map_err(|error| self.failed(error))
    }

    /// Allows for answers of so many bytes.
    pub(crate) fn expect(&mut self, bytes: u64) {
        if let Link::Postgres(link) = &mut self.link {
            link.patience = link
                .patience
                .max(ANSWER + Duration::from_secs(bytes / SLOWEST));
        }
    }

    /// Whether this is PostgreSQL, which wants many rows in one statement.
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.link, Link::Postgres(_))
    }

    /// The value of a column, counted from 0.
    pub(crate) fn get<T: Column>(&self, row: &Row, column: usize) -> Result<T, StoreError> {
        row.get(column).map_err(|error| self.failed(error))
    }

    /// A number that is never negative.
    pub(crate) fn count(&self, row: &Row, column: usize) -> Result<u64, StoreError> {
        let stored: i64 = self.get(row, column)?;
        self.unsigned(stored)
    }

    /// A number that is never negative, if there is one.
    pub(crate) fn maybe_count(&self, row: &Row, column: usize) -> Result<Option<u64>, StoreError> {
        let stored: Option<i64> = self.get(row, column)?;
        stored.map(|stored| self.unsigned(stored)).transpose()
    }

    /// A number as the database holds it, or what is wrong with it.
    pub(crate) fn unsigned(&self, stored: i64) -> Result<u64, StoreError> {
        u64::try_from(stored)
            .map_err(|_| self.damaged(format!("it holds the number {stored}, which is negative")))
    }

    pub(crate) fn failed(&self, error: sqlx::Error) -> StoreError {
        StoreError::from_sqlx(&self.url, self.operation, error)
    }

    pub(crate) fn damaged(&self, detail: String) -> StoreError {
        StoreError::Damaged {
            url: self.url.to_string(),
            detail,
        }
    }

    pub(crate) fn unknown_channel(&self, channel: &str) -> StoreError {
        StoreError::UnknownChannel {
            url: self.url.to_string(),
            channel: channel.to_owned(),
        }
    }
}

async fn sqlite_rows(
    connection: &mut SqliteConnection,
    sql: Sql,
    values: &[Value<'_>],
) -> Result<Vec<Row>, sqlx::Error> {
    let rows = for_sqlite(sql.sqlite, values).fetch_all(connection).await?;
    Ok(rows.into_iter().map(Row::Sqlite).collect())
}
