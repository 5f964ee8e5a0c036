//! Updates, and their delivery.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use feed::payload;
use serde::{Deserialize, Serialize};
use store::{ProgressRow, StoredUpdate, UpdateItem};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Path, Query};
use super::list::next_cursor;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// Maximum number of items in an answer.
pub(super) const MOST: usize = 200;

/// The longest title of a list, in characters: some feeds put whole texts there.
const MAX_TITLE: usize = 300;

/// The longest title of a single update.
const MAX_WHOLE_TITLE: usize = 2_000;

/// The longest name of an author, in characters.
const MAX_NAME: usize = 200;

/// The longest text of an update that is passed on, in bytes; and the longest summary.
const MAX_CONTENT: usize = 1 << 20;
const MAX_SUMMARY: usize = 16 << 10;

/// Maximum of bytes of updates read at once for the titles of a list.
const MAX_READ: usize = 8 << 20;

/// Delivery progress of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Number of receivers it was meant for.
    pub expected: u64,
    /// Number of those that have it.
    pub delivered: u64,
    /// Milliseconds until half of them had it; null if they do not.
    pub half_ms: Option<u64>,
    /// … for 99 of 100.
    pub p99_ms: Option<u64>,
    /// … for all of them.
    pub all_ms: Option<u64>,
}

impl From<&ProgressRow> for Progress {
    fn from(row: &ProgressRow) -> Self {
        Self {
            expected: row.expected,
            delivered: row.delivered,
            half_ms: row.half_ms,
            p99_ms: row.p99_ms,
            all_ms: row.all_ms,
        }
    }
}

/// Whether an update brought its entry for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpdateKind {
    /// A new entry.
    Created,
    /// Another version of an entry.
    Updated,
}

impl UpdateKind {
    /// The same in a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
        }
    }
}

/// An update in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpdateRow {
    /// Its channel.
    pub channel: String,
    /// Its number in the channel.
    pub seq: u64,
    /// The feed that it is from.
    pub feed_url: String,
    /// The entry's id in the feed.
    pub entry_id: String,
    /// Whether it brought the entry for the first time.
    pub kind: UpdateKind,
    /// Time of storing; Unix milliseconds.
    pub published_ms: i64,
    /// Encoded length.
    pub bytes: u64,
    /// The entry's title, cut; null if it has none.
    pub title: Option<String>,
    /// Delivery progress; null if unknown.
    pub progress: Option<Progress>,
}

impl UpdateRow {
    fn of(channel: &str, item: UpdateItem) -> Self {
        Self {
            channel: channel.to_owned(),
            seq: item.seq,
            feed_url: item.url,
            entry_id: item.entry_id,
            kind: match item.is_new {
                true => UpdateKind::Created,
                false => UpdateKind::Updated,
            },
            published_ms: item.created_ms,
            bytes: item.bytes,
            title: None,
            progress: None,
        }
    }
}

/// Some updates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Updates {
    /// The newest first.
    pub items: Vec<UpdateRow>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Selection of updates.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UpdatesQuery {
    /// Of this channel; needed where there are several.
    pub channel: Option<String>,
    /// With a smaller seq.
    pub before: Option<u64>,
    /// The previous answer's `next_cursor`: the same as `before`.
    pub cursor: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 200, default = 50)]
    pub limit: Option<usize>,
}

/// Updates of a channel, and their delivery
#[utoipa::path(get, path = "/api/v1/updates", tag = "updates", operation_id = "updates",
    params(UpdatesQuery), responses((status = 200, body = Updates)))]
pub async fn updates(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<UpdatesQuery>,
) -> Result<Json<Updates>, Problem> {
    caller.may(Scope::Read)?;
    let limit = super::limit(query.limit, 50, MOST)?;
    let cursor: Option<u64> = super::number_cursor(query.cursor.as_deref())?;
    let before = cursor.or(query.before);
    if before.is_some_and(|before| i64::try_from(before).is_err()) {
        return Err(Problem::malformed("there is no such seq").of_field("before"));
    }
    let items = match channel_of(&site, query.channel)? {
        Some(channel) => part(&site, &channel, before, limit).await?,
        None => Vec::new(),
    };
    let next_cursor = next_cursor(&items, limit, |item| item.seq);
    Ok(Json(Updates { items, next_cursor }))
}

/// Returns the requested channel, which need not be named where there is only one; `None` where
/// there is none at all.
pub(super) fn channel_of(site: &Site, given: Option<String>) -> Result<Option<String>, Problem> {
    if given.is_some() {
        return Ok(given);
    }
    match site.board().channels.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.channel.name.clone())),
        _ => {
            let what = "there are several channels: name one";
            Err(Problem::malformed(what).of_field("channel"))
        }
    }
}

