//! Statements that are written once for both databases.
//!
//! [`sql!`] joins literals and these words, which the databases say differently:
//!
//! - `NOW`: the database's own clock, in Unix milliseconds.
//! - `LOCK`: at the end of a SELECT, keeps its rows for the transaction. (SQLite has the whole
//!   database by then.)
//! - `OF_C`: after `LOCK`, only the rows of the table that is called `c`.
//! - `SKIP`: after `LOCK`, leaves out rows that others keep.
//! - `AMONG_1`: after a text, whether the texts in the parameter `$1` have it.

/// One statement as either database understands it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sql {
    pub(crate) sqlite: &'static str,
    pub(crate) postgres: &'static str,
}

macro_rules! sql {
    ($($part:tt)+) => {
        $crate::database::Sql {
            sqlite: concat!($($crate::database::sqlite_part!($part)),+),
            postgres: concat!($($crate::database::postgres_part!($part)),+),
        }
    };
}

macro_rules! sqlite_part {
    (NOW) => {
        "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    };
    (LOCK) => {
        ""
    };
    (OF_C) => {
        ""
    };
    (SKIP) => {
        ""
    };
    (AMONG_1) => {
        " IN (SELECT value FROM json_each($1)) "
    };
    ($text:literal) => {
        $text
    };
}

macro_rules! postgres_part {
    (NOW) => {
        "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"
    };
    (LOCK) => {
        " FOR NO KEY UPDATE"
    };
    (OF_C) => {
        " OF c"
    };
    (SKIP) => {
        " SKIP LOCKED"
    };
    (AMONG_1) => {
        " = ANY ($1::TEXT[]) "
    };
    ($text:literal) => {
        $text
    };
}

pub(crate) use {postgres_part, sql, sqlite_part};
