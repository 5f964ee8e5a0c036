//! The past of a feed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::FeedHour;
use utoipa::ToSchema;

use super::{FeedSight, find};
use crate::api::extract::Path;
use crate::api::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::clock::now_ms;
use crate::site::Site;

/// Number of events of a feed that are shown, and of hours.
const EVENTS: usize = 100;
const HOURS: i64 = 14 * 24;
const HOUR: i64 = 3_600_000;

/// Poll results of a feed within an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HourOfPolls {
    /// Start of the hour; Unix milliseconds.
    pub at_ms: i64,
    /// Number of polls.
    pub polls: u64,
    /// Polls with a document.
    pub ok: u64,
    /// Polls without a change.
    pub not_modified: u64,
    /// Polls that failed.
    pub failed: u64,
    /// Polls that met a bot check.
    pub challenged: u64,
    /// New versions of entries in them.
    pub entries: u64,
}

impl From<FeedHour> for HourOfPolls {
    fn from(hour: FeedHour) -> Self {
        Self {
            at_ms: hour.hour_ms,
            polls: hour.polls,
            ok: hour.ok,
            not_modified: hour.not_modified,
            failed: hour.failed,
            challenged: hour.challenged,
            entries: hour.entries,
        }
    }
}

/// The past of a feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedHistory {
    /// Changes of its state, the newest first.
    pub events: Vec<FeedSight>,
    /// Its polls of the last two weeks, by hour.
    pub hours: Vec<HourOfPolls>,
}

/// The past of a feed
#[utoipa::path(get, path = "/api/v1/feeds/{id}/history", tag = "feeds",
    operation_id = "feed_history",
    params(("id" = String, Path, description = "Identifier of the feed")),
    responses((status = 200, body = FeedHistory)))]
pub async fn feed_history(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<FeedHistory>, Problem> {
    caller.may(Scope::Read)?;
    let row = find(&site, &id).await?;
    let (channel, url) = (row.channel.as_str(), row.settings.url.as_str());
    let now = now_ms();
    let from = now - HOURS * HOUR;
    let hours = site
        .store
        .records()
        .feed_history(channel, url, from, now + HOUR)
        .await?;
    let events = site
        .store
        .records()
        .feed_events(Some((channel, url)), None, EVENTS)
        .await?;
    Ok(Json(FeedHistory {
        events: events.iter().map(FeedSight::from).collect(),
        hours: hours.into_iter().map(HourOfPolls::from).collect(),
    }))
}
