//! Feeds: a list of them, and one of them. `add` and `change` write them, `check` has the bounds of
//! what is given; `history` is their past, `test` fetches one before it is added.

pub mod add;
pub mod change;
mod check;
pub mod history;
pub mod test;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::{FeedEvent, FeedRow};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Path, Query};
use super::list::ListQuery;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::auth::secret;
use crate::live::board::Board;
use crate::site::Site;
pub(super) use check::MAX_URL;

/// A feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feed {
    /// Identifier in the API; stable.
    pub id: String,
    /// The channel that its updates go to.
    pub channel: String,
    /// Its address, without a password.
    pub url: String,
    /// Title for people; null if none was set.
    pub title: Option<String>,
    /// State: `pending`, `ok`, `not-modified`, `not-a-feed`, `challenged`, `gone`, `error` or
    /// `paused`.
    pub state: String,
    /// The state in a sentence.
    pub detail: String,
    /// Time since which it has this state; Unix milliseconds; null if unknown.
    pub since_ms: Option<i64>,
    /// Time of the last poll; Unix milliseconds; null before the first.
    pub last_poll_ms: Option<i64>,
    /// Time of the next poll; Unix milliseconds; null if unknown.
    pub next_poll_ms: Option<i64>,
    /// The time between two polls at present, in milliseconds; null before the first.
    pub interval_ms: Option<i64>,
    /// The shortest time between two polls; null for the source's own.
    pub min_interval_ms: Option<i64>,
    /// The longest time between two polls; null for the source's own.
    pub max_interval_ms: Option<i64>,
    /// Whether it may be in a private network.
    pub local: bool,
    /// Whether polling is paused.
    pub paused: bool,
    /// Its new address, if its server said that it moved for good; null if not.
    pub moved_to: Option<String>,
    /// Origin: `flags` (the source's settings) or `managed` (a command, or the console).
    #[schema(pattern = "^(flags|managed)$")]
    pub origin: String,
    /// The last change of its state, with an excerpt of the document; null if none is known.
    pub seen: Option<FeedSight>,
}

/// A change of a feed's state, with an excerpt of the document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedSight {
    /// Time; Unix milliseconds.
    pub at_ms: i64,
    /// The new state.
    pub state: String,
    /// The state in a sentence.
    pub detail: String,
    /// The beginning of the document that was no feed, as text; null without one.
    pub excerpt: Option<String>,
}

impl From<&FeedEvent> for FeedSight {
    fn from(event: &FeedEvent) -> Self {
        Self {
            at_ms: event.at_ms,
            state: event.state.clone(),
            detail: event.detail.clone(),
            excerpt: event.excerpt.clone(),
        }
    }
}

/// Returns a feed's identifier in the API.
fn id_of(channel: &str, url: &str) -> String {
    let text = format!("{channel}\n{url}");
    let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    secret::encode(hash.as_ref().get(..12).unwrap_or_default())
}

/// Returns a feed's state.
pub(super) fn state_of(row: &FeedRow) -> &str {
    match (&row.last_poll, row.paused, row.gone_ms) {
        (_, true, _) => "paused",
        (_, false, Some(_)) => "gone",
        (None, false, None) => "pending",
        (Some(poll), false, None) => &poll.state,
    }
}

impl Feed {
    pub(crate) fn of(row: &FeedRow, board: &Board) -> Self {
        let settings = &row.settings;
        let poll = row.last_poll.as_ref();
        let key = (row.channel.clone(), settings.url.clone());
        let last = board.seen.get(&key);
        let due = poll.filter(|_| !row.paused && row.gone_ms.is_none());
        let state = state_of(row);
        // For feeds that are well, the source does not report whether there is something new.
        let reported = match state {
            "not-modified" => "ok",
            other => other,
        };
        Self {
            id: id_of(&row.channel, &settings.url),
            channel: row.channel.clone(),
            url: settings.url.clone(),
            title: settings.title.clone(),
            state: state.to_owned(),
            detail: poll.map_or_else(String::new, |poll| poll.detail.clone()),
            since_ms: last
                .filter(|last| last.state == reported)
                .map(|last| last.at_ms),
            last_poll_ms: poll.map(|poll| poll.at_ms),
            next_poll_ms: due.and_then(|poll| poll.next_ms),
            interval_ms: row.interval_ms,
            min_interval_ms: settings.min_interval_ms,
            max_interval_ms: settings.max_interval_ms,
            local: settings.local,
            paused: row.paused,
            moved_to: row.moved_to.clone(),
            origin: settings.origin.as_str().to_owned(),
            seen: last.map(FeedSight::from),
        }
    }
}

/// All feeds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feeds {
    /// By channel and address.
    pub items: Vec<Feed>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Selection of feeds.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FeedsQuery {
    /// Of this channel.
    pub channel: Option<String>,
    /// The previous answer's `next_cursor`.
    pub cursor: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 10000, default = 10000)]
    pub limit: Option<usize>,
}

/// Feeds
#[utoipa::path(get, path = "/api/v1/feeds", tag = "feeds", operation_id = "feeds",
    params(FeedsQuery), responses((status = 200, body = Feeds)))]
pub async fn feeds(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<FeedsQuery>,
) -> Result<Json<Feeds>, Problem> {
    caller.may(Scope::Read)?;
    let all = list(&site, query.channel.as_deref());
    let part = ListQuery {
        cursor: query.cursor,
        limit: query.limit,
    };
    let key = |feed: &Feed| (feed.channel.clone(), feed.url.clone());
    let (items, next_cursor) = part.part(all, key)?;
    Ok(Json(Feeds { items, next_cursor }))
}

/// Returns the feeds of a channel, or all.
pub(super) fn list(site: &Site, channel: Option<&str>) -> Vec<Feed> {
    let board = site.board();
    let wanted = |row: &&FeedRow| channel.is_none_or(|channel| row.channel == channel);
    let items = board.feeds.iter().filter(wanted);
    items.map(|row| Feed::of(row, &board)).collect()
}

/// Returns the feed of that id, as the database has it now.
async fn find(site: &Site, id: &str) -> Result<FeedRow, Problem> {
    let rows = site.store.feeds().list(None).await?;
    rows.into_iter()
        .find(|row| row.active && id_of(&row.channel, &row.settings.url) == id)
        .ok_or_else(unknown)
}

fn unknown() -> Problem {
    Problem::not_found("there is no feed of that id")
}

/// One feed
#[utoipa::path(get, path = "/api/v1/feeds/{id}", tag = "feeds", operation_id = "feed",
    params(("id" = String, Path, description = "Identifier of the feed")),
    responses((status = 200, body = Feed)))]
pub async fn feed(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Feed>, Problem> {
    caller.may(Scope::Read)?;
    let row = find(&site, &id).await?;
    Ok(Json(Feed::of(&row, &site.board())))
}
