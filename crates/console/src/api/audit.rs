//! The audit log.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{AuditFilter, AuditRow};
use utoipa::{IntoParams, ToSchema};

use super::extract::Query;
use super::list::next_cursor;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// Maximum number of items in an answer.
pub(super) const MOST: usize = 1_000;

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// Number, which grows.
    pub id: i64,
    /// Time; Unix milliseconds.
    pub at_ms: i64,
    /// The actor: a user's name; for a token, its owner's name; for an attempt to sign in or to set
    /// up, the given name.
    pub actor: String,
    /// Means of access: `session`, `token` and its number, `password`, `setup link`,
    /// `command line`; `source` for the outcome of a command.
    pub via: String,
    /// The action, such as `receiver.disconnect`.
    pub action: String,
    /// Target of the action; empty without one.
    pub target: String,
    /// More details: an object. Lines about the same command have the same `command_id` in it.
    #[schema(value_type = Object)]
    pub detail: Value,
    /// The outcome: `ok`, or the reason of a failure; `refused` for a wrong name or password, and
    /// `limited` for attempts beyond the rate limit.
    pub outcome: String,
    /// Remote address; empty on the console's own machine.
    pub address: String,
}

impl From<AuditRow> for AuditLine {
    fn from(row: AuditRow) -> Self {
        let detail = serde_json::from_str(&row.done.detail).ok();
        Self {
            id: row.id,
            at_ms: row.at_ms,
            actor: row.done.actor,
            via: row.done.via,
            action: row.done.action,
            target: row.done.target,
            detail: detail.filter(Value::is_object).unwrap_or_else(|| json!({})),
            outcome: row.done.outcome,
            address: row.done.address,
        }
    }
}

/// Some lines of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditLines {
    /// The newest first.
    pub items: Vec<AuditLine>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Selection of lines.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Of this actor.
    pub actor: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// With a smaller id.
    pub before: Option<i64>,
    /// The previous answer's `next_cursor`: the same as `before`.
    pub cursor: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<usize>,
}

impl AuditQuery {
    pub(super) fn filter(self) -> Result<AuditFilter, Problem> {
        Ok(AuditFilter {
            actor: self.actor,
            action: self.action,
            before: super::number_cursor(self.cursor.as_deref())?.or(self.before),
            limit: super::limit(self.limit, 100, MOST)?,
        })
    }
}

/// The audit log
///
/// Changes, refused attempts at them, and every attempt to sign in or to set up, of the last 400
/// days; newest first. Attempts beyond the rate limit are one line a minute and address.
#[utoipa::path(get, path = "/api/v1/audit", tag = "people", operation_id = "audit",
    params(AuditQuery), responses((status = 200, body = AuditLines)))]
pub async fn audit(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditLines>, Problem> {
    caller.may(Scope::Admin)?;
    let filter = query.filter()?;
    Ok(Json(find(&site, &filter).await?))
}

/// One part of the lines.
pub(super) async fn find(site: &Site, filter: &AuditFilter) -> Result<AuditLines, Problem> {
    let rows = site.store.audit_log().list(filter).await?;
    Ok(AuditLines {
        next_cursor: next_cursor(&rows, filter.limit, |row| row.id),
        items: rows.into_iter().map(AuditLine::from).collect(),
    })
}
