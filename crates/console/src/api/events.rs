//! Live events (server-sent events, as the HTML standard has them).

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use service::places::Connection;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::Query;
use super::feeds::Feed;
use super::moves::Move;
use super::overview::Overview;
use super::problem::Problem;
use super::receivers::{MOST, ReceiversQuery, bad_cursor};
use super::relays::Relay;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::fleet::{Filter, Order, Page, PageStart, Receiver, Rung, Selection, Sort};
use crate::live::{TopicKey, stream};
use crate::site::Site;

/// Browsers say with this what they had last.
const LAST_EVENT_ID: &str = "last-event-id";

/// The overview and the receivers that are watched, as they are: the first event, and after a gap.
/// Feeds, relays, and more moves than the overview has, are asked for by their own calls after each
/// snapshot; what changes of them then comes with every `Update`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The overview.
    pub overview: Overview,
    /// The part of the list of receivers that was asked for; null if none was.
    pub receivers: Option<Page>,
}

/// Differences from the previous event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Update {
    /// The overview, if anything in it is different.
    pub overview: Option<Overview>,
    /// Receivers that are new in the part that was asked for, or changed.
    pub receivers: Vec<Receiver>,
    /// Receivers that are not in it any more.
    pub gone: Vec<Uuid>,
    /// All that are in it, in their order, if that is another one.
    pub order: Option<Vec<Uuid>>,
    /// All receivers, without those that the filter leaves out for being removed or not; null if no
    /// part of the list was asked for.
    pub total: Option<usize>,
    /// Those that the filter leaves; null if no part of the list was asked for.
    pub filtered: Option<usize>,
    /// New moves, the newest first.
    pub moves: Vec<Move>,
    /// Feeds that are new or changed.
    pub feeds: Vec<Feed>,
    /// The ids of feeds that are gone.
    pub feeds_gone: Vec<String>,
    /// All relays, if one of them is different.
    pub relays: Option<Vec<Relay>>,
}

impl Update {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.overview.is_none()
            && self.receivers.is_empty()
            && self.gone.is_empty()
            && self.order.is_none()
            && self.moves.is_empty()
            && self.feeds.is_empty()
            && self.feeds_gone.is_empty()
            && self.relays.is_none()
    }
}

/// The watched list: filters of the list of receivers, and `receiver`.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only this receiver.
    pub receiver: Option<Uuid>,
    /// With this text in the name, label, id, address, software or a tag.
    #[param(max_length = 200)]
    pub q: Option<String>,
    /// On this rung.
    #[param(inline)]
    pub rung: Option<Rung>,
    /// With this channel; then `rung`, `cause`, `connected` and `behind` are those of this channel.
    pub channel: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Connected ones, or those that are not.
    pub connected: Option<bool>,
    /// On their rung for this cause.
    pub cause: Option<String>,
    /// With something left to get, or with nothing.
    pub behind: Option<bool>,
    /// Those that were removed; without it, or with `false`, all others.
    pub revoked: Option<bool>,
    /// Sort key.
    #[param(inline)]
    pub sort: Option<Sort>,
    /// In which direction.
    #[param(inline)]
    pub order: Option<Order>,
    /// The previous answer's `next_cursor`.
    pub cursor: Option<String>,
    /// After so many, instead of `cursor`.
    #[param(minimum = 0)]
    pub offset: Option<usize>,
    /// At most so many receivers; none are watched without it, or with 0.
    #[param(minimum = 0, maximum = 500)]
    pub limit: Option<usize>,
}

impl EventsQuery {
    fn key(self) -> Result<TopicKey, Problem> {
        if let Some(receiver) = self.receiver {
            let filter = Filter {
                receiver: Some(receiver),
                ..Filter::default()
            };
            let selection = Selection {
                filter,
                ..Selection::default()
            };
            return Ok(TopicKey {
                list: Some((selection, PageStart::Start, 1)),
            });
        }
        let limit = match self.limit {
            None | Some(0) => return Ok(TopicKey::default()),
            limit => super::limit(limit, 1, MOST)?,
        };
        let query = ReceiversQuery {
            q: self.q,
            rung: self.rung,
            channel: self.channel,
            tag: self.tag,
            connected: self.connected,
            cause: self.cause,
            behind: self.behind,
            revoked: self.revoked,
            sort: self.sort,
            order: self.order,
            cursor: self.cursor,
            offset: self.offset,
            limit: None,
        };
        Ok(TopicKey {
            list: Some((query.selection()?, query.place()?, limit)),
        })
    }
}

/// Live events
///
/// Server-sent events: first `snapshot`, whose data is a `Snapshot`; then, at most once a second, `delta`,
/// whose data is an `Update`. After a short break of the connection, `Last-Event-ID` goes on where it
/// ended; after a long one there is another snapshot. A comment comes where nothing happens for 15
/// seconds.
#[utoipa::path(get, path = "/api/v1/events", tag = "events", operation_id = "events",
    params(EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event")),
    responses((status = 200, body = Snapshot, content_type = "text/event-stream")))]
pub async fn events(
    State(site): State<Arc<Site>>,
    caller: Caller,
    connection: Option<Extension<Arc<Connection>>>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Response, Problem> {
    caller.may(Scope::Read)?;
    let key = query.key()?;
    if let Some((selection, place, limit)) = &key.list {
        let page = site.fleet().page(selection, place, *limit);
        page.map_err(|_| bad_cursor())?;
    }
    let crowded = || Problem::too_many("too many pages watch; try again in a moment", 5);
    if let Some(Extension(connection)) = connection {
        connection.admit().map_err(|_| crowded())?;
        connection.has_to_end_within(None);
    }
    let last = headers.get(LAST_EVENT_ID);
    let last = last.and_then(|id| id.to_str().ok());
    let events = stream(Arc::clone(&site), caller, key, last).map_err(|_| crowded())?;
    let no_buffer = HeaderName::from_static("x-accel-buffering");
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // Some proxies would keep events until there are many.
        (no_buffer, HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}
