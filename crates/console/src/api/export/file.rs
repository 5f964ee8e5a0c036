//! Export of a list to a file: part by part, as CSV or JSON, with bounds.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use service::places::Connection;
use tracing::warn;
use utoipa::ToSchema;

use crate::api::problem::Problem;

/// Rows in one file.
const MOST: usize = 1_000_000;

/// Format of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Comma-separated values (RFC 4180).
    #[default]
    Csv,
    /// An array of what the API has.
    Json,
}

/// Something that is a line of a file.
pub trait Row: Serialize + Send {
    /// Column names.
    const COLUMNS: &[&str];

    /// Its values, as many as there are columns.
    fn values(&self) -> Vec<String>;
}

/// A part of a list.
pub struct Part<R> {
    /// Rows of the part.
    pub rows: Vec<R>,
    /// Whether nothing follows.
    pub is_last: bool,
}

/// A list that is read part by part.
pub trait Parts: Send + 'static {
    /// Row type.
    type Row: Row;

    /// The next part.
    fn next(&mut self) -> impl Future<Output = Result<Part<Self::Row>, Problem>> + Send;
}

/// A file being sent.
struct ExportStream<P: Parts> {
    parts: P,
    /// Rows that were read already.
    part: Option<Part<P::Row>>,
    sent: usize,
    has_begun: bool,
    is_over: bool,
    format: Format,
    name: &'static str,
}

/// A list as a file.
///
/// # Errors
/// Too much is being sent at present, or the first part cannot be read.
pub async fn send<P: Parts>(
    connection: Option<Extension<Arc<Connection>>>,
    name: &'static str,
    format: Format,
    mut parts: P,
) -> Result<Response, Problem> {
    admit(connection)?;
    let first = parts.next().await?;
    let sending = ExportStream {
        parts,
        part: Some(first),
        sent: 0,
        has_begun: false,
        is_over: false,
        format,
        name,
    };
    let pieces = unfold(sending, |mut sending| async move {
        let piece: Result<Bytes, Infallible> = Ok(Bytes::from(sending.piece().await?));
        Some((piece, sending))
    });
    Ok(file(name, format, pieces))
}

impl<P: Parts> ExportStream<P> {
    async fn piece(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        let read = match self.part.take() {
            Some(part) => Ok(part),
            None => self.parts.next().await,
        };
        let mut part = match read {
            Ok(part) => part,
            Err(problem) => {
                warn!(list = self.name, %problem, "export truncated");
                self.is_over = true;
                // A truncated export is recognisable: JSON lacks its end, and CSV has a note.
                return match self.format {
                    Format::Json => None,
                    Format::Csv => Some("# cut short: the database does not answer\r\n".into()),
                };
            }
        };
        part.rows.truncate(MOST - self.sent);
        self.sent += part.rows.len();
        self.is_over = part.is_last || self.sent >= MOST;
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        Some(match self.format {
            Format::Json => json_piece(&part.rows, is_first, self.is_over),
            Format::Csv => csv_piece(&part.rows, is_first),
        })
    }
}

/// A file is an answer that takes long: it needs a place.
fn admit(connection: Option<Extension<Arc<Connection>>>) -> Result<(), Problem> {
    /// Upper bound for a list of 100,000.
    const BYTES: u64 = 256 << 20;
    if let Some(Extension(connection)) = connection {
        let crowded = |_| Problem::too_many("too much is being sent; try again in a moment", 5);
        connection.admit().map_err(crowded)?;
        connection.has_to_end_within(Some(BYTES));
    }
    Ok(())
}

fn file(
    name: &str,
    format: Format,
    pieces: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let (kind, disposition) = match format {
        Format::Csv => (
            "text/csv; charset=utf-8",
            format!("attachment; filename=\"{name}.csv\""),
        ),
        Format::Json => (
            "application/json",
            format!("attachment; filename=\"{name}.json\""),
        ),
    };
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        headers.insert(CONTENT_DISPOSITION, disposition);
    }
    response
}

fn csv_piece<R: Row>(rows: &[R], is_first: bool) -> String {
    let mut text = match is_first {
        true => format!("{}\r\n", R::COLUMNS.join(",")),
        false => String::new(),
    };
    for row in rows {
        line(&mut text, &row.values());
    }
    text
}

fn json_piece<T: Serialize>(rows: &[T], is_first: bool, is_last: bool) -> String {
    let mut text = String::new();
    if is_first {
        text.push('[');
    }
    for (at, row) in rows.iter().enumerate() {
        if !(is_first && at == 0) {
            text.push(',');
        }
        text.push('\n');
        // Texts, numbers and lists of them can always be written.
        text.push_str(&serde_json::to_string(row).unwrap_or_default());
    }
    if is_last {
        text.push_str("\n]\n");
    }
    text
}

