//! Lists as files.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use service::places::Connection;
use store::MoveFilter;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::Query;
use super::moves::{self, Move, MovesQuery};
use super::problem::Problem;
use super::receivers::ReceiversQuery;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::fleet::Receiver;
use crate::site::Site;

/// Receivers in one piece of an answer.
const PIECE: usize = 500;

/// Moves in one file.
const MOST_MOVES: usize = 1_000_000;

/// The form of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Comma-separated values (RFC 4180).
    #[default]
    Csv,
    /// An array of what the API has.
    Json,
}

/// The list of receivers as a file
///
/// Takes the filters and the order of the list, without its parts. In CSV, a text that a spreadsheet
/// would take for a formula has a `'` in front.
#[utoipa::path(get, path = "/api/v1/receivers/export", tag = "receivers",
    operation_id = "export_receivers", params(ExportQuery),
    responses((status = 200, content(
        (String = "text/csv"), (Vec<Receiver> = "application/json")))))]
pub async fn export_receivers(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: Option<Extension<Arc<Connection>>>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read)?;
    let format = query.format;
    let selection = ReceiversQuery::from(query).selection()?;
    admit(connection)?;
    let ids = site.fleet().all(&selection);
    let pieces = unfold((site, ids, 0usize), move |(site, ids, at)| async move {
        let (text, next) = receivers_piece(&site, &ids, at, format)?;
        let piece: Result<Bytes, Infallible> = Ok(Bytes::from(text));
        Some((piece, (site, ids, next)))
    });
    Ok(file("receivers", format, pieces))
}

/// Which receivers, in which order and form.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ExportQuery {
    /// With this text in the name, label, id, address, software or a tag.
    #[param(max_length = 200)]
    pub q: Option<String>,
    /// On this rung.
    #[param(inline)]
    pub rung: Option<crate::fleet::Rung>,
    /// With this channel.
    pub channel: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Connected ones, or those that are not.
    pub connected: Option<bool>,
    /// On their rung for this cause.
    pub cause: Option<String>,
    /// With something left to get, or with nothing.
    pub behind: Option<bool>,
    /// What they are sorted by.
    #[param(inline)]
    pub sort: Option<crate::fleet::Sort>,
    /// In which direction.
    #[param(inline)]
    pub order: Option<crate::fleet::Order>,
    /// The form of the file.
    #[param(inline)]
    pub format: Format,
}

impl From<ExportQuery> for ReceiversQuery {
    fn from(query: ExportQuery) -> Self {
        Self {
            q: query.q,
            rung: query.rung,
            channel: query.channel,
            tag: query.tag,
            connected: query.connected,
            cause: query.cause,
            behind: query.behind,
            sort: query.sort,
            order: query.order,
            ..Self::default()
        }
    }
}

/// A file is an answer that takes long: it needs a place.
fn admit(connection: Option<Extension<Arc<Connection>>>) -> Result<(), Problem> {
    /// What a list of 100,000 has, at most.
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

const RECEIVER_COLUMNS: &str = "id,name,label,tags,software,address,connected,revoked,held,\
                                enrolled,seen,rtt_ms,rung,cause,since,behind_updates,channels\r\n";

/// The next piece, and where the one after it begins; `None` at the end.
fn receivers_piece(
    site: &Site,
    ids: &[Uuid],
    at: usize,
    format: Format,
) -> Option<(String, usize)> {
    let end = (at + PIECE).min(ids.len());
    let part = ids.get(at..end)?;
    if at > 0 && part.is_empty() {
        return None;
    }
    let fleet = site.fleet();
    let rows: Vec<Receiver> = part.iter().filter_map(|id| fleet.receiver(*id)).collect();
    drop(fleet);
    let is_first = at == 0;
    // The last piece is one beyond the end, so that an empty list has one, too.
    let is_last = end == ids.len();
    let next = match is_last {
        true => ids.len() + 1,
        false => end,
    };
    let text = match format {
        Format::Json => json_piece(&rows, is_first, is_last),
        Format::Csv => {
            let mut text = match is_first {
                true => RECEIVER_COLUMNS.to_owned(),
                false => String::new(),
            };
            for row in &rows {
                receiver_line(&mut text, row);
            }
            text
        }
    };
    Some((text, next))
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

fn receiver_line(text: &mut String, row: &Receiver) {
    let channels: Vec<&str> = row.channels.iter().map(|c| c.channel.as_str()).collect();
    let optional = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
    line(
        text,
        &[
            &row.id.to_string(),
            &row.name,
            row.label.as_deref().unwrap_or_default(),
            &row.tags.join(" "),
            &row.software,
            &row.address,
            &row.connected.to_string(),
            &row.revoked.to_string(),
            &row.held.to_string(),
            &time(Some(row.enrolled_ms)),
            &time(Some(row.seen_ms)),
            &row.rtt_ms.map(|ms| ms.to_string()).unwrap_or_default(),
            row.rung.word(),
            row.cause.as_deref().unwrap_or_default(),
            &time(row.since_ms),
            &optional(row.behind_updates),
            &channels.join(" "),
        ],
    );
}

/// The list of moves as a file
///
/// The newest first, at most a million. In CSV, a text that a spreadsheet would take for a formula has
/// a `'` in front.
#[utoipa::path(get, path = "/api/v1/moves/export", tag = "receivers",
    operation_id = "export_moves", params(MovesExportQuery),
    responses((status = 200, content(
        (String = "text/csv"), (Vec<Move> = "application/json")))))]
