//! Receivers: their list, their details, and the actions on them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{MoveFilter, NewCommand, ReceiverEdit, SessionRow};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::commands::{CommandReceipt, ask};
use super::extract::{Json as Body, Path, Query};
use super::list::{PartQuery, next_cursor};
use super::moves::{self, Moves};
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::fleet::{Page, PageStart, Receiver};
use crate::site::Site;

/// Maximum number of items in an answer.
pub const MOST: usize = 500;

/// The longest text to search for, in characters.
const MAX_TEXT: usize = 200;

/// Bounds of an operator's label and tags of a receiver.
const MAX_LABEL: usize = 100;
const MAX_TAGS: usize = 32;
const MAX_TAG: usize = 64;

/// Declares the parameters of a selection of receivers, with others before and after them. (A
/// flattened struct would read no numbers from a query.)
macro_rules! receivers_query {
    (
        $(#[$doc:meta])* $name:ident
        $($(#[$first_doc:meta])* $first:ident: $first_type:ty,)? ..
        $($(#[$more_doc:meta])* $more:ident: $more_type:ty,)+
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, serde::Deserialize, utoipa::IntoParams)]
        #[serde(default, deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub struct $name {
            $($(#[$first_doc])* pub $first: $first_type,)?
            /// With this text in the name, label, id, address, software or a tag.
            #[param(max_length = 200)]
            pub q: Option<String>,
            /// On this rung.
            #[param(inline)]
            pub rung: Option<$crate::fleet::Rung>,
            /// With this channel; then `rung`, `cause`, `connected`, `behind` and `forged` are
            /// those of this channel.
            pub channel: Option<String>,
            /// With this tag.
            pub tag: Option<String>,
            /// Connected receivers, or those that are not.
            pub connected: Option<bool>,
            /// Receivers on their rung for this cause.
            pub cause: Option<String>,
            /// Receivers that lack updates, or those that lack none.
            pub behind: Option<bool>,
            /// Receivers that reported forged packets within a day, or those that did not.
            pub forged: Option<bool>,
            /// Removed receivers; without it, or with `false`, all others.
            pub revoked: Option<bool>,
            /// Sort key. Unknown values come last.
            #[param(inline)]
            pub sort: Option<$crate::fleet::Sort>,
            /// Sort direction.
            #[param(inline)]
            pub order: Option<$crate::fleet::Order>,
            $($(#[$more_doc])* pub $more: $more_type,)+
        }

        impl $name {
            pub(super) fn selection(&self) -> Result<$crate::fleet::Selection, Problem> {
                Ok($crate::fleet::Selection {
                    filter: $crate::fleet::Filter {
                        text: $crate::api::receivers::search_text(self.q.as_deref())?,
                        rung: self.rung,
                        channel: self.channel.clone(),
                        tag: self.tag.clone(),
                        connected: self.connected,
                        cause: self.cause.clone(),
                        behind: self.behind,
                        forged: self.forged,
                        revoked: self.revoked.unwrap_or_default(),
                        receiver: None,
                    },
                    sort: self.sort.unwrap_or_default(),
                    order: self.order.unwrap_or_default(),
                })
            }
        }
    };
}
pub(super) use receivers_query;

receivers_query! {
    /// Selection, order and page of receivers.
    ReceiversQuery ..
    /// The previous answer's `next_cursor`, with the same `sort` and `order`.
    cursor: Option<String>,
    /// Number of items to skip, instead of `cursor`.
    #[param(minimum = 0)]
    offset: Option<usize>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 500, default = 100)]
    limit: Option<usize>,
}

/// Returns a text to search for, as it is compared.
pub(super) fn search_text(given: Option<&str>) -> Result<Option<String>, Problem> {
    let text = given.map(str::trim).filter(|text| !text.is_empty());
    if text.is_some_and(|text| text.chars().count() > MAX_TEXT) {
        let what = format!("q has at most {MAX_TEXT} characters");
        return Err(Problem::malformed(what).of_field("q"));
    }
    Ok(text.map(str::to_lowercase))
}

/// Returns the start of a page, from a cursor or an offset.
pub(super) fn page_start(
    cursor: Option<String>,
    offset: Option<usize>,
) -> Result<PageStart, Problem> {
    match (cursor, offset) {
        (Some(_), Some(_)) => Err(Problem::malformed("give cursor or offset, not both")),
        (Some(cursor), None) => Ok(PageStart::After(cursor)),
        (None, Some(offset)) => Ok(PageStart::Offset(offset)),
        (None, None) => Ok(PageStart::Start),
    }
}

/// Returns the problem with a cursor of another list or order.
pub(super) fn bad_cursor() -> Problem {
    Problem::malformed("cursor is not one of this list in this order; begin without it")
        .of_field("cursor")
}

/// Receivers
///
/// Filtered, sorted and in parts. Those that were removed are a list of their own (`revoked=true`).
/// `total` counts all of the list, `filtered` those that fit.
#[utoipa::path(get, path = "/api/v1/receivers", tag = "receivers", operation_id = "receivers",
    params(ReceiversQuery), responses((status = 200, body = Page)))]
pub async fn receivers(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<ReceiversQuery>,
) -> Result<Json<Page>, Problem> {
    caller.may(Scope::Read)?;
    let selection = query.selection()?;
    let start = page_start(query.cursor, query.offset)?;
    let limit = super::limit(query.limit, 100, MOST)?;
    let page = site.page(&selection, &start, limit);
    page.map(Json).map_err(|_| bad_cursor())
}

fn unknown(id: Uuid) -> Problem {
    Problem::not_found(format!("there is no receiver {id}"))
}

/// One receiver
#[utoipa::path(get, path = "/api/v1/receivers/{id}", tag = "receivers", operation_id = "receiver",
    params(("id" = Uuid, Path, description = "Identifier of the receiver")),
    responses((status = 200, body = Receiver)))]
