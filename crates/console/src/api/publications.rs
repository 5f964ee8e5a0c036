//! Entries that publishers send to a channel.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use feed::parse::MAX_ENTRY_BYTES;
use feed::publication::{
    Content, Event, EventData, FEED_URL, MAX_ENCODED_BYTES, Publication, PublicationError,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use store::{NewPublication, StoreError};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Path, Query, read_body};
use super::messages::{decode, header, new_id, take_room};
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::site::Site;

/// Media types of structured events.
const EVENT: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";

/// Largest batch, in bytes.
const MAX_BATCH_BYTES: usize = 8 << 20;

/// Longest wait for other requests, and for a body.
const TURN: Duration = Duration::from_secs(10);
const BODY: Duration = Duration::from_secs(30);

/// Entries that were handed to the source, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublishedEntries {
    /// The entries.
    pub entries: Vec<PublishedEntry>,
}

/// Entry that was handed to the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublishedEntry {
    /// Its id; that of an event is SOURCE#ID.
    pub id: String,
    /// Whether an entry with this id was published before: it is not published again.
    pub repeated: bool,
}

/// Attributes of an entry whose content is sent as it is.
#[derive(Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EntryQuery {
    /// Id, by which an entry that is sent again is recognised; else that of a JSON Feed item, or a
    /// new UUID.
    #[param(min_length = 1, max_length = 2048)]
    pub id: Option<String>,
    /// Title; else the first line of a text.
    pub title: Option<String>,
    /// Page that the entry is about.
    pub url: Option<String>,
}

/// Form of a body.
#[derive(Debug)]
enum Form {
    Event,
    Batch,
    /// Event in binary mode.
    Binary(Box<Event>),
    Content(Option<String>),
}

impl Form {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let content_type = header(headers, CONTENT_TYPE.as_str())?;
        let content_type = content_type.filter(|kind| !kind.is_empty());
        let essence = content_type.as_deref().unwrap_or_default();
        let essence = essence.split(';').next().unwrap_or_default();
        let essence = essence.trim().to_ascii_lowercase();
        match essence.as_str() {
            EVENT => return Ok(Self::Event),
            BATCH => return Ok(Self::Batch),
            _ if essence.starts_with("application/cloudevents") => {
                let what = format!("send events as {EVENT} or {BATCH}");
                return Err(Problem::malformed(what).of_field("content-type"));
            }
            _ => {}
        }
        let attribute = |name| Ok::<_, Problem>(header(headers, name)?.map(|text| decode(&text)));
        let Some(specversion) = attribute("ce-specversion")? else {
            return Ok(Self::Content(content_type));
        };
        Ok(Self::Binary(Box::new(Event {
            specversion,
            id: attribute("ce-id")?.unwrap_or_default(),
            source: attribute("ce-source")?.unwrap_or_default(),
            kind: attribute("ce-type")?.unwrap_or_default(),
            time: attribute("ce-time")?,
            subject: attribute("ce-subject")?,
            datacontenttype: content_type,
            data: EventData::None,
        })))
    }

    /// Returns the longest body, in bytes, and what it is.
    fn limit(&self) -> (usize, &'static str) {
        match self {
            Form::Event => (MAX_ENCODED_BYTES, "an event has at most 6 MiB"),
            Form::Batch => (MAX_BATCH_BYTES, "a batch has at most 8 MiB"),
            Form::Binary(_) | Form::Content(_) => (MAX_ENTRY_BYTES, "an entry has at most 1 MiB"),
        }
    }

    fn publications(
        self,
        query: EntryQuery,
        bytes: &[u8],
    ) -> Result<Vec<Publication>, PublicationError> {
        let now = Timestamp::now();
        Ok(match self {
            Form::Event => vec![Publication::from_event_json(bytes, now)?],
            Form::Batch => Publication::from_batch_json(bytes, now)?,
            Form::Binary(event) => {
                let event = Event {
                    data: EventData::Bytes(bytes.to_vec()),
                    ..*event
                };
                vec![Publication::from_event(event, now)?]
            }
            Form::Content(content_type) => {
                let content = Content {
                    id: query.id,
                    title: query.title,
                    url: query.url,
                    content_type,
                    body: bytes.to_vec(),
                };
                let default_id = format!("urn:uuid:{}", new_id());
                vec![Publication::from_content(content, default_id, now)?]
            }
        })
    }
}

