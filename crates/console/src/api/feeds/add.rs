//! Adding a feed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{FeedRow, FeedSettings, Origin};
use utoipa::ToSchema;

use super::Feed;
use super::check::{check_intervals, check_title, read_address};
use super::test::{check_address, check_name};
use crate::api::extract::Json as Body;
use crate::api::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// A new feed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewFeed {
    /// The channel that its updates go to.
    #[schema(required = true)]
    pub channel: String,
    /// Its address, with user name and password if it needs them.
    #[schema(required = true, max_length = 2048)]
    pub url: String,
    /// Title for people.
    #[schema(max_length = 200)]
    pub title: Option<String>,
    /// The shortest time between two polls, in milliseconds.
    #[schema(minimum = 1000, maximum = 86400000)]
    pub min_interval_ms: Option<i64>,
    /// The longest time between two polls, in milliseconds.
    #[schema(minimum = 1000, maximum = 86400000)]
    pub max_interval_ms: Option<i64>,
}

/// Adds a feed
///
/// Polled soon. Addresses in private networks are refused, also those that a name resolves to,
/// unless the console allows them.
#[utoipa::path(post, path = "/api/v1/feeds", tag = "feeds", operation_id = "add_feed",
    request_body = NewFeed, responses((status = 201, body = Feed)))]
pub async fn add_feed(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Body(new): Body<NewFeed>,
) -> Result<(StatusCode, Json<Feed>), Problem> {
    caller.may_do(&site, Scope::Feeds, "feed.add", "").await?;
    let done = add(&site, &new).await;
    let target = match &done {
        Ok(row) => row.settings.url.clone(),
        // An unparsable address may hold a password.
        Err(_) => String::new(),
    };
    let detail = json!({"channel": new.channel, "title": new.title});
    caller.note(&site, "feed.add", target, detail, &done).await;
    let row = done?;
    site.catch_up().await;
    let feed = Feed::of(&row, &site.board());
    Ok((StatusCode::CREATED, Json(feed)))
}

pub(super) async fn add(site: &Site, new: &NewFeed) -> Result<FeedRow, Problem> {
    let (url, address) = read_address(&new.url)?;
    let local = site.settings.allow_private_feeds;
    check_address(&address, local)?;
    check_intervals(new.min_interval_ms, new.max_interval_ms)?;
    let title = check_title(new.title.as_deref())?;
    let channels = site.store.channels().list().await?;
    let mut active = channels.iter().filter(|row| row.active);
    if !active.any(|row| row.channel.name == new.channel) {
        let what = format!("there is no channel {:?}", new.channel);
        return Err(Problem::invalid("channel", what));
    }
    let there = || {
        let what = format!("channel {:?} has this feed already", new.channel);
        Problem::conflict(what).of_field("url")
    };
    let known = site.store.feeds().get(&new.channel, &url).await?;
    if known.is_some_and(|row| row.active) {
        return Err(there());
    }
    check_name(site, &address).await?;
    let settings = FeedSettings {
        url,
        address,
        local,
        min_interval_ms: new.min_interval_ms,
        max_interval_ms: new.max_interval_ms,
        title,
        origin: Origin::Managed,
    };
    let added = site.store.feeds().add(&new.channel, &settings).await?;
    added.ok_or_else(there)
}
