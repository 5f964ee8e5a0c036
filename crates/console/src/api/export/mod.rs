//! Lists as files.

mod file;
mod rows;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use service::places::Connection;
use store::{AuditFilter, MoveFilter};
use utoipa::IntoParams;
use uuid::Uuid;

use super::audit::{self, AuditLine, AuditQuery};
use super::extract::Query;
use super::feeds::{self, Feed};
use super::moves::{self, Move, MovesQuery};
use super::problem::Problem;
use super::receivers::receivers_query;
use super::updates::{self, UpdateRow};
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::fleet::Receiver;
use crate::site::Site;
pub use file::Format;
use file::{Part, Parts, Row, send};

/// Receivers in one piece of an answer.
const PIECE: usize = 500;

/// The connection that an answer goes to.
type To = Option<Extension<Arc<Connection>>>;

/// The list of receivers as a file
///
/// Takes the filters and the order of the list, without its parts. In CSV, `tags` is a JSON array,
/// because a tag may have spaces and commas; `channels` have a space between them. A text that a
/// spreadsheet would take for a formula has a `'` in front.
#[utoipa::path(get, path = "/api/v1/receivers/export", tag = "receivers",
    operation_id = "export_receivers", params(ExportQuery),
    responses((status = 200, content(
        (String = "text/csv"), (Vec<Receiver> = "application/json")))))]
pub async fn export_receivers(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: To,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read)?;
    let ids = site.fleet().all(&query.selection()?);
    let parts = Receivers {
        site,
        ids,
        at: 0,
        channel: query.channel,
    };
    send(connection, "receivers", query.format, parts).await
}

receivers_query! {
    /// Selection, order and format of receivers.
    ExportQuery ..
    /// Format of the file.
    #[param(inline)]
    format: Format,
}

struct Receivers {
    site: Arc<Site>,
    ids: Vec<Uuid>,
    at: usize,
    /// Restricts rung filters to this channel.
    channel: Option<String>,
}

impl Parts for Receivers {
    type Row = Receiver;

    async fn next(&mut self) -> Result<Part<Receiver>, Problem> {
        let end = (self.at + PIECE).min(self.ids.len());
        let part = self.ids.get(self.at..end).unwrap_or_default();
        self.at = end;
        let fleet = self.site.fleet();
        let channel = self.channel.as_deref();
        let rows = part.iter().filter_map(|id| fleet.receiver_in(*id, channel));
        Ok(Part {
            rows: rows.collect(),
            is_last: end == self.ids.len(),
        })
    }
}

/// The list of moves as a file
///
/// The newest first, at most a million. In CSV, a text that a spreadsheet would take for a formula
/// has a `'` in front.
#[utoipa::path(get, path = "/api/v1/moves/export", tag = "receivers",
    operation_id = "export_moves", params(MovesExportQuery),
    responses((status = 200, content(
        (String = "text/csv"), (Vec<Move> = "application/json")))))]
pub async fn export_moves(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: To,
    Query(query): Query<MovesExportQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read)?;
    let format = query.format;
    let filter = MovesQuery::from(query).filter(moves::MOST)?;
    let filter = MoveFilter {
        limit: moves::MOST,
        ..filter
    };
    send(connection, "moves", format, AllMoves { site, filter }).await
}

/// Selection and format of moves.
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
    /// Format of the file.
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

struct AllMoves {
    site: Arc<Site>,
    filter: MoveFilter,
}

impl Parts for AllMoves {
    type Row = Move;

    async fn next(&mut self) -> Result<Part<Move>, Problem> {
        let part = moves::find(&self.site, &self.filter).await?;
        self.filter.before = super::number_cursor(part.next_cursor.as_deref())?;
        Ok(Part {
            rows: part.items,
            is_last: self.filter.before.is_none(),
        })
    }
}

/// The list of feeds as a file
///
/// By channel and address. In CSV, a text that a spreadsheet would take for a formula has a `'` in
/// front.
#[utoipa::path(get, path = "/api/v1/feeds/export", tag = "feeds", operation_id = "export_feeds",
    params(FeedsExportQuery), responses((status = 200, content(
        (String = "text/csv"), (Vec<Feed> = "application/json")))))]
