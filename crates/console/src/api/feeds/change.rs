//! Changing, removing and refreshing a feed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{FeedEdit, FeedRow, NewCommand, Origin};
use utoipa::ToSchema;

use super::check::{check_intervals, check_title};
use super::{Feed, find, unknown};
use crate::api::commands::{CommandReceipt, ask};
use crate::api::extract::{Json as Body, Path};
use crate::api::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// Changes of a feed; members left out stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FeedPatch {
    /// Whether polling is paused.
    pub paused: Option<bool>,
    /// Title for people; empty for none.
    #[schema(max_length = 200)]
    pub title: Option<String>,
    /// The shortest time between two polls, in milliseconds.
    #[schema(minimum = 1000, maximum = 86400000)]
    pub min_interval_ms: Option<i64>,
    /// The longest time between two polls, in milliseconds.
    #[schema(minimum = 1000, maximum = 86400000)]
    pub max_interval_ms: Option<i64>,
}

/// Changes or pauses a feed
///
/// A feed of the source's own settings is changed there; it can still be paused here.
#[utoipa::path(patch, path = "/api/v1/feeds/{id}", tag = "feeds", operation_id = "edit_feed",
    request_body = FeedPatch,
    params(("id" = String, Path, description = "Identifier of the feed")),
    responses((status = 200, body = Feed)))]
pub async fn edit_feed(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<String>,
    Body(patch): Body<FeedPatch>,
) -> Result<Json<Feed>, Problem> {
    caller.may_do(&site, Scope::Feeds, "feed.edit", &id).await?;
    let row = find(&site, &id).await?;
    let url = row.settings.url.clone();
    let done = edit(&site, row, &patch).await;
    let detail = serde_json::to_value(&patch).unwrap_or_default();
    caller.note(&site, "feed.edit", url, detail, &done).await;
    let row = done?;
    site.catch_up().await;
    let feed = Feed::of(&row, &site.board());
    Ok(Json(feed))
}

pub(super) async fn edit(
    site: &Site,
    mut row: FeedRow,
    patch: &FeedPatch,
) -> Result<FeedRow, Problem> {
    let mut settings = row.settings.clone();
    if let Some(title) = &patch.title {
        settings.title = check_title(Some(title))?;
    }
    settings.min_interval_ms = patch.min_interval_ms.or(settings.min_interval_ms);
    settings.max_interval_ms = patch.max_interval_ms.or(settings.max_interval_ms);
    check_intervals(patch.min_interval_ms, patch.max_interval_ms)?;
    if let (Some(min), Some(max)) = (settings.min_interval_ms, settings.max_interval_ms)
        && min > max
    {
        let what = "is longer than max_interval_ms";
        return Err(Problem::invalid("min_interval_ms", what));
    }
    if settings != row.settings {
        managed(&row)?;
        // The row may have changed or gone since it was read: only given members are written.
        let edit = FeedEdit {
            title: patch
                .title
                .as_ref()
                .map(|_| settings.title.unwrap_or_default()),
            min_interval_ms: patch.min_interval_ms,
            max_interval_ms: patch.max_interval_ms,
        };
        let (channel, url) = (&row.channel, &row.settings.url);
        let changed = site.store.feeds().edit(channel, url, &edit).await?;
        row = changed.ok_or_else(unknown)?;
    }
    if let Some(paused) = patch.paused {
        let (channel, url) = (&row.channel, &row.settings.url);
        if !site.store.feeds().set_paused(channel, url, paused).await? {
            return Err(unknown());
        }
        row.paused = paused;
    }
    Ok(row)
}

/// Refuses feeds of the source's own settings: the source would undo the change at its start.
fn managed(row: &FeedRow) -> Result<(), Problem> {
    match row.settings.origin {
        Origin::Managed => Ok(()),
        Origin::Flags => Err(Problem::conflict(
            "this feed is given to the source by its flags, environment or configuration file: \
             change it there and start the source again; it can be paused here",
        )),
    }
}

/// Removes a feed
///
/// Polling stops; its updates stay.
#[utoipa::path(delete, path = "/api/v1/feeds/{id}", tag = "feeds", operation_id = "remove_feed",
    params(("id" = String, Path, description = "Identifier of the feed")),
    responses((status = 204, description = "Removed")))]
pub async fn remove_feed(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    caller
        .may_do(&site, Scope::Feeds, "feed.remove", &id)
        .await?;
    let row = find(&site, &id).await?;
    let done = async {
        managed(&row)?;
        let (channel, url) = (&row.channel, &row.settings.url);
        site.store.feeds().set_active(channel, url, false).await?;
        Ok::<(), Problem>(())
    };
    let done = done.await;
    let detail = json!({"channel": row.channel});
    caller
        .note(&site, "feed.remove", row.settings.url, detail, &done)
        .await;
    done?;
    site.catch_up().await;
    Ok(StatusCode::NO_CONTENT)
}

/// Polls a feed now
#[utoipa::path(post, path = "/api/v1/feeds/{id}/refresh", tag = "feeds",
    operation_id = "refresh_feed",
    params(("id" = String, Path, description = "Identifier of the feed")),
    responses((status = 202, body = CommandReceipt)))]
pub async fn refresh_feed(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<CommandReceipt>), Problem> {
    caller
        .may_do(&site, Scope::Feeds, "feed.refresh", &id)
        .await?;
    let row = find(&site, &id).await?;
    let command = NewCommand {
        kind: "refresh-feed".to_owned(),
        channel: Some(row.channel),
        url: Some(row.settings.url),
        ..NewCommand::default()
    };
    ask(&site, &caller, command).await
}
