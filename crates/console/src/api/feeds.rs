//! Feeds.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{FeedEdit, FeedEvent, FeedRow, FeedSettings, NewCommand, Origin};
use url::Url;
use utoipa::{IntoParams, ToSchema};

use super::commands::{Asked, ask};
use super::extract::{Json as Body, Path, Query};
use super::list::ListQuery;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::auth::secret;
use crate::live::board::Board;
use crate::site::Site;

/// The longest address of a feed, in bytes.
pub(super) const MAX_URL: usize = 2_048;

/// The longest title that an operator gives, in characters.
const MAX_TITLE: usize = 200;

/// Bounds of the time between two polls, in milliseconds. Shorter ones can be set at the source.
const INTERVALS: std::ops::RangeInclusive<i64> = 1_000..=86_400_000;

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
    /// The same in a sentence.
    pub detail: String,
    /// Since when; Unix milliseconds; null if that is not known.
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
    /// Whether it is not polled for the time being.
    pub paused: bool,
    /// Its new address, if its server said that it moved for good; null if not.
    pub moved_to: Option<String>,
    /// Origin: `flags` (the source's settings) or `managed` (a command, or the console).
    #[schema(pattern = "^(flags|managed)$")]
    pub origin: String,
    /// The last change of its state, and what was seen then; null if none is known.
    pub seen: Option<FeedSight>,
}