pub async fn export_moves(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: Option<Extension<Arc<Connection>>>,
    Query(query): Query<MovesExportQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read)?;
    let format = query.format;
    let filter = MovesQuery::from(query).filter(moves::MOST)?;
    let filter = MoveFilter {
        limit: moves::MOST,
        ..filter
    };
    admit(connection)?;
    let first = moves::find(&site, &filter).await?;
    let begin = Exporting {
        site,
        filter,
        part: Some(first),
        sent: 0,
        format,
    };
    let pieces = unfold(begin, |mut exporting| async move {
        let piece: Result<Bytes, Infallible> = Ok(Bytes::from(exporting.piece().await?));
        Some((piece, exporting))
    });
    Ok(file("moves", format, pieces))
}

/// Which moves, in which form.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MovesExportQuery {
    /// Of this receiver.
    pub receiver: Option<Uuid>,
    /// In this channel.
    pub channel: Option<String>,
    /// For this cause.
    pub cause: Option<String>,
    /// To this rung.
    #[param(inline)]
    pub rung: Option<crate::fleet::Rung>,
    /// At this time or later; Unix milliseconds.
    pub from_ms: Option<i64>,
    /// Before this time; Unix milliseconds.
    pub to_ms: Option<i64>,
    /// The form of the file.
    #[param(inline)]
    pub format: Format,
}

impl From<MovesExportQuery> for MovesQuery {
    fn from(query: MovesExportQuery) -> Self {
        Self {
            receiver: query.receiver,
            channel: query.channel,
            cause: query.cause,
            rung: query.rung,
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            ..Self::default()
        }
    }
}

struct Exporting {
    site: Arc<Site>,
    filter: MoveFilter,
    part: Option<moves::Moves>,
    sent: usize,
    format: Format,
}

impl Exporting {
    async fn piece(&mut self) -> Option<String> {
        let part = self.part.take()?;
        let is_first = self.sent == 0;
        self.sent += part.items.len();
        let next = part.next_cursor.and_then(|next| next.parse().ok());
        let next = next.filter(|_| self.sent < MOST_MOVES);
        if let Some(before) = next {
            self.filter.before = Some(before);
            // Who gets half a list notices: JSON has no end then, and CSV says so.
            match moves::find(&self.site, &self.filter).await {
                Ok(part) => self.part = Some(part),
                Err(problem) => {
                    tracing::warn!("an export of moves is cut short: {problem}");
                    return match self.format {
                        Format::Json => None,
                        Format::Csv => Some("# cut short: the database does not answer\r\n".into()),
                    };
                }
            }
        }
        Some(match self.format {
            Format::Json => json_piece(&part.items, is_first, self.part.is_none()),
            Format::Csv => {
                let mut text = match is_first {
                    true => "id,at,receiver,name,channel,from,to,cause\r\n".to_owned(),
                    false => String::new(),
                };
                for row in &part.items {
                    move_line(&mut text, row);
                }
                text
            }
        })
    }
}

fn move_line(text: &mut String, row: &Move) {
    line(
        text,
        &[
            &row.id.to_string(),
            &time(Some(row.at_ms)),
            &row.receiver.to_string(),
            &row.name,
            &row.channel,
            &row.from,
            &row.to,
            &row.cause,
        ],
    );
}

/// A time as spreadsheets and people read it.
fn time(ms: Option<i64>) -> String {
    let time = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map(|time| format!("{time:.3}")).unwrap_or_default()
}

/// Adds a line of CSV.
fn line(text: &mut String, values: &[&str]) {
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
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

#[cfg(test)]
mod tests {
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
