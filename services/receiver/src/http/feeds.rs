//! Feeds from memory, with validators (RFC 9110 sections 8.8 and 13).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::{Path as Segment, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    LAST_MODIFIED,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use feed::feed_file::Snapshot;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use ring::digest;

use super::Site;
use crate::feeds::{Feeds, Format};

/// Validators of the current versions, so that an unchanged feed is not hashed for each request.
#[derive(Debug, Default)]
pub(super) struct Validators(Mutex<HashMap<String, FeedValidators>>);

/// Version of a feed.
#[derive(Debug, Clone)]
struct FeedValidators {
    version: u64,
    etag: String,
    length: u64,
    modified: Timestamp,
}

impl Validators {
    /// Returns validators of the feed served as `name`, and its document if it had to be rendered.
    /// Hashes a new version; `None` if there is no such feed.
    fn of(
        &self,
        name: &str,
        feeds: &Feeds,
        format: Format,
    ) -> Option<(FeedValidators, Option<Snapshot>)> {
        let version = feeds.version(format)?;
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(name).cloned();
        if let Some(known) = known.filter(|known| known.version == version) {
            return Some((known, None));
        }
        let snapshot = feeds.snapshot(format)?;
        let known = FeedValidators {
            version: snapshot.version(),
            etag: hash(&snapshot),
            length: snapshot.bytes(),
            modified: Timestamp::try_from(snapshot.modified()).unwrap_or(Timestamp::UNIX_EPOCH),
        };
        lock().insert(name.to_owned(), known.clone());
        Some((known, Some(snapshot)))
    }

    /// Returns the same, always with the document.
    fn with_document(
        &self,
        name: &str,
        feeds: &Feeds,
        format: Format,
    ) -> Option<(FeedValidators, Snapshot)> {
        loop {
            let (known, snapshot) = self.of(name, feeds, format)?;
            let snapshot = match snapshot {
                Some(snapshot) => snapshot,
                None => feeds.snapshot(format)?,
            };
            // The feed may have changed meanwhile.
            if snapshot.version() == known.version {
                return Some((known, snapshot));
            }
        }
    }
}

/// Returns a strong validator: the beginning of the content's SHA-256.
fn hash(snapshot: &Snapshot) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for piece in snapshot.pieces() {
        context.update(piece.as_ref());
    }
    let digest = context.finish();
    let half = digest.as_ref().get(..16).unwrap_or_default();
    format!("\"{}\"", HEXLOWER.encode(half))
}

pub(super) async fn feed(
    State(site): State<Arc<Site>>,
    Segment(name): Segment<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let found = name.rsplit_once('.').and_then(|(channel, kind)| {
        let feeds = Arc::clone(&site.served(channel)?.feeds);
        match kind {
            "atom" => Some((feeds, Format::Atom, "application/atom+xml; charset=utf-8")),
            "json" => Some((feeds, Format::Json, "application/feed+json; charset=utf-8")),
            _ => None,
        }
    });
    let Some((feeds, format, kind)) = found else {
        return no_feed();
    };
    let is_head = method == Method::HEAD;
    // Hashing megabytes would block an async thread.
    let looked = tokio::task::spawn_blocking(move || {
        let (known, snapshot) = site.validators.of(&name, &feeds, format)?;
        let fresh = is_known(&headers, &known.etag, known.modified);
        if fresh || is_head {
            return Some((known, None, fresh));
        }
        match snapshot {
            Some(snapshot) => Some((known, Some(snapshot), false)),
            None => {
                let (known, snapshot) = site.validators.with_document(&name, &feeds, format)?;
                Some((known, Some(snapshot), false))
            }
        }
    });
    let (known, snapshot, fresh) = match looked.await {
        Ok(Some(looked)) => looked,
        Ok(None) => return no_feed(),
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let mut response = match snapshot {
        _ if fresh => StatusCode::NOT_MODIFIED.into_response(),
        None => StatusCode::OK.into_response(),
        Some(snapshot) => content(snapshot).into_response(),
    };
    let headers = response.headers_mut();
    let mut put = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(ETAG, &known.etag);
    put(CACHE_CONTROL, "no-cache");
    // Within the same second, another version may get the same date.
    let is_over = known.modified.as_second() < Timestamp::now().as_second();
    let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&known.modified);
    if let (Ok(date), true) = (date, is_over) {
        put(LAST_MODIFIED, &date);
    }
    if !fresh {
        put(CONTENT_TYPE, kind);
        put(CONTENT_LENGTH, &known.length.to_string());
    }
    response
}

/// Whether the client has this version. `If-None-Match` takes precedence over a date (RFC 9110
/// section 13.2.2).
fn is_known(headers: &HeaderMap, etag: &str, modified: Timestamp) -> bool {
    if headers.contains_key(IF_NONE_MATCH) {
        let lists = headers.get_all(IF_NONE_MATCH).iter();
        let mut tags = lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(str::trim);
        return tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag);
    }
    let since = headers.get(IF_MODIFIED_SINCE);
    let since = since.and_then(|date| date.to_str().ok());
    since
        .and_then(|date| rfc2822::parse(date).ok())
        .is_some_and(|since| modified.as_second() <= since.timestamp().as_second())
}

/// Returns the content in pieces, all of one version.
fn content(snapshot: Snapshot) -> Body {
    let pieces = snapshot.into_pieces();
    let pieces = pieces.map(|piece| std::io::Result::Ok(Bytes::from_owner(piece)));
    Body::from_stream(futures_util::stream::iter(pieces))
}

fn no_feed() -> Response {
    (StatusCode::NOT_FOUND, "there is no such feed: see /\n").into_response()
}