/// A change of a feed's state, and what was seen then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedSight {
    /// Time; Unix milliseconds.
    pub at_ms: i64,
    /// The new state.
    pub state: String,
    /// The same in a sentence.
    pub detail: String,
    /// The beginning of what was there instead of a feed, as text; null if nothing was.
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
pub(super) fn id_of(channel: &str, url: &str) -> String {
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
        // Of those that are well, the source does not tell whether there is something new.
        let told = match state {
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
                .filter(|last| last.state == told)
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
    /// To ask for what comes next; null at the end.
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
    /// At most so many.
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

/// The feeds of a channel, or all.
pub(super) fn list(site: &Site, channel: Option<&str>) -> Vec<Feed> {
    let board = site.board();
    let wanted = |row: &&FeedRow| channel.is_none_or(|channel| row.channel == channel);
    let items = board.feeds.iter().filter(wanted);
    items.map(|row| Feed::of(row, &board)).collect()
}

/// The feed of that id, as the database has it now.
pub(super) async fn find(site: &Site, id: &str) -> Result<FeedRow, Problem> {
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

/// A feed that is to be polled.
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

async fn add(site: &Site, new: &NewFeed) -> Result<FeedRow, Problem> {
    let (url, address) = read_address(&new.url)?;
    let local = site.settings.allow_private_feeds;
    super::feed_test::check_address(&address, local)?;
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
    super::feed_test::check_name(site, &address).await?;
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

/// A feed's address as it is shown, and as it is fetched from.
pub(super) fn read_address(given: &str) -> Result<(String, String), Problem> {
    let wrong =
        |what: &str| Problem::invalid("url", format!("{what}; write it as https://host/path"));
    let given = given.trim();
    if given.len() > MAX_URL {
        return Err(wrong("an address has at most 2048 bytes"));
    }
    let mut url = Url::parse(given).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("only http and https can be fetched"));
    }
    url.set_fragment(None);
    let mut shown = url.clone();
    // These fail only for addresses without a host, and http(s) ones have one.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    // Escapes can make it longer.
    if url.as_str().len() > MAX_URL {
        return Err(wrong("an address has at most 2048 bytes"));
    }
    Ok((shown.into(), url.into()))
}

fn check_intervals(min: Option<i64>, max: Option<i64>) -> Result<(), Problem> {
    for (field, given) in [("min_interval_ms", min), ("max_interval_ms", max)] {
        if given.is_some_and(|given| !INTERVALS.contains(&given)) {
            return Err(Problem::invalid(field, "is from a second to a day"));
        }
    }
    match (min, max) {
        (Some(min), Some(max)) if min > max => Err(Problem::invalid(
            "min_interval_ms",
            "is longer than max_interval_ms",
        )),
        _ => Ok(()),
    }
}

fn check_title(title: Option<&str>) -> Result<Option<String>, Problem> {
    let title = title.map(str::trim).filter(|title| !title.is_empty());
    match title {
        Some(title) if title.chars().count() > MAX_TITLE => Err(Problem::invalid(
            "title",
            format!("has at most {MAX_TITLE} characters"),
        )),
        title => Ok(title.map(str::to_owned)),
    }
}

/// Changes of a feed; members left out stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FeedPatch {
    /// Whether it is not polled for the time being.
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

async fn edit(site: &Site, mut row: FeedRow, patch: &FeedPatch) -> Result<FeedRow, Problem> {
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

/// Those of flags, variables and the file are changed there: the source would undo it at its start.
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

/// Has a feed polled now
#[utoipa::path(post, path = "/api/v1/feeds/{id}/refresh", tag = "feeds",
    operation_id = "refresh_feed",
    params(("id" = String, Path, description = "Identifier of the feed")),
    responses((status = 202, body = Asked)))]
pub async fn refresh_feed(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<Asked>), Problem> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures_util::future::join_all;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::config::SiteSettings;
    use crate::site::Parts;

    const URL: &str = "https://example.org/feed";

    /// A console without requests, with a channel; and its database.
    async fn site() -> (tempfile::TempDir, Site) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/console.db", folder.path().display());
        let store = store::open(&url).await.unwrap();
        store.channels().open("lore").await.unwrap();
        let site = Site::new(Parts {
            store,
            settings: SiteSettings::default(),
            stop: CancellationToken::new(),
        });
        (folder, site)
    }

    fn new(title: &str) -> NewFeed {
        NewFeed {
            channel: "lore".to_owned(),
            url: URL.to_owned(),
            title: Some(title.to_owned()),
            ..NewFeed::default()
        }
    }

    #[tokio::test]
    async fn concurrent_additions_of_a_feed_make_one() {
        let (_folder, site) = site().await;
        let all: Vec<NewFeed> = (0..8).map(|n| new(&format!("title {n}"))).collect();
        let done = join_all(all.iter().map(|new| add(&site, new))).await;
        let (added, others): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
        assert_eq!(added.len(), 1);
        let codes = others.into_iter().map(|done| done.unwrap_err().status);
        assert!(codes.eq([409; 7]));
        let row = site.store.feeds().get("lore", URL).await.unwrap().unwrap();
        assert_eq!(added.into_iter().next().unwrap().unwrap(), row);
    }

    /// Between reading and writing, others change and remove it.
    #[tokio::test]
    async fn concurrent_feed_edits_do_not_overwrite_each_other() {
        let (_folder, site) = site().await;
        let row = add(&site, &new("One")).await.unwrap();
        let title = FeedPatch {
            title: Some("Other".to_owned()),
            ..FeedPatch::default()
        };
        let shortest = FeedPatch {
            min_interval_ms: Some(7_000),
            ..FeedPatch::default()
        };
        let pause = FeedPatch {
            paused: Some(true),
            ..FeedPatch::default()
        };
        for patch in [&title, &shortest] {
            edit(&site, row.clone(), patch).await.unwrap();
        }
        let now = site.store.feeds().get("lore", URL).await.unwrap().unwrap();
        assert_eq!(now.settings.title.as_deref(), Some("Other"));
        assert_eq!(now.settings.min_interval_ms, Some(7_000));
        let off = site.store.feeds().set_active("lore", URL, false).await;
        assert!(off.unwrap());
        for patch in [&title, &pause] {
            let late = FeedPatch {
                title: patch.title.as_ref().map(|_| "Late".to_owned()),
                ..patch.clone()
            };
            let done = edit(&site, row.clone(), &late).await;
            assert_eq!(done.unwrap_err().status, 404);
        }
        let now = site.store.feeds().get("lore", URL).await.unwrap().unwrap();
        assert!(!now.active && !now.paused);
        assert_eq!(now.settings.title.as_deref(), Some("Other"));
    }

    #[test]
    fn addresses_are_shown_without_their_passwords() {
        let (shown, secret) = read_address(" https://u:p@example.org/f#x ").unwrap();
        assert_eq!(shown, "https://example.org/f");
        assert_eq!(secret, "https://u:p@example.org/f");
        let long = format!("https://example.org/{}", "ü".repeat(900));
        for bad in ["", "x", "ftp://example.org/", "file:///etc/passwd", &long] {
            assert!(read_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_of_channel_and_address() {
        assert_eq!(id_of("a", "b"), id_of("a", "b"));
        assert_ne!(id_of("a", "b"), id_of("ab", ""));
        assert_eq!(id_of("a", "b").len(), 16);
    }
}
