//! The audit log: who did what.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{AuditFilter, AuditRow};
use utoipa::{IntoParams, ToSchema};

use super::extract::Query;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// Its number, which grows.
    pub id: i64,
    /// When; Unix milliseconds.
    pub at_ms: i64,
    /// Who.
    pub actor: String,
    /// By what way: `session`, `token` and its number, `password`, `setup link`, `command line`.
    pub via: String,
    /// What, such as `receiver.disconnect`.
    pub action: String,
    /// To what; empty if to nothing in particular.
    pub target: String,
    /// More about it: an object.
    #[schema(value_type = Object)]
    pub detail: Value,
    /// How it went: `ok`, or why it did not.
    pub outcome: String,
    /// Where they connected from.
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
    /// To ask for what comes next; null at the end.
    pub next_cursor: Option<String>,
}

/// Which lines.
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
    /// What `next_cursor` said: the same as `before`.
    pub cursor: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<usize>,
}

/// The audit log
///
/// Every action, and every attempt to sign in, of the last 400 days.
#[utoipa::path(get, path = "/api/v1/audit", tag = "people", operation_id = "audit",
    params(AuditQuery), responses((status = 200, body = AuditLines)))]
pub async fn audit(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditLines>, Problem> {
    caller.may(Scope::Admin)?;
    let limit = super::limit(query.limit, 100, 1_000)?;
    let filter = AuditFilter {
        actor: query.actor,
        action: query.action,
        before: super::number_cursor(query.cursor.as_deref())?.or(query.before),
        limit,
    };
    let rows = site.accounts.audit(&filter).await?;
    let next_cursor = match rows.last() {
        Some(last) if rows.len() >= limit => Some(last.id.to_string()),
        _ => None,
    };
    Ok(Json(AuditLines {
        items: rows.into_iter().map(AuditLine::from).collect(),
        next_cursor,
    }))
}
