//! Parameters of statements, and rows of results.

use std::borrow::Cow;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Decode, Postgres, Row as _, Sqlite, Type};

/// A parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Int(Option<i64>),
    Bool(bool),
    Text(Option<&'a str>),
    Bytes(&'a [u8]),
    /// An array in PostgreSQL, a JSON array in SQLite.
    Texts(&'a [&'a str]),
    /// Only for PostgreSQL.
    Ints(&'a [i64]),
    /// Only for PostgreSQL.
    Blobs(&'a [&'a [u8]]),
}

impl Value<'_> {
    /// About how many bytes it has.
    pub(super) fn size(&self) -> u64 {
        let bytes = match self {
            Self::Int(_) | Self::Bool(_) => 8,
            Self::Text(text) => text.map_or(0, str::len),
            Self::Bytes(bytes) => bytes.len(),
            Self::Texts(texts) => texts.iter().map(|text| text.len()).sum(),
            Self::Ints(ints) => ints.len().saturating_mul(8),
            Self::Blobs(blobs) => blobs.iter().map(|blob| blob.len()).sum(),
        };
        bytes as u64
    }
}

macro_rules! values_from {
    ($($type:ty: $variant:ident($value:ident => $inner:expr),)+) => {
        $(
            impl<'a> From<$type> for Value<'a> {
                fn from($value: $type) -> Self {
                    Self::$variant($inner)
                }
            }
        )+
    };
}

values_from! {
    i64: Int(value => Some(value)),
    &'a i64: Int(value => Some(*value)),
    Option<i64>: Int(value => value),
    &'a Option<i64>: Int(value => *value),
    bool: Bool(value => value),
    &'a bool: Bool(value => *value),
    &'a str: Text(value => Some(value)),
    &'a String: Text(value => Some(value)),
    Option<&'a str>: Text(value => value),
    &'a Option<String>: Text(value => value.as_deref()),
    &'a [u8]: Bytes(value => value),
    &'a [u8; 32]: Bytes(value => value),
    &'a [&'a str]: Texts(value => value),
}

/// The parameters of a statement, whatever their types.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::database::Value::from($value)),*]
    };
}
pub(crate) use values;

/// PostgreSQL has no NUL in its texts. Texts from the network may have some; they are stored with
/// U+FFFD instead, by both databases alike.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

fn storables(texts: &[&str]) -> Vec<String> {
    texts
        .iter()
        .map(|text| storable(text).into_owned())
        .collect()
}

pub(super) fn for_sqlite(
    sql: &'static str,
    values: &[Value<'_>],
) -> Query<'static, Sqlite, SqliteArguments> {
    values
        .iter()
        .fold(sqlx::query(sql), |query, value| match *value {
            Value::Int(int) => query.bind(int),
            Value::Bool(bool) => query.bind(bool),
            Value::Text(text) => query.bind(text.map(storable)),
            Value::Bytes(bytes) => query.bind(bytes),
            Value::Texts(texts) => {
                query.bind(serde_json::Value::from(storables(texts)).to_string())
            }
            // No statement that SQLite gets has them.
            Value::Ints(_) | Value::Blobs(_) => query.bind(None::<i64>),
        })
}

pub(super) fn for_postgres(
    sql: &'static str,
    values: &[Value<'_>],
) -> Query<'static, Postgres, PgArguments> {
    values
        .iter()
        .fold(sqlx::query(sql), |query, value| match *value {
            Value::Int(int) => query.bind(int),
            Value::Bool(bool) => query.bind(bool),
            Value::Text(text) => query.bind(text.map(storable)),
            Value::Bytes(bytes) => query.bind(bytes),
            Value::Texts(texts) => query.bind(storables(texts)),
            Value::Ints(ints) => query.bind(ints),
            Value::Blobs(blobs) => query.bind(blobs),
        })
}

/// A row of a result.
#[derive(Debug)]
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// Type that a column may be read as.
pub(crate) trait Column:
    for<'r> Decode<'r, Sqlite> + Type<Sqlite> + for<'r> Decode<'r, Postgres> + Type<Postgres>
{
}

impl<T> Column for T where
    T: for<'r> Decode<'r, Sqlite> + Type<Sqlite> + for<'r> Decode<'r, Postgres> + Type<Postgres>
{
}

impl Row {
    /// The value of a column, counted from 0.
    pub(super) fn get<T: Column>(&self, column: usize) -> Result<T, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }
}
