//! Relays, as the source sees them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::RelayRow;
use utoipa::ToSchema;

use super::extract::Query;
use super::list::ListQuery;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// A relay, as the source sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Relay {
    /// Address announced to receivers.
    pub address: String,
    /// Address that the source probes.
    pub asked: String,
    /// Whether it answers and is announced to receivers.
    pub healthy: bool,
    /// Since when; Unix milliseconds; null before the first answer is known.
    pub since_ms: Option<i64>,
    /// Time of its last answer; null without one.
    pub answer_ms: Option<f64>,
    /// Reason for not announcing it; empty if it is announced.
    pub detail: String,
    /// Time of the data; Unix milliseconds.
    pub at_ms: i64,
}

impl Relay {
    pub(crate) fn of(row: &RelayRow) -> Self {
        let tenths = |us: u64| u32::try_from((us + 50) / 100).unwrap_or(u32::MAX);
        Self {
            address: row.address.clone(),
            asked: row.asked.clone(),
            healthy: row.healthy,
            since_ms: row.since_ms,
            answer_ms: row.answer_us.map(|us| f64::from(tenths(us)) / 10.0),
            detail: row.detail.clone(),
            at_ms: row.at_ms,
        }
    }
}

/// All relays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Relays {
    /// By address.
    pub items: Vec<Relay>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Relays
#[utoipa::path(get, path = "/api/v1/relays", tag = "relays", operation_id = "relays",
    params(ListQuery), responses((status = 200, body = Relays)))]
pub async fn relays(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<Relays>, Problem> {
    caller.may(Scope::Read)?;
    let all = site.board().relays.values().map(Relay::of).collect();
    let (items, next_cursor) = query.part(all, |relay: &Relay| relay.address.clone())?;
    Ok(Json(Relays { items, next_cursor }))
}