pub async fn export_feeds(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: To,
    Query(query): Query<FeedsExportQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read)?;
    let feeds = feeds::list(&site, query.channel.as_deref());
    let parts = CompleteList(feeds);
    send(connection, "feeds", query.format, parts).await
}

/// Selection and format of feeds.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FeedsExportQuery {
    /// Of this channel.
    pub channel: Option<String>,
    /// Format of the file.
    #[param(inline)]
    pub format: Format,
}

/// A list that is in memory.
struct CompleteList<R>(Vec<R>);

impl<R: Row + 'static> Parts for CompleteList<R> {
    type Row = R;

    async fn next(&mut self) -> Result<Part<R>, Problem> {
        let rest = self.0.split_off(self.0.len().min(PIECE));
        let rows = std::mem::replace(&mut self.0, rest);
        Ok(Part {
            rows,
            is_last: self.0.is_empty(),
        })
    }
}

/// The updates of a channel as a file
///
/// The newest first, at most a million, with their delivery progress. In CSV, a text that a
/// spreadsheet would take for a formula has a `'` in front.
#[utoipa::path(get, path = "/api/v1/updates/export", tag = "updates",
    operation_id = "export_updates", params(UpdatesExportQuery),
    responses((status = 200, content(
        (String = "text/csv"), (Vec<UpdateRow> = "application/json")))))]
pub async fn export_updates(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: To,
    Query(query): Query<UpdatesExportQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read)?;
    let channel = updates::channel_of(&site, query.channel)?;
    let parts = AllUpdates {
        site,
        channel,
        before: None,
    };
    send(connection, "updates", query.format, parts).await
}

/// Selection and format of updates.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UpdatesExportQuery {
    /// Of this channel; needed where there are several.
    pub channel: Option<String>,
    /// Format of the file.
    #[param(inline)]
    pub format: Format,
}

struct AllUpdates {
    site: Arc<Site>,
    /// `None` while there is no channel.
    channel: Option<String>,
    before: Option<u64>,
}

impl Parts for AllUpdates {
    type Row = UpdateRow;

    async fn next(&mut self) -> Result<Part<UpdateRow>, Problem> {
        let rows = match &self.channel {
            Some(channel) => updates::part(&self.site, channel, self.before, updates::MOST).await?,
            None => Vec::new(),
        };
        self.before = rows.last().map(|row| row.seq);
        Ok(Part {
            is_last: rows.len() < updates::MOST,
            rows,
        })
    }
}

/// The audit log as a file
///
/// The newest first, at most a million lines. In CSV, `detail` is a JSON object, and a text that a
/// spreadsheet would take for a formula has a `'` in front.
#[utoipa::path(get, path = "/api/v1/audit/export", tag = "people", operation_id = "export_audit",
    params(AuditExportQuery), responses((status = 200, content(
        (String = "text/csv"), (Vec<AuditLine> = "application/json")))))]
pub async fn export_audit(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: To,
    Query(query): Query<AuditExportQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Admin)?;
    let format = query.format;
    let filter = AuditQuery::from(query).filter()?;
    let filter = AuditFilter {
        limit: audit::MOST,
        ..filter
    };
    send(connection, "audit", format, AllLines { site, filter }).await
}

/// Selection and format of lines.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditExportQuery {
    /// Of this actor.
    pub actor: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// Format of the file.
    #[param(inline)]
    pub format: Format,
}

impl From<AuditExportQuery> for AuditQuery {
    fn from(query: AuditExportQuery) -> Self {
        Self {
            actor: query.actor,
            action: query.action,
            ..Self::default()
        }
    }
}

struct AllLines {
    site: Arc<Site>,
    filter: AuditFilter,
}

impl Parts for AllLines {
    type Row = AuditLine;

    async fn next(&mut self) -> Result<Part<AuditLine>, Problem> {
        let part = audit::find(&self.site, &self.filter).await?;
        self.filter.before = super::number_cursor(part.next_cursor.as_deref())?;
        Ok(Part {
            rows: part.items,
            is_last: self.filter.before.is_none(),
        })
    }
}