pub async fn receiver(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<Json<Receiver>, Problem> {
    caller.may(Scope::Read)?;
    let found = site.fleet().receiver(id);
    found.map(Json).ok_or_else(|| unknown(id))
}

/// Moves of one receiver
#[utoipa::path(get, path = "/api/v1/receivers/{id}/moves", tag = "receivers",
    operation_id = "receiver_moves",
    params(("id" = Uuid, Path, description = "Identifier of the receiver"), PartQuery),
    responses((status = 200, body = Moves)))]
pub async fn receiver_moves(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<Uuid>,
    Query(query): Query<PartQuery>,
) -> Result<Json<Moves>, Problem> {
    caller.may(Scope::Read)?;
    let (before, limit) = query.page()?;
    let filter = MoveFilter {
        receiver: Some(id),
        before,
        limit,
        ..MoveFilter::default()
    };
    if !site.fleet().has(id) {
        return Err(unknown(id));
    }
    Ok(Json(moves::find(&site, &filter).await?))
}

/// A connection of a receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Number, larger for later sessions. A text, because JavaScript's numbers are too small for
    /// it.
    pub id: String,
    /// Identifier of the receiver.
    pub receiver: Uuid,
    /// Its program and version.
    pub software: String,
    /// Remote address.
    pub address: String,
    /// Start time; Unix milliseconds.
    pub began_ms: i64,
    /// End time; Unix milliseconds; null while it lasts.
    pub ended_ms: Option<i64>,
    /// Cause of the end; null while it lasts.
    pub end_cause: Option<String>,
}

impl From<SessionRow> for Session {
    fn from(row: SessionRow) -> Self {
        Self {
            id: row.id.to_string(),
            receiver: row.receiver,
            software: row.software,
            address: row.address,
            began_ms: row.began_ms,
            ended_ms: row.ended_ms,
            end_cause: row.end_cause,
        }
    }
}

/// Some connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sessions {
    /// The newest first.
    pub items: Vec<Session>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Connections of one receiver
#[utoipa::path(get, path = "/api/v1/receivers/{id}/sessions", tag = "receivers",
    operation_id = "receiver_sessions",
    params(("id" = Uuid, Path, description = "Identifier of the receiver"), PartQuery),
    responses((status = 200, body = Sessions)))]
pub async fn receiver_sessions(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<Uuid>,
    Query(query): Query<PartQuery>,
) -> Result<Json<Sessions>, Problem> {
    caller.may(Scope::Read)?;
    let (before, limit) = query.page()?;
    if !site.fleet().has(id) {
        return Err(unknown(id));
    }
    let rows = site.store.records().sessions(id, before, limit).await?;
    Ok(Json(Sessions {
        next_cursor: next_cursor(&rows, limit, |row| row.id),
        items: rows.into_iter().map(Session::from).collect(),
    }))
}

/// Changes of a receiver; members left out stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiverPatch {
    /// Operators' label; empty for none.
    #[schema(max_length = 100)]
    pub label: Option<String>,
    /// Operators' tags.
    #[schema(max_items = 32)]
    pub tags: Option<Vec<String>>,
    /// Whether it is to stay on unicast.
    pub held: Option<bool>,
}