/// A time as spreadsheets and people read it.
pub fn time(ms: Option<i64>) -> String {
    let time = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map(|time| format!("{time:.3}")).unwrap_or_default()
}

/// Adds a line of CSV.
fn line<T: AsRef<str>>(text: &mut String, values: &[T]) {
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        let value = value.as_ref();
        // Spreadsheets take these for the beginning of a formula, also behind white space.
        let begins = value
            .trim_start_matches([' ', '\u{a0}', '\u{feff}'])
            .chars()
            .next();
        let is_formula = matches!(
            begins,
            Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '|' | '%')
        );
        let guard = if is_formula { "'" } else { "" };
        if is_formula || value.contains(['"', ',', '\r', '\n', ';', '\t']) {
            // Writing to a string does not fail.
            let _ = write!(text, "\"{guard}{}\"", value.replace('"', "\"\""));
        } else {
            text.push_str(value);
        }
    }
    text.push_str("\r\n");
}

/// A list in one value: an array as JSON has it, for its texts may have anything in them; empty
/// without any.
pub fn list(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        // Texts can always be written.
        texts => serde_json::to_string(texts).unwrap_or_default(),
    }
}

/// A value that may not be known.
pub fn known<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn csv(values: &[&str]) -> String {
        let mut text = String::new();
        line(&mut text, values);
        text
    }

    #[test]
    fn formulas_are_texts() {
        assert_eq!(csv(&["a", "b c"]), "a,b c\r\n");
        assert_eq!(csv(&["=1+1"]), "\"'=1+1\"\r\n");
        assert_eq!(csv(&["  @x"]), "\"'  @x\"\r\n");
        assert_eq!(csv(&["+x", "-x", "\tx"]), "\"'+x\",\"'-x\",\"'\tx\"\r\n");
        assert_eq!(csv(&["a\"b,c\nd"]), "\"a\"\"b,c\nd\"\r\n");
        assert_eq!(csv(&["", "\u{202e}"]), ",\u{202e}\r\n");
    }

    /// Quoted CSV values round-trip, whatever they contain.
    #[test]
    fn lists_come_back_whole() {
        let tags = ["rack 3", "a,b;c", "\"\u{1f98a}\"\n", "plain"].map(str::to_owned);
        let text = csv(&["x", &list(&tags)]);
        let value = text.strip_prefix("x,\"").unwrap();
        let value = value.strip_suffix("\"\r\n").unwrap().replace("\"\"", "\"");
        let back: Vec<String> = serde_json::from_str(&value).unwrap();
        assert_eq!(back, tags);
        assert_eq!(list(&[]), "");
    }

    struct Number(u8);

    impl Serialize for Number {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_u8(self.0)
        }
    }

    impl Row for Number {
        const COLUMNS: &[&str] = &["number"];

        fn values(&self) -> Vec<String> {
            vec![self.0.to_string()]
        }
    }

    /// So many parts of two, and then a failure.
    struct Failing(u8);

    impl Parts for Failing {
        type Row = Number;

        async fn next(&mut self) -> Result<Part<Number>, Problem> {
            self.0 = self.0.checked_sub(1).ok_or_else(Problem::internal)?;
            Ok(Part {
                rows: vec![Number(1), Number(2)],
                is_last: false,
            })
        }
    }

    async fn text_of(parts: u8, format: Format) -> String {
        let response = send(None, "numbers", format, Failing(parts)).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
        String::from_utf8(body.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn half_a_list_is_seen_to_be_half() {
        let csv = text_of(2, Format::Csv).await;
        assert!(
            csv.starts_with("number\r\n1\r\n2\r\n1\r\n2\r\n# cut short"),
            "{csv}"
        );
        assert_eq!(csv.matches("number").count(), 1);
        let json = text_of(2, Format::Json).await;
        assert_eq!(json, "[\n1,\n2,\n1,\n2", "no end");
        let none = send(None, "numbers", Format::Csv, Failing(0)).await;
        assert!(none.is_err(), "an answer of its own");
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(time(Some(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(Some(i64::MAX)), "");
        assert_eq!(time(None), "");
    }

    #[test]
    fn json_is_whole_whatever_its_pieces() {
        assert_eq!(json_piece::<u8>(&[], true, true), "[\n]\n");
        let text = json_piece(&[1, 2], true, false) + &json_piece(&[3], false, true);
        assert_eq!(text, "[\n1,\n2,\n3\n]\n");
    }
}
