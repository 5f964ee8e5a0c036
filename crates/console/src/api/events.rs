//! Live events (server-sent events, as the HTML standard has them).

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use service::places::Connection;
use uuid::Uuid;

use super::extract::Query;
use super::problem::Problem;
use super::receivers::{MOST, bad_cursor, page_start, receivers_query};
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::fleet::{Filter, PageStart, Selection};
use crate::live::events::Snapshot;
use crate::live::{TopicKey, stream};
use crate::site::Site;

/// Browsers say with this what they had last.
const LAST_EVENT_ID: &str = "last-event-id";

receivers_query! {
    /// The watched list: filters of the list of receivers, and `receiver`.
    EventsQuery
    /// Only this receiver.
    receiver: Option<Uuid>,
    ..
    /// The previous answer's `next_cursor`.
    cursor: Option<String>,
    /// Number of items to skip, instead of `cursor`.
    #[param(minimum = 0)]
    offset: Option<usize>,
    /// Maximum number of receivers; none are watched without it, or with 0.
    #[param(minimum = 0, maximum = 500)]
    limit: Option<usize>,
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
        let selection = self.selection()?;
        let start = page_start(self.cursor, self.offset)?;
        Ok(TopicKey {
            list: Some((selection, start, limit)),
        })
    }
}

/// Live events
///
/// Server-sent events: first `snapshot`, whose data is a `Snapshot`; then, at most once a second,
/// `delta`, whose data is an `Update`. After a short break of the connection, `Last-Event-ID`
/// continues after the last event; after a long one there is another snapshot. Where nothing
/// happens, a comment is sent every 15 seconds.
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
        // Some proxies would buffer events.
        (no_buffer, HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}