impl ReceiverPatch {
    fn edit(&self) -> Result<ReceiverEdit, Problem> {
        let label = self.label.as_deref().map(str::trim);
        if label.is_some_and(|label| label.chars().count() > MAX_LABEL) {
            let what = format!("a label has at most {MAX_LABEL} characters");
            return Err(Problem::invalid("label", what));
        }
        let mut tags = None;
        if let Some(given) = &self.tags {
            let given: Vec<String> = given.iter().map(|tag| tag.trim().to_owned()).collect();
            let bad = |tag: &String| tag.is_empty() || tag.len() > MAX_TAG;
            if given.len() > MAX_TAGS || given.iter().any(bad) {
                let what =
                    format!("there are at most {MAX_TAGS} tags, of 1 to {MAX_TAG} bytes each");
                return Err(Problem::invalid("tags", what));
            }
            tags = Some(given);
        }
        Ok(ReceiverEdit {
            label: label.map(str::to_owned),
            tags,
            held: self.held,
        })
    }
}

/// Names, tags or holds a receiver
///
/// A receiver that is held stays on unicast until it is released.
#[utoipa::path(patch, path = "/api/v1/receivers/{id}", tag = "receivers",
    operation_id = "edit_receiver", request_body = ReceiverPatch,
    params(("id" = Uuid, Path, description = "Identifier of the receiver")),
    responses((status = 200, body = Receiver)))]
pub async fn edit_receiver(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<Uuid>,
    Body(patch): Body<ReceiverPatch>,
) -> Result<Json<Receiver>, Problem> {
    caller
        .may_do(&site, Scope::Receivers, "receiver.edit", &id.to_string())
        .await?;
    let edit = patch.edit()?;
    let done = match site.store.receivers().edit(id, &edit).await {
        Ok(Some(row)) => {
            let mut fleet = site.fleet_mut();
            let facts = crate::live::facts(&mut fleet, row);
            fleet.put_receiver(facts);
            fleet.receiver(id).ok_or_else(|| unknown(id))
        }
        Ok(None) => Err(unknown(id)),
        Err(error) => Err(error.into()),
    };
    let detail = serde_json::to_value(&patch).unwrap_or_default();
    caller.note(&site, "receiver.edit", id, detail, &done).await;
    let shown = done?;
    site.catch_up().await;
    Ok(Json(shown))
}

/// Options of a removal.
#[derive(Debug, Clone, Copy, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Whether to forget it as well, so that it may enrol again with a token.
    pub forget: bool,
}

/// Removes a receiver
///
/// The source disconnects it, refuses it from then on, and gives new keys to the flows that it
/// could read.
#[utoipa::path(delete, path = "/api/v1/receivers/{id}", tag = "receivers",
    operation_id = "remove_receiver",
    params(("id" = Uuid, Path, description = "Identifier of the receiver"), RemoveQuery),
    responses((status = 204, description = "Removed")))]
pub async fn remove_receiver(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<Uuid>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    caller
        .may_do(&site, Scope::Receivers, "receiver.remove", &id.to_string())
        .await?;
    let done = remove(&site, id, query.forget).await;
    let detail = json!({"forget": query.forget});
    caller
        .note(&site, "receiver.remove", id, detail, &done)
        .await;
    done?;
    site.catch_up().await;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(site: &Site, id: Uuid, forget: bool) -> Result<(), Problem> {
    // Revoked first, which the source notices: a receiver that is only forgotten could come back.
    if !site.store.receivers().revoke(id).await? {
        return Err(unknown(id));
    }
    if forget {
        site.store.receivers().forget(id).await?;
        site.fleet_mut().remove(id);
    }
    Ok(())
}

/// Disconnects a receiver
///
/// The receiver may reconnect at once.
#[utoipa::path(post, path = "/api/v1/receivers/{id}/disconnect", tag = "receivers",
    operation_id = "disconnect_receiver",
    params(("id" = Uuid, Path, description = "Identifier of the receiver")),
    responses((status = 202, body = CommandReceipt)))]
pub async fn disconnect_receiver(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<(StatusCode, Json<CommandReceipt>), Problem> {
    caller
        .may_do(
            &site,
            Scope::Receivers,
            "receiver.disconnect",
            &id.to_string(),
        )
        .await?;
    if !site.fleet().has(id) {
        return Err(unknown(id));
    }
    let command = NewCommand {
        kind: "disconnect".to_owned(),
        receiver: Some(id),
        ..NewCommand::default()
    };
    ask(&site, &caller, command).await
}