/// Some updates, the newest first.
pub(super) async fn part(
    site: &Site,
    channel: &str,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<UpdateRow>, Problem> {
    let found = site.store.updates().list(channel, before, limit).await?;
    let progress: HashMap<u64, Progress> = site
        .store
        .records()
        .progress(channel, before, limit)
        .await?
        .iter()
        .map(|row| (row.seq, row.into()))
        .collect();
    let titles = titles(site, channel, &found).await?;
    let rows = found.into_iter().map(|item| UpdateRow {
        title: titles.get(&item.seq).cloned(),
        progress: progress.get(&item.seq).copied(),
        ..UpdateRow::of(channel, item)
    });
    Ok(rows.collect())
}

/// The titles of some updates, as far as they are not too long to read.
async fn titles(
    site: &Site,
    channel: &str,
    items: &[UpdateItem],
) -> Result<HashMap<u64, String>, Problem> {
    let (Some(newest), Some(oldest)) = (items.first(), items.last()) else {
        return Ok(HashMap::new());
    };
    let count = usize::try_from(newest.seq - oldest.seq).unwrap_or(MOST) + 1;
    let stored = site
        .store
        .updates()
        .read(channel, oldest.seq, count.min(MOST), MAX_READ)
        .await?;
    let decoding = tokio::task::spawn_blocking(move || {
        let titles = stored.iter().filter_map(|update| {
            let title = payload::decode(&update.encoded).ok()?.entry.title?;
            Some((update.seq, title.chars().take(MAX_TITLE).collect()))
        });
        titles.collect()
    });
    decoding.await.map_err(|_| Problem::internal())
}

/// Format of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ContentType {
    /// HTML as the feed has it: to be sanitised before it is shown.
    Html,
    /// Plain text.
    Text,
}

/// An update with its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpdateDetail {
    /// The update as in a list.
    #[serde(flatten)]
    pub row: UpdateRow,
    /// The entry's link; null if it has none, or one that is too long to be one.
    pub link: Option<String>,
    /// Authors; long names are cut.
    pub authors: Vec<String>,
    /// Time of change as stated by the feed; Unix milliseconds; null if it states none.
    pub updated_ms: Option<i64>,
    /// The text, as the feed has it; null if there is none.
    pub content: Option<String>,
    /// Format of the text; null without one.
    pub content_type: Option<ContentType>,
    /// Whether the text was too long and is cut.
    pub content_cut: bool,
    /// The summary, as plain text, cut; null if there is none.
    pub summary: Option<String>,
}

/// One update
///
/// Its text is as the feed has it: sanitise it before you show it.
#[utoipa::path(get, path = "/api/v1/updates/{channel}/{seq}", tag = "updates",
    operation_id = "update",
    params(("channel" = String, Path, description = "The channel"),
        ("seq" = u64, Path, description = "The update's number in the channel")),
    responses((status = 200, body = UpdateDetail)))]
pub async fn update(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path((channel, seq)): Path<(String, u64)>,
) -> Result<Json<UpdateDetail>, Problem> {
    caller.may(Scope::Read)?;
    let unknown = || {
        Problem::not_found(format!(
            "channel {channel:?} has no update {seq}; it may have been kept for long enough"
        ))
    };
    // A database counts no further.
    let next = seq
        .checked_add(1)
        .filter(|next| i64::try_from(*next).is_ok());
    let next = next.ok_or_else(unknown)?;
    let items = site.store.updates().list(&channel, Some(next), 1).await?;
    let item = items.into_iter().find(|item| item.seq == seq);
    let item = item.ok_or_else(unknown)?;
    let stored = site.store.updates().read(&channel, seq, 1, 1).await?;
    let stored = stored.into_iter().find(|update| update.seq == seq);
    let stored = stored.ok_or_else(unknown)?;
    let progress = site
        .store
        .records()
        .progress(&channel, Some(next), 1)
        .await?;
    let progress = progress.iter().find(|row| row.seq == seq);
    let row = UpdateRow {
        progress: progress.map(Progress::from),
        ..UpdateRow::of(&channel, item)
    };
    let decoding = tokio::task::spawn_blocking(move || detail(row, &stored));
    let detail = decoding.await.map_err(|_| Problem::internal())?;
    Ok(Json(detail))
}

fn detail(mut row: UpdateRow, stored: &StoredUpdate) -> UpdateDetail {
    let entry = payload::decode(&stored.encoded)
        .ok()
        .map(|update| update.entry);
    let mut detail = UpdateDetail {
        row: row.clone(),
        link: None,
        authors: Vec::new(),
        updated_ms: None,
        content: None,
        content_type: None,
        content_cut: false,
        summary: None,
    };
    let Some(entry) = entry else {
        return detail;
    };
    let cut = |text: String, most: usize| {
        let end = text.floor_char_boundary(most.min(text.len()));
        (
            text.len() > end,
            text.get(..end).unwrap_or_default().to_owned(),
        )
    };
    let first = |text: String, most: usize| text.chars().take(most).collect::<String>();
    row.title = entry.title.map(|title| first(title, MAX_WHOLE_TITLE));
    detail.link = entry.url.filter(|url| url.len() <= super::feeds::MAX_URL);
    let names = entry.authors.into_iter().filter_map(|author| author.name);
    detail.authors = names.map(|name| first(name, MAX_NAME)).collect();
    detail.updated_ms = entry.updated.map(|time| time.as_millisecond());
    let content = match (entry.content_html, entry.content_text) {
        (Some(html), _) => Some((ContentType::Html, html)),
        (None, Some(text)) => Some((ContentType::Text, text)),
        (None, None) => None,
    };
    if let Some((kind, text)) = content {
        let (was_cut, text) = cut(text, MAX_CONTENT);
        detail.content_type = Some(kind);
        detail.content = Some(text);
        detail.content_cut = was_cut;
    }
    detail.summary = entry.summary.map(|text| cut(text, MAX_SUMMARY).1);
    detail.row = row;
    detail
}