impl From<PublicationError> for Problem {
    fn from(error: PublicationError) -> Self {
        Self::from_publication(&error)
    }
}

impl Problem {
    fn from_publication(error: &PublicationError) -> Self {
        match error {
            PublicationError::Attribute { name, .. } => Problem::invalid(name, error.to_string()),
            PublicationError::TooLarge { .. } => Problem::too_large(error.to_string()),
            PublicationError::OfBatch { number, error } => {
                let mut problem = Problem::from_publication(error);
                problem.detail = format!("event {number} of the batch: {}", problem.detail);
                problem
            }
            _ => Problem::malformed(error.to_string()),
        }
    }
}

/// Publishes entries in a channel
///
/// The body is a text, HTML or JSON (an object with the members of a JSON Feed item is that item),
/// a CloudEvents 1.0 event in structured (`application/cloudevents+json`) or binary mode (headers
/// `ce-…`), or a batch of at most 1,000 events (`application/cloudevents-batch+json`), which is
/// taken whole or not at all. An entry is durable when this is answered; the source stores it as an
/// update, and sends it to every receiver. An id that was published in the channel before is not
/// published again; 200 where that holds for all. The audit log has failures only.
#[utoipa::path(post, path = "/api/v1/channels/{name}/publish", tag = "channels",
    operation_id = "publish_entries",
    params(("name" = String, Path, description = "Name of the channel"), EntryQuery),
    request_body(content(
        (String = "text/plain"),
        (String = "text/html"),
        (String = "application/json"),
        (String = "application/cloudevents+json"),
        (String = "application/cloudevents-batch+json"),
    )),
    responses((status = 202, description = "Accepted", body = PublishedEntries),
        (status = 200, description = "Published before", body = PublishedEntries)))]
pub async fn publish_entries(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<EntryQuery>,
    request: Request,
) -> Result<(StatusCode, Json<PublishedEntries>), Problem> {
    caller
        .may_do(&site, Scope::Publish, "entry.publish", &name)
        .await?;
    take_room(&site, &caller)?;
    let form = Form::of(request.headers())?;
    if !matches!(form, Form::Content(_)) && query != EntryQuery::default() {
        let what = "an event has its own id and subject: leave out id, title and url";
        return Err(Problem::malformed(what));
    }
    // What waits for a turn has only been announced: so bodies take no more memory than those of a
    // few requests.
    let busy = || Problem::too_many("others are publishing; try again in a moment", 1);
    let turn = Arc::clone(&site.publishing).acquire_owned();
    let turn = timeout(TURN, turn).await.map_err(|_| busy())?;
    let turn = turn.map_err(|_| busy())?;
    let (limit, what) = form.limit();
    let body = timeout(BODY, read_body(request, &site, limit, what)).await;
    let slow = |_| Problem::malformed("the body did not arrive within 30 s");
    let body = body.map_err(slow)??;
    // A batch takes some milliseconds. The turn goes along: a client that leaves does not end it.
    let parsing = tokio::task::spawn_blocking(move || {
        let publications = form.publications(query, &body)?.into_iter();
        let new = publications.map(|publication| {
            let (entry_id, payload) = publication.into_parts();
            NewPublication { entry_id, payload }
        });
        Ok::<(Vec<_>, _), PublicationError>((new.collect(), turn))
    });
    let (new, turn) = parsing.await.map_err(|_| Problem::internal())??;
    let added = site.store.publications().add(&name, FEED_URL, &new).await;
    let repeated = added.map_err(|error| match error {
        StoreError::TooMany { limit, .. } => {
            let what = format!("{limit} publications or 64 MiB wait for the source already");
            Problem::too_many(what, 1)
        }
        error => error.into(),
    })?;
    drop(turn);
    let status = match repeated.iter().all(|repeated| *repeated) {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    let entries = new.into_iter().zip(repeated);
    let entries = entries.map(|(new, repeated)| PublishedEntry {
        id: new.entry_id,
        repeated,
    });
    let entries = entries.collect();
    Ok((status, Json(PublishedEntries { entries })))
}
