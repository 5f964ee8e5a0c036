//! Moves of receivers between rungs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::{MoveFilter, MoveRow};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::Query;
use super::list::next_cursor;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::fleet::Rung;
use crate::site::Site;

/// Maximum number of items in an answer.
pub const MOST: usize = 1_000;

/// A move of a receiver between rungs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// Number, which grows.
    pub id: i64,
    /// Time, by the source's clock; Unix milliseconds.
    pub at_ms: i64,
    /// Identifier of the receiver.
    pub receiver: Uuid,
    /// Name for people.
    pub name: String,
    /// In which channel.
    pub channel: String,
    /// From which rung.
    pub from: String,
    /// To which rung.
    pub to: String,
    /// Cause; empty if unknown.
    pub cause: String,
}

impl Move {
    pub(crate) fn of(row: &MoveRow, name: Option<String>) -> Self {
        Self {
            id: row.id,
            at_ms: row.at_ms,
            receiver: row.receiver,
            // Its current name, not the one at that time.
            name: name.unwrap_or_else(|| row.name.clone()),
            channel: row.channel.clone(),
            from: row.from.clone(),
            to: row.to.clone(),
            cause: row.cause.clone(),
        }
    }
}

/// Some moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moves {
    /// The newest first.
    pub items: Vec<Move>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Selection of moves.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MovesQuery {
    /// Of this receiver.
    pub receiver: Option<Uuid>,
    /// In this channel.
    pub channel: Option<String>,
    /// For this cause.
    pub cause: Option<String>,
    /// To this rung.
    #[param(inline)]
    pub rung: Option<Rung>,
    /// At this time or later; Unix milliseconds.
    pub from_ms: Option<i64>,
    /// Before this time; Unix milliseconds.
    pub to_ms: Option<i64>,
    /// The previous answer's `next_cursor`.
    pub cursor: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<usize>,
}

impl MovesQuery {
    pub(super) fn filter(&self, most: usize) -> Result<MoveFilter, Problem> {
        Ok(MoveFilter {
            receiver: self.receiver,
            channel: self.channel.clone(),
            cause: self.cause.clone(),
            rung: self.rung.map(|rung| rung.word().to_owned()),
            from_ms: self.from_ms,
            to_ms: self.to_ms,
            before: super::number_cursor(self.cursor.as_deref())?,
            limit: super::limit(self.limit, 100, most)?,
        })
    }
}

/// Moves between rungs
#[utoipa::path(get, path = "/api/v1/moves", tag = "receivers", operation_id = "moves",
    params(MovesQuery), responses((status = 200, body = Moves)))]
pub async fn moves(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<MovesQuery>,
) -> Result<Json<Moves>, Problem> {
    caller.may(Scope::Read)?;
    let filter = query.filter(MOST)?;
    Ok(Json(find(&site, &filter).await?))
}

/// One part of the moves.
pub(super) async fn find(site: &Site, filter: &MoveFilter) -> Result<Moves, Problem> {
    let rows = site.store.records().moves(filter).await?;
    let next_cursor = next_cursor(&rows, filter.limit, |row| row.id);
    let fleet = site.fleet();
    let items = rows
        .iter()
        .map(|row| Move::of(row, fleet.name_of(row.receiver).map(str::to_owned)))
        .collect();
    Ok(Moves { items, next_cursor })
}
