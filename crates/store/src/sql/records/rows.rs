//! Many rows in one statement: a JSON array of objects, which both databases take apart.

use serde_json::Value as Json;

use crate::StoreError;
use crate::database::{Session, Sql, storable, values};
use crate::sql::cut;

/// Rows of one statement: it is over long before the server's limit of time.
const ROWS: usize = 2000;

/// Puts the objects of the JSON array `$1` into a table, then what follows.
macro_rules! insert_rows {
    (
        $table:literal ($first:ident $first_type:ident $(, $column:ident $type:ident)* $(,)?)
        $then:expr
    ) => {
        $crate::database::Sql {
            sqlite: concat!(
                "INSERT INTO ", $table, " (", stringify!($first), $(", ", stringify!($column),)*
                ") SELECT value ->> '", stringify!($first), "'",
                $(", value ->> '", stringify!($column), "'",)*
                " FROM json_each($1) WHERE TRUE ", $then
            ),
            postgres: concat!(
                "INSERT INTO ", $table, " (", stringify!($first), $(", ", stringify!($column),)*
                ") SELECT ", stringify!($first), $(", ", stringify!($column),)*
                " FROM jsonb_to_recordset(CAST($1 AS JSONB)) AS r (",
                stringify!($first), " ", stringify!($first_type),
                $(", ", stringify!($column), " ", stringify!($type),)*
                ") ", $then
            ),
        }
    };
}
pub(super) use insert_rows;

/// The same; a row with the key of one that is there replaces it.
macro_rules! replace_rows {
    ($table:literal ($key:ident $key_type:ident $(, $more:ident $more_type:ident)*)
        ($first:ident $first_type:ident $(, $column:ident $type:ident)* $(,)?)) => {
        $crate::sql::records::rows::insert_rows!(
            $table ($key $key_type $(, $more $more_type)*, $first $first_type $(, $column $type)*)
            concat!(
                "ON CONFLICT (", stringify!($key), $(", ", stringify!($more),)* ") DO UPDATE SET ",
                stringify!($first), " = excluded.", stringify!($first),
                $(", ", stringify!($column), " = excluded.", stringify!($column),)*
            )
        )
    };
}
pub(super) use replace_rows;

/// Runs such a statement, in parts if there are many rows.
pub(super) async fn write_rows(
    session: &mut Session,
    sql: Sql,
    rows: &[Json],
) -> Result<(), StoreError> {
    for part in rows.chunks(ROWS) {
        let part = Json::from(part).to_string();
        session.execute(sql, values![&part]).await?;
    }
    Ok(())
}

/// A text as it is kept: at most so many bytes, and without NULs, which would come through as
/// escapes.
pub(in crate::sql) fn kept(text: &str, bytes: usize) -> String {
    // Whatever takes the place of a NUL is longer.
    cut(&storable(cut(text, bytes)), bytes).to_owned()
}

/// A list of texts as it is kept, without what is empty or there already.
pub(in crate::sql) fn kept_list(texts: &[String], most: usize, bytes: usize) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    for text in texts {
        let text = kept(text.trim(), bytes);
        if list.len() < most && !text.is_empty() && !list.contains(&text) {
            list.push(text);
        }
    }
    list
}

/// A JSON object as it is kept.
pub(in crate::sql) fn kept_object(json: &str, bytes: usize) -> &str {
    let is_object = || matches!(serde_json::from_str(json), Ok(Json::Object(_)));
    if json.len() <= bytes && is_object() {
        json
    } else {
        "{}"
    }
}
