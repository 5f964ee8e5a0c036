//! Commands to the source, and their results.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{Command, NewCommand};
use utoipa::ToSchema;
use uuid::Uuid;

use super::extract::{Path, Query};
use super::list::{PartQuery, next_cursor};
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// A queued command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommandReceipt {
    /// Its number, as in `/api/v1/commands/{id}`.
    pub command_id: i64,
}

/// A command to the source, and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommandStatus {
    /// Its number.
    pub id: i64,
    /// The kind of the command.
    pub kind: String,
    /// The receiver concerned; null if none is.
    pub receiver: Option<Uuid>,
    /// The channel concerned; null if none is.
    pub channel: Option<String>,
    /// The feed concerned; null if none is.
    pub url: Option<String>,
    /// User who gave the command.
    pub asked_by: String,
    /// Time; Unix milliseconds.
    pub asked_ms: i64,
    /// Time at which a source took the command; Unix milliseconds; null before that.
    pub taken_ms: Option<i64>,
    /// Time of success or failure; Unix milliseconds; null before that.
    pub done_ms: Option<i64>,
    /// State: `queued`, `taken`, `done`, `failed` or `expired`.
    #[schema(pattern = "^(queued|taken|done|failed|expired)$")]
    pub state: String,
    /// Result, or reason of the failure; null before that.
    pub result: Option<String>,
}

impl From<Command> for CommandStatus {
    fn from(command: Command) -> Self {
        Self {
            id: command.id,
            kind: command.asked.kind,
            receiver: command.asked.receiver,
            channel: command.asked.channel,
            url: command.asked.url,
            asked_by: command.asked.asked_by,
            asked_ms: command.asked_ms,
            taken_ms: command.taken_ms,
            done_ms: command.done_ms,
            state: command.state.as_str().to_owned(),
            result: command.result,
        }
    }
}

/// Some commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Commands {
    /// The newest first.
    pub items: Vec<CommandStatus>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Queues a command for the source, and audits that. Its outcome is another line of the audit log,
/// with the same `command_id`.
pub(super) async fn ask(
    site: &Site,
    caller: &Caller,
    command: NewCommand,
) -> Result<(StatusCode, Json<CommandReceipt>), Problem> {
    let command = NewCommand {
        asked_by: caller.user.name.clone(),
        ..command
    };
    let done = site.store.commands().ask(&command).await;
    let done = done.map_err(Problem::from);
    let mut detail = json!({});
    if let (Some(channel), Some(_)) = (&command.channel, &command.url) {
        detail["channel"] = json!(channel);
    }
    if let Ok(id) = &done {
        detail["command_id"] = json!(id);
    }
    let (action, target) = (command.action(), command.target());
    caller.note(site, &action, target, detail, &done).await;
    done.map(|command_id| (StatusCode::ACCEPTED, Json(CommandReceipt { command_id })))
}

/// Commands given to the source
#[utoipa::path(get, path = "/api/v1/commands", tag = "source", operation_id = "commands",
    params(PartQuery), responses((status = 200, body = Commands)))]
pub async fn commands(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<PartQuery>,
) -> Result<Json<Commands>, Problem> {
    caller.may(Scope::Read)?;
    let (before, limit) = query.page()?;
    let rows = site.store.commands().list(before, limit).await?;
    Ok(Json(Commands {
        next_cursor: next_cursor(&rows, limit, |row| row.id),
        items: rows.into_iter().map(CommandStatus::from).collect(),
    }))
}

/// State of a command given to the source
#[utoipa::path(get, path = "/api/v1/commands/{id}", tag = "source", operation_id = "command",
    params(("id" = i64, Path, description = "Number of the command")),
    responses((status = 200, body = CommandStatus)))]
pub async fn command(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<CommandStatus>, Problem> {
    caller.may(Scope::Read)?;
    let found = site.store.commands().get(id).await?;
    found
        .map(|command| Json(command.into()))
        .ok_or_else(|| Problem::not_found(format!("there is no command {id}")))
}

/// Drains the source
///
/// New receivers are refused, and connected ones go to another source if there is one.
#[utoipa::path(post, path = "/api/v1/source/drain", tag = "source", operation_id = "drain_source",
    responses((status = 202, body = CommandReceipt)))]
pub async fn drain_source(
    State(site): State<Arc<Site>>,
    caller: Caller,
) -> Result<(StatusCode, Json<CommandReceipt>), Problem> {
    caller
        .may_do(&site, Scope::Source, "source.drain", "")
        .await?;
    let command = NewCommand {
        kind: "drain".to_owned(),
        ..NewCommand::default()
    };
    ask(&site, &caller, command).await
}
